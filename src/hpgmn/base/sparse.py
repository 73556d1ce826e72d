"""Sparse matrices: differentiable products, lengths and scaling of rows, normalisation."""

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
Array = npt.NDArray[Any]

_MODERATE = 1e15  # float32 holds its square, and that of its inverse
_SPARE = 2  # rows per entry above which products skip the empty rows


def _csr(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    if not _is_warned:
        _use_up_beta_warning()
    return torch.sparse_csr_tensor(rows, columns, values, size=size, check_invariants=False)


def _use_up_beta_warning() -> None:
    """Trigger torch's warning about the CSR layout once, suppressed and under a lock."""
    global _is_warned
    with _warning_lock:
        if not _is_warned:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sparse")
                torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1))
            _is_warned = True


def csr_matmul(csr: Tensor, dense: Tensor) -> Tensor:
    """Return a CSR tensor times a dense one, deterministic on a GPU if torch is set so."""
    if not (csr.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return csr @ dense
    parts = (csr.crow_indices(), csr.col_indices(), csr.values())
    kernels = load_kernels()
    if kernels is None:
        return ordered_matmul(*parts, dense)
    result: Tensor = kernels.rows_times(*parts, dense)
    return result


def ordered_matmul(starts: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Return a CSR matrix times a dense one, each row summed in order; see ``rows_times``."""
    terms = dense.index_select(0, columns) * values.unsqueeze(-1)
    return torch.segment_reduce(terms, "sum", offsets=starts, axis=0, initial=0.0, unsafe=True)


def block_diagonal(blocks: list[sp.csr_array]) -> sp.csr_array:
    """Return a block-diagonal matrix of CSR matrices of one shape."""
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
    """Return :func:`block_diagonal` of ``matrix[rows[0]]``, ``matrix[rows[1]]``, …: (R·B, R·width).

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
    """Move a tensor to a device, asynchronously to a GPU."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def at_least_single(tensor: Tensor) -> Tensor:
    """Convert half precision to single; return other tensors unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class SparseMatrix:
    """A sparse matrix on a device; ``matrix @ dense`` is differentiable in ``dense``.

    The transpose is stored, because torch rebuilds it in every backward pass.

    Args:
        matrix: SciPy CSR, float32, with sorted 32-bit indices.
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
        """The transpose, cached."""
        flipped = self.host.T.tocsr()
        flipped.sort_indices()
        twin = SparseMatrix(flipped, self.device)
        twin.__dict__["transpose"] = self
        return twin

    @cached_property
    def filled(self) -> tuple[Tensor, SparseMatrix] | None:
        """Positions of the non-empty rows and their matrix, if most rows are empty."""
        if self.shape[0] <= _SPARE * self.host.nnz:
            return None
        host = self.host
        positions = np.flatnonzero(np.diff(host.indptr))
        indptr = np.append(host.indptr[positions], host.indptr[-1:])
        inner = sp.csr_array(
            (host.data, host.indices, indptr), shape=(positions.size, self.shape[1])
        )
        return to_device(torch.from_numpy(positions), self.device), SparseMatrix(inner, self.device)

    @cached_property
    def rows_of_entries(self) -> Tensor:
        """(nnz,) the row of each stored entry."""
        if self.filled is not None:
            positions, inner = self.filled
            return positions[inner.rows_of_entries]
        counts = torch.from_numpy(np.diff(self.host.indptr))
        rows = torch.repeat_interleave(counts, output_size=self.host.nnz)
        return to_device(rows, self.device)

    @cached_property
    def columns_of_entries(self) -> Tensor:
        """(nnz,) the column of each stored entry."""
        return to_device(torch.from_numpy(self.host.indices.astype(np.int64)), self.device)

    def prepare(self) -> SparseMatrix:
        """Build all that the first product and its backward pass need; return the matrix itself."""
        for matrix in (self, self.transpose):
            part = matrix if matrix.filled is None else matrix.filled[1]
            assert part.csr.layout is torch.sparse_csr
        return self

    def scale_entries(self, factors: Tensor) -> Tensor:
        """Return the torch CSR tensor with entries multiplied by factors, (nnz,)."""
        csr = self.csr
        return _csr(csr.crow_indices(), csr.col_indices(), csr.values() * factors, self.shape)

    def product(self, dense: Tensor, factors: Tensor | None = None) -> Tensor:
        """Return the product without gradient, entries multiplied by factors (nnz,) if not None."""
        if self.filled is None:
            return csr_matmul(self.csr if factors is None else self.scale_entries(factors), dense)
        positions, inner = self.filled
        result = dense.new_zeros(self.shape[0], dense.shape[1])
        return result.index_copy_(0, positions, inner.product(dense, factors))

    def times(self, dense: Tensor, columns: Tensor | None = None) -> Tensor:
        """Return ``matrix · diag(columns) · dense``, differentiable in ``dense``.

        ``columns`` are (width,) factors, applied to the sparse entries.
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


def row_lengths(matrix: sp.csr_array) -> Array:
    """Return the Euclidean length of each row of a sparse matrix; see :func:`dense_lengths`."""
    squared = matrix.multiply(matrix).sum(axis=1)
    lengths: Array = np.sqrt(np.asarray(squared).reshape(-1)).astype(np.float32)
    odd = needs_double(lengths) & (np.diff(matrix.indptr) > 0)
    if odd.any():
        some = matrix[odd].astype(np.float64)
        exact = np.sqrt(np.asarray(some.multiply(some).sum(axis=1)).reshape(-1))
        lengths = correct_lengths(lengths, odd, exact)
    return lengths


def dense_lengths(rows: Array) -> Array:
    """Return the Euclidean length of (…, width) rows.

    Double precision is used only for rows whose squares leave the range of single precision.
    """
    with np.errstate(over="ignore"):
        lengths: Array = np.sqrt(np.square(rows).sum(axis=-1))
    odd = needs_double(lengths)
    if odd.any():
        odd &= rows.any(axis=-1)
        exact = np.sqrt(np.square(rows[odd], dtype=np.float64).sum(axis=-1))
        lengths = correct_lengths(lengths, odd, exact)
    return lengths


def needs_double(lengths: Array) -> Array:
    """Return which lengths single precision may have lost: squares were infinite, or 0."""
    odd: Array = ~((lengths > 1e-15) & (lengths < 1e18))
    return odd


def correct_lengths(lengths: Array, odd: Array, exact: Array) -> Array:
    """Return lengths with those of odd rows replaced; rows of zeros change nothing."""
    if not exact.any():
        return lengths
    result = lengths.astype(np.float64)
    result[odd] = exact
    return result


def inverse_or_zero(values: Array) -> Array:
    """Return 1/v in single precision, and exactly 0 where v is 0."""
    return np.divide(1.0, values, out=np.zeros_like(values, np.float32), where=values > 0)


def scale_attributes(x: Any, scaling: str) -> Any:
    """Return attributes as given ("raw"), divided by the row's sum, or of unit length."""
    if scaling == "raw":
        return x
    x = _moderate(x)
    if sp.issparse(x):
        sums = np.asarray(abs(x).sum(axis=1)).reshape(-1).astype(np.float32)
        factor = inverse_or_zero(sums if scaling == "fraction" else row_lengths(x))
        data = x.data * np.repeat(factor, np.diff(x.indptr))
        return sp.csr_array((data, x.indices, x.indptr), shape=x.shape)
    lengths = np.abs(x).sum(axis=1) if scaling == "fraction" else np.sqrt((x * x).sum(axis=1))
    return np.asarray(x * inverse_or_zero(lengths)[:, None], dtype=np.float32)


def _moderate(x: Any) -> Any:
    """Divide rows whose squares would be infinite or 0 by their largest value."""
    if sp.issparse(x):
        top = np.asarray(abs(x).max(axis=1).todense()).reshape(-1)
    else:
        top = np.maximum(x.max(axis=1), -x.min(axis=1))
    is_odd = (top > _MODERATE) | ((top < 1 / _MODERATE) & (top > 0))
    if not is_odd.any():
        return x
    by = np.where(is_odd, top, 1).astype(np.float32)
    if sp.issparse(x):
        data = x.data / np.repeat(by, np.diff(x.indptr))
        return sp.csr_array((data, x.indices, x.indptr), shape=x.shape)
    return np.asarray(x / by[:, None], dtype=np.float32)


def transition(adjacency: sp.csr_array, normalization: str, self_loop: float = 0.0) -> sp.csr_array:
    """Return T, the normalised adjacency, whose powers stay bounded but for "quarter".

    Args:
        normalization: "column" (the paper's A·D⁻¹), "row" (D⁻¹·A), "symmetric"
            (D_row^-½·A·D_column^-½) or "quarter" (D_row^-¼·A·D_column^-¼). An empty row or column
            stays zero.
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
        "quarter": np.sqrt(np.sqrt(per_row)) * np.sqrt(np.sqrt(per_column)),
    }[normalization]
    data = (matrix.data * factor).astype(np.float32)
    normalised = sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    normalised.indices = normalised.indices.astype(np.int32, copy=False)
    normalised.indptr = normalised.indptr.astype(np.int32, copy=False)
    return normalised
