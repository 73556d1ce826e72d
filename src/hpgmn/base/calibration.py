"""How far probabilities can be believed: temperature, calibration error, and when to say nothing.

Everything here takes labels from its caller: temperatures are fitted to validation labels, and
errors are measured on whatever nodes are handed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

LOWEST, HIGHEST = 0.05, 20.0
"""No temperature lies outside these."""

BINS = 15
"""Into so many bins confidences are sorted."""

COVERAGES = tuple(step / 20 for step in range(1, 21))
"""The shares of nodes answered at which a coverage curve is read."""


def fit_temperature(logits: Array, labels: Array) -> float:
    """The temperature T for which softmax(logits / T) gives labels their highest likelihood.

    The negative log-likelihood is convex in 1/T, so its only minimum is where its slope is zero.
    Where every node is told right it has none: confidence would grow without end. So the mean
    confidence may not exceed (n + 1) / (n + 2), what n right answers out of n allow one to expect
    of the next (Laplace's rule of succession), and T stays between :data:`LOWEST` and
    :data:`HIGHEST`.

    Args:
        logits: (n, C) of the validation nodes.
        labels: (n,).

    Returns:
        T; 1 without nodes, or with logits that are not finite or all alike.

    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> round(float(np.exp(4 / fit_temperature(logits, np.array([0, 0, 0, 1])))), 6)
    3.0
    """
    scores = np.asarray(logits, np.float64)
    if not labels.size or not np.isfinite(scores).all():
        return 1.0
    scores = scores - scores.max(axis=1, keepdims=True)
    if not scores.any():
        return 1.0
    own = scores[np.arange(labels.size), labels]

    def slope(sharpness: float) -> float:
        return float(((_softmax(sharpness * scores) * scores).sum(axis=1) - own).mean())

    def excess(sharpness: float) -> float:
        confidence = _softmax(sharpness * scores).max(axis=1).mean()
        return float(confidence) - (labels.size + 1) / (labels.size + 2)

    sharpness = min(_crossing(slope), _crossing(excess))
    return 1 / sharpness


def _softmax(scores: Array) -> Array:
    """Rows of probabilities; the largest score of a row is 0."""
    chances = np.exp(scores)
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def _crossing(rising: Callable[[float], float]) -> float:
    """Where a rising function of 1/T is zero, or the end of the range beyond which it is."""
    low, high = 1 / HIGHEST, 1 / LOWEST
    if rising(low) >= 0:
        return low
    if rising(high) <= 0:
        return high
    from scipy.optimize import brentq  # late: it takes a while to import

    return float(brentq(rising, low, high, xtol=1e-12))


def fit_temperatures(logits: Tensor, y: Array, masks: Sequence[Array]) -> list[float]:
    """One temperature per replica.

    Args:
        logits: (R, N, C).
        y: (N,) labels.
        masks: R masks of the validation nodes.
    """
    return [
        fit_temperature(own[torch.from_numpy(np.asarray(mask))].double().numpy(), y[mask])
        for own, mask in zip(logits, masks, strict=True)
    ]


def calibrated_probabilities(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Class probabilities, (R, N, C), softmax(logits / T) with each replica's own T."""
    scale = torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)
    return (logits / scale.view(-1, 1, 1)).softmax(dim=-1)


def mean_logits(logits: Tensor) -> Tensor:
    """Logarithms of probabilities averaged over seeds, (R, …, C) to (…, C): logits of the mean."""
    logs = logits.double().log_softmax(dim=-1)
    return torch.logsumexp(logs, dim=0) - math.log(logits.shape[0])


