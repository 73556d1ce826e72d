"""Pictures of records, as PNG and SVG; the same record always gives the same picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn_lab.bench.growth import STAGES, finished_sizes, total_seconds, working_bytes
from hpgmn_lab.bench.peers import OURS
from hpgmn_lab.bench.records import GIB
from hpgmn_lab.bench.trials import PYG, label
from hpgmn_lab.bench.variants import BASES, BATCHED, MAX_POINTS_BEHIND, differences
from hpgmn_lab.rendering import save_figure, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colours, distinguishable with every kind of colour blindness.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d1f", "#7f7f7f")
INK, QUIET, FAINT = "#24292f", "#6e7781", "#d8dee4"

_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
}


def draw(record: Mapping[str, Any], path: Path) -> bool:
    """Draw a record as ``path`` with the endings .svg and .png; False if it has no picture."""
    draw_benchmark = _DRAW.get(record["benchmark"])
    if draw_benchmark is None:
        return False
    draw_benchmark(record, path)
    return True


@contextmanager
def _figure(width: float, height: float, path: Path) -> Iterator[Figure]:
    """Yield a figure of a size in inches and save it."""
    with styled_figure(width, height, _STYLE) as figure:
        yield figure
        save_figure(figure, path, dpi=150)


def _draw_growth(record: Mapping[str, Any], path: Path) -> None:
    """Draw seconds of each stage and peak memory over the number of edges, on log axes."""
    sizes = finished_sizes(record)
    edges = [size["edges"] for size in sizes]
    with _figure(9.0, 4.0, path) as figure:
        seconds, memory = figure.subplots(1, 2)
        for stage, colour in zip(STAGES, COLOURS, strict=False):
            times = [size["seconds"][stage] for size in sizes]
            seconds.plot(edges, times, marker="o", markersize=4, color=colour, label=stage)
        whole = [total_seconds(size) for size in sizes]
        seconds.plot(edges, whole, marker="o", color=INK, linewidth=2.2, label="whole run")
        _draw_slope_one(seconds, edges, whole[-1])
        seconds.set_ylabel("seconds")
        peaks = {"process": [size["peak_bytes"] for size in sizes]}
        peaks["above start-up"] = [working_bytes(size) for size in sizes]
        if record["device_kind"] == "cuda":
            peaks["GPU"] = [size["device_peak_bytes"] for size in sizes]
        for (name, values), colour in zip(peaks.items(), COLOURS, strict=False):
            gib = [value / GIB for value in values]
            memory.plot(edges, gib, marker="o", markersize=4, color=colour, label=name)
        _draw_slope_one(memory, edges, peaks["above start-up"][-1] / GIB)
        memory.set_ylabel("peak memory, GiB")
        for axes in (seconds, memory):
            axes.set(xscale="log", yscale="log", xlabel="edges")
            _plain_numbers(axes.yaxis)
            _legend_above(axes)


def _draw_peers(record: Mapping[str, Any], path: Path) -> None:
    """Draw the best validation score over seconds, preparation included; time is logarithmic."""
    with _figure(7.5, 4.6, path) as figure:
        axes = figure.add_subplot()
        names = [name for name, result in record["models"].items() if result.get("curve")]
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
            _legend_above(axes, columns=5)


def _draw_differences(record: Mapping[str, Any], path: Path) -> None:
    """Draw mean differences with their 95 % intervals; zero and the bar are lines."""
    found = differences(record)
    what = "test score" if record["benchmark"] == "forms" else BATCHED
    text = f"{what} minus {BASES[record['benchmark']]}, points"
    several = len({variant for _, variant in found}) > 1
    names = [f"{graph}, {variant}" if several else graph for graph, variant in found]
    with _figure(6.0, 1.2 + 0.38 * max(len(found), 1), path) as figure:
        axes = figure.add_subplot()
        axes.axvline(0, color=QUIET, linewidth=1)
        bar = f"bar, -{MAX_POINTS_BEHIND:g}"
        axes.axvline(-MAX_POINTS_BEHIND, color=COLOURS[1], linestyle=":", label=bar)
        for row, difference in enumerate(found.values()):
            if difference.low is not None and difference.high is not None:
                interval = [difference.low, difference.high]
                axes.plot(interval, [row, row], color=COLOURS[0], linewidth=2)
            axes.plot([difference.mean], [row], marker="o", color=COLOURS[0])
        axes.set_yticks(range(len(found)), names)
        axes.invert_yaxis()
        axes.margins(y=0.2)
        axes.set_xlabel(f"{text} (95 % interval)")
        _legend_above(axes)


_DRAW = {
    "growth": _draw_growth,
    "peers": _draw_peers,
    "forms": _draw_differences,
    "batches": _draw_differences,
}


def _plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend_above(axes: Axes, columns: int = 3) -> None:
    """Put the legend above the axes, where it covers nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


def _draw_slope_one(axes: Axes, edges: list[int], last: float) -> None:
    """Draw a cost proportional to the edges, through the largest size."""
    line = [last * count / edges[-1] for count in edges]
    axes.plot(edges, line, linestyle=":", color=QUIET, label="slope one")
