"""Attribute columns that say nothing, and columns that give the label away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from hpgmn.graph import Array, Graph, Split

MOST_BINS = 64
"""A column with more distinct values is cut into so many parts of equal size."""
MOST_VALUES = 20_000_000
"""So many attribute values are looked at; of larger tables some nodes are drawn."""
FEWEST_NODES = 2_000
"""… but so many nodes at least."""
LEAST_SUPPORT = 5
"""A class with fewer train or validation nodes is not judged alone."""
GIVEAWAY = 0.8
"""A column is a giveaway if it avoids this share of the errors of always saying one class …"""
CLASS_GIVEAWAY = 0.95
"""… or of a single class's shortfall in F1."""


@dataclass(frozen=True)
class Giveaway:
    """A column that alone tells the label, or one class.

    Attributes:
        column: its place.
        name: its name, or its place where columns have no names.
        accuracy: on validation nodes, of the class that is most frequent among train nodes with the
            column's value.
        chance: accuracy of the most frequent class of the train nodes.
        of_class: the class that it tells, where it tells no other; else None.
        f1: of that class, or of the class told best.
        is_copy: whether train and validation nodes show no exception.
    """

    column: int
    name: str
    accuracy: float
    chance: float
    of_class: str | None
    f1: float
    is_copy: bool


@dataclass(frozen=True)
class Columns:
    """The attributes, column by column.

    Attributes:
        count: F.
        zero: columns that are zero everywhere.
        constant: columns with one value everywhere that is not zero.
        without: nodes whose attributes are all zero.
        giveaways: columns that give the label away, the plainest first.
        judged_nodes: train and validation nodes that were looked at for them.
        is_sampled: whether these were drawn from more.
    """

    count: int
    zero: tuple[int, ...]
    constant: tuple[int, ...]
    without: int
    giveaways: tuple[Giveaway, ...]
    judged_nodes: int
    is_sampled: bool


def gain(score: float, chance: float) -> float:
    """The share of what chance lacks that a score makes up; negative where it is worse.

    >>> gain(0.75, 0.5), gain(0.5, 0.5), gain(1.0, 1.0)
    (0.5, 0.0, 0.0)
    """
    return (score - chance) / (1 - chance) if chance < 1 else 0.0


def columns(graph: Graph, split: Split | None) -> Columns:
    """Measure the attribute columns.

    Args:
        graph: the graph.
        split: its train and validation labels are read, no others; None looks for no giveaways.
    """
    zero, constant = _same_everywhere(graph)
    train, val = (np.empty(0, np.int64),) * 2 if split is None else judged(graph, split)
    found: list[Giveaway] = []
    if train.size and val.size and np.unique(graph.y[train]).size > 1:
        found = giveaways(graph, train, val)
    return Columns(
        count=graph.num_features,
        zero=zero,
        constant=constant,
        without=_empty_rows(graph),
        giveaways=tuple(found),
        judged_nodes=int(train.size + val.size),
        is_sampled=split is not None and train.size + val.size < _labelled(graph, split),
    )


