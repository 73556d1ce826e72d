"""Edges to unknown nodes: the remedy depends on the names."""

from functools import partial

import numpy as np
import pytest

from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph
from hpgmn.graph.conversion import read_graph_tables
from hpgmn.tables.columns import open_tables
from hpgmn.tables.options import Columns

read_tables = partial(read_graph_tables, Graph)


@pytest.mark.parametrize(
    ("nodes", "ends", "action", "id_column"),
    [
        ({"id": ["001", "002", "003", "004"]}, ["1", "2"], "'1' in edges.csv is '001' in", None),
        ({"id": ["1", "2", "3", "4"]}, ["1.0", "2.0"], "'1.0' in edges.csv is '1' in", None),
        ({"id": ["Ann", "Bob", "Cy", "Di"]}, ["ann", "bob"], "'ann' in edges.csv is 'Ann'", None),
        (
            {"node_id": [1, 2, 3, 4], "id": None, "name": ["a", "b", "c", "d"]},
            ["a", "b"],
            "Use column 'name' of nodes.csv",
            "name",
        ),
        (
            {"id": ["x", "y", "z", "w"], "number": [4, 5, 6, 7]},
            ["4", "7"],
            "Use column 'number' of nodes.csv",
            "number",
        ),
        ({}, ["nobody", "none"], "Add the node", None),
    ],
)
def test_the_remedy_depends_on_the_unknown_names(write_tables, nodes, ends, action, id_column):
    folder = write_tables("csv", nodes, {"source": ends, "target": ends[::-1]})
    with pytest.raises(GraphError, match=r"\(2 such edges in all\)") as caught:
        read_tables(open_tables(folder, prepare=True))
    remedy = caught.value.remedy
    assert action in remedy.action
    assert remedy.value == id_column
    assert remedy.alternatives[-1].option == "drop_unknown_edges"


def test_a_single_unknown_name_is_not_explained(write_tables):
    edges = {"source": ["a", "b", "A"], "target": ["b", "c", "a"]}
    with pytest.raises(GraphError, match="Add the node"):
        read_tables(open_tables(write_tables("csv", edges=edges)))


def test_the_explanation_is_a_warning_if_edges_are_left_out(write_tables, caplog):
    folder = write_tables("csv", edges={"source": ["A", "B"], "target": ["b", "C"]})
    lines = []
    read_tables(open_tables(folder, Columns(drop_unknown_edges=True)), log=lines.append)
    assert lines[-1].endswith("; left out.")
    assert "'A' in edges.csv is 'a' in nodes.csv" in caplog.text


def test_another_column_comes_before_nodes_of_an_earlier_graph(write_tables):
    folder = write_tables("csv", {"id": [1, 2, 3, 4], "name": ["a", "b", "c", "d"]})
    with pytest.raises(GraphError, match="Use column 'name'"):
        read_tables(open_tables(folder, prepare=True), earlier_ids=np.array(["a", "b", "c", "d"]))
    other = write_tables("csv", {"id": ["x", "y", "z", "w"]}, folder="other")
    with pytest.raises(GraphError, match="trained on 2 of the unknown nodes"):
        read_tables(open_tables(other), earlier_ids=np.array(["a", "b"]))
