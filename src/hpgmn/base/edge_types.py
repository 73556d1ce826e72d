"""Types of edges: at most eight, matched by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpgmn.base.errors import GraphError, Remedy, list_names

MAX_TYPES = 8
"""Rarer types are merged into the last one, :data:`OTHER`."""

OTHER, MISSING = "other", "missing"
"""The type of rare types, and that of edges without one in a table."""


def merge_rare_types(
    types: npt.NDArray[Any], names: Sequence[str]
) -> tuple[npt.NDArray[np.uint8], tuple[str, ...]]:
    """Return types (E,) and their names, the rarest merged if there are too many.

    >>> merge_rare_types(np.array([8, 8, 0, 1, 2, 3, 4, 5, 6, 7]), list("abcdefghi"))[1]
    ('a', 'b', 'c', 'd', 'e', 'f', 'i', 'other')
    """
    if len(names) <= MAX_TYPES:
        return types.astype(np.uint8), tuple(names)
    counts = np.bincount(types, minlength=len(names))
    if OTHER in names:
        counts[list(names).index(OTHER)] = -1
    kept = np.sort(np.argsort(-counts, kind="stable")[: MAX_TYPES - 1])
    numbers = np.full(len(names), MAX_TYPES - 1, np.uint8)
    numbers[kept] = np.arange(MAX_TYPES - 1)
    return numbers[types], (*(names[number] for number in kept), OTHER)


def match_types(names: Sequence[str], known: Sequence[str], label: str) -> list[int]:
    """Return the number of each name among known ones; unknown names are of type "other".

    Args:
        label: what has the types, for the message where there is no such type.
    """
    unknown = [name for name in names if name not in known]
    if unknown and OTHER not in known:
        raise GraphError(
            f"{label} has edges of type {list_names(unknown)}, but the model was trained on "
            f"{list_names(known)}.",
            Remedy("Rename them") | "Leave out such edges",
        )
    return [known.index(name if name in known else OTHER) for name in names]


def match_graph_types(graph: Any, known: Sequence[str]) -> list[int]:
    """Return the number of each edge type of a graph among those of the training graph."""
    names = graph.edge_type_names
    if not names:
        raise GraphError(
            f"The edges of graph '{graph.name}' have no types, but the model was trained on "
            f"{list_names(known)}.",
            Remedy("Name the column of types", option="edge_type"),
        )
    if names[MAX_TYPES - 1 :] == (OTHER,) and not set(names) <= set(known):
        raise GraphError(
            f"Rare edge types of graph '{graph.name}' are merged, but not those of the model.",
            "Merge the types of both graphs alike",
        )
    return match_types(names, known, f"Graph '{graph.name}'")
