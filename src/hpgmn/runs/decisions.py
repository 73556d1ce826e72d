"""What ``metrics.json`` records about decisions between classes: rankings, thresholds, sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.calibration import calibrated_probabilities, decision_logits, decision_threshold
from hpgmn.base.metrics import mean_logits
from hpgmn.evaluation.prediction_sets import set_report
from hpgmn.evaluation.rankings import ranking_report, validation_noise
from hpgmn.evaluation.scores import class_report
from hpgmn.graph import Array
from hpgmn.runs.spec import RunSpec
from hpgmn.training.checks import class_number, positive_class


def decision_metrics(
    spec: RunSpec,
    logits: Tensor,
    calibration: Array,
    mean_calibration: Array,
    y: Array,
    val: Sequence[Array],
    test: Sequence[Array],
    reserved: Sequence[Array],
    class_names: Sequence[str],
) -> dict[str, Any]:
    """Return prediction sets, how two classes are ranked and told apart, and validation noise.

    Args:
        logits: (R, N, C).
        calibration: (R, 3, C).
        mean_calibration: (R, 3, C), of the average over the seeds of each replica's split.
        y: (N,) true labels.
        val: R masks.
        test: R masks.
        reserved: R masks of the nodes reserved for prediction sets, or empty.
    """
    if not class_names or not logits.isfinite().all():
        return {}
    starts = range(0, len(logits), spec.seeds)
    means = torch.stack([mean_logits(logits[at : at + spec.seeds]) for at in starts])
    maps, tested = mean_calibration[:: spec.seeds], test[:: spec.seeds]
    has_test = all(mask.any() for mask in tested)
    metrics: dict[str, Any] = {}
    if reserved and has_test:
        chances = calibrated_probabilities(means, maps).numpy()
        metrics["prediction_sets"] = set_report(list(chances), y, reserved[:: spec.seeds], tested)
    if len(class_names) != 2:
        return metrics
    labels = np.stack([np.where(mask, y, -1) for mask in val])
    name = positive_class("average_precision", labels, class_names, spec.positive)
    positive = class_number(name, class_names)
    if has_test:
        ahead = (means[..., positive] - means[..., 1 - positive]).numpy()
        leads = [row[mask] for row, mask in zip(ahead, tested, strict=True)]
        if ranking := ranking_report(leads, [y[mask] == positive for mask in tested]):
            metrics["ranking"] = {"positive": name, **ranking}
    if spec.threshold is not None:
        predicted = decision_logits(means, maps).argmax(dim=-1).numpy()
        parts = {"test": tested} if has_test else {}
        if not spec.refit:  # otherwise these nodes were trained on
            parts["val"] = val[:: spec.seeds]
        metrics["threshold"] = {
            "rule": spec.threshold,
            "positive": name,
            "value": [decision_threshold(row, positive) for row in maps],
            **{
                part: class_report(predicted, y, masks, class_names)[positive]
                for part, masks in parts.items()
            },
        }
    if not spec.refit:
        scored, own = decision_logits(logits[:1], calibration[:1])[0], np.asarray(val[0])
        noise = validation_noise(scored[own], y[own], spec.metric, positive)
        metrics |= {"val_noise": noise} if noise else {}
    return metrics
