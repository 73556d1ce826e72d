"""Graph: attributes, edges, labels and splits, validated when it is made.

Arrays live in host memory as NumPy and SciPy objects. Row 0 of ``edge_index`` is the source
(centre), row 1 the target (neighbour): the out-neighbours of v are the targets of its edges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import GraphError
from hpgmn.graph import validation
from hpgmn.graph.conversion import Conversions
from hpgmn.graph.edges import SortedEdges, sorted_csr
from hpgmn.graph.validation import Array as Array
from hpgmn.graph.validation import Attributes as Attributes

NEIGHBORS = ("out", "in", "undirected", "both")
"""How neighbourhoods are read; "both" means one set of statistics for each direction."""


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of nodes, each a boolean mask of length N."""

    train: Array
    val: Array
    test: Array


@dataclass(frozen=True, eq=False)
class Splits(Sequence[Split]):
    """S splits of N nodes: three boolean arrays (N, S); a slice is again splits.

    ``is_random`` says that ``random_splits`` drew them; a graph file does not keep that.
    """

    train: Array
    val: Array
    test: Array
    is_random: bool = field(default=False, kw_only=True)

    def __len__(self) -> int:
        return int(self.train.shape[1])

    @overload
    def __getitem__(self, index: int) -> Split: ...

    @overload
    def __getitem__(self, index: slice) -> Splits: ...

    def __getitem__(self, index: int | slice) -> Split | Splits:
        parts = (self.train[:, index], self.val[:, index], self.test[:, index])
        return (
            Splits(*parts, is_random=self.is_random) if isinstance(index, slice) else Split(*parts)
        )

    def __iter__(self) -> Iterator[Split]:
        return (self[index] for index in range(len(self)))


