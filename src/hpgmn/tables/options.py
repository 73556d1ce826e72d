"""What the user says about the columns of tables, as keywords and on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from hpgmn.base.errors import Remedy, SettingError

NAMES = {
    "id": ("id", "node", "node_id", "name"),
    "label": ("label", "class", "y", "target"),
    "split": ("split",),
    "source": ("source", "src", "from"),
    "target": ("target", "dst", "to"),
    "weight": ("weight",),
    "edge_type": (),
}
"""Role → the names by which its column is detected, in any case; none: only if it is named."""

FLAGS = {
    "split": "split-column",
    "categories": "category",
    "edge_categories": "edge-category",
    "directed": "directed/--undirected",
}
"""The options of the command line whose name is no keyword."""
TASKS = ("auto", "classification", "regression")
LISTS = ("drop", "attributes", "categories", "edge_drop", "edge_categories")
"""The options that take lists of columns."""


class ColumnOptions(TypedDict, total=False):
    """The fields of :class:`Columns` as keywords of ``load`` and ``from_tables``."""

    id: str | None
    label: str | None
    split: str | None
    source: str | None
    target: str | None
    weight: str | None
    edge_type: str | None
    drop: Sequence[str]
    attributes: Sequence[str] | None
    categories: Sequence[str]
    edge_drop: Sequence[str]
    edge_categories: Sequence[str]
    edge_time: str | None
    as_of: str | None
    split_by: Sequence[str] | None
    task: str
    drop_unknown_edges: bool
    directed: bool | None


def check_column_options(
    options: Mapping[str, Any] | ColumnOptions, kind: str = "option of columns"
) -> dict[str, Any]:
    """Return the options as a dictionary; refuse unknown names."""
    known = sorted(ColumnOptions.__annotations__)
    for name in options:
        if name not in known:
            raise SettingError.unknown(kind, str(name), known)
    return dict(options)


@dataclass(frozen=True)
class Columns:
    """What the user says about the columns.

    Args:
        id: the column of node ids [id, node, node_id or name]. None, here and below: detect it by
            the names in brackets.
        label: the column of classes [label, class, y or target]; "" for none.
        split: the column with the words train, val and test [split]; "" for none.
        source: the column of the edges' sources [source, src or from].
        target: the column of the edges' targets [target, dst or to].
        weight: the column of edge weights [weight]; "" for none.
        edge_type: the column of edge types; None or "": none.
        drop: columns of the node table to leave out.
        attributes: the columns to use as attributes. None: all without another role.
        categories: columns that are categories even if they hold numbers.
        edge_drop: columns of the edge table that are not aggregated.
        edge_categories: columns of the edge table that are categories even if they hold numbers.
        edge_time: the column with the times of edges [the only one with dates, or time, timestamp,
            date or datetime]; "" for none.
        as_of: train on the edges up to this date, or number if ``edge_time`` holds numbers; later
            edges are read for tests and predictions only. None: with ``split_by`` time, the time of
            the newest validation node.
        split_by: make splits: ("group", column) keeps groups together, ("time", column) trains on
            the oldest nodes and tests on the newest.
        task: "classification", "regression", or "auto": labels with fractions are targets.
        drop_unknown_edges: leave out edges to unknown nodes instead of raising.
        directed: whether edges are directed. None: as in ``like`` or the GraphML file, else yes.
    """

    id: str | None = None
    label: str | None = None
    split: str | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    edge_type: str | None = None
    drop: Sequence[str] = ()
    attributes: Sequence[str] | None = None
    categories: Sequence[str] = ()
    edge_drop: Sequence[str] = ()
    edge_categories: Sequence[str] = ()
    edge_time: str | None = None
    as_of: str | None = None
    split_by: Sequence[str] | None = None
    task: str = TASKS[0]
    drop_unknown_edges: bool = False
    directed: bool | None = None

    def __post_init__(self) -> None:
        """Check the types: names may come from a program or a config file."""
        for name in (*NAMES, "edge_time"):
            self._require(isinstance(getattr(self, name), str | None), name, "a column name")
        self._require(isinstance(self.as_of, str | None), "as_of", "a date in quotes")
        for name in (*LISTS, "split_by"):
            value = getattr(self, name)
            if value is None and name in ("attributes", "split_by"):
                continue
            if isinstance(value, str):
                raise SettingError(f"{name} takes a list of names.", f"Pass ['{value}']")
            is_list = isinstance(value, Iterable) and not isinstance(value, Mapping)
            members = tuple(value) if is_list else (None,)
            is_names = all(isinstance(member, str) for member in members)
            if name == "split_by":
                example = "two words, such as 'time' and 'year'"
                self._require(is_names and len(members) == 2, name, example)
            self._require(is_names, name, "a list of names")
            object.__setattr__(self, name, members)
        if self.task not in TASKS:
            raise SettingError.unknown("task", str(self.task), TASKS)
        for name in ("drop_unknown_edges", "directed"):
            self._require(isinstance(getattr(self, name), bool | None), name, "true or false")

    def _require(self, is_valid: bool, name: str, expected: str) -> None:
        if not is_valid:
            raise SettingError(f"{name} takes {expected} (got {getattr(self, name)!r}).")


def column_remedy(action: str, option: str) -> Remedy:
    """Return a remedy that names an option of columns."""
    return Remedy(action, option=option, flag=FLAGS.get(option))


def column_option(name: str, value: Any) -> str:
    """Return an option of columns as it is written on the command line.

    >>> column_option("edge_drop", ["a b"]), column_option("directed", False)
    ("--edge-drop 'a b'", '--undirected')
    """
    if name == "directed":
        return "--directed" if value else "--undirected"
    if value is False:
        return ""
    value = tuple(value) if name == "split_by" else value
    return Remedy("", option=name, value=value, flag=FLAGS.get(name)).as_option()
