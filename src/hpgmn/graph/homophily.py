"""Homophily measures; reports use them, models do not.

All use undirected neighbours without self-loops, each neighbour counted once, and leave out
unlabelled nodes and classes without labelled nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.sparse as sp

from hpgmn.graph.edges import Array


class LabelledGraph(Protocol):
    """What the measures read of a graph."""

    y: Array
    num_nodes: int

    @property
    def num_classes(self) -> int:
        """C."""

    def adjacency(self, neighbors: str) -> sp.csr_array:
        """Return the adjacency matrix."""


@dataclass(frozen=True)
class Homophily:
    """Five measures of one graph; NaN where a measure is undefined.

    Attributes:
        node: mean share of a node's neighbours that have its class.
        edge: share of edges between nodes of one class.
        class_insensitive: edge homophily by class beyond the class sizes; 0 to 1.
        adjusted: edge homophily beyond chance, given the classes' degrees; at most 1.
        label_informativeness: the share of information on a node's label in a neighbour's label;
            0 to 1, high for any pattern, homophilous or not.
    """

    node: float
    edge: float
    class_insensitive: float
    adjusted: float
    label_informativeness: float


def homophily(graph: LabelledGraph) -> Homophily:
    """Compute all five measures."""
    return Homophily(
        node=node_homophily(graph),
        edge=edge_homophily(graph),
        class_insensitive=class_insensitive_homophily(graph),
        adjusted=adjusted_homophily(graph),
        label_informativeness=label_informativeness(graph),
    )


def node_homophily(graph: LabelledGraph) -> float:
    """Compute the mean share of a node's neighbours that have its class.

    Only labelled neighbours count, and only labelled nodes that have one; NaN without any.

    >>> from hpgmn import Graph
    >>> node_homophily(Graph([[0.0]] * 4, [[0, 0, 2], [1, 2, 3]], [0, 0, 1, -1]))
    0.5
    """
    center, neighbor = _labelled_neighbors(graph)
    same = graph.y[center] == graph.y[neighbor]
    neighbors = np.bincount(center, minlength=graph.num_nodes)
    of_same_class = np.bincount(center, weights=same, minlength=graph.num_nodes)
    counted = neighbors > 0
    if not counted.any():
        return math.nan
    return float((of_same_class[counted] / neighbors[counted]).mean())


def edge_homophily(graph: LabelledGraph) -> float:
    """Compute the share of edges between labelled nodes that join nodes of one class.

    >>> from hpgmn import Graph
    >>> edge_homophily(Graph([[0.0]] * 4, [[0, 1, 2], [1, 2, 3]], [0, 0, 1, -1]))
    0.5
    """
    pairs = _class_pairs(graph)
    total = pairs.sum()
    return float(pairs.trace() / total) if total else math.nan


def class_insensitive_homophily(graph: LabelledGraph) -> float:
    """Compute the class-insensitive edge homophily of Lim et al. (LINKX, NeurIPS 2021).

    1/(C-1) · Σ_k max(0, h_k - |C_k|/n), where h_k is the share of the neighbours of class k's nodes
    that are of class k. A class whose nodes have no labelled neighbour adds nothing.

    >>> from hpgmn import Graph
    >>> class_insensitive_homophily(Graph([[0.0]] * 4, [[0, 2], [1, 3]], [0, 0, 1, 1]))
    1.0
    """
    sizes = np.bincount(graph.y[graph.y >= 0], minlength=graph.num_classes)
    present = int((sizes > 0).sum())
    pairs = _class_pairs(graph)
    if present < 2 or not pairs.nnz:
        return math.nan
    degrees = np.asarray(pairs.sum(axis=1)).ravel()
    shares = pairs.diagonal() / np.maximum(degrees, 1)
    excess = np.maximum(0, shares - sizes / sizes.sum())
    return float(excess[degrees > 0].sum() / (present - 1))


def adjusted_homophily(graph: LabelledGraph) -> float:
    """Compute the adjusted homophily of Platonov et al. (Characterizing …, NeurIPS 2023).

    (h_edge - Σ_k p_k²) / (1 - Σ_k p_k²), where p_k is the share of class k in the sum of degrees.

    >>> from hpgmn import Graph
    >>> adjusted_homophily(Graph([[0.0]] * 4, [[0, 2], [1, 3]], [0, 0, 1, 1]))
    1.0
    """
    pairs = _class_pairs(graph)
    if not pairs.nnz:
        return math.nan
    shares = np.asarray(pairs.sum(axis=1)).ravel() / pairs.sum()
    chance = float((shares**2).sum())
    if (shares > 0).sum() < 2:
        return math.nan
    return float((pairs.trace() / pairs.sum() - chance) / (1 - chance))


def label_informativeness(graph: LabelledGraph) -> float:
    """Compute the label informativeness of Platonov et al. (NeurIPS 2023), in its edge form.

    2 - H(y_a, y_b) / H(y_a) for the ends a, b of a random edge: 1 if a neighbour's label determines
    a node's own, 0 if the two are independent.

    >>> from hpgmn import Graph
    >>> round(label_informativeness(Graph([[0.0]] * 4, [[0, 2], [1, 3]], [0, 1, 0, 1])), 6)
    1.0
    """
    pairs = _class_pairs(graph)
    if not pairs.nnz:
        return math.nan
    joint = pairs.data / pairs.sum()
    shares = np.asarray(pairs.sum(axis=1)).ravel() / pairs.sum()
    shares = shares[shares > 0]
    if shares.size < 2:
        return math.nan
    # Rounding may give slightly less than zero for independent labels.
    return max(0.0, float(2 - (joint * np.log(joint)).sum() / (shares * np.log(shares)).sum()))


def _labelled_neighbors(graph: LabelledGraph) -> tuple[Array, Array]:
    """Return both ends of every edge between labelled nodes, in both directions."""
    adjacency = graph.adjacency("undirected")
    center = np.repeat(np.arange(graph.num_nodes), np.diff(adjacency.indptr))
    neighbor = adjacency.indices
    known = (graph.y[center] >= 0) & (graph.y[neighbor] >= 0)
    return center[known], neighbor[known]


def _class_pairs(graph: LabelledGraph) -> sp.csr_array:
    """Count (C, C) pairs of neighbours by class; sparse, as C may be large."""
    center, neighbor = _labelled_neighbors(graph)
    size = max(1, graph.num_classes)
    ones = np.ones(center.size)
    pairs = sp.coo_array((ones, (graph.y[center], graph.y[neighbor])), shape=(size, size))
    return sp.csr_array(pairs)
