"""Graph: attributes, edges, labels and splits; the only place where input is validated.

Arrays live in host memory as NumPy and SciPy objects. Row 0 of ``edge_index`` is the source
(centre), row 1 the target (neighbour): the out-neighbours of v are the targets of its edges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from hpgmn.conversion import Conversions
from hpgmn.edges import SortedEdges, sorted_csr
from hpgmn.errors import GraphError, unknown_name

Array: TypeAlias = npt.NDArray[Any]
Attributes: TypeAlias = Any
"""A dense (N, F) array or a SciPy CSR array; SciPy has no types to say so."""


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
        self.name = name
        self.preparation: dict[str, Any] | None = None  # how a table became x, in plain values
        self.directed = bool(directed)
        self.x: Attributes = _attributes(x)
        self.num_nodes, self.num_features = (int(size) for size in self.x.shape)
        if isinstance(edge_index, SortedEdges):
            self.sorted_edges = _sorted_edges(edge_index, self.num_nodes, edge_weight)
        else:
            self.edge_index = _edges(edge_index, self.num_nodes)
            self.edge_weight = _weights(edge_weight, self.edge_index.shape[1])
        self.y: Array = _labels(y, self.num_nodes)
        self.class_names = _class_names(class_names, self.y)
        self.node_ids = _names("node_ids", node_ids, self.num_nodes)
        self.feature_names = _names("feature_names", feature_names, self.num_features)
        self.splits: Splits | None = _splits(train_mask, val_mask, test_mask, self.y)
        self.alternative_splits = {
            family: _checked_splits(splits.train, splits.val, splits.test, self.y)
            for family, splits in (alternative_splits or {}).items()
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
            raise GraphError(f"Graph '{self.name}' has {numbers} (got {index}).")
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
        raise GraphError(unknown_name("neighbour mode", neighbors, NEIGHBORS[:3]))

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


def _numpy(value: Any) -> Array:
    """A value as a NumPy array, torch tensors included."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _numeric(what: str, value: Any) -> Array:
    try:
        array = _numpy(value)
    except ValueError:
        raise GraphError(
            f"{what} must be a rectangular array of numbers; some rows differ in length."
        ) from None
    if array.dtype.kind not in "biuf":
        raise GraphError(f"{what} must be numbers (got values of type {array.dtype}).")
    return array


