"""Measures of how alike neighbours are; reports use them, models do not.

All of them read undirected neighbours without self-loops, each neighbour counted once, and leave
out unlabelled nodes. Classes that no labelled node has do not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from hpgmn.graph.graph import Array, Graph


@dataclass(frozen=True)
class Homophily:
    """Five measures of one graph; NaN where a measure says nothing.

    Attributes:
        node: mean share of a node's neighbours that have its class.
        edge: share of edges between nodes of one class.
        class_insensitive: by how much classes keep to themselves beyond their size; 0 to 1.
        adjusted: edge homophily beyond what the classes' degrees give; 1 at most, 0 by chance.
        label_informativeness: what share of a node's label a neighbour's label tells; 0 to 1. It is
            high wherever there is a pattern, homophilous or not.
    """

    node: float
    edge: float
    class_insensitive: float
    adjusted: float
    label_informativeness: float


def homophily(graph: Graph) -> Homophily:
    """All five measures."""
    return Homophily(
        node=node_homophily(graph),
        edge=edge_homophily(graph),
        class_insensitive=class_insensitive_homophily(graph),
        adjusted=adjusted_homophily(graph),
        label_informativeness=label_informativeness(graph),
    )


def node_homophily(graph: Graph) -> float:
    """Mean share of a node's neighbours that have its class.

    Neighbourhoods are undirected, without self-loops, each neighbour counted once. Only labelled
    neighbours count, and only labelled nodes that have one; without any, the answer is NaN.

    >>> node_homophily(Graph([[0.0]] * 4, [[0, 0, 2], [1, 2, 3]], [0, 0, 1, -1]))
    0.5
    """
    center, neighbor = _labelled_neighbors(graph)
    same = graph.y[center] == graph.y[neighbor]
    neighbors = np.bincount(center, minlength=graph.num_nodes)
    alike = np.bincount(center, weights=same, minlength=graph.num_nodes)
    counted = neighbors > 0
    if not counted.any():
        return math.nan
    return float((alike[counted] / neighbors[counted]).mean())


def edge_homophily(graph: Graph) -> float:
    """Share of the edges between labelled nodes that join nodes of one class.

    >>> edge_homophily(Graph([[0.0]] * 4, [[0, 1, 2], [1, 2, 3]], [0, 0, 1, -1]))
    0.5
    """
    pairs = _class_pairs(graph)
    total = pairs.sum()
    return float(pairs.trace() / total) if total else math.nan


def class_insensitive_homophily(graph: Graph) -> float:
    """Class-insensitive edge homophily of Lim et al. (Large Scale Learning on …, NeurIPS 2021).

    1/(C-1) · Σ_k max(0, h_k - |C_k|/n), where h_k is the share of the neighbours of class k's nodes
    that are of class k. A class whose nodes have no labelled neighbour adds nothing.

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


def adjusted_homophily(graph: Graph) -> float:
    """Adjusted homophily of Platonov et al. (Characterizing Graph Datasets …, NeurIPS 2023).

    (h_edge - Σ_k p_k²) / (1 - Σ_k p_k²), where p_k is the share of class k in the sum of degrees.

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


def label_informativeness(graph: Graph) -> float:
    """Label informativeness of Platonov et al. (NeurIPS 2023), in its edge form.

    2 - H(y_a, y_b) / H(y_a) for the ends a, b of a random edge: 1 where a neighbour's label tells a
    node's own, 0 where the two are independent.

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
    # Rounding may leave a trace below zero where labels are independent.
    return max(0.0, float(2 - (joint * np.log(joint)).sum() / (shares * np.log(shares)).sum()))


def _labelled_neighbors(graph: Graph) -> tuple[Array, Array]:
    """Both ends of every edge between labelled nodes, each edge in both directions."""
    adjacency = graph.adjacency("undirected")
    center = np.repeat(np.arange(graph.num_nodes), np.diff(adjacency.indptr))
    neighbor = adjacency.indices
    known = (graph.y[center] >= 0) & (graph.y[neighbor] >= 0)
    return center[known], neighbor[known]


def _class_pairs(graph: Graph) -> sp.csr_array:
    """(C, C) how often neighbours have which two classes; sparse, for C may be large."""
    center, neighbor = _labelled_neighbors(graph)
    size = max(1, graph.num_classes)
    ones = np.ones(center.size)
    pairs = sp.coo_array((ones, (graph.y[center], graph.y[neighbor])), shape=(size, size))
    return sp.csr_array(pairs)
