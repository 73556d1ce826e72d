"""Class counts and class means of neighbours.

Row v of an adjacency (N, N) lists the neighbours of v; attributes are (N, F); a label of -1 is
unknown and counts for no class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.sparse import (
    SparseMatrix,
    block_diagonal,
    correct_lengths,
    dense_lengths,
    inverse_or_zero,
    needs_double,
    row_lengths,
)
from hpgmn.graph import Array, Attributes
from hpgmn.statistics.operators import SparseReplicaRows, Statistic, take_nodes

COMPILED_FROM = 10**8
"""Edges times attributes above which compiling the numba kernel is worthwhile."""

_BUFFER = 1 << 17  # numbers of a block of rows, 512 KiB: it stays in the cache
_PIECE = 1 << 15  # numbers that torch converts without starting threads
_BLOCK = 65536  # rows of dense class means made at once
_FACTORED = 8  # batches of more than 1/8 of the nodes keep the factored form


def one_hot(labels: Array, num_classes: int) -> Array:
    """(…, N) labels as (…, N, C) zeros and ones; an unknown label is a row of zeros."""
    return np.asarray(labels[..., None] == np.arange(num_classes), dtype=np.float32)


def class_counts(adjacency: sp.csr_array, labels: Array, num_classes: int) -> Array:
    """r²: count the neighbours (sum their weights) of each label; Eq. (4).

    Args:
        labels: (R, N) or (N,); or, for soft counts, (R, N, C) probabilities of each class.

    >>> path = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]], dtype=np.float32))
    >>> class_counts(path, np.array([0, 1, 1]), 2)
    array([[0., 2.],
           [0., 1.],
           [0., 0.]], dtype=float32)
    """
    if labels.ndim == 1:
        counts: Array = adjacency @ one_hot(labels, num_classes)
        return counts
    shares = labels if labels.ndim == 3 else one_hot(labels, num_classes)
    replicas, num_nodes, _ = shares.shape
    columns = shares.transpose(1, 0, 2).reshape(num_nodes, -1)
    product = (adjacency @ columns).reshape(num_nodes, replicas, num_classes)
    return np.ascontiguousarray(product.transpose(1, 0, 2))


def scale_counts(counts: Array, scaling: str) -> Array:
    """Return class counts as they are ("raw"), log(1+n), fractions, or of unit length."""
    if scaling == "raw":
        return counts
    if scaling == "log":
        return np.asarray(np.log1p(counts))
    if scaling == "fraction":
        total = counts.sum(axis=-1, keepdims=True)
    else:
        total = dense_lengths(counts)[..., None]
    return np.asarray(np.divide(counts, total, out=np.zeros_like(counts), where=total > 0))


def averaging_matrix(adjacency: sp.csr_array, labels: Array, num_classes: int) -> sp.csr_array:
    """Return Â, the weight of neighbour u of v within u's class at v: (N, N) CSR.

    ``value[v, u] = a[v, u] / Σ_{u' of u's class} a[v, u']``; 0 for an unknown label.
    """
    totals = class_counts(adjacency, labels, num_classes)
    indptr, data = adjacency.indptr, adjacency.data
    values = np.zeros_like(data)
    for first in range(0, adjacency.shape[0], _BLOCK):  # bounds the memory per edge
        starts = indptr[first : first + _BLOCK + 1]
        some = slice(starts[0], starts[-1])
        label = labels[adjacency.indices[some]]
        center = np.repeat(np.arange(first, first + starts.size - 1), np.diff(starts))
        total = totals[center, np.maximum(label, 0)]
        np.divide(data[some], total, out=values[some], where=label >= 0)
    return sp.csr_array((values, adjacency.indices, indptr), shape=adjacency.shape)


def attributes_by_class(x: Attributes, labels: Array, num_classes: int) -> sp.csr_array:
    """Return X with row u moved to the columns of u's class: (N, C·F), as sparse as X.

    Then ``Â @ attributes_by_class`` is r³, and its product with a weight needs no (N, C·F) array.
    """
    num_nodes, width = x.shape
    matrix = x if sp.issparse(x) else sp.csr_array(x)
    label = np.repeat(labels.astype(np.int32), np.diff(matrix.indptr))
    data = np.where(label >= 0, matrix.data, np.float32(0))
    indices = np.maximum(label, 0, out=label)
    indices *= np.int32(width)
    indices += matrix.indices
    shape = (num_nodes, num_classes * width)
    return sp.csr_array((data, indices, matrix.indptr), shape=shape)


def class_means(
    adjacency: sp.csr_array, x: Attributes, labels: Array, num_classes: int
) -> sp.csr_array:
    """r³: the mean attributes of the neighbours of each class, zero without one; Eq. (5).

    Returns:
        (N, C·F) CSR, the block of class c at columns c·F … (c+1)·F-1.
    """
    by_class = attributes_by_class(x, labels, num_classes)
    product = sp.csr_array(averaging_matrix(adjacency, labels, num_classes) @ by_class)
    product.sort_indices()
    return product


def is_compiled(x: Attributes, edges: int) -> bool:
    """Return whether :func:`fill_class_means` is faster for this number of edges."""
    return not sp.issparse(x) and edges * x.shape[1] >= COMPILED_FROM


def class_mean_rows(
    adjacency: sp.csr_array,
    x: Attributes,
    labels: Array,
    num_classes: int,
    *,
    unit_length: bool = False,
    out: Array | None = None,
    compiled: bool | None = None,
) -> Array:
    """Return :func:`class_means` as dense half-precision rows, for batches of nodes.

    Many dense attributes by :func:`fill_class_means`; otherwise class by class and block by block,
    which bounds memory.

    Args:
        adjacency: (M, N), some rows of a graph, or all.
        unit_length: whether each node's row is scaled to length 1.
        out: (M, C·F) float16 for the result, for example in a mapped file.
        compiled: whether to use :func:`fill_class_means`, whose last bits differ; None as above.
    """
    num_nodes, width = adjacency.shape[0], x.shape[1]
    rows = np.empty((num_nodes, num_classes * width), np.float16) if out is None else out
    if compiled is None:
        compiled = is_compiled(x, adjacency.nnz)
    if compiled:
        fill_class_means(adjacency, x, labels, num_classes, rows, unit_length=unit_length)
        return rows
    mean = averaging_matrix(adjacency, labels, num_classes)
    scale = np.ones(num_nodes, np.float32)
    if unit_length:  # before rounding: half precision ends at 65504
        lengths = _block_lengths(mean, x, labels, num_classes, np.float32)
        odd = needs_double(lengths) & (np.diff(mean.indptr) > 0)
        if odd.any():
            exact = _block_lengths(mean[odd], x, labels, num_classes, np.float64)
            lengths = correct_lengths(lengths, odd, exact)
        scale = inverse_or_zero(lengths)
    for some, block, means in _mean_blocks(mean, x, labels, num_classes):
        rows[some, block] = means * scale[some, None]
    return rows


def _mean_blocks(
    mean: sp.csr_array, x: Attributes, labels: Array, num_classes: int
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield class means by blocks: rows, columns, values."""
    num_nodes, width = mean.shape[0], x.shape[1]
    neighbor_class = labels.astype(np.int32)[mean.indices]
    starts = np.zeros(mean.nnz + 1, mean.indptr.dtype)
    for number in range(num_classes):
        is_member = neighbor_class == number
        np.cumsum(is_member, out=starts[1:])
        edges = (mean.data[is_member], mean.indices[is_member], starts[mean.indptr])
        part = sp.csr_array(edges, shape=mean.shape)
        for first in range(0, num_nodes, _BLOCK):
            some = slice(first, first + _BLOCK)
            means = part[some] @ x
            means = means.toarray() if sp.issparse(means) else means
            yield some, slice(number * width, (number + 1) * width), means


def _block_lengths(
    mean: sp.csr_array, x: Attributes, labels: Array, num_classes: int, precision: type
) -> Array:
    """Return the Euclidean length of each row of class means."""
    squared = np.zeros(mean.shape[0], precision)
    with np.errstate(over="ignore"):
        for some, _, means in _mean_blocks(mean, x, labels, num_classes):
            squared[some] += np.square(means, dtype=precision).sum(axis=1)
    return np.sqrt(squared)


def sparse_class_means(
    adjacency: sp.csr_array,
    x: Attributes,
    labels: Array,
    num_classes: int,
    *,
    unit_length: bool = False,
    device: torch.device | str = "cpu",
) -> SparseReplicaRows:
    """Return :func:`class_means` of R replicas as sparse rows, for batches; labels are (R, N)."""
    blocks = []
    for row in labels:
        means = class_means(adjacency, x, row, num_classes)
        if unit_length:
            scale = inverse_or_zero(row_lengths(means))
            means.data *= np.repeat(scale, np.diff(means.indptr))
        blocks.append(means)
    joined = blocks[0] if len(blocks) == 1 else block_diagonal(blocks)
    return SparseReplicaRows(SparseMatrix(joined, device), len(blocks))


class FactoredMeans(Statistic):
    """r³ as ``Â · attributes_by_class``: cost nnz(x)·D + E·D, memory N·D, never N×(C·F).

    The replicas' matrices are the diagonal blocks of one, so that one product serves them all.
    Arguments as for :func:`sparse_class_means`.
    """

    def __init__(
        self,
        adjacency: sp.csr_array,
        x: Attributes,
        labels: Array,
        num_classes: int,
        *,
        unit_length: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.width = num_classes * x.shape[1]
        self._means = [averaging_matrix(adjacency, row, num_classes) for row in labels]
        self._inputs = [attributes_by_class(x, row, num_classes) for row in labels]
        if unit_length:
            for mean, moved in zip(self._means, self._inputs, strict=True):
                scale = inverse_or_zero(row_lengths(sp.csr_array(mean @ moved)))
                mean.data *= np.repeat(scale, np.diff(mean.indptr))
        self.mean = SparseMatrix(block_diagonal(self._means), device)
        self.input = SparseMatrix(block_diagonal(self._inputs), device)

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        replicas, width, dim = weight.shape
        factors = None if columns is None else columns.reshape(-1)
        hidden = self.input.times(weight.reshape(replicas * width, dim), factors)
        return take_nodes((self.mean @ hidden).view(replicas, -1, dim), nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        chosen = self._means[replica][nodes.cpu().numpy()] @ self._inputs[replica]
        return torch.from_numpy(sp.csr_array(chosen).toarray()).to(self.mean.device)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        replicas, num_nodes = len(self._means), self._means[0].shape[0]
        positions = nodes.cpu().numpy() + num_nodes * np.arange(replicas)[:, None]
        if nodes.shape[1] * _FACTORED > num_nodes:  # many rows of means are more than two factors
            part = copy(self)
            part.mean = SparseMatrix(
                self.mean.host[positions.reshape(-1)], self.mean.device
            ).prepare()
            part._means = [
                mean[rows.cpu().numpy()] for mean, rows in zip(self._means, nodes, strict=True)
            ]
            return part
        chosen = sp.csr_array(self.mean.host[positions.reshape(-1)] @ self.input.host)
        chosen.sort_indices()
        return SparseReplicaRows(SparseMatrix(chosen, self.mean.device).prepare(), replicas)


def class_means_on_device(
    adjacency: SparseMatrix,
    x: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    unit_length: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return :func:`class_means` of R replicas as dense rows (R, N, C·F) of a GPU.

    Beside the result there is never more than one class of one replica in single precision.
    """
    (num_nodes, width), neighbor = x.shape, adjacency.columns_of_entries
    rows = torch.empty(
        labels.shape[0], num_nodes, num_classes * width, dtype=dtype, device=x.device
    )
    if not adjacency.host.nnz:  # cuSPARSE and MKL refuse empty matrices
        return rows.zero_()

    def means(neighbor_labels: Tensor, number: int) -> Tensor:
        factors = (neighbor_labels == number).to(x.dtype)
        weight = adjacency.product(x.new_ones(num_nodes, 1), factors)
        return adjacency.product(x, factors).div_(torch.where(weight > 0, weight, 1))

    for replica_labels, out in zip(labels, rows, strict=True):
        neighbor_labels, scale = replica_labels[neighbor], x.new_ones(num_nodes, 1)
        if unit_length:  # before rounding: half precision ends at 65504
            squares = torch.zeros(num_nodes, 1, device=x.device)
            for number in range(num_classes):
                squares += means(neighbor_labels, number).square_().sum(dim=1, keepdim=True)
            scale = torch.where(squares > 0, squares.rsqrt(), 0)
        for number in range(num_classes):
            out[:, number * width : (number + 1) * width] = means(neighbor_labels, number).mul_(
                scale
            )
    return rows


def fill_class_means(
    adjacency: sp.csr_array,
    x: Array,
    labels: Array,
    num_classes: int,
    out: Array,
    *,
    unit_length: bool = False,
    threads: int | None = None,
) -> None:
    """Compute class means by one pass over the edges, in machine code.

    A row is summed by one thread in the order of its edges, so the result is bit-identical for any
    number of threads.

    Args:
        adjacency: (M, N), some rows of a graph, or all.
        out: (M, C·F), half or single precision, for example in a mapped file.
        threads: None for as many as torch uses.
    """
    num_nodes, width = adjacency.shape[0], x.shape[1]
    # Unsigned indices skip the test for negative ones; unknown labels are an extra class.
    indptr, indices = adjacency.indptr.view(np.uint32), adjacency.indices.view(np.uint32)
    label = np.where(labels < 0, num_classes, labels).astype(np.uint32)
    edges = (indptr, indices, adjacency.data, label, np.ascontiguousarray(x))
    kernel = _compile_kernel()
    block = max(1, _BUFFER // (num_classes * width))

    def fill(first: int) -> None:
        last = min(first + block, num_nodes)
        buffer = np.empty((last - first, num_classes * width), np.float32)
        kernel(first, last, *edges, unit_length, np.empty(num_classes, np.float32), buffer)
        rows = torch.from_numpy(out[first:last]).view(-1)
        values = torch.from_numpy(buffer).view(-1)
        pieces = (torch.split(whole, _PIECE) for whole in (rows, values))
        for target, part in zip(*pieces, strict=True):
            target.copy_(part)

    pool = ThreadPoolExecutor(threads or torch.get_num_threads())
    try:
        for _ in pool.map(fill, range(0, num_nodes, block)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def _compile_kernel() -> Any:
    """Compile the kernel without the GIL; one signature for all callers.

    numba's cache on disk is not used: it is a pickle.
    """
    import numba

    whole = numba.types.Array(numba.uint32, 1, "C", readonly=True)
    values = numba.types.Array(numba.float32, 1, "C", readonly=True)
    table = numba.types.Array(numba.float32, 2, "C", readonly=True)
    signature = numba.void(
        *(numba.intp, numba.intp, whole, whole, values, whole, table, numba.boolean),
        *(numba.float32[::1], numba.float32[:, ::1]),
    )
    # Sums of squares may be taken in any order: several at once.
    squares = numba.njit(nogil=True, fastmath={"reassoc", "contract"})(_squares)
    return _kernel(numba.njit(signature, nogil=True), squares)


def _kernel(compiled: Callable[[Any], Any], squares: Any) -> Any:
    """Return a function that fills some rows."""

    def rows(
        first: int,
        last: int,
        indptr: Array,
        indices: Array,
        data: Array,
        labels: Array,
        x: Array,
        unit_length: bool,
        totals: Array,
        means: Array,
    ) -> None:
        num_classes, width = totals.size, x.shape[1]
        for node in range(first, last):
            row = means[node - first]
            for index in range(row.size):
                row[index] = 0
            for label in range(num_classes):
                totals[label] = 0
            for edge in range(indptr[node], indptr[node + 1]):
                neighbor = indices[edge]
                label = labels[neighbor]
                if label < num_classes:
                    weight = data[edge]
                    totals[label] += weight
                    start = label * width
                    for column in range(width):
                        row[start + column] += weight * x[neighbor, column]
            for label in range(num_classes):
                if totals[label] > 0:
                    factor = np.float32(1) / totals[label]
                    for index in range(label * width, (label + 1) * width):
                        row[index] *= factor
            length = np.float32(np.sqrt(squares(row))) if unit_length else np.float32(0)
            if length > 0:
                factor = np.float32(1) / length
                for index in range(row.size):
                    row[index] *= factor

    return compiled(rows)


def _squares(row: Array) -> Any:
    total = np.float32(0)
    for index in range(row.size):
        total += row[index] * row[index]
    return total
