"""Sections of the report about probabilities: their calibration, and nodes ranked by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpgmn.report import model_plots, plots
from hpgmn.report.rendering import ReportData, mapping, number, value_range


def ranking_content(data: ReportData, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the section about the ranking of test nodes shows."""
    threshold = mapping(data.metrics.get("threshold"))
    figure = plots.precision_recall(recorded, threshold.get("test"), "precision-recall")
    return {"content": recorded, "threshold": threshold, "figure": figure}


def calibration_content(data: ReportData, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the section about calibration shows."""
    lists = {key: recorded.get(key) or [] for key in ("coverage", "thresholds", "reliability")}
    coverage, thresholds, reliability = lists.values()
    bins = [row for row in reliability if row["count"]]
    temperatures = np.array([number(value) for value in recorded.get("temperature") or []])
    is_fitted = data.config.get("calibrate") is not False
    classes = recorded.get("classes") or []
    return {
        "classes": classes,
        "diagrams": [
            model_plots.reliability_diagram(
                [part for part in row["reliability"] if part["count"]],
                f"reliability-{index}",
                row["class"],
            )
            for index, row in enumerate(_drawn(classes))
            if row.get("reliability")
        ],
        "content": {**recorded, **lists},
        "num_runs": data.num_runs,
        "temperature": value_range(temperatures, "{:.2f}") if is_fitted else None,
        "has_error": not math.isnan(number(recorded.get("ece_after_mean"))),
        "bins": bins,
        "reliability": bins and model_plots.reliability_diagram(bins, "reliability"),
        "coverage": coverage and model_plots.coverage_curve(coverage, thresholds, "coverage"),
    }


def _drawn(classes: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return of two classes the rarer, which the other one mirrors, else the worst two or four."""
    if len(classes) < 3:
        return sorted(classes, key=lambda row: row["rate"])[:1]
    worst = sorted(classes, key=lambda row: -row["error"])
    return worst[: min(4, len(worst) - len(worst) % 2)]
