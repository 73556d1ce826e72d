"""Attribute columns without information, and columns that determine the label (leaks)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from hpgmn.graph import Array, Graph, Split

MOST_BINS = 64
"""Columns with more distinct values are binned by quantiles."""
MOST_VALUES = 20_000_000
"""Most attribute values that are read; nodes of larger tables are sampled …"""
FEWEST_NODES = 2_000
"""… but at least so many nodes."""
LEAST_SUPPORT = 5
"""Classes with fewer train or validation nodes are not scored on their own."""
GIVEAWAY = 0.8
"""A column is a giveaway if it avoids this share of the errors of a constant prediction …"""
CLASS_GIVEAWAY = 0.95
"""… or of a single class's shortfall in F1."""


@dataclass(frozen=True)
class Giveaway:
    """A column that alone predicts the label, or one class.

    Attributes:
        column: its position.
        name: its name, or its position if columns have no names.
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
        count: F.
        zero: columns that are zero everywhere.
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
    zero, constant = _constant_columns(graph)
    train, val = (
        (np.empty(0, np.int64),) * 2 if split is None else sample_labelled_nodes(graph, split)
    )
    leaks: list[Giveaway] = []
    if train.size and val.size and np.unique(graph.y[train]).size > 1:
        leaks = giveaways(graph, train, val)
    return AttributeColumns(
        count=graph.num_features,
        zero=zero,
        constant=constant,
        without=_empty_rows(graph),
        giveaways=tuple(leaks),
        judged_nodes=int(train.size + val.size),
        is_sampled=split is not None and train.size + val.size < _count_labelled(graph, split),
    )


def sample_labelled_nodes(graph: Graph, split: Split) -> tuple[Array, Array]:
    """Return labelled train and validation nodes, of large tables a seeded sample."""
    most = max(FEWEST_NODES, MOST_VALUES // graph.num_features)
    train, val = (np.flatnonzero(part & (graph.y >= 0)) for part in (split.train, split.val))
    share = most / max(1, train.size + val.size)
    if share >= 1:
        return train, val
    random = np.random.default_rng(0)

    def draw(nodes: Array) -> Array:
        return np.sort(random.choice(nodes, int(nodes.size * share), replace=False))

    return draw(train), draw(val)


def _count_labelled(graph: Graph, split: Split) -> int:
    """Count the labelled train and validation nodes."""
    return int(((split.train | split.val) & (graph.y >= 0)).sum())


def giveaways(graph: Graph, train: Array, val: Array) -> list[Giveaway]:
    """Return the columns that alone predict the label far better than the largest class.

    Train nodes are grouped by value (by 64 quantiles if there are more values); each group predicts
    its most frequent class, scored on validation nodes. Combinations of columns are not tested.

    Args:
        train: positions of the nodes that vote.
        val: positions of the nodes that are scored.
    """
    y, classes = graph.y, graph.num_classes
    default = int(np.bincount(y[train]).argmax())
    chance = float((y[val] == default).mean())
    sizes = [np.bincount(y[part], minlength=classes) for part in (train, val)]
    judgeable = np.minimum(*sizes) >= LEAST_SUPPORT
    # The constant prediction has F1 = 2p / (1 + p) for its class, 0 for others.
    chance_f1 = np.zeros(classes)
    chance_f1[default] = 2 * chance / (1 + chance)
    rows = sp.csc_array(graph.x[np.concatenate([train, val])])  # stored by column, if dense too
    result = []
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
        predicts_all = gain(accuracy, chance) >= GIVEAWAY
        if not predicts_all and gains[best] < CLASS_GIVEAWAY:
            continue
        name = str(column if graph.feature_names is None else graph.feature_names[column])
        label = None if predicts_all else str(graph.class_names[best])
        is_copy = bool(hits.all()) if predicts_all else _is_indicator(values, train, val, y == best)
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
    predicted: Array = guesses[np.searchsorted(cuts, values, side="right")]
    return predicted


def _f1(guess: Array, truth: Array, classes: int) -> Array:
    """Return F1 of each class; 0 for classes that do not occur."""
    hits = np.bincount(truth[guess == truth], minlength=classes)
    both = np.bincount(guess, minlength=classes) + np.bincount(truth, minlength=classes)
    shares: Array = 2 * hits / np.maximum(both, 1)
    return shares


def _is_indicator(values: Array, train: Array, val: Array, is_class: Array) -> bool:
    """Whether nodes of the class and other nodes have no value in common."""
    inside = is_class[np.concatenate([train, val])]
    return not np.intersect1d(values[inside], values[~inside]).size


def _constant_columns(graph: Graph) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return columns that are all zero, and those with another constant value."""
    x = graph.x
    if sp.issparse(x):
        low, high = (np.asarray(side.todense()).ravel() for side in (x.min(axis=0), x.max(axis=0)))
    else:
        low, high = x.min(axis=0), x.max(axis=0)
    same = low == high
    return _positions(same & (low == 0)), _positions(same & (low != 0))


def _positions(mask: Array) -> tuple[int, ...]:
    return tuple(int(position) for position in np.flatnonzero(mask))


def _empty_rows(graph: Graph) -> int:
    """Count the nodes whose attributes are all zero."""
    if graph.has_sparse_attributes:
        return int((np.diff(graph.x.indptr) == 0).sum())
    return int((~graph.x.any(axis=1)).sum())
