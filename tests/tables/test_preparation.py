"""Preparations: fitted once, stored as plain values, applied to later tables."""

import json

import numpy as np
import pyarrow as pa
import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.tables.preparation import Preparation, fit, likely_label
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


def test_new_nodes_are_prepared_as_the_first_ones():
    fitted = Fitted({"age": [0.0, 4.0, None], "region": ["n", "s", "n"]})
    fitted.lines.clear()
    new = {"region": ["s", "west", None], "age": [8.0, None, 2.0]}
    assert fitted.apply(new) == [[3, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert fitted.lines == [
        "nodes: column 'region' holds 'west', unknown when the model was trained; such nodes have "
        "none of its attributes."
    ]


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"age": [1]}, "nodes has no column 'region', 'day', which the model was trained with."),
        (
            {"age": ["x"], "region": ["n"], "day": pa.nulls(1)},
            "column 'age' holds 'x' in row 1, which is not a number",
        ),
        (
            {"age": [1], "region": ["n"], "day": ["today"]},
            "column 'day' is of type string, but held dates when the model was trained",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused(new, message):
    dates = pa.array(["1970-01-01", "1970-01-05"]).cast(pa.date32())
    fitted = Fitted({"age": [1, 2], "region": ["n", "s"], "day": dates})
    with pytest.raises(HPGMNError, match=message):
        fitted.apply(new)


def test_a_preparation_is_kept_as_plain_values():
    random = np.random.default_rng(1)
    fitted = Fitted(
        {
            "number": random.normal(size=50).tolist(),
            "word": random.choice(["a", "b"], 50).tolist(),
            "same": [1] * 50,
        }
    ).preparation
    again = Preparation.from_dict(json.loads(json.dumps(fitted.as_dict())))
    assert again == fitted


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_and_memory_give_the_same(write_table, tmp_path, ending):
    columns = {
        "age": [1.5, None, 3.0, 4.0],
        "region": ["n", "s", None, "n"],
        "member": [True, False, True, True],
    }
    found = Fitted(open_table(write_table(tmp_path / f"nodes.{ending}", columns)))
    expected = Fitted(columns)
    assert found.preparation == expected.preparation
    np.testing.assert_array_equal(found.x, expected.x)


def test_what_does_not_vary_or_cannot_be_read_is_left_out(caplog):
    fitted = Fitted(
        {
            "planet": ["earth"] * 3,
            "one": [7, 7, 7],
            "nothing": pa.nulls(3),
            "blank": ["", None, "NA"],
            "lists": [[1], [2], [3]],
            "age": [1, 2, 3],
        }
    )
    assert fitted.preparation.left_out == {
        "lists": "of type list<item: int64>",
        "planet": "constant",
        "one": "constant",
        "nothing": "empty",
        "blank": "empty",
    }
    assert list(fitted.columns) == ["age"]
    assert "nodes: left out because constant: 'planet', 'one'." in fitted.lines
    assert caplog.messages == [
        "nodes: 'lists' of type list<item: int64> cannot be an attribute and is left out."
    ]
    for useless in ({"planet": ["earth"] * 3}, {"lists": [[1], [2], [3]]}, {}):
        nothing = Fitted(useless)
        assert (nothing.preparation.columns, nothing.x) == ((), None)


def test_the_order_of_rows_does_not_matter():
    random = np.random.default_rng(0)
    columns = {
        "number": random.normal(1e6, 1, 101).tolist(),
        "word": random.choice(["a", "b", ""], 101).tolist(),
    }
    order = random.permutation(101)
    shuffled = {name: [own[place] for place in order] for name, own in columns.items()}
    first, second = Fitted(columns), Fitted(shuffled)
    assert first.preparation == second.preparation
    np.testing.assert_array_equal(first.x[order], second.x)


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"fraud": ["yes", "no", None, "no"]}, "fraud"),
        ({"isFraud": [1, 0, 1, 0]}, "isFraud"),
        ({"town": ["x", None, "y", "x"], "churn_flag": [1, 0, 1, 0]}, "churn_flag"),
        ({"town": ["x", None, "y", "x"]}, "town"),
        ({"town": ["x", "y", "y", "x"], "age": [1.5, None, 3, 4]}, None),
        ({"robots": ["x", "y", "y", "x"]}, None),
    ],
)
def test_a_column_that_may_be_the_label_is_found(columns, label):
    table = memory_table({"id": list("abcd"), **columns})
    preparation, _ = fit(table, list(columns), [], lambda line: None)
    assert likely_label(preparation.as_dict()) == label
