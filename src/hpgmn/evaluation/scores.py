"""Scores over runs and over classes; the only module that scores test nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from hpgmn.base.calibration import (
    brier_score,
    calibrated_logits,
    calibration_error,
    chance_error,
    coverage_curve,
    decision_logits,
    from_temperatures,
    log_loss,
    reliability,
    threshold_for_accuracy,
)
from hpgmn.base.metrics import RANKING_METRICS, conformal_quantile, mean_logits
from hpgmn.base.metrics import metric as metric_of
from hpgmn.base.tasks import is_known
from hpgmn.graph import Array

ENSEMBLE = 5
"""How many seeds of a single split are averaged."""


@dataclass(frozen=True)
class Score:
    """A score over runs: mean, sample standard deviation, and each run's value."""

    mean: float
    std: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Score:
        """Summarise the values of runs; the std of a single run is 0.

        >>> Score.of([0.5, 0.75, 1.0])
        Score(mean=0.75, std=0.25, values=(0.5, 0.75, 1.0))
        """
        array = np.asarray(values, dtype=np.float64)
        std = float(array.std(ddof=1)) if array.size > 1 else 0.0
        return cls(float(array.mean()), std, tuple(float(value) for value in array))


def scores(
    logits: Tensor, y: Array, masks: Sequence[Array], metric: str, positive: int = 1
) -> list[float]:
    """Score each run on its masked nodes.

    Args:
        logits: (R, N, C).
        y: (N,) true labels.
        positive: the positive class of two, see :func:`hpgmn.base.metrics.metric`.
    """
    labels = torch.from_numpy(np.where(is_known(y), y, 0))
    function = metric_of(metric, positive)
    values = []
    for run_logits, mask in zip(logits, masks, strict=True):
        valid = torch.from_numpy(np.asarray(mask))
        values.append(float(function(run_logits[None], labels[None], valid[None])))
    return values


def ensemble_size(splits: int, seeds: int) -> int:
    """Return how many seeds are averaged: all of a split, of a single split at most ENSEMBLE.

    >>> ensemble_size(10, 7), ensemble_size(1, 25), ensemble_size(1, 3)
    (7, 5, 3)
    """
    return seeds if splits > 1 else min(ENSEMBLE, seeds)


def ensemble_scores(
    logits: Tensor,
    y: Array,
    masks: Sequence[Array],
    metric: str,
    positive: int = 1,
    *,
    seeds: int,
    size: int,
    calibration: Array | None = None,
) -> list[float]:
    """Score class probabilities averaged over seeds; return one score per group, split by split.

    Args:
        logits: (R, N, C), split by split with the seeds inside.
        y: (N,) true labels.
        masks: R masks, equal for the seeds of a split.
        seeds: number of seeds of each split.
        size: consecutive seeds of a split averaged in a group; an incomplete group is dropped.
        calibration: (R, 3, C) of the average over the seeds of each run's split.
    """
    first = [
        start + offset
        for start in range(0, len(masks), seeds)
        for offset in range(0, seeds - size + 1, size)
    ]
    # One group at a time: the probabilities of all replicas may take gigabytes.
    groups = (logits[start : start + size].double() for start in first)
    is_regression = logits.shape[-1] == 1
    stacked = torch.stack(
        [(group if is_regression else group.softmax(dim=-1)).mean(dim=0) for group in groups]
    )
    shifts = calibration is not None and calibration[:, 1:].any()
    if shifts or (metric in RANKING_METRICS and stacked.shape[-1] > 2):
        stacked = stacked.log()  # logits again: of two classes any rising function ranks alike
    if calibration is not None and shifts:
        stacked = decision_logits(stacked, calibration[first])
    return scores(stacked, y, [masks[start] for start in first], metric, positive)


TARGET_ACCURACIES = (0.8, 0.9, 0.95, 0.99)
"""A confidence threshold is fitted on the validation nodes for each of these."""

FEWEST_ANSWERED = 20
"""Fewest validation nodes above a threshold."""

TOLERATED = 0.3
"""A mean probability may differ from the rate of its class by this part of the rate."""

