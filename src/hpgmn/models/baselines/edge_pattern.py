"""Sparse matrices with learned values: one per edge and replica, never an N×N array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.sparse import SparseMatrix, block_diagonal

MOST_ENTRIES = 2**26
"""Largest number of entries of one block-diagonal matrix for all replicas."""


class EdgePattern:
    """The sparsity pattern of matrices whose values differ by replica.

    :meth:`softmax`, :meth:`propagate` and :meth:`products` are differentiable in all their tensors
    and store nothing but their arguments for the backward pass.

    Args:
        matrix: (N, N) CSR with sorted 32-bit indices; E stored entries.
        most_entries: the largest number of entries for which replicas are multiplied together.

    Attributes:
        weights: (E,) the matrix's values, row by row.
    """

    def __init__(
        self,
        matrix: sp.csr_array,
        device: torch.device | str = "cpu",
        *,
        most_entries: int = MOST_ENTRIES,
    ) -> None:
        numbers = np.arange(matrix.nnz)
        numbered = sp.csr_array((numbers, matrix.indices, matrix.indptr), matrix.shape)
        transposed = numbered.T.tocsr()
        transposed.sort_indices()
        self.device = torch.device(device)
        self.weights = torch.from_numpy(matrix.data).to(self.device)
        self._order = torch.from_numpy(transposed.data).to(self.device)
        self._patterns = [_ones(numbered), _ones(transposed)]
        self._single = SparseMatrix(self._patterns[0], self.device)
        self._blocks: dict[tuple[int, bool], SparseMatrix] = {}
        self._together = max(1, most_entries // max(1, matrix.nnz))

    def softmax(self, scores: Tensor) -> Tensor:
        """Softmax over each row's edges: (R, E) to (R, E)."""
        if not scores.numel():
            return scores
        result: Tensor = cast(Any, _Softmax).apply(scores, self)
        return result

    def propagate(self, values: Tensor, hidden: Tensor) -> Tensor:
        """P·H, (R, N, D), with values (R, E) in P; a node without edges gets exact zeros."""
        if not values.numel():  # MKL rejects empty matrices; autograd needs the dependence on both
            return torch.zeros_like(hidden) + values.sum() + hidden[:, :0].sum()
        result: Tensor = cast(Any, _Propagated).apply(values, hidden, self)
        return result

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """left_i · right_j for each edge (i, j): two (R, N, D) to (R, E)."""
        if not self.weights.numel():
            return (left[:, :0] * right[:, :0]).sum(dim=-1)
        result: Tensor = cast(Any, _Products).apply(left, right, self)
        return result

    def total(self, values: Tensor, how: str = "sum") -> Tensor:
        """The sum or the max over each row's edges, repeated for each of them: (R, E)."""
        parts = []
        for some in torch.split(values, self._together):
            starts = self._block(some.shape[0], transposed=False).csr.crow_indices()
            start = 0.0 if how == "sum" else -torch.inf
            flat = some.reshape(-1)
            totals = torch.segment_reduce(flat, how, offsets=starts, initial=start, unsafe=True)
            rows = totals.view(some.shape[0], -1)
            parts.append(rows.index_select(1, self._single.rows_of_entries))
        return _concatenate(parts)

    def times(self, values: Tensor, hidden: Tensor, *, transposed: bool) -> Tensor:
        """P·H, or Pᵀ·H; no gradient."""
        if transposed:
            values = values.index_select(1, self._order)
        parts = [
            block.product(x.flatten(0, 1), weights.reshape(-1)).view_as(x)
            for block, weights, x in self._by_blocks(values, hidden, transposed=transposed)
        ]
        return _concatenate(parts)

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        """:meth:`products`; no gradient."""
        parts = []
        for block, x, y in self._by_blocks(left, right, transposed=False):
            pattern = block.scale_entries(x.new_zeros(block.host.nnz))
            sampled = torch.sparse.sampled_addmm(
                pattern, x.flatten(0, 1), y.flatten(0, 1).T, beta=0.0
            )
            parts.append(sampled.values().view(x.shape[0], -1))
        return _concatenate(parts)

    def _by_blocks(
        self, first: Tensor, second: Tensor, *, transposed: bool
    ) -> Iterator[tuple[SparseMatrix, Tensor, Tensor]]:
        """Yield as many replicas as are multiplied together, with their block-diagonal pattern."""
        firsts, seconds = (torch.split(whole, self._together) for whole in (first, second))
        for left, right in zip(firsts, seconds, strict=True):
            block = self._block(left.shape[0], transposed=transposed)
            yield block, left.contiguous(), right.contiguous()

    def _block(self, replicas: int, *, transposed: bool) -> SparseMatrix:
        """Return the block-diagonal pattern of several replicas, cached."""
        key = (replicas, transposed)
        if key not in self._blocks:
            pattern = block_diagonal([self._patterns[transposed]] * replicas)
            self._blocks[key] = SparseMatrix(pattern, self.device)
        return self._blocks[key]


def add_self_loops(adjacency: sp.csr_array, weight: float) -> sp.csr_array:
    """A + weight·I, with 32-bit indices."""
    if not weight:
        return adjacency
    loops = sp.eye_array(adjacency.shape[0], dtype=np.float32, format="csr")
    matrix = sp.csr_array(adjacency + np.float32(weight) * loops)
    matrix.indices = matrix.indices.astype(np.int32, copy=False)
    matrix.indptr = matrix.indptr.astype(np.int32, copy=False)
    return matrix


def _ones(matrix: sp.csr_array) -> sp.csr_array:
    ones = np.ones(matrix.nnz, np.float32)
    return sp.csr_array((ones, matrix.indices, matrix.indptr), shape=matrix.shape)


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, edges: EdgePattern) -> Tensor:
        exponentials = (scores - edges.total(scores, "max")).exp_()
        shares = exponentials.div_(edges.total(exponentials))
        ctx.edges = edges
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (shares,) = ctx.saved_tensors
        weighted = shares * gradient
        return weighted - shares * ctx.edges.total(weighted), None


class _Propagated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, hidden: Tensor, edges: EdgePattern) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(values, hidden)
        return edges.times(values, hidden, transposed=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, hidden = ctx.saved_tensors
        wants_values, wants_hidden, _ = ctx.needs_input_grad
        return (
            ctx.edges.inner(gradient, hidden) if wants_values else None,
            ctx.edges.times(values, gradient, transposed=True) if wants_hidden else None,
            None,
        )


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, edges: EdgePattern) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(left, right)
        return edges.inner(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        wants_left, wants_right, _ = ctx.needs_input_grad
        return (
            ctx.edges.times(gradient, right, transposed=False) if wants_left else None,
            ctx.edges.times(gradient, left, transposed=True) if wants_right else None,
            None,
        )
