"""Random sketches: S·Ω for diffusion and X·Ω for class means; see docs/decisions/0005.

Ω[u, j] is ±1/√d, a hash of u's name and of j, so nodes shared by two graphs have equal rows.
E[Ω·Ωᵀ] = I: inner products of rows are preserved up to an error that shrinks as 1/√d (Johnson and
Lindenstrauss).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.randomness import signs, text_keys
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Array, Attributes, Graph
from hpgmn.statistics.diffusion import series

BLOCK = 16
"""Columns computed at once: few, so that neighbours' rows stay in the cache."""


def node_keys(graph: Graph) -> Tensor:
    """Return a hash of each node's name, or of its position if it has none: (N,)."""
    names = graph.node_ids
    return text_keys(np.arange(graph.num_nodes).astype(np.str_) if names is None else names)


def sketch(
    transition_matrix: SparseMatrix,
    theta: Array,
    keys: Tensor,
    dim: int,
    *,
    self_entry: bool = True,
    unit_length: bool = False,
) -> Tensor:
    """Return S·Ω for S = Σ θ_k T^k: (N, d) float32.

    Without self entries, rows are projected: s - Ω_v·(Ω_vᵀ·s) removes S[v, v]·Ω_v exactly, and of
    the rest a share of about 1/d, less than the error of the sketch.

    Args:
        transition_matrix: T, (N, N), on the device of the computation.
        theta: the coefficients of the series.
        keys: (N,) from :func:`node_keys`.
        dim: d.
        self_entry: whether S[v, v] counts.
        unit_length: whether each row of the sketch is scaled to length 1.
    """
    keys = keys.to(transition_matrix.device)
    result = torch.empty(keys.numel(), dim, device=keys.device)
    along = torch.zeros(keys.numel(), 1, device=keys.device)
    # θ_0 affects the self entry only; subtracting it afterwards would lose digits.
    theta = theta if self_entry else np.append(0.0, theta[1:])
    blocks = [(first, min(first + BLOCK, dim)) for first in range(0, dim, BLOCK)]
    for first, last in blocks:
        start = signs(keys, first, last)
        block = result[:, first:last] = series(transition_matrix, start, theta)
        if not self_entry:
            along += (block * start).sum(dim=1, keepdim=True)
    if not self_entry:
        for first, last in blocks:
            result[:, first:last] -= signs(keys, first, last).mul_(along / dim)
        # Isolated nodes hold rounding errors only, which unit length would amplify.
        result[torch.from_numpy(_isolated_nodes(transition_matrix)).to(keys.device)] = 0
    if not unit_length:
        return result.mul_(1 / math.sqrt(dim))
    lengths = torch.linalg.vector_norm(result, dim=1, keepdim=True)
    return result.div_(torch.where(lengths > 0, lengths, 1))


def sketch_attributes(x: Attributes, dim: int) -> Array:
    """Return X·Ω with signs hashed from the column numbers: (N, d) float32.

    It is linear, so class means of it are exactly the sketch of class means.

    Args:
        x: (N, F), dense or sparse.
        dim: d.
    """
    keys = text_keys(np.char.add("attribute ", np.arange(x.shape[1]).astype(np.str_)))
    omega = signs(keys, 0, dim).numpy()
    omega *= np.float32(1 / math.sqrt(dim))
    return np.asarray(x @ omega)


def _isolated_nodes(matrix: SparseMatrix) -> Array:
    """Return the positions of nodes without edges to other nodes."""
    others = np.diff(matrix.host.indptr) - (matrix.host.diagonal() != 0)
    return np.flatnonzero(others == 0)
