"""Edges sorted by source and target (CSR), as adjacency matrices and graph folders store them.

Sorting is by counting, linear in nodes and edges, with 32-bit integers if they suffice. The listed
order is stored separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Array: TypeAlias = npt.NDArray[Any]

_BLOCK = 1 << 20  # edges listed at once
_NODES = 1 << 14  # nodes whose edges are checked at once: they fit into the cache


def sorted_csr(matrix: sp.csr_array) -> sp.csr_array:
    """Sort a CSR matrix and convert its indices to 32 bits, as sparse products require."""
    matrix.sort_indices()
    matrix.indices = matrix.indices.astype(np.int32, copy=False)
    matrix.indptr = matrix.indptr.astype(np.int32, copy=False)
    return matrix


@dataclass(frozen=True, eq=False)
class SortedEdges:
    """E edges of N nodes; those of node v are at ``indptr[v]`` … ``indptr[v + 1] - 1``.

    Self-loops and repeats may be present.

    Attributes:
        indptr: (N + 1,).
        targets: (E,), ascending for each source.
        weights: (E,) float32, or None.
        places: (E,) the position of each edge in the listed order; None: they were listed sorted.
        types: (E,) numbers of edge types, or None.
    """

    indptr: Array
    targets: Array
    weights: Array | None = None
    places: Array | None = None
    types: Array | None = None

    @classmethod
    def of(
        cls,
        edge_index: Array,
        num_nodes: int,
        weights: Array | None = None,
        types: Array | None = None,
        *,
        listed: bool = True,
    ) -> SortedEdges:
        """Sort edges (2, E); ``listed`` says whether to store the listed order.

        >>> edges = SortedEdges.of(np.array([[1, 0, 1], [2, 1, 0]]), 3)
        >>> edges.indptr.tolist(), edges.targets.tolist(), edges.places.tolist()
        ([0, 1, 3, 3], [1, 0, 2], [2, 0, 1])
        """
        count = edge_index.shape[1]
        whole = np.int32 if max(count, num_nodes) < 2**31 else np.int64
        source, target = (ends.astype(whole, copy=False) for ends in edge_index)
        order = np.arange(count, dtype=whole)
        if (source[1:] >= source[:-1]).all():
            indptr = np.searchsorted(source, np.arange(num_nodes + 1, dtype=whole)).astype(whole)
            target = target.copy()
            if ((target[1:] >= target[:-1]) | (source[1:] > source[:-1])).all():
                return cls(indptr, target, weights, types=types)
        else:
            # One row for each edge, its source as the column: converting to CSC groups by source.
            indptr = np.append(order, np.array(count, whole))
            rows = sp.csr_array((target, source, indptr), shape=(count, num_nodes))
            grouped = rows.tocsc()
            order, target, indptr = grouped.indices, grouped.data, grouped.indptr
            del rows, grouped
        del source
        matrix = sp.csr_array((order, target, indptr), shape=(num_nodes, num_nodes))
        matrix.sort_indices()
        order = matrix.data
        places = None
        if listed:
            places = np.empty(count, whole)
            places[order] = np.arange(count, dtype=whole)
        targets, indptr = (
            part.astype(whole, copy=False) for part in (matrix.indices, matrix.indptr)
        )
        weights, types = (None if part is None else part[order] for part in (weights, types))
        return cls(indptr, targets, weights, places, types)

    def __len__(self) -> int:
        return int(self.targets.shape[0])

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.indptr.shape[0]) - 1

    def _sources(self) -> Array:
        nodes = np.arange(self.num_nodes, dtype=self.targets.dtype)
        return np.repeat(nodes, np.diff(self.indptr))

    def listed(self, block: int = _BLOCK) -> Iterator[Array]:
        """Yield all sources, then all targets, in the listed order: int64, in blocks."""
        for ends in (self._sources(), self.targets):
            for first in range(0, len(self), block):
                some = slice(first, first + block)
                chosen = ends[some] if self.places is None else ends[self.places[some]]
                yield chosen.astype(np.int64)

    def edge_index(self) -> Array:
        """Return (2, E) int64 in the listed order."""
        ends = np.empty(2 * len(self), np.int64)
        first = 0
        for part in self.listed():
            ends[first : first + part.size] = part
            first += part.size
        return ends.reshape(2, -1)

    def edge_weight(self) -> Array | None:
        """Return the (E,) weights in the listed order."""
        if self.weights is None or self.places is None:
            return self.weights
        return self.weights[self.places]

    def edge_type(self) -> Array | None:
        """Return the (E,) types in the listed order."""
        if self.types is None or self.places is None:
            return self.types
        return self.types[self.places]

    def of_types(self, numbers: Sequence[int]) -> SortedEdges:
        """Return the edges of some types alone, without the listed order."""
        assert self.types is not None
        kept = np.flatnonzero(np.isin(self.types, numbers))
        indptr = np.searchsorted(kept, self.indptr).astype(self.indptr.dtype)
        weights = None if self.weights is None else self.weights[kept]
        return SortedEdges(indptr, self.targets[kept], weights)

    def adjacency(self) -> sp.csr_array:
        """Return (N, N) sorted float32 CSR without self-loops, repeats merged.

        Weights of repeats are added; without weights an edge counts once. Copies only if needed.
        """
        shape = (self.num_nodes, self.num_nodes)
        weights = np.ones(len(self), np.float32) if self.weights is None else self.weights
        if self._is_simple():
            return sorted_csr(sp.csr_array((weights, self.targets, self.indptr), shape=shape))
        kept = self._sources() != self.targets
        starts = np.zeros(len(self) + 1, self.indptr.dtype)
        np.cumsum(kept, out=starts[1:])
        starts = starts[self.indptr]
        matrix = sp.csr_array((weights[kept], self.targets[kept], starts), shape=shape)
        matrix.sum_duplicates()
        if self.weights is None:
            matrix.data[:] = 1.0
        return sorted_csr(matrix)

    def _is_simple(self) -> bool:
        """Whether there is neither a self-loop nor a repeat."""
        for first in range(0, self.num_nodes, _NODES):
            starts = self.indptr[first : first + _NODES + 1]
            targets = self.targets[starts[0] : starts[-1]]
            nodes = np.arange(first, first + starts.size - 1, dtype=targets.dtype)
            sources = np.repeat(nodes, np.diff(starts))
            again = (sources[1:] == sources[:-1]) & (targets[1:] == targets[:-1])
            if (sources == targets).any() or again.any():
                return False
        return True
