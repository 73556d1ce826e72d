"""Labels of the two tasks: int64 classes, -1 where unknown, or float targets, NaN where unknown.

The type decides. What training asks of a task is in :mod:`hpgmn.base.objectives`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def is_target(y: Array) -> bool:
    """Whether labels are numbers to predict, not classes."""
    return y.dtype.kind == "f"


def is_known(y: Array) -> Array:
    """Return which labels are known.

    >>> is_known(np.array([0, -1])), is_known(np.array([0.5, np.nan]))
    (array([ True, False]), array([ True, False]))
    """
    return np.asarray(~np.isnan(y) if is_target(y) else y >= 0)


def hide_labels(y: Array, mask: Array | bool) -> Array:
    """Return labels that are unknown outside a mask.

    >>> hide_labels(np.array([1, 2]), np.array([True, False]))
    array([ 1, -1])
    """
    return np.where(mask, y, np.nan if is_target(y) else -1)


def target_scale(train_labels: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation (R, 1) of targets, NaN where unknown; 1 for no spread."""
    targets = np.asarray(train_labels, np.float64)
    if np.isnan(targets).all(axis=-1).any():  # a graph without train nodes
        targets = np.where(np.isnan(targets).all(axis=-1, keepdims=True), 0.0, targets)
    mean, std = (f(targets, axis=-1, keepdims=True) for f in (np.nanmean, np.nanstd))
    return mean, np.where(std > 0, std, 1.0)


def bin_edges(train_targets: Array, bins: int) -> Array:
    """Return the inner edges (bins - 1) of quantile bins of targets, NaN where unknown."""
    known = train_targets[~np.isnan(train_targets)]
    if not known.size:
        return np.zeros(bins - 1)
    return np.asarray(np.quantile(known.astype(np.float64), np.arange(1, bins) / bins))


def bin_names(edges: Array) -> tuple[str, ...]:
    """Name the bins between edges.

    >>> bin_names(np.array([0.5, 2.25]))
    ('below 0.5', '0.5 to 2.25', 'from 2.25')
    """
    texts = [f"{edge:.4g}" for edge in edges.tolist()]
    inner = [f"{low} to {high}" for low, high in itertools.pairwise(texts)]
    names = [f"below {texts[0]}", *inner, f"from {texts[-1]}"]
    return tuple(  # equal edges have equal names
        name if names.index(name) == place else f"{name} ({place + 1})"
        for place, name in enumerate(names)
    )


def target_bins(targets: Array, train_labels: Array, bins: int) -> Array:
    """Return the bin (R, N) of each target among the quantiles of the replica's train targets.

    >>> target_bins(np.array([[0.0, 9.0]]), np.array([[1.0, 2.0, 3.0, 4.0]]), 2)
    array([[0, 1]])
    """
    rows = zip(targets, train_labels, strict=True)
    return np.stack(
        [np.searchsorted(bin_edges(train, bins), row, side="right") for row, train in rows]
    )
