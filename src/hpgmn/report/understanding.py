"""What the model has learned: statistics, memory, and the nodes it would like to have labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpgmn.base.text import MISSING, count_noun
from hpgmn.explain.explanation import STATISTICS
from hpgmn.report.memory import memory_section
from hpgmn.report.page import panel, table, text, with_rest
from hpgmn.report.plots import COLOURS, LETTER, drawing, inline_svg, short
from hpgmn.report.reading import Run, mapping

MOST_BARS = 16
"""Classes beyond which a picture shows those of the most sampled nodes only."""


def understanding_sections(run: Run) -> list[tuple[str, str, str]]:
    """The sections, or none where the run folder does not describe its model."""
    found = run.understanding
    if not found:
        return []
    if "left_out" in found:
        words = f"<p>{text(found['left_out'])}</p>"
        return [("learned", "What the model has learned", words)]
    about = _about(run, found)
    sections = [
        ("statistics", "What decides: the statistics", _statistics(found, about)),
        ("memory", "The memory", memory_section(found, about)),
    ]
    if found["label_next"]:
        sections.append(("label-next", "Nodes to label next", _label_next(found)))
    return sections


def _about(run: Run, found: Mapping[str, Any]) -> str:
    """Whose models are described, where the run has others."""
    if run.num_runs == 1:
        return ""
    of = f"the model of split {found['split']}"
    if found["seeds"] > 1:
        of = f"the {found['seeds']} models of split {found['split']}, averaged"
    return f'<p class="quiet">About {text(of)}.</p>\n'


def _statistics(found: Mapping[str, Any], about: str) -> str:
    shares = mapping(found["statistics"])
    if not shares:
        return (
            f"<p>There are no shares: {text(found['model'])} reads no local statistics "
            "(hpgmn does).</p>"
        )
    names, groups = list(shares), list(found["statistics_by_class"])
    groups.sort(key=lambda one: -one["nodes"])
    shown = groups[:MOST_BARS]
    pictures = panel(share_bars(shares, "shares"))
    if len(groups) > 1:
        pictures += panel(class_bars(names, shown, "class-shares"))
    cut = (
        f" The picture by class shows the {MOST_BARS} classes with the most sampled nodes."
        if len(groups) > MOST_BARS
        else ""
    )
    words = (
        f"{about}<p>How much each statistic moves the log-probability of the predicted class: mean "
        f"size of its exact Shapley values over {count_noun(found['sampled'], 'sampled node')}. A "
        "statistic that is taken away has the mean encoding of the train nodes instead."
        f"{cut}</p>"
    )
    rows = [
        (with_rest(name, STATISTICS.get(name, MISSING)), f"{shares[name]:.3f}") for name in names
    ]
    overall = table("Share of each statistic", ("Statistic", "Mean size"), rows, show=str)
    by_class = table(
        "Share of each statistic by predicted class",
        ("Class", "Nodes", *names),
        [
            (one["name"], str(one["nodes"]), *(f"{one['statistics'][name]:.3f}" for name in names))
            for one in groups
        ],
    )
    details = f"<details><summary>By class as a table</summary>{by_class}</details>"
    return f'{words}\n<div class="pair">{pictures}</div>\n{overall}\n{details}'


def _label_next(found: Mapping[str, Any]) -> str:
    rows = [
        (one["node"], one["prediction"], f"{one['entropy']:.2f}", f"{one['degree']:,}")
        for one in found["label_next"]
    ]
    head = ("Node", "Predicted class", "Entropy (nats)", "Neighbours")
    note = next((line for line in found["notes"] if line.startswith("Nodes to label")), "")
    return (
        "<p>A label of these nodes would help most, the first one first: the model is unsure of "
        "them, many nodes look at them, and they differ from each other.</p>\n"
        + table("Nodes to label next", head, rows)
        + f'\n<p class="quiet">{text(note)}</p>'
    )


def share_bars(shares: Mapping[str, float], name: str) -> str:
    """The mean share of each statistic as a bar.

    Args:
        shares: the largest first.
        name: what the ids inside the picture begin with; unique on the page.
    """
    names, values = list(shares), np.array(list(shares.values()))
    left = 0.15 + LETTER * max(len(one) for one in names)
    with drawing(4.4, 0.7 + 0.3 * len(names), name, (left, 0.12, 0.55, 0.1)) as figure:
        axes = figure.add_subplot()
        bars = axes.barh(names, values, color=_colours(len(names)), height=0.7)
        axes.bar_label(bars, labels=[f"{value:.2f}" for value in values], padding=3)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("mean size, all classes")
        axes.margins(x=0.14)
        listed = ", ".join(f"{one} {value:.2f}" for one, value in shares.items())
        return inline_svg(figure, name, f"Mean size of each statistic's share: {listed}.")


def class_bars(names: Sequence[str], groups: Sequence[Mapping[str, Any]], name: str) -> str:
    """For each predicted class the mean shares of the statistics, one behind the other.

    Args:
        names: the statistics in the order of their colours.
        groups: the classes.
        name: what the ids inside the picture begin with; unique on the page.
    """
    labels = [f"{short(one['name'])} ({one['nodes']})" for one in groups]
    start = np.zeros(len(groups))
    places = np.arange(len(groups))
    left = 0.15 + LETTER * max(len(label) for label in labels)
    above = 0.15 + 0.19 * -(-len(names) // 2)
    height = 0.6 + 0.3 * max(len(groups), 2) + above
    with drawing(4.4, height, name, (left, 0.12, 0.55, above)) as figure:
        axes = figure.add_subplot()
        for statistic, colour in zip(names, _colours(len(names)), strict=True):
            values = np.array([one["statistics"][statistic] for one in groups])
            axes.barh(places, values, left=start, color=colour, height=0.7, label=statistic)
            start = start + values
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("mean size, by class (nodes)")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        leading = [max(names, key=lambda key: one["statistics"][key]) for one in groups]
        listed = ", ".join(
            f"{one['name']}: {best}" for one, best in zip(groups, leading, strict=True)
        )
        sentence = f"Mean size of the statistics' shares by predicted class. Largest: {listed}."
        return inline_svg(figure, name, sentence)


def _colours(count: int) -> list[str]:
    return [COLOURS[min(place, len(COLOURS) - 1)] for place in range(count)]
