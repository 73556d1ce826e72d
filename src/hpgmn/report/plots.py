"""The figures of the report: arrays in, SVG text for inlining out.

Every figure has ``role="img"`` and a text alternative. Output is deterministic: no dates, no random
ids, independent of the user's matplotlib settings. Matplotlib is imported with the first figure.
The argument ``prefix`` starts the ids inside a figure and must be unique on the page.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree  # parses matplotlib's own output  # nosec B405

import numpy as np

from hpgmn.graph import Array
from hpgmn.report.data import LearningCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue, vermilion and green of Okabe and Ito: distinguishable with every kind of colour blindness.
TRAINING, VALIDATION, SCORE = "#0072b2", "#d55e00", "#00795a"
INK, QUIET, FAINT = "#24292f", "#6e7781", "#d8dee4"
# The full palette of eight, with a darker yellow for white backgrounds, and grey.
COLOURS = (
    *(TRAINING, VALIDATION, "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#a89800", INK),
    "#8c959f",
)

MOST_POINTS = 150  # of one curve
MOST_CELLS_WITH_TEXT = 12  # classes beyond which a matrix shows colours only
MOST_CLASSES = 30  # classes beyond which the smallest are merged into one
MOST_NUMBERED = 30  # patterns beyond which the map numbers the most used only
MOST_COLOURS = 8  # classes beyond which the map shows the rarest in one colour
LONGEST_LABEL = 18
_LETTER = 0.078  # average width of a letter, in inches
_CURVE_SIZE, _CURVE_MARGINS = (4.4, 2.9), (0.78, 0.15, 0.5, 0.3)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", ".")

_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.parse_math": False,  # a class may be called $x$
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",  # text stays text: small, and set in the browser's font
}


def printable(value: object) -> str:
    r"""Return a value as one line of text that any HTML or SVG file may contain.

    >>> printable("a\tb\x00")
    'a b�'
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if c.isspace() else "\ufffd" if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    is_noncharacter = ord(character) & 0xFFFE == 0xFFFE
    return is_noncharacter or unicodedata.category(character) in {"Cc", "Cs"}


