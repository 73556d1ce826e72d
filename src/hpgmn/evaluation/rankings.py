"""How well nodes of one class are found at the top of a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.metrics import average_precision, metric, precision_at
from hpgmn.base.thresholds import count_alarms
from hpgmn.graph import Array

TOP = (10, 50, 100, 500)
"""Numbers of nodes at which the precision is reported."""

FEW_POSITIVES = 50
"""Below this number of positive validation nodes the noise of their score is reported."""

_RECALLS = np.linspace(0.02, 1, 50)
_RESAMPLED = 200


def ranking_report(leads: Sequence[Array], positives: Sequence[Array]) -> dict[str, Any] | None:
    """Return the ranking section of ``metrics.json``: means over splits, on test nodes.

    Args:
        leads: for each split (n,) how far the positive class is ahead.
        positives: for each split (n,) which nodes are of that class.

    Returns:
        None where a split has no positive test node.
    """
    if not all(positive.any() for positive in positives):
        return None
    cases = [_case(lead, positive) for lead, positive in zip(leads, positives, strict=True)]
    base_rate = float(np.mean([positive.mean() for positive in positives]))
    precisions = {
        number: float(np.mean([float(precision_at(*case, number=number)) for case in cases]))
        for number in TOP
        if number <= min(map(len, leads))
    }
    curves = []
    for lead, positive in zip(leads, positives, strict=True):
        _, hits, alarms = count_alarms(lead, positive)
        at = np.searchsorted(hits / positive.sum(), _RECALLS - 1e-12)
        curves.append((hits / alarms)[at])
    return {
        "base_rate": base_rate,
        "average_precision": float(np.mean([float(average_precision(*case)) for case in cases])),
        "precision_at": [
            {"nodes": number, "precision": value, "gain": value / base_rate}
            for number, value in precisions.items()
        ],
        "curve": np.stack([_RECALLS, np.mean(curves, axis=0)], axis=1).round(6).tolist(),
    }


def _case(lead: Array, positive: Array) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits (1, n, 2), labels and valid rows of a ranking, as metrics take them."""
    scores = torch.from_numpy(np.stack([np.zeros(len(lead)), lead], axis=1))[None]
    return scores, torch.from_numpy(positive.astype(np.int64))[None], torch.ones(1, len(lead)) > 0


def validation_noise(
    logits: Tensor, labels: Array, name: str, positive: int
) -> dict[str, Any] | None:
    """Return the standard error of a validation score, by resampling nodes; None if many.

    Args:
        logits: (n, 2) of the validation nodes of one run.
        labels: (n,).
        name: the metric.
    """
    count = int((labels == positive).sum())
    if not 0 < count < FEW_POSITIVES:
        return None
    drawn = np.random.default_rng(0).integers(len(labels), size=(_RESAMPLED, len(labels)))
    drawn = drawn[(labels[drawn] == positive).any(axis=1)]
    score, values = metric(name, positive), []
    for rows in torch.from_numpy(drawn):
        chosen = torch.from_numpy(labels)[rows]
        values.append(float(score(logits[rows][None], chosen[None], (chosen >= 0)[None])))
    return {"positives": count, "standard_error": float(np.std(values, ddof=1))}


def noise_words(noise: dict[str, Any], name: str) -> str:
    """Describe the noise of a validation score.

    >>> noise_words({"positives": 12, "standard_error": 0.0834}, "roc_auc")
    '12 positive validation nodes: the standard error of their roc_auc is about 8.3 points.'
    """
    if noise["positives"] < 3:  # resampling the same few nodes shows no error
        return f"Fewer than 3 positive validation nodes: their {name} says next to nothing."
    return (
        f"{noise['positives']} positive validation nodes: the standard error of their {name} is "
        f"about {100 * noise['standard_error']:.1f} points."
    )
