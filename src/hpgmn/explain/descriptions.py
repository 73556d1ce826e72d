"""Descriptions of statistics and neighbours in plain words."""

from __future__ import annotations

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
