"""Calibration of probabilities, from logits to predicted classes, and its errors.

A calibration is an array (R, 3, C), for each replica and class: the scale and the bias of its
logits, ``logits * scale + bias``, and the decision offset, which is added to the calibrated logits
before the most likely class is predicted, and to no probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpgmn.base.thresholds import choose_threshold, count_alarms

Array = NDArray[Any]

LOWEST, HIGHEST = 0.05, 20.0
"""Range of temperatures."""

RARE = 0.1
"""Below this share of the nodes the rarer of two classes is rare."""

BINS = 15
"""Number of bins of confidence."""

COVERAGES = tuple(step / 20 for step in range(1, 21))
"""Coverages at which a coverage curve is evaluated."""


def from_temperatures(temperatures: Sequence[float], num_classes: int) -> Array:
    """Return the calibration (R, 3, C) that divides the logits of each replica.

    >>> from_temperatures([2.0], 2).tolist()
    [[[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]]]
    """
    calibration = np.zeros((len(temperatures), 3, max(num_classes, 1)))  # a target has one column
    calibration[:, 0] = 1 / np.asarray(temperatures, np.float64)[:, None]
    return calibration


@dataclass(frozen=True)
class Calibrator:
    """How probabilities and decisions are fitted to validation nodes.

    Attributes:
        method: "temperature", "affine" (slope and intercept of two classes, vector scaling of
            more), which undoes the shift by class weights, or "none". Of two classes one of which
            is rare, a temperature cannot correct how often it is expected: "affine" is used.
        is_balanced: whether every class counts alike in decisions: the bias is left out of them.
        threshold: the rule for the probability from which the positive class is predicted, see
            :func:`~hpgmn.base.thresholds.choose_threshold`; None: the most likely class is.
        positive: the positive class of two.
    """

    method: str = "temperature"
    is_balanced: bool = False
    threshold: str | None = None
    positive: int = 1

    def fit(
        self,
        logits: Tensor,
        y: Array,
        masks: Sequence[Array],
        warn: Callable[[str], None] = lambda line: None,
    ) -> Array:
        """Fit a calibration (R, 3, C) of logits (R, N, C), each replica on its masked nodes.

        Args:
            warn: called if no threshold does what the rule requires.
        """
        rows = []
        for replica_logits, mask in zip(logits, masks, strict=True):
            scores = replica_logits[torch.from_numpy(np.asarray(mask))].double().numpy()
            rows.append(self._fit_replica(scores, y[mask], warn))
        return np.stack(rows)

    def _fit_replica(self, scores: Array, labels: Array, warn: Callable[[str], None]) -> Array:
        if scores.shape[1] == 1:  # targets
            return np.asarray(from_temperatures([1.0], 1)[0])
        temperature = 1.0 if self.method == "none" else fit_temperature(scores, labels)
        calibration = from_temperatures([temperature], scores.shape[1])
        counts = np.bincount(labels, minlength=scores.shape[1])
        is_rare = counts.size == 2 and 0 < counts.min() < RARE * labels.size
        is_affine = self.method == "affine" or (self.method == "temperature" and is_rare)
        if is_affine and labels.size and np.isfinite(scores).all():
            calibration[0, :2] = _fit_affine(scores, labels, 1 / temperature)
        if self.is_balanced:
            calibration[0, 2] = -calibration[0, 1]
        if self.threshold is not None:
            chances = calibrated_probabilities(torch.from_numpy(scores)[None], calibration)[0]
            value = choose_threshold(
                self.threshold, chances[:, self.positive].numpy(), labels == self.positive, warn
            )
            calibration[0, 2] = threshold_offset(value, self.positive)
        return np.asarray(calibration[0])


def threshold_offset(threshold: float, positive: int) -> Array:
    """Return the decision offset (2,) that predicts the positive class from a probability on.

    >>> threshold_offset(0.5, 1).tolist()
    [0.0, 0.0]
    """
    offset = np.zeros(2)
    offset[positive] = np.log1p(-threshold) - np.log(threshold)
    return offset


def decision_threshold(calibration: Array, positive: int) -> float:
    """Return the probability from which one replica predicts the positive class of two."""
    offset = calibration[2]
    return float(1 / (1 + np.exp(offset[positive] - offset[1 - positive])))


def _fit_affine(scores: Array, labels: Array, sharpness: float) -> Array:
    """Return scale and bias (2, C) that maximise the likelihood of the labels.

    Two classes share the scale (Platt's slope and intercept). More have one each, with a standard
    normal prior of its logarithm around the common one. As in Platt's method a class with n nodes
    counts as certain up to (n + 1) / (n + 2), the rest is spread over the others: few nodes of a
    class, or none, give no infinite bias.

    Args:
        sharpness: 1/T, where the search starts.
    """
    from scipy.optimize import minimize  # late: it takes a while to import

    rows, classes = scores.shape
    certain = (np.bincount(labels, minlength=classes) + 1.0)[labels]
    certain /= certain + 1
    targets = np.repeat((1 - certain)[:, None] / (classes - 1), classes, axis=1)
    targets[np.arange(rows), labels] = certain
    has_own_scales = classes > 2

    def scale_of(parameters: Array) -> Array:
        return np.asarray(np.exp(parameters[0] + has_own_scales * parameters[1 : classes + 1]))

    def loss(parameters: Array) -> tuple[float, Array]:
        scale, own, bias = scale_of(parameters), parameters[1 : classes + 1], parameters[-classes:]
        shifted = scores * scale + bias
        shifted -= shifted.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        error = np.exp(logs) - targets
        by_scale = (error * scores).sum(axis=0) * scale
        gradient = np.concatenate(
            [[by_scale.sum()], has_own_scales * by_scale + own, error.sum(axis=0)]
        )
        return float((own**2).sum() / 2 - (targets * logs).sum()) / rows, gradient / rows

    start = np.zeros(2 * classes + 1)
    start[0] = np.log(sharpness)
    limits = [(-np.log(HIGHEST), -np.log(LOWEST)), *[(-2.0, 2.0)] * classes]
    options = {"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-8}
    found = minimize(
        *(loss, start),
        jac=True,
        method="L-BFGS-B",
        bounds=[*limits, *[(None, None)] * classes],
        options=options,
    ).x
    return np.stack([scale_of(found), found[-classes:]])


def calibrated_logits(logits: Tensor, calibration: Array) -> Tensor:
    """Return ``logits * scale + bias`` of logits (R, …, C), replica by replica."""
    return _affine(logits, calibration[:, 0], calibration[:, 1])


def _affine(logits: Tensor, scale: Array, bias: Array) -> Tensor:
    shape = (len(scale), *(1,) * (logits.ndim - 2), -1)
    scales, biases = (
        torch.as_tensor(part, dtype=logits.dtype, device=logits.device).reshape(shape)
        for part in (scale, bias)
    )
    return logits * scales + biases


def calibrated_probabilities(logits: Tensor, calibration: Array) -> Tensor:
    """Return calibrated probabilities (R, N, C); targets, of one column, stay as they are."""
    if logits.shape[-1] == 1:
        return logits
    return calibrated_logits(logits, calibration).softmax(dim=-1)


def predicted_classes(probabilities: Array, calibration: Array) -> Array:
    """Return the predicted class (N,) from calibrated probabilities (N, C), for one replica."""
    if not calibration[2].any():
        return np.asarray(probabilities.argmax(axis=1))
    logs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return np.asarray((logs + calibration[2]).argmax(axis=1))


def decision_logits(logits: Tensor, calibration: Array) -> Tensor:
    """Return logits (R, N, C) whose highest is the predicted class: what metrics score.

    They are calibrated up to a common factor, so that a temperature alone changes no bit.
    """
    scale = calibration[:, 0].max(axis=1, keepdims=True)
    bias = calibration[:, 1] + calibration[:, 2]
    return _affine(logits, calibration[:, 0] / scale, bias / scale)


def fit_temperature(logits: Array, labels: Array) -> float:
    """Return the T that maximises the likelihood of labels under softmax(logits / T).

    The mean confidence is capped at (n + 1) / (n + 2) (Laplace's rule of succession), because the
    likelihood has no maximum where all n nodes are correct.

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
    """Return confidence and accuracy per bin, equally wide or holding equally many nodes.

    Args:
        confidence: (n,) probability of the predicted class.
        right: (n,) whether the prediction is correct.
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


def chance_error(confidence: Array, bins: int = BINS) -> float:
    """Return the calibration error to expect where every probability is true."""
    spread = sum(
        np.sqrt(part.count * part.confidence * (1 - part.confidence))
        for part in reliability(confidence, confidence, bins)
        if part.confidence is not None
    )
    return float(np.sqrt(2 / np.pi) * spread / max(confidence.size, 1))


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
    """Return the lowest threshold that reaches an accuracy on at least ``fewest`` nodes, or None.

    With fewer than ``fewest`` nodes in total, only the threshold that answers all of them counts.
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
    levels, hits, answered = count_alarms(confidence, right)
    return levels, answered / confidence.size, hits / answered
