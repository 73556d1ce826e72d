"""The pictures of the report: arrays in, SVG text for inlining out.

Every picture carries ``role="img"`` and a sentence for those who do not see it. The same arrays
give the same text: no dates, no random ids, no influence of the user's matplotlib settings.
Matplotlib is imported when the first picture is drawn, and only as objects (no pyplot, no state).
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree  # reads what matplotlib has just drawn  # nosec B405

import numpy as np

from hpgmn.graph import Array
from hpgmn.report.reading import Stage, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue, vermilion and green of Okabe and Ito: told apart with every kind of colour blindness.
TRAINING, VALIDATION, SCORE = "#0072b2", "#d55e00", "#00795a"
INK, QUIET, FAINT = "#24292f", "#6e7781", "#d8dee4"
# Their eight, the yellow darker than theirs to stand on white, and grey: for things of many kinds.
COLOURS = (
    *(TRAINING, VALIDATION, "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#a89800", INK),
    "#8c959f",
)

MOST_POINTS = 150  # on one curve
MOST_CELLS_WITH_TEXT = 12  # classes beyond which a confusion matrix shows colours only
MOST_CLASSES = 30  # classes beyond which the smallest are drawn as one
LONGEST_LABEL = 18
_CURVE_MARGINS = (0.78, 0.15, 0.5, 0.3)
LETTER = 0.078  # inches of a letter of usual width

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
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",  # text stays text: small, and the browser finds the letters
}


def loss_curves(stage: Stage, name: str) -> str | None:
    """Training and validation loss of a stage, or nothing where no loss was recorded.

    Args:
        stage: the curves of every run.
        name: what the ids inside the picture begin with; unique on the page.

    Returns:
        An ``<svg>`` element: mean over the runs, with a band from the lowest to the highest run.
    """
    kinds = {"loss": ("training", TRAINING, "-"), "val_loss": ("validation", VALIDATION, "--")}
    shown = {key: kind for key, kind in kinds.items() if np.isfinite(stage.curves[key]).any()}
    if not shown:
        return None
    with drawing(4.4, 2.9, name, _CURVE_MARGINS) as figure:
        axes = _epoch_axes(figure, "loss")
        parts = []
        for key, (word, colour, dash) in shown.items():
            _draw_curve(axes, stage.epochs, stage.curves[key], colour, dash, word)
            parts.append(f"{word} loss {_course(stage.epochs, stage.curves[key], '{:.3g}')}")
        legend(axes)
        sentence = f"Loss by epoch, stage {stage.name}{_runs(stage)}: {'; '.join(parts)}."
        return inline_svg(figure, name, sentence)


def score_curve(stage: Stage, metric: str, best_epochs: Array | None, name: str) -> str | None:
    """Validation score of a stage, or nothing where none was recorded.

    Args:
        stage: the curves of every run.
        metric: what the score is called.
        best_epochs: the epoch each run kept, marked along the lower edge; None marks nothing.
        name: what the ids inside the picture begin with; unique on the page.

    Returns:
        An ``<svg>`` element: mean over the runs, with a band from the lowest to the highest run.
    """
    scores = stage.curves["val_score"]
    if not np.isfinite(scores).any():
        return None
    with drawing(4.4, 2.9, name, _CURVE_MARGINS) as figure:
        axes = _epoch_axes(figure, f"validation {metric}")
        percent_axis(axes)
        _draw_curve(axes, stage.epochs, scores, SCORE, "-", "validation")
        sentence = (
            f"Validation {metric} by epoch, stage {stage.name}{_runs(stage)}: "
            f"{_course(stage.epochs, scores, '{:.1%}')}."
        )
        marked = np.empty(0) if best_epochs is None else best_epochs
        kept = np.sort(marked[np.isfinite(marked)])
        if len(kept):
            label = "best epoch" if len(kept) == 1 else "best epoch of each run"
            axes.plot(
                kept,
                np.full(len(kept), 0.035),
                linestyle="none",
                marker="|",
                markersize=9,
                markeredgewidth=1.2,
                color=INK,
                transform=axes.get_xaxis_transform(),
                label=label,
            )
            legend(axes)
            if len(kept) == 1:
                sentence += f" Best epoch: {kept[0]:g}."
            else:
                sentence += (
                    f" Best epochs lie between {kept[0]:g} and {kept[-1]:g}, "
                    f"their median is {np.median(kept):g}."
                )
        return inline_svg(figure, name, sentence)


def confusion_matrix(counts: Array, classes: Sequence[str], name: str) -> str:
    """Test nodes by class and prediction, coloured by their share of the row.

    Up to 12 classes each cell tells its share and count; beyond that its colour only, and beyond
    30 the smallest classes are drawn as one.

    Args:
        counts: (C, C), class by prediction.
        classes: their C names.
        name: what the ids inside the picture begin with; unique on the page.

    Returns:
        An ``<svg>`` element.
    """
    sentence = _confusion_sentence(counts, classes)
    counts, labels = _condensed(counts, [short(label) for label in classes])
    size = len(labels)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)  # an unseen class: zeros
    written = size <= MOST_CELLS_WITH_TEXT
    cell = 0.58 if written else 0.23
    longest = max((len(label) for label in labels), default=0)
    slanted = longest * 0.08 > cell
    left = 0.75 + 0.075 * longest
    below = 0.75 + (0.06 * longest if slanted else 0.0)
    width = max(left + cell * size + (0.0 if written else 0.9), 2.8)
    height = max(cell * size + below, 2.0)
    with drawing(width, height, name) as figure:
        axes = figure.add_subplot()
        mesh = axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", lw=0.8)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9 if written else 7)
        middles = np.arange(size) + 0.5
        axes.set_yticks(middles, labels)
        if slanted:
            axes.set_xticks(middles, labels, rotation=45, ha="right", rotation_mode="anchor")
        else:
            axes.set_xticks(middles, labels)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class")
        if written:
            for row, column in np.ndindex(size, size):
                middle, line = column + 0.5, row + 0.5
                if not counts[row, column]:
                    axes.text(middle, line, "0", ha="center", va="center", color=QUIET, size=8)
                    continue
                ink = "white" if shares[row, column] > 0.5 else INK
                share = f"{shares[row, column]:.0%}"
                axes.text(middle, line - 0.02, share, ha="center", va="bottom", color=ink, size=9.5)
                count = f"{counts[row, column]:,}"
                axes.text(middle, line + 0.08, count, ha="center", va="top", color=ink, size=7)
        else:
            bar = figure.colorbar(mesh, ax=axes, shrink=0.6, aspect=24, pad=0.03)
            assert bar.solids is not None
            bar.solids.set(rasterized=False, edgecolor="face")  # shapes, not an image
            bar.set_label("share of the true class")
            bar.outline.set_visible(False)
            bar.ax.grid(False)
            percent_axis(bar.ax)
        return inline_svg(figure, name, sentence)


def run_scores(scores: Array, splits: Sequence[object], metric: str, name: str) -> str:
    """One dot for the test score of each run, by split, with the mean of each split and of all.

    Args:
        scores: (S, seeds).
        splits: the S names of the splits.
        metric: what the score is called.
        name: what the ids inside the picture begin with; unique on the page.

    Returns:
        An ``<svg>`` element.
    """
    labels = [short(split, 6) for split in splits]
    many = len(labels) > 15
    with drawing(min(max(4.6, 1.4 + 0.5 * len(labels)), 8.4), 2.9, name) as figure:
        axes = figure.add_subplot()
        axes.grid(False, axis="x")
        axes.set_xlabel("split")
        axes.set_ylabel(f"test {metric}")
        percent_axis(axes)
        num_seeds = scores.shape[1]
        # Seeds stand side by side, so that equal scores do not hide each other.
        offsets = (np.arange(num_seeds) - (num_seeds - 1) / 2) * min(0.12, 0.6 / num_seeds)
        places = np.arange(len(labels))[:, None] + offsets
        axes.plot(
            places.ravel(),
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
        sentence = f"Test {metric} of each run by split: no score was recorded."
        if finite.size:
            mean = finite.mean()
            if num_seeds > 1:
                means = _mean(scores.T)
                rows = np.arange(len(labels))
                axes.hlines(means, rows - 0.36, rows + 0.36, colors=INK, lw=1.2, label="split mean")
            if finite.size > 1:
                axes.axhline(mean, color=VALIDATION, linestyle="--", lw=1.2, label="mean of all")
                legend(axes)
                sentence = (
                    f"Test {metric} of {finite.size} runs by split: between {finite.min():.1%} and "
                    f"{finite.max():.1%}, mean {mean:.1%}."
                )
            else:
                sentence = f"Test {metric} of the only run: {mean:.1%}."
        step = -(-len(labels) // 30)
        axes.set_xticks(np.arange(len(labels))[::step], labels[::step])
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.tick_params(axis="x", length=0, labelsize=7.5 if many else 9)
        return inline_svg(figure, name, sentence)


def curve_points(epochs: Array, values: Array) -> tuple[Array, Array, Array, Array]:
    """Epoch, mean, lowest and highest value over the runs, at most 150 points of each.

    Longer curves are cut into stretches of epochs: mean of the means, lowest of the lowest,
    highest of the highest, so that no spike is lost.

    Args:
        epochs: (E,).
        values: (R, E), not a number where a run has stopped.

    Returns:
        Four arrays of equal length, without the epochs at which no run has a value.
    """
    mean = _mean(values)
    kept = np.isfinite(mean)
    epochs, values, mean = epochs[kept], values[:, kept], mean[kept]
    low = np.where(np.isfinite(values), values, np.inf).min(axis=0)
    high = np.where(np.isfinite(values), values, -np.inf).max(axis=0)
    if len(epochs) <= MOST_POINTS:
        return epochs, mean, low, high
    # The first and the last epoch stay as they are: that is where one reads values off.
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
    """The mean over the first axis of the finite values; not a number where there is none."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _draw_curve(
    axes: Axes, epochs: Array, values: Array, colour: str, dash: str, label: str
) -> None:
    places, mean, low, high = curve_points(epochs, values)
    if len(values) > 1:
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    marker = "o" if len(places) == 1 else ""
    axes.plot(places, mean, color=colour, linestyle=dash, marker=marker, lw=1.6, label=label)


