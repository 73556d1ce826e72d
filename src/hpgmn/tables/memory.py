"""Convert pandas tables, mappings, networkx graphs and GraphML files to tables in memory.

pandas and networkx are used through the objects that the user passes; neither need be installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.tables.sources import MemoryTable

_MISSING_TYPES = ("NaTType", "NAType")  # of pandas
_CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Network(NamedTuple):
    """Nodes and edges of a network.

    ``id`` is the column of node names; ``parts`` are the columns that replace each attribute of
    lists.
    """

    nodes: MemoryTable
    edges: MemoryTable
    id: str
    directed: bool
    parts: dict[str, list[str]]


def memory_table(value: Any, label: str) -> MemoryTable:
    """Convert a pandas DataFrame, a pyarrow Table or a mapping of columns."""
    return MemoryTable(_arrow_table(value, label), label)


def _arrow_table(value: Any, label: str) -> pa.Table:
    try:
        if isinstance(value, pa.Table):
            return value
        if type(value).__module__.split(".")[0] == "pandas" and hasattr(value, "columns"):
            is_named = any(level is not None for level in value.index.names)
            frame = (value.reset_index() if is_named else value).copy(deep=False)
            for position, kind in enumerate(frame.dtypes):
                if kind == object:  # noqa: E721 (a type of NumPy)
                    values = np.empty(len(frame), object)  # which may be lists
                    values[:] = _without_nat(frame.iloc[:, position])
                    frame.isetitem(position, values)
            return pa.Table.from_pandas(frame, preserve_index=False)
        if isinstance(value, Mapping):
            return pa.table(
                {str(name): pa.array(_without_nat(column)) for name, column in value.items()}
            )
    except _CONVERSION_ERRORS as error:
        reason = "; ".join(" ".join(str(part).split()) for part in error.args).rstrip(".")
        raise GraphError(
            f"The table of {label} cannot be read ({reason[:200]}).",
            "Give every column values of one type, and all columns the same length",
        ) from None
    raise GraphError(
        f"The table of {label} must be a pandas DataFrame, a pyarrow Table or a mapping of columns "
        f"(got {type(value).__name__})."
    )


def read_graphml(path: Path) -> Network:
    """Read a GraphML file by networkx."""
    try:
        import networkx
    except ImportError:
        raise HPGMNError("GraphML is read by networkx.", "Run `pip install networkx`") from None
    if not path.is_file():
        raise GraphError(
            f"GraphML file '{path}' does not exist or is not a file.", "Check the path"
        )
    try:
        with warnings.catch_warnings(action="ignore"):  # of keys without a type: they are text
            graph = networkx.read_graphml(path)
    except (networkx.NetworkXError, SyntaxError, LookupError, ValueError, OSError) as error:
        # SyntaxError: of XML, also of recursive entities; external entities are never fetched.
        reason = " ".join(str(error).split()).rstrip(".")
        raise GraphError(
            f"'{path}' cannot be read as GraphML ({reason}).", "Write it again"
        ) from None
    return read_networkx(graph, f"{path.name} (nodes)", f"{path.name} (edges)")


def read_networkx(graph: Any, nodes_label: str = "nodes", edges_label: str = "edges") -> Network:
    """Convert a networkx graph to tables; edges have columns source and target."""
    if not (hasattr(graph, "nodes") and hasattr(graph, "is_directed")):
        raise GraphError(f"from_networkx takes a networkx graph (got {type(graph).__name__}).")
    nodes, defaults = dict(graph.nodes(data=True)), graph.graph.get("node_default", {})
    attributes = _columns(list(nodes.values()), defaults)
    id_names = chain(("id", "node", "node_id"), (f"GraphML id {number}" for number in count(1)))
    id_column = next(name for name in id_names if name not in attributes)
    node_table, parts = _spread_lists(pa.table({id_column: _text(list(nodes)), **attributes}))
    edges, defaults = list(graph.edges(data=True)), graph.graph.get("edge_default", {})
    ends = {
        "source": _text([source for source, _, _ in edges]),
        "target": _text([target for _, target, _ in edges]),
    }
    edge_table = pa.table(_columns([data for _, _, data in edges], defaults) | ends)
    return Network(
        memory_table(node_table, nodes_label),
        memory_table(edge_table, edges_label),
        id_column,
        bool(graph.is_directed()),
        parts,
    )


def _text(values: Sequence[Any]) -> pa.Array:
    """Convert values to text, missing ones to null."""
    try:
        texts = [None if _is_missing(value) else str(value) for value in values]
        return pa.array(texts, pa.string())
    except UnicodeEncodeError as error:
        raise GraphError(
            f"A name or value of the network, {error.object!r}, holds an invalid character.",
            "Read it again with the right encoding",
        ) from None


def _is_missing(value: Any) -> bool:
    """Whether a value is missing; a word such as "nan" is not."""
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(value != value)
    return value is None or type(value).__name__ in _MISSING_TYPES


def _columns(rows: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Make one array per key, null where a row lacks it; values of several types become text."""
    names = dict.fromkeys([name for row in rows for name in row] + list(defaults))
    columns = {}
    for name in names:
        values = [row.get(name, defaults.get(name)) for row in rows]
        try:
            columns[str(name)] = pa.array(_without_nat(values))
        except _CONVERSION_ERRORS:
            columns[str(name)] = _text(values)
    return columns


def _spread_lists(nodes: pa.Table) -> tuple[pa.Table, dict[str, list[str]]]:
    """Replace each column of lists by one column per position; also return name → new names."""
    columns, parts = {}, {}
    for name, column in zip(nodes.column_names, nodes.columns, strict=True):
        if not (pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)):
            columns[name] = column
            continue
        rows = [() if row is None else row for row in column.to_pylist()]
        lengths = {len(row) for row in rows}
        if len(lengths) > 1:
            raise GraphError(
                f"nodes: attribute '{name}' has lists of {min(lengths)} to {max(lengths)} numbers.",
                "Give every node a list of the same length",
            )
        parts[name] = [f"{name}[{position}]" for position in range(lengths.pop())]
        for part, values in zip(parts[name], zip(*rows, strict=True), strict=True):
            columns[part] = pa.array(values)
    return pa.table(columns), parts


def _without_nat(values: Iterable[Any]) -> list[Any]:
    """Replace NumPy's "not a time" by None: beside numbers pyarrow crashes on it."""
    return [
        None if isinstance(value, np.datetime64 | np.timedelta64) and np.isnat(value) else value
        for value in values
    ]