@dataclass(frozen=True)
class Bin:
    """Nodes of about the same confidence.

    Attributes:
        low: where the bin begins.
        high: where it ends.
        count: how many nodes it has.
        confidence: their mean confidence; None without nodes.
        accuracy: the share told right; None without nodes.
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


def reliability(
    confidence: Array, right: Array, bins: int = BINS, *, equal_mass: bool = False
) -> list[Bin]:
    """Confidence against accuracy, bin by bin.

    Args:
        confidence: (n,) the probability of the class each node was given.
        right: (n,) whether that class is its own.
        bins: how many.
        equal_mass: whether bins hold equally many nodes (as far as n allows) rather than being
            equally wide.
    """
    if not equal_mass:
        edges = np.linspace(0, 1, bins + 1)
        # A bin has its upper end, as usual: (low, high].
        place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
        members = [np.flatnonzero(place == number) for number in range(bins)]
        ends = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    else:
        order = np.argsort(confidence, kind="stable")
        members = [part for part in np.array_split(order, bins) if part.size]
        ends = [(float(confidence[p[0]]), float(confidence[p[-1]])) for p in members]
    return [
        Bin(
            low,
            high,
            int(own.size),
            float(confidence[own].mean()) if own.size else None,
            float(right[own].mean()) if own.size else None,
        )
        for own, (low, high) in zip(members, ends, strict=True)
    ]


def calibration_error(
    confidence: Array, right: Array, bins: int = BINS, *, equal_mass: bool = False
) -> float:
    """The mean distance between confidence and accuracy, over bins weighed by their nodes (ECE).

    >>> round(calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([1, 1, 1, 0])), 6)
    0.1
    """
    distance = sum(
        found.count * abs(found.confidence - found.accuracy)
        for found in reliability(confidence, right, bins, equal_mass=equal_mass)
        if found.confidence is not None and found.accuracy is not None
    )
    return distance / max(confidence.size, 1)


def brier_score(chances: Array, labels: Array) -> float:
    """The mean squared distance of probabilities from the truth, summed over classes: 0 to 2."""
    truth = np.eye(chances.shape[1])[labels]
    return float(((chances - truth) ** 2).sum(axis=1).mean())


def log_loss(log_chances: Array, labels: Array) -> float:
    """The mean negative log-likelihood of the labels."""
    return float(-log_chances[np.arange(labels.size), labels].mean())


@dataclass(frozen=True)
class Answered:
    """What comes of answering only where confidence is at least a threshold.

    Attributes:
        threshold: the least confidence that is answered.
        coverage: the share of nodes answered.
        accuracy: the share of those told right.
    """

    threshold: float
    coverage: float
    accuracy: float


def coverage_curve(
    confidence: Array, right: Array, coverages: Sequence[float] = COVERAGES
) -> list[Answered]:
    """Accuracy when only the most confident share of the nodes is answered.

    Args:
        confidence: (n,) of at least one node.
        right: (n,) whether each was told right.
        coverages: the shares wanted; nodes with the confidence of the last one answered are
            answered, too, so the share found may be larger.
    """
    thresholds, shares, accuracies = _answers(confidence, right)
    places = np.searchsorted(shares, np.asarray(coverages) - 1e-12).clip(max=shares.size - 1)
    return [
        Answered(float(thresholds[at]), float(shares[at]), float(accuracies[at])) for at in places
    ]


def threshold_for_accuracy(
    confidence: Array, right: Array, wanted: float, *, fewest: int = 1
) -> Answered | None:
    """The lowest threshold with at least the wanted accuracy; None if no threshold has it.

    Args:
        confidence: (n,).
        right: (n,) whether each was told right.
        wanted: the accuracy.
        fewest: so many nodes must be answered, or all there are: a handful shows no accuracy.
    """
    thresholds, shares, accuracies = _answers(confidence, right)
    answered = shares * confidence.size + 1e-9 >= min(fewest, confidence.size)
    enough = np.flatnonzero((accuracies >= wanted) & answered)
    if not enough.size:
        return None
    at = enough[-1]
    return Answered(float(thresholds[at]), float(shares[at]), float(accuracies[at]))


def _answers(confidence: Array, right: Array) -> tuple[Array, Array, Array]:
    """Every threshold that makes a difference, highest first, with its coverage and accuracy."""
    order = np.argsort(-confidence, kind="stable")
    level = confidence[order]
    last = np.flatnonzero(np.append(level[1:] != level[:-1], True))  # of each confidence
    accuracy = np.cumsum(right[order])[last] / (last + 1)
    return level[last], (last + 1) / level.size, accuracy
