"""Scores over runs and over classes; the only place that looks at test labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.graph import Array
from hpgmn.metrics import metric as metric_of


@dataclass(frozen=True)
class Score:
    """A score over runs: mean, sample standard deviation, and each run's value."""

    mean: float
    std: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Score:
        """The score of some runs; a single run has no spread, so its std is 0.

        >>> Score.of([0.5, 0.75, 1.0])
        Score(mean=0.75, std=0.25, values=(0.5, 0.75, 1.0))
        """
        array = np.asarray(values, dtype=np.float64)
        std = float(array.std(ddof=1)) if array.size > 1 else 0.0
        return cls(float(array.mean()), std, tuple(float(value) for value in array))


def scores(logits: Tensor, y: Array, masks: Sequence[Array], metric: str) -> list[float]:
    """The score of each run on its own nodes.

    Args:
        logits: (R, N, C).
        y: (N,) true labels.
        masks: R masks of the nodes to score.
        metric: the metric's name.
    """
    labels = torch.from_numpy(y).clamp(min=0)
    function = metric_of(metric)
    found = []
    for own, mask in zip(logits, masks, strict=True):
        valid = torch.from_numpy(np.asarray(mask))
        found.append(float(function(own[None], labels[None], valid[None])))
    return found


def class_report(
    predicted: Array, y: Array, masks: Sequence[Array], class_names: Sequence[str]
) -> list[dict[str, Any]]:
    """Precision, recall, F1 and support of each class, the nodes of all runs together.

    Args:
        predicted: (R, N) predicted classes.
        y: (N,) true labels.
        masks: R masks of the nodes to score.
        class_names: C names.

    Returns:
        One mapping per class; a share of nothing (0 of 0) is None.
    """
    guess = np.concatenate([own[mask] for own, mask in zip(predicted, masks, strict=True)])
    truth = np.concatenate([y[mask] for mask in masks])
    rows = []
    for number, name in enumerate(class_names):
        hits = int(((guess == number) & (truth == number)).sum())
        claimed, support = int((guess == number).sum()), int((truth == number).sum())
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
