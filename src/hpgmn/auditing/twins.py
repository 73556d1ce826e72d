"""Duplicate nodes on both sides of a split, and the attributes and labels of another dataset."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from hpgmn.base.errors import GraphError
from hpgmn.graph import Array, Graph, Split
from hpgmn.graph.datasets import DATASETS, find_file
from hpgmn.graph.files import read_graph

logger = logging.getLogger(__name__)

FEWEST_NEIGHBORS = 3
"""Nodes that share fewer neighbours, and have no others, may well be alike by chance."""
DISTINCT_ROWS = 0.25
"""Where distinct attribute rows are fewer than this share of nodes, equal rows are the rule."""


@dataclass(frozen=True)
class Twins:
    """Nodes that look exactly like a train node.

    Attributes:
        alike: what is equal: "out-neighbors", "in-neighbors", "neighbors" or "attributes".
        nodes: how many nodes have a twin anywhere in the graph.
        test_share: share of the test nodes with a twin among the train nodes; None without any.
        agreement: how often a validation node with twins among the train nodes has their label;
            None without any. Test labels are not read.
        by_chance: the share of the largest class among the labelled train nodes; None without any.
    """

    alike: str
    nodes: int
    test_share: float | None
    agreement: float | None
    by_chance: float | None = None


@dataclass(frozen=True)
class KnownData:
    """A known dataset on this machine that has the same data.

    Attributes:
        name: the dataset.
        same: which of "attributes", "labels" and "edges" are equal, byte for byte.
    """

    name: str
    same: tuple[str, ...]


def twins(graph: Graph, split: Split | None) -> tuple[Twins, ...]:
    """Nodes with equal neighbours, one kind after the other, and nodes with equal attributes.

    Equal neighbours are three or more, the same set. Equal attributes are not all zero, and are
    left out on graphs whose attributes tell few nodes apart.

    Args:
        graph: the graph.
        split: its train and validation labels are read; None has no parts to compare.
    """
    return tuple(_twins(alike, groups, graph.y, split) for alike, groups in _groups(graph))


def like_train_nodes(graph: Graph, split: Split) -> Array:
    """Which nodes have a twin of any kind among the train nodes: (N,) boolean."""
    found = np.zeros(graph.num_nodes, bool)
    for _, groups in _groups(graph):
        found |= _has_teacher(groups, split.train & (groups >= 0) & (graph.y >= 0))[0]
    return found


def _groups(graph: Graph) -> Iterator[tuple[str, Array]]:
    """For each kind of twins the group of every node, -1 for those that have none."""
    modes = {"undirected": "neighbors"}
    if graph.has_one_way_edges:
        modes = {"out": "out-neighbors", "in": "in-neighbors"} | modes
    for mode, word in modes.items():
        adjacency = graph.adjacency(mode)
        enough = np.diff(adjacency.indptr) >= FEWEST_NEIGHBORS
        yield word, np.where(enough, equal_rows(_neighbor_rows(adjacency)), -1)
    groups = equal_rows(_attribute_rows(graph))
    if groups.max() + 1 >= DISTINCT_ROWS * graph.num_nodes:
        yield "attributes", groups


def equal_rows(rows: Iterator[bytes | None]) -> Array:
    """The number of each row's group: equal rows have equal numbers, None has -1.

    >>> equal_rows(iter([b"a", None, b"b", b"a"])).tolist()
    [0, -1, 1, 0]
    """
    known: dict[bytes, int] = {}  # digests: the rows together may be as large as the graph
    digests = (None if row is None else blake2b(row, digest_size=16).digest() for row in rows)
    numbers = [-1 if one is None else known.setdefault(one, len(known)) for one in digests]
    return np.asarray(numbers, dtype=np.int64)


def _neighbor_rows(adjacency: Any) -> Iterator[bytes]:
    indptr, indices = adjacency.indptr, adjacency.indices
    for first, last in itertools.pairwise(indptr):
        yield indices[first:last].tobytes()


def _attribute_rows(graph: Graph) -> Iterator[bytes | None]:
    x = graph.x
    if not graph.has_sparse_attributes:
        for row in x:
            yield (row + 0.0).tobytes() if row.any() else None  # -0 is 0
        return
    for first, last in itertools.pairwise(x.indptr):
        entries = x.indices[first:last].tobytes() + x.data[first:last].tobytes()
        yield entries if last > first else None


def _twins(alike: str, groups: Array, y: Array, split: Split | None) -> Twins:
    """Compare the parts of a split by the groups of their nodes; nodes of group -1 have none."""
    sizes = np.bincount(groups[groups >= 0], minlength=1)
    count = int(sizes[sizes > 1].sum())
    if split is None:
        return Twins(alike, count, None, None)
    train = split.train & (groups >= 0) & (y >= 0)
    has_twin, taught = _has_teacher(groups, train)
    test_share = float(has_twin[split.test].mean()) if split.test.any() else None
    sizes = np.bincount(y[split.train & (y >= 0)])
    by_chance = float(sizes.max() / sizes.sum()) if sizes.size else None
    # How many train nodes have a group and a label: looked up by one number for both.
    classes = int(y.max(initial=0)) + 1
    pairs, same = np.unique(groups[train] * classes + y[train], return_counts=True)
    judged = split.val & has_twin & (y >= 0)
    if not judged.any():
        return Twins(alike, count, test_share, None, by_chance)
    asked = groups[judged] * classes + y[judged]
    place = np.searchsorted(pairs, asked).clip(max=pairs.size - 1)
    agree = np.where(pairs[place] == asked, same[place], 0) / taught[groups[judged]]
    return Twins(alike, count, test_share, float(agree.mean()), by_chance)


def _has_teacher(groups: Array, train: Array) -> tuple[Array, Array]:
    """Which nodes are in a group with a train node, and how many of these each group has."""
    taught = np.bincount(groups[train], minlength=max(1, int(groups.max()) + 1))
    return (groups >= 0) & (taught[groups] > 0), taught


def known_data(graph: Graph) -> KnownData | None:
    """The known dataset on this machine whose attributes or labels the graph has.

    A sound dataset is not compared with those known to be defective: texas is not the copy. The
    dataset of which most is equal is the answer.
    """
    own = DATASETS.get(graph.name)
    is_sound = own is not None and own.num_nodes == graph.num_nodes and not own.is_defective
    found = []
    for other in DATASETS.values():
        skip = other.name == graph.name or (is_sound and other.is_defective)
        if skip or other.num_nodes != graph.num_nodes:
            continue
        path = find_file(other.name)
        if path is None:
            continue
        try:
            same = _equal_parts(graph, read_graph(path))
        except GraphError as error:
            logger.warning("Dataset '%s' cannot be compared. %s", other.name, error)
            continue
        if same:
            found.append(KnownData(other.name, same))
    return max(found, key=lambda one: len(one.same), default=None)


def _equal_parts(graph: Graph, other: Graph) -> tuple[str, ...]:
    """Which parts of two graphs of the same number of nodes are equal."""
    if graph.num_nodes != other.num_nodes:
        return ()
    same = []
    if graph.num_features == other.num_features and _is_equal(graph.x, other.x):
        same.append("attributes")
    if np.array_equal(graph.y, other.y) and np.unique(graph.y).size > 1:
        same.append("labels")
    if same and _is_equal(graph.adjacency("out"), other.adjacency("out")):
        same.append("edges")
    return tuple(same)


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two matrices of one shape are equal, dense or sparse."""
    different = one != other
    count = different.nnz if hasattr(different, "nnz") else different.sum()
    return int(count) == 0
