"""Arrays of nodes: positions, ids, labels, and graphs of other libraries."""

import networkx as nx
import numpy as np
import pytest
from torch_geometric.data import Data

from hpgmn import Graph
from hpgmn.estimators.inputs import (
    InputError,
    class_numbers,
    label_nodes,
    node_positions,
    pick_labels,
    split_labelled,
    to_graph,
)


def graph_of(node_ids=None, y=(0, 1, -1, 1)):
    return Graph(np.eye(4), [[0, 1], [1, 2]], list(y), node_ids=node_ids, class_names=["b", "a"])


@pytest.mark.parametrize(
    ("ids", "nodes", "expected"),
    [
        (None, [3, 0], [3, 0]),
        (None, np.array([[2.0], [1.0]]), [2, 1]),
        (["w", "x", "y", "z"], ["z", "x"], [3, 1]),
        (["w", "x", "y", "z"], [3, 1], [3, 1]),
        (["7", "5", "3", "1"], [1, 5], [3, 1]),  # ids that are integers are ids
        (["7", "5", "3", "1"], ["1", "5"], [3, 1]),
    ],
)
def test_nodes_are_positions_or_ids(ids, nodes, expected):
    assert node_positions(graph_of(ids), nodes).tolist() == expected


@pytest.mark.parametrize(
    ("ids", "nodes"),
    [
        (None, [4]),
        (None, [-1]),
        (None, ["w"]),
        (None, [0.5]),
        (None, np.zeros((2, 2))),
        (["w", "x", "y", "z"], ["v"]),
        (["7", "5", "3", "1"], [0]),
    ],
)
def test_unknown_nodes_are_refused(ids, nodes):
    with pytest.raises(InputError):
        node_positions(graph_of(ids), nodes)


def test_only_the_labels_passed_remain():
    graph = graph_of()
    labelled, classes = label_nodes(
        graph, np.array([2, 0, 2]), np.array([9, 5, 9]), is_regression=False
    )
    assert (labelled.y.tolist(), classes.tolist()) == ([0, -1, 1, -1], [5, 9])
    assert labelled.class_names == ("5", "9")
    assert graph.y.tolist() == [0, 1, -1, 1]
    with pytest.raises(InputError, match="several labels"):
        label_nodes(graph, np.array([2, 2]), np.array([9, 5]), is_regression=False)


def test_labels_of_the_graph_are_names():
    graph = graph_of()
    assert pick_labels(graph, np.array([3, 0])).tolist() == ["a", "b"]
    with pytest.raises(InputError, match="no label"):
        pick_labels(graph, np.array([2]))


def test_labels_of_no_class_are_refused():
    with pytest.raises(InputError, match="among the classes"):
        class_numbers(np.array([0, 1]), np.array(["a", "b"]))


def test_validation_nodes_are_a_share_of_each_class():
    y = np.repeat([0, 1, -1], [50, 10, 40])
    graph = Graph(np.ones((100, 1)), np.empty((2, 0), int), y)
    split = split_labelled(graph, 0.2, 3)
    assert np.bincount(y[split.val]).tolist() == [10, 2]
    assert (split.train ^ split.val).tolist() == (y >= 0).tolist()
    assert (split.val != split_labelled(graph, 0.2, 4).val).any()


def test_graphs_of_other_libraries_are_converted():
    graph = graph_of()
    data = graph.to_pyg()
    assert isinstance(data, Data)
    assert to_graph(data).fingerprint == graph.fingerprint
    assert to_graph(graph) is graph
    assert to_graph(np.eye(3)) is None


def test_another_network_is_prepared_as_the_first():
    def network(values):
        result = nx.path_graph(len(values))
        nx.set_node_attributes(result, dict(enumerate(values)), "size")
        return result

    first = to_graph(network([0.0, 1.0, 2.0]))
    second = to_graph(network([2.0, 2.0, 5.0]), first.preparation)
    alone = to_graph(network([2.0, 2.0, 5.0]))
    assert second.x[0, 0] == pytest.approx(first.x[2, 0])
    assert alone.x[0, 0] != pytest.approx(first.x[2, 0])


def test_a_mask_is_no_list_of_nodes():
    graph = Graph(np.eye(3), [[0], [1]])
    with pytest.raises(InputError, match="flatnonzero"):
        node_positions(graph, np.array([True, False, True]))
