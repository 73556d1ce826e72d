"""Measures of a graph: edges, classes, duplicates, attributes, data of other datasets."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from hpgmn.base.errors import GraphError
from hpgmn.graph import Array, Graph, Split
from hpgmn.graph.datasets import DATASETS, find_file
from hpgmn.graph.files import read_graph

logger = logging.getLogger(__name__)

FEWEST_NEIGHBORS = 3
"""Nodes with fewer neighbours may have the same ones by chance."""
DISTINCT_ROWS = 0.25
"""If distinct attribute rows are fewer than this share of nodes, equal rows are the rule."""
MOST_BINS = 64
"""Columns with more distinct values are binned by quantiles."""
MOST_VALUES = 20_000_000
"""Most attribute values that are read; nodes of larger tables are sampled."""
FEWEST_NODES = 2_000
"""The smallest sample of nodes."""
LEAST_SUPPORT = 5
"""Classes with fewer train or validation nodes are not scored on their own."""
GIVEAWAY = 0.8
"""A column leaks the label if it avoids this share of the errors of a constant prediction."""
CLASS_GIVEAWAY = 0.95
"""A column leaks a single class if it closes this share of the gap of its F1 to 1."""


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
        low, high, none = int(degrees.min()), int(degrees.max()), int((degrees == 0).sum())
        return cls(low, float(np.median(degrees)), high, none)


@dataclass(frozen=True)
class Structure:
    """Measures of the edges.

    Attributes:
        listed_edges: edges as listed, self-loops and repeats included.
        edges: distinct edges without self-loops; an undirected edge counts once.
        repeated_edges: edges listed again in the same direction.
        both_ways: share of the distinct edges whose reverse exists; 1 if not directed.
        degrees: of neighbours in either direction.
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
        largest_share: share of the largest class among labelled nodes; 0 if there are none.
    """

    counts: dict[str, int]
    unlabelled: int
    largest_share: float


@dataclass(frozen=True)
class MissingClass:
    """A class that a part ("train", "val" or "test") of some splits lacks."""

    name: str
    part: str
    splits: tuple[int, ...]


def class_balance(graph: Graph) -> ClassBalance:
    """Count the labels."""
    known = graph.y[graph.y >= 0]
    counts = np.bincount(known, minlength=graph.num_classes)
    return ClassBalance(
        counts=dict(zip(map(str, graph.class_names), counts.tolist(), strict=True)),
        unlabelled=graph.num_nodes - known.size,
        largest_share=float(counts.max() / known.size) if known.size else 0.0,
    )


def missing_classes(graph: Graph) -> tuple[MissingClass, ...]:
    """Return classes that have labelled nodes, but none in a non-empty part of some split."""
    if graph.splits is None:
        return ()
    present = np.unique(graph.y[graph.y >= 0])
    missing = []
    for part in ("train", "val", "test"):
        masks = [getattr(split, part) & (graph.y >= 0) for split in graph.splits]
        sizes = [np.bincount(graph.y[mask], minlength=graph.num_classes) for mask in masks]
        counts = np.stack(sizes)
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
    """A known dataset with equal data: ``same`` of "attributes", "labels" and "edges"."""

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
        spans = itertools.pairwise(adjacency.indptr)
        rows = (adjacency.indices[first:last].tobytes() for first, last in spans)
        yield word, np.where(enough, equal_rows(rows), -1)
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

    A dataset without known defects is not reported as a copy of a defective one.
    """
    entry = DATASETS.get(graph.name)
    is_sound = entry is not None and entry.num_nodes == graph.num_nodes and not entry.is_defective
    matches = []
    for other in DATASETS.values():
        skip = other.name == graph.name or (is_sound and other.is_defective)
        skip = skip or not other.num_classes  # targets of a graph that is known with classes
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


@dataclass(frozen=True)
class Giveaway:
    """A column that alone predicts the label, or one class.

    Attributes:
        name: the column's, or its position if columns have no names.
        accuracy: on validation nodes, of the class that is most frequent among train nodes with the
            column's value.
        chance: accuracy of the most frequent class of the train nodes.
        of_class: the class that it predicts, if it is only one.
        f1: of that class, or of the class predicted best.
        is_copy: whether train and validation nodes have no exception.
    """

    column: int
    name: str
    accuracy: float
    chance: float
    of_class: str | None
    f1: float
    is_copy: bool


@dataclass(frozen=True)
class AttributeColumns:
    """Measures of the attribute columns.

    Attributes:
        constant: columns with one value everywhere that is not zero.
        without: nodes whose attributes are all zero.
        giveaways: columns that predict the label, the best first.
        judged_nodes: train and validation nodes that were read for them.
        is_sampled: whether these are a sample.
    """

    count: int
    zero: tuple[int, ...]
    constant: tuple[int, ...]
    without: int
    giveaways: tuple[Giveaway, ...]
    judged_nodes: int
    is_sampled: bool


def gain(score: float, chance: float) -> float:
    """Return a score relative to chance: 0 by chance, 1 at best.

    >>> gain(0.75, 0.5), gain(0.5, 0.5), gain(1.0, 1.0)
    (0.5, 0.0, 0.0)
    """
    return (score - chance) / (1 - chance) if chance < 1 else 0.0


