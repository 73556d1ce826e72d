"""Words of one value have one class, whatever file they come from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from hpgmn.tables import open_tables, read_tables
from hpgmn.tables.preparation import Preparation
from hpgmn.tables.words import Words, alike, canonical


def classes(words: list[str | None], known: tuple[str, ...] = ()) -> tuple[list[int], list[str]]:
    found = Words()
    found.add(pa.array(words, pa.string()))
    y, names = found.classes(known)
    assert y is not None
    assert names is not None
    return y.tolist(), names


def test_names_stay_as_they_are_written() -> None:
    assert classes(["1.0", "0.0", None, "10.0"]) == ([1, 0, -1, 2], ["0.0", "1.0", "10.0"])
    assert classes(["007", "08"]) == ([0, 1], ["007", "08"])


@pytest.mark.parametrize(
    ("known", "word"),
    [("1", "1.0"), ("1.0", "1"), ("True", "true"), ("false", "False"), ("TRUE", "True")],
)
def test_a_known_class_is_found_in_another_spelling(known: str, word: str) -> None:
    assert classes([word, "other"], ("first", known)) == ([1, 2], ["first", known, "other"])


def test_the_same_spelling_comes_first() -> None:
    assert classes(["1.0", "1", "1."], ("1", "1.0")) == ([1, 0, 0], ["1", "1.0"])


def test_colours_are_not_numbers() -> None:
    assert classes(["Red", "red"], ("red",)) == ([1, 0], ["red", "Red"])
    assert [canonical(word) for word in ("1.50", "1e0", "v1.0", "-0.0")] == [
        *("1.50", "1e0", "v1.0", "-0")
    ]


def test_without_a_column_the_known_classes_stay() -> None:
    assert Words().classes() == (None, None)
    assert Words().classes(("a",)) == (None, ["a"])


def test_names_alike_are_found() -> None:
    assert alike(["a", "b", "B", "b ", "2", "02", "2.0", "True"]) == [
        *(("b", "B"), ("b", "b "), ("2", "2.0"))
    ]


@pytest.mark.parametrize("first", ["csv", "parquet"])
@pytest.mark.parametrize("values", [[True, None, False, True], [1.0, None, 0.0, 1.0]])
def test_a_class_is_the_same_in_csv_and_parquet(
    write_tables: Callable[..., Path], first: str, values: list[object]
) -> None:
    second = "parquet" if first == "csv" else "csv"
    trained = read_tables(open_tables(write_tables(first, {"label": values}), prepare=True))
    assert trained.preparation is not None
    later = read_tables(
        open_tables(
            write_tables(second, {"label": values}, folder="later"),
            prepare=True,
            preparation=Preparation.from_dict(trained.preparation),
        )
    )
    assert later.class_names == trained.class_names
    assert later.y.tolist() == trained.y.tolist() == [1, -1, 0, 1]


def test_truth_has_one_spelling(write_tables: Callable[..., Path]) -> None:
    for number, words in enumerate((["TRUE", "FALSE"], ["true", "false"], ["True", "False"])):
        label = [words[0], None, words[1], words[0]]
        graph = read_tables(open_tables(write_tables("csv", {"label": label}, folder=f"{number}")))
        assert graph.class_names == ("False", "True")


def test_classes_that_are_probably_one_are_told(
    write_tables: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    graph = read_tables(open_tables(write_tables("csv", {"label": ["1", None, "1.0", "2"]})))
    assert graph.class_names == ("1", "1.0", "2")
    assert caplog.messages == [
        "nodes.csv: column 'label' has classes that differ only by case, spaces or a trailing "
        "'.0': '1' and '1.0'. Spell them alike if they are one class."
    ]
