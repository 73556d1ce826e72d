"""The memory as a picture: patterns against classes, their use, and a map of nodes and patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpgmn.base.text import MISSING, count_noun
from hpgmn.explain.explanation import DIRECTIONS
from hpgmn.graph import Array
from hpgmn.report.page import panel, table, text
from hpgmn.report.plots import (
    COLOURS,
    INK,
    LETTER,
    MOST_CELLS_WITH_TEXT,
    MOST_CLASSES,
    QUIET,
    TRAINING,
    VALIDATION,
    drawing,
    inline_svg,
    percent_axis,
    short,
)

MOST_PATTERNS = 60
"""Patterns beyond which the picture shows the most used only."""
MOST_NUMBERED = 30
"""Patterns beyond which the map numbers the most used only."""
MOST_COLOURS = 8
"""Classes beyond which the map shows the rarest in one colour."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", ".")


def memory_section(found: Mapping[str, Any], about: str) -> str:
    """The section about the memory, in a sentence where there is none.

    Args:
        found: what ``understanding.json`` says.
        about: markup that says whose models are described.
    """
    patterns = found["patterns"]
    if not patterns:
        return (
            f"<p>{text(found['model'])} was trained without a memory, so there are no patterns "
            "(hpgmn with memory=true has them).</p>"
        )
    marks = pattern_marks(found)
    shown = patterns[:MOST_PATTERNS]
    cut = len(patterns) > len(shown)
    again = sum(len(group) - 1 for group in found["redundant"])
    words = (
        f"{about}<p>The memory has {count_noun(len(patterns), 'pattern')}, "
        f"{len(found['unused'])} unused and {again} redundant. A row shows the classes of the "
        "nodes that attend to a pattern more than others do (white: none, darkest blue: all), a "
        "bar the share of all attention it gets.</p>"
    )
    rest = len(found["class_names"]) - MOST_CLASSES + 1
    notes = [line for line in found["notes"] if not line.startswith("Nodes to label")]
    if cut:
        notes.insert(0, f"Drawn are the {len(shown)} most used patterns of {len(patterns)}.")
    if rest > 1:
        notes.insert(0, f"The {rest} classes that patterns stand for least are drawn as one.")
    picture = pattern_picture(shown, found["class_names"], marks, len(patterns), "patterns")
    return "\n".join(
        [
            words,
            panel(picture, wide="Patterns of the memory"),
            f'<p class="quiet">{text(" ".join(notes))}</p>',
            _pattern_tables(patterns, found["class_names"], marks),
            _map(found),
        ]
    )


def pattern_marks(found: Mapping[str, Any]) -> dict[int, str]:
    """Patterns that are unused, or whose attention goes with that of a more used one."""
    marks = {int(number): "unused" for number in found["unused"]}
    place = {one["number"]: at for at, one in enumerate(found["patterns"])}  # most used first
    for group in found["redundant"]:
        first, *others = sorted(group, key=lambda number: place[number])
        marks |= {int(number): f"like {first}" for number in others}
    return marks


def _pattern_tables(
    patterns: Sequence[Mapping[str, Any]], classes: Sequence[str], marks: Mapping[int, str]
) -> str:
    modes = list(patterns[0]["neighborhood"])
    head = ["Pattern", "Attention", "Classes of its nodes"]
    head += [f"Classes of {DIRECTIONS.get(mode, mode)}" for mode in modes]
    rows = [
        [
            f"{one['number']} ({marks[one['number']]})"
            if one["number"] in marks
            else str(one["number"]),
            f"{one['attention']:.1%}",
            _largest(one["classes"]),
            *(_largest(one["neighborhood"][mode]) for mode in modes),
            ", ".join(short(node) for node in one["typical_nodes"]),
        ]
        for one in patterns
    ]
    numbers = table("What each pattern stands for", [*head, "Typical nodes"], rows)
    found = f"<details><summary>The patterns as a table</summary>{numbers}</details>"
    if len(classes) > MOST_CELLS_WITH_TEXT:
        return found
    rows = [
        [str(one["number"]), *(f"{one['classes'][label]:.0%}" for label in classes)]
        for one in patterns
    ]
    profile = table("Classes of each pattern's nodes", ["Pattern", *classes], rows)
    return f"{found}\n<details><summary>The colours as a table</summary>{profile}</details>"


def _largest(shares: Mapping[str, float], most: int = 2) -> str:
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])[:most]
    return ", ".join(f"{short(name)} {share:.0%}" for name, share in ranked if share >= 0.01) or (
        MISSING
    )


