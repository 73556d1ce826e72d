"""Sections about predictions: calibration and ranking of classes, errors of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpgmn.base.errors import MISSING, mean_and_deviation, percent
from hpgmn.graph import Array
from hpgmn.report import model_plots, plots
from hpgmn.report.plots import TRAINING, VALIDATION, drawing, inline_svg, legend
from hpgmn.report.rendering import METRIC_NAMES, ReportData, mapping, number, value_range

MOST_DOTS = 1000
"""Test nodes drawn; of more an evenly spread part."""
_SIZE, _MARGINS = (4.4, 3.4), (0.78, 0.15, 0.5, 0.3)


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


def target_content(data: ReportData) -> dict[str, Any]:
    """Return what the section shows."""
    truth, predicted = data.targets
    intervals = mapping(data.metrics.get("intervals"))
    nominal = intervals.get("nominal") or []
    coverage = intervals.get("coverage_mean") or [None] * len(nominal)
    rows = [[number(width) for width in row] for row in intervals.get("half_width") or []]
    widths = np.array(rows or [[np.nan] * len(nominal)])
    return {
        "figures": [scatter(truth, predicted), errors(truth, predicted)] if truth.size else [],
        "metrics": [
            (METRIC_NAMES[name], mean_and_deviation(row["mean"], row["std"], name))
            for name, row in mapping(data.metrics.get("test_metrics")).items()
        ],
        "intervals": [
            (
                f"{share:.0%}",
                f"{half:.4g}" if np.isfinite(half) else "too few reserved nodes",
                MISSING if inside is None else percent(inside),
            )
            for share, half, inside in zip(nominal, widths.mean(axis=0), coverage, strict=True)
        ],
        "num_nodes": int(truth.size),
    }


def scatter(truth: Array, predicted: Array) -> str:
    """Draw predictions against true values."""
    step = -(-truth.size // MOST_DOTS)
    with drawing(*_SIZE, "scatter", _MARGINS) as figure:
        axes = figure.add_subplot()
        axes.set(xlabel="true value", ylabel="prediction")
        low, high = float(truth.min()), float(truth.max())
        dots = (truth[::step], predicted[::step])
        axes.plot(*dots, "o", markersize=3.5, markeredgewidth=0, color=TRAINING, alpha=0.5)
        axes.plot([low, high], [low, high], "--", color=VALIDATION, lw=1.4, label="equal")
        legend(axes)
        correlation = float(np.corrcoef(truth, predicted)[0, 1]) if truth.size > 1 else 0.0
        alt = (
            f"Predictions of {truth.size:,} test nodes against true values: r = {correlation:.2f}."
        )
        return inline_svg(figure, "scatter", alt)


def errors(truth: Array, predicted: Array) -> str:
    """Draw the distribution of errors."""
    difference = predicted - truth
    with drawing(*_SIZE, "errors", _MARGINS) as figure:
        axes = figure.add_subplot()
        axes.set(xlabel="prediction minus true value", ylabel="test nodes")
        most = float(np.abs(difference).max()) or 1.0
        axes.hist(
            difference, np.linspace(-most, most, 42).tolist(), color=TRAINING, ec="white", lw=0.6
        )
        axes.axvline(
            float(np.median(difference)), color=VALIDATION, ls="--", lw=1.4, label="median"
        )
        legend(axes)
        low, middle, high = np.quantile(difference, (0.1, 0.5, 0.9)).tolist()
        alt = f"Errors: median {middle:.3g}, 80 % of them from {low:.3g} to {high:.3g}."
        return inline_svg(figure, "errors", alt)
