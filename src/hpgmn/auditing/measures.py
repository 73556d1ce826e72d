"""Measures of a graph: degrees, components, class sizes, duplicates, data of other datasets."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from scipy.sparse.csgraph import connected_components

from hpgmn.base.errors import GraphError
from hpgmn.graph import Array, Graph, Split
from hpgmn.graph.datasets import DATASETS, find_file
from hpgmn.graph.files import read_graph

logger = logging.getLogger(__name__)

PARTS = ("train", "val", "test")
"""The parts of a split."""
FEWEST_NEIGHBORS = 3
"""Nodes with fewer neighbours may have the same ones by chance."""
DISTINCT_ROWS = 0.25
"""If distinct attribute rows are fewer than this share of nodes, equal rows are the rule."""


@dataclass(frozen=True)
class Degrees:
    """Numbers of neighbours, without self-loops and repeats; ``without`` counts nodes with none."""

    least: int
    median: float
    most: int
    without: int

    @classmethod
    def of(cls, degrees: Array) -> Degrees:
        """Summarise one number per node.

        >>> Degrees.of(np.array([0, 1, 4, 5]))
        Degrees(least=0, median=2.5, most=5, without=1)
        """
        return cls(
            int(degrees.min()),
            float(np.median(degrees)),
            int(degrees.max()),
            int((degrees == 0).sum()),
        )


@dataclass(frozen=True)
class Structure:
    """Measures of the edges.

    Attributes:
        nodes: N.
        listed_edges: edges as listed, self-loops and repeats included.
        edges: distinct edges without self-loops; an undirected edge counts once.
        directed: whether edges are directed.
        self_loops: edges from a node to itself, as listed.
        repeated_edges: edges listed again in the same direction.
        both_ways: share of the distinct edges whose reverse exists; 1 if not directed.
        out_degrees: of each node's out-neighbours.
        in_degrees: of its in-neighbours.
        degrees: of all its neighbours.
        components: weakly connected, isolated nodes included.
        largest_component: its number of nodes.
    """

    nodes: int
    listed_edges: int
    edges: int
    directed: bool
    self_loops: int
    repeated_edges: int
    both_ways: float
    out_degrees: Degrees
    in_degrees: Degrees
    degrees: Degrees
    components: int
    largest_component: int

    @property
    def is_one_way(self) -> bool:
        """Whether out-neighbours and in-neighbours differ."""
        return self.both_ways < 1


def structure(graph: Graph) -> Structure:
    """Measure the edges of a graph."""
    edges = graph.sorted_edges
    sources = np.repeat(np.arange(graph.num_nodes), np.diff(edges.indptr))
    repeated = (sources[1:] == sources[:-1]) & (edges.targets[1:] == edges.targets[:-1])
    out, into = graph.adjacency("out"), graph.adjacency("in")
    either = graph.adjacency("undirected")
    # |A ∪ Aᵀ| = 2|A| - |A ∩ Aᵀ|
    both = 2 * out.nnz - either.nnz
    components, member = connected_components(either, directed=False)
    return Structure(
        nodes=graph.num_nodes,
        listed_edges=graph.num_listed_edges,
        edges=graph.num_edges,
        directed=graph.directed,
        self_loops=int((sources == edges.targets).sum()),
        repeated_edges=int(repeated.sum()),
        both_ways=both / out.nnz if out.nnz else 1.0,
        out_degrees=Degrees.of(np.diff(out.indptr)),
        in_degrees=Degrees.of(np.diff(into.indptr)),
        degrees=Degrees.of(np.diff(either.indptr)),
        components=int(components),
        largest_component=int(np.bincount(member).max()),
    )


@dataclass(frozen=True)
class ClassBalance:
    """The labels of all nodes, counted.

    Attributes:
        counts: labelled nodes of each class by name, empty classes included.
        unlabelled: nodes without a label.
        largest_share: share of the largest class among labelled nodes; 0 if there are none.
    """

    counts: dict[str, int]
    unlabelled: int
    largest_share: float


@dataclass(frozen=True)
class MissingClass:
    """A class that a part of some splits lacks.

    Attributes:
        part: "train", "val" or "test".
        splits: the splits concerned.
    """

    name: str
    part: str
    splits: tuple[int, ...]


def class_balance(graph: Graph) -> ClassBalance:
    """Count the labels."""
    known = graph.y[graph.y >= 0]
    counts = np.bincount(known, minlength=graph.num_classes)
    return ClassBalance(
        counts={
            str(name): int(count) for name, count in zip(graph.class_names, counts, strict=True)
        },
        unlabelled=graph.num_nodes - known.size,
        largest_share=float(counts.max() / known.size) if known.size else 0.0,
    )


def missing_classes(graph: Graph) -> tuple[MissingClass, ...]:
    """Return classes that have labelled nodes, but none in a non-empty part of some split."""
    if graph.splits is None:
        return ()
    present = np.unique(graph.y[graph.y >= 0])
    missing = []
    for part in PARTS:
        masks = [getattr(split, part) & (graph.y >= 0) for split in graph.splits]
        counts = np.stack(
            [np.bincount(graph.y[mask], minlength=graph.num_classes) for mask in masks]
        )
        lacks = counts.any(axis=1, keepdims=True) & (counts == 0)  # (S, C)
        for label in present[lacks[:, present].any(axis=0)]:
            splits = tuple(int(number) for number in np.flatnonzero(lacks[:, label]))
            missing.append(MissingClass(str(graph.class_names[label]), part, splits))
    return tuple(missing)


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
    has_twin = np.zeros(graph.num_nodes, bool)
    for _, groups in _groups(graph):
        has_twin |= _in_train_group(groups, split.train & (groups >= 0) & (graph.y >= 0))[0]
    return has_twin


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
    numbers = [-1 if digest is None else known.setdefault(digest, len(known)) for digest in digests]
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
    entry = DATASETS.get(graph.name)
    is_sound = entry is not None and entry.num_nodes == graph.num_nodes and not entry.is_defective
    matches = []
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
            matches.append(KnownData(other.name, same))
    return max(matches, key=lambda match: len(match.same), default=None)


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


def _is_equal(first: Any, second: Any) -> bool:
    """Whether two matrices of one shape are equal, dense or sparse."""
    different = first != second
    count = different.nnz if hasattr(different, "nnz") else different.sum()
    return int(count) == 0
