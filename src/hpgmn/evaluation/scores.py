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

from hpgmn.base.metrics import (
    RANKING_METRICS,
    brier_score,
    calibration_error,
    conformal_quantile,
    coverage_curve,
    log_loss,
    mean_logits,
    reliability,
    threshold_for_accuracy,
)
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
) -> list[float]:
    """Score class probabilities averaged over seeds; return one score per group, split by split.

    Args:
        logits: (R, N, C), split by split with the seeds inside.
        y: (N,) true labels.
        masks: R masks, equal for the seeds of a split.
        seeds: number of seeds of each split.
        size: consecutive seeds of a split averaged in a group; an incomplete group is dropped.
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
    if metric in RANKING_METRICS and stacked.shape[-1] > 2:
        stacked = stacked.log()  # logits again: of two classes any rising function ranks alike
    return scores(stacked, y, [masks[start] for start in first], metric, positive)


TARGET_ACCURACIES = (0.8, 0.9, 0.95, 0.99)
"""A confidence threshold is fitted on the validation nodes for each of these."""

FEWEST_ANSWERED = 20
"""Fewest validation nodes above a threshold."""


def calibration_report(
    logits: Tensor,
    temperatures: Sequence[float],
    y: Array,
    val: Sequence[Array],
    test: Sequence[Array],
    *,
    seeds: int = 1,
    mean_temperatures: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return the calibration section of ``metrics.json``, before and after temperature scaling.

    Errors are of each run; reliability bins, coverage and thresholds are of the average over the
    seeds of a split, pooled over splits. Non-finite logits or missing test nodes leave parts out.

    Args:
        logits: (R, N, C), the seeds of a split one after the other.
        temperatures: R.
        y: (N,) true labels.
        val: R masks; thresholds are fitted on these nodes.
        test: R masks; everything else is measured on these nodes.
        seeds: number of seeds of each split.
        mean_temperatures: R, of the average over the seeds of each run's split; None for
            ``temperatures``.
    """
    report: dict[str, Any] = {"temperature": list(temperatures)}
    if not logits.isfinite().all():  # JSON has no NaN
        return report
    means, scales = _means(logits, mean_temperatures or temperatures, seeds)
    confidence, right = _confidences(means, scales, y, val[::seeds])
    report["thresholds"] = [
        {"wanted_accuracy": target, **(asdict(threshold) if threshold else {"threshold": None})}
        for target in TARGET_ACCURACIES
        for threshold in [threshold_for_accuracy(confidence, right, target, fewest=FEWEST_ANSWERED)]
    ]
    if not all(mask.any() for mask in test):
        return report
    for name, scale in (("before", [1.0] * len(test)), ("after", list(temperatures))):
        rows = [
            _probability_errors(run_logits[torch.from_numpy(np.asarray(mask))], divisor, y[mask])
            for run_logits, divisor, mask in zip(logits, scale, test, strict=True)
        ]
        for key in rows[0]:
            values = [row[key] for row in rows]
            report[f"{key}_{name}"] = values
            report[f"{key}_{name}_mean"] = float(np.mean(values))
    confidence, right = _confidences(means, scales, y, test[::seeds])
    report["reliability"] = [asdict(bin_) for bin_ in reliability(confidence, right)]
    report["coverage"] = [asdict(point) for point in coverage_curve(confidence, right)]
    return report


def _means(
    logits: Tensor, temperatures: Sequence[float], seeds: int
) -> tuple[Sequence[Tensor], Sequence[float]]:
    """Average the seeds of each split, as logits; return them with their temperatures."""
    if seeds == 1:
        return list(logits), temperatures
    starts = range(0, logits.shape[0], seeds)
    return [mean_logits(logits[at : at + seeds]) for at in starts], temperatures[::seeds]


def _probability_errors(logits: Tensor, temperature: float, labels: Array) -> dict[str, float]:
    """Compute calibration error, log loss and Brier score of some nodes."""
    log_chances = (logits.double() / temperature).log_softmax(dim=-1).numpy()
    chances = np.exp(log_chances)
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == labels
    return {
        "ece": calibration_error(confidence, right),
        "ece_equal_mass": calibration_error(confidence, right, equal_mass=True),
        "nll": log_loss(log_chances, labels),
        "brier": brier_score(chances, labels),
    }


def _confidences(
    logits: Sequence[Tensor], temperatures: Sequence[float], y: Array, masks: Sequence[Array]
) -> tuple[Array, Array]:
    """Return confidence and correctness of the masked nodes, pooled over runs."""
    confidence, right = [], []
    for run_logits, temperature, mask in zip(logits, temperatures, masks, strict=True):
        chosen = run_logits[torch.from_numpy(np.asarray(mask))].double()
        confidence.append((chosen / temperature).softmax(dim=-1).amax(dim=-1).numpy())
        right.append(chosen.argmax(dim=-1).numpy() == y[mask])
    return np.concatenate(confidence), np.concatenate(right)


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
    widths, coverages, counts = [], [], []
    for start in range(0, len(values), seeds):
        mean = mean_logits(values[start : start + seeds])[:, 0].numpy()
        errors = np.abs(mean - y)
        reserved, tested = calibration[start], test[start]
        halves = [conformal_quantile(errors[reserved], coverage) for coverage in INTERVALS]
        widths.append([half if math.isfinite(half) else None for half in halves])
        counts.append(int(reserved.sum()))
        if tested.any():
            coverages.append([float((errors[tested] <= half).mean()) for half in halves])
    return {
        "nominal": list(INTERVALS),
        "half_width": widths,
        "coverage": coverages,
        "coverage_mean": np.mean(coverages, axis=0).tolist() if coverages else [],
        "calibration_nodes": counts,
    }


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
