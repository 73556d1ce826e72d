"""Sets of classes that hold the true one with a given probability (split conformal prediction)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpgmn.base.metrics import conformal_quantile
from hpgmn.graph import Array

COVERAGES = (0.8, 0.9, 0.95)
"""Coverages that are measured on test nodes."""


def lowest_probabilities(
    probabilities: Array, labels: Array, coverage: float, *, by_class: bool = False
) -> Array:
    """Return (C,) the probability from which a class belongs to a set; -inf: always.

    The score of a reserved node is minus the probability of its class, which gives the smallest
    sets on average (1 minus it would round small ones away). The quantile of these scores holds
    for new nodes of the same kind.

    Args:
        probabilities: (n, C) of the reserved nodes.
        labels: (n,) their classes.
        by_class: hold the coverage for the nodes of each class, not only for all together.
    """
    scores, classes = -probabilities[np.arange(labels.size), labels], probabilities.shape[1]
    if by_class:
        quantiles = [conformal_quantile(scores[labels == c], coverage) for c in range(classes)]
    else:
        quantiles = [conformal_quantile(scores, coverage)] * classes
    return -np.asarray(quantiles)


def prediction_sets(probabilities: Array, lowest: Array) -> Array:
    """Return (n, C) which classes are in the set of each node; the most likely one always is.

    >>> prediction_sets(np.array([[0.6, 0.4], [0.9, 0.1]]), np.array([0.3, 0.3])).tolist()
    [[True, True], [True, False]]
    """
    sets = probabilities >= lowest
    sets[np.arange(len(sets)), probabilities.argmax(axis=1)] = True
    return np.asarray(sets)


def set_report(
    probabilities: Sequence[Array], y: Array, reserved: Sequence[Array], test: Sequence[Array]
) -> list[dict[str, Any]]:
    """Return how often sets of test nodes hold their class, and their size: means over splits.

    Args:
        probabilities: for each split (N, C).
        y: (N,) classes.
        reserved: for each split the mask of the reserved nodes.
        test: for each split the mask of the test nodes.
    """
    rows = []
    for by_class in (False, True):
        for coverage in COVERAGES:
            covered, sizes, rarest = [], [], []
            for chances, own, tested in zip(probabilities, reserved, test, strict=True):
                lowest = lowest_probabilities(chances[own], y[own], coverage, by_class=by_class)
                sets, labels = prediction_sets(chances[tested], lowest), y[tested]
                is_held = sets[np.arange(labels.size), labels]
                covered.append(is_held.mean())
                sizes.append(sets.sum(axis=1).mean())
                rarest.append(min(is_held[labels == c].mean() for c in np.unique(labels)))
            rows.append(
                {
                    "coverage": coverage,
                    "by_class": by_class,
                    "measured": float(np.mean(covered)),
                    "lowest_of_classes": float(np.mean(rarest)),
                    "mean_size": float(np.mean(sizes)),
                }
            )
    return rows
