"""The diffusion matrix S = Σ θ_k T^k, as dense rows or as an operator that is never built.

PPR: θ_k = teleport·(1-teleport)^k. Heat kernel: θ_k = e^-t t^k / k!.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.graph import Array
from hpgmn.sparse import SparseMatrix
from hpgmn.statistics.labelwise import inverse_or_zero
from hpgmn.statistics.operators import Statistic, apart, side_by_side, take_nodes, with_columns

DENSE_LIMIT_BYTES = 512 * 2**20
"""``form="auto"`` takes the dense form up to this size of the N×N matrix (about 11,500 nodes)."""

_BLOCK = 256  # columns of the identity pushed through T at once


def transition(adjacency: sp.csr_array, normalization: str, self_loop: float = 0.0) -> sp.csr_array:
    """T: the adjacency normalised so that its powers stay bounded.

    Args:
        adjacency: (N, N).
        normalization: "column" (the paper's A·D⁻¹), "row" (D⁻¹·A) or "symmetric"
            (D_row^-½·A·D_column^-½). An empty row or column stays zero.
        self_loop: weight of the self-loop added to every node first.

    >>> pair = sp.csr_array(np.array([[0, 1], [0, 0]], dtype=np.float32))
    >>> transition(pair, "column").toarray()
    array([[0., 1.],
           [0., 0.]], dtype=float32)
    """
    matrix = adjacency
    if self_loop:
        loops = sp.eye_array(adjacency.shape[0], dtype=np.float32, format="csr")
        matrix = sp.csr_array(adjacency + self_loop * loops)
    rows = inverse_or_zero(np.asarray(matrix.sum(axis=1)).reshape(-1).astype(np.float32))
    columns = inverse_or_zero(np.asarray(matrix.sum(axis=0)).reshape(-1).astype(np.float32))
    per_row = np.repeat(rows, np.diff(matrix.indptr))
    per_column = columns[matrix.indices]
    factor = {
        "column": per_column,
        "row": per_row,
        "symmetric": np.sqrt(per_row) * np.sqrt(per_column),
    }[normalization]
    data = (matrix.data * factor).astype(np.float32)
    normalised = sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    normalised.indices = normalised.indices.astype(np.int32, copy=False)
    normalised.indptr = normalised.indptr.astype(np.int32, copy=False)
    return normalised


def coefficients(
    kind: str, *, teleport: float = 0.15, heat_time: float = 3.0, tolerance: float = 1e-6
) -> Array:
    """θ_0 … θ_K, cut where the rest of the series sums to less than the tolerance.

    Args:
        kind: "ppr" or "heat".
        teleport: PPR's probability of going back to the start.
        heat_time: t of the heat kernel.
        tolerance: the largest sum of what is cut off.

    >>> coefficients("ppr", teleport=0.5, tolerance=0.1)
    array([0.5   , 0.25  , 0.125 , 0.0625])
    """
    if kind == "ppr":
        terms = max(1, math.ceil(math.log(tolerance) / math.log1p(-teleport)))
        return teleport * (1 - teleport) ** np.arange(terms)
    theta, rest = [math.exp(-heat_time)], 1 - math.exp(-heat_time)
    while rest > tolerance and len(theta) < 1000:
        theta.append(theta[-1] * heat_time / len(theta))
        rest -= theta[-1]
    return np.asarray(theta)


def series(matrix: Any, start: Any, theta: Array) -> Any:
    """Σ θ_k M^k · start by Horner's rule: one product with M per term, two arrays in memory."""
    result = start * float(theta[-1])
    for weight in theta[-2::-1]:
        result = matrix @ result
        if isinstance(result, Tensor):
            result.add_(start, alpha=float(weight))
        else:
            result += start * np.float32(weight)
    return result


def diffuse(matrix: SparseMatrix, start: Tensor, theta: Array) -> Tensor:
    """:func:`series` on a device, differentiable in ``start``; the way back is a series too."""
    result: Tensor = cast(Any, _Series).apply(start, matrix, theta)
    return result


def dense_diffusion(
    transition_matrix: sp.csr_array,
    kind: str,
    *,
    teleport: float = 0.15,
    heat_time: float = 3.0,
    tolerance: float = 1e-6,
) -> Array:
    """S as an (N, N) float32 array: PPR by inversion in place, the heat kernel by its series."""
    num_nodes = transition_matrix.shape[0]
    if kind == "ppr":
        # (I - (1-t)·T)ᵀ in C order is the matrix itself in Fortran order, as LAPACK wants it.
        system = transition_matrix.T.toarray(order="C")
        system *= np.float32(teleport - 1)
        system.reshape(-1)[:: num_nodes + 1] += 1
        inverse = scipy.linalg.inv(system.T, overwrite_a=True, check_finite=False)
        inverse *= np.float32(teleport)
        # A node that leads nowhere has its self entry alone; pivoting leaves rounding beside it.
        others = np.diff(transition_matrix.indptr) - (transition_matrix.diagonal() != 0)
        alone = np.flatnonzero(others == 0)
        own = inverse[alone, alone]
        inverse[alone] = 0
        inverse[alone, alone] = own
        return np.asarray(inverse, dtype=np.float32)
    theta = coefficients(kind, heat_time=heat_time, tolerance=tolerance)
    result = np.empty((num_nodes, num_nodes), np.float32)
    for first in range(0, num_nodes, _BLOCK):
        result[:, first : first + _BLOCK] = _columns(transition_matrix, first, theta)
    return result


def _columns(matrix: sp.csr_array, first: int, theta: Array) -> Array:
    """Columns first … first+_BLOCK-1 of S (rows of S, if the transpose is given)."""
    num_nodes = matrix.shape[0]
    last = min(first + _BLOCK, num_nodes)
    start = np.zeros((num_nodes, last - first), np.float32)
    start[np.arange(first, last), np.arange(last - first)] = 1
    columns: Array = series(matrix, start, theta)
    return columns


def scaled_rows(rows: Array, *, self_entry: bool, unit_length: bool) -> Array:
    """Rows of S, changed in place: without the self entry, and of unit length, as asked."""
    if not self_entry:
        np.fill_diagonal(rows, 0)
    if unit_length:
        rows *= inverse_or_zero(np.sqrt(np.einsum("ij,ij->i", rows, rows)))[:, None]
    return rows


class ImplicitDiffusion(Statistic):
    """S as a power iteration: exact to the tolerance, memory E + N·D, backward with Tᵀ.

    Args:
        transition_matrix: T, (N, N).
        theta: the coefficients.
        self_entry: whether S[v, v] is kept.
        unit_length: whether each row is scaled to length 1.
        device: where the products happen.
    """

    def __init__(
        self,
        transition_matrix: sp.csr_array,
        theta: Array,
        *,
        self_entry: bool = True,
        unit_length: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.matrix = SparseMatrix(transition_matrix, device)
        # θ_0 touches the self entry alone: left out with it, for a difference would lose digits.
        self.theta = theta if self_entry else np.append(0.0, theta[1:])
        self.width = transition_matrix.shape[0]
        self.diagonal: Tensor | None = None
        self.scale: Tensor | None = None
        if unit_length or not self_entry:
            diagonal, lengths = self._diagonal_and_lengths(self_entry)
            if not self_entry:
                self.diagonal = torch.from_numpy(diagonal).to(device).unsqueeze(-1)
            if unit_length:
                scale = torch.from_numpy(inverse_or_zero(lengths))
                self.scale = scale.to(device).unsqueeze(-1)

    def _diagonal_and_lengths(self, self_entry: bool) -> tuple[Array, Array]:
        """The diagonal of S and its row lengths, block by block: one pass over all columns."""
        diagonal = np.zeros(self.width, np.float32)
        squares = np.zeros(self.width, np.float64)
        for first in range(0, self.width, _BLOCK):
            block = _columns(self.matrix.host, first, self.theta)
            places = np.arange(first, first + block.shape[1])
            diagonal[places] = block[places, places - first]
            squares += np.einsum("ij,ij->i", block, block, dtype=np.float64)
        if not self_entry:
            squares -= np.square(diagonal, dtype=np.float64)
        return diagonal, np.sqrt(np.maximum(squares, 0)).astype(np.float32)

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        wide = side_by_side(with_columns(weight, columns))
        product = diffuse(self.matrix, wide, self.theta)
        if self.diagonal is not None:
            product = product - self.diagonal * wide
        if self.scale is not None:
            product = product * self.scale
        return take_nodes(apart(product, weight.shape[0]), nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        start = torch.zeros(self.width, nodes.numel(), device=self.matrix.device)
        start[nodes, torch.arange(nodes.numel(), device=nodes.device)] = 1
        found: Tensor = series(self.matrix.transpose, start, self.theta).T.contiguous()
        if self.diagonal is not None:
            found[torch.arange(nodes.numel(), device=nodes.device), nodes] = 0
        if self.scale is not None:
            found = found * self.scale[nodes]
        return found


class _Series(torch.autograd.Function):
    """S @ W with the backward pass by the same series of Tᵀ: nothing is kept between."""

    @staticmethod
    def forward(ctx: Any, wide: Tensor, matrix: SparseMatrix, theta: Array) -> Tensor:
        ctx.matrix, ctx.theta = matrix, theta
        result: Tensor = series(matrix, wide, theta)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return series(ctx.matrix.transpose, gradient.contiguous(), ctx.theta), None, None
