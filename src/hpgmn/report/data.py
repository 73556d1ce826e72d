"""The data of a report page.

Fixed letters: R runs (split by split, seeds inside), S splits, E epochs, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpgmn.graph import Array

CURVE_NAMES = ("loss", "val_loss", "val_score")


@dataclass(frozen=True)
class LearningCurves:
    """The learning curves of one training stage, NaN where a run has no value."""

    stage: str
    epochs: Array  # (E,)
    curves: Mapping[str, Array]  # for each of CURVE_NAMES (R, E)


@dataclass(frozen=True)
class ReportData:
    """Everything the page shows about a run.

    Attributes:
        config: the content of ``config.yaml``.
        metrics: the content of ``metrics.json``.
        stages: learning curves, one entry for each stage.
        classes: C names.
        confusion: (C, C) test nodes of all runs by class (row) and prediction (column).
        audit: the content of ``audit.json``; empty if not recorded.
        understanding: the content of ``understanding.json``; empty if not recorded.
        explorer: the content of ``explorer.json``; empty if not recorded.
    """

    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    stages: tuple[LearningCurves, ...]
    classes: tuple[str, ...]
    confusion: Array
    audit: Mapping[str, Any] = field(default_factory=dict)
    understanding: Mapping[str, Any] = field(default_factory=dict)
    explorer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_runs(self) -> int:
        """The number of splits times seeds."""
        return len(self.metrics["splits"]) * int(self.metrics["seeds"])

    def per_run(self, name: str) -> Array:
        """Return a list of ``metrics.json`` as (S, seeds); NaN where nothing was recorded.

        Raises ValueError if the list has another length.
        """
        shape = (len(self.metrics["splits"]), int(self.metrics["seeds"]))
        values = self.metrics.get(name)
        if values is None or values == []:
            return np.full(shape, np.nan)
        if not isinstance(values, list) or len(values) != shape[0] * shape[1]:
            received = f"{len(values)} values" if isinstance(values, list) else repr(values)
            raise ValueError(
                f"'{name}' must hold {shape[0]} splits × {shape[1]} seeds (got {received})"
            )
        return np.array([number(value) for value in values]).reshape(shape)


def number(value: object) -> float:
    """Return a recorded number; NaN if it is missing, infinite or of another type."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return math.nan


def mapping(value: object) -> Mapping[str, Any]:
    """Return a recorded mapping; an empty one if it is missing or of another type."""
    return value if isinstance(value, dict) else {}
