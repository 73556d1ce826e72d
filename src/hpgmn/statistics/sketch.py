"""S in d columns: the sketch S·Ω for a random Ω (N×d), computed once by power iteration.

Class means are sketched in the same way, by :func:`sketch_attributes`.

Ω[u, j] is +1/√d or -1/√d, a hash of u's name and of j. So the rows of nodes that two graphs share
are equal, on any machine, and a graph to which nodes were added is sketched by the same function.
E[Ω·Ωᵀ] = I, hence inner products of sketched rows are those of rows of S up to an error that
shrinks as 1/√d (Johnson and Lindenstrauss); a layer on the sketch sees which rows are alike, not
which node an entry belongs to.

The error of one inner product is about ‖s_v‖·‖s_w‖/√d. Of all together, ‖SΩ(SΩ)ᵀ - G‖ / ‖G‖ with
G = SSᵀ in Frobenius norm, it is about tr G / (√d·‖G‖), which is large where most rows have nothing
in common. Measured (PPR, teleport 0.15, "column", neighbours "out") for d = 64, 128, 256, with self
entries and without: texas 0.55, 0.41, 0.30 and 0.25, 0.19, 0.17; chameleon 3.6, 2.5, 1.8 and 0.83,
0.61, 0.42; squirrel 7.5, 5.3, 3.7 and 1.9, 1.4, 0.96. A directed graph of 100,000 nodes and
1,000,000 edges takes 5.2 s on one thread and 2.3 s on two for d = 128.
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
"""Columns made at once: few, so that a row of T finds its neighbours in the cache."""


def node_keys(graph: Graph) -> Tensor:
    """(N,) a number for each node: a hash of its name, which is its position where it has none."""
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
    """S·Ω for S = Σ θ_k T^k.

    Without its self entry, row v is Σ_{u≠v} S[v, u]·Ω_u. S[v, v] alone would cost as much as all
    of S, so we project instead: s - Ω_v·(Ω_vᵀ·s) takes S[v, v]·Ω_v away exactly, because Ω_v has
    length 1, and with it what the other Ω_u have in that one direction of d, a share of about 1/d
    of their square, less than the error of the sketch itself.

    Args:
        transition_matrix: T, (N, N), on the device where the work is done.
        theta: the coefficients of the series.
        keys: (N,) from :func:`node_keys`.
        dim: d.
        self_entry: whether S[v, v] counts.
        unit_length: whether each row of the sketch is scaled to length 1; zeros stay so.

    Returns:
        (N, d) float32.
    """
    keys = keys.to(transition_matrix.device)
    result = torch.empty(keys.numel(), dim, device=keys.device)
    along = torch.zeros(keys.numel(), 1, device=keys.device)
    # θ_0 touches the self entry alone: left out with it, for a difference would lose digits.
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
        # Rounding is all that is left of a node that leads nowhere else; unit length would show it.
        result[torch.from_numpy(_alone(transition_matrix)).to(keys.device)] = 0
    if not unit_length:
        return result.mul_(1 / math.sqrt(dim))
    lengths = torch.linalg.vector_norm(result, dim=1, keepdim=True)
    return result.div_(torch.where(lengths > 0, lengths, 1))


def sketch_attributes(x: Attributes, dim: int) -> Array:
    """X·Ω with signs hashed from the numbers of the attributes: (N, d) float32.

    It is linear, so that class means of it are exactly the sketch of class means.

    Args:
        x: (N, F), dense or sparse.
        dim: d.
    """
    keys = text_keys(np.char.add("attribute ", np.arange(x.shape[1]).astype(np.str_)))
    omega = signs(keys, 0, dim).numpy()
    omega *= np.float32(1 / math.sqrt(dim))
    return np.asarray(x @ omega)


def _alone(matrix: SparseMatrix) -> Array:
    """The nodes that lead to no other node, by position."""
    others = np.diff(matrix.host.indptr) - (matrix.host.diagonal() != 0)
    return np.flatnonzero(others == 0)
