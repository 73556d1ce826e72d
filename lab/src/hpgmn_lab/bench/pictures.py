"""Pictures of the records, as PNG and SVG; the same record always gives the same picture."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.evaluation.scores import Difference
from hpgmn_lab.bench import batches, forms, growth
from hpgmn_lab.bench.paired import BEHIND
from hpgmn_lab.bench.peers import OURS
from hpgmn_lab.bench.trials import PYG, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart with every kind of colour blindness.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d1f", "#7f7f7f")
INK, QUIET, FAINT = "#24292f", "#6e7781", "#d8dee4"

_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
    "svg.fonttype": "none",
    "svg.hashsalt": "hpgmn",
}


@contextmanager
def _figure(width: float, height: float, path: Path) -> Iterator[Figure]:
    """A figure in inches, written beside the record when it is drawn."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(path.with_suffix(".svg"), metadata=nothing)
            figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})


def draw_growth(record: Mapping[str, Any], path: Path) -> None:
    """Seconds of each stage and peak memory over the number of edges, both axes logarithmic.

    Args:
        record: of the benchmark growth.
        path: where to, without an ending.
    """
    sizes = growth.finished(record)
    edges = [size["edges"] for size in sizes]
    with _figure(9.0, 4.0, path) as figure:
        seconds, memory = figure.subplots(1, 2)
        for stage, colour in zip(growth.STAGES, COLOURS, strict=False):
            times = [size["seconds"][stage] for size in sizes]
            seconds.plot(edges, times, marker="o", markersize=4, color=colour, label=stage)
        whole = [growth.total(size) for size in sizes]
        seconds.plot(edges, whole, marker="o", color=INK, linewidth=2.2, label="whole run")
        _slope_one(seconds, edges, whole[-1])
        seconds.set_ylabel("seconds")
        peaks = {"process": [size["peak_bytes"] for size in sizes]}
        peaks["above start-up"] = [growth.own_bytes(size) for size in sizes]
        if record["device_kind"] == "cuda":
            peaks["GPU"] = [size["device_peak_bytes"] for size in sizes]
        for (name, values), colour in zip(peaks.items(), COLOURS, strict=False):
            gib = [value / growth.GIB for value in values]
            memory.plot(edges, gib, marker="o", markersize=4, color=colour, label=name)
        _slope_one(memory, edges, peaks["above start-up"][-1] / growth.GIB)
        memory.set_ylabel("peak memory, GiB")
        for axes in (seconds, memory):
            axes.set(xscale="log", yscale="log", xlabel="edges")
            _plain_numbers(axes.yaxis)
            _legend_above(axes)


def draw_peers(record: Mapping[str, Any], path: Path) -> None:
    """Best validation score so far over seconds, the preparation counted; time is logarithmic.

    Args:
        record: of the benchmark peers.
        path: where to, without an ending.
    """
    with _figure(7.5, 4.6, path) as figure:
        axes = figure.add_subplot()
        names = [name for name, own in record["models"].items() if own.get("curve")]
        families = dict.fromkeys(name.removeprefix(PYG) for name in record["models"])
        colours = dict(zip(families, COLOURS, strict=False))
        for name in names:
            moments, scores = zip(*record["models"][name]["curve"], strict=True)
            axes.plot(
                moments,
                [100 * score for score in scores],
                color=colours[name.removeprefix(PYG)],
                linestyle="--" if name.startswith(PYG) else "-",
                linewidth=2.4 if name == OURS else 1.3,
                drawstyle="steps-post",
                marker="o" if len(moments) == 1 else None,
                label=label(name),
            )
        axes.set(xscale="log", xlabel="seconds", ylabel="best validation accuracy so far, %")
        _plain_numbers(axes.xaxis)
        if names:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, borderaxespad=0.2)


def draw_forms(record: Mapping[str, Any], path: Path) -> None:
    """Differences of the forms to the exact matrix; see :func:`_draw_differences`."""
    found = {f"{name}, {form}": one for (name, form), one in forms.differences(record).items()}
    _draw_differences(found, f"test score minus {forms.EXACT}, points", path)


def draw_batches(record: Mapping[str, Any], path: Path) -> None:
    """Differences of batches to all rows at once; see :func:`_draw_differences`."""
    _draw_differences(batches.differences(record), "in batches minus all at once, points", path)


def _draw_differences(found: Mapping[str, Difference], words: str, path: Path) -> None:
    """Mean differences with their 95 % intervals, zero and the bar as lines."""
    with _figure(6.0, 1.2 + 0.38 * max(len(found), 1), path) as figure:
        axes = figure.add_subplot()
        axes.axvline(0, color=QUIET, linewidth=1)
        axes.axvline(-BEHIND, color=COLOURS[1], linestyle=":", label=f"bar, -{BEHIND:g}")
        for place, one in enumerate(found.values()):
            if one.low is not None and one.high is not None:
                axes.plot([one.low, one.high], [place, place], color=COLOURS[0], linewidth=2)
            axes.plot([one.mean], [place], marker="o", color=COLOURS[0])
        axes.set_yticks(range(len(found)), list(found))
        axes.invert_yaxis()
        axes.margins(y=0.2)
        axes.set_xlabel(f"{words} (95 % interval)")
        _legend_above(axes)


def _plain_numbers(axis: Axis) -> None:
    """Numbers as people write them on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend_above(axes: Axes) -> None:
    """Above the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _slope_one(axes: Axes, edges: list[int], last: float) -> None:
    """Where a cost proportional to the edges would be, through the largest size."""
    line = [last * count / edges[-1] for count in edges]
    axes.plot(edges, line, linestyle=":", color=QUIET, label="slope one")
