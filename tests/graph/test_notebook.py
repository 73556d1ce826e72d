"""What notebooks show: the right numbers, and no markup from data."""

from html.parser import HTMLParser

import numpy as np
import scipy.sparse as sp

from hpgmn.graph import Graph, notebook
from hpgmn.graph.notebook import facts_html

EDGES = [[0, 0, 2, 3], [1, 2, 3, 3]]


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
        np.ones((4, 3)), EDGES, [0, 0, 1, -1], class_names=["good", "bad"], name="mine", **masks
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
        EDGES,
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
    found = facts(Graph(np.ones((4, 1)), EDGES)._repr_html_())
    assert found["Classes"] == "without a label: 4"
    assert found["Splits"] == "none"
    assert found["Node homophily"] == "unknown: no labelled neighbours"


def test_many_classes_are_cut_short():
    y = np.arange(30)
    found = facts(Graph(np.ones((30, 1)), EDGES, y)._repr_html_())["Classes"].split(", ")
    assert found == [*(f"{label}: 1" for label in range(20)), "and 10 more classes"]


def test_homophily_of_a_large_graph_is_left_out(monkeypatch):
    graph = Graph(np.ones((4, 1)), EDGES, [0, 0, 1, 1])
    monkeypatch.setattr(notebook, "HOMOPHILY_EDGES", 4)
    assert facts(graph._repr_html_())["Node homophily"] != "not computed above 4 edges"
    monkeypatch.setattr(notebook, "HOMOPHILY_EDGES", 3)
    assert facts(graph._repr_html_())["Node homophily"] == "not computed above 3 edges"


def test_names_never_become_markup():
    evil = "<script>alert('&')</script>"
    content = Graph(np.ones((2, 1)), [[0], [1]], [0, 0], class_names=[evil], name=evil)
    reader = Reader(content._repr_html_())
    assert set(reader.tags) == {"table", "caption", "tr", "th", "td"}
    assert reader.cells[0] == f"Graph '{evil}'"
    assert facts(content._repr_html_())["Classes"] == f"{evil}: 2"
    assert Reader(facts_html("t", [(evil, evil)])).cells[1:] == [evil, evil]
