"""The k largest entries of every row of S by local push; S itself is never built.

Row v of S = Σ θ_k T^k is e_vᵀS: a unit of mass starts at v and moves along rows of T.

PPR (Andersen, Chung and Lang): a node u with residual r_u > ε keeps teleport·r_u as its estimate
and passes (1-teleport)·r_u·T[u, w] on to each w. Throughout, S[v] = p + r·S for estimates p and
residuals r, so 0 ≤ S[v, w] - p_w ≤ ε · (sum of column w of S); teleport·r_w is added at the end.
With "column" normalisation every entry therefore misses at most (1-teleport)·ε. A row takes at
most (sum of row v of S) / (teleport·ε) pushes.

Heat kernel: mass moves in one round per term of the series; a residual of at most ε counts for its
round but moves no further. With "column" normalisation every entry misses at most ε·heat_time, plus
the truncated terms.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.graph import Array
from hpgmn.statistics.diffusion import coefficients
from hpgmn.statistics.settings import StatisticsSettings

_CHUNK = 512  # rows between two reports of progress

# Floats per node in the mass array of a worker; see below.
_FLOATS = {"ppr": 2, "heat": 3}


def worker_bytes(num_nodes: int, kind: str) -> int:
    """Return the bytes of one thread's work arrays."""
    return 8 * _FLOATS[kind] * num_nodes + 4 * (_ring(num_nodes, kind) + num_nodes + 1)


def largest_entries(
    transition_matrix: sp.csr_array,
    settings: Any,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    nodes: Array | None = None,
) -> sp.csr_array:
    """Return the largest entries of each row of S, smaller columns first on ties: (N, N) CSR.

    A row is computed by one thread, so the result is bit-identical for any number of threads.

    Args:
        transition_matrix: T, (N, N), no negative values.
        settings: of the statistics; ``diffusion_topk`` is k, ``diffusion_threshold`` is ε.
        threads: None for as many as torch uses.
        progress: called with rows done and all rows.
        nodes: ascending positions of the requested rows, others stay empty; None for all.

    >>> from hpgmn.statistics import StatisticsSettings
    >>> settings = StatisticsSettings(diffusion_topk=2, teleport=0.5, diffusion_self_entry=True)
    >>> path = sp.csr_array(np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=np.float32))
    >>> largest_entries(path, settings).toarray()
    array([[0.5 , 0.25, 0.  ],
           [0.  , 0.5 , 0.25],
           [0.  , 0.  , 0.5 ]], dtype=float32)
    """
    if not transition_matrix.data.all():  # a zero weight would be queued forever
        transition_matrix = transition_matrix.copy()
        transition_matrix.eliminate_zeros()
    edges = (transition_matrix.indptr, transition_matrix.indices, transition_matrix.data)
    span = (0, int(transition_matrix.shape[0]))
    return largest_of_range(edges, span, settings, threads=threads, progress=progress, nodes=nodes)


