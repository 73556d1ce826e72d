"""The diffusion matrix S = Σ θ_k T^k, as dense rows or as an operator that is never built.

PPR: θ_k = teleport·(1-teleport)^k. Heat kernel: θ_k = e^-t t^k / k!.

Functions take the settings of the statistics, or an object with those that they read.

Random sketches are S·Ω for diffusion and X·Ω for class means; see docs/decisions/0005. Ω[u, j] is
±1/√d, a hash of u's name and of j, so nodes shared by two graphs have equal rows. E[Ω·Ωᵀ] = I:
inner products of rows are preserved up to an error that shrinks as 1/√d (Johnson and
Lindenstrauss).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from typing import Any, cast

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import signs, text_keys
from hpgmn.base.sparse import SparseMatrix, at_least_single, inverse_or_zero
from hpgmn.graph import Array, Attributes, Graph
from hpgmn.statistics.operators import (
    DenseRows,
    Statistic,
    join_replicas,
    split_replicas,
    take_nodes,
    with_columns,
)

SKETCH_BLOCK = 16
"""Columns of a sketch computed at once: few, so that neighbours' rows stay in the cache."""

_BLOCK = 256  # columns of the identity pushed through T at once
_COLUMNS_AT_ONCE = 8


def coefficients(settings: Any) -> Array:
    """Return θ_0 … θ_K, truncated where the rest sums to less than ``diffusion_tolerance``.

    >>> from hpgmn.statistics import StatisticsSettings
    >>> coefficients(StatisticsSettings(teleport=0.5, diffusion_tolerance=0.1))
    array([0.5   , 0.25  , 0.125 , 0.0625])
    """
    teleport, time, tolerance = settings.teleport, settings.heat_time, settings.diffusion_tolerance
    if settings.diffusion == "ppr":
        terms = max(1, math.ceil(math.log(tolerance) / math.log1p(-teleport)))
        return np.asarray(teleport * (1 - teleport) ** np.arange(terms))
    theta, rest = [math.exp(-time)], 1 - math.exp(-time)
    while rest > tolerance and len(theta) < 1000:
        theta.append(theta[-1] * time / len(theta))
        rest -= theta[-1]
    return np.asarray(theta)


def coefficients_of_others(settings: Any) -> Array:
    """Return :func:`coefficients`, θ_0 as 0 unless ``diffusion_self_entry``.

    θ_0 affects the self entry only; subtracting it afterwards would lose digits.
    """
    theta = coefficients(settings)
    return theta if settings.diffusion_self_entry else np.append(0.0, theta[1:])


def series(matrix: Any, start: Any, theta: Array) -> Any:
    """Return Σ θ_k M^k · start by Horner's rule: one product per term, two arrays in memory."""
    result = start * float(theta[-1])
    for weight in theta[-2::-1]:
        result = matrix @ result
        if isinstance(result, Tensor):
            result.add_(start, alpha=float(weight))
        else:
            result += start * np.float32(weight)
    return result


def diffuse(matrix: SparseMatrix, start: Tensor, theta: Array) -> Tensor:
    """Return :func:`series` on a device, differentiable in ``start``."""
    with torch.autocast(matrix.device.type, enabled=False):
        result: Tensor = cast(Any, _Series).apply(at_least_single(start), matrix, theta)
    return result


def reached_nodes(transition_matrix: sp.csr_array) -> Array:
    """Return the nodes with incoming edges, by position; for any other node u, S·e_u = θ_0·e_u."""
    return np.flatnonzero(
        np.bincount(transition_matrix.indices, minlength=transition_matrix.shape[0])
    )


def dense_columns(transition_matrix: sp.csr_array, settings: Any) -> Array:
    """Return the columns of S for :func:`reached_nodes`, (N, k) float32.

    PPR by inversion: with these nodes first, I - (1-t)·T = [[A, 0], [-(1-t)·B, I]], so the columns
    are t·A⁻¹ above and (1-t)·B·(t·A⁻¹) below. The heat kernel by its series.
    """
    num_nodes = transition_matrix.shape[0]
    inner = reached_nodes(transition_matrix)
    result: Array = torch.empty(num_nodes, inner.size).numpy()  # aligned as a mapped one is
    if settings.diffusion == "ppr":
        teleport = settings.teleport
        entering = sp.csr_array(transition_matrix[:, inner])
        # LAPACK inverts in Fortran order, the transpose of a C-ordered array; the inverse of the
        # transpose, transposed back, is C-ordered again.
        system = entering[inner].toarray(order="C")
        system *= np.float32(teleport - 1)
        system.reshape(-1)[:: inner.size + 1] += 1
        if inner.size:
            system = scipy.linalg.inv(system.T, overwrite_a=True, check_finite=False).T
        system *= np.float32(teleport)
        # A node without outgoing edges has a self entry only; pivoting leaves rounding errors.
        others = np.diff(entering.indptr)[inner] - (entering[inner].diagonal() != 0)
        alone = np.flatnonzero(others == 0)
        diagonal = system[alone, alone]
        system[alone] = 0
        system[alone, alone] = diagonal
        result[inner] = system
        outer = np.setdiff1d(np.arange(num_nodes), inner)
        for first in range(0, outer.size, _BLOCK):
            some = outer[first : first + _BLOCK]
            result[some] = np.float32(1 - teleport) * (entering[some] @ system)
        return result
    theta = coefficients(settings)
    for first in range(0, inner.size, _BLOCK):
        some = inner[first : first + _BLOCK]
        result[:, first : first + _BLOCK] = _columns(transition_matrix, some, theta)
    return result


