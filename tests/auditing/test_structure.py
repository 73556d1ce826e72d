"""The measures of edges against loops over them."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.auditing.structure import Degrees, structure
from hpgmn.graph import Graph

NODES = 6
Edges = list[tuple[int, int]]


def degrees_by_loop(neighbors: list[set[int]]) -> Degrees:
    sizes = sorted(len(one) for one in neighbors)
    return Degrees(sizes[0], float(statistics.median(sizes)), sizes[-1], sizes.count(0))


def parts_by_loop(edges: Edges) -> list[int]:
    """Sizes of the connected parts: every edge merges the parts of its ends."""
    part = list(range(NODES))
    for a, b in edges:
        old, new = part[a], part[b]
        part = [new if one == old else one for one in part]
    return [part.count(one) for one in set(part)]


@given(
    edges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14),
    directed=st.booleans(),
    weighted=st.booleans(),
)
def test_measures_match_loops(edges: Edges, directed: bool, weighted: bool) -> None:
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    weight = np.linspace(1, 2, len(edges)) if weighted else None
    found = structure(Graph(np.ones((NODES, 1)), ends, edge_weight=weight, directed=directed))
    arrows = {(a, b) for a, b in edges if a != b}
    if not directed:
        arrows |= {(b, a) for a, b in arrows}
    out = [{b for a, b in arrows if a == node} for node in range(NODES)]
    into = [{a for a, b in arrows if b == node} for node in range(NODES)]
    assert found.nodes == NODES
    assert found.directed is directed
    assert found.listed_edges == len(edges)
    assert found.edges == (len(arrows) if directed else len(arrows) // 2)
    assert found.self_loops == sum(a == b for a, b in edges)
    assert found.repeated_edges == len(edges) - len(set(edges))
    returned = sum((b, a) in arrows for a, b in arrows)
    assert found.both_ways == pytest.approx(returned / len(arrows) if arrows else 1.0)
    assert found.is_one_way is (returned < len(arrows))
    assert found.out_degrees == degrees_by_loop(out)
    assert found.in_degrees == degrees_by_loop(into)
    assert found.degrees == degrees_by_loop([a | b for a, b in zip(out, into, strict=True)])
    sizes = parts_by_loop(edges)
    assert (found.components, found.largest_component) == (len(sizes), max(sizes))