def _attributes(x: Any) -> Attributes:
    if hasattr(x, "is_sparse") and (x.is_sparse or "sparse" in str(x.layout)):  # torch
        coo = x.detach().to_sparse_coo().coalesce()
        index, shape = coo.indices().cpu().numpy(), tuple(coo.shape)
        x = sp.coo_array((coo.values().cpu().numpy(), tuple(index)), shape=shape)
    is_sparse = sp.issparse(x)
    array: Any = x if is_sparse else _numeric("x", x)
    if array.dtype.kind not in "biuf":
        raise GraphError(f"x must be numbers (got values of type {array.dtype}).")
    if array.ndim != 2 or 0 in array.shape:
        raise GraphError(
            "x must have two dimensions, nodes and attributes, both at least 1 "
            f"(got shape {array.shape})."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, refused below
        if is_sparse:
            array = sp.csr_array(array).astype(np.float32)
        else:
            array = np.ascontiguousarray(array, dtype=np.float32)
    if is_sparse:
        array.sum_duplicates()
        array.eliminate_zeros()
        array = sorted_csr(array)
        bad = ~np.isfinite(array.data)
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            row = int(np.searchsorted(array.indptr, place, side="right") - 1)
            _refuse_value(float(array.data[place]), row, int(array.indices[place]))
    else:
        with np.errstate(invalid="ignore"):  # infinite ones may cancel
            total = array.sum(dtype=np.float64)  # finite float32 cannot overflow it; no copy
        if not np.isfinite(total):
            row, column = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
            _refuse_value(float(array[row, column]), row, column)
    matrix: Attributes = array
    return matrix


def _refuse_value(value: float, row: int, column: int) -> NoReturn:
    raise GraphError(
        f"x holds {value} at node {row}, attribute {column}. Replace missing and infinite values "
        "first, for example by the column's mean."
    )


def _edges(edge_index: Any, num_nodes: int) -> Array:
    array = _numeric("edge_index", edge_index)
    if array.size == 0:
        return np.empty((2, 0), np.int64)
    if array.ndim != 2 or array.shape[0] != 2:
        hint = " Transpose it." if array.ndim == 2 and array.shape[1] == 2 else ""
        raise GraphError(f"edge_index must have shape (2, E) (got {array.shape}).{hint}")
    if array.dtype.kind == "f" and not (
        np.isfinite(array).all() and (array == np.trunc(array)).all()
    ):
        raise GraphError("edge_index must hold whole numbers, the positions of nodes.")
    if array.min() < 0 or array.max() >= num_nodes:
        outside = ((array < 0) | (array >= num_nodes)).any(axis=0)
        edge = int(np.flatnonzero(outside)[0])
        source, target = (int(end) for end in array[:, edge])
        others = int(outside.sum()) - 1
        count = f" (and {others} more like it)" if others else ""
        raise GraphError(
            f"Edge {edge} runs from {source} to {target}{count}, but nodes are numbered "
            f"0 to {num_nodes - 1}. Remove such edges or add the nodes."
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def _sorted_edges(edges: SortedEdges, num_nodes: int, edge_weight: Any) -> SortedEdges:
    if edges.num_nodes != num_nodes:
        raise GraphError(f"x has {num_nodes} nodes, the sorted edges {edges.num_nodes}.")
    if edge_weight is not None:
        raise GraphError("Give the weights of sorted edges with them, not as edge_weight.")
    _weights(edges.weights, len(edges))
    return edges


def _weights(edge_weight: Any, num_edges: int) -> Array | None:
    if edge_weight is None:
        return None
    with np.errstate(over="ignore"):
        array = _numeric("edge_weight", edge_weight).reshape(-1).astype(np.float32)
    if array.shape[0] != num_edges:
        raise GraphError(
            f"edge_weight must have one value per edge, {num_edges} (got {array.shape[0]})."
        )
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise GraphError(
            f"edge_weight must be finite and positive (got {array[place]:g} at edge {place}). "
            "Remove edges of weight zero; shift or drop negative ones."
        )
    return array


def _labels(y: Any, num_nodes: int) -> Array:
    if y is None:
        return np.full(num_nodes, -1, np.int64)
    array = _numeric("y", y).reshape(-1)
    if array.shape[0] != num_nodes:
        raise GraphError(
            f"y must have one label per node: x has {num_nodes} rows, y has {array.shape[0]}."
        )
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.trunc(array))
        if not whole.all():
            place = int(np.flatnonzero(~whole)[0])
            raise GraphError(
                f"y must hold whole numbers (got {array[place]} at node {place}). "
                "Number the classes 0, 1, 2, …; use -1 for unknown."
            )
    if array.min(initial=0) < -1:
        place = int(np.flatnonzero(array < -1)[0])
        raise GraphError(
            f"y holds {int(array[place])} at node {place}. "
            "Number the classes 0, 1, 2, …; use -1 for unknown."
        )
    if array.max(initial=0) >= max(1000, num_nodes):
        raise GraphError(
            f"y holds class {int(array.max())} on a graph of {num_nodes} nodes. "
            "Number the classes 0, 1, 2, … without gaps (numpy.unique with return_inverse does)."
        )
    return array.astype(np.int64)


def _class_names(names: Sequence[str] | Array | None, y: Array) -> tuple[str, ...]:
    present = int(y.max(initial=-1)) + 1
    if names is None:
        return tuple(str(number) for number in range(present))
    found = tuple(str(name) for name in names)
    if len(found) < present:
        raise GraphError(
            f"class_names has {len(found)} names, but y has classes up to {present - 1}."
        )
    if len(set(found)) != len(found):
        raise GraphError("class_names must be distinct.")
    return found


def _names(what: str, names: Sequence[Any] | Array | None, length: int) -> Array | None:
    if names is None:
        return None
    is_text = isinstance(names, np.ndarray) and names.dtype.kind == "U"  # not copied: may be large
    array = np.asarray(names if is_text else [str(name) for name in names], np.str_).reshape(-1)
    array = array.astype(f"U{int(np.char.str_len(array).max(initial=1))}", copy=False)
    if array.shape[0] != length:
        raise GraphError(f"{what} must have {length} names (got {array.shape[0]}).")
    if what == "node_ids":
        distinct, counts = np.unique(array, return_counts=True)
        if (counts > 1).any():
            raise GraphError(
                f"node_ids must be distinct; '{distinct[counts > 1][0]}' appears twice."
            )
    return array


def _mask(what: str, value: Any, num_nodes: int) -> Array:
    array = _numeric(what, value)
    if array.dtype != np.bool_:
        if array.dtype.kind == "f" or not np.isin(array, (0, 1)).all():
            raise GraphError(
                f"{what} must be true or false for each node (got values of type {array.dtype})."
            )
        array = array.astype(bool)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[0] != num_nodes:
        raise GraphError(
            f"{what} must have {num_nodes} rows, one per node (got shape {array.shape})."
        )
    return np.ascontiguousarray(array)


def _splits(train: Any, val: Any, test: Any, y: Array) -> Splits | None:
    if train is None and val is None and test is None:
        return None
    if train is None:
        raise GraphError("val_mask or test_mask was given without train_mask. Give train_mask too.")
    return _checked_splits(train, val, test, y)


def _checked_splits(train: Any, val: Any, test: Any, y: Array) -> Splits:
    train_mask = _mask("train_mask", train, y.shape[0])
    empty = np.zeros_like(train_mask)
    val_mask = empty if val is None else _mask("val_mask", val, y.shape[0])
    test_mask = empty if test is None else _mask("test_mask", test, y.shape[0])
    if not train_mask.shape == val_mask.shape == test_mask.shape:
        raise GraphError("train_mask, val_mask and test_mask must have the same number of splits.")
    overlap = (train_mask & val_mask) | (train_mask & test_mask) | (val_mask & test_mask)
    if overlap.any():
        node, split = (int(i) for i in np.argwhere(overlap)[0])
        raise GraphError(
            f"Split {split} uses node {node} twice; train, val and test must not overlap."
        )
    unlabelled = (train_mask | val_mask | test_mask) & (y < 0)[:, None]
    if unlabelled.any():
        node, split = (int(i) for i in np.argwhere(unlabelled)[0])
        raise GraphError(
            f"Split {split} uses node {node}, whose label is unknown (-1). Take it out."
        )
    return Splits(train_mask, val_mask, test_mask)
