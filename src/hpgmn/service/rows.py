"""Read rows of new nodes and edges, with the columns and checks of the training tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from hpgmn.base.errors import GraphError, Remedy, SettingError, list_names, nearest
from hpgmn.graph import Graph
from hpgmn.graph.conversion import reading_options
from hpgmn.tables.columns import assign_roles
from hpgmn.tables.edges import id_keys
from hpgmn.tables.memory import memory_table
from hpgmn.tables.reading import TableData, ignore_progress, read_tables
from hpgmn.tables.sources import MemoryTable

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]


class RowReader:
    """Reads rows of new nodes and edges of a graph.

    The columns are those of the training tables. A graph without a preparation has the columns
    ``id`` and its feature names (``x[0]``, ``x[1]`` and so on without names), optionally ``label``;
    edges have ``source`` and ``target``, and ``weight`` and ``type`` where the graph has them.
    """

    def __init__(self, graph: Graph) -> None:
        names = graph.feature_names
        if names is None:
            names = np.asarray([f"x[{number}]" for number in range(graph.num_features)])
        self._like = copy(graph)
        self._like.node_ids, self._like.feature_names = np.empty(0, "U1"), names
        self._columns, self._options = reading_options({}, True, None, self._like)
        prepared = self._options["preparation"]
        roles: dict[str, Any]
        if prepared is None:
            roles = {"id": "id", "source": "source", "target": "target"}
            roles |= {"weight": "weight"} if graph.is_weighted else {}
            roles |= {"edge_type": "type"} if graph.edge_type_names else {}
            self._columns = replace(self._columns, **roles)
            optional, attributes, edge_columns = ["label"], names.tolist(), []
        else:
            roles = {role: prepared.roles.get(role) for role in ("id", "source", "target")}
            roles |= {role: prepared.roles.get(role) for role in ("weight", "edge_type")}
            optional = [prepared.roles["label"], prepared.roles["split"], *prepared.left_out]
            optional += (prepared.roles["split_by"] or [])[1:]
            attributes = list(prepared.names)
            edge_columns = [column.name for column in prepared.edge_columns]
        self.id, self._ends = roles["id"], (roles["source"], roles["target"])
        self._node_names = [self.id, *attributes]
        ends = [*self._ends, roles.get("weight"), roles.get("edge_type"), *edge_columns]
        self._edge_names = [name for name in dict.fromkeys(ends) if name is not None]
        self._optional = [name for name in optional if name is not None]

    def read(
        self, nodes: Sequence[Row], edges: Sequence[Row], positions: Mapping[str, int]
    ) -> TableData:
        """Check rows completely and convert them.

        Ends of edges are positions in the graph with the new nodes at its end. Attributes lack
        aggregates of edges.

        Args:
            positions: the position of each id of the graph.
        """
        node_table = self._table(nodes, self._node_names, "nodes", self._optional)
        edge_table = self._table(edges, self._edge_names, "edges")
        tables = assign_roles(node_table, edge_table, self._columns, **self._options)
        # Edges to unknown nodes are errors here, and new nodes are in no split.
        tables = replace(tables, drop_unknown_edges=False, split=None, split_by=None)
        mentioned = dict.fromkeys(
            name
            for table, column in ((node_table, self.id), *((edge_table, end) for end in self._ends))
            for batch in table.batches({column: "text"})
            for name in id_keys(table, column, batch.column(0), False).to_pylist()
        )
        known = [name for name in mentioned if name in positions]
        self._like.node_ids = np.asarray(known, object)  # the old nodes that matter here
        data = read_tables(tables, ignore_progress, logger.debug, onto=self._like)
        unknown = (data.class_names or [])[len(self._like.class_names) :]
        if unknown:
            raise SettingError.unknown("class", unknown[0], self._like.class_names)
        old = np.asarray([positions[name] for name in known], np.int64)
        place = np.append(old, len(positions) + np.arange(len(data.node_ids)))
        return replace(data, edge_index=place[data.edge_index])

    def _table(
        self, rows: Sequence[Row], names: Sequence[str], label: str, optional: Sequence[str] = ()
    ) -> MemoryTable:
        """Return rows as a table; without rows it has all columns."""
        used = list(dict.fromkeys(name for row in rows for name in row)) if rows else names
        for name in used:
            if name not in names and name not in optional:
                known = [*names, *optional]
                best = nearest(str(name), known, 0.75)
                remedy = Remedy("Leave it out") if best is None else Remedy(f"Use '{best}'")
                raise GraphError(
                    f"{label} have a column '{name}', which the training tables lack; their "
                    f"columns are {list_names(known)}.",
                    remedy,
                )
        missing = [name for name in names if name not in used]
        if missing:
            raise GraphError(
                f"{label} lack {list_names(missing)}.", "Give every column of the training tables"
            )
        return memory_table({name: [row.get(name) for row in rows] for name in used}, label)
