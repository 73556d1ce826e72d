"""The section of a regression: predicted and true values, errors and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpgmn.base.errors import MISSING, mean_and_deviation, percent
from hpgmn.graph import Array
from hpgmn.report.plots import TRAINING, VALIDATION, drawing, inline_svg, legend
from hpgmn.report.rendering import METRIC_NAMES, ReportData, mapping, number

MOST_DOTS = 1000
"""Test nodes drawn; of more an evenly spread part."""
_SIZE, _MARGINS = (4.4, 3.4), (0.78, 0.15, 0.5, 0.3)


def section(data: ReportData) -> dict[str, Any]:
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
