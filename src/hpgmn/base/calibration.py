"""Temperature scaling, calibration errors and selective prediction."""

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
"""Range of temperatures."""

BINS = 15
"""Number of bins of confidence."""

COVERAGES = tuple(step / 20 for step in range(1, 21))
"""Coverages at which a coverage curve is evaluated."""


def fit_temperature(logits: Array, labels: Array) -> float:
    """Return the T that maximises the likelihood of labels under softmax(logits / T).

    The mean confidence is capped at (n + 1) / (n + 2) (Laplace's rule of succession), because the
    likelihood has no maximum where all n nodes are correct.

    Args:
        logits: (n, C) of the validation nodes.
        labels: (n,).

    Returns:
        T between :data:`LOWEST` and :data:`HIGHEST`; 1 without nodes, or for logits that are all
        equal or contain NaN or infinity.

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
    label_scores = scores[np.arange(labels.size), labels]

    def slope(sharpness: float) -> float:
        return float(((_softmax(sharpness * scores) * scores).sum(axis=1) - label_scores).mean())

    def excess(sharpness: float) -> float:
        confidence = _softmax(sharpness * scores).max(axis=1).mean()
        return float(confidence) - (labels.size + 1) / (labels.size + 2)

    sharpness = min(_crossing(slope), _crossing(excess))
    return 1 / sharpness


def _softmax(scores: Array) -> Array:
    """Return row-wise probabilities of scores whose row maxima are 0."""
    exponentials = np.exp(scores)
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def _crossing(function: Callable[[float], float]) -> float:
    """Return the root of an increasing function of 1/T, clipped to the allowed range."""
    low, high = 1 / HIGHEST, 1 / LOWEST
    if function(low) >= 0:
        return low
    if function(high) <= 0:
        return high
    from scipy.optimize import brentq  # late: it takes a while to import

    return float(brentq(function, low, high, xtol=1e-12))


def fit_temperatures(logits: Tensor, y: Array, masks: Sequence[Array]) -> list[float]:
    """Fit one temperature per replica.

    Args:
        logits: (R, N, C).
        y: (N,) labels.
        masks: R masks of the validation nodes.
    """
    return [
        fit_temperature(
            replica_logits[torch.from_numpy(np.asarray(mask))].double().numpy(), y[mask]
        )
        for replica_logits, mask in zip(logits, masks, strict=True)
    ]


def calibrated_probabilities(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Return softmax(logits / T) with the temperature of each replica: (R, N, C)."""
    scale = torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)
    return (logits / scale.view(-1, 1, 1)).softmax(dim=-1)


def mean_logits(logits: Tensor) -> Tensor:
    """Return log-probabilities averaged over seeds in probability space: (R, …, C) to (…, C)."""
    logs = logits.double().log_softmax(dim=-1)
    return torch.logsumexp(logs, dim=0) - math.log(logits.shape[0])


@dataclass(frozen=True)
class Bin:
    """Nodes of similar confidence; means are None for an empty bin."""

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


def reliability(
    confidence: Array, right: Array, bins: int = BINS, *, equal_mass: bool = False
) -> list[Bin]:
    """Return confidence and accuracy per bin.

    Args:
        confidence: (n,) probability of the predicted class.
        right: (n,) whether the prediction is correct.
        equal_mass: whether bins hold equally many nodes instead of being equally wide.
    """
    if not equal_mass:
        edges = np.linspace(0, 1, bins + 1)
        # Bins are (low, high].
        bin_numbers = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
        members = [np.flatnonzero(bin_numbers == number) for number in range(bins)]
        ends = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    else:
        order = np.argsort(confidence, kind="stable")
        members = [part for part in np.array_split(order, bins) if part.size]
        ends = [(float(confidence[part[0]]), float(confidence[part[-1]])) for part in members]
    return [
        Bin(
            low,
            high,
            int(nodes.size),
            float(confidence[nodes].mean()) if nodes.size else None,
            float(right[nodes].mean()) if nodes.size else None,
        )
        for nodes, (low, high) in zip(members, ends, strict=True)
    ]


def calibration_error(
    confidence: Array, right: Array, bins: int = BINS, *, equal_mass: bool = False
) -> float:
    """Return the expected calibration error (ECE).

    >>> round(calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([1, 1, 1, 0])), 6)
    0.1
    """
    distance = sum(
        part.count * abs(part.confidence - part.accuracy)
        for part in reliability(confidence, right, bins, equal_mass=equal_mass)
        if part.confidence is not None and part.accuracy is not None
    )
    return distance / max(confidence.size, 1)


def brier_score(probabilities: Array, labels: Array) -> float:
    """Return the multi-class Brier score, 0 to 2."""
    truth = np.eye(probabilities.shape[1])[labels]
    return float(((probabilities - truth) ** 2).sum(axis=1).mean())


def log_loss(log_probabilities: Array, labels: Array) -> float:
    """Return the mean negative log-likelihood of the labels."""
    return float(-log_probabilities[np.arange(labels.size), labels].mean())


@dataclass(frozen=True)
class Answered:
    """Coverage and accuracy when predicting only at or above a confidence threshold."""

    threshold: float
    coverage: float
    accuracy: float


def coverage_curve(
    confidence: Array, right: Array, coverages: Sequence[float] = COVERAGES
) -> list[Answered]:
    """Return the accuracy of the most confident fraction of nodes.

    Nodes tied with the last one are included, so the coverage may exceed the requested one.

    Args:
        confidence: (n,) of at least one node.
        right: (n,) whether each prediction is correct.
    """
    thresholds, shares, accuracies = _threshold_curve(confidence, right)
    positions = np.searchsorted(shares, np.asarray(coverages) - 1e-12).clip(max=shares.size - 1)
    return [
        Answered(float(thresholds[at]), float(shares[at]), float(accuracies[at]))
        for at in positions
    ]


def threshold_for_accuracy(
    confidence: Array, right: Array, target: float, *, fewest: int = 1
) -> Answered | None:
    """Return the lowest threshold that reaches an accuracy, or None.

    Args:
        confidence: (n,).
        right: (n,) whether each prediction is correct.
        target: the required accuracy.
        fewest: minimum number of nodes to answer (or all, if there are fewer).
    """
    thresholds, shares, accuracies = _threshold_curve(confidence, right)
    answered = shares * confidence.size + 1e-9 >= min(fewest, confidence.size)
    enough = np.flatnonzero((accuracies >= target) & answered)
    if not enough.size:
        return None
    at = enough[-1]
    return Answered(float(thresholds[at]), float(shares[at]), float(accuracies[at]))


def _threshold_curve(confidence: Array, right: Array) -> tuple[Array, Array, Array]:
    """Return all distinct thresholds, descending, with their coverage and accuracy."""
    order = np.argsort(-confidence, kind="stable")
    level = confidence[order]
    last = np.flatnonzero(np.append(level[1:] != level[:-1], True))  # of each confidence
    accuracy = np.cumsum(right[order])[last] / (last + 1)
    return level[last], (last + 1) / level.size, accuracy