def judged(graph: Graph, split: Split) -> tuple[Array, Array]:
    """Labelled train and validation nodes; of large tables a seeded draw of them."""
    most = max(FEWEST_NODES, MOST_VALUES // graph.num_features)
    train, val = (np.flatnonzero(part & (graph.y >= 0)) for part in (split.train, split.val))
    share = most / max(1, train.size + val.size)
    if share >= 1:
        return train, val
    random = np.random.default_rng(0)

    def draw(nodes: Array) -> Array:
        return np.sort(random.choice(nodes, int(nodes.size * share), replace=False))

    return draw(train), draw(val)


def _labelled(graph: Graph, split: Split) -> int:
    """How many train and validation nodes have a label."""
    return int(((split.train | split.val) & (graph.y >= 0)).sum())


def giveaways(graph: Graph, train: Array, val: Array) -> list[Giveaway]:
    """The columns that alone predict the label far better than the largest class does.

    For each column, train nodes are grouped by value (by 64 quantiles where there are more values),
    and each group votes for its most frequent class; the votes are scored on validation nodes. So a
    column with many values gains nothing by chance. Combinations of columns are not looked at.

    Args:
        graph: the graph.
        train: positions of the nodes that vote.
        val: positions of the nodes that are scored.
    """
    y, classes = graph.y, graph.num_classes
    default = int(np.bincount(y[train]).argmax())
    chance = float((y[val] == default).mean())
    sizes = [np.bincount(y[part], minlength=classes) for part in (train, val)]
    judgeable = np.minimum(*sizes) >= LEAST_SUPPORT
    # What always saying the most frequent class gives: F1 = 2p / (1 + p) there, 0 elsewhere.
    chance_f1 = np.zeros(classes)
    chance_f1[default] = 2 * chance / (1 + chance)
    rows = sp.csc_array(graph.x[np.concatenate([train, val])])  # stored by column, if dense too
    found = []
    for column in range(graph.num_features):
        entries = slice(rows.indptr[column], rows.indptr[column + 1])
        if entries.start == entries.stop:
            continue
        values = np.zeros(rows.shape[0], np.float32)
        values[rows.indices[entries]] = rows.data[entries]
        guess = votes(values[: train.size], y[train], values, default)
        hits = guess == y[np.concatenate([train, val])]
        accuracy = float(hits[train.size :].mean())
        f1 = _f1(guess[train.size :], y[val], classes)
        gains = np.where(judgeable, (f1 - chance_f1) / np.maximum(1 - chance_f1, 1e-12), -1.0)
        best = int(gains.argmax())
        tells_all = gain(accuracy, chance) >= GIVEAWAY
        if not tells_all and gains[best] < CLASS_GIVEAWAY:
            continue
        name = str(column if graph.feature_names is None else graph.feature_names[column])
        label = None if tells_all else str(graph.class_names[best])
        is_copy = bool(hits.all()) if tells_all else _is_indicator(values, train, val, y == best)
        found.append(Giveaway(column, name, accuracy, chance, label, float(f1[best]), is_copy))
    return sorted(found, key=lambda one: (one.of_class is not None, -one.accuracy, one.column))


def votes(train_values: Array, train_labels: Array, values: Array, default: int) -> Array:
    """The class most frequent among train nodes with a value alike.

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
    found: Array = guesses[np.searchsorted(cuts, values, side="right")]
    return found


def _f1(guess: Array, truth: Array, classes: int) -> Array:
    """F1 of each class; 0 where neither guess nor truth has it."""
    hits = np.bincount(truth[guess == truth], minlength=classes)
    both = np.bincount(guess, minlength=classes) + np.bincount(truth, minlength=classes)
    shares: Array = 2 * hits / np.maximum(both, 1)
    return shares


def _is_indicator(values: Array, train: Array, val: Array, is_class: Array) -> bool:
    """Whether no value is had both by nodes of the class and by others."""
    inside = is_class[np.concatenate([train, val])]
    return not np.intersect1d(values[inside], values[~inside]).size


def _same_everywhere(graph: Graph) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Columns that are zero everywhere, and those that have another single value."""
    x = graph.x
    if sp.issparse(x):
        low, high = (np.asarray(side.todense()).ravel() for side in (x.min(axis=0), x.max(axis=0)))
    else:
        low, high = x.min(axis=0), x.max(axis=0)
    same = low == high
    return _places(same & (low == 0)), _places(same & (low != 0))


def _places(mask: Array) -> tuple[int, ...]:
    return tuple(int(place) for place in np.flatnonzero(mask))


def _empty_rows(graph: Graph) -> int:
    """How many nodes have no attribute that is not zero."""
    if graph.has_sparse_attributes:
        return int((np.diff(graph.x.indptr) == 0).sum())
    return int((~graph.x.any(axis=1)).sum())
