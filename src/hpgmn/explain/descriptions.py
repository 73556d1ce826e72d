"""Explanations in words: descriptions of statistics, notes, and layout as text and HTML."""

from __future__ import annotations

from html import escape

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


def as_html(summary: str, sections: list[Section], endings: list[str]) -> str:
    """Lay out an explanation as HTML."""
    parts = [f"<p>{escape(summary)}</p>"]
    for heading, rows in sections:
        body = "".join(
            f'<tr><th scope="row">{escape(left)}</th><td>{escape(right)}</td></tr>'
            for left, right in rows
        )
        parts.append(f"<table><caption>{escape(heading)}</caption><tbody>{body}</tbody></table>")
    parts += [f"<p>{escape(line)}</p>" for line in endings]
    return f'<div class="hpgmn-explanation">{"".join(parts)}</div>'
