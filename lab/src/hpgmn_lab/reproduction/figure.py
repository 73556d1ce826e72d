"""Figure 3 as bars: what HP-GMN loses without the penalties on its memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.files import atomic_write
from hpgmn_lab.reproduction.grids import shown_label
from hpgmn_lab.reproduction.tables import Line, Table
from hpgmn_lab.results.records import score_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From dark to light with hatches of their own: the bars are told apart without colours too.
_FILLS = ("#4d6f8f", "#9db8d0", "#d7e3ee", "#ffffff")
_HATCHES = ("", "///", "\\\\\\\\", "xxx")
INK = "#1f2328"

_STYLE: dict[Any, Any] = {
    "font.family": "serif",
    "font.serif": ["DejaVu Serif"],  # ships with matplotlib: the same picture on every machine
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
    "hatch.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "hpgmn",
}


@contextmanager
def drawn(table: Table) -> Iterator[Figure]:
    """The figure, to be saved inside the ``with``: its style ends there."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(6.2, 2.9), layout="constrained")
        _draw(figure, table)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            yield figure


def write_figure(table: Table, path: Path) -> list[Path]:
    """Write the figure as SVG and PNG; the same table gives the same bytes.

    Args:
        table: of Figure 3.
        path: where to, without an ending.
    """
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    with drawn(table) as figure:
        with atomic_write(files[0]) as draft:
            figure.savefig(draft, dpi=200, metadata={"Software": None})
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with atomic_write(files[1]) as draft:
            figure.savefig(draft, metadata=nothing)
    return files


def picture_sentence(table: Table) -> str:
    """What the figure shows, for those who do not see it."""
    parts = []
    for graph in table.graphs:
        records = {line.label: line.entries[graph].record for line in table.lines}
        said = [
            f"{shown_label(label)} {score_words(record)}"
            for label, record in records.items()
            if record
        ]
        parts.append(f"{graph}: {', '.join(said) or 'no record yet'}")
    return f"Test accuracy of HP-GMN in percent with its penalties and without. {'; '.join(parts)}."


def _draw(figure: Figure, table: Table) -> None:
    panels = figure.subplots(1, len(table.graphs), squeeze=False)[0]
    ends = {graph: _ends(table.lines, graph) for graph in table.graphs}
    span = max(high - low for low, high in ends.values())
    for axes, (graph, (_, high)) in zip(panels, ends.items(), strict=True):
        _panel(axes, table.lines, graph)
        top = high + 0.15 * span
        axes.set_ylim(max(top - 1.7 * span, 0.0), top)  # a point is as long in every panel
        _break_mark(axes)
    panels[0].set_ylabel("test accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, handlelength=1.6)
    figure.supxlabel(
        "Bars: mean over runs. Whiskers: 95 % interval of the mean. "
        "The vertical axes do not start at zero.",
        fontsize=7.5,
    )


def _ends(lines: Sequence[Line], graph: str) -> tuple[float, float]:
    """The lowest and the highest that a panel shows, at least a point apart."""
    entries = [line.entries[graph] for line in lines]
    means = [entry.record.score.mean for entry in entries if entry.record]
    ends = [*means, *(end for entry in entries for end in entry.interval or ())]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    return min(low, high - 1.0), high


def _panel(axes: Axes, lines: Sequence[Line], graph: str) -> None:
    for place, line in enumerate(lines):
        entry = line.entries[graph]
        mean = entry.record.score.mean if entry.record else 0.0
        low, high = entry.interval or (mean, mean)
        axes.bar(
            [place],
            [mean],
            width=0.78,
            color=_FILLS[place % len(_FILLS)],
            hatch=_HATCHES[place % len(_HATCHES)],
            edgecolor=INK,
            linewidth=0.8,
            label=shown_label(line.label),
        )
        if entry.record:
            errors = [[mean - low], [high - mean]]
            axes.errorbar([place], [mean], yerr=errors, color=INK, capsize=3, linewidth=1)
            axes.annotate(
                f"{mean:.1f}",
                (place, high),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.set_title(graph.capitalize(), fontsize=10)
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(lines) - 0.3)


def _break_mark(axes: Axes) -> None:
    """Two short strokes across the foot of the vertical axis: it does not start at zero."""
    for height in (0.035, 0.065):
        axes.plot(
            [-0.018, 0.018],
            [height - 0.014, height + 0.014],
            transform=axes.transAxes,
            color=INK,
            linewidth=0.9,
            clip_on=False,
        )
