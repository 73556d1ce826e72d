"""A picture of a search: the validation score over single settings, as PNG and SVG."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = ("num_patterns", "hidden_dim", "kpattern_weight", "entropy_weight")
"""What the paper's own picture shows, and ours for models with a memory."""

_LOGARITHMIC = ("_weight", "weight_decay", "lr")
_DOTS, _LINE, _INK, _QUIET, _FAINT = "#56b4e9", "#d55e00", "#24292f", "#6e7781", "#d8dee4"
_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hpgmn",
}


def panels(
    values: Mapping[str, Sequence[Any]], importance: Mapping[str, float], has_memory: bool
) -> list[str]:
    """The settings to show: those of the paper's picture, or else the four that mattered most.

    Args:
        values: for each setting of the space the values tried.
        importance: how much each mattered; empty where that is not known.
        has_memory: whether the model has patterns.
    """
    numeric = [name for name, tried in values.items() if all(_is_number(one) for one in tried)]
    if has_memory:
        return [name for name in PANELS if name in numeric]
    return sorted(numeric, key=lambda name: -importance.get(name, 0.0))[: len(PANELS)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def points(trials: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    """For each trial its value of a setting and its score in percent.

    Args:
        trials: each with its ``settings`` and its ``score``.
        name: the setting.
    """
    return [(float(one["settings"][name]), 100 * one["score"]) for one in trials]


def best_by_value(dots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """For each value, in order, the best score with it.

    >>> best_by_value([(2.0, 70.0), (1.0, 60.0), (2.0, 75.0)])
    [(1.0, 60.0), (2.0, 75.0)]
    """
    best: dict[float, float] = {}
    for value, score in dots:
        best[value] = max(score, best.get(value, score))
    return sorted(best.items())


def draw_sensitivity(
    trials: Sequence[Mapping[str, Any]], names: Sequence[str], title: str, metric: str, path: Path
) -> None:
    """Draw one panel per setting: a dot for each trial, a line through the best of each value.

    Args:
        trials: the finished ones, each with its ``settings`` and its ``score``.
        names: the settings.
        title: what was searched.
        metric: what the score is.
        path: where to; the ending becomes .png and .svg.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(1.2 + 2.9 * len(names), 3.3), layout="constrained")
        row = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(row, names, strict=True):
            _panel(axes, points(trials, name), name)
        row[0].set_ylabel(f"validation {metric.replace('_', ' ')}, %")
        figure.suptitle(title, x=0.01, ha="left")
        figure.legend(*row[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            with atomic_write(path.with_suffix(".svg")) as draft:
                figure.savefig(draft, metadata=nothing)
            with atomic_write(path.with_suffix(".png")) as draft:
                figure.savefig(draft, dpi=150, metadata={"Software": None})


def _panel(axes: Axes, dots: Sequence[tuple[float, float]], name: str) -> None:
    line = best_by_value(dots)
    values = [value for value, _ in line]
    positive = [value for value in values if value > 0]
    axes.plot(*zip(*dots, strict=True), "o", color=_DOTS, markersize=4, alpha=0.7, label="trial")
    axes.plot(*zip(*line, strict=True), color=_LINE, marker="o", markersize=5, label="best")
    if not name.endswith(_LOGARITHMIC) or not positive:
        axes.set_xticks(values)
    elif len(positive) == len(values):
        axes.set_xscale("log")
    else:  # zero has a place of its own, left of the others
        axes.set_xscale("symlog", linthresh=positive[0])
    axes.set_xlabel(name)
