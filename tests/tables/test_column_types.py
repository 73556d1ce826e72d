"""Columns of every type become the numbers that are worked out by hand here."""

import json
import math
import zlib

import numpy as np
import pyarrow as pa
import pytest

from hpgmn.base.errors import GraphError, Remedy
from hpgmn.tables.column_types import (
    COLUMN_TYPES,
    HASHED,
    ONE_HOT,
    Category,
    Column,
    Date,
    Degree,
    Sample,
)
from hpgmn.tables.preparation import fit
from hpgmn.tables.sources import MemoryTable, open_table


def memory_table(columns):
    return MemoryTable(pa.table(columns), "nodes")


class Fitted:
    """A fitted preparation with its matrix and the logged lines."""

    def __init__(self, table, categories=()):
        self.lines: list[str] = []
        self.table = memory_table(table) if isinstance(table, dict) else table
        names = list(self.table.types)
        self.preparation, self.x = fit(self.table, names, categories, self.lines.append)

    @property
    def columns(self):
        names = self.preparation.feature_names
        return dict(zip(names, self.x.T.tolist(), strict=True))

    def apply(self, columns):
        return self.preparation.attributes(memory_table(columns), self.lines.append).tolist()


def test_numbers_are_standardised():
    fitted = Fitted({"age": [1, 2, 3, 6]})
    deviation = math.sqrt((4 + 1 + 0 + 9) / 4)  # the mean is 3
    expected = [-2 / deviation, -1 / deviation, 0, 3 / deviation]
    assert fitted.columns == {"age": pytest.approx(expected, rel=1e-6)}
    assert fitted.x.dtype == np.float32
    assert fitted.lines == ["nodes: standardised: 'age'."]


def test_missing_numbers_become_the_median_and_are_marked():
    fitted = Fitted({"age": [0.0, None, 4.0, 2.0, float("nan"), 10.0]})
    deviation = math.sqrt((16 + 0 + 4 + 36) / 4)  # of 0, 4, 2, 10 around 4; the median is 3
    scaled = [(value - 4) / deviation for value in (0, 3, 4, 2, 3, 10)]
    assert fitted.columns == {
        "age": pytest.approx(scaled, rel=1e-6),
        "age is missing": [0, 1, 0, 0, 1, 0],
    }
    assert "values are missing in 'age'; the median" in fitted.lines[1]


def test_zeros_and_ones_and_truth_stay_as_they_are():
    fitted = Fitted({"rich": [1, 0, 1], "tall": [True, False, None]})
    assert fitted.columns == {
        "rich": [1, 0, 1],
        "tall": [1, 0, 0.5],  # the median of true and false
        "tall is missing": [0, 0, 1],
    }


def test_words_have_an_attribute_each_and_missing_is_one():
    fitted = Fitted({"region": ["south", "north", None, "south", " ", "NA"]})
    assert fitted.columns == {
        "region=north": [0, 1, 0, 0, 0, 0],
        "region=south": [1, 0, 0, 1, 0, 0],
        "region is missing": [0, 0, 1, 0, 1, 1],
    }


def test_many_words_are_hashed():
    words = [f"city {number}" for number in range(ONE_HOT + 1)] * 2
    fitted = Fitted({"city": words})
    expected = np.zeros((len(words), HASHED))
    for row, word in enumerate(words):
        expected[row, zlib.crc32(word.encode()) % HASHED] = 1
    np.testing.assert_array_equal(fitted.x, expected)
    assert fitted.preparation.feature_names[:2] == ["city#0", "city#1"]
    new = fitted.apply({"city": ["elsewhere"]})
    assert new[0].index(1) == zlib.crc32(b"elsewhere") % HASHED
    exact = Fitted({"city": [f"city {number}" for number in range(ONE_HOT)] * 2})
    assert exact.x.shape[1] == ONE_HOT
    assert (exact.x.sum(axis=1) == 1).all()


def test_dates_are_days():
    dates = pa.array(["1970-01-01", "1970-01-05"]).cast(pa.date32())
    times = pa.array([0, 12 * 3600]).cast(pa.timestamp("s"))
    fitted = Fitted({"joined": dates, "seen": times})
    assert fitted.columns == {"joined": [-1, 1], "seen": [-1, 1]}
    assert [column.mean for column in fitted.preparation.columns] == [2, 0.25]
    later = pa.array(["1970-01-07"]).cast(pa.date32())
    assert fitted.apply({"joined": later, "seen": pa.nulls(1)}) == [[2, 0]]
    milliseconds = pa.array([None, 86_400_000]).cast(pa.timestamp("ms", "UTC"))
    assert Date.read(None, "seen", milliseconds)[1] == 1


