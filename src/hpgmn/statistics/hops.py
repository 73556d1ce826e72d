"""Means of attributes over walks of one to ``hops`` edges, as rows that batches can read."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from typing_extensions import override

from hpgmn.base.errors import HPGMNError, Remedy, format_bytes
from hpgmn.base.sparse import scale_attributes, transition
from hpgmn.graph import Array
from hpgmn.statistics.definitions import ROWS_LIMIT_BYTES, Definition, Request, Selection
from hpgmn.statistics.operators import DenseRows, Statistic

_SKETCHED = 64  # columns of the sketch that the error proposes


class Hops(Definition):
    """[P·x ‖ P²·x ‖ …] with P = D⁻¹·A: the mean attributes one edge away, two edges away.

    Up to :data:`~hpgmn.statistics.definitions.ROWS_LIMIT_BYTES` per edge direction; beyond that
    the attributes have to be sketched.
    """

    settings = ("attributes_scaling", "hops", "hops_dim")

    @override
    def build(self, request: Request, settings: Selection) -> Statistic:
        graph = request.source.graph
        width = settings.hops_dim or graph.num_features
        size = 4 * graph.num_nodes * settings.hops * width
        if size > ROWS_LIMIT_BYTES:
            sketch = Remedy("Sketch the attributes", setting="hops_dim", value=_SKETCHED)
            raise HPGMNError(
                f"The statistic hops takes {format_bytes(size)} for {graph.num_nodes:,} nodes "
                f"({format_bytes(ROWS_LIMIT_BYTES)} at most).",
                sketch | Remedy("Use fewer", setting="hops", value=1) | "Leave it out",
            )
        x = hop_attributes(graph.x, settings)
        matrix = transition(request.adjacency, "row")
        rows = np.empty((graph.num_nodes, settings.hops * width), np.float32)
        for first in range(0, rows.shape[1], width):
            x = matrix @ x
            if sp.issparse(x):
                x = x.toarray()
            rows[:, first : first + width] = x
        return DenseRows(request.source.tensor(rows))


def hop_attributes(x: Any, settings: Any) -> Any:
    """Return the attributes that hops average: scaled, and sketched with ``hops_dim``."""
    x = scale_attributes(x, settings.attributes_scaling)
    if settings.hops_dim:
        from hpgmn.statistics.diffusion import sketch_attributes

        x = sketch_attributes(x, settings.hops_dim)
    return x


def hop_row(adjacency: sp.csr_array, x: Any, node: int, hops: int) -> Array:
    """Return (hops·width,) the row of one node, without those of others."""
    matrix = transition(adjacency, "row").T.tocsr()
    walk = np.zeros(adjacency.shape[0], np.float32)
    walk[node] = 1
    parts = []
    for _ in range(hops):
        walk = matrix @ walk
        parts.append(np.asarray(x.T @ walk, np.float32).reshape(-1))
    return np.concatenate(parts)
