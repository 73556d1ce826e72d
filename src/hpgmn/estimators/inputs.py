"""Arrays of nodes and their labels, as the estimators receive them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from hpgmn.base.errors import GraphError, HPGMNError, Remedy, SettingError, list_names
from hpgmn.base.tasks import hide_labels, is_known
from hpgmn.graph import Array, Graph, Split, Splits, random_splits
from hpgmn.graph.conversion import from_networkx


class InputError(HPGMNError, ValueError):
    """Nodes, labels or a table cannot be used: an error of ours, and what scikit-learn expects."""


def to_graph(value: Any, preparation: Mapping[str, Any] | None = None) -> Graph | None:
    """Return a graph, converted from PyTorch Geometric or networkx; None for anything else.

    Args:
        preparation: how the attributes of the training graph were prepared; those of a network
            become attributes in the same way.
    """
    if isinstance(value, Graph):
        return value
    if hasattr(value, "edge_index"):
        return Graph.from_pyg(value)
    if hasattr(value, "nodes") and hasattr(value, "is_directed"):
        graph: Graph = from_networkx(Graph, value, {}, True, None, preparation)
        return graph
    return None


def edgeless_graph(x: Any) -> Graph:
    """Return a graph whose nodes are the rows of a table."""
    return Graph(x, np.empty((2, 0), np.int64), name="table")


def node_positions(graph: Graph, nodes: Any) -> Array:
    """Return (n,) positions of nodes that are named by position or by id.

    Integers are ids where all ids of the graph are integers, and positions otherwise.

    >>> graph = Graph([[1.0], [2.0]], [[0], [1]], node_ids=["ann", "bob"])
    >>> node_positions(graph, ["bob", "ann"]), node_positions(graph, [[1]])
    (array([1, 0]), array([1]))
    """
    array = np.asarray(nodes)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            f"Nodes of a graph must be an array (n,) or (n, 1) (got shape {array.shape}).",
            Remedy("Pass positions or ids of nodes") | "Leave out graph to pass a table",
        )
    if array.dtype.kind == "b":
        raise InputError("Nodes are a mask, not positions.", "Pass np.flatnonzero(mask)")
    if array.dtype.kind == "f" and (array == np.trunc(array)).all():
        array = array.astype(np.int64)
    is_whole, ids = array.dtype.kind in "iu", graph.node_ids
    if is_whole and (ids is None or not np.char.isdecimal(ids).all()):
        wrong = (array < 0) | (array >= graph.num_nodes)
        if wrong.any():
            raise InputError(
                f"Graph '{graph.name}' has no node {array[wrong][0]}.",
                f"Pass positions from 0 to {graph.num_nodes - 1}",
            )
        return array.astype(np.int64)
    if ids is None:
        raise InputError(
            f"Graph '{graph.name}' has no node_ids (got nodes of type {array.dtype}).",
            "Pass positions of nodes",
        )
    order = np.argsort(ids)
    texts = array.astype(str)
    found = order[np.searchsorted(ids, texts, sorter=order).clip(max=len(ids) - 1)]
    unknown = texts[ids[found] != texts]
    if unknown.size:
        raise InputError(
            f"Graph '{graph.name}' has no node {list_names(unknown)}.",
            f"Pass ids such as {list_names(ids[:3])}",
        )
    return np.asarray(found)


def class_values(names: Sequence[str]) -> Array:
    """Return classes as users know them: numbers unless they have names.

    >>> class_values(("0", "1")), class_values(("no", "yes"))
    (array([0, 1]), array(['no', 'yes'], dtype='<U3'))
    """
    numbers = np.arange(len(names))
    return numbers if list(names) == numbers.astype(str).tolist() else np.asarray(names)


def pick_labels(graph: Graph, nodes: Array) -> Array:
    """Return the labels of nodes in the graph: names of classes, or targets."""
    labels = graph.y[nodes]
    if not is_known(labels).all():
        node = nodes[~is_known(labels)][0]
        raise InputError(f"Node {node} of '{graph.name}' has no label.", "Pass labels")
    return labels if graph.is_regression else class_values(graph.class_names)[labels]


def label_nodes(
    graph: Graph, nodes: Array, labels: Array, *, is_regression: bool
) -> tuple[Graph, Array]:
    """Return the graph with these labels and no others, and the classes in their order.

    Args:
        labels: (n,) of any type for classes; a node may repeat with the same label.
    """
    if is_regression:
        classes: Array = np.empty(0)
        numbers: Array = np.asarray(labels, np.float64)
    else:
        classes, numbers = np.unique(labels, return_inverse=True)
    y = hide_labels(np.zeros(graph.num_nodes, numbers.dtype), False)
    y[nodes] = numbers
    if (y[nodes] != numbers).any():
        node = nodes[y[nodes] != numbers][0]
        raise InputError(f"Node {node} has several labels.", "Pass each node once")
    labelled = copy(graph)
    labelled.y, labelled.splits, labelled.alternative_splits = y, None, {}
    labelled.class_names = tuple(str(name) for name in classes)
    return labelled, classes


def class_numbers(classes: Array, labels: Array) -> tuple[Array, int]:
    """Return (n,) the numbers of labels among classes, and how many other classes they hold.

    >>> class_numbers(np.array(["a", "c"]), np.array(["c", "b", "a"]))
    (array([1, 2, 0]), 1)
    """
    unseen = np.setdiff1d(labels, classes)
    if not np.isin(labels, classes).any():
        raise InputError(
            f"No label is among the classes of the training (got {list_names(unseen)}).",
            f"Pass labels such as {list_names(classes)}",
        )
    every = np.concatenate([classes, unseen])
    order = np.argsort(every)
    return order[np.searchsorted(every, labels, sorter=order)], len(unseen)


def labelled_nodes(graph: Graph, mask: Any) -> Array:
    """Return (n,) the nodes of a mask, or of all, that have a label; there must be some."""
    chosen = is_known(graph.y)
    if mask is not None:
        if np.shape(mask) != chosen.shape:
            raise GraphError(
                f"mask must be true or false for each of the {graph.num_nodes} nodes (got "
                f"shape {np.shape(mask)})."
            )
        chosen = chosen & np.asarray(mask, bool)
    if not chosen.any():
        raise GraphError(
            "The mask holds no labelled node, so there is nothing to score.",
            "Give a mask of labelled nodes.",
        )
    return np.flatnonzero(chosen)


def choose_split(graph: Graph, number: Any, train: Array | None, val: Array | None) -> Split:
    """Return the stored split of that number, or that of two masks."""
    if train is None and val is None:
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise SettingError(
                f"With a graph only a split follows (got {type(number).__name__}).",
                "Pass masks as train and val, or labels with nodes",
            )
        return graph.split(int(number))
    if train is None or val is None:
        raise SettingError(
            "Only one of train and val is given.", "Give both, or the number of a stored split."
        )
    return graph.with_splits(Splits(train, val, np.zeros(graph.num_nodes, bool))).split(0)


def split_labelled(graph: Graph, validation_fraction: Any, seed: int) -> Split:
    """Draw validation nodes from the labelled ones; the others are train nodes."""
    share = validation_fraction
    if not isinstance(share, float | np.floating) or not 0 < share < 1:
        raise SettingError(f"validation_fraction must be between 0 and 1 (got {share!r}).")
    known = is_known(graph.y)
    if len(np.unique(graph.y[known])) == 1:
        raise InputError("All labels are of one class or number.", "Pass labels of another")
    try:
        fractions = (1 - float(share), float(share), 0.0)
        return random_splits(graph, 1, fractions, first_seed=abs(seed))[0]
    except GraphError as error:
        raise InputError(f"{error.message} (n_samples={known.sum()})", error.remedy) from None
