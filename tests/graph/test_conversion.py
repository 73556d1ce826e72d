"""The methods of a graph that speak with other libraries do what the functions do."""

import warnings
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import hpgmn
from hpgmn import Graph, Splits
from hpgmn.base.errors import GraphError
from hpgmn.graph import conversion
from hpgmn.graph.conversion import original_ids
from hpgmn.graph.edges import SortedEdges

NODES = {"id": ["a", "b", "c"], "age": [1, 2, 3], "label": ["x", "y", None]}
EDGES = {"source": ["a", "b"], "target": ["b", "c"]}


def test_from_tables_is_the_function_of_that_name():
    found = Graph.from_tables(NODES, EDGES, directed=False, name="mine")
    same = hpgmn.from_tables(NODES, EDGES, directed=False, name="mine")
    assert found.fingerprint == same.fingerprint
    assert (found.name, found.directed, found.y.tolist()) == ("mine", False, [0, 1, -1])


def test_from_networkx_is_the_function_of_that_name():
    import networkx

    network = networkx.path_graph(3)
    networkx.set_node_attributes(network, {0: 1.0, 1: 5.0, 2: 2.0}, "age")
    found = Graph.from_networkx(network, name="mine")
    assert found.fingerprint == hpgmn.from_networkx(network).fingerprint
    assert (found.name, found.num_edges) == ("mine", 2)


def test_a_graph_goes_to_pyg_and_back():
    graph = Graph.from_tables(NODES, EDGES, prepare=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG uses what torch has deprecated
        data = graph.to_pyg()
    for back in (Graph.from_pyg(data), hpgmn.from_pyg(data)):
        assert back.x.tolist() == [[1], [2], [3]]
        assert back.edge_index.tolist() == [[0, 1], [1, 2]]
        assert back.y.tolist() == [0, 1, -1]


X = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]
LINKS = [[0, 1, 1, 2], [1, 2, 2, 2]]  # 1 → 2 twice, and a self-loop at 2
MASKS = np.eye(3, dtype=bool)


@pytest.fixture
def pyg_is_loaded():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG uses what torch has deprecated
        pytest.importorskip("torch_geometric")


@pytest.mark.usefixtures("pyg_is_loaded")
@pytest.mark.parametrize("is_sparse", [False, True])
def test_pyg_object_and_back_is_the_same_graph(is_sparse):
    x: Any = sp.csr_array(X) if is_sparse else np.array(X, np.float32)
    if not is_sparse:
        x.flags.writeable = False
    splits = Splits(MASKS, MASKS[[1, 2, 0]], MASKS[[2, 0, 1]])
    graph = Graph(x, LINKS, [0, 1, 0], edge_weight=[1, 2, 3, 4]).with_splits(splits)
    back = Graph.from_pyg(graph.to_pyg(), name="graph")
    assert back.fingerprint == graph.fingerprint
    assert back.y.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(back.splits.val, splits.val)


@pytest.mark.usefixtures("pyg_is_loaded")
def test_pyg_object_lists_undirected_edges_both_ways():
    data = Graph(X, [[0, 1], [1, 2]], directed=False).to_pyg()
    assert sorted(zip(*data.edge_index.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2), (2, 1)]


@pytest.mark.usefixtures("pyg_is_loaded")
def test_pyg_object_without_attributes_is_refused():
    from torch_geometric.data import Data

    with pytest.raises(GraphError, match="has no x"):
        Graph.from_pyg(Data())


@pytest.mark.usefixtures("pyg_is_loaded")
def test_pyg_object_lists_sorted_edges_as_they_were_listed():
    edges = SortedEdges.of(np.array([[2, 0, 1], [1, 2, 0]]), 3, np.float32([1, 2, 3]))
    data = Graph(X, edges).to_pyg()
    assert data.edge_index.tolist() == [[2, 0, 1], [1, 2, 0]]
    assert data.edge_weight.tolist() == [1, 2, 3]


def test_ids_have_the_type_of_their_table():
    ids = np.array(["7", "10"])
    assert original_ids(ids, {"roles": {"has_whole_ids": True}}).dtype == np.int64
    for other in (None, {"roles": {}}, {"roles": {"has_whole_ids": False}}):
        assert original_ids(ids, other).tolist() == ["7", "10"]
    mixed = np.array(["7", "x"])
    assert original_ids(mixed, {"roles": {"has_whole_ids": True}}).tolist() == ["7", "x"]


