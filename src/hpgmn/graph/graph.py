"""Graph: attributes, edges, labels and splits, validated by its constructor; random splits.

Arrays are NumPy and SciPy objects in host memory. Row 0 of ``edge_index`` is the source (centre),
row 1 the target (neighbour): the out-neighbours of v are the targets of its edges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import GraphError, count_noun
from hpgmn.base.tasks import is_known, is_target
from hpgmn.graph import validation
from hpgmn.graph.edges import Array as Array
from hpgmn.graph.edges import SortedEdges, sorted_csr
from hpgmn.graph.validation import PARTS as PARTS
from hpgmn.graph.validation import Attributes as Attributes

if TYPE_CHECKING:
    from hpgmn.tables.options import ColumnOptions

NEIGHBORS = ("out", "in", "undirected", "both")
"""Edge directions; "both" means one set of statistics for each direction."""


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of nodes, each a boolean mask of length N.

    ``calibration`` is a fourth set, reserved for conformal prediction; None: no node is.
    """

    train: Array
    val: Array
    test: Array
    calibration: Array | None = None


@dataclass(frozen=True, eq=False)
class Splits(Sequence[Split]):
    """S splits of N nodes: three boolean arrays (N, S); a slice is again splits.

    ``is_random`` marks splits by ``random_splits``; graph files do not store it.
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
        if isinstance(index, slice):
            return Splits(*parts, is_random=self.is_random)
        return Split(*parts)

    def __iter__(self) -> Iterator[Split]:
        return (self[index] for index in range(len(self)))


class Graph:
    """An attributed graph with some labels.

    Args:
        x: attributes (N, F); anything NumPy understands, or a SciPy or torch sparse matrix.
        edge_index: (2, E); row 0 sources, row 1 targets. Self-loops and repeats may be present.
            Or :class:`SortedEdges` of these nodes, with their weights.
        y: (N,) class of each node, an integer, -1 where unknown; or its target, a float, NaN where
            unknown. None: all unknown.
        edge_weight: (E,) positive weights; weights of repeated edges are added.
        edge_type: (E,) the number of each edge's type. Of more than eight types the rarer ones
            become one, "other". Edges between two nodes may be of several types.
        edge_type_names: the names of the types; None: numbers are used.
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
        edge_type: Any = None,
        edge_type_names: Sequence[str] | Array | None = None,
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
        self.edge_values: Array | None = None  # (E, columns) of an edge table, for new edges
        self.with_later_edges: Graph | None = None  # if this is the graph as of a date
        self.directed = validation.truth("directed", directed)
        self.x: Attributes = validation.attributes(x)
        self.num_nodes, self.num_features = (int(size) for size in self.x.shape)
        if isinstance(edge_index, SortedEdges):
            edges = validation.sorted_edges(edge_index, self.num_nodes, edge_weight, edge_type)
            types, names = validation.types(edges.types, edge_type_names, len(edges))
            self.sorted_edges = replace(edges, types=types)
        else:
            self.edge_index = validation.edges(edge_index, self.num_nodes)
            num_edges = self.edge_index.shape[1]
            self.edge_weight = validation.weights(edge_weight, num_edges)
            self.edge_type, names = validation.types(edge_type, edge_type_names, num_edges)
        self.edge_type_names: tuple[str, ...] = names
        self.y: Array = validation.labels(y, self.num_nodes)
        self.class_names = validation.class_names(class_names, self.y)
        self.node_ids = validation.names("node_ids", node_ids, self.num_nodes)
        self.feature_names = validation.names("feature_names", feature_names, self.num_features)
        self.splits: Splits | None = None
        if any(mask is not None for mask in (train_mask, val_mask, test_mask)):
            self.splits = Splits(*validation.masks(train_mask, val_mask, test_mask, self.y))
        self.alternative_splits = self._families(alternative_splits)

    def _families(self, families: Any) -> dict[str, Splits]:
        """Return valid families of splits by name."""
        if not isinstance(families, dict | None) or not all(
            isinstance(name, str) and isinstance(splits, Splits)
            for name, splits in (families or {}).items()
        ):
            raise GraphError(
                "alternative_splits must be a dict of names and splits.",
                "Pass the splits as hpgmn.Splits",
            )
        return {name: self._valid(splits) for name, splits in (families or {}).items()}

    def _valid(self, splits: Splits) -> Splits:
        masks = validation.masks(splits.train, splits.val, splits.test, self.y)
        return Splits(*masks, is_random=splits.is_random)

    @classmethod
    def from_pyg(cls, data: Any, name: str = "graph") -> Graph:
        """Make a graph of a PyTorch Geometric ``Data`` object (edges taken as listed).

        Its ``edge_weight`` and ``edge_type`` are those of the graph; each column of ``edge_attr``
        is aggregated per node and direction into attributes such as ``edge_attr[0] (out, mean)``.
        """
        from hpgmn.graph.conversion import from_pyg

        graph: Graph = from_pyg(cls, data, name)
        return graph

    @classmethod
    def from_networkx(
        cls,
        network: Any,
        *,
        prepare: bool = True,
        name: str | None = None,
        **columns: Unpack[ColumnOptions],
    ) -> Graph:
        """Make a graph of a networkx graph, whose node names become ``node_ids``.

        Node and edge attributes are columns as in :meth:`from_tables`. Lists of numbers of one
        length become columns such as ``x[0]`` and ``x[1]``.

        Args:
            network: a ``networkx`` Graph, DiGraph, MultiGraph or MultiDiGraph.
            prepare: False: attributes stay as they are and must be numbers.
            name: the graph's name; None: the network's name.
            **columns: ``label``, ``split``, ``weight``, ``edge_type``, ``attributes``, ``drop`` and
                so on; see :class:`hpgmn.tables.options.Columns`.
        """
        from hpgmn.graph.conversion import from_networkx

        graph: Graph = from_networkx(cls, network, columns, prepare, name)
        return graph

    @classmethod
    def from_tables(
        cls,
        nodes: Any,
        edges: Any,
        *,
        prepare: bool = True,
        like: Graph | None = None,
        onto: Graph | None = None,
        name: str = "graph",
        **columns: Unpack[ColumnOptions],
    ) -> Graph:
        """Make a graph of a table of nodes and a table of edges, as ``hpgmn train`` reads files.

        Columns are detected by their usual names unless you name them. Ids become ``node_ids``;
        nodes without a label are unlabelled; every other node column is converted to attributes:
        numbers are standardised, words one-hot encoded, missing values filled in and marked. Text
        is parsed as in a CSV file. Nodes without attributes get one, their degree.

        Args:
            nodes: a pandas DataFrame, a pyarrow Table, or a mapping of columns. A named index of a
                DataFrame is a column, too.
            edges: the same for edges.
            prepare: False: attributes stay as they are and must be numbers.
            like: a graph from tables, for example the one trained on, whose columns, scales,
                categories and classes are used.
            onto: a graph to extend: the tables hold new nodes only, and their edges may name its
                nodes. New nodes follow the others and are in no part of its splits.
            name: the graph's name.
            **columns: ``id``, ``label``, ``split``, ``source``, ``target``, ``weight``,
                ``edge_type``, ``attributes``, ``drop``, ``categories``, ``split_by``,
                ``drop_unknown_edges`` and ``directed``; see :class:`hpgmn.tables.options.Columns`.

        >>> from hpgmn import from_tables
        >>> people = {"id": ["ann", "bob", "cat"], "age": [41, 35, 28], "label": ["a", "b", None]}
        >>> payments = {"source": ["ann", "bob"], "target": ["bob", "cat"]}
        >>> from_tables(people, payments)
        Graph('graph': 3 nodes, 2 edges, 1 attribute, 2 classes)
        """
        from hpgmn.graph.conversion import from_tables

        graph: Graph = from_tables(cls, nodes, edges, columns, prepare, like, onto, name)
        return graph

    def to_pyg(self) -> Any:
        """Return a PyTorch Geometric ``Data`` object; sparse attributes stay sparse."""
        from hpgmn.graph.conversion import to_pyg

        return to_pyg(self)

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers to predict instead of classes."""
        return is_target(self.y)

    @property
    def num_classes(self) -> int:
        """C, the number of classes, those without a node included; 0 for targets."""
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
                "Pass train_mask, val_mask and test_mask, or use "
                "graph.with_splits(hpgmn.random_splits(graph))",
            )
        if not 0 <= index < len(self.splits):
            last = len(self.splits) - 1
            numbers = f"splits 0 to {last}" if last else "only split 0"
            raise GraphError(f"Graph '{self.name}' has {numbers} (got {index}).", "Choose one")
        return self.splits[index]

    def with_splits(self, splits: Splits) -> Graph:
        """Return the same graph with other splits; arrays are shared, not copied."""
        graph = copy(self)
        graph.splits = self._valid(splits)
        if self.with_later_edges is not None:
            graph.with_later_edges = self.with_later_edges.with_splits(splits)
        return graph

    @property
    def full(self) -> Graph:
        """The graph to predict on: this one, or that with the edges after the date of this one."""
        return self if self.with_later_edges is None else self.with_later_edges

    def with_attributes(self, x: Any) -> Graph:
        """Return the same graph with other attributes of the same shape; edges are shared."""
        graph = copy(self)
        graph.__dict__.pop("fingerprint", None)
        graph.x = validation.attributes(x)
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
    def edge_type(self) -> Array | None:
        """(E,) numbers of the types of the edges as listed, or None."""
        return self.sorted_edges.edge_type()

    @cached_property
    def sorted_edges(self) -> SortedEdges:
        """The edges as listed, in the order of source and target."""
        return SortedEdges.of(self.edge_index, self.num_nodes, self.edge_weight, self.edge_type)

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
        return self._merge(None)

    def _merge(self, edge_types: Sequence[int] | None) -> sp.csr_array:
        edges = self._sorted if edge_types is None else self.sorted_edges.of_types(edge_types)
        if edges is None:  # not cached: the graph keeps the edges as they were passed
            edges = SortedEdges.of(self.edge_index, self.num_nodes, self.edge_weight, listed=False)
        matrix = edges.adjacency()
        return matrix if self.directed else sorted_csr(matrix.maximum(matrix.T).tocsr())

    def adjacency(
        self, neighbors: str, edge_type: int | Sequence[int] | None = None
    ) -> sp.csr_array:
        """Return the (N, N) float32 CSR matrix whose row v lists the neighbours of v.

        Indices are sorted, without self-loops and repeats. ``neighbors`` is "out", "in" or
        "undirected" (the union of both; weights are added). With ``edge_type`` only edges of that
        type or types count.
        """
        types = None if edge_type is None else np.atleast_1d(edge_type).tolist()
        if not set(types or ()) <= set(range(len(self.edge_type_names))):
            count = count_noun(len(self.edge_type_names), "edge type")
            raise GraphError(f"Graph '{self.name}' has {count} (got number {edge_type}).")
        merged = self._merged if types is None else self._merge(types)
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
        sparse = (np.asarray(x.shape), x.indptr, x.indices, x.data) if sp.issparse(x) else (x,)
        types = (self.edge_type, np.asarray(self.edge_type_names)) if self.edge_type_names else ()
        parts = (np.asarray([self.directed]), *sparse, self.edge_weight, self.node_ids, *types)
        result.update(f"{np.dtype(np.int64)}{(2, self.num_listed_edges)}".encode())
        for ends in [self.edge_index] if self._sorted is None else self._sorted.listed():
            result.update(ends.data)
        for part in (part for part in parts if part is not None):
            result.update(f"{part.dtype}{part.shape}".encode())
            result.update(np.ascontiguousarray(part).data)
        return result.hexdigest()

    def __repr__(self) -> str:
        sizes = (
            count_noun(self.num_nodes, "node"),
            count_noun(self.num_edges, "edge"),
            count_noun(self.num_features, "attribute"),
            "targets" if self.is_regression else count_noun(self.num_classes, "class"),
        )
        return f"Graph('{self.name}': {', '.join(sizes)})"

    def _repr_html_(self) -> str:
        """Render a small table for notebooks."""
        from hpgmn.graph.conversion import to_html

        return to_html(self)


def random_splits(
    graph_or_labels: Any,
    count: int = 10,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    stratified: bool = True,
    first_seed: int = 0,
) -> Splits:
    """Draw random splits; split i depends on the labels and ``first_seed + i`` alone.

    Split i draws ``numpy.random.default_rng(first_seed + i).permutation`` of the labelled nodes
    and cuts it at the rounded fractions: every class on its own, with at least one train node, or
    not stratified all nodes at once.

    Args:
        graph_or_labels: a graph, or its labels (N,) with -1 for unknown, which are in no part.
        count: S, the number of splits.
        fractions: shares of train, validation and test; a rest stays unused.
        stratified: whether each class is divided by the fractions; targets have none.
        first_seed: seed of the first split.

    >>> splits = random_splits([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, -1], count=2)
    >>> [int(mask.sum()) for mask in (splits.train, splits.val, splits.test)]
    [12, 4, 4]
    """
    y = np.asarray(getattr(graph_or_labels, "y", graph_or_labels)).reshape(-1)
    stratified = stratified and not is_target(y)
    shares = np.asarray(fractions, dtype=float)
    if shares.shape != (3,) or (shares < 0).any() or shares[0] <= 0 or shares.sum() > 1 + 1e-9:
        raise ValueError(
            "fractions must be three shares, train above 0, that add up to at most 1 "
            f"(got {tuple(fractions)})"
        )
    if count < 1:
        raise ValueError(f"count must be at least 1 (got {count})")
    labelled = np.flatnonzero(is_known(y))
    masks = np.zeros((3, y.shape[0], count), dtype=bool)
    for split in range(count):
        order = np.random.default_rng(first_seed + split).permutation(labelled)
        groups = [order]
        if stratified:
            by_class = order[np.argsort(y[order], kind="stable")]  # keeps the drawn order
            groups = np.split(by_class, np.flatnonzero(np.diff(y[by_class])) + 1)
        for group in groups:
            cuts = np.rint(np.cumsum(shares) * len(group)).astype(int)
            if stratified and len(group):
                cuts = np.maximum(cuts, 1)
            for mask, begin, end in zip(masks, (0, *cuts[:-1]), cuts, strict=True):
                mask[group[begin:end], split] = True
    empty = [
        part
        for part, mask, share in zip(PARTS, masks, shares, strict=True)
        if share > 0 and not mask.any(axis=0).all()
    ]
    if empty:
        fractions_text = "/".join(f"{share:g}" for share in shares)
        raise GraphError(
            f"{len(labelled)} labelled nodes are too few for a {fractions_text} split: {empty[0]} "
            "would be empty.",
            "Label more nodes or change the fractions",
        )
    return Splits(*masks, is_random=True)
