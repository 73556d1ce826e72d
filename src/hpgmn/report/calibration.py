"""How far the probabilities can be believed: the section about calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpgmn.base.text import MISSING, percent
from hpgmn.report.page import panel, table, text
from hpgmn.report.plots import (
    FAINT,
    INK,
    SCORE,
    TRAINING,
    VALIDATION,
    drawing,
    inline_svg,
    legend,
    percent_axis,
)
from hpgmn.report.reading import Run, mapping, number
from hpgmn.report.words import value_range

_ERRORS = {
    "ece": "Calibration error, bins of equal width",
    "ece_equal_mass": "Calibration error, bins of equal size",
    "nll": "Log loss",
    "brier": "Brier score",
}


def calibration_sections(run: Run) -> list[tuple[str, str, str]]:
    """The section, or none where the run folder says nothing of calibration."""
    content = mapping(run.metrics.get("calibration"))
    if not content:
        return []
    parts = [_temperatures(run, content)]
    bins = [own for own in content.get("reliability") or [] if own["count"]]
    coverage = content.get("coverage") or []
    if bins:
        parts += [_errors(content), _reliability(run, bins)]
    else:
        parts.append("<p>Without labelled test nodes there is nothing to compare with.</p>")
    parts.append(_coverage(coverage, content.get("thresholds") or []))
    return [("calibration", "Calibration", "\n".join(parts))]


def _temperatures(run: Run, content: Mapping[str, Any]) -> str:
    if run.config.get("calibrate") is False:
        said = "No temperature was fitted (--no-calibration): probabilities are as the model gave."
    else:
        values = np.array([number(value) for value in content.get("temperature") or []])
        said = (
            f"Logits are divided by a temperature, {value_range(values, '{:.2f}')}, fitted to the "
            "validation nodes of each run; above 1 it makes a model less sure of itself."
        )
    after, before = (number(content.get(f"ece_{when}_mean")) for when in ("after", "before"))
    if not np.isnan(after):
        said += (
            f" On test nodes confidence and accuracy then differ by "
            f"<strong>{100 * after:.1f} points</strong> on average (calibration error), "
            f"{100 * before:.1f} without it."
        )
    return f"<p>{said}</p>"


def _errors(content: Mapping[str, Any]) -> str:
    rows = [
        (name, *(_small(number(content.get(f"{key}_{when}_mean"))) for when in ("before", "after")))
        for key, name in _ERRORS.items()
    ]
    head = ("Measure", "Without temperature", "With temperature")
    return table("Errors of the probabilities on test nodes, mean of the runs", head, rows)


def _small(value: float) -> str:
    return MISSING if np.isnan(value) else f"{value:.3f}"


def _reliability(run: Run, bins: Sequence[Mapping[str, Any]]) -> str:
    pooled = f", all {run.num_runs} runs together" if run.num_runs > 1 else ""
    rows = [
        (
            f"{own['low']:.2f} to {own['high']:.2f}",
            f"{own['count']:,}",
            percent(number(own["confidence"])),
            percent(number(own["accuracy"])),
        )
        for own in bins
    ]
    head = ("Confidence", "Test nodes", "Mean confidence", "Accuracy")
    numbers = table(f"Confidence and accuracy of test nodes{pooled}", head, rows)
    return (
        "<h3>Is it right as often as it says?</h3>\n"
        f"{panel(reliability_diagram(bins, 'reliability'))}\n"
        '<p class="quiet">Confidence is the probability of the predicted class. Bars below the '
        "dashed line: surer than right; above it: less sure than right.</p>\n"
        f"<details><summary>The diagram as a table</summary>{numbers}</details>"
    )


def _coverage(
    coverage: Sequence[Mapping[str, Any]], thresholds: Sequence[Mapping[str, Any]]
) -> str:
    parts = ["<h3>When to say “don't know”</h3>"]
    if coverage:
        rows = [
            (percent(own["coverage"]), f"{own['threshold']:.3f}", percent(own["accuracy"]))
            for own in coverage
        ]
        head = ("Test nodes answered", "From confidence", "Accuracy of the answers")
        numbers = table("Accuracy when only the surest test nodes are answered", head, rows)
        parts += [
            panel(coverage_curve(coverage, thresholds, "coverage")),
            f"<details><summary>The curve as a table</summary>{numbers}</details>",
        ]
    if thresholds:
        limits = [
            (
                f"{own['wanted_accuracy']:.0%}",
                _small(number(own.get("threshold"))),
                percent(number(own.get("coverage"))),
                percent(number(own.get("accuracy"))),
            )
            for own in thresholds
        ]
        wanted = ("Wanted accuracy", "Answer from confidence", "Nodes answered", "Their accuracy")
        parts += [
            table("Thresholds found on validation nodes", wanted, limits),
            '<p class="quiet"><code>hpgmn predict</code> leaves answers below '
            f"<code>--min-confidence</code> empty. {text(MISSING)}: no threshold has that "
            "accuracy.</p>",
        ]
    return "\n".join(parts) if len(parts) > 1 else ""


def reliability_diagram(bins: Sequence[Mapping[str, Any]], name: str) -> str:
    """Accuracy by bin of confidence, above the share of nodes in each bin.

    Args:
        bins: those that have nodes.
        name: what the ids inside the picture begin with; unique on the page.
    """
    low, high, count, confidence, accuracy = (
        np.array([float(own[key]) for own in bins])
        for key in ("low", "high", "count", "confidence", "accuracy")
    )
    with drawing(4.4, 3.6, name, (0.75, 0.12, 0.5, 0.3)) as figure:
        above, below = figure.subplots(
            2, 1, sharex=True, height_ratios=[3, 1], gridspec_kw={"hspace": 0.12}
        )
        above.bar(low, accuracy, high - low, align="edge", color=TRAINING, ec="white", lw=0.6)
        above.plot(
            [0, 1], [0, 1], color=VALIDATION, linestyle="--", lw=1.4, label="as sure as right"
        )
        above.plot(confidence, accuracy, "o", ms=3.5, color=INK, label="mean confidence of a bar")
        above.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        percent_axis(above)
        legend(above)
        below.bar(
            low, count / count.sum(), high - low, align="edge", color=FAINT, ec="#8c959f", lw=0.6
        )
        below.set(xlabel="confidence", ylabel="nodes")
        percent_axis(below)
        gap = np.abs(confidence - accuracy)
        worst = int(gap.argmax())
        side = "less" if accuracy[worst] < confidence[worst] else "more"
        sentence = (
            f"Reliability diagram of {count.sum():,.0f} test nodes in {len(bins)} bins of "
            f"confidence. The largest gap is between {low[worst]:.2f} and {high[worst]:.2f}: "
            f"{accuracy[worst]:.1%} right, {100 * gap[worst]:.1f} points {side} than the mean "
            "confidence."
        )
        return inline_svg(figure, name, sentence)


def coverage_curve(
    coverage: Sequence[Mapping[str, Any]], thresholds: Sequence[Mapping[str, Any]], name: str
) -> str:
    """Accuracy against the share of test nodes answered, with the thresholds of validation nodes.

    Args:
        coverage: points of the curve.
        thresholds: for wanted accuracies; those without a threshold are left out.
        name: what the ids inside the picture begin with; unique on the page.
    """
    shares = np.array([float(own["coverage"]) for own in coverage])
    accuracy = np.array([float(own["accuracy"]) for own in coverage])
    order = np.argsort(shares, kind="stable")
    found = [own for own in thresholds if own.get("threshold") is not None]
    with drawing(4.4, 2.9, name, (0.8, 0.12, 0.5, 0.3)) as figure:
        axes = figure.add_subplot()
        axes.plot(shares[order], accuracy[order], color=SCORE, lw=1.6, marker=".", label="test")
        if found:
            places = [float(own["coverage"]) for own in found]
            heights = [float(own["accuracy"]) for own in found]
            axes.plot(places, heights, "D", ms=5, color=VALIDATION, label="validation, threshold")
            for own, place, height in zip(found, places, heights, strict=True):
                axes.annotate(
                    f"{own['threshold']:.2f}",
                    (place, height),
                    (4, 3),
                    textcoords="offset points",
                    size=8.5,
                    bbox={"fc": "white", "ec": "none", "pad": 0.6, "alpha": 0.8},
                )
        axes.set(xlabel="share of nodes answered", ylabel="accuracy of the answers", xlim=(0, 1.12))
        percent_axis(axes)
        axes.set_xticks(np.linspace(0, 1, 6))
        percent_axis(axes, "x")
        legend(axes)
        sentence = (
            f"Accuracy by share of test nodes answered, the surest first: {accuracy[order][0]:.1%} "
            f"with {shares[order][0]:.0%} answered, {accuracy[order][-1]:.1%} with "
            f"{shares[order][-1]:.0%} answered."
        )
        return inline_svg(figure, name, sentence)
