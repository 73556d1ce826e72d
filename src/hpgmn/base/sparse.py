"""A constant sparse matrix times a dense one, with the transpose stored for the way back.

Matrices of several replicas are the diagonal blocks of one, so that one product serves them all.
"""

from __future__ import annotations

import threading
import warnings
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.randomness import load_kernels

_warning_lock, _is_warned = threading.Lock(), False
_SPARE = 2  # rows for each entry from which on the empty rows are left out of a product


def _csr(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    if not _is_warned:
        _use_up_beta_warning()
    return torch.sparse_csr_tensor(rows, columns, values, size=size, check_invariants=False)


def _use_up_beta_warning() -> None:
    """Trigger torch's one warning per process that the layout is in beta, unseen.

    Once and locked, because warning filters are shared by all threads.
    """
    global _is_warned
    with _warning_lock:
        if not _is_warned:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sparse")
                torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1))
            _is_warned = True


def csr_matmul(csr: Tensor, dense: Tensor) -> Tensor:
    """A CSR tensor times a dense one; each row added in order where a GPU must repeat its bits.

    cuSPARSE shares long rows among threads, whose sums come together in no order.
    """
    if not (csr.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return csr @ dense
    parts = (csr.crow_indices(), csr.col_indices(), csr.values())
    kernels = load_kernels()
    if kernels is None:
        return ordered_matmul(*parts, dense)
    found: Tensor = kernels.rows_times(*parts, dense)
    return found


def ordered_matmul(starts: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """The product of a CSR matrix and a dense one, each row added from its first entry on.

    Args:
        starts: (N + 1,) where the entries of each row begin.
        columns: (nnz,) of the entries.
        values: (nnz,) of the entries.
        dense: (width, D).
    """
    each = dense.index_select(0, columns) * values.unsqueeze(-1)
    return torch.segment_reduce(each, "sum", offsets=starts, axis=0, initial=0.0, unsafe=True)


def block_diagonal(blocks: list[sp.csr_array]) -> sp.csr_array:
    """CSR matrices of one shape along the diagonal of a larger one."""
    height, width = blocks[0].shape
    starts = np.cumsum([0] + [block.nnz for block in blocks])
    indptr = [
        block.indptr[:-1].astype(np.int64) + start
        for block, start in zip(blocks, starts, strict=False)
    ]
    _refuse_long(int(starts[-1]), len(blocks) * max(height, width))
    return sp.csr_array(
        (
            np.concatenate([block.data for block in blocks]),
            np.concatenate([block.indices + i * width for i, block in enumerate(blocks)]).astype(
                np.int32
            ),
            np.append(np.concatenate(indptr), starts[-1]).astype(np.int32),
        ),
        shape=(len(blocks) * height, len(blocks) * width),
    )


def diagonal_rows(matrix: sp.csr_array, rows: npt.NDArray[np.int64]) -> sp.csr_array:
    """:func:`block_diagonal` of ``matrix[rows[0]]``, ``matrix[rows[1]]``, … in one step.

    Args:
        matrix: (N, width) CSR with 32-bit indices.
        rows: (R, B).

    Returns:
        (R·B, R·width) CSR.

    >>> diagonal_rows(sp.csr_array(np.float32([[1, 0], [2, 3]])), np.array([[1], [0]])).toarray()
    array([[2., 3., 0., 0.],
           [0., 0., 1., 0.]], dtype=float32)
    """
    replicas, height = rows.shape
    width = matrix.shape[1]
    chosen = sp.csr_array(matrix[rows.reshape(-1)])
    _refuse_long(chosen.nnz, replicas * max(height, width))
    starts = chosen.indptr[np.arange(replicas + 1) * height]
    shift = np.arange(replicas, dtype=np.int32) * np.int32(width)
    indices = chosen.indices + np.repeat(shift, np.diff(starts))
    shape = (replicas * height, replicas * width)
    return sp.csr_array((chosen.data, indices, chosen.indptr), shape=shape)


def _refuse_long(entries: int, length: int) -> None:
    if max(entries, length) >= 2**31:
        raise OverflowError("the replicas' blocks exceed 32-bit indices; train fewer at once")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; the way to a GPU is not waited for."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def at_least_single(tensor: Tensor) -> Tensor:
    """A tensor of half precision in single precision; any other as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class SparseMatrix:
    """A sparse matrix on a device; ``matrix @ dense`` is differentiable in ``dense``.

    torch's own backward of a CSR product builds the transpose anew each time; keeping both makes
    a forward and backward pass several times faster.

    Args:
        matrix: SciPy CSR, float32, with sorted 32-bit indices.
        device: where the products happen.
    """

    def __init__(self, matrix: sp.csr_array, device: torch.device | str = "cpu") -> None:
        self.host = matrix
        self.device = torch.device(device)
        self.shape: tuple[int, int] = tuple(matrix.shape)

    @cached_property
    def csr(self) -> Tensor:
        """The matrix as a torch CSR tensor."""
        host = self.host
        parts = (torch.from_numpy(part) for part in (host.indptr, host.indices, host.data))
        rows, columns, values = (to_device(part, self.device) for part in parts)
        return _csr(rows, columns, values, self.shape)

    @cached_property
    def transpose(self) -> SparseMatrix:
        """The transpose, stored in its own right."""
        flipped = self.host.T.tocsr()
        flipped.sort_indices()
        twin = SparseMatrix(flipped, self.device)
        twin.__dict__["transpose"] = self
        return twin

    @cached_property
    def filled(self) -> tuple[Tensor, SparseMatrix] | None:
        """The rows that hold entries, by position, and the matrix of those alone.

        None unless most rows are empty, as in the transpose of a few rows of a wide matrix.
        """
        if self.shape[0] <= _SPARE * self.host.nnz:
            return None
        host = self.host
        places = np.flatnonzero(np.diff(host.indptr))
        indptr = np.append(host.indptr[places], host.indptr[-1:])
        inner = sp.csr_array((host.data, host.indices, indptr), shape=(places.size, self.shape[1]))
        return to_device(torch.from_numpy(places), self.device), SparseMatrix(inner, self.device)

    @cached_property
    def rows_of_entries(self) -> Tensor:
        """(nnz,) the row of each stored entry."""
        if self.filled is not None:
            places, inner = self.filled
            return places[inner.rows_of_entries]
        counts = torch.from_numpy(np.diff(self.host.indptr))
        rows = torch.repeat_interleave(counts, output_size=self.host.nnz)
        return to_device(rows, self.device)

    @cached_property
    def columns_of_entries(self) -> Tensor:
        """(nnz,) the column of each stored entry."""
        return to_device(torch.from_numpy(self.host.indices.astype(np.int64)), self.device)

    def prepare(self) -> SparseMatrix:
        """The matrix itself, once all that the first product and its way back need is made."""
        for matrix in (self, self.transpose):
            part = matrix if matrix.filled is None else matrix.filled[1]
            assert part.csr.layout is torch.sparse_csr
        return self

    def scale_entries(self, factors: Tensor) -> Tensor:
        """The torch CSR tensor with each entry times its factor, (nnz,)."""
        csr = self.csr
        return _csr(csr.crow_indices(), csr.col_indices(), csr.values() * factors, self.shape)

    def product(self, dense: Tensor, factors: Tensor | None = None) -> Tensor:
        """The product with each entry times its factor, (nnz,), if given; no gradient."""
        if self.filled is None:
            return csr_matmul(self.csr if factors is None else self.scale_entries(factors), dense)
        places, inner = self.filled
        result = dense.new_zeros(self.shape[0], dense.shape[1])
        return result.index_copy_(0, places, inner.product(dense, factors))

    def times(self, dense: Tensor, columns: Tensor | None = None) -> Tensor:
        """The product with a dense matrix, differentiable in it.

        Args:
            dense: (width, D).
            columns: (width,) factors of the columns, as in ``matrix · diag(columns) · dense``;
                they are put on the sparse entries, which are fewer than the dense ones.
        """
        if self.host.nnz == 0:  # MKL refuses empty matrices; keep the graph of autograd whole
            return dense.new_zeros(self.shape[0], dense.shape[1]) + dense[:0].sum(dim=0)
        with torch.autocast(self.device.type, enabled=False):  # sparse products are single
            result: Tensor = cast(Any, _Product).apply(at_least_single(dense), self, columns)
        return result

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.times(dense)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix, columns: Tensor | None) -> Tensor:
        ctx.matrix, ctx.columns = matrix, columns
        factors = None if columns is None else columns[matrix.columns_of_entries]
        return matrix.product(dense, factors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        flipped = ctx.matrix.transpose
        factors = None if ctx.columns is None else ctx.columns[flipped.rows_of_entries]
        return flipped.product(gradient, factors), None, None