def dense_arrays(transition_matrix: sp.csr_array, settings: Any) -> dict[str, Array]:
    """Return the arrays of :class:`DenseDiffusion`.

    Returns:
        ``inner`` (k,) from :func:`reached_nodes`; their ``columns`` (N, k); ``own`` (N,), the self
        entries that are in no column.
    """
    inner = reached_nodes(transition_matrix)
    columns = dense_columns(transition_matrix, settings)
    own = np.full(columns.shape[0], coefficients(settings)[0], np.float32)
    own[inner] = 0
    if not settings.diffusion_self_entry:
        own[:] = 0
        columns[inner, np.arange(inner.size)] = 0
    if settings.diffusion_scaling == "unit":
        squares = np.einsum("ij,ij->i", columns, columns) + own * own
        scale = inverse_or_zero(np.sqrt(squares))
        columns *= scale[:, None]
        own *= scale
    return {"inner": inner, "columns": columns, "own": own}


class DenseDiffusion(Statistic):
    """S as a dense matrix, without the columns that hold only a self entry.

    Args:
        arrays: from :func:`dense_arrays`.
    """

    def __init__(self, arrays: Mapping[str, Array], device: torch.device | str = "cpu") -> None:
        inner, columns, own = (arrays[name] for name in ("inner", "columns", "own"))
        self.width = own.size
        if torch.device(device).type == "cuda":  # fast products need a multiple of eight columns
            spare = -inner.size % _COLUMNS_AT_ONCE
            columns = np.pad(columns, ((0, 0), (0, spare)))
            inner = np.pad(inner, (0, spare))  # weights of any node, times zeros
        self.inner = torch.from_numpy(inner).to(device)
        self.nodes: Tensor | None = None
        self.dense: Statistic = DenseRows(torch.from_numpy(columns).to(device))
        self.own = torch.from_numpy(own).to(device).unsqueeze(-1) if own.any() else None

    @property
    @override
    def is_on_gpu(self) -> bool:
        return self.dense.is_on_gpu

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        weight = with_columns(weight, columns)
        product = self.dense.times(weight.index_select(1, self.inner), nodes)
        if self.own is None:
            return product
        positions = self._positions(nodes)
        if positions is None:
            return product + self.own * weight
        return product + self.own[positions] * take_nodes(weight, positions)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        result = torch.zeros(nodes.numel(), self.width, device=nodes.device)
        result.index_add_(1, self.inner, self.dense.rows(nodes, replica))
        if self.own is not None:
            positions = nodes if self.nodes is None else self.nodes[replica][nodes]
            result[torch.arange(nodes.numel(), device=nodes.device), positions] += self.own[
                positions, 0
            ]
        return result

    @override
    def some(self, nodes: Tensor) -> Statistic:
        chosen = copy(self)
        chosen.dense = self.dense.some(nodes)
        chosen.nodes = self._positions(nodes.to(self.inner.device))
        return chosen

    def _positions(self, nodes: Tensor | None) -> Tensor | None:
        """Return the positions in the graph, (R, B), of some rows of this statistic."""
        if nodes is None or self.nodes is None:
            return self.nodes if nodes is None else nodes
        return self.nodes.gather(1, nodes)


def _columns(matrix: sp.csr_array, nodes: Array, theta: Array) -> Array:
    """Return the columns of S of some nodes (rows of S, if ``matrix`` is the transpose)."""
    start = np.zeros((matrix.shape[0], nodes.size), np.float32)
    start[nodes, np.arange(nodes.size)] = 1
    columns: Array = series(matrix, start, theta)
    return columns


