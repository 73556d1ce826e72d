"""Graph: attributes, edges, labels and splits, validated by its constructor.

Arrays are NumPy and SciPy objects in host memory. Row 0 of ``edge_index`` is the source (centre),
row 1 the target (neighbour): the out-neighbours of v are the targets of its edges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import GraphError, count_noun
from hpgmn.base.files import digest
from hpgmn.graph import validation
from hpgmn.graph.conversion import Conversions
from hpgmn.graph.edges import Array as Array
from hpgmn.graph.edges import SortedEdges, sorted_csr
from hpgmn.graph.splits import Split as Split
from hpgmn.graph.splits import Splits as Splits
from hpgmn.graph.validation import Attributes as Attributes

NEIGHBORS = ("out", "in", "undirected", "both")
"""Edge directions; "both" means one set of statistics for each direction."""


class Graph(Conversions):
    """An attributed graph with some labels.

    Args:
        x: attributes (N, F); anything NumPy understands, or a SciPy or torch sparse matrix.
        edge_index: (2, E); row 0 sources, row 1 targets. Self-loops and repeats may be present.
            Or :class:`SortedEdges` of these nodes, with their weights.
        y: (N,) class of each node, -1 where unknown; None: all unknown.
        edge_weight: (E,) positive weights; weights of repeated edges are added.
        directed: False: edges are undirected, listed once or twice.
        train_mask: (N,) or (N, S) boolean; the same for ``val_mask`` and ``test_mask``.
        val_mask: see ``train_mask``.
        test_mask: see ``train_mask``.
        node_ids: N distinct names; None: positions are used.
        class_names: C names; None: numbers are used.
        feature_names: F names.
        name: the name in reports; shipped settings are looked up by it.
        alternative_splits: further families of splits by name.

    >>> graph = Graph([[1.0], [2.0], [3.0]], [[0, 1, 1], [1, 2, 2]], [0, 1, -1])
    >>> graph
    Graph('graph': 3 nodes, 2 edges, 1 attribute, 2 classes)
    """

    def __init__(
        self,
        x: Any,
        edge_index: Any,
        y: Any = None,
        *,
        edge_weight: Any = None,
        directed: bool = True,
        train_mask: Any = None,
        val_mask: Any = None,
        test_mask: Any = None,
        node_ids: Sequence[Any] | Array | None = None,
        class_names: Sequence[str] | Array | None = None,
        feature_names: Sequence[str] | Array | None = None,
        name: str = "graph",
        alternative_splits: dict[str, Splits] | None = None,
    ) -> None:
        self.name = validation.word("name", name)
        self.preparation: dict[str, Any] | None = None  # how a table became x, in plain values
        self.directed = validation.truth("directed", directed)
        self.x: Attributes = validation.attributes(x)
        self.num_nodes, self.num_features = (int(size) for size in self.x.shape)
        if isinstance(edge_index, SortedEdges):
            self.sorted_edges = validation.sorted_edges(edge_index, self.num_nodes, edge_weight)
        else:
            self.edge_index = validation.edges(edge_index, self.num_nodes)
            self.edge_weight = validation.weights(edge_weight, self.edge_index.shape[1])
        self.y: Array = validation.labels(y, self.num_nodes)
        self.class_names = validation.class_names(class_names, self.y)
        self.node_ids = validation.names("node_ids", node_ids, self.num_nodes)
        self.feature_names = validation.names("feature_names", feature_names, self.num_features)
        masks = (train_mask, val_mask, test_mask)
        self.splits: Splits | None = validation.optional_splits(*masks, self.y)
        self.alternative_splits = validation.families(alternative_splits, self.y)

    @property
    def num_classes(self) -> int:
        """C, the number of classes, those without a node included."""
        return len(self.class_names)

    @property
    def has_sparse_attributes(self) -> bool:
        """Whether ``x`` is a SciPy CSR array rather than a dense NumPy array."""
        return bool(sp.issparse(self.x))

    def split(self, index: int) -> Split:
        """Return the split of that number."""
        if self.splits is None:
            raise GraphError(
                f"Graph '{self.name}' has no splits.",
                "Pass train_mask, val_mask and test_mask, or call hpgmn.random_splits(graph)",
            )
        if not 0 <= index < len(self.splits):
            numbers = (
                "only split 0" if len(self.splits) == 1 else f"splits 0 to {len(self.splits) - 1}"
            )
            raise GraphError(f"Graph '{self.name}' has {numbers} (got {index}).", "Choose one")
        return self.splits[index]

    def with_splits(self, splits: Splits) -> Graph:
        """Return the same graph with other splits; arrays are shared, not copied."""
        graph = object.__new__(Graph)
        graph.__dict__.update(self.__dict__)
        valid = validation.splits(splits.train, splits.val, splits.test, self.y)
        graph.splits = replace(valid, is_random=splits.is_random)
        return graph

    @cached_property
    def edge_index(self) -> Array:
        """(2, E) int64, as listed; row 0 sources, row 1 targets."""
        return self.sorted_edges.edge_index()

    @cached_property
    def edge_weight(self) -> Array | None:
        """(E,) float32 weights of the edges as listed, or None."""
        return self.sorted_edges.edge_weight()

    @cached_property
    def sorted_edges(self) -> SortedEdges:
        """The edges as listed, in the order of source and target."""
        return SortedEdges.of(self.edge_index, self.num_nodes, self.edge_weight)

    @property
    def _sorted(self) -> SortedEdges | None:
        """The sorted edges if they exist already."""
        return self.__dict__.get("sorted_edges")

    @property
    def num_listed_edges(self) -> int:
        """E, repeats and self-loops included."""
        return int(self.edge_index.shape[1]) if self._sorted is None else len(self._sorted)

    @property
    def is_weighted(self) -> bool:
        """Whether the edges have weights."""
        return (self.edge_weight if self._sorted is None else self._sorted.weights) is not None

    @cached_property
    def has_one_way_edges(self) -> bool:
        """Whether out-neighbours and in-neighbours differ."""
        return bool(self.adjacency("out").nnz != self.adjacency("undirected").nnz)

    @cached_property
    def _merged(self) -> sp.csr_array:
        """Out-edges without self-loops, repeats merged (weights added, else counted once)."""
        edges = self._sorted
        if edges is None:  # not cached: the graph keeps the edges as they were passed
            edges = SortedEdges.of(self.edge_index, self.num_nodes, self.edge_weight, listed=False)
        matrix = edges.adjacency()
        return matrix if self.directed else sorted_csr(matrix.maximum(matrix.T).tocsr())

    def adjacency(self, neighbors: str) -> sp.csr_array:
        """Return the (N, N) float32 CSR matrix whose row v lists the neighbours of v.

        Indices are sorted, without self-loops and repeats.

        Args:
            neighbors: "out", "in" or "undirected" (the union of both; weights are added).
        """
        merged = self._merged
        if neighbors == "out" or (not self.directed and neighbors in NEIGHBORS[:3]):
            return merged
        if neighbors == "in":
            return sorted_csr(merged.T.tocsr())
        if neighbors == "undirected":
            if not self.is_weighted:
                return sorted_csr(merged.maximum(merged.T).tocsr())
            return sorted_csr((merged + merged.T).tocsr())
        raise GraphError.unknown("neighbour mode", neighbors, NEIGHBORS[:3])

    @cached_property
    def num_edges(self) -> int:
        """Distinct edges without self-loops, as "out" sees them (undirected edges once)."""
        stored = int(self._merged.nnz)
        return stored if self.directed else stored // 2

    @cached_property
    def isolated_nodes(self) -> Array:
        """Positions of the nodes without edges (self-loops do not count)."""
        both = self.adjacency("undirected")
        return np.flatnonzero(np.diff(both.indptr) == 0)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of attributes, edges and node ids."""
        result = hashlib.sha256()
        x: Any = self.x
        parts: list[Array] = [np.asarray([self.directed])]
        if sp.issparse(x):
            parts += [np.asarray(x.shape), x.indptr, x.indices, x.data]
        else:
            parts.append(x)
        if self.edge_weight is not None:
            parts.append(self.edge_weight)
        if self.node_ids is not None:
            parts.append(self.node_ids)
        result.update(f"{np.dtype(np.int64)}{(2, self.num_listed_edges)}".encode())
        for ends in [self.edge_index] if self._sorted is None else self._sorted.listed():
            result.update(ends.data)
        for part in parts:
            result.update(f"{part.dtype}{part.shape}".encode())
            result.update(np.ascontiguousarray(part).data)
        return result.hexdigest()

    def __repr__(self) -> str:
        sizes = (
            count_noun(self.num_nodes, "node"),
            count_noun(self.num_edges, "edge"),
            count_noun(self.num_features, "attribute"),
            count_noun(self.num_classes, "class"),
        )
        return f"Graph('{self.name}': {', '.join(sizes)})"


def graph_content(graph: Graph, splits: Sequence[int]) -> str:
    """Return a digest of all that a run reads: attributes, edges, labels, classes, splits."""
    labels = np.ascontiguousarray(graph.y, np.int64).data
    masks = [
        np.packbits(mask).data
        for split in map(graph.split, splits)
        for mask in (split.train, split.val, split.test)
    ]
    return digest(graph.fingerprint, "\0".join(graph.class_names), labels, *masks)


def search_content(graph: Graph, splits: Sequence[int]) -> str:
    """Return a digest of all that a search reads: no test label is part of it."""
    labels = [
        np.where(mask, graph.y, -1).tobytes()
        for split in map(graph.split, splits)
        for mask in (split.train, split.val)
    ]
    return digest(graph.fingerprint, *labels)


def shard_content(graph: Graph) -> str:
    """Return a digest of all that shards take from a graph in memory."""
    splits = graph.splits
    masks = () if splits is None else (splits.train, splits.val, splits.test)
    contents = [np.ascontiguousarray(mask).tobytes() for mask in masks]
    return digest(graph.fingerprint, graph.y.tobytes(), *contents)
