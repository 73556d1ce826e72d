"""What can be said of a graph and a split before any work begins."""

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.graph import Graph, Split
from hpgmn.training.checks import (
    LabelCounts,
    check_split,
    class_number,
    graph_warnings,
    positive_class,
    scarce_classes,
    seen_labels,
    skewed_classes,
)

NOTHING = np.zeros(6, bool)


def graph_of(y, edges, **more):
    edge_index = np.array(edges, np.int64).reshape(-1, 2).T
    return Graph(np.ones((len(y), 1)), edge_index, y, name="mine", **more)  # type: ignore[arg-type]


@pytest.fixture
def graph():
    edges = [(0, 1), (2, 3), (4, 5)]
    return graph_of([0, 1, 2, 0, 1, 2], edges, class_names=["red", "green", "blue"])


def mask(*nodes):
    found = NOTHING.copy()
    found[list(nodes)] = True
    return found


def test_a_split_with_all_classes_is_fine(graph):
    assert check_split(graph, Split(mask(0, 1, 2), mask(3, 4), mask(5)), 0) == []


def test_test_nodes_are_not_needed(graph):
    assert check_split(graph, Split(mask(0, 1, 2), mask(3, 4), NOTHING), 0) == []


def test_validation_nodes_of_one_class_are_named(graph):
    [line] = check_split(graph, Split(mask(0, 1, 2), mask(4), mask(3, 5)), 7)
    assert line.startswith("Split 7: all validation nodes are of class green")


@pytest.mark.parametrize(
    ("split", "part"),
    [(Split(NOTHING, mask(3), mask(4)), "train"), (Split(mask(0, 1), NOTHING, mask(4)), "val")],
)
def test_a_split_without_train_or_val_nodes_is_refused(graph, split, part):
    told = rf"Split 4 of 'mine' has no {part} nodes\. Give it some, or let hpgmn\.random_splits"
    with pytest.raises(HPGMNError, match=told):
        check_split(graph, split, 4)


def test_one_class_cannot_be_told_from_itself(graph):
    told = (
        r"Split 1 of 'mine' has train nodes of 1 class only.*Label more nodes, of another class\."
    )
    with pytest.raises(HPGMNError, match=told):
        check_split(graph, Split(mask(0, 3), mask(1), NOTHING), 1)


def test_classes_without_train_nodes_are_named(graph):
    (line,) = check_split(graph, Split(mask(0, 1), mask(2, 3), NOTHING), 7)
    assert line == "Split 7: no train node of class blue; it can never be predicted well."


def test_a_class_that_nobody_has_is_named_too():
    graph = graph_of([0, 1, 0, 1, 0, 1], [], class_names=["a", "b", "c", "d"])
    (line,) = check_split(graph, Split(mask(0, 1), mask(2, 3), NOTHING), 0)
    assert "class c, d;" in line


def test_a_graph_without_edges_is_warned_of():
    graph = graph_of([0, 1], [(0, 0)])  # a self-loop is no edge
    assert graph_warnings(graph) == ["Graph 'mine' has no edges; only the attributes can help."]


def test_isolated_nodes_are_counted():
    graph = graph_of([0, 1, 0, 1], [(0, 1), (2, 2)])
    assert graph_warnings(graph) == ["2 of 4 nodes have no edges (self-loops do not count)."]


def test_nothing_is_said_of_an_ordinary_graph(graph):
    assert graph_warnings(graph) == []


TWO = ("fraud", "honest")


def test_the_positive_class_is_the_rarest_among_train_and_validation_nodes():
    # With its test nodes fraud would be the more frequent class.
    graph = graph_of([0, 1, 1, 0, 0, 0], [(0, 1)], class_names=TWO)
    seen = seen_labels(graph, [Split(mask(0, 1), mask(2), mask(3, 4, 5))])
    assert seen.tolist() == [[0, 1, 1, -1, -1, -1]]
    for metric in ("average_precision", "precision@5"):
        assert positive_class(metric, seen, TWO) == "fraud"
    assert positive_class("average_precision", np.array([0, 1]), TWO) == "honest"
    for metric in ("roc_auc", "accuracy"):
        assert positive_class(metric, seen, TWO) is None
    assert positive_class("average_precision", seen, ("a", "b", "c")) is None


def test_the_positive_class_may_be_named():
    assert positive_class("average_precision", np.array([0, 1, 1]), TWO, "honest") == "honest"
    assert (class_number("fraud", TWO), class_number("honest", TWO), class_number(None, TWO)) == (
        *(0, 1, 1),
    )
    with pytest.raises(SettingError, match=r"Unknown positive class 'frau'.*'fraud'"):
        positive_class("average_precision", np.array([0, 1]), TWO, "frau")
    with pytest.raises(SettingError, match=r"two classes \(got 3\).*Leave out"):
        positive_class("average_precision", np.array([0, 1]), ("a", "b", "c"), "a")


def test_classes_with_hardly_any_train_node_are_named_in_one_line():
    names = ["red", "green", "blue"]
    counts = np.array(
        [
            [3, 3, 1],
            [3, 3, 3],
            [2, 3, 0],  # no blue at all: another line's matter
        ]
    )
    rest = ": too few to learn from. Label more nodes, or merge classes."
    told = "Class 'blue' has fewer than 3 train nodes in"
    assert scarce_classes(counts[1:2], names) == []
    assert scarce_classes(counts[:1], names) == [f"{told} the split{rest}"]
    assert scarce_classes(counts[:2], names) == [f"{told} 1 of 2 splits{rest}"]
    assert scarce_classes(counts, names) == [
        f"Classes 'red', 'blue' have fewer than 3 train nodes in 2 of 3 splits{rest}"
    ]


@pytest.mark.parametrize(
    ("counts", "metric", "told"),
    [
        (
            [1, 9],
            "accuracy",
            "90 % of the labelled nodes are of class 'honest', so accuracy "
            "says little. Use the metric average_precision.",
        ),
        ([1, 9], "macro_f1", None),
        ([2, 8], "accuracy", None),
        ([1, 18, 1], "accuracy", "Use the metric balanced_accuracy."),
    ],
)
def test_skewed_classes_call_for_another_metric(counts, metric, told):
    names = ["fraud", "honest", "other"][: len(counts)]
    lines = skewed_classes(np.array(counts), names, metric)
    assert len(lines) == (told is not None)
    assert told is None or told in lines[0]


def test_counts_of_parts_are_those_of_the_whole():
    y = np.array([0, 2, -1, 2, 1, 2])
    split = Split(mask(0, 1, 2), mask(3, 4), mask(5))
    cut = [slice(0, 2), slice(2, 6)]
    parts = [
        LabelCounts.of(y[one], Split(split.train[one], split.val[one], split.test[one]), 4)
        for one in cut
    ]
    for found in (parts[0] + parts[1], LabelCounts.of(y, split, 4)):
        assert found.train.tolist() == [1, 0, 1, 0]
        assert found.val.tolist() == [0, 1, 1, 0]
        assert found.every.tolist() == [1, 1, 3, 0]
        assert found.sizes == {"train": 3, "val": 2}