def largest_of_range(
    edges: tuple[Array, Array, Array],
    span: tuple[int, int],
    settings: Any,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    nodes: Array | None = None,
) -> sp.csr_array:
    """Return :func:`largest_entries` of M consecutive nodes alone, bit-identical: (M, N).

    Args:
        edges: ``indptr``, ``indices`` and ``data`` of T, such as mapped files; no value is zero.
        span: the first node and the one after the last; ``nodes`` lie inside.
    """
    first, last = span
    num_nodes, length = len(edges[0]) - 1, last - first
    kind, count = settings.diffusion, min(settings.diffusion_topk, num_nodes)
    if length * count >= 2**31:
        raise HPGMNError(
            f"{count} entries for each of {length:,} nodes exceed 32-bit indices.",
            Remedy("Keep fewer of them", setting="diffusion_topk", value=2**30 // length)
            | Remedy("Use a sketch", setting="diffusion_form", value="sketch"),
        )
    theta = coefficients(settings)
    options = (theta, settings.diffusion_threshold, settings.diffusion_self_entry)
    columns = np.empty((length, count), np.int32)
    values = np.empty((length, count), np.float32)
    counts = np.zeros(length, np.int32)
    threads = threads or torch.get_num_threads()
    kernel = _compile_kernel(kind)
    idle: SimpleQueue[tuple[Array, Array, Array]] = SimpleQueue()
    for _ in range(threads):
        idle.put(_work_arrays(num_nodes, kind))

    def rows(chunk: tuple[int, int]) -> int:
        work = idle.get()
        kernel(*chunk, first, *edges, *options, *work, columns, values, counts)
        idle.put(work)
        return chunk[1] - chunk[0]

    pool, done = ThreadPoolExecutor(threads), 0
    try:
        for count_done in pool.map(rows, _chunks(first, last, nodes)):
            done += count_done
            if progress is not None:
                progress(done, length if nodes is None else len(nodes))
    finally:
        pool.shutdown(cancel_futures=True)
    return _compact(columns, values, counts, num_nodes)


def _chunks(first_node: int, last_node: int, nodes: Array | None) -> list[tuple[int, int]]:
    """Return pieces of rows (first, one after the last) that one thread computes at a time.

    >>> _chunks(0, 9, np.array([2, 3, 7]))
    [(2, 4), (7, 8)]
    """
    runs = [np.arange(first_node, last_node)] if nodes is None else np.split(nodes, _breaks(nodes))
    return [
        (first, min(first + _CHUNK, int(run[-1]) + 1))
        for run in runs
        if run.size
        for first in range(int(run[0]), int(run[-1]) + 1, _CHUNK)
    ]


def _breaks(nodes: Array) -> Array:
    """Return where ascending positions are not consecutive."""
    return np.flatnonzero(np.diff(nodes) != 1) + 1


def _compact(columns: Array, values: Array, counts: Array, num_nodes: int) -> sp.csr_array:
    """Return the first ``counts[v]`` entries of each row v as a CSR matrix."""
    length, count = columns.shape
    indptr = np.zeros(length + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    is_entry = np.arange(count) < counts[:, None]
    matrix = sp.csr_array((values[is_entry], columns[is_entry], indptr), shape=(length, num_nodes))
    matrix.sort_indices()
    return matrix


def _ring(num_nodes: int, kind: str) -> int:
    """Return the size of the queue: a power of two above N, or above 2·N for separate rounds."""
    return 1 << (num_nodes * (_FLOATS[kind] - 1)).bit_length()


def _work_arrays(num_nodes: int, kind: str) -> tuple[Array, Array, Array]:
    """Return the arrays of one thread: mass at each node, queue, list of reached nodes."""
    return (
        np.zeros((num_nodes, _FLOATS[kind])),
        np.empty(_ring(num_nodes, kind), np.int32),
        np.empty(num_nodes + 1, np.int32),
    )


def prepare_push(kind: str) -> None:
    """Compile :func:`largest_entries`."""
    settings = StatisticsSettings(diffusion=kind)
    largest_entries(sp.csr_array((1, 1), dtype=np.float32), settings, threads=1)


@cache
def _compile_kernel(kind: str) -> Any:
    """Return the compiled kernel, which releases the GIL.

    Rows are distributed by our own threads: numba's take longer to compile and report no progress.
    """
    import numba

    return _kernel(kind, numba.njit(nogil=True))


def _kernel(kind: str, compiled: Callable[[Any], Any]) -> Any:
    """Return a function that fills some rows."""
    spread = compiled({"ppr": _spread_ppr, "heat": _spread_heat}[kind])
    keep = compiled(_keep_largest)

    def rows(
        first: int,
        last: int,
        start: int,
        indptr: Array,
        indices: Array,
        data: Array,
        theta: Array,
        threshold: float,
        self_entry: bool,
        mass: Array,
        queue: Array,
        reached: Array,
        columns: Array,
        values: Array,
        counts: Array,
    ) -> None:
        for node in range(first, last):
            size = spread(node, indptr, indices, data, theta, threshold, mass, queue, reached)
            skipped = -1 if self_entry else node
            row = node - start
            counts[row] = keep(skipped, theta[0], mass, reached[:size], columns[row], values[row])

    return compiled(rows)


# The three functions below are compiled by numba. ``mass[u]`` holds u's estimate, then its residual
# (for the heat kernel those of even and of odd rounds); it is all zeros between two rows. Entries
# are written to queue and list unconditionally and their ends moved by a comparison: half of the
# branches would be mispredicted.


def _spread_ppr(
    node: int,
    indptr: Array,
    indices: Array,
    data: Array,
    theta: Array,
    threshold: float,
    mass: Array,
    queue: Array,
    reached: Array,
) -> int:
    """Push until no residual exceeds the threshold; return the number of reached nodes.

    A node is in the queue exactly while its residual exceeds the threshold.
    """
    wrap = queue.size - 1
    teleport = theta[0]
    mass[node, 1] = 1.0
    queue[0] = reached[0] = node
    size = 1
    head, tail = 0, 1
    while head != tail:
        u = queue[head & wrap]
        head += 1
        residual = mass[u, 1]
        mass[u, 1] = 0.0
        mass[u, 0] += teleport * residual
        moving = (1.0 - teleport) * residual
        for edge in range(indptr[u], indptr[u + 1]):
            w = indices[edge]
            before = mass[w, 1]
            after = before + moving * data[edge]
            mass[w, 1] = after
            reached[size] = w
            size += (before == 0.0) & (mass[w, 0] == 0.0)
            queue[tail & wrap] = w
            tail += (before <= threshold) & (after > threshold)
    return size


def _spread_heat(
    node: int,
    indptr: Array,
    indices: Array,
    data: Array,
    theta: Array,
    threshold: float,
    mass: Array,
    queue: Array,
    reached: Array,
) -> int:
    """Run one round for each θ_k; return the number of reached nodes."""
    wrap = queue.size - 1
    mass[node, 1] = 1.0
    queue[0] = node
    size = 0
    head, tail = 0, 1
    for step in range(theta.size):
        now, then = 1 + step % 2, 2 - step % 2
        end = tail
        while head != end:
            u = queue[head & wrap]
            head += 1
            residual = mass[u, now]
            mass[u, now] = 0.0
            reached[size] = u
            size += mass[u, 0] == 0.0
            mass[u, 0] += theta[step] * residual
            if residual > threshold and step + 1 < theta.size:
                for edge in range(indptr[u], indptr[u + 1]):
                    w = indices[edge]
                    queue[tail & wrap] = w
                    tail += mass[w, then] == 0.0
                    mass[w, then] += residual * data[edge]
    return size


def _keep_largest(
    skipped: int, teleport: float, mass: Array, reached: Array, columns: Array, values: Array
) -> int:
    """Write the largest estimates in descending order and clear all; return how many were written.

    Insertion sort: near nodes come first and are mostly the largest.
    """
    most, kept = columns.size, 0
    for u in reached:
        value = np.float32(mass[u, 0] + teleport * mass[u, 1])
        mass[u] = 0.0
        if u == skipped:
            continue
        slot = kept
        if kept == most:
            slot -= 1
            least = values[slot]
            if value < least or (value == least and u > columns[slot]):
                continue
        else:
            kept += 1
        while slot > 0 and (
            values[slot - 1] < value or (values[slot - 1] == value and columns[slot - 1] > u)
        ):
            values[slot] = values[slot - 1]
            columns[slot] = columns[slot - 1]
            slot -= 1
        values[slot] = value
        columns[slot] = u
    return kept