def attribute_columns(graph: Graph, split: Split | None) -> AttributeColumns:
    """Measure the attribute columns.

    Args:
        split: only its train and validation labels are read; None skips giveaways.
    """
    x = graph.x
    if sp.issparse(x):
        low, high = (np.asarray(side.todense()).ravel() for side in (x.min(axis=0), x.max(axis=0)))
        empty = np.diff(x.indptr) == 0
    else:
        low, high, empty = x.min(axis=0), x.max(axis=0), ~x.any(axis=1)
    train = val = np.empty(0, np.int64)
    is_sampled = False
    if split is not None:
        train, val = sample_labelled_nodes(graph, split)
        labelled = (split.train | split.val) & (graph.y >= 0)
        is_sampled = bool(train.size + val.size < labelled.sum())
    leaks: list[Giveaway] = []
    if train.size and val.size and np.unique(graph.y[train]).size > 1:
        leaks = giveaways(graph, train, val)
    return AttributeColumns(
        count=graph.num_features,
        zero=tuple(np.flatnonzero((low == high) & (low == 0)).tolist()),
        constant=tuple(np.flatnonzero((low == high) & (low != 0)).tolist()),
        without=int(empty.sum()),
        giveaways=tuple(leaks),
        judged_nodes=int(train.size + val.size),
        is_sampled=is_sampled,
    )


def sample_labelled_nodes(graph: Graph, split: Split) -> tuple[Array, Array]:
    """Return labelled train and validation nodes, of large tables a seeded sample."""
    most = max(FEWEST_NODES, MOST_VALUES // graph.num_features)
    train, val = (np.flatnonzero(part & (graph.y >= 0)) for part in (split.train, split.val))
    share = most / max(1, train.size + val.size)
    if share < 1:
        random = np.random.default_rng(0)
        train, val = (
            np.sort(random.choice(nodes, int(nodes.size * share), replace=False))
            for nodes in (train, val)
        )
    return train, val


def giveaways(graph: Graph, train: Array, val: Array) -> list[Giveaway]:
    """Return the columns that alone predict the label far better than the largest class.

    Train nodes are grouped by value (by 64 quantiles if there are more values); each group predicts
    its most frequent class, scored on validation nodes. Combinations of columns are not tested.

    Args:
        train: positions of the nodes that vote.
        val: positions of the nodes that are scored.
    """
    nodes, classes = np.concatenate([train, val]), graph.num_classes
    y, y_val = graph.y[nodes], graph.y[val]
    default = int(np.bincount(graph.y[train]).argmax())
    chance = float((y_val == default).mean())
    sizes = [np.bincount(graph.y[part], minlength=classes) for part in (train, val)]
    is_scored = np.minimum(*sizes) >= LEAST_SUPPORT
    # The constant prediction has F1 = 2p / (1 + p) for its class, 0 for others.
    chance_f1 = np.zeros(classes)
    chance_f1[default] = 2 * chance / (1 + chance)
    rows = sp.csc_array(graph.x[nodes])  # stored by column, if dense too
    result = []
    for column in range(graph.num_features):
        entries = slice(rows.indptr[column], rows.indptr[column + 1])
        if entries.start == entries.stop:
            continue
        values = np.zeros(nodes.size, np.float32)
        values[rows.indices[entries]] = rows.data[entries]
        guess = votes(values[: train.size], y[: train.size], values, default)
        hits = guess == y
        accuracy = float(hits[train.size :].mean())
        f1 = _f1(guess[train.size :], y_val, classes)
        gains = np.where(is_scored, (f1 - chance_f1) / np.maximum(1 - chance_f1, 1e-12), -1.0)
        best = int(gains.argmax())
        label, is_copy = None, bool(hits.all())
        if gain(accuracy, chance) < GIVEAWAY:
            if gains[best] < CLASS_GIVEAWAY:
                continue
            label = str(graph.class_names[best])
            # A copy has no value in common with nodes of other classes.
            is_copy = not np.intersect1d(values[y == best], values[y != best]).size
        name = str(column if graph.feature_names is None else graph.feature_names[column])
        result.append(Giveaway(column, name, accuracy, chance, label, float(f1[best]), is_copy))
    return sorted(result, key=lambda row: (row.of_class is not None, -row.accuracy, row.column))


def votes(train_values: Array, train_labels: Array, values: Array, default: int) -> Array:
    """Return the most frequent class among train nodes in the same bin.

    >>> votes(np.array([1, 1, 5]), np.array([0, 0, 2]), np.array([1, 5, 6, 0]), default=0).tolist()
    [0, 2, 2, 0]
    """
    cuts = np.unique(train_values)
    if cuts.size > MOST_BINS:
        cuts = np.unique(np.quantile(train_values, np.arange(MOST_BINS) / MOST_BINS))
    bins = np.searchsorted(cuts, train_values, side="right")
    classes = int(train_labels.max()) + 1
    table = np.bincount(bins * classes + train_labels, minlength=(cuts.size + 1) * classes)
    table = table.reshape(-1, classes)
    guesses = np.where(table.any(axis=1), table.argmax(axis=1), default)
    return np.asarray(guesses[np.searchsorted(cuts, values, side="right")])


def _f1(guess: Array, truth: Array, classes: int) -> Array:
    """Return F1 of each class; 0 for classes that do not occur."""
    hits = np.bincount(truth[guess == truth], minlength=classes)
    both = np.bincount(guess, minlength=classes) + np.bincount(truth, minlength=classes)
    return np.asarray(2 * hits / np.maximum(both, 1))
