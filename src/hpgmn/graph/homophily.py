"""Homophily measures; reports use them, models do not.

All use undirected neighbours without self-loops, each neighbour counted once, and leave out
unlabelled nodes and classes without labelled nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.graph.edges import Array


@dataclass(frozen=True)
class Homophily:
    """Five measures of one graph; NaN where a measure is undefined.

    Attributes:
        node: mean share of a node's neighbours that have its class.
        edge: share of edges between nodes of one class.
        class_insensitive: edge homophily by class beyond the class sizes; 0 to 1 (Lim et al.,
            LINKX, NeurIPS 2021): 1/(C-1) · Σ_k max(0, h_k - |C_k|/n), where h_k is the share of
            the neighbours of class k's nodes that are of class k.
        adjusted: edge homophily beyond chance, given the classes' degrees; at most 1 (Platonov et
            al., NeurIPS 2023): (h_edge - Σ_k p_k²) / (1 - Σ_k p_k²), where p_k is the share of
            class k in the sum of degrees.
        label_informativeness: the share of information on a node's label in a neighbour's label;
            0 to 1, high for any pattern, homophilous or not (Platonov et al.):
            2 - H(y_a, y_b) / H(y_a) for the ends a, b of a random edge.
    """

    node: float
    edge: float
    class_insensitive: float
    adjusted: float
    label_informativeness: float


def homophily(graph: Any) -> Homophily:
    """Compute all five measures.

    >>> from hpgmn import Graph
    >>> homophily(Graph([[0.0]] * 4, [[0, 2], [1, 3]], [0, 0, 1, 1])).adjusted
    1.0
    """
    center, neighbor = _labelled_neighbors(graph)
    if not center.size:
        return Homophily(math.nan, math.nan, math.nan, math.nan, math.nan)
    shape = (graph.num_classes, graph.num_classes)  # sparse, as C may be large
    labels = (graph.y[center], graph.y[neighbor])
    pairs = sp.csr_array(sp.coo_array((np.ones(center.size), labels), shape=shape))
    degrees = np.asarray(pairs.sum(axis=1)).ravel()
    edge = float(pairs.trace() / center.size)

    class_insensitive = adjusted = informativeness = math.nan
    sizes = np.bincount(graph.y[graph.y >= 0], minlength=graph.num_classes)
    num_present = int((sizes > 0).sum())
    if num_present >= 2:
        excess = pairs.diagonal() / np.maximum(degrees, 1) - sizes / sizes.sum()
        class_insensitive = float(np.maximum(0, excess)[degrees > 0].sum() / (num_present - 1))
    shares = degrees[degrees > 0] / center.size
    if shares.size >= 2:
        chance = float((shares**2).sum())
        adjusted = (edge - chance) / (1 - chance)
        joint = pairs.data / center.size
        ratio = (joint * np.log(joint)).sum() / (shares * np.log(shares)).sum()
        informativeness = max(0.0, float(2 - ratio))  # rounding may give slightly less
    node = _node_homophily(graph, center, neighbor)
    return Homophily(node, edge, class_insensitive, adjusted, informativeness)


def node_homophily(graph: Any) -> float:
    """Compute the mean share of a node's neighbours that have its class.

    Only labelled neighbours count, and only labelled nodes that have one; NaN without any.

    >>> from hpgmn import Graph
    >>> node_homophily(Graph([[0.0]] * 4, [[0, 0, 2], [1, 2, 3]], [0, 0, 1, -1]))
    0.5
    """
    return _node_homophily(graph, *_labelled_neighbors(graph))


def _node_homophily(graph: Any, center: Array, neighbor: Array) -> float:
    if not center.size:
        return math.nan
    same = graph.y[center] == graph.y[neighbor]
    neighbors = np.bincount(center, minlength=graph.num_nodes)
    of_same_class = np.bincount(center, weights=same, minlength=graph.num_nodes)
    counted = neighbors > 0
    return float((of_same_class[counted] / neighbors[counted]).mean())


def _labelled_neighbors(graph: Any) -> tuple[Array, Array]:
    """Return both ends of every edge between labelled nodes, in both directions.

    Targets have no homophily: none are returned.
    """
    if graph.is_regression:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    adjacency = graph.adjacency("undirected")
    center = np.repeat(np.arange(graph.num_nodes), np.diff(adjacency.indptr))
    neighbor = adjacency.indices
    known = (graph.y[center] >= 0) & (graph.y[neighbor] >= 0)
    return center[known], neighbor[known]
