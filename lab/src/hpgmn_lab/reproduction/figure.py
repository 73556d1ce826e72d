"""Figure 3 as a bar chart: HP-GMN without the penalties on its memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hpgmn_lab.rendering import NO_METADATA, save_figure, styled_figure
from hpgmn_lab.reproduction.tables import Table

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Brightness and hatches distinguish the bars without colours too.
_FILLS = ("#4d6f8f", "#9db8d0", "#d7e3ee", "#ffffff")
_HATCHES = ("", "///", "\\\\\\\\", "xxx")
INK = "#1f2328"

_STYLE: dict[Any, Any] = {
    "font.family": "serif",
    "font.serif": ["DejaVu Serif"],  # part of matplotlib: the same picture everywhere
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
    "hatch.color": INK,
}


@contextmanager
def draw(table: Table) -> Iterator[Figure]:
    """Draw the figure; save it inside the ``with``, where its style applies."""
    lines = dict(iter(table.numbers.groupby("graph", sort=False)))
    ends = {graph: _ends(group) for graph, group in lines.items()}
    span = max(high - low for low, high in ends.values())
    with styled_figure(6.2, 2.9, _STYLE) as figure:
        panels = figure.subplots(1, len(lines), squeeze=False)[0]
        for axes, (graph, (_, high)) in zip(panels, ends.items(), strict=True):
            _draw_panel(axes, lines[graph], graph)
            top = high + 0.15 * span
            axes.set_ylim(max(top - 1.7 * span, 0.0), top)  # the same scale in every panel
        panels[0].set_ylabel("test accuracy, %")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4, handlelength=1.6)
        figure.supxlabel(
            "Bars: mean over runs. Whiskers: 95 % interval of the mean. "
            "The vertical axes do not start at zero.",
            fontsize=7.5,
        )
        yield figure


def write_figure(table: Table, path: Path) -> list[Path]:
    """Write the figure as PNG and SVG next to ``path``."""
    with draw(table) as figure:
        return save_figure(figure, path, dpi=200)


def inline_svg(table: Table) -> Markup:
    """Return the figure as an SVG element for an HTML page."""
    from markupsafe import Markup

    with draw(table) as figure, io.StringIO() as file:
        figure.savefig(file, format="svg", metadata=NO_METADATA)
        text = file.getvalue()
    return Markup(text[text.index("<svg") :])  # nosec B704


def row_label(label: str) -> str:
    """Return the label of a row in the paper's spelling.

    >>> row_label("without kpattern")
    'without K-pattern'
    """
    return label.replace("kpattern", "K-pattern")


def text_alternative(table: Table) -> str:
    """Describe the figure for readers who do not see it."""
    parts = []
    for graph, lines in table.numbers.groupby("graph", sort=False):
        known = lines[lines["test_mean"].notna()]
        scores = [
            f"{row_label(line.row)} {line.test_mean:.1f} ± {line.test_std:.1f}"
            for line in known.itertuples()
        ]
        parts.append(f"{graph}: {', '.join(scores) or 'no record yet'}")
    return f"Test accuracy of HP-GMN in percent with its penalties and without. {'; '.join(parts)}."


def _ends(lines: pd.DataFrame) -> tuple[float, float]:
    """Return the range of values in a panel, at least a point wide."""
    values = lines[["test_mean", "test_low", "test_high"]].astype(float)
    low, high = values.min().min(), values.max().max()
    if pd.isna(low):
        low, high = 0.0, 1.0
    return min(low, high - 1.0), high


def _draw_panel(axes: Axes, lines: pd.DataFrame, graph: str) -> None:
    for position, line in enumerate(lines.itertuples()):
        is_known = pd.notna(line.test_mean)
        mean = line.test_mean if is_known else 0.0
        axes.bar(
            [position],
            [mean],
            width=0.78,
            color=_FILLS[position % len(_FILLS)],
            hatch=_HATCHES[position % len(_HATCHES)],
            edgecolor=INK,
            linewidth=0.8,
            label=row_label(line.row),
        )
        if is_known:
            low, high = line.test_low, line.test_high
            if pd.isna(low):  # a single value
                low = high = mean
            errors = [[mean - low], [high - mean]]
            axes.errorbar([position], [mean], yerr=errors, color=INK, capsize=3, linewidth=1)
            axes.annotate(
                f"{mean:.1f}",
                (position, high),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.set_title(graph.capitalize(), fontsize=10)
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(lines) - 0.3)
