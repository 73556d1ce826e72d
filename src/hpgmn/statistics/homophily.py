"""Measures of how alike neighbours are; reports use them, models do not."""

from __future__ import annotations

import numpy as np

from hpgmn.graph import Graph


def node_homophily(graph: Graph) -> float:
    """Mean share of a node's neighbours that have its class.

    Neighbourhoods are undirected, without self-loops, each neighbour counted once. Only labelled
    neighbours count, and only labelled nodes that have one; without any, the answer is NaN.

    >>> node_homophily(Graph([[0.0]] * 4, [[0, 0, 2], [1, 2, 3]], [0, 0, 1, -1]))
    0.5
    """
    adjacency = graph.adjacency("undirected")
    center = np.repeat(np.arange(graph.num_nodes), np.diff(adjacency.indptr))
    neighbor = adjacency.indices
    known = (graph.y[center] >= 0) & (graph.y[neighbor] >= 0)
    center, neighbor = center[known], neighbor[known]
    same = graph.y[center] == graph.y[neighbor]
    neighbors = np.bincount(center, minlength=graph.num_nodes)
    alike = np.bincount(center, weights=same, minlength=graph.num_nodes)
    counted = neighbors > 0
    if not counted.any():
        return float("nan")
    return float((alike[counted] / neighbors[counted]).mean())