PATHS = [[0, 0, 2, 3], [1, 2, 3, 3]]


class Reader(HTMLParser):
    """Tags in order, and the text of each cell."""

    def __init__(self, content):
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag in ("caption", "th", "td"):
            self.cells.append("")

    def handle_data(self, data):
        self.cells[-1] += data


def facts(content):
    """Row name → value of a table, as a browser reads it."""
    cells = Reader(content).cells[1:]
    return dict(zip(cells[::2], cells[1::2], strict=True))


def test_a_graph_shows_its_sizes_classes_splits_and_homophily():
    masks = {"train_mask": [1, 0, 0, 0], "val_mask": [0, 1, 0, 0], "test_mask": [0, 0, 1, 0]}
    graph = Graph(
        np.ones((4, 3)), PATHS, [0, 0, 1, -1], class_names=["good", "bad"], name="mine", **masks
    )
    content = graph._repr_html_()
    assert Reader(content).cells[0] == "Graph 'mine'"
    assert facts(content) == {
        "Nodes": "4",
        "Edges": "3, directed",  # without the self-loop
        "Attributes": "3",
        "Classes": "good: 2, bad: 1, without a label: 1",
        "Splits": "train 1, val 1, test 1",
        "Node homophily": "0.50",  # node 0: 1 of 2, node 1: 1 of 1, node 2: 0 of 1
    }


def test_a_graph_tells_weights_sparse_attributes_and_several_splits():
    train = np.eye(4, 3, dtype=bool)
    graph = Graph(
        sp.csr_array(np.eye(4)),
        PATHS,
        [0, 1, 0, 0],
        edge_weight=[1, 2, 3, 4],
        directed=False,
        train_mask=train,
    )
    found = facts(graph._repr_html_())
    assert found["Edges"] == "3, undirected, weighted"
    assert found["Attributes"] == "4, sparse"
    assert found["Splits"] == "3, the first: train 1, val 0, test 0"


def test_a_graph_without_labels_says_so():
    found = facts(Graph(np.ones((4, 1)), PATHS)._repr_html_())
    assert found["Classes"] == "without a label: 4"
    assert found["Splits"] == "none"
    assert found["Node homophily"] == "unknown: no labelled neighbours"


def test_many_classes_are_cut_short():
    y = np.arange(30)
    found = facts(Graph(np.ones((30, 1)), PATHS, y)._repr_html_())["Classes"].split(", ")
    assert found == [*(f"{label}: 1" for label in range(20)), "and 10 more classes"]


def test_homophily_of_a_large_graph_is_left_out(monkeypatch):
    graph = Graph(np.ones((4, 1)), PATHS, [0, 0, 1, 1])
    monkeypatch.setattr(conversion, "HOMOPHILY_EDGES", 4)
    assert facts(graph._repr_html_())["Node homophily"] != "not computed above 4 edges"
    monkeypatch.setattr(conversion, "HOMOPHILY_EDGES", 3)
    assert facts(graph._repr_html_())["Node homophily"] == "not computed above 3 edges"


def test_names_never_become_markup():
    evil = "<script>alert('&')</script>"
    content = Graph(np.ones((2, 1)), [[0], [1]], [0, 0], class_names=[evil], name=evil)
    reader = Reader(content._repr_html_())
    assert set(reader.tags) == {"table", "caption", "tr", "th", "td"}
    assert reader.cells[0] == f"Graph '{evil}'"
    assert facts(content._repr_html_())["Classes"] == f"{evil}: 2"


@pytest.mark.parametrize("directed", [True, False])
def test_pyg_edge_types_survive(directed):
    x = np.ones((3, 1))
    graph = Graph(x, [[0, 1, 0], [1, 2, 1]], edge_type=[0, 1, 1], directed=directed)
    data = graph.to_pyg()
    again = Graph.from_pyg(data)
    for number in range(2):
        expected = graph.adjacency("out", number).toarray()
        np.testing.assert_array_equal(again.adjacency("out", number).toarray(), expected)
    assert "Edge types" in graph._repr_html_()
    data.edge_type = data.edge_type[:1]
    with pytest.raises(GraphError, match="edge_type must have one number per edge"):
        Graph.from_pyg(data)
