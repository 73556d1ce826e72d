"""Which column is what: found by name, unless the user says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hpgmn.base.errors import GraphError, SettingError, nearest
from hpgmn.tables.graphml import read_graphml
from hpgmn.tables.preparation import Preparation
from hpgmn.tables.sources import EDGE_LISTS, TABLES, Table, is_numeric, not_numbers, open_table
from hpgmn.tables.splitting import SPLIT_BY

NAMES = {
    "id": ("id", "node", "node_id", "name"),
    "label": ("label", "class", "y", "target"),
    "split": ("split",),
    "source": ("source", "src", "from"),
    "target": ("target", "dst", "to"),
    "weight": ("weight",),
}
"""Role → the names a column of that role may have (small and capital letters are the same)."""

_OPTIONS = {role: f"--{role}" for role in NAMES} | {"split": "--split-column"}
_NODE_ROLES, _EDGE_ROLES = ("id", "label", "split"), ("source", "target", "weight")
_NEEDED = ("id", "source", "target")


@dataclass(frozen=True)
class Columns:
    """The columns that the user named.

    Args:
        id: the column of the nodes' names. None, here and below: find it by its name.
        label: the column of classes; "" means that there is none.
        split: the column with the words train, val and test; "" means that there is none.
        source: the column of the edges' first ends.
        target: the column of the edges' second ends.
        weight: the column of edge weights; "" means that there is none.
        drop: columns of the node table to leave out.
        attributes: the columns that describe a node. None: all without another role.
        categories: columns that are categories even if they hold numbers.
        split_by: how the splits are made from a column: ("group", column) or ("time", column).
        drop_unknown_edges: leave out edges that name no node rather than refuse them.
        directed: whether edges run one way; None: as GraphML says, and otherwise yes.
    """

    id: str | None = None
    label: str | None = None
    split: str | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    drop: tuple[str, ...] = ()
    attributes: tuple[str, ...] | None = None
    categories: tuple[str, ...] = ()
    split_by: tuple[str, str] | None = None
    drop_unknown_edges: bool = False
    directed: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what is no name: columns may be named by a program or a config file."""
        for name in NAMES:
            _refuse_unless(isinstance(getattr(self, name), str | None), name, self, "a column")
        for name in ("drop", "attributes", "categories"):
            given = getattr(self, name)
            is_list = isinstance(given, tuple) and all(isinstance(one, str) for one in given)
            _refuse_unless(given is None or is_list, name, self, "a list of columns")
        by = self.split_by
        is_pair = isinstance(by, tuple) and len(by) == 2 and all(isinstance(o, str) for o in by)
        _refuse_unless(by is None or is_pair, "split_by", self, "two words, such as time and year")
        for name in ("drop_unknown_edges", "directed"):
            given = getattr(self, name)
            _refuse_unless(isinstance(given, bool | None), name, self, "true or false")

    def as_dict(self) -> dict[str, Any]:
        """What the user said, in plain values; nothing for what was left to the names."""
        values = {info.name: getattr(self, info.name) for info in fields(self)}
        said = {name: value for name, value in values.items() if value != _default(name)}
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in said.items()
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Columns:
        """What :meth:`as_dict` wrote."""
        known = {info.name for info in fields(cls)}
        for name in content:
            if name not in known:
                raise SettingError.unknown("entry of tables:", str(name), sorted(known))
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in content.items()
        }
        return cls(**values)


def _refuse_unless(is_right: bool, name: str, columns: Columns, wanted: str) -> None:
    if not is_right:
        raise SettingError(f"{name} takes {wanted} (got {getattr(columns, name)!r}).")


def _default(name: str) -> Any:
    return Columns.__dataclass_fields__[name].default


@dataclass(frozen=True)
class Tables:
    """Two tables whose columns are known; nothing but their beginnings has been read."""

    nodes: Table
    edges: Table
    id: str
    label: str | None
    split: str | None
    attributes: tuple[str, ...]
    source: str
    target: str
    weight: str | None
    directed: bool
    categories: tuple[str, ...] = ()
    split_by: tuple[str, str] | None = None
    drop_unknown_edges: bool = False
    prepare: bool = False
    preparation: Preparation | None = None

    @property
    def roles(self) -> dict[str, Any]:
        """What later tables are read with, in plain values."""
        return {role: getattr(self, role) for role in NAMES} | {
            "split_by": None if self.split_by is None else list(self.split_by),
            "drop_unknown_edges": self.drop_unknown_edges,
            "directed": self.directed,
            "has_whole_ids": self.nodes.has_whole(self.id),
        }

    def sentences(self) -> list[str]:
        """What each table's columns are taken for."""
        roles = [("id", self.id), ("label", self.label), ("split", self.split)]
        first = ", ".join(f"{role} is '{name}'" for role, name in roles if name is not None)
        names = ", ".join(self.attributes[:5]) + (", …" if len(self.attributes) > 5 else "")
        count = len(self.attributes)
        what = "more column" if self.prepare else "attribute"
        rest = f"{count:,} {what}{'s'[: count > 1]}: {names}" if count else f"no {what}s"
        lines = [f"{self.nodes.label}: {first}; {rest}."]
        for role in ("label", "split"):
            if getattr(self, role) is None and not (role == "split" and self.split_by):
                lines.append(f"{self.nodes.label}: no {role} column.")
        roles = [("source", self.source), ("target", self.target), ("weight", self.weight)]
        second = ", ".join(f"{role} is '{name}'" for role, name in roles if name is not None)
        kind = "directed" if self.directed else "undirected"
        return [*lines, f"{self.edges.label}: {second}, {kind}."]

    def ignored(self) -> list[str]:
        """A sentence about columns of the edge table that nothing uses, if there are any."""
        names = []
        for name, kind in self.edges.types.items():
            if name in (self.source, self.target, self.weight):
                continue
            hint = ""
            if self.weight is None and is_numeric(kind) and not pa.types.is_null(kind):
                hint = f" (--weight {name} uses it)"
                if self.preparation is not None:
                    hint = " (the model was trained without weights)"
            names.append(f"'{name}'{hint}")
        return [f"{self.edges.label}: ignored: {', '.join(names)}."] if names else []


