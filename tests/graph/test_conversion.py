"""The methods of a graph that speak with other libraries do what the functions do."""

from __future__ import annotations

import warnings

import hpgmn
from hpgmn import Graph

NODES = {"id": ["a", "b", "c"], "age": [1, 2, 3], "label": ["x", "y", None]}
EDGES = {"source": ["a", "b"], "target": ["b", "c"]}


def test_from_tables_is_the_function_of_that_name() -> None:
    found = Graph.from_tables(NODES, EDGES, directed=False, name="mine")
    same = hpgmn.from_tables(NODES, EDGES, directed=False, name="mine")
    assert found.fingerprint == same.fingerprint
    assert (found.name, found.directed, found.y.tolist()) == ("mine", False, [0, 1, -1])


def test_from_networkx_is_the_function_of_that_name() -> None:
    import networkx

    network = networkx.path_graph(3)
    networkx.set_node_attributes(network, {0: 1.0, 1: 5.0, 2: 2.0}, "age")
    found = Graph.from_networkx(network, name="mine")
    assert found.fingerprint == hpgmn.from_networkx(network).fingerprint
    assert (found.name, found.num_edges) == ("mine", 2)


def test_a_graph_goes_to_pyg_and_back() -> None:
    graph = Graph.from_tables(NODES, EDGES, prepare=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG uses what torch has deprecated
        data = graph.to_pyg()
    for back in (Graph.from_pyg(data), hpgmn.from_pyg(data)):
        assert back.x.tolist() == [[1], [2], [3]]
        assert back.edge_index.tolist() == [[0, 1], [1, 2]]
        assert back.y.tolist() == [0, 1, -1]


def test_a_graph_shows_itself_in_a_notebook() -> None:
    assert Graph.from_tables(NODES, EDGES, name="mine")._repr_html_().startswith("<table>")
