"""A graph that grows by nodes and edges, and its ego networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.tasks import hide_labels
from hpgmn.graph import PARTS, Array, Graph, Splits
from hpgmn.tables.edge_columns import add_aggregates
from hpgmn.tables.preparation import Preparation
from hpgmn.tables.reading import TableData

_SPARE = 1 << 16  # rows; memory that is not written to takes no space


class GrowingArray:
    """An array that grows at its end without being copied each time."""

    def __init__(self, values: Array) -> None:
        self._data, self._count = values, len(values)

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Array:
        """A view of all rows."""
        return self._data[: self._count]

    def append(self, values: Array) -> None:
        """Add rows."""
        count = self._count + len(values)
        if count > len(self._data):
            shape = (count + count // 4 + _SPARE, *self._data.shape[1:])
            larger = np.empty(shape, self._data.dtype)
            larger[: self._count] = self.values
            self._data = larger
        self._data[self._count : count] = values
        self._count = count

    def take(self, chosen: Array | None) -> Array:
        """Return a copy of the rows at some positions, or of all."""
        return self.values.copy() if chosen is None else self.values[chosen]


class SparseRows:
    """Sparse rows that grow: those of a base and those added later."""

    def __init__(self, base: sp.csr_array) -> None:
        self._base, self._added = base, base[:0]

    def append(self, values: Array) -> None:
        """Add rows."""
        self._added = sp.vstack([self._added, sp.csr_array(values)], format="csr")

    def take(self, nodes: Array | None) -> sp.csr_array:
        """Return the rows at ascending positions, or all."""
        if nodes is None:
            return sp.vstack([self._base, self._added], format="csr")
        first = int(np.searchsorted(nodes, self._base.shape[0]))
        parts = [self._base[nodes[:first]], self._added[nodes[first:] - self._base.shape[0]]]
        return sp.vstack(parts, format="csr")


class GrowingGraph:
    """A graph to which nodes and edges are added in place.

    Attributes that are aggregates of edges follow the edges of each node.
    """

    def __init__(self, graph: Graph) -> None:
        assert graph.node_ids is not None
        self._base = graph
        prepared = graph.preparation
        self._prepared = None if prepared is None else Preparation.from_dict(prepared)
        self.ids: list[str] = graph.node_ids.tolist()
        self.y = GrowingArray(graph.y)
        # Aggregates of edges are written into the attributes: into a copy.
        is_sparse = graph.has_sparse_attributes
        self._x: Any = SparseRows(graph.x) if is_sparse else GrowingArray(graph.x.copy())
        self._ends = GrowingArray(graph.edge_index.T.astype(np.int32))
        columns = (graph.edge_weight, graph.edge_type, graph.edge_values)
        self._columns = [None if column is None else GrowingArray(column) for column in columns]
        # Edge e is at the positions e and E + e of both ends; sorting them groups edges by node.
        ends = graph.edge_index.reshape(-1)
        order = np.argsort(ends, kind="stable").astype(np.int32)
        self._edges = order % max(graph.num_listed_edges, 1)
        self._starts = np.searchsorted(ends[order], np.arange(graph.num_nodes + 1))
        self._added: dict[int, list[int]] = {}  # node → numbers of its added edges

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return len(self.ids)

    @property
    def num_edges(self) -> int:
        """The number of listed edges."""
        return len(self._ends)

    @property
    def has_aggregates(self) -> bool:
        """Whether edges change the attributes of their ends."""
        return self._prepared is not None and bool(self._prepared.aggregates)

    def add(self, data: TableData) -> Array:
        """Add nodes and edges; return the positions whose attributes or edges are new."""
        ends, num_nodes, num_edges = data.edge_index, self.num_nodes, self.num_edges
        new = np.arange(num_nodes, num_nodes + len(data.x))
        missing = hide_labels(np.zeros(len(new), self.y.values.dtype), False)
        self.ids += data.node_ids.tolist()
        self.y.append(missing if data.y is None else data.y)
        width = self._base.num_features - data.x.shape[1]
        self._x.append(np.pad(data.x, ((0, 0), (0, width))))
        self._ends.append(ends.T)
        for rows, values in zip(
            self._columns, (data.edge_weight, data.edge_type, data.edge_values), strict=True
        ):
            if rows is not None and values is not None:
                rows.append(values)
        for number, pair in enumerate(ends.T.tolist(), start=num_edges):
            for node in set(pair):
                self._added.setdefault(node, []).append(number)
        touched = np.union1d(new, ends)
        self._aggregate(touched)
        return touched

    def _aggregate(self, nodes: Array) -> None:
        """Recompute the attributes of some nodes that are aggregates of their edges."""
        if not self.has_aggregates or not nodes.size:
            return
        assert self._prepared is not None
        prepared, values = self._prepared, self._columns[2]
        edges = self._incident(nodes)
        pairs = self._ends.values[edges]
        local, position = np.unique(np.append(nodes, pairs), return_inverse=True)
        block, _ = add_aggregates(
            np.empty((len(local), 0), np.float32),
            position[len(nodes) :].reshape(-1, 2).T,
            None if values is None else values.values[edges],
            prepared.edge_columns,
            self._base.directed,
            prepared.aggregates,
        )
        self._x.values[nodes, -block.shape[1] :] = block[position[: len(nodes)]]

    def _incident(self, nodes: Array) -> Array:
        """Return the ascending numbers of all edges of some nodes."""
        old = nodes[nodes < len(self._starts) - 1]
        first, counts = self._starts[old], self._starts[old + 1] - self._starts[old]
        offsets = np.repeat(first - np.cumsum(counts) + counts, counts)
        found = self._edges[offsets + np.arange(len(offsets))]
        added = [number for node in nodes.tolist() for number in self._added.get(node, ())]
        return np.unique(np.append(found, np.asarray(added, found.dtype)))

    def ball(self, nodes: Array, radius: int, limit: int) -> tuple[Array, Array] | None:
        """Return the nodes at most ``radius`` edges away and the edges of all nearer ones.

        None if there are more than ``limit`` nodes. Both are ascending.
        """
        reached = border = np.unique(nodes)
        edges = np.empty(0, np.int64)
        for _ in range(radius):
            near = self._incident(border)
            edges = np.union1d(edges, near)
            border = np.setdiff1d(self._ends.values[near], reached)
            reached = np.union1d(reached, border)
            if len(reached) > limit:
                return None
        return reached, edges

    def ego_network(self, nodes: Array, radius: int, limit: int) -> tuple[Graph, Array] | None:
        """Return the graph of a ball and the ascending positions of the nodes in it, or None."""
        found = self.ball(nodes, radius, limit)
        if found is None:
            return None
        reached, edges = np.union1d(found[0], 0), found[1]  # with one node that models know
        ends = np.searchsorted(reached, self._ends.values[edges]).T
        names = [self.ids[node] for node in reached.tolist()]
        return self._graph(reached, edges, ends, names), np.searchsorted(reached, np.unique(nodes))

    def whole(self) -> Graph:
        """Return the whole graph."""
        graph = self._graph(None, None, self._ends.values.T, self.ids)
        if self._base.splits is None:
            return graph
        count = self.num_nodes - self._base.num_nodes
        masks = (getattr(self._base.splits, part) for part in PARTS)
        return graph.with_splits(Splits(*(np.pad(one, ((0, count), (0, 0))) for one in masks)))

    def _graph(
        self, nodes: Array | None, edges: Array | None, ends: Array, names: list[str]
    ) -> Graph:
        """Return a graph of some nodes and edges, or of all; nothing is shared."""
        base = self._base
        weights, types, values = (
            None if column is None else column.take(edges) for column in self._columns
        )
        options: dict[str, Any] = {}
        if base.edge_type_names:
            options["edge_type_names"] = base.edge_type_names
        graph = Graph(
            self._x.take(nodes),
            ends.astype(np.int64),
            self.y.take(nodes),
            edge_weight=weights,
            edge_type=types,
            directed=base.directed,
            node_ids=names,
            class_names=None if base.is_regression else base.class_names,
            feature_names=base.feature_names,
            name=base.name,
            **options,
        )
        graph.preparation, graph.edge_values = base.preparation, values
        return graph