def short(value: object, longest: int = LONGEST_LABEL) -> str:
    """Truncate a value to the length of a label."""
    text = printable(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


# Learning curves and scores


def loss_curves(stage: LearningCurves, prefix: str) -> str | None:
    """Draw training and validation loss, or return None if no loss was recorded."""
    kinds = {"loss": ("training", TRAINING, "-"), "val_loss": ("validation", VALIDATION, "--")}
    shown = {key: kind for key, kind in kinds.items() if np.isfinite(stage.curves[key]).any()}
    if not shown:
        return None
    with drawing(*_CURVE_SIZE, prefix, _CURVE_MARGINS) as figure:
        axes = _epoch_axes(figure, "loss")
        parts = []
        for key, (label, colour, dash) in shown.items():
            _draw_curve(axes, stage.epochs, stage.curves[key], colour, dash, label)
            parts.append(f"{label} loss {_first_and_last(stage, key, '{:.3g}')}")
        legend(axes)
        alt = f"Loss by epoch, stage {stage.stage}{_averaged(stage)}: {'; '.join(parts)}."
        return inline_svg(figure, prefix, alt)


def score_curve(
    stage: LearningCurves, metric: str, best_epochs: Array | None, prefix: str
) -> str | None:
    """Draw the validation score, or return None if none was recorded.

    Args:
        best_epochs: the selected epoch of each run, marked along the lower edge.
    """
    scores = stage.curves["val_score"]
    if not np.isfinite(scores).any():
        return None
    with drawing(*_CURVE_SIZE, prefix, _CURVE_MARGINS) as figure:
        axes = _epoch_axes(figure, f"validation {metric}")
        percent_axis(axes)
        _draw_curve(axes, stage.epochs, scores, SCORE, "-", "validation")
        alt = (
            f"Validation {metric} by epoch, stage {stage.stage}{_averaged(stage)}: "
            f"{_first_and_last(stage, 'val_score', '{:.1%}')}."
        )
        marked = np.empty(0) if best_epochs is None else best_epochs
        best = np.sort(marked[np.isfinite(marked)])
        if best.size:
            axes.plot(
                best,
                np.full(best.size, 0.035),
                linestyle="none",
                marker="|",
                markersize=9,
                markeredgewidth=1.2,
                color=INK,
                transform=axes.get_xaxis_transform(),
                label="best epoch" if best.size == 1 else "best epoch of each run",
            )
            legend(axes)
            alt += f" Best epoch: {best[0]:g}" + (
                f" to {best[-1]:g}, median {np.median(best):g}." if best.size > 1 else "."
            )
        return inline_svg(figure, prefix, alt)


def run_scores(scores: Array, splits: Sequence[object], metric: str, prefix: str) -> str:
    """Draw the (S, seeds) test scores as dots by split, with the mean of each split and of all."""
    labels = [short(split, 6) for split in splits]
    width = min(max(4.6, 1.4 + 0.5 * len(labels)), 8.4)
    with drawing(width, 2.9, prefix, (0.85, 0.15, 0.5, 0.3)) as figure:
        axes = figure.add_subplot()
        axes.set(xlabel="split", ylabel=f"test {metric}")
        percent_axis(axes)
        num_seeds = scores.shape[1]
        # Seeds are placed side by side, so that equal scores do not overlap.
        offsets = (np.arange(num_seeds) - (num_seeds - 1) / 2) * min(0.12, 0.6 / num_seeds)
        axes.plot(
            (np.arange(len(labels))[:, None] + offsets).ravel(),
            scores.ravel(),
            linestyle="none",
            marker="o",
            markersize=4.5,
            markeredgewidth=0,
            color=TRAINING,
            alpha=0.75,
            label="a run",
        )
        finite = scores[np.isfinite(scores)]
        alt = f"Test {metric} of each run by split: no score was recorded."
        if finite.size:
            mean = finite.mean()
            if num_seeds > 1:
                rows = np.arange(len(labels))
                means = _mean(scores.T)
                axes.hlines(means, rows - 0.36, rows + 0.36, colors=INK, lw=1.2, label="split mean")
            alt = f"Test {metric} of the only run: {mean:.1%}."
            if finite.size > 1:
                axes.axhline(mean, color=VALIDATION, linestyle="--", lw=1.2, label="mean of all")
                legend(axes)
                alt = (
                    f"Test {metric} of {finite.size} runs by split: between {finite.min():.1%} and "
                    f"{finite.max():.1%}, mean {mean:.1%}."
                )
        step = -(-len(labels) // 30)
        axes.set_xticks(np.arange(len(labels))[::step], labels[::step])
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.tick_params(axis="x", length=0, labelsize=7.5 if len(labels) > 15 else 9)
        return inline_svg(figure, prefix, alt)


def curve_points(epochs: Array, values: Array) -> tuple[Array, Array, Array, Array]:
    """Reduce the curves of all runs to mean, minimum and maximum at no more than 150 epochs.

    Longer curves are averaged over intervals, with the minimum and maximum of each interval, so
    that spikes stay visible. Epochs without any value are dropped.

    Args:
        epochs: (E,).
        values: (R, E), NaN where a run has stopped.

    Returns:
        Epoch, mean, minimum and maximum, arrays of equal length.
    """
    mean = _mean(values)
    has_value = np.isfinite(mean)
    epochs, values, mean = epochs[has_value], values[:, has_value], mean[has_value]
    low = np.where(np.isfinite(values), values, np.inf).min(axis=0)
    high = np.where(np.isfinite(values), values, -np.inf).max(axis=0)
    if len(epochs) <= MOST_POINTS:
        return epochs, mean, low, high
    # The first and the last epoch are not averaged: their values are read off most often.
    starts = np.linspace(1, len(epochs) - 1, MOST_POINTS - 1).astype(int)
    starts = np.unique(np.concatenate([[0], starts]))
    sizes = np.diff(np.append(starts, len(epochs)))
    return (
        np.add.reduceat(epochs.astype(float), starts) / sizes,
        np.add.reduceat(mean, starts) / sizes,
        np.minimum.reduceat(low, starts),
        np.maximum.reduceat(high, starts),
    )


def _mean(values: Array) -> Array:
    """Average the finite values over the first axis; NaN where there is none."""
    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    total = np.where(finite, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _draw_curve(
    axes: Axes, epochs: Array, values: Array, colour: str, dash: str, label: str
) -> None:
    x, mean, low, high = curve_points(epochs, values)
    if len(values) > 1:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    marker = "o" if len(x) == 1 else ""
    axes.plot(x, mean, color=colour, linestyle=dash, marker=marker, lw=1.6, label=label)


def _first_and_last(stage: LearningCurves, key: str, form: str) -> str:
    x, mean, _, _ = curve_points(stage.epochs, stage.curves[key])
    first, last = form.format(mean[0]), form.format(mean[-1])
    return f"{first} at epoch {x[0]:g}, {last} at epoch {x[-1]:g}"


def _averaged(stage: LearningCurves) -> str:
    count = len(stage.curves["loss"])
    return f", mean and range of {count} runs" if count > 1 else ""


# Confusion and calibration


def confusion_matrix(counts: Array, classes: Sequence[str], prefix: str) -> str:
    """Draw the (C, C) counts of class and prediction, coloured by their share of the row.

    Cells show share and count up to 12 classes; beyond 30 the smallest classes are merged.
    """
    alt = _confusion_alt(counts, classes)
    counts, labels = _condensed(counts, [short(label) for label in classes])
    size = len(labels)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    has_text = size <= MOST_CELLS_WITH_TEXT
    cell = 0.58 if has_text else 0.23
    longest = max((len(label) for label in labels), default=0)
    is_slanted = longest * 0.08 > cell
    left, below = 0.5 + 0.075 * longest, 0.55 + (0.06 * longest if is_slanted else 0.0)
    right = 0.1 if has_text else 0.95
    width, height = left + cell * max(size, 2) + right, below + cell * max(size, 2) + 0.1
    with drawing(width, height, prefix, (left, right, below, 0.1)) as figure:
        axes = figure.add_subplot()
        mesh = axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", lw=0.8)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9 if has_text else 7)
        centres = np.arange(size) + 0.5
        axes.set_yticks(centres, labels)
        axes.set_xticks(centres, labels)
        if is_slanted:
            _slant(axes, "right")
        axes.set(xlabel="predicted class", ylabel="true class")
        if has_text:
            _write_cells(axes, counts, shares)
        else:
            ruler = figure.add_axes(
                (1 - 0.8 / width, below / height + 0.1, 0.13 / width, min(0.6, 2 / height))
            )
            bar = figure.colorbar(mesh, cax=ruler)
            assert bar.solids is not None
            bar.solids.set(rasterized=False, edgecolor="face")  # shapes instead of an image
            bar.set_label("share of the true class")
            bar.outline.set_visible(False)
            bar.ax.grid(False)
            percent_axis(bar.ax)
        return inline_svg(figure, prefix, alt)


def _write_cells(axes: Axes, counts: Array, shares: Array) -> None:
    for row, column in np.ndindex(*counts.shape):
        x, y = column + 0.5, row + 0.5
        if not counts[row, column]:
            axes.text(x, y, "0", ha="center", va="center", color=QUIET, size=8)
            continue
        ink = "white" if shares[row, column] > 0.5 else INK
        share, count = f"{shares[row, column]:.0%}", f"{counts[row, column]:,}"
        axes.text(x, y - 0.02, share, ha="center", va="bottom", color=ink, size=9.5)
        axes.text(x, y + 0.08, count, ha="center", va="top", color=ink, size=7)


def _confusion_alt(counts: Array, classes: Sequence[str]) -> str:
    total = counts.sum()
    if not total:
        return "Confusion matrix: no labelled test node."
    alt = f"Confusion matrix of {len(classes)} classes: {np.trace(counts) / total:.1%} correct."
    wrong = counts - np.diag(np.diag(counts))
    if not wrong.any():
        return alt
    row, column = divmod(int(wrong.argmax()), len(classes))
    share = wrong[row, column] / counts[row].sum()
    return (
        f"{alt} Most frequent error: {classes[row]} predicted as {classes[column]}, "
        f"{share:.1%} of that class."
    )


def _condensed(counts: Array, labels: list[str]) -> tuple[Array, list[str]]:
    """Merge the smallest classes of a matrix with more than 30."""
    if len(labels) <= MOST_CLASSES:
        return counts, labels
    by_size = np.argsort(-counts.sum(axis=1), kind="stable")
    largest = np.sort(by_size[: MOST_CLASSES - 1])
    group = np.full(len(labels), len(largest))
    group[largest] = np.arange(len(largest))
    smaller = np.zeros((len(largest) + 1, len(largest) + 1), counts.dtype)
    np.add.at(smaller, (group[:, None], group[None, :]), counts)
    rest = f"{len(labels) - len(largest)} other classes"
    return smaller, [*(labels[index] for index in largest), rest]


def reliability_diagram(bins: Sequence[Mapping[str, Any]], prefix: str) -> str:
    """Draw accuracy by bin of confidence, above the share of nodes in each non-empty bin."""
    low, high, count, confidence, accuracy = (
        np.array([float(row[key]) for row in bins])
        for key in ("low", "high", "count", "confidence", "accuracy")
    )
    with drawing(4.4, 3.6, prefix, (0.75, 0.12, 0.5, 0.3)) as figure:
        above, below = figure.subplots(
            2, 1, sharex=True, height_ratios=[3, 1], gridspec_kw={"hspace": 0.12}
        )
        bars = {"align": "edge", "lw": 0.6}
        above.bar(low, accuracy, high - low, color=TRAINING, ec="white", **bars)
        above.plot([0, 1], [0, 1], color=VALIDATION, linestyle="--", lw=1.4, label="calibrated")
        above.plot(confidence, accuracy, "o", ms=3.5, color=INK, label="mean confidence of a bin")
        above.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        percent_axis(above)
        legend(above)
        below.bar(low, count / count.sum(), high - low, color=FAINT, ec="#8c959f", **bars)
        below.set(xlabel="confidence", ylabel="nodes")
        percent_axis(below)
        gap = np.abs(confidence - accuracy)
        worst = int(gap.argmax())
        side = "below" if accuracy[worst] < confidence[worst] else "above"
        alt = (
            f"Reliability diagram of {count.sum():,.0f} test nodes in {len(bins)} bins of "
            f"confidence. The largest gap is between {low[worst]:.2f} and {high[worst]:.2f}: "
            f"accuracy {accuracy[worst]:.1%}, {100 * gap[worst]:.1f} points {side} the mean "
            "confidence."
        )
        return inline_svg(figure, prefix, alt)


def coverage_curve(
    coverage: Sequence[Mapping[str, Any]], thresholds: Sequence[Mapping[str, Any]], prefix: str
) -> str:
    """Draw accuracy against the share of test nodes answered, with the validation thresholds."""
    shares = np.array([float(row["coverage"]) for row in coverage])
    accuracy = np.array([float(row["accuracy"]) for row in coverage])
    order = np.argsort(shares, kind="stable")
    shares, accuracy = shares[order], accuracy[order]
    marked = [row for row in thresholds if row.get("threshold") is not None]
    with drawing(4.4, 2.9, prefix, (0.8, 0.12, 0.5, 0.3)) as figure:
        axes = figure.add_subplot()
        axes.plot(shares, accuracy, color=SCORE, lw=1.6, marker=".", label="test")
        if marked:
            x = [float(row["coverage"]) for row in marked]
            y = [float(row["accuracy"]) for row in marked]
            axes.plot(x, y, "D", ms=5, color=VALIDATION, label="validation, threshold")
            for row, point in zip(marked, zip(x, y, strict=True), strict=True):
                axes.annotate(
                    f"{row['threshold']:.2f}",
                    point,
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
        alt = (
            f"Accuracy by share of test nodes answered, most confident first: {accuracy[0]:.1%} "
            f"with {shares[0]:.0%} answered, {accuracy[-1]:.1%} with {shares[-1]:.0%} answered."
        )
        return inline_svg(figure, prefix, alt)


# Statistics and memory


def share_bars(shares: Mapping[str, float], prefix: str) -> str:
    """Draw the mean size of each statistic's contribution, in the order of the mapping."""
    names, values = list(shares), np.array(list(shares.values()))
    left = 0.15 + _LETTER * max(len(name) for name in names)
    with drawing(4.4, 0.7 + 0.3 * len(names), prefix, (left, 0.12, 0.55, 0.1)) as figure:
        axes = figure.add_subplot()
        bars = axes.barh(np.arange(len(names)), values, color=_colours(len(names)), height=0.7)
        axes.bar_label(bars, labels=[f"{value:.2f}" for value in values], padding=3)
        _name_bars(axes, names)
        axes.set_xlabel("mean size, all classes")
        axes.margins(x=0.14)
        listing = ", ".join(f"{name} {value:.2f}" for name, value in shares.items())
        return inline_svg(figure, prefix, f"Mean size of each statistic's share: {listing}.")


def class_bars(names: Sequence[str], groups: Sequence[Mapping[str, Any]], prefix: str) -> str:
    """Draw stacked bars of the statistics' mean contributions for each predicted class."""
    labels = [f"{short(group['name'])} ({group['nodes']})" for group in groups]
    start, rows = np.zeros(len(groups)), np.arange(len(groups))
    left = 0.15 + _LETTER * max(len(label) for label in labels)
    above = 0.15 + 0.19 * -(-len(names) // 2)
    height = 0.6 + 0.3 * max(len(groups), 2) + above
    with drawing(4.4, height, prefix, (left, 0.12, 0.55, above)) as figure:
        axes = figure.add_subplot()
        for name, colour in zip(names, _colours(len(names)), strict=True):
            values = np.array([group["statistics"][name] for group in groups])
            axes.barh(rows, values, left=start, color=colour, height=0.7, label=name)
            start = start + values
        _name_bars(axes, labels)
        axes.set_xlabel("mean size, by class (nodes)")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        largest = [
            f"{group['name']}: {max(names, key=lambda name: group['statistics'][name])}"
            for group in groups
        ]
        alt = (
            "Mean size of the statistics' shares by predicted class. Largest: "
            f"{', '.join(largest)}."
        )
        return inline_svg(figure, prefix, alt)


def _name_bars(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(np.arange(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(False)
    axes.tick_params(axis="y", length=0)


def _colours(count: int) -> list[str]:
    return [COLOURS[min(index, len(COLOURS) - 1)] for index in range(count)]


def pattern_heatmap(
    patterns: Sequence[Mapping[str, Any]],
    classes: Sequence[str],
    marks: Mapping[int, str],
    num_patterns: int,
    prefix: str,
) -> str:
    """Draw the class profile of each pattern, and beside it the attention it receives.

    Args:
        patterns: those to show, the most used first.
        marks: remarks such as "unused", by pattern number.
        num_patterns: including those not shown.
    """
    shares, labels = _class_profiles(patterns, classes)
    attention = np.array([float(pattern["attention"]) for pattern in patterns])
    numbers = [int(pattern["number"]) for pattern in patterns]
    rows, size = shares.shape
    cell, line = 0.5 if size <= 8 else 0.26, 0.19
    longest = max(len(label) for label in labels)
    is_slanted = longest * 0.08 > cell
    row_labels = [f"{k}, {marks[k]}" if k in marks else str(k) for k in numbers]
    left_margin = 0.4 + 0.85 * _LETTER * max(len(label) for label in row_labels)
    overhang = 0.048 * longest if is_slanted else 0.0
    between = max(overhang, 0.2)
    width, height = left_margin + cell * size + between + 1.75, line * rows + 1.1 + overhang
    with drawing(width, height, prefix, (left_margin, 0.15, 0.55, 0.55 + overhang)) as figure:
        left, right = figure.subplots(
            1,
            2,
            width_ratios=[cell * size, 1.6],
            gridspec_kw={"wspace": between / (cell * size + 1.6) * 2},
        )
        left.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", lw=0.6)
        centres = np.arange(rows) + 0.5
        left.set_yticks(centres, row_labels)
        left.xaxis.tick_top()
        left.xaxis.set_label_position("top")
        left.set_xticks(np.arange(size) + 0.5, labels)
        if is_slanted:
            _slant(left, "left")
        left.set(xlabel="class of its nodes", ylabel="pattern" + ", most used first" * (rows > 9))
        colours = [QUIET if k in marks else TRAINING for k in numbers]
        right.barh(centres, attention, height=0.75, color=colours)
        right.axvline(1 / num_patterns, color=VALIDATION, ls="--", lw=1.2, label="even share")
        right.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
        right.set(xlabel="share of attention", yticks=[])
        percent_axis(right, "x")
        left.grid(False)
        left.spines[:].set_visible(False)
        for axes in (left, right):
            axes.set_ylim(rows, 0)
        left.tick_params(axis="y", length=0, labelsize=8)
        left.tick_params(axis="x", length=0, labelsize=9 if cell > 0.3 else 7.5)
        alt = _patterns_alt([p for p in patterns if p["number"] not in marks] or patterns)
        return inline_svg(figure, prefix, f"Class profile and use of {rows} patterns: {alt}.")


def _class_profiles(
    patterns: Sequence[Mapping[str, Any]], classes: Sequence[str]
) -> tuple[Array, list[str]]:
    """Return (K, C) class shares and their labels; beyond 30 classes the smallest are merged."""
    shares = np.array([[float(one["classes"][label]) for label in classes] for one in patterns])
    labels = [short(label) for label in classes]
    if len(labels) <= MOST_CLASSES:
        return shares, labels
    largest = np.sort(np.argsort(-shares.sum(axis=0), kind="stable")[: MOST_CLASSES - 1])
    rest = np.setdiff1d(np.arange(len(labels)), largest)
    merged = np.column_stack([shares[:, largest], shares[:, rest].sum(axis=1)])
    return merged, [*(labels[index] for index in largest), f"{rest.size} other classes"]


def largest_shares(shares: Mapping[str, float], most: int = 2) -> str:
    """List the classes with the largest shares, leaving out those below one percent."""
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])[:most]
    return ", ".join(f"{short(name)} {share:.0%}" for name, share in ranked if share >= 0.01)


def _patterns_alt(patterns: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(
        f"pattern {pattern['number']} with {pattern['attention']:.1%} of the attention, "
        f"nodes of class {largest_shares(pattern['classes'], 1) or '–'}"
        for pattern in patterns[:3]
    )


def enlargement(content: Mapping[str, Any]) -> float:
    """Return the factor that scales the outermost pattern of a map to its outer nodes."""
    reach = np.quantile(np.hypot(*np.array(content["nodes"], float).T), 0.9)
    farthest = np.hypot(*np.array(content["patterns"], float).T).max()
    return float(f"{reach / farthest:.2g}") if reach and farthest else 1.0


def memory_map(
    content: Mapping[str, Any], names: Sequence[str], used: Sequence[int], prefix: str
) -> str:
    """Draw nodes as small marks coloured by predicted class, patterns as numbered circles.

    Args:
        content: the map as ``understanding.json`` holds it.
        names: the class names.
        used: patterns that are neither unused nor redundant, the most used first; the others, and
            those beyond 30, are drawn without a number.
    """
    classes, nodes = np.array(content["classes"], int), np.array(content["nodes"], float)
    patterns = enlargement(content) * np.array(content["patterns"], float)
    present, counts = np.unique(classes, return_counts=True)
    frequent = present[np.argsort(-counts, kind="stable")].tolist()
    single = frequent if len(frequent) <= MOST_COLOURS else frequent[: MOST_COLOURS - 1]
    groups = [
        (short(names[label]), classes == label, COLOURS[at]) for at, label in enumerate(single)
    ]
    if len(single) < len(frequent):
        rest = f"{len(frequent) - len(single)} other classes"
        groups.append((rest, ~np.isin(classes, single), QUIET))
    numbered = np.isin(np.arange(len(patterns)), used[:MOST_NUMBERED])
    with drawing(7.4, 5.0, prefix, (0.7, 2.5, 0.5, 0.1)) as figure:
        axes = figure.add_subplot()
        for (label, chosen, colour), marker in zip(groups, _MARKERS, strict=False):
            axes.plot(
                *nodes[chosen].T,
                linestyle="none",
                marker=marker,
                markersize=3.2,
                markeredgewidth=0,
                color=colour,
                alpha=0.6,
                label=label,
            )
        if not numbered.all():
            label = "unused or redundant" + ", or less used" * (len(used) > MOST_NUMBERED)
            axes.plot(*patterns[~numbered].T, "x", ms=5, color=QUIET, label=label)
        axes.plot(*patterns[numbered].T, "o", ms=13, mfc="white", mec=INK, mew=1.2, label="pattern")
        for number in np.flatnonzero(numbered).tolist():
            x, y = patterns[number]
            axes.text(x, y, str(number), ha="center", va="center", size=7.5)
        axes.set(
            xlabel=f"first component: {content['node_variance'][0]:.0%} of the variance",
            ylabel=f"second component: {content['node_variance'][1]:.0%} of the variance",
        )
        shown = axes.legend(loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0.4)
        for line in shown.get_lines():
            line.set(markersize=7, alpha=1)
        alt = (
            f"Map of {len(nodes):,} nodes by predicted class and of {len(patterns)} patterns, "
            f"{int(numbered.sum())} of them numbered; the two components hold "
            f"{sum(content['node_variance']):.0%} of the variance."
        )
        return inline_svg(figure, prefix, alt)


# Drawing


@contextmanager
def drawing(
    width: float, height: float, prefix: str, margins: tuple[float, float, float, float]
) -> Iterator[Figure]:
    """Yield a figure in the report's style.

    Args:
        width: in inches, as all lengths.
        margins: left, right, below and above the axes; measuring them would double the time.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": prefix})
        figure = Figure(figsize=(width, height))
        left, right, below, above = margins
        figure.subplots_adjust(
            left=left / width,
            right=1 - right / width,
            bottom=below / height,
            top=1 - above / height,
        )
        yield figure


def _epoch_axes(figure: Figure, label: str) -> Axes:
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    axes.set(xlabel="epoch", ylabel=label)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    return axes


def _slant(axes: Axes, align: str) -> None:
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha=align, rotation_mode="anchor")


def legend(axes: Axes) -> None:
    """Add the legend as one line above the axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def percent_axis(axes: Axes, which: str = "y") -> None:
    """Format an axis of shares in percent."""
    from matplotlib.ticker import PercentFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(PercentFormatter(xmax=1))


def inline_svg(figure: Figure, prefix: str, alt: str) -> str:
    """Return the figure as an element without namespace and style sheet, with its own ids."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.ticker import AutoLocator, MaxNLocator

    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        if isinstance(axis.get_major_locator(), AutoLocator):
            axis.set_major_locator(MaxNLocator(4))  # ticks take most of the drawing time
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with warnings.catch_warnings():
        # Matplotlib's font lacks glyphs of many scripts; the browser's fonts have them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        # Not savefig, which draws everything twice.
        cast(Any, FigureCanvasSVG(figure)).print_svg(buffer, metadata=no_metadata)
    root = ElementTree.fromstring(buffer.getvalue())  # matplotlib's own output  # nosec B314
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    for parent in root.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] in {"metadata", "style"}:
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = _inline_attributes(element.tag, element.attrib, prefix)
        element.attrib.clear()
        element.attrib.update(attributes)
        element.tail = None
        if element.tag != "text":
            element.text = None
    root.attrib = {
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width * 4 / 3:.0f}",  # points as pixels
        "height": f"{height * 4 / 3:.0f}",
        "role": "img",
        "aria-label": printable(alt),
        "stroke-linejoin": "round",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _inline_attributes(tag: str, attributes: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Prefix the ids that are referred to, drop the others, and round coordinates."""
    kept = {}
    for key, value in attributes.items():
        key = key.rpartition("}")[2]
        if key == "id":
            if tag not in {"clipPath", "path", "pattern"}:
                continue
            value = f"{prefix}-{value}"
        elif key == "href" and value.startswith("#"):
            value = f"#{prefix}-{value[1:]}"
        elif key in {"clip-path", "style"}:
            value = value.replace("url(#", f"url(#{prefix}-")
        elif key == "d":
            value = re.sub(r"(\.\d\d)\d+", r"\1", value)
        kept[key] = " ".join(value.split())
    return kept
