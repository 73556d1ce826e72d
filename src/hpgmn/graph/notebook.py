"""Small HTML tables that notebooks show; every value is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from hpgmn.graph.homophily import node_homophily

HOMOPHILY_EDGES = 2_000_000
"""Homophily is computed for at most this many edges: a table should appear at once."""

_MAX_CLASSES = 20


def facts_html(title: str, facts: Iterable[tuple[str, Any]]) -> str:
    """Render a table of facts under a title.

    >>> facts_html("<x>", [("nodes", 3)])
    '<table><caption>&lt;x&gt;</caption><tr><th scope="row">nodes</th><td>3</td></tr></table>'
    """
    rows = "".join(
        f'<tr><th scope="row">{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>'
        for name, value in facts
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


def graph_html(graph: Any) -> str:
    """Render a graph: sizes, class counts, splits and homophily."""
    edges = f"{graph.num_edges:,}, {'directed' if graph.directed else 'undirected'}"
    facts = [
        ("Nodes", f"{graph.num_nodes:,}"),
        ("Edges", f"{edges}{', weighted' if graph.is_weighted else ''}"),
        ("Attributes", f"{graph.num_features:,}{', sparse' * graph.has_sparse_attributes}"),
        ("Classes", _classes(graph)),
        ("Splits", _splits(graph)),
        ("Node homophily", _homophily(graph)),
    ]
    return facts_html(f"Graph '{graph.name}'", facts)


def _classes(graph: Any) -> str:
    """List the class sizes, unlabelled nodes last."""
    counts = np.bincount(graph.y[graph.y >= 0], minlength=graph.num_classes)
    named = [f"{name}: {count:,}" for name, count in zip(graph.class_names, counts, strict=True)]
    if len(named) > _MAX_CLASSES:
        named[_MAX_CLASSES:] = [f"and {len(named) - _MAX_CLASSES:,} more classes"]
    unknown = int((graph.y < 0).sum())
    if unknown:
        named.append(f"without a label: {unknown:,}")
    return ", ".join(named)


def _splits(graph: Any) -> str:
    """Describe the number of splits and the sizes of the first."""
    if graph.splits is None:
        return "none"
    first = graph.splits[0]
    sizes = ", ".join(f"{part} {getattr(first, part).sum():,}" for part in ("train", "val", "test"))
    many = len(graph.splits)
    return sizes if many == 1 else f"{many}, the first: {sizes}"


def _homophily(graph: Any) -> str:
    if graph.num_listed_edges > HOMOPHILY_EDGES:
        return f"not computed above {HOMOPHILY_EDGES:,} edges"
    value = node_homophily(graph)
    return "unknown: no labelled neighbours" if math.isnan(value) else f"{value:.2f}"
