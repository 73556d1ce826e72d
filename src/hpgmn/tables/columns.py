"""Detect which column has which role, by name or as the user says."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpgmn.base.errors import GraphError, Remedy, SettingError, count_noun, list_names, nearest
from hpgmn.tables.options import FLAGS, LISTS, NAMES, TASKS, Columns, column_remedy
from hpgmn.tables.preparation import Preparation
from hpgmn.tables.sources import EDGE_LISTS, TABLES, Table, is_date, not_numeric, open_table
from hpgmn.tables.splitting import SPLIT_BY, time_type

if TYPE_CHECKING:
    from hpgmn.tables.memory import Network

_NODE_ROLES = ("id", "label", "split")
_EDGE_ROLES = ("source", "target", "weight", "edge_type")
_TIMES = ("time", "timestamp", "date", "datetime")  # which of several columns of dates counts
_REQUIRED = ("id", "source", "target")
_MAX_LISTED = 20


@dataclass(frozen=True)
class Tables:
    """Two opened tables and the roles of their columns."""

    nodes: Table
    edges: Table
    id: str
    label: str | None
    split: str | None
    attributes: tuple[str, ...]
    source: str
    target: str
    weight: str | None
    edge_type: str | None
    directed: bool
    categories: tuple[str, ...] = ()
    edge_columns: tuple[str, ...] = ()
    edge_categories: tuple[str | None, ...] = ()
    edge_time: str | None = None
    as_of: str | None = None
    split_by: tuple[str, str] | None = None
    task: str = TASKS[0]
    drop_unknown_edges: bool = False
    prepare: bool = False
    preparation: Preparation | None = None

    @property
    def roles(self) -> dict[str, Any]:
        """What a model stores about the columns, in plain types."""
        return {role: getattr(self, role) for role in NAMES} | {
            **{"edge_time": self.edge_time, "as_of": self.as_of},
            "split_by": None if self.split_by is None else list(self.split_by),
            "drop_unknown_edges": self.drop_unknown_edges,
            "directed": self.directed,
            "has_whole_ids": self.nodes.has_integers(self.id),
            **({"task": self.task} if self.task == "regression" else {}),
        }

    def describe(self) -> list[str]:
        """Describe the roles of all columns, one line for each table and missing role."""
        names = list_names(self.attributes, 5, "")
        count, noun = len(self.attributes), "more column" if self.prepare else "attribute"
        rest = f"{count_noun(count, noun)}: {names}" if count else f"no {noun}s"
        lines = [f"{self.nodes.label}: {self._assignments(_NODE_ROLES)}; {rest}."]
        for role in ("label", "split"):
            if getattr(self, role) is None and not (role == "split" and self.split_by):
                lines.append(f"{self.nodes.label}: no {role} column.")
        kind = "directed" if self.directed else "undirected"
        lines.append(f"{self.edges.label}: {self._assignments(_EDGE_ROLES)}, {kind}.")
        used = {getattr(self, role) for role in _EDGE_ROLES}
        used |= set(self.edge_columns if self.prepare else ())
        unused = [name for name in self.edges.types if name not in used]
        if unused:
            lines.append(f"{self.edges.label}: not used: {list_names(unused, len(unused))}.")
        return lines

    def _assignments(self, roles: Sequence[str]) -> str:
        named = [(role, getattr(self, role)) for role in roles]
        return ", ".join(f"{_words(role)} is '{name}'" for role, name in named if name is not None)


def open_tables(
    source: str | Path,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    *,
    nodes: str | Path | None = None,
    prepare: bool = False,
    preparation: Preparation | None = None,
) -> Tables:
    """Open the tables of a graph and detect the roles of their columns.

    Args:
        source: a folder with tables ``nodes`` and ``edges``, an edge list, or a GraphML file.
        columns: what the user says about the columns.
        nodes: the node table of an edge list.
        prepare: whether to convert columns of any type to attributes; otherwise all must be
            numbers and stay as they are.
        preparation: a fitted preparation; None: fit one to these nodes.
    """
    source = Path(source).expanduser()
    is_graphml = source.suffix == ".graphml"
    node_table: Table
    edge_table: Table
    if is_graphml:
        from hpgmn.tables.memory import read_graphml

        network = read_graphml(source)
        node_table, edge_table = network.nodes, network.edges
        columns = network_columns(columns, network)
    else:
        node_table, edge_table = _open_both(source, nodes)
    if nodes is not None and (source.is_dir() or is_graphml):
        raise SettingError(
            f"A separate node table belongs to an edge list, but '{source}' has its own nodes.",
            "Leave out nodes",
        )
    return assign_roles(node_table, edge_table, columns, prepare=prepare, preparation=preparation)


def network_columns(columns: Columns, network: Network) -> Columns:
    """Return the columns of a network: its own ids, ends of edges and direction."""
    if columns.id or columns.source or columns.target:
        raise SettingError(
            "A network names its nodes and the ends of its edges itself.",
            "Leave out id, source and target",
        )

    def spread(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(part for name in names for part in network.parts.get(name, [name]))

    return replace(
        columns,
        id=network.id,
        source="source",
        target="target",
        drop=spread(columns.drop),
        attributes=None if columns.attributes is None else spread(columns.attributes),
        directed=network.directed if columns.directed is None else columns.directed,
    )


def assign_roles(
    node_table: Table,
    edge_table: Table,
    columns: Columns,
    *,
    prepare: bool = False,
    preparation: Preparation | None = None,
) -> Tables:
    """Detect the roles of the columns of two tables; see :func:`open_tables`."""
    edge_table.prefix = "edge_"
    directed = columns.directed is not False
    if preparation is not None:
        if columns.directed is None:
            directed = preparation.roles["directed"]
        columns = _trained_columns(node_table, edge_table, columns, preparation.roles)
    _require_columns(node_table, edge_table, columns)
    roles: dict[str, Any] = {
        role: _find(edge_table if role in _EDGE_ROLES else node_table, role, getattr(columns, role))
        for role in NAMES
    }
    weight = roles["weight"]
    if weight is not None and not edge_table.holds_numbers(weight):
        raise not_numeric(edge_table, weight, is_weight=True)
    for group in (_NODE_ROLES, _EDGE_ROLES):
        used = [roles[role] for role in group if roles[role] is not None]
        for name in used:
            if used.count(name) > 1:
                first, second = [role for role in group if roles[role] == name][:2]
                raise SettingError(
                    f"Column '{name}' cannot be both {_words(first)} and {_words(second)}.",
                    column_remedy(f"Name another column for the {_words(second)}", second),
                )
    reserved = [roles[role] for role in _NODE_ROLES if roles[role] is not None]
    if columns.split_by is not None:
        reserved.append(_split_column(node_table, columns, roles))
        roles["split"] = None
    if preparation is None:
        attributes = _attributes(node_table, reserved, columns, prepare=prepare)
        edge_columns = _edge_columns(edge_table, (roles["source"], roles["target"]), columns)
    else:
        attributes = preparation.names
        edge_columns = tuple(column.name for column in preparation.edge_columns)
    return Tables(
        node_table,
        edge_table,
        attributes=attributes,
        directed=directed,
        categories=tuple(columns.categories),
        edge_columns=edge_columns,
        edge_time=_edge_time(edge_table, columns),
        as_of=columns.as_of,
        edge_categories=(*columns.edge_categories, roles["edge_type"]),
        split_by=None if columns.split_by is None else (columns.split_by[0], columns.split_by[1]),
        task=columns.task,
        drop_unknown_edges=columns.drop_unknown_edges,
        prepare=prepare,
        preparation=preparation,
        **roles,
    )


def _words(role: str) -> str:
    return role.replace("_", " ")


def _trained_columns(
    node_table: Table, edge_table: Table, columns: Columns, roles: Mapping[str, Any]
) -> Columns:
    """Return the columns of the training tables; later tables may lack optional ones."""
    changes: dict[str, Any] = {}
    for role in NAMES:
        table = edge_table if role in _EDGE_ROLES else node_table
        name = roles.get(role)  # older models have no edge types
        is_absent = name is None or (role not in _REQUIRED and name not in table.types)
        is_optional = role in ("weight", "edge_type")
        if is_optional and name is not None and is_absent and getattr(columns, role) is None:
            raise GraphError(
                f"{table.label} has no column '{name}', which the model was trained with.",
                Remedy("Add it") | column_remedy(f"Name the {_words(role)} column", role),
            )
        if is_optional and name is None:  # trained without, so used without
            changes[role] = ""
        elif getattr(columns, role) is None:
            changes[role] = "" if is_absent else name
    split_by = columns.split_by or roles["split_by"]
    if split_by is not None and split_by[1] in node_table.types:
        changes["split_by"] = tuple(split_by)
    dropped = columns.drop_unknown_edges or roles["drop_unknown_edges"]
    return replace(columns, drop_unknown_edges=dropped, **changes)


def _split_column(table: Table, columns: Columns, roles: Mapping[str, Any]) -> str:
    """Return the column that makes the splits."""
    assert columns.split_by is not None
    kind, name = columns.split_by
    if kind not in SPLIT_BY:
        raise SettingError.unknown("kind of split_by:", kind, SPLIT_BY)
    if columns.split:
        raise SettingError(
            "A split column and split_by exclude each other.",
            Remedy("Leave out the split column", option="split", flag="split-column")
            | Remedy("Leave out the other", option="split_by"),
        )
    in_use = {roles["id"], roles["label"]}.intersection([name])
    _refuse_in_use(table, list(in_use), columns, "split_by")
    return name


def _open_both(source: Path, nodes: str | Path | None) -> tuple[Table, Table]:
    """Open the node table and the edge table of a folder or an edge list."""
    edge_suffixes = (*TABLES, *EDGE_LISTS)
    if source.is_dir():
        node_table = open_table(_member(source, "nodes", TABLES))
        return node_table, _open_edges(_member(source, "edges", edge_suffixes))
    if not source.exists():
        raise GraphError(f"'{source}' does not exist.", "Check the path")
    if source.suffix not in edge_suffixes:
        raise GraphError(
            f"'{source}' does not hold a graph.",
            f"Pass a folder with tables nodes and edges ({', '.join(TABLES)}), an edge list "
            f"({', '.join(edge_suffixes)}), or a .graphml file",
        )
    if nodes is None:
        raise GraphError(
            f"'{source}' lists edges, but nodes need attributes too.",
            Remedy("Name the node table", option="nodes"),
        )
    return open_table(Path(nodes).expanduser()), _open_edges(source)


def _member(folder: Path, name: str, suffixes: Sequence[str]) -> Path:
    """Return the path of the table of that name in a folder."""
    paths = [path for path in (folder / f"{name}{end}" for end in suffixes) if path.exists()]
    if not paths:
        raise GraphError(
            f"Folder '{folder}' has no table {name} ({', '.join(suffixes)}).", "Add it"
        )
    if len(paths) > 1:
        both = " and ".join(path.name for path in paths)
        raise GraphError(f"Folder '{folder}' has both {both}.", "Keep one")
    return paths[0]


def _open_edges(path: Path) -> Table:
    return open_table(path, [NAMES[role] for role in _EDGE_ROLES if NAMES[role]])


def _find(table: Table, role: str, name: str | None) -> str | None:
    """Return the column of a role, None if there is none."""
    if name is None:
        return next(iter(_detect_columns(table, role)), None)
    return name or None


def _detect_columns(table: Table, role: str) -> list[str]:
    """Return the columns with a usual name of a role."""
    by_name = {column.strip().casefold(): column for column in reversed(table.types)}
    return [by_name[name] for name in NAMES.get(role, ()) if name in by_name]


def _require_columns(nodes: Table, edges: Table, columns: Columns) -> None:
    """Refuse names of columns that do not exist, and the lack of required ones, all at once."""
    named = {role: [getattr(columns, role)] for role in NAMES}
    named |= {option: getattr(columns, option) or [] for option in LISTS}
    named |= {"edge_time": [columns.edge_time], "split_by": list(columns.split_by or ())[1:]}
    faults: dict[Table, list[tuple[str, Remedy]]] = {}
    for option, names in named.items():
        table = edges if option in _EDGE_ROLES or option.startswith("edge_") else nodes
        listed = [
            (f"'{name}'", _nearest_column(table, option, name))
            for name in names
            if name and name not in table.types
        ]
        if option in _REQUIRED and not _find(table, option, names[0]):
            usual = f"for the {option} ({', '.join(NAMES[option])})"
            listed = [(usual, column_remedy(f"Name the {option} column", option))]
        if listed:
            faults[table] = [*faults.get(table, []), *listed]
    if not faults:
        return
    message = ". ".join(
        f"{table.label} has no column {', '.join(what for what, _ in listed)}; its columns are "
        f"{list_names(table.types, _MAX_LISTED, '')}"
        for table, listed in faults.items()
    )
    remedies = [remedy for listed in faults.values() for _, remedy in listed]
    lacks_role = any(remedy.option in _REQUIRED and remedy.value is None for remedy in remedies)
    unseparated = [table.label for table in faults if len(table.types) == 1]
    if len(faults) == 2 and _detect_columns(edges, "id") and _detect_columns(nodes, "source"):
        remedies = [Remedy("Swap the two tables")]
    elif unseparated:
        remedies = [Remedy(f"Separate the columns of {unseparated[0]} by commas")]
    error = GraphError if lacks_role else SettingError
    raise error(f"{message}.", functools.reduce(Remedy.__and__, remedies))


def _nearest_column(table: Table, option: str, name: str) -> Remedy:
    """Return the remedy for a name that is no column: the most similar one."""
    best = nearest(name, table.types, 0.75) or next(iter(_detect_columns(table, option)), None)
    if best is None or option == "split_by":
        return column_remedy("Name another column", option)
    value: Any = [best] if option in LISTS else best
    return Remedy(f"Use '{best}'", option=option, value=value, flag=FLAGS.get(option))


def _refuse_in_use(table: Table, reserved: Sequence[str], columns: Columns, *options: str) -> None:
    for option in options:
        for name in set(getattr(columns, option) or ()).intersection(reserved):
            raise SettingError(
                f"Column '{name}' of {table.label} already has another role.",
                column_remedy("Choose another column", option),
            )


def _attributes(
    table: Table, reserved: Sequence[str], columns: Columns, *, prepare: bool
) -> tuple[str, ...]:
    """Return the requested columns, or all without a role; without preparation, only numbers."""
    _refuse_in_use(table, reserved, columns, "drop", "attributes", "categories")
    requested = tuple(table.types) if columns.attributes is None else columns.attributes
    names = tuple(name for name in requested if name not in reserved and name not in columns.drop)
    for name in () if prepare else names:
        if not table.holds_numbers(name):
            raise not_numeric(table, name)
    return names


def _edge_columns(table: Table, ends: Sequence[str], columns: Columns) -> tuple[str, ...]:
    """Return the columns of the edge table that are aggregated: all but the ends of edges."""
    _refuse_in_use(table, ends, columns, "edge_drop", "edge_categories")
    return tuple(name for name in table.types if name not in (*ends, *columns.edge_drop))


def _edge_time(table: Table, columns: Columns) -> str | None:
    """Return the column with the times of edges: the named one, or the only one with dates."""
    name, kinds = columns.edge_time, table.types
    if name:
        try:
            time_type(table, name)
        except ValueError as error:
            remedy = column_remedy("Name another column", "edge_time")
            raise GraphError(f"{table.label}: column '{name}' {error}.", remedy) from None
        return name
    dates = [name for name, kind in kinds.items() if is_date(kind)]
    usual = [name for name in dates if name.strip().casefold() in _TIMES]
    found = dates if len(dates) == 1 else usual
    if len(found) == 1 and name is None:
        return found[0]
    if columns.as_of is None:
        return None
    several = f"several do: {list_names(dates, len(dates))}"
    raise SettingError(
        f"as_of needs a column of {table.label} that holds dates, and "
        f"{several if dates else 'none does'}.",
        column_remedy("Name the column", "edge_time") | column_remedy("Leave it out", "as_of"),
    )