def pattern_picture(
    patterns: Sequence[Mapping[str, Any]],
    classes: Sequence[str],
    marks: Mapping[int, str],
    count: int,
    name: str,
) -> str:
    """Patterns against classes in colours, and beside them how much each is used.

    Args:
        patterns: those to show, the most used first.
        classes: all names.
        marks: what is to be said of some patterns, by number.
        count: how many patterns there are in all.
        name: what the ids inside the picture begin with; unique on the page.
    """
    shares, labels = _profiles(patterns, classes)
    used = np.array([float(one["attention"]) for one in patterns])
    numbers = [int(one["number"]) for one in patterns]
    rows, size = shares.shape
    cell, line = 0.5 if size <= 8 else 0.26, 0.19
    longest = max(len(label) for label in labels)
    slanted = longest * 0.08 > cell
    named = [f"{own}, {marks[own]}" if own in marks else str(own) for own in numbers]
    beside = 0.4 + 0.85 * LETTER * max(len(label) for label in named)
    overhang = 0.048 * longest if slanted else 0.0
    width, height = beside + cell * size + max(overhang, 0.2) + 1.75, line * rows + 1.1 + overhang
    margins = (beside, 0.15, 0.55, 0.55 + overhang)
    with drawing(width, height, name, margins) as figure:
        ratios, gap = [cell * size, 1.6], max(overhang, 0.2) / (cell * size + 1.6) * 2
        left, right = figure.subplots(1, 2, width_ratios=ratios, gridspec_kw={"wspace": gap})
        left.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", lw=0.6)
        middles = np.arange(rows) + 0.5
        left.set_yticks(middles, named)
        left.xaxis.tick_top()
        left.xaxis.set_label_position("top")
        left.set_xticks(np.arange(size) + 0.5, labels)
        if slanted:
            for label in left.get_xticklabels():
                label.set(rotation=45, ha="left", rotation_mode="anchor")
        left.set(xlabel="class of its nodes", ylabel="pattern" + ", most used first" * (rows > 9))
        colours = [QUIET if own in marks else TRAINING for own in numbers]
        right.barh(middles, used, height=0.75, color=colours)
        right.axvline(1 / count, color=VALIDATION, linestyle="--", lw=1.2, label="even share")
        right.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
        right.set(xlabel="share of attention", yticks=[])
        percent_axis(right, "x")
        left.grid(False)
        left.spines[:].set_visible(False)
        for axes in (left, right):
            axes.set_ylim(rows, 0)
        left.tick_params(axis="y", length=0, labelsize=8)
        left.tick_params(axis="x", length=0, labelsize=9 if cell > 0.3 else 7.5)
        return inline_svg(figure, name, _pattern_sentence(patterns, marks))


def _profiles(
    patterns: Sequence[Mapping[str, Any]], classes: Sequence[str]
) -> tuple[Array, list[str]]:
    """(K, C) class shares and their labels; classes beyond 30 are added up."""
    shares = np.array([[float(one["classes"][label]) for label in classes] for one in patterns])
    labels = [short(label) for label in classes]
    if len(labels) <= MOST_CLASSES:
        return shares, labels
    kept = np.sort(np.argsort(-shares.sum(axis=0), kind="stable")[: MOST_CLASSES - 1])
    rest = np.setdiff1d(np.arange(len(labels)), kept)
    joined = np.column_stack([shares[:, kept], shares[:, rest].sum(axis=1)])
    return joined, [*(labels[place] for place in kept), f"{rest.size} other classes"]


def _pattern_sentence(patterns: Sequence[Mapping[str, Any]], marks: Mapping[int, str]) -> str:
    plain = [one for one in patterns if one["number"] not in marks][:3] or patterns[:1]
    parts = [
        f"pattern {one['number']} with {one['attention']:.1%} of the attention, "
        f"nodes of class {_largest(one['classes'], 1)}"
        for one in plain
    ]
    return f"Class profile and use of {count_noun(len(patterns), 'pattern')}: {'; '.join(parts)}."


# The map.