MOST_DIAGRAMS = 6
"""Classes up to which each has a reliability diagram."""


def calibration_report(
    logits: Tensor,
    calibration: Array,
    y: Array,
    val: Sequence[Array],
    test: Sequence[Array],
    *,
    seeds: int = 1,
    mean_calibration: Array | None = None,
    class_names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the calibration section of ``metrics.json``, before and after calibration.

    Errors are of each run; classes, reliability bins, coverage and thresholds are of the average
    over the seeds of a split, pooled over splits. Non-finite logits or missing test nodes leave
    parts out.

    Args:
        logits: (R, N, C), the seeds of a split one after the other.
        calibration: (R, 3, C).
        y: (N,) true labels.
        val: R masks; thresholds are fitted on these nodes.
        test: R masks; everything else is measured on these nodes.
        seeds: number of seeds of each split.
        mean_calibration: (R, 3, C), of the average over the seeds of each run's split; None for
            ``calibration``.
        class_names: C of them; without names classes are left out.
    """
    of_means = (calibration if mean_calibration is None else mean_calibration)[::seeds]
    report: dict[str, Any] = {
        "temperature": (1 / calibration[:, 0].max(axis=1)).tolist(),
        "mean_temperature": (1 / of_means[:, 0].max(axis=1)).tolist(),
    }
    if calibration[:, 1].any():  # slope and intercept, or vector scaling
        report |= {"scale": calibration[:, 0].tolist(), "bias": calibration[:, 1].tolist()}
    if not logits.isfinite().all():  # JSON has no NaN
        return report
    starts = range(0, logits.shape[0], seeds)
    means = [logits[at] if seeds == 1 else mean_logits(logits[at : at + seeds]) for at in starts]
    confidence, right = _confidences(*_pool(means, of_means, y, val[::seeds]))
    report["thresholds"] = [
        {"wanted_accuracy": target, **(asdict(threshold) if threshold else {"threshold": None})}
        for target in TARGET_ACCURACIES
        for threshold in [threshold_for_accuracy(confidence, right, target, fewest=FEWEST_ANSWERED)]
    ]
    if not all(mask.any() for mask in test):
        return report
    identity = from_temperatures([1.0] * len(test), logits.shape[-1])
    for name, maps in (("before", identity), ("after", calibration)):
        rows = [
            _probability_errors(*_pool([logits[run]], maps[run : run + 1], y, [test[run]]))
            for run in range(len(test))
        ]
        for key in rows[0]:
            values = [row[key] for row in rows]
            report[f"{key}_{name}"] = values
            report[f"{key}_{name}_mean"] = float(np.mean(values))
    logs, labels = _pool(means, of_means, y, test[::seeds])
    confidence, right = _confidences(logs, labels)
    report["reliability"] = [asdict(bin_) for bin_ in reliability(confidence, right)]
    report["coverage"] = [asdict(point) for point in coverage_curve(confidence, right)]
    report["classes"] = [
        {"class": str(name), **class_calibration(np.exp(logs[:, number]), labels == number)}
        for number, name in enumerate(class_names)
    ]
    if len(class_names) > MOST_DIAGRAMS:
        for row in report["classes"]:
            del row["reliability"]
    return report


def _pool(
    logits: Sequence[Tensor], calibration: Array, y: Array, masks: Sequence[Array]
) -> tuple[Array, Array]:
    """Return calibrated log-probabilities (n, C) and labels (n,) of the masked nodes."""
    parts = []
    for number, (run_logits, mask) in enumerate(zip(logits, masks, strict=True)):
        chosen = run_logits[torch.from_numpy(np.asarray(mask))].double()[None]
        scaled = calibrated_logits(chosen, calibration[number : number + 1])
        parts.append(scaled[0].log_softmax(dim=-1).numpy())
    return np.concatenate(parts), np.concatenate([y[mask] for mask in masks])


def _probability_errors(logs: Array, labels: Array) -> dict[str, float]:
    """Compute calibration errors, log loss and Brier score from log-probabilities (n, C)."""
    chances = np.exp(logs)
    confidence, right = _confidences(logs, labels)
    by_class = [
        calibration_error(chances[:, number], labels == number)
        for number in range(chances.shape[1])
    ]
    return {
        "ece": calibration_error(confidence, right),
        "ece_equal_mass": calibration_error(confidence, right, equal_mass=True),
        "ece_by_class": float(np.mean(by_class)),
        "nll": log_loss(logs, labels),
        "brier": brier_score(chances, labels),
    }


def _confidences(logs: Array, labels: Array) -> tuple[Array, Array]:
    """Return the probability of the most likely class, and whether it is the label."""
    return np.exp(logs.max(axis=1)), logs.argmax(axis=1) == labels


def class_calibration(probability: Array, is_class: Array) -> dict[str, Any]:
    """Compare the probability of a class with how often nodes are of that class.

    The verdict is "overstated" or "understated" if the mean probability differs from the rate by
    more than :data:`TOLERATED` of the rate and twice its standard error, "uneven" if the error of
    the bins exceeds twice what chance explains and that part of the rate, else "good".
    """
    mean, rate = float(probability.mean()), float(is_class.mean())
    error, chance = calibration_error(probability, is_class), chance_error(probability)
    noise = 2 * math.sqrt(rate * (1 - rate) / is_class.size)
    rarer = TOLERATED * min(rate, 1 - rate)
    verdict = "good"
    if abs(mean - rate) > max(rarer, noise):
        verdict = "overstated" if mean > rate else "understated"
    elif error > max(rarer, 2 * chance):
        verdict = "uneven"
    return {
        "mean_probability": mean,
        "rate": rate,
        "nodes": int(is_class.size),
        "error": error,
        "chance_error": chance,
        "verdict": verdict,
        "reliability": [asdict(bin_) for bin_ in reliability(probability, is_class)],
    }


INTERVALS = (0.8, 0.95)
"""Coverages of the prediction intervals of a regression."""


def interval_report(
    values: Tensor, y: Array, calibration: Sequence[Array], test: Sequence[Array], *, seeds: int = 1
) -> dict[str, Any]:
    """Return the entry ``intervals`` of ``metrics.json``: half widths, and coverage of test nodes.

    Split conformal prediction: the half width is the quantile of the absolute errors of reserved
    nodes (:func:`~hpgmn.base.metrics.conformal_quantile`); None where they are too few.

    Args:
        values: (R, N, 1) predicted targets, the seeds of a split one after the other.
        y: (N,) targets.
        calibration: R masks of the reserved nodes.
        test: R masks.
    """
    reserved = calibration[::seeds]
    widths = []
    for errors, mask in zip(_mean_errors(values, y, seeds), reserved, strict=True):
        halves = [conformal_quantile(errors[mask], coverage) for coverage in INTERVALS]
        widths.append([half if math.isfinite(half) else None for half in halves])
    coverages = interval_coverage(values, y, test, widths, seeds=seeds)
    return {
        "nominal": list(INTERVALS),
        "half_width": widths,
        "coverage": coverages,
        "coverage_mean": np.mean(coverages, axis=0).tolist() if coverages else [],
        "calibration_nodes": [int(mask.sum()) for mask in reserved],
    }


def interval_coverage(
    values: Tensor,
    y: Array,
    masks: Sequence[Array],
    half_widths: Sequence[Sequence[float | None]],
    *,
    seeds: int,
) -> list[list[float]]:
    """Return the shares of masked nodes inside intervals, split by split; not of empty masks."""
    cases = zip(_mean_errors(values, y, seeds), masks[::seeds], half_widths, strict=True)
    return [
        [float((errors[mask] <= (math.inf if half is None else half)).mean()) for half in halves]
        for errors, mask, halves in cases
        if mask.any()
    ]


def _mean_errors(values: Tensor, y: Array, seeds: int) -> list[Array]:
    """Return for each split the absolute errors (N,) of the average over its seeds."""
    starts = range(0, len(values), seeds)
    return [np.abs(mean_logits(values[at : at + seeds])[:, 0].numpy() - y) for at in starts]


def class_report(
    predicted: Array, y: Array, masks: Sequence[Array], class_names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and support of each class, pooled over runs; None for 0 / 0.

    Args:
        predicted: (R, N) predicted classes.
        y: (N,) true labels.
        masks: R masks of the nodes to score.
    """
    return class_scores(confusion_counts(predicted, y, masks, len(class_names)), class_names)


def confusion_counts(predicted: Array, y: Array, masks: Sequence[Array], num_classes: int) -> Array:
    """Return (C, C) masked nodes of all runs by true class (row) and predicted class (column)."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    for row, mask in zip(predicted, masks, strict=True):
        np.add.at(counts, (y[mask], row[mask]), 1)
    return counts


def class_scores(confusion: Array, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and support of each class; None for 0 / 0.

    Args:
        confusion: (C, C) counts by true class (row) and predicted class (column).

    >>> class_scores(np.array([[3, 1], [0, 0]]), ["a", "b"])[0]["recall"]
    0.75
    """
    rows = []
    for index, name in enumerate(class_names):
        hits, support = int(confusion[index, index]), int(confusion[index].sum())
        claimed = int(confusion[:, index].sum())
        rows.append(
            {
                "class": name,
                "precision": hits / claimed if claimed else None,
                "recall": hits / support if support else None,
                "f1": 2 * hits / (claimed + support) if claimed + support else None,
                "support": support,
            }
        )
    return rows


def independent_values(values: Sequence[float], splits: int, seeds: int) -> list[float]:
    """Average dependent scores, listed split by split with the seeds inside.

    The seeds of a split share its nodes, so they are averaged; a single split keeps its seeds.

    >>> independent_values([80.0, 82.0, 90.0, 94.0], splits=2, seeds=2)
    [81.0, 92.0]
    """
    if len(values) != splits * seeds:
        raise ValueError(f"{splits} splits × {seeds} seeds need as many values (got {len(values)})")
    if splits == 1:
        return [float(value) for value in values]
    array = np.asarray(values, dtype=np.float64).reshape(splits, seeds)
    return [float(value) for value in array.mean(axis=1)]


@dataclass(frozen=True)
class Difference:
    """The mean difference between two models on the same runs.

    Attributes:
        low: lower end of its 95 % interval; None for a single value.
        high: upper end.
        count: number of independent values.
        over: what they are over, "splits" or "seeds".
    """

    mean: float
    low: float | None
    high: float | None
    count: int
    over: str


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, splits: int, test_per_train: float
) -> Difference:
    """Return first - second over the same splits, with a 95 % interval.

    The train nodes of random splits overlap, so the interval is corrected after Nadeau and Bengio
    (Inference for the Generalization Error, Machine Learning 52, 2003):
    mean ± t₀.₉₇₅,ₙ₋₁ · √((1/n + test/train) · s²). The seeds of a split are averaged first; of a
    single split they are two unpaired samples, with Welch's interval.

    Args:
        first: scores split by split, seeds inside.
        second: of the other model on the same splits; its number of seeds may differ.
        test_per_train: number of test nodes divided by that of train nodes.

    >>> result = paired_difference([3, 4, 5], [1, 3, 2], splits=3, test_per_train=0.4)
    >>> round(result.mean, 3), round(result.low, 3), round(result.high, 3)
    (2.0, -1.685, 5.685)
    """
    ours, theirs = (
        np.asarray(independent_values(values, splits, len(values) // splits), dtype=np.float64)
        for values in (first, second)
    )
    over = "splits" if splits > 1 else "seeds"
    mean = float(ours.mean() - theirs.mean())
    count = min(ours.size, theirs.size)
    if count < 2:
        return Difference(mean, None, None, count, over)
    if splits > 1:
        variance = float((1 / count + test_per_train) * (ours - theirs).var(ddof=1))
        freedom = count - 1.0
    else:
        shares = [values.var(ddof=1) / values.size for values in (ours, theirs)]
        variance = float(sum(shares))
        spread = shares[0] ** 2 / (ours.size - 1) + shares[1] ** 2 / (theirs.size - 1)
        freedom = variance**2 / spread if spread else count - 1.0
    half = float(special.stdtrit(freedom, 0.975)) * math.sqrt(variance)
    return Difference(mean, mean - half, mean + half, count, over)