def _course(epochs: Array, values: Array, form: str) -> str:
    places, mean, _, _ = curve_points(epochs, values)
    first, last = form.format(mean[0]), form.format(mean[-1])
    return f"goes from {first} at epoch {places[0]:g} to {last} at epoch {places[-1]:g}"


def _runs(stage: Stage) -> str:
    count = len(stage.curves["loss"])
    return f", mean of {count} runs with the range between them" if count > 1 else ""


def _confusion_sentence(counts: Array, classes: Sequence[str]) -> str:
    total = counts.sum()
    if not total:
        return "Confusion matrix: no labelled test node."
    sentence = (
        f"Confusion matrix of {len(classes)} classes: {np.trace(counts) / total:.1%} "
        "of the test nodes are on the diagonal, that is, predicted correctly."
    )
    wrong = counts - np.diag(np.diag(counts))
    if not wrong.any():
        return sentence
    row, column = divmod(int(wrong.argmax()), len(classes))
    return (
        f"{sentence} The most frequent mistake takes {classes[row]} for {classes[column]}: "
        f"{wrong[row, column] / counts[row].sum():.1%} of the nodes of that class."
    )


def _condensed(counts: Array, labels: list[str]) -> tuple[Array, list[str]]:
    """The matrix with its smallest classes added up, where there are more than 30."""
    if len(labels) <= MOST_CLASSES:
        return counts, labels
    by_size = np.argsort(-counts.sum(axis=1), kind="stable")
    kept = np.sort(by_size[: MOST_CLASSES - 1])
    group = np.full(len(labels), len(kept))
    group[kept] = np.arange(len(kept))
    smaller = np.zeros((len(kept) + 1, len(kept) + 1), counts.dtype)
    np.add.at(smaller, (group[:, None], group[None, :]), counts)
    rest = f"{len(labels) - len(kept)} other classes"
    return smaller, [*(labels[index] for index in kept), rest]