class ImplicitDiffusion(Statistic):
    """S as a power iteration: exact to the tolerance, memory E + N·D, backward with Tᵀ."""

    def __init__(
        self, transition_matrix: sp.csr_array, settings: Any, device: torch.device | str = "cpu"
    ) -> None:
        self.matrix = SparseMatrix(transition_matrix, device)
        self.theta = coefficients_of_others(settings)
        self.width = transition_matrix.shape[0]
        self.diagonal: Tensor | None = None
        self.scale: Tensor | None = None
        self_entry, unit_length = (
            settings.diffusion_self_entry,
            settings.diffusion_scaling == "unit",
        )
        if unit_length or not self_entry:
            diagonal, lengths = self._diagonal_and_lengths(self_entry)
            if not self_entry:
                self.diagonal = torch.from_numpy(diagonal).to(device).unsqueeze(-1)
            if unit_length:
                scale = torch.from_numpy(inverse_or_zero(lengths))
                self.scale = scale.to(device).unsqueeze(-1)

    def _diagonal_and_lengths(self, self_entry: bool) -> tuple[Array, Array]:
        """Return the diagonal of S and its row lengths in one pass over blocks of columns."""
        diagonal = np.zeros(self.width, np.float32)
        squares = np.zeros(self.width, np.float64)
        for first in range(0, self.width, _BLOCK):
            nodes = np.arange(first, min(first + _BLOCK, self.width))
            block = _columns(self.matrix.host, nodes, self.theta)
            diagonal[nodes] = block[nodes, nodes - first]
            squares += np.einsum("ij,ij->i", block, block, dtype=np.float64)
        if not self_entry:
            squares -= np.square(diagonal, dtype=np.float64)
        return diagonal, np.sqrt(np.maximum(squares, 0)).astype(np.float32)

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        wide = join_replicas(with_columns(weight, columns))
        product = diffuse(self.matrix, wide, self.theta)
        if self.diagonal is not None:
            product = product - self.diagonal * wide
        if self.scale is not None:
            product = product * self.scale
        return take_nodes(split_replicas(product, weight.shape[0]), nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        start = torch.zeros(self.width, nodes.numel(), device=self.matrix.device)
        start[nodes, torch.arange(nodes.numel(), device=nodes.device)] = 1
        result: Tensor = series(self.matrix.transpose, start, self.theta).T.contiguous()
        if self.diagonal is not None:
            result[torch.arange(nodes.numel(), device=nodes.device), nodes] = 0
        if self.scale is not None:
            result = result * self.scale[nodes]
        return result


class _Series(torch.autograd.Function):
    """S @ W, with the backward pass by the same series of Tᵀ; nothing is saved."""

    @staticmethod
    def forward(ctx: Any, wide: Tensor, matrix: SparseMatrix, theta: Array) -> Tensor:
        ctx.matrix, ctx.theta = matrix, theta
        result: Tensor = series(matrix, wide, theta)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return series(ctx.matrix.transpose, gradient.contiguous(), ctx.theta), None, None


def node_keys(graph: Graph) -> Tensor:
    """Return a hash of each node's name, or of its position if it has none: (N,)."""
    names = graph.node_ids
    return text_keys(np.arange(graph.num_nodes).astype(np.str_) if names is None else names)


def sketch(transition_matrix: SparseMatrix, keys: Tensor, settings: Any) -> Tensor:
    """Return S·Ω for S = Σ θ_k T^k with ``diffusion_dim`` columns: (N, d) float32.

    Without self entries, rows are projected: s - Ω_v·(Ω_vᵀ·s) removes S[v, v]·Ω_v exactly, and of
    the rest a share of about 1/d, less than the error of the sketch.

    Args:
        transition_matrix: T, (N, N), on the device of the computation.
        keys: (N,) from :func:`node_keys`.
    """
    dim, self_entry = settings.diffusion_dim, settings.diffusion_self_entry
    theta = coefficients_of_others(settings)
    keys = keys.to(transition_matrix.device)
    result = torch.empty(keys.numel(), dim, device=keys.device)
    along = torch.zeros(keys.numel(), 1, device=keys.device)
    blocks = [(first, min(first + SKETCH_BLOCK, dim)) for first in range(0, dim, SKETCH_BLOCK)]
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
    if settings.diffusion_scaling != "unit":
        return result.mul_(1 / math.sqrt(dim))
    lengths = torch.linalg.vector_norm(result, dim=1, keepdim=True)
    return result.div_(torch.where(lengths > 0, lengths, 1))


def sketch_attributes(x: Attributes, dim: int) -> Array:
    """Return X·Ω with signs hashed from the column numbers: (N, d) float32.

    It is linear, so class means of it are exactly the sketch of class means.
    """
    keys = text_keys(np.char.add("attribute ", np.arange(x.shape[1]).astype(np.str_)))
    omega = signs(keys, 0, dim).numpy()
    omega *= np.float32(1 / math.sqrt(dim))
    return np.asarray(x @ omega)


def _isolated_nodes(matrix: SparseMatrix) -> Array:
    """Return the positions of nodes without edges to other nodes."""
    others = np.diff(matrix.host.indptr) - (matrix.host.diagonal() != 0)
    return np.flatnonzero(others == 0)
