"""A constant sparse matrix times a dense one, with the transpose stored for the way back."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor


def _quiet_csr(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """A torch CSR tensor without torch's notes that the layout is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(rows, columns, values, size=size, check_invariants=False)


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
        rows, columns, values = (part.to(self.device) for part in parts)
        return _quiet_csr(rows, columns, values, self.shape)

    @cached_property
    def transpose(self) -> SparseMatrix:
        """The transpose, stored in its own right."""
        flipped = self.host.T.tocsr()
        flipped.sort_indices()
        twin = SparseMatrix(flipped, self.device)
        twin.__dict__["transpose"] = self
        return twin

    @cached_property
    def rows_of_entries(self) -> Tensor:
        """(nnz,) the row of each stored entry."""
        counts = np.diff(self.host.indptr)
        return torch.from_numpy(np.repeat(np.arange(self.shape[0]), counts)).to(self.device)

    @cached_property
    def columns_of_entries(self) -> Tensor:
        """(nnz,) the column of each stored entry."""
        return torch.from_numpy(self.host.indices.astype(np.int64)).to(self.device)

    def scaled(self, factors: Tensor) -> Tensor:
        """The torch CSR tensor with each entry times its factor, (nnz,)."""
        csr = self.csr
        return _quiet_csr(csr.crow_indices(), csr.col_indices(), csr.values() * factors, self.shape)

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
            result: Tensor = cast(Any, _Product).apply(dense.float(), self, columns)
        return result

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.times(dense)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix, columns: Tensor | None) -> Tensor:
        ctx.matrix, ctx.columns = matrix, columns
        if columns is None:
            return matrix.csr @ dense
        return matrix.scaled(columns[matrix.columns_of_entries]) @ dense

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        flipped = ctx.matrix.transpose
        if ctx.columns is None:
            return flipped.csr @ gradient, None, None
        return flipped.scaled(ctx.columns[flipped.rows_of_entries]) @ gradient, None, None