def short(value: object, longest: int = LONGEST_LABEL) -> str:
    """A value as a label that is not too long."""
    text = printable(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


@contextmanager
def drawing(
    width: float, height: float, name: str, margins: tuple[float, float, float, float] | None = None
) -> Iterator[Figure]:
    """A figure in our style whatever the user's matplotlib settings are.

    Args:
        width: in inches.
        height: in inches.
        name: what the ids inside the picture begin with.
        margins: left, right, below and above the axes, in inches; None finds them by measuring all
            labels, which takes as long as drawing.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": name})
        figure = Figure(figsize=(width, height), layout=None if margins else "constrained")
        if margins:
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
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return axes


def legend(axes: Axes) -> None:
    """One line above the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def percent_axis(axes: Axes, which: str = "y") -> None:
    """Shares on an axis in percent."""
    from matplotlib.ticker import PercentFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(PercentFormatter(xmax=1))


def inline_svg(figure: Figure, name: str, sentence: str) -> str:
    """The figure as an element to inline: no namespace, no style sheet, ids of its own."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with warnings.catch_warnings():
        # Matplotlib's font lacks letters of many scripts; the browser's fonts will show them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        # As savefig does it, which would draw everything twice.
        cast(Any, FigureCanvasSVG(figure)).print_svg(buffer, metadata=nothing)
    root = ElementTree.fromstring(buffer.getvalue())  # what matplotlib has drawn  # nosec B314
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    for parent in root.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] in {"metadata", "style"}:
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        old, used = dict(element.attrib), element.tag in {"clipPath", "path", "pattern"}
        element.attrib.clear()
        for key, value in old.items():
            key = key.rpartition("}")[2]
            if key == "id" and used:
                value = f"{name}-{value}"
            elif key == "id":
                continue
            elif key == "href" and value.startswith("#"):
                value = f"#{name}-{value[1:]}"
            elif key in {"clip-path", "style"}:
                value = value.replace("url(#", f"url(#{name}-")
            elif key == "d":
                value = re.sub(r"(\.\d\d)\d+", r"\1", value)
            element.attrib[key] = " ".join(value.split())
        element.tail = None
        if element.tag != "text":
            element.text = None
    root.attrib = {
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width * 4 / 3:.0f}",  # points as pixels
        "height": f"{height * 4 / 3:.0f}",
        "role": "img",
        "aria-label": printable(sentence),
        "stroke-linejoin": "round",
    }
    return ElementTree.tostring(root, encoding="unicode")
