"""GraphML files, which networkx reads; they are small enough to be held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hpgmn.errors import GraphError, HPGMNError
from hpgmn.tables.sources import HeldTable


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
    name = next(one for one in ("id", "node", "node_id", "GraphML id") if one not in attributes)
    names = pa.array([str(node) for node in nodes], pa.string())
    edges, defaults = list(graph.edges(data=True)), graph.graph.get("edge_default", {})
    ends = {
        "source": pa.array([str(source) for source, _, _ in edges], pa.string()),
        "target": pa.array([str(target) for _, target, _ in edges], pa.string()),
    }
    edge_table = pa.table(_columns([data for _, _, data in edges], defaults) | ends)
    return pa.table({name: names, **attributes}), edge_table, name


def _columns(rows: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]) -> dict[str, pa.Array]:
    """One array per key, null where a row lacks it; values of several types become text."""
    names = dict.fromkeys([name for row in rows for name in row] + list(defaults))
    columns = {}
    for name in names:
        values = [row.get(name, defaults.get(name)) for row in rows]
        try:
            columns[str(name)] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns[str(name)] = pa.array([None if one is None else str(one) for one in values])
    return columns