@pytest.mark.parametrize(
    ("words", "is_text"),
    [
        ([f"person {number}" for number in range(ONE_HOT + 1)], True),  # names
        (["a long sentence about somebody " + "x" * n for n in range(9, 14)], True),
        (["short", "words", "all", "different"], False),
        (
            ["a long sentence that everybody has written", "another one of the same length"] * 4,
            False,
        ),
    ],
)
def test_free_text_and_names_are_left_out(words, is_text, caplog):
    fitted = Fitted({"bio": words, "age": list(range(len(words)))})
    assert ("bio" in fitted.preparation.left_out) == is_text
    if is_text:
        [record] = caplog.records
        assert "'bio': free text or names, left out" in record.getMessage()
        assert isinstance(record.args, tuple)
        remedy = record.args[-1]
        assert isinstance(remedy, Remedy)
        assert "(--category bio)" in remedy.render(cli=True)
        category = Fitted({"bio": words}, ("bio",))
        assert category.x.sum() == len(words)
        assert len(caplog.records) == 1


def test_one_value_and_missing_ones_leave_where_it_is_missing():
    fitted = Fitted({"score": [5.0, None, 5.0], "badge": ["gold", None, None]})
    assert fitted.columns == {
        "score is missing": [0, 1, 0],
        "badge=gold": [1, 0, 0],
        "badge is missing": [0, 1, 1],
    }


def test_numbers_that_float64_cannot_tell_apart_are_constant():
    fitted = Fitted({"near": [0.0, 5e-324], "age": [1, 2]})
    assert fitted.preparation.left_out == {"near": "constant"}


def test_numbers_may_be_categories():
    fitted = Fitted({"code": [10, 9, 10]}, ("code",))
    assert fitted.columns == {"code=10": [1, 0, 1], "code=9": [0, 1, 0]}
    assert fitted.apply({"code": ["9"]}) == [[0, 1]]


def test_dictionaries_of_words_are_words():
    column = pa.array(["x", "y", "x"]).dictionary_encode()
    assert Fitted({"kind": column}).columns == {"kind=x": [1, 0, 1], "kind=y": [0, 1, 0]}


def test_words_among_numbers_are_refused(tmp_path):
    (tmp_path / "nodes.csv").write_text("age\n41\n35\nold\n28\n\n?\n7\n")
    with pytest.raises(GraphError, match="'age' holds 'old' in row 3 below the header") as caught:
        Fitted(open_table(tmp_path / "nodes.csv"))
    remedy = caught.value.remedy
    assert [(other.option, other.value) for other in remedy.alternatives] == [
        ("categories", ["age"]),
        ("drop", ["age"]),
    ]
    assert Fitted({"room": ["1", "b2", "b3", "4"]}).x.shape == (4, 4)  # half are words
    assert Fitted(open_table(tmp_path / "nodes.csv"), ("age",)).x.sum() == 6


def test_infinite_numbers_are_refused():
    with pytest.raises(GraphError, match=r"'age' has 2 numbers .* the first in row 2"):
        Fitted({"age": [1.0, float("inf"), 1e39]})


def test_dates_of_a_csv_file_are_seen(tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text("day,same\n1970-01-01,1\n,1\n1970-01-05,1\n")
    fitted = Fitted(open_table(path))
    assert fitted.columns == {"day": [-1, 0, 1], "day is missing": [0, 1, 0]}


def test_truth_as_a_category_has_one_spelling():
    table = memory_table({"ok": ["TRUE", "false", None, "True"]})
    preparation, x = fit(table, ["ok"], ["ok"], lambda line: None)
    assert preparation.feature_names == ["ok=False", "ok=True", "ok is missing"]
    assert x.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_dates_in_another_form_are_left_out(caplog):
    days = [f"{1 + n % 28:02d}.{1 + n // 28:02d}.2024" for n in range(60)]
    fitted = Fitted({"since": days, "age": list(range(60))})
    assert "since" in fitted.preparation.left_out
    assert "'since': dates not written as 2024-01-01, left out." in caplog.text


def test_every_type_is_stored_under_its_name_and_rebuilt():
    for column_type in (*COLUMN_TYPES, Degree):
        column = column_type("a", 1.0, 2.0, 3.0, True, ("x",), 4)
        content = json.loads(json.dumps(column.as_dict()))
        assert list(content) == [
            *("name", "kind", "mean", "deviation", "fill", "has_missing", "values", "width")
        ]
        assert Column.from_dict(content) == column
        assert type(Column.from_dict(content)) is column_type


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["2024-01-02", "03.04.2024", "05/06/2024"], "dates not written as 2024-04-03"),
        (["1,5", "2,25", "-3,0"], "numbers not written as 1234.5"),
        (["1.234,50 €", "12,00 €", "7,99 €"], "numbers not written as 1234.5"),
        (["1,000", "25,000", "3"], "numbers not written as 1234.5"),
        (["12%", "3.5%", "7%"], "numbers not written as 1234.5"),
    ],
)
def test_dates_and_numbers_of_another_form_are_left_out_with_a_reason(words, reason):
    assert fit_words(words) == reason
    assert isinstance(fit_words(words * 2), Category)  # words that repeat


def test_codes_addresses_and_versions_stay_categories():
    for words in (["04109", "80331", "01069"], ["10.0.0.1", "10.0.0.2"], ["v1.2", "v1.3"]):
        assert isinstance(fit_words(words), Category)


def fit_words(words):
    array = np.empty(len(words), object)
    array[:] = words
    table = MemoryTable(pa.table({"a": words}), "nodes")
    return Category.fit(Sample(table, "a", array))
