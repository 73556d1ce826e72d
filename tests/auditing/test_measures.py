"""Measures of edges and classes against plain loops."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.auditing.measures import Degrees, MissingClass, class_balance, missing_classes, structure
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


def graph_with(y: list[int], roles: list[str], names: list[str]) -> Graph:
    """A word per split for each node: t(rain), v(al), e (test) or - (none)."""
    masks = {
        f"{part}_mask": np.array([[letter == key for letter in word] for word in roles])
        for part, key in (("train", "t"), ("val", "v"), ("test", "e"))
    }
    return Graph(np.ones((len(y), 1)), [[0], [1]], y, class_names=names, **masks)


def test_classes_are_counted_with_those_nobody_has() -> None:
    graph = Graph(np.ones((6, 1)), [[0], [1]], [2, 0, 2, -1, 2, -1], class_names=["a", "b", "c"])
    found = class_balance(graph)
    assert found.counts == {"a": 1, "b": 0, "c": 3}
    assert found.unlabelled == 2
    assert found.largest_share == pytest.approx(0.75)


def test_without_labels_there_is_no_largest_class() -> None:
    found = class_balance(Graph(np.ones((3, 1)), [[0], [1]]))
    assert (found.unlabelled, found.largest_share) == (3, 0.0)


def test_a_class_that_a_part_lacks_is_named_with_its_splits() -> None:
    graph = graph_with(
        [0, 0, 0, 1, 1, 1, -1],
        ["tt", "vt", "ev", "tv", "te", "vv", "--"],
        ["few", "many", "nobody"],
    )
    assert missing_classes(graph) == (
        MissingClass("many", "train", (1,)),
        MissingClass("few", "test", (1,)),
        MissingClass("many", "test", (0,)),
    )


def test_a_part_without_nodes_lacks_no_class() -> None:
    assert missing_classes(graph_with([0, 1, 0, 1], ["t", "t", "v", "v"], ["a", "b"])) == ()


def test_without_splits_nothing_is_missing() -> None:
    assert missing_classes(Graph(np.ones((2, 1)), [[0], [1]], [0, 1])) == ()