def open_tables(
    source: str | Path,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    *,
    nodes: str | Path | None = None,
    directed: bool | None = None,
    prepare: bool = False,
    preparation: Preparation | None = None,
) -> Tables:
    """Find the tables of a graph and what their columns are.

    Args:
        source: a folder with tables ``nodes`` and ``edges``, an edge list, or a GraphML file.
        columns: what the user says of the columns.
        nodes: the node table of an edge list.
        directed: whether edges run one way; None: as ``columns`` or GraphML say, otherwise yes.
        prepare: whether attributes may be of any type and are prepared, rather than numbers that
            are taken as they are.
        preparation: how; None: fitted to these nodes.
    """
    source = Path(source).expanduser()
    id_column, declared = columns.id, True
    node_table: Table
    edge_table: Table
    if source.suffix == ".graphml":
        if columns.id or columns.source or columns.target:
            raise SettingError("GraphML itself names nodes and ends: leave out --id and the like.")
        node_table, edge_table, id_column, declared = read_graphml(source)
    else:
        node_table, edge_table = _open_both(source, nodes)
    if nodes is not None and (source.is_dir() or source.suffix == ".graphml"):
        raise SettingError(
            f"--nodes belongs to an edge list, but '{source}' has its own nodes. Leave it out."
        )
    columns = replace(columns, id=id_column)
    if directed is None:
        directed = columns.directed
    if directed is None and preparation is not None and source.suffix != ".graphml":
        directed = preparation.roles["directed"]
    return arranged(
        node_table,
        edge_table,
        columns,
        directed=declared if directed is None else directed,
        prepare=prepare,
        preparation=preparation,
    )


def arranged(
    node_table: Table,
    edge_table: Table,
    columns: Columns,
    *,
    directed: bool,
    prepare: bool = False,
    preparation: Preparation | None = None,
) -> Tables:
    """Find what the columns of two tables are.

    Args:
        node_table: the nodes.
        edge_table: the edges.
        columns: what the user says of the columns.
        directed: whether edges run one way.
        prepare: see :func:`open_tables`.
        preparation: see :func:`open_tables`.
    """
    if preparation is not None:
        _refuse_unweighted(edge_table, columns, preparation.roles)
        columns = _as_trained(node_table, edge_table, columns, preparation.roles)
    found = {
        role: _find(edge_table if role in _EDGE_ROLES else node_table, role, getattr(columns, role))
        for role in NAMES
    }
    weight = found["weight"]
    if weight is not None and not is_numeric(edge_table.types[weight]):
        raise not_numbers(edge_table, weight, edge_table.first_text(weight))
    for roles in (_NODE_ROLES, _EDGE_ROLES):
        named = [found[role] for role in roles if found[role] is not None]
        for name in named:
            if named.count(name) > 1:
                both = " and ".join(_OPTIONS[role] for role in roles if found[role] == name)
                raise SettingError(f"{both} are both column '{name}'. Name another for one.")
    used = [found[role] for role in _NODE_ROLES]
    if columns.split_by is not None:
        used.append(_split_column(node_table, columns, found))
        found["split"] = None
    if preparation is None:
        attributes = _attributes(node_table, used, columns, prepare=prepare)
    else:
        attributes = preparation.names
    return Tables(
        node_table,
        edge_table,
        attributes=attributes,
        directed=directed,
        categories=tuple(_known(node_table, "--category", name) for name in columns.categories),
        split_by=columns.split_by,
        drop_unknown_edges=columns.drop_unknown_edges,
        prepare=prepare,
        preparation=preparation,
        **found,
    )


def _as_trained(
    node_table: Table, edge_table: Table, columns: Columns, roles: Mapping[str, Any]
) -> Columns:
    """The columns of the tables trained on; what later tables may lack is left out."""
    found: dict[str, Any] = {}
    for role in NAMES:
        table = edge_table if role in _EDGE_ROLES else node_table
        name = roles[role]
        is_absent = name is None or (role not in _NEEDED and name not in table.types)
        if role == "weight" and name is None:  # trained without, so used without
            found[role] = ""
        elif getattr(columns, role) is None:
            found[role] = "" if is_absent else name
    by = columns.split_by or roles["split_by"]
    if by is not None and by[1] in node_table.types:
        found["split_by"] = tuple(by)
    dropped = columns.drop_unknown_edges or roles["drop_unknown_edges"]
    return replace(columns, drop_unknown_edges=dropped, **found)


