"""Class means of dense attributes by one pass over the edges, as machine code.

A row is summed, divided and scaled by one thread, in the order of its edges, so the result has the
same bits whatever the number of threads.

Measured (64 attributes, 5 classes, 10 edges a node, half precision): 1,000,000 edges take 0.085 s
on one thread and 0.044 s on two, 10,000,000 edges 1.04 s and 0.62 s; products of SciPy take 0.40 s
and 7.7 s. numba takes 0.85 s once in a process: 0.25 to be imported, 0.6 to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpgmn.graph import Array

_BUFFER = 1 << 17  # numbers of a block of rows, 512 KiB: it stays in the cache
_PIECE = 1 << 15  # numbers that torch converts without threads of its own


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
    """Write the mean attributes of each node's neighbours of each class, zero where there is none.

    Args:
        adjacency: (M, N), row v lists the neighbours of v; some rows of a graph, or all.
        x: (N, F) float32.
        labels: (N,); -1 is unknown.
        num_classes: C.
        out: (M, C·F), half or single precision, for example in a mapped file.
        unit_length: whether each node's row is scaled to length 1.
        threads: how many; None for as many as torch uses.
    """
    num_nodes, width = adjacency.shape[0], x.shape[1]
    # Unsigned places need no test for counting from the end; the unknown are a class of their own.
    indptr, indices = adjacency.indptr.view(np.uint32), adjacency.indices.view(np.uint32)
    label = np.where(labels < 0, num_classes, labels).astype(np.uint32)
    edges = (indptr, indices, adjacency.data, label, np.ascontiguousarray(x))
    kernel = _compiled()
    block = max(1, _BUFFER // (num_classes * width))

    def fill(first: int) -> None:
        last = min(first + block, num_nodes)
        buffer = np.empty((last - first, num_classes * width), np.float32)
        kernel(first, last, *edges, unit_length, np.empty(num_classes, np.float32), buffer)
        rows = torch.from_numpy(out[first:last]).view(-1)
        found = torch.from_numpy(buffer).view(-1)
        pieces = (torch.split(whole, _PIECE) for whole in (rows, found))
        for place, part in zip(*pieces, strict=True):
            place.copy_(part)

    pool = ThreadPoolExecutor(threads or torch.get_num_threads())
    try:
        for _ in pool.map(fill, range(0, num_nodes, block)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def _compiled() -> Any:
    """The kernel as machine code that runs without Python's lock; one form for all callers.

    It is not kept on disk: what numba keeps there is a pickle, in a place of its own choosing.
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
    """A function that fills some rows."""

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
            for place in range(row.size):
                row[place] = 0
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
                    for place in range(label * width, (label + 1) * width):
                        row[place] *= factor
            length = np.float32(np.sqrt(squares(row))) if unit_length else np.float32(0)
            if length > 0:
                factor = np.float32(1) / length
                for place in range(row.size):
                    row[place] *= factor

    return compiled(rows)


def _squares(row: Array) -> Any:
    total = np.float32(0)
    for place in range(row.size):
        total += row[place] * row[place]
    return total