def _map(found: Mapping[str, Any]) -> str:
    content = found.get("map")
    if not content:
        return ""
    classes, places = np.array(content["classes"], int), np.array(content["nodes"], float)
    names, marks = found["class_names"], pattern_marks(found)
    sampled = (
        f"{len(places):,} of {content['all_nodes']:,} nodes, drawn at random"
        if len(places) < content["all_nodes"]
        else f"All {len(places):,} nodes"
    )
    shares, own = content["node_variance"], content["pattern_variance"]
    note = (
        f"{sampled}, and all patterns. The memory multiplies a node's query with each pattern, so "
        "both are vectors of one space; shown is the plane in which the queries differ most. It "
        f"holds {sum(shares):.0%} of the variance of the queries ({shares[0]:.0%} across, "
        f"{shares[1]:.0%} upwards) and {sum(own):.0%} of that of the patterns: what lies apart "
        "here is apart; what lies together may differ in directions that are not shown. Patterns "
        f"are drawn from the mean pattern, {enlargement(content):.3g} times as far as they lie: a "
        "node attends to a pattern the more, the further it lies that way."
    )
    order = [one["number"] for one in found["patterns"]]
    picture = memory_map(content, names, [k for k in order if k not in marks], "map")
    present, counts = np.unique(classes, return_counts=True)
    by_size = np.argsort(-counts, kind="stable")
    by_class = table(
        "Where the nodes of each predicted class lie",
        ("Predicted class", "Nodes shown", "Across", "Upwards"),
        [
            (names[label], f"{count:,}", *(f"{part:.3g}" for part in middle))
            for label, count in zip(
                present[by_size].tolist(), counts[by_size].tolist(), strict=True
            )
            for middle in [places[classes == label].mean(axis=0).tolist()]
        ],
    )
    by_pattern = table(
        "Where the patterns lie, from the mean pattern",
        ("Pattern", "Across", "Upwards"),
        [
            (str(place), *(f"{part:.3g}" for part in point))
            for place, point in enumerate(content["patterns"])
        ],
    )
    return (
        "<h3>Nodes and patterns on a map</h3>\n"
        f'{panel(picture, wide="Map of nodes and patterns")}\n<p class="quiet">{text(note)}</p>\n'
        f"<details><summary>The map as tables</summary>{by_class}{by_pattern}</details>"
    )


def enlargement(content: Mapping[str, Any]) -> float:
    """How many times as far from the middle patterns are drawn: the furthest among outer nodes."""
    reach = np.quantile(np.hypot(*np.array(content["nodes"], float).T), 0.9)
    furthest = np.hypot(*np.array(content["patterns"], float).T).max()
    if not reach or not furthest:
        return 1.0
    return float(f"{reach / furthest:.2g}")


def memory_map(
    content: Mapping[str, Any], names: Sequence[str], used: Sequence[int], name: str
) -> str:
    """Nodes as small marks coloured by predicted class, used patterns as large ones with numbers.

    Args:
        content: the map.
        names: of the classes.
        used: patterns that are neither unused nor redundant, the most used first; the others, and
            those beyond 30, are drawn without a number.
        name: what the ids inside the picture begin with; unique on the page.
    """
    classes, places = np.array(content["classes"], int), np.array(content["nodes"], float)
    patterns = enlargement(content) * np.array(content["patterns"], float)
    present, counts = np.unique(classes, return_counts=True)
    frequent = present[np.argsort(-counts, kind="stable")].tolist()
    single = frequent if len(frequent) <= MOST_COLOURS else frequent[: MOST_COLOURS - 1]
    plain = np.isin(np.arange(len(patterns)), used[:MOST_NUMBERED])
    with drawing(7.4, 5.0, name, (0.7, 2.5, 0.5, 0.1)) as figure:
        axes = figure.add_subplot()
        groups = [(short(names[label]), classes == label) for label in single]
        others = ~np.isin(classes, single)
        if others.any():
            groups.append((f"{len(frequent) - len(single)} other classes", others))
        for place, (label, chosen) in enumerate(groups):
            colour = QUIET if label.endswith("other classes") and others.any() else COLOURS[place]
            axes.plot(
                *places[chosen].T,
                linestyle="none",
                marker=_MARKERS[place],
                markersize=3.2,
                markeredgewidth=0,
                color=colour,
                alpha=0.6,
                label=label,
            )
        if not plain.all():
            rare = ", or less used" if len(used) > MOST_NUMBERED else ""
            words = f"unused or redundant{rare}"
            axes.plot(*patterns[~plain].T, "x", ms=5, color=QUIET, label=words)
        axes.plot(*patterns[plain].T, "o", ms=13, mfc="white", mec=INK, mew=1.2, label="pattern")
        for number in np.flatnonzero(plain).tolist():
            across, upwards = patterns[number]
            axes.text(across, upwards, str(number), ha="center", va="center", size=7.5)
        axes.set(
            xlabel=f"across: {content['node_variance'][0]:.0%} of the variance",
            ylabel=f"upwards: {content['node_variance'][1]:.0%} of the variance",
        )
        shown = axes.legend(loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0.4)
        for line in shown.get_lines():
            line.set(markersize=7, alpha=1)
        sentence = (
            f"Map of {len(places):,} nodes by predicted class and of "
            f"{count_noun(len(patterns), 'pattern')}, {int(plain.sum())} of them with a number; "
            f"the two directions hold {sum(content['node_variance']):.0%} of the variance."
        )
        return inline_svg(figure, name, sentence)
