"""GraphML files, which networkx reads; they are small enough to be held in memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.tables.sources import HeldTable, without_nat

_NOTHING = ("NaTType", "NAType")  # the types of what pandas puts for a missing value


class GraphML(NamedTuple):
    """What a GraphML file holds; ``id`` is the column of the nodes' names."""

    nodes: HeldTable
    edges: HeldTable
    id: str
    directed: bool


def read_graphml(path: Path) -> GraphML:
    """The nodes and edges of a GraphML file as tables with columns id, source and target."""
    try:
        import networkx
    except ImportError:
        raise HPGMNError("GraphML is read by networkx: run `pip install networkx`.") from None
    if not path.is_file():
        raise GraphError(f"GraphML file '{path}' does not exist or is no file; check the path.")
    try:
        with warnings.catch_warnings(action="ignore"):  # of keys without a type: they are text
            graph = networkx.read_graphml(path)
    except (networkx.NetworkXError, SyntaxError, LookupError, ValueError, OSError) as error:
        # SyntaxError: of XML, also entities that grow without end; those outside are never fetched.
        reason = " ".join(str(error).split()).rstrip(".")
        raise GraphError(
            f"'{path}' cannot be read as GraphML ({reason}): write it again."
        ) from None
    nodes, edges, name = network_tables(graph)
    return GraphML(
        HeldTable(path, nodes, f"{path.name} (nodes)"),
        HeldTable(path, edges, f"{path.name} (edges)"),
        name,
        bool(graph.is_directed()),
    )


def network_tables(graph: Any) -> tuple[pa.Table, pa.Table, str]:
    """The nodes and edges of a networkx graph, and the column of the nodes' names, which are text.

    Edges have columns source and target beside their own.
    """
    nodes, defaults = dict(graph.nodes(data=True)), graph.graph.get("node_default", {})
    attributes = _columns(list(nodes.values()), defaults)
    name = next(one for one in _id_names() if one not in attributes)
    edges, defaults = list(graph.edges(data=True)), graph.graph.get("edge_default", {})
    ends = {
        "source": _text([source for source, _, _ in edges]),
        "target": _text([target for _, target, _ in edges]),
    }
    edge_table = pa.table(_columns([data for _, _, data in edges], defaults) | ends)
    return pa.table({name: _text(list(nodes)), **attributes}), edge_table, name


def _id_names() -> Iterator[str]:
    """What the column of names may be called; a network may have attributes of any name."""
    yield from ("id", "node", "node_id", "GraphML id")
    yield from (f"GraphML id {number}" for number in count(2))


def _text(values: Sequence[Any]) -> pa.Array:
    """Values as text, null where there is none."""
    try:
        return pa.array([None if _is_missing(one) else str(one) for one in values], pa.string())
    except UnicodeEncodeError as error:
        raise GraphError(
            f"A name or value of the network, {error.object!r}, is no text: it holds half a "
            "character. Read it again with the right encoding."
        ) from None


def _is_missing(value: Any) -> bool:
    """Whether there is no value; a word such as "nan" is one."""
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(value != value)
    return value is None or type(value).__name__ in _NOTHING


def _columns(rows: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]) -> dict[str, pa.Array]:
    """One array per key, null where a row lacks it; values of several types become text."""
    names = dict.fromkeys([name for row in rows for name in row] + list(defaults))
    columns = {}
    for name in names:
        values = [row.get(name, defaults.get(name)) for row in rows]
        try:
            columns[str(name)] = pa.array(without_nat(values))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            columns[str(name)] = _text(values)
    return columns
