"""The attribute of nodes whose table has none: their degree, on a logarithmic scale."""

from __future__ import annotations

import numpy as np

from hpgmn.graph import Array
from hpgmn.tables.preparation import DEGREE, Column


def log_degrees(edge_index: Array, num_nodes: int) -> Array:
    """(N,) logarithm of one more than each node's edges, whichever way they run.

    Args:
        edge_index: (2, E) positions; a self-loop counts twice.
        num_nodes: N.

    >>> np.expm1(log_degrees(np.array([[0, 0, 2], [1, 2, 2]]), 4)).round().tolist()
    [2.0, 1.0, 3.0, 0.0]
    """
    ends = np.asarray(edge_index).reshape(-1)
    counts: Array = np.bincount(ends, minlength=num_nodes)
    return np.log1p(counts)


def degree_column(values: Array) -> Column:
    """The attribute, standardised by the mean and deviation of these values."""
    deviation = float(values.std())
    return Column(DEGREE, DEGREE, float(values.mean()), deviation or 1.0)
