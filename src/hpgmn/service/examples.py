"""Example requests that fit a served graph: its ids, its columns, values that occur in it."""

from __future__ import annotations

from typing import Any

from hpgmn.graph import Graph
from hpgmn.graph.conversion import original_ids
from hpgmn.service.journal import Row
from hpgmn.tables.column_types import Category, Column, Date, Number, describe_days
from hpgmn.tables.preparation import Preparation

NEW_ID = 900_000_000
"""Id of the new node in examples; text where ids are text."""


def request_examples(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return path → name → body of a valid request."""
    assert graph.node_ids is not None
    ids = original_ids(graph.node_ids[:2], graph.preparation).tolist()
    new_id = NEW_ID if isinstance(ids[0], int) else f"new-{NEW_ID}"
    node, edge = _node(graph, new_id), _edge(graph, ids[0], ids[-1])
    own_edge = _edge(graph, new_id, ids[0])
    added = {"nodes": [node], "edges": [own_edge]}
    return {
        "/predict": {"known nodes": {"ids": ids}, "new nodes": added},
        "/explain": {"a node": {"id": ids[0]}},
        "/nodes": {"a node with an edge": added},
        "/edges": {"an edge": {"edges": [edge]}},
    }


def _node(graph: Graph, new_id: str | int) -> Row:
    """Return a row with typical values."""
    if graph.preparation is None:
        numbered = [f"x[{number}]" for number in range(graph.num_features)]
        names = numbered if graph.feature_names is None else graph.feature_names.tolist()
        return {"id": new_id} | dict.fromkeys(names, 0.0)
    fitted = Preparation.from_dict(graph.preparation)
    values = {column.name: _value(column) for column in fitted.node_columns}
    return {fitted.roles["id"]: new_id, **values}


def _edge(graph: Graph, source: str | int, target: str | int) -> Row:
    if graph.preparation is None:
        row: Row = {"source": source, "target": target}
        row |= {"weight": 1.0} if graph.is_weighted else {}
        return row | ({"type": graph.edge_type_names[0]} if graph.edge_type_names else {})
    fitted = Preparation.from_dict(graph.preparation)
    roles = fitted.roles
    row = {column.name: _value(column) for column in fitted.edge_columns}
    if weight := roles.get("weight"):
        row.setdefault(weight, 1.0)
    if edge_type := roles.get("edge_type"):
        row[edge_type] = graph.edge_type_names[0]
    return {roles["source"]: source, roles["target"]: target} | row


def _value(column: Column) -> Any:
    """Return a value that the column had in training: of numbers the median, of words the first."""
    if isinstance(column, Category):
        return column.values[0] if column.values else "word"
    if isinstance(column, Date):
        return describe_days(round(column.mean))
    return round(column.fill, 4) if isinstance(column, Number) else True
