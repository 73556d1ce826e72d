"""Edges that name no node: what is said depends on what the names look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph
from hpgmn.graph.conversion import read_graph_tables
from hpgmn.tables.columns import Columns, open_tables


def read_tables(tables: Any, **options: Any) -> Graph:
    graph: Graph = read_graph_tables(Graph, tables, **options)
    return graph


ADD = r"Add the node, or remove the edge \(--drop-unknown-edges does\)\.$"


@pytest.mark.parametrize(
    ("nodes", "ends", "told"),
    [
        (
            {"id": ["001", "002", "003", "004"]},
            ["1", "2"],
            r"\. Ids are spelt in two ways, '1' in edges.csv and '001' in nodes.csv\. Write them "
            r"alike\.$",
        ),
        ({"id": ["1", "2", "3", "4"]}, ["1.0", "2.0"], "two ways, '1.0' in edges.csv and '1' in"),
        ({"id": ["Ann", "Bob", "Cy", "Di"]}, ["ann", "bob"], "two ways, 'ann' in edges.csv and 'A"),
        (
            {"node_id": [1, 2, 3, 4], "id": None, "name": ["a", "b", "c", "d"]},
            ["a", "b"],
            r"\. Column 'name' of nodes.csv holds such names\. Give --id name\.$",
        ),
        (
            {"id": ["x", "y", "z", "w"], "number": [4, 5, 6, 7]},
            ["4", "7"],
            r"\. Column 'number' of nodes.csv holds such names\. Give --id number\.$",
        ),
        ({}, ["nobody", "none"], ADD),
    ],
)
def test_why_most_edges_name_no_node(
    write_tables: Callable[..., Path], nodes: dict[str, Any], ends: list[str], told: str
) -> None:
    folder = write_tables("csv", nodes, {"source": ends, "target": ends[::-1]})
    with pytest.raises(GraphError, match=told):
        read_tables(open_tables(folder, prepare=True))


def test_one_wrong_edge_among_many_is_no_riddle(write_tables: Callable[..., Path]) -> None:
    edges = {"source": ["a", "b", "A"], "target": ["b", "c", "a"]}
    with pytest.raises(GraphError, match=ADD):
        read_tables(open_tables(write_tables("csv", edges=edges)))


def test_the_guess_is_told_when_edges_are_left_out(write_tables: Callable[..., Path]) -> None:
    folder = write_tables("csv", edges={"source": ["A", "B"], "target": ["b", "C"]})
    told: list[str] = []
    read_tables(open_tables(folder, Columns(drop_unknown_edges=True)), log=told.append)
    assert told[-1].endswith(
        "; left out. Ids are spelt in two ways, 'A' in edges.csv and 'a' in nodes.csv. Write them "
        "alike."
    )


def test_another_column_comes_before_nodes_of_an_earlier_graph(
    write_tables: Callable[..., Path],
) -> None:
    folder = write_tables("csv", {"id": [1, 2, 3, 4], "name": ["a", "b", "c", "d"]})
    with pytest.raises(GraphError, match=r"Give --id name\.$"):
        read_tables(open_tables(folder, prepare=True), earlier_ids=np.array(["a", "b", "c", "d"]))
    other = write_tables("csv", {"id": ["x", "y", "z", "w"]}, folder="other")
    with pytest.raises(
        GraphError, match=r"trained on 2 of the nodes .* Otherwise add the node, or"
    ):
        read_tables(open_tables(other), earlier_ids=np.array(["a", "b"]))
