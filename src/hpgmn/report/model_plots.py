"""The figures about the model: calibration, statistics, patterns and map of the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpgmn.graph import Array
from hpgmn.report.plots import (
    COLOURS,
    FAINT,
    INK,
    MOST_CLASSES,
    QUIET,
    SCORE,
    TRAINING,
    VALIDATION,
    drawing,
    inline_svg,
    legend,
    percent_axis,
    slant,
)
from hpgmn.report.rendering import largest_shares, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NUMBERED = 30  # patterns beyond which the map numbers the most used only
MOST_COLOURS = 8  # classes beyond which the map shows the rarest in one colour
_CIRCLE = 18.0  # diameter of a numbered pattern, in pixels
_LETTER = 0.078  # average width of a letter, in inches
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", ".")


def reliability_diagram(
    bins: Sequence[Mapping[str, Any]], prefix: str, label: str | None = None
) -> str:
    """Draw accuracy by bin of confidence, above the share of nodes in each non-empty bin.

    With a class, draw the share of its nodes by its probability, as far as there are nodes.
    """
    x, y, most = "confidence", "accuracy", 1.0
    if label is not None:
        x, y = f"probability of '{short(label)}'", "nodes of that class"
        most = max(float(row[key]) for row in bins for key in ("high", "accuracy"))
    low, high, count, confidence, accuracy = (
        np.array([float(row[key]) for row in bins])
        for key in ("low", "high", "count", "confidence", "accuracy")
    )
    with drawing(4.4, 3.6, prefix, (0.75, 0.22, 0.5, 0.3)) as figure:
        above, below = figure.subplots(
            2, 1, sharex=True, height_ratios=[3, 1], gridspec_kw={"hspace": 0.12}
        )
        bars = {"align": "edge", "lw": 0.6}
        above.bar(low, accuracy, high - low, color=TRAINING, ec="white", **bars)
        above.plot([0, 1], [0, 1], color=VALIDATION, linestyle="--", lw=1.4, label="calibrated")
        above.plot(confidence, accuracy, "o", ms=3.5, color=INK, label="mean of a bin")
        above.set(xlim=(0, most), ylim=(0, most), ylabel=y)
        percent_axis(above)
        legend(above)
        below.bar(low, count / count.sum(), high - low, color=FAINT, ec="#8c959f", **bars)
        below.set(xlabel=x, ylabel="nodes")
        percent_axis(below)
        gap = np.abs(confidence - accuracy)
        worst = int(gap.argmax())
        side = "below" if accuracy[worst] < confidence[worst] else "above"
        alt = (
            f"Reliability diagram of {count.sum():,.0f} test nodes in {len(bins)} bins of {x}. The "
            f"largest gap is between {low[worst]:.2f} and {high[worst]:.2f}: {y} "
            f"{accuracy[worst]:.1%}, {100 * gap[worst]:.1f} points {side} the mean."
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
            points = dict(zip(zip(x, y, strict=True), marked, strict=True))  # several may agree
            for point, row in points.items():
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


def share_bars(
    shares: Mapping[str, float],
    prefix: str,
    axis: str = "mean size, all classes",
    about: str = "Mean size of each statistic's share",
) -> str:
    """Draw a bar for each share, in the order of the mapping."""
    names, values = list(shares), np.array(list(shares.values()))
    left = 0.15 + _LETTER * max(len(name) for name in names)
    size = (max(4.4, left + 2.8), 0.7 + 0.3 * len(names))
    with drawing(*size, prefix, (left, 0.12, 0.55, 0.1)) as figure:
        axes = figure.add_subplot()
        bars = axes.barh(np.arange(len(names)), values, color=_colours(len(names)), height=0.7)
        digits = 2 if values.max() >= 0.1 else 3
        axes.bar_label(bars, labels=[f"{value:.{digits}f}" for value in values], padding=3)
        _name_bars(axes, names)
        axes.set_xlabel(axis)
        axes.margins(x=0.18)
        listing = ", ".join(f"{name} {value:.{digits}f}" for name, value in shares.items())
        return inline_svg(figure, prefix, f"{about}: {listing}.")


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
        legend(axes, columns=2)
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


def pattern_marks(content: Mapping[str, Any]) -> dict[int, str]:
    """Mark patterns that are unused, or redundant with a more used one."""
    marks = {int(k): "unused" for k in content["unused"]}
    rank = {pattern["number"]: at for at, pattern in enumerate(content["patterns"])}
    for group in content["redundant"]:
        first, *others = sorted(group, key=lambda k: rank[k])
        marks |= {int(k): f"like {first}" for k in others}
    return marks


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
    from matplotlib.ticker import MaxNLocator

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
            slant(left, "left")
        left.set(xlabel="class of its nodes", ylabel="pattern" + ", most used first" * (rows > 9))
        colours = [QUIET if k in marks else TRAINING for k in numbers]
        right.barh(centres, attention, height=0.75, color=colours)
        right.axvline(1 / num_patterns, color=VALIDATION, ls="--", lw=1.2, label="even share")
        right.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
        right.set(xlabel="share of attention", yticks=[])
        right.xaxis.set_major_locator(MaxNLocator(3))  # "0.0025%" has room for no more
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
    shares = np.array([[float(row["classes"][label]) for label in classes] for row in patterns])
    labels = [short(label) for label in classes]
    if len(labels) <= MOST_CLASSES:
        return shares, labels
    largest = np.sort(np.argsort(-shares.sum(axis=0), kind="stable")[: MOST_CLASSES - 1])
    rest = np.setdiff1d(np.arange(len(labels)), largest)
    merged = np.column_stack([shares[:, largest], shares[:, rest].sum(axis=1)])
    return merged, [*(labels[index] for index in largest), f"{rest.size} other classes"]


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
        used: patterns that are neither unused nor redundant, the most used first; the others, those
            beyond 30, and those that would cover a more used one are drawn without a number.
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
        others = f"{len(frequent) - len(single)} other classes"
        groups.append((others, ~np.isin(classes, single), QUIET))
    rest = "unused, redundant, less used"
    entries = [*(label for label, _, _ in groups), rest]
    margin = 0.6 + 0.9 * _LETTER * max(len(label) for label in entries)
    with drawing(4.9 + margin, 4.6, prefix, (0.7, margin, 0.5, 0.1)) as figure:
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
        axes.update_datalim(patterns)
        axes.autoscale_view()
        numbered = _distinct(axes.transData.transform(patterns), used[:MOST_NUMBERED])
        if not numbered.all():
            axes.plot(*patterns[~numbered].T, "x", ms=5, color=QUIET, label=rest)
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


def _distinct(positions: Array, ranked: Sequence[int]) -> Array:
    """Return (K,) which patterns to number, so that no circle covers one of a higher rank."""
    chosen: list[int] = []
    for pattern in ranked:
        distances = np.hypot(*(positions[chosen] - positions[pattern]).T)
        if (distances > _CIRCLE).all():
            chosen.append(pattern)
    return np.isin(np.arange(len(positions)), chosen)