def _refuse_unweighted(table: Table, columns: Columns, roles: Mapping[str, Any]) -> None:
    """Refuse edges without weights where those trained on had some."""
    name = roles["weight"]
    if name is not None and columns.weight is None and name not in table.types:
        raise GraphError(
            f"{table.label} has no column '{name}', which the model was trained with. "
            "Add it, or name the column of weights with --weight."
        )


def _split_column(table: Table, columns: Columns, found: Mapping[str, Any]) -> str:
    """The column that makes the splits."""
    assert columns.split_by is not None
    kind, name = columns.split_by
    if kind not in SPLIT_BY:
        raise SettingError.unknown("kind of --split-by:", kind, SPLIT_BY)
    if columns.split:
        raise SettingError("--split-column and --split-by exclude each other; give one.")
    if _known(table, "--split-by", name) in (found["id"], found["label"]):
        raise _in_use("--split-by", name, table)
    return name


def _open_both(source: Path, nodes: str | Path | None) -> tuple[Table, Table]:
    """The node table and the edge table of a folder or an edge list."""
    edge_endings = (*TABLES, *EDGE_LISTS)
    if source.is_dir():
        node_table = open_table(_member(source, "nodes", TABLES))
        return node_table, _open_edges(_member(source, "edges", edge_endings))
    if not source.exists():
        raise GraphError(f"'{source}' does not exist; check the path.")
    if source.suffix not in edge_endings:
        raise GraphError(
            f"'{source}' is no source of a graph: give a folder with tables nodes and edges "
            f"({', '.join(TABLES)}), an edge list ({', '.join(edge_endings)}), or a .graphml file."
        )
    if nodes is None:
        raise GraphError(
            f"'{source}' lists edges, and nodes need attributes too. Name their table with --nodes."
        )
    return open_table(Path(nodes).expanduser()), _open_edges(source)


def _member(folder: Path, name: str, endings: Sequence[str]) -> Path:
    """The one table of that name in a folder."""
    found = [path for path in (folder / f"{name}{ending}" for ending in endings) if path.exists()]
    if not found:
        raise GraphError(f"Folder '{folder}' has no table {name} ({', '.join(endings)}). Add it.")
    if len(found) > 1:
        both = " and ".join(path.name for path in found)
        raise GraphError(f"Folder '{folder}' has both {both}. Keep one.")
    return found[0]


def _open_edges(path: Path) -> Table:
    return open_table(path, [NAMES[role] for role in _EDGE_ROLES])


def _find(table: Table, role: str, chosen: str | None) -> Any:
    """The column of a role, or None for a role that a table may lack."""
    is_needed = role in _NEEDED
    if chosen:
        return _known(table, _OPTIONS[role], chosen)
    if chosen is None:
        spelt = {name.strip().casefold(): name for name in reversed(table.types)}
        for name in NAMES[role]:
            if name in spelt:
                return spelt[name]
    if is_needed:
        raise GraphError(
            f"{table.label} has no column for the {role} ({', '.join(NAMES[role])}). Name it with "
            f"{_OPTIONS[role]}: {_some(table.types)}."
        )
    return None


def _known(table: Table, option: str, name: str) -> str:
    if name in table.types:
        return name
    role = option.removeprefix("--").removesuffix("-column")
    spelt = {column.strip().casefold(): column for column in reversed(table.types)}
    usual = [spelt[one] for one in NAMES.get(role, ()) if one in spelt]
    best = nearest(name, table.types, 0.75) or next(iter(usual), None)
    hint = f" Did you mean '{best}'?" if best else ""
    raise SettingError(
        f"{option}: {table.label} has no column '{name}'.{hint} Choose from: {_some(table.types)}."
    )


def _in_use(option: str, name: str, table: Table) -> SettingError:
    return SettingError(
        f"{option}: column '{name}' of {table.label} is in use already. Choose another one."
    )


def _some(names: Iterable[str]) -> str:
    words = list(names)
    return ", ".join(words[:20]) + (", …" if len(words) > 20 else "")


def _attributes(
    table: Table, roles: Sequence[str | None], columns: Columns, *, prepare: bool
) -> tuple[str, ...]:
    """The wanted columns, or all without a role; unless they are prepared they must be numbers."""
    used = [name for name in roles if name is not None]
    wanted = tuple(table.types) if columns.attributes is None else columns.attributes
    for option, chosen in (("--drop", columns.drop), ("--attributes", columns.attributes or ())):
        for name in chosen:
            if _known(table, option, name) in used:
                raise _in_use(option, name, table)
    names = tuple(name for name in wanted if name not in used and name not in columns.drop)
    for name in () if prepare else names:
        if not is_numeric(table.types[name]):
            raise not_numbers(table, name, table.first_text(name))
    return names