class Graph(Conversions):
    """An attributed graph with some labels, checked once when it is made.

    Args:
        x: attributes (N, F); anything NumPy understands, or a SciPy or torch sparse matrix.
        edge_index: (2, E); row 0 sources, row 1 targets. Self-loops and repeats may be present.
            Or :class:`SortedEdges` of these nodes, with their weights.
        y: (N,) class of each node, -1 where unknown. Without it every node is unknown.
        edge_weight: (E,) positive weights; weights of repeated edges are added.
        directed: False means that every edge runs both ways, listed once or twice.
        train_mask: (N,) or (N, S) boolean; the same for ``val_mask`` and ``test_mask``.
        val_mask: see ``train_mask``.
        test_mask: see ``train_mask``.
        node_ids: N distinct names; positions are used where none are given.
        class_names: C names; numbers are used where none are given.
        feature_names: F names.
        name: what the graph is called in reports; the shipped settings are found by it.
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
            self.sorted_edges = _sorted_edges(edge_index, self.num_nodes, edge_weight)
        else:
            self.edge_index = validation.edges(edge_index, self.num_nodes)
            self.edge_weight = validation.weights(edge_weight, self.edge_index.shape[1])
        self.y: Array = validation.labels(y, self.num_nodes)
        self.class_names = validation.class_names(class_names, self.y)
        self.node_ids = validation.names("node_ids", node_ids, self.num_nodes)
        self.feature_names = validation.names("feature_names", feature_names, self.num_features)
        self.splits: Splits | None = _splits(train_mask, val_mask, test_mask, self.y)
        self.alternative_splits = {
            family: _checked_splits(splits.train, splits.val, splits.test, self.y)
            for family, splits in _families(alternative_splits).items()
        }

    @property
    def num_classes(self) -> int:
        """C, the number of classes, classes nobody has included."""
        return len(self.class_names)

    @property
    def has_sparse_attributes(self) -> bool:
        """Whether ``x`` is a SciPy CSR array rather than a dense NumPy array."""
        return bool(sp.issparse(self.x))

    def split(self, index: int) -> Split:
        """The stored split of that number."""
        if self.splits is None:
            raise GraphError(
                f"Graph '{self.name}' has no splits. Give train_mask, val_mask and test_mask, "
                "or call hpgmn.random_splits(graph)."
            )
        if not 0 <= index < len(self.splits):
            numbers = (
                "only split 0" if len(self.splits) == 1 else f"splits 0 to {len(self.splits) - 1}"
            )
            raise GraphError(f"Graph '{self.name}' has {numbers} (got {index}). Choose one.")
        return self.splits[index]

    def with_splits(self, splits: Splits) -> Graph:
        """The same graph with other splits; arrays are shared, not copied."""
        twin = object.__new__(Graph)
        twin.__dict__.update(self.__dict__)
        checked = _checked_splits(splits.train, splits.val, splits.test, self.y)
        twin.splits = replace(checked, is_random=splits.is_random)
        return twin

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
    def _held(self) -> SortedEdges | None:
        """The sorted edges, unless sorting would be needed first."""
        return self.__dict__.get("sorted_edges")

    @property
    def num_listed_edges(self) -> int:
        """E, repeats and self-loops included."""
        return int(self.edge_index.shape[1]) if self._held is None else len(self._held)

    @property
    def is_weighted(self) -> bool:
        """Whether the edges have weights."""
        return (self.edge_weight if self._held is None else self._held.weights) is not None

    @cached_property
    def has_one_way_edges(self) -> bool:
        """Whether out-neighbours and in-neighbours differ."""
        return bool(self.adjacency("out").nnz != self.adjacency("undirected").nnz)

    @cached_property
    def _merged(self) -> sp.csr_array:
        """Out-edges without self-loops, repeats merged (weights added, else counted once)."""
        edges = self._held
        if edges is None:  # sorted for this once: the graph keeps them as they were given
            edges = SortedEdges.of(self.edge_index, self.num_nodes, self.edge_weight, listed=False)
        matrix = edges.adjacency()
        return matrix if self.directed else sorted_csr(matrix.maximum(matrix.T).tocsr())

    def adjacency(self, neighbors: str) -> sp.csr_array:
        """The matrix whose row v lists the neighbours of v, in one of the three single modes.

        Args:
            neighbors: "out", "in" or "undirected" (the union of both; given weights are added).

        Returns:
            (N, N) float32 CSR with sorted indices, no self-loops, no repeats.
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
        """Positions of the nodes without any edge (self-loops do not count)."""
        both = self.adjacency("undirected")
        return np.flatnonzero(np.diff(both.indptr) == 0)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of attributes, edges and node names: equal graphs have equal fingerprints."""
        digest = hashlib.sha256()
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
        digest.update(f"{np.dtype(np.int64)}{(2, self.num_listed_edges)}".encode())
        for ends in [self.edge_index] if self._held is None else self._held.listed():
            digest.update(ends.data)
        for part in parts:
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        def count(number: int, word: str) -> str:
            plural = word + ("es" if word.endswith("s") else "s")
            return f"{number:,} {word if number == 1 else plural}"

        sizes = (
            count(self.num_nodes, "node"),
            count(self.num_edges, "edge"),
            count(self.num_features, "attribute"),
            count(self.num_classes, "class"),
        )
        return f"Graph('{self.name}': {', '.join(sizes)})"


def _sorted_edges(edges: SortedEdges, num_nodes: int, edge_weight: Any) -> SortedEdges:
    if edges.num_nodes != num_nodes:
        raise GraphError(
            f"x has {num_nodes} nodes, the sorted edges {edges.num_nodes}. Give both of one graph."
        )
    if edge_weight is not None:
        raise GraphError("Give the weights of sorted edges with them, not as edge_weight.")
    validation.weights(edges.weights, len(edges))
    return edges


def _families(families: Any) -> dict[str, Splits]:
    found = {} if families is None else families
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(splits, Splits) for name, splits in found.items()
    ):
        raise GraphError(
            "alternative_splits must be a dict of names and splits. Give the splits as "
            "hpgmn.graph.Splits."
        )
    return found


def _splits(train: Any, val: Any, test: Any, y: Array) -> Splits | None:
    if train is None and val is None and test is None:
        return None
    if train is None:
        raise GraphError("val_mask or test_mask was given without train_mask. Give train_mask too.")
    return _checked_splits(train, val, test, y)


def _checked_splits(train: Any, val: Any, test: Any, y: Array) -> Splits:
    train_mask = validation.mask("train_mask", train, y.shape[0])
    empty = np.zeros_like(train_mask)
    val_mask = empty if val is None else validation.mask("val_mask", val, y.shape[0])
    test_mask = empty if test is None else validation.mask("test_mask", test, y.shape[0])
    if not train_mask.shape == val_mask.shape == test_mask.shape:
        counts = [one.shape[1] for one in (train_mask, val_mask, test_mask)]
        raise GraphError(
            "train_mask, val_mask and test_mask must have the same number of splits "
            f"(got {counts[0]}, {counts[1]} and {counts[2]})."
        )
    overlap = (train_mask & val_mask) | (train_mask & test_mask) | (val_mask & test_mask)
    if overlap.any():
        node, split = (int(i) for i in np.argwhere(overlap)[0])
        raise GraphError(
            f"Split {split} uses node {node} twice, but train, val and test must not overlap. "
            "Take it out of one."
        )
    unlabelled = (train_mask | val_mask | test_mask) & (y < 0)[:, None]
    if unlabelled.any():
        node, split = (int(i) for i in np.argwhere(unlabelled)[0])
        raise GraphError(
            f"Split {split} uses node {node}, whose label is unknown (-1). Take it out."
        )
    return Splits(train_mask, val_mask, test_mask)
