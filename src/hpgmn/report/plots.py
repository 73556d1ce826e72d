"""The figures of the report: arrays in, SVG text for inlining out.

Every figure has ``role="img"`` and a text alternative. Output is deterministic: no dates, no random
ids, independent of the user's matplotlib settings. Matplotlib is imported with the first figure.
The argument ``prefix`` starts the ids inside a figure and must be unique on the page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree  # parses matplotlib's own output  # nosec B405

import numpy as np

from hpgmn.base.errors import count_noun
from hpgmn.graph import Array
from hpgmn.report.rendering import LearningCurves, printable, short

if TYPE_CHECKING:
    from markupsafe import Markup
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
_CURVE_SIZE, _CURVE_MARGINS = (4.4, 2.9), (0.78, 0.15, 0.5, 0.3)

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
        alt = f"Loss by epoch, stage {stage.stage}{_mean_text(stage)}: {'; '.join(parts)}."
        return inline_svg(figure, prefix, alt)


def score_curve(
    stage: LearningCurves,
    metric: str,
    best_epochs: Array | None,
    prefix: str,
    *,
    is_share: bool = True,
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
        if is_share:
            percent_axis(axes)
        _draw_curve(axes, stage.epochs, scores, SCORE, "-", "validation")
        alt = (
            f"Validation {metric} by epoch, stage {stage.stage}{_mean_text(stage)}: "
            f"{_first_and_last(stage, 'val_score', '{:.1%}' if is_share else '{:.3f}')}."
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


def precision_recall(
    ranking: Mapping[str, Any], threshold: Mapping[str, Any] | None, prefix: str
) -> str:
    """Draw precision against recall on test nodes, with the base rate and a chosen threshold."""
    recall, precision = np.array(ranking["curve"], float).T
    base_rate = float(ranking["base_rate"])
    with drawing(4.4, 2.9, prefix, (0.8, 0.3, 0.5, 0.3)) as figure:
        axes = figure.add_subplot()
        axes.plot(recall, precision, color=SCORE, lw=1.6, label="test")
        axes.axhline(base_rate, color=VALIDATION, linestyle="--", lw=1.2, label="base rate")
        if threshold and threshold.get("precision") is not None:
            point = (float(threshold["recall"]), float(threshold["precision"]))
            axes.plot(*point, "o", color=INK, ms=5, label="threshold")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
        percent_axis(axes)
        percent_axis(axes, "x")
        legend(axes)
        half = float(precision[np.searchsorted(recall, 0.5)])
        alt = (
            f"Precision by recall of test nodes: {precision[0]:.1%} at the top, {half:.1%} at half "
            f"of the nodes of the class, {base_rate:.1%} at random."
        )
        return inline_svg(figure, prefix, alt)


def run_scores(
    scores: Array, splits: Sequence[object], metric: str, prefix: str, *, is_share: bool = True
) -> str:
    """Draw (S, seeds) test scores as dots by split, with the mean of each split and of all.

    Args:
        scores: NaN where a run has none; at least one is finite.
    """
    labels = [short(split, 6) for split in splits]
    width = min(max(4.2, 1.4 + 0.5 * len(labels)), 8.4)
    with drawing(width, 2.9, prefix, (0.85, 0.15, 0.5, 0.3)) as figure:
        axes = figure.add_subplot()
        axes.set(xlabel="split", ylabel=f"test {metric}")
        form = ".1%" if is_share else ".3f"
        if is_share:
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
        if num_seeds > 1:
            rows, means = np.arange(len(labels)), _mean(scores.T)
            axes.hlines(means, rows - 0.36, rows + 0.36, colors=INK, lw=1.2, label="split mean")
        finite = scores[np.isfinite(scores)]
        mean = finite.mean()
        axes.axhline(mean, color=VALIDATION, linestyle="--", lw=1.2, label="mean of all")
        legend(axes)
        alt = (
            f"Test {metric} of {count_noun(finite.size, 'run')} by split: between "
            f"{finite.min():{form}} and {finite.max():{form}}, mean {mean:{form}}."
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


def _mean_text(stage: LearningCurves) -> str:
    count = len(stage.curves["loss"])
    return f", mean and range of {count} runs" if count > 1 else ""


def confusion_matrix(counts: Array, classes: Sequence[str], prefix: str) -> str:
    """Draw the (C, C) counts of class and prediction, coloured by their share of the row.

    Cells show share and count up to 12 classes; beyond 30 the smallest classes are merged.
    """
    alt = _confusion_alt(counts, classes)
    counts, labels = _merge_small_classes(counts, [short(label) for label in classes])
    size = len(labels)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    has_text = size <= MOST_CELLS_WITH_TEXT
    cell = 0.58 if has_text else 0.23
    longest = max((len(label) for label in labels), default=0)
    is_slanted = longest * 0.08 > cell
    left, below = 0.5 + 0.075 * longest, 0.55 + (0.08 * cell**0.5 * longest if is_slanted else 0.0)
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
            slant(axes, "right")
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
    right = np.trace(counts) / counts.sum()
    alt = f"Confusion matrix of {len(classes)} classes: {right:.1%} correct."
    wrong = counts - np.diag(np.diag(counts))
    if not wrong.any():
        return alt
    row, column = divmod(int(wrong.argmax()), len(classes))
    share = wrong[row, column] / counts[row].sum()
    return (
        f"{alt} Most frequent error: {classes[row]} predicted as {classes[column]}, "
        f"{share:.1%} of that class."
    )


def _merge_small_classes(counts: Array, labels: list[str]) -> tuple[Array, list[str]]:
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


def slant(axes: Axes, align: str) -> None:
    """Rotate the labels of the x axis by 45 degrees."""
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha=align, rotation_mode="anchor")


def legend(axes: Axes, columns: int = 3) -> None:
    """Add the legend above the axes."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.2,
    )


def percent_axis(axes: Axes, which: str = "y") -> None:
    """Format an axis of shares in percent, without digits that say nothing."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(lambda share, _: f"{100 * share:.6g}%")


def inline_svg(figure: Figure, prefix: str, alt: str) -> Markup:
    """Return the figure as an element without namespace and style sheet, with its own ids."""
    from markupsafe import Markup
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
    # ElementTree has escaped every text.
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # nosec B704


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
