"""Degrees, components, self-loops, repeats and directions: the graph without its labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

from hpgmn.graph import Array, Graph


@dataclass(frozen=True)
class Degrees:
    """How many neighbours nodes have, self-loops and repeats not counted.

    Attributes:
        least: the fewest.
        median: the middle.
        most: the most.
        without: how many nodes have none.
    """

    least: int
    median: float
    most: int
    without: int

    @classmethod
    def of(cls, degrees: Array) -> Degrees:
        """From one number per node.

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
    """What the edges look like.

    Attributes:
        nodes: N.
        listed_edges: edges as listed, self-loops and repeats included.
        edges: distinct edges without self-loops; an undirected edge counts once.
        directed: whether an edge runs one way.
        self_loops: edges from a node to itself, as listed.
        repeated_edges: edges listed before with the same ends in the same order.
        both_ways: share of the distinct edges whose reverse is there, too; 1 if not directed.
        out_degrees: of each node's out-neighbours.
        in_degrees: of its in-neighbours.
        degrees: of all its neighbours; a node without any is isolated.
        components: weakly connected ones, isolated nodes included.
        largest_component: nodes of the largest.
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
    again = (sources[1:] == sources[:-1]) & (edges.targets[1:] == edges.targets[:-1])
    out, into = graph.adjacency("out"), graph.adjacency("in")
    either = graph.adjacency("undirected")
    # Of |A ∪ Aᵀ| = 2|A| - |A ∩ Aᵀ| pairs, those in both are edges that run both ways.
    both = 2 * out.nnz - either.nnz
    components, member = connected_components(either, directed=False)
    return Structure(
        nodes=graph.num_nodes,
        listed_edges=graph.num_listed_edges,
        edges=graph.num_edges,
        directed=graph.directed,
        self_loops=int((sources == edges.targets).sum()),
        repeated_edges=int(again.sum()),
        both_ways=both / out.nnz if out.nnz else 1.0,
        out_degrees=Degrees.of(np.diff(out.indptr)),
        in_degrees=Degrees.of(np.diff(into.indptr)),
        degrees=Degrees.of(np.diff(either.indptr)),
        components=int(components),
        largest_component=int(np.bincount(member).max()),
    )
