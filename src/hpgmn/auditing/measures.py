"""Measures of edges and classes: degrees, components, class sizes, classes missing in splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

from hpgmn.graph import Array, Graph

PARTS = ("train", "val", "test")
"""The parts of a split."""


@dataclass(frozen=True)
class Degrees:
    """Numbers of neighbours, without self-loops and repeats; ``without`` counts nodes with none."""

    least: int
    median: float
    most: int
    without: int

    @classmethod
    def of(cls, degrees: Array) -> Degrees:
        """Summarise one number per node.

        >>> Degrees.of(np.array([0, 1, 4, 5]))
        Degrees(least=0, median=2.5, most=5, without=1)
        """
        return cls(
            int(degrees.min()),
            float(np.median(degrees)),
            int(degrees.max()),
            int((degrees == 0).sum()),
        )


@dataclass(frozen=True)
class Structure:
    """Measures of the edges.

    Attributes:
        nodes: N.
        listed_edges: edges as listed, self-loops and repeats included.
        edges: distinct edges without self-loops; an undirected edge counts once.
        directed: whether edges are directed.
        self_loops: edges from a node to itself, as listed.
        repeated_edges: edges listed again in the same direction.
        both_ways: share of the distinct edges whose reverse exists; 1 if not directed.
        out_degrees: of each node's out-neighbours.
        in_degrees: of its in-neighbours.
        degrees: of all its neighbours.
        components: weakly connected, isolated nodes included.
        largest_component: its number of nodes.
    """

    nodes: int
    listed_edges: int
    edges: int
    directed: bool
    self_loops: int
    repeated_edges: int
    both_ways: float
    out_degrees: Degrees
    in_degrees: Degrees
    degrees: Degrees
    components: int
    largest_component: int

    @property
    def is_one_way(self) -> bool:
        """Whether out-neighbours and in-neighbours differ."""
        return self.both_ways < 1


def structure(graph: Graph) -> Structure:
    """Measure the edges of a graph."""
    edges = graph.sorted_edges
    sources = np.repeat(np.arange(graph.num_nodes), np.diff(edges.indptr))
    repeated = (sources[1:] == sources[:-1]) & (edges.targets[1:] == edges.targets[:-1])
    out, into = graph.adjacency("out"), graph.adjacency("in")
    either = graph.adjacency("undirected")
    # |A ∪ Aᵀ| = 2|A| - |A ∩ Aᵀ|
    both = 2 * out.nnz - either.nnz
    components, member = connected_components(either, directed=False)
    return Structure(
        nodes=graph.num_nodes,
        listed_edges=graph.num_listed_edges,
        edges=graph.num_edges,
        directed=graph.directed,
        self_loops=int((sources == edges.targets).sum()),
        repeated_edges=int(repeated.sum()),
        both_ways=both / out.nnz if out.nnz else 1.0,
        out_degrees=Degrees.of(np.diff(out.indptr)),
        in_degrees=Degrees.of(np.diff(into.indptr)),
        degrees=Degrees.of(np.diff(either.indptr)),
        components=int(components),
        largest_component=int(np.bincount(member).max()),
    )


@dataclass(frozen=True)
class ClassBalance:
    """The labels of all nodes, counted.

    Attributes:
        counts: labelled nodes of each class by name, empty classes included.
        unlabelled: nodes without a label.
        largest_share: share of the largest class among labelled nodes; 0 if there are none.
    """

    counts: dict[str, int]
    unlabelled: int
    largest_share: float


@dataclass(frozen=True)
class MissingClass:
    """A class that a part of some splits lacks.

    Attributes:
        name: the class.
        part: "train", "val" or "test".
        splits: the splits concerned.
    """

    name: str
    part: str
    splits: tuple[int, ...]


def class_balance(graph: Graph) -> ClassBalance:
    """Count the labels."""
    known = graph.y[graph.y >= 0]
    counts = np.bincount(known, minlength=graph.num_classes)
    return ClassBalance(
        counts={
            str(name): int(count) for name, count in zip(graph.class_names, counts, strict=True)
        },
        unlabelled=graph.num_nodes - known.size,
        largest_share=float(counts.max() / known.size) if known.size else 0.0,
    )


def missing_classes(graph: Graph) -> tuple[MissingClass, ...]:
    """Return classes that have labelled nodes, but none in a non-empty part of some split."""
    if graph.splits is None:
        return ()
    present = np.unique(graph.y[graph.y >= 0])
    found = []
    for part in PARTS:
        masks = [getattr(split, part) & (graph.y >= 0) for split in graph.splits]
        counts = np.stack(
            [np.bincount(graph.y[mask], minlength=graph.num_classes) for mask in masks]
        )
        lacks = counts.any(axis=1, keepdims=True) & (counts == 0)  # (S, C)
        for label in present[lacks[:, present].any(axis=0)]:
            splits = tuple(int(number) for number in np.flatnonzero(lacks[:, label]))
            found.append(MissingClass(str(graph.class_names[label]), part, splits))
    return tuple(found)
