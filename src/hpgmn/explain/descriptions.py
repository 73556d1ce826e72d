"""Explanations in words: descriptions of statistics, notes, and layout as text and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from hpgmn.base.html import bars_html, table_html

STATISTICS = {
    "attributes": "its own attributes",
    "class_counts": "how many neighbours of each class it has",
    "class_means": "its neighbours' attributes, class by class",
    "diffusion": "where random walks from it lead",
    "adjacency": "which nodes it is linked to",
    "neighbor_attributes": "its neighbours' mean attributes",
    "neighbor_class_counts": "the classes two steps away",
    "neighbor_class_means": "the attributes two steps away, class by class",
    "degrees": "how many neighbours it has",
    "neighbor_adjacency": "which nodes its neighbours are linked to",
    "hops": "the mean attributes some steps away",
    "message_passing": "messages along its edges",
    "target_means": "the targets of its neighbours",
    "neighbor_target_means": "the targets two steps away",
}
"""A description of each statistic."""

DIRECTIONS = {
    "out": "their out-neighbours",
    "in": "their in-neighbours",
    "undirected": "their neighbours",
}
"""A description of the neighbours of several nodes in each neighbour mode."""


def describe_statistic(name: str) -> str:
    """Describe a statistic, which may be of one edge type.

    >>> describe_statistic("class_counts (card)")
    'how many neighbours of each class it has (card)'
    """
    base, separator, edge_type = name.partition(" (")
    return f"{STATISTICS[base]}{separator}{edge_type}"


NEIGHBORS_NOTE = (
    "Points of a neighbour: probability with it minus without it, its edges to the node removed "
    "and all pseudo-labels unchanged."
)
RERUN_NOTE = (
    "Points of a neighbour: probability with it minus without it, the model run again on the graph "
    "without its edges to the node."
)

Section = tuple[str, list[tuple[str, str]]]
"""A heading with its rows, for text and HTML."""


def as_text(summary: str, sections: list[Section], endings: list[str]) -> str:
    """Lay out an explanation as plain text."""
    lines = [summary]
    for heading, rows in sections:
        lines += ["", f"{heading}:"]
        width = max(len(left) for left, _ in rows)
        lines += [f"  {left:<{width}}  {right}".rstrip() for left, right in rows]
    return "\n".join([*lines, "", *endings] if endings else lines)


def as_html(
    summary: str, sections: list[Section], endings: list[str], bars: tuple[str, Mapping[str, float]]
) -> str:
    """Lay out an explanation as HTML, with a picture of some of its values."""
    parts = [f"<p>{escape(summary)}</p>", bars_html(*bars)]
    parts += [table_html(heading, rows) for heading, rows in sections]
    parts += [f"<p>{escape(line)}</p>" for line in endings]
    return f'<div class="hpgmn-explanation">{"".join(parts)}</div>'


def picture_values(explanation: Any) -> tuple[str, dict[str, float]]:
    """Return what the picture of an explanation shows, with its caption."""
    if members := getattr(explanation, "members", ()):
        return "Weights of members", {member.name: member.weight for member in members}
    if statistics := explanation.statistics:
        shares = {describe_statistic(name): value for name, value in statistics.items()}
        return "Contributions", shares
    return "Probabilities", dict(getattr(explanation, "probabilities", {}))


def format_points(support: float) -> str:
    """Format a difference of probabilities in percentage points."""
    if abs(support) < 5e-4:
        return "below 0.1 points" if support else "no change"
    return f"{100 * support:+.1f} points"


def largest_shares(shares: dict[str, float], most: int = 2) -> str:
    """List the largest shares of classes."""
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])[:most]
    return ", ".join(f"'{name}' {100 * share:.0f} %" for name, share in ranked if share >= 0.01)
