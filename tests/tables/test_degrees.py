"""Nodes without attributes have their degree, the same way for later tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpgmn.base.errors import GraphError
from hpgmn.tables import Preparation, open_tables, read_tables
from hpgmn.tables.degrees import degree_column, log_degrees

BARE = {"age": None, "rich": None}


def test_every_edge_counts_at_both_ends() -> None:
    edges = np.array([[0, 1, 2, 2], [1, 0, 2, 0]])
    assert log_degrees(edges, 4).tolist() == np.log([1 + 3, 1 + 2, 1 + 3, 1]).tolist()


def test_degrees_that_are_all_the_same_become_zero() -> None:
    column = degree_column(np.full(3, 2.5))
    assert column.attributes(np.full(3, 2.5)).tolist() == [[0], [0], [0]]


def test_later_tables_are_scaled_as_the_first(write_tables: Callable[..., Path]) -> None:
    first = read_tables(open_tables(write_tables("csv", BARE), prepare=True))
    assert first.preparation is not None
    kept = Preparation.from_dict(json.loads(json.dumps(first.preparation)))
    edges = {"source": ["a", "a", "a"], "target": ["b", "c", "d"]}
    folder = write_tables("csv", {"id": list("abcd"), **BARE}, edges, folder="later")
    later = read_tables(open_tables(folder, prepare=True, preparation=kept))
    before = np.log1p([1, 3, 4, 0])  # of the fixture's edges, one of them a self-loop
    expected = (np.log1p([3, 1, 1, 1]) - before.mean()) / before.std()
    np.testing.assert_allclose(later.x[:, 0], expected, rtol=1e-6)


def test_columns_that_cannot_be_used_are_as_good_as_none(write_tables: Callable[..., Path]) -> None:
    folder = write_tables("csv", BARE | {"planet": ["earth"] * 4})
    graph = read_tables(open_tables(folder, prepare=True))
    assert graph.feature_names is not None
    assert graph.feature_names.tolist() == ["degree"]


@pytest.mark.parametrize("prepare", [True, False])
def test_neither_attributes_nor_edges_is_refused(
    write_tables: Callable[..., Path], prepare: bool
) -> None:
    folder = write_tables("csv", BARE, {"source": [], "target": []})
    told = r"^nodes\.csv has no attributes that can be used, and edges\.csv no edges, so there is"
    with pytest.raises(GraphError, match=told):
        read_tables(open_tables(folder, prepare=prepare))
