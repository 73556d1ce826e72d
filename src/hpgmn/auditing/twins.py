"""Duplicate nodes in train and test, and data shared with a known dataset."""

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
"""Nodes with fewer neighbours may have the same ones by chance."""
DISTINCT_ROWS = 0.25
"""If distinct attribute rows are fewer than this share of nodes, equal rows are the rule."""


@dataclass(frozen=True)
class Twins:
    """Nodes that equal a train node.

    Attributes:
        alike: what is equal: "out-neighbors", "in-neighbors", "neighbors" or "attributes".
        nodes: nodes with a twin anywhere in the graph.
        test_share: share of the test nodes with a twin in train; None without test nodes.
        agreement: how often validation nodes with twins in train have their label; None without
            any. Test labels are not read.
        by_chance: share of the largest class among the labelled train nodes; None without any.
    """

    alike: str
    nodes: int
    test_share: float | None
    agreement: float | None
    by_chance: float | None = None


@dataclass(frozen=True)
class KnownData:
    """A known dataset with a local copy that has the same data.

    Attributes:
        name: the dataset.
        same: which of "attributes", "labels" and "edges" are equal, byte for byte.
    """

    name: str
    same: tuple[str, ...]


def twins(graph: Graph, split: Split | None) -> tuple[Twins, ...]:
    """Measure nodes with equal neighbours, of each mode, and nodes with equal attributes.

    Equal neighbours are the same set of three or more. Equal attributes are not all zero, and left
    out if attributes distinguish few nodes.

    Args:
        split: its train and validation labels are read.
    """
    return tuple(_twins(alike, groups, graph.y, split) for alike, groups in _groups(graph))


def like_train_nodes(graph: Graph, split: Split) -> Array:
    """Return (N,) which nodes have a twin of any kind in train."""
    found = np.zeros(graph.num_nodes, bool)
    for _, groups in _groups(graph):
        found |= _in_train_group(groups, split.train & (groups >= 0) & (graph.y >= 0))[0]
    return found


def _groups(graph: Graph) -> Iterator[tuple[str, Array]]:
    """Yield for each kind of twins the group of every node, -1 for none."""
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
    """Number the rows so that equal rows have equal numbers; None has -1.

    >>> equal_rows(iter([b"a", None, b"b", b"a"])).tolist()
    [0, -1, 1, 0]
    """
    known: dict[bytes, int] = {}  # of digests: the rows may be as large as the graph
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
    """Compare the parts of a split by the groups of their nodes."""
    sizes = np.bincount(groups[groups >= 0], minlength=1)
    count = int(sizes[sizes > 1].sum())
    if split is None:
        return Twins(alike, count, None, None)
    train = split.train & (groups >= 0) & (y >= 0)
    has_twin, taught = _in_train_group(groups, train)
    test_share = float(has_twin[split.test].mean()) if split.test.any() else None
    sizes = np.bincount(y[split.train & (y >= 0)])
    by_chance = float(sizes.max() / sizes.sum()) if sizes.size else None
    # Count train nodes by group and label, encoded as one number.
    classes = int(y.max(initial=0)) + 1
    pairs, same = np.unique(groups[train] * classes + y[train], return_counts=True)
    judged = split.val & has_twin & (y >= 0)
    if not judged.any():
        return Twins(alike, count, test_share, None, by_chance)
    pair = groups[judged] * classes + y[judged]
    index = np.searchsorted(pairs, pair).clip(max=pairs.size - 1)
    agree = np.where(pairs[index] == pair, same[index], 0) / taught[groups[judged]]
    return Twins(alike, count, test_share, float(agree.mean()), by_chance)


def _in_train_group(groups: Array, train: Array) -> tuple[Array, Array]:
    """Return which nodes share a group with a train node, and the train nodes of each group."""
    taught = np.bincount(groups[train], minlength=max(1, int(groups.max()) + 1))
    return (groups >= 0) & (taught[groups] > 0), taught


def known_data(graph: Graph) -> KnownData | None:
    """Return the known dataset with a local copy that shares most data with the graph.

    Sound datasets are not compared with defective ones: texas is not the copy.
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
            logger.warning("Skipping dataset '%s' in the audit. %s", other.name, error)
            continue
        if same:
            found.append(KnownData(other.name, same))
    return max(found, key=lambda one: len(one.same), default=None)


def _equal_parts(graph: Graph, other: Graph) -> tuple[str, ...]:
    """Return which parts of two graphs are equal."""
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
