"""Convert columns of any type to attributes: fitted once on a node table, applied to later ones.

| column | attributes |
| --- | --- |
| numbers | standardised; missing values become the median |
| dates | days since 1970, then like numbers |
| booleans, or 0 and 1 only | unchanged |
| up to ``ONE_HOT`` different words | one for each word; missing values are a separate category |
| more words | ``HASHED``, chosen by a checksum of the word |
| free text, names | none, with a warning |
| a single value | none |

A column with missing values gets one more attribute, which marks them. Labels are never read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from hpgmn.base.errors import GraphError, HPGMNError, Remedy, count_noun, list_names
from hpgmn.tables.column_types import COLUMN_TYPES, Aggregate, Column, Sample, Time
from hpgmn.tables.sources import Array, Table

logger = logging.getLogger(__name__)

Log = Callable[[str], None]
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Preparation:
    """How a node table becomes attributes; fitted by :func:`fit`, stored with the model.

    Args:
        columns: the columns that are used, aggregates of edges last.
        left_out: column → why it is not used.
        roles: which columns were id, label, split and so on.
        class_names: the classes in their order.
        edge_columns: the columns of the edge table that are aggregated.
    """

    columns: tuple[Column, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    roles: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    edge_columns: tuple[Column, ...] = ()

    @property
    def node_columns(self) -> tuple[Column, ...]:
        """The columns of the node table that are used."""
        return tuple(column for column in self.columns if not isinstance(column, Aggregate))

    @property
    def aggregates(self) -> tuple[Column, ...]:
        """The attributes made of edges."""
        return tuple(column for column in self.columns if isinstance(column, Aggregate))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of ``node_columns``."""
        return tuple(column.name for column in self.node_columns)

    @property
    def feature_names(self) -> list[str]:
        """The names of all F attributes."""
        return [name for column in self.columns for name in column.feature_names]

    def original(self, number: int, attributes: Array) -> float | str | None:
        """Return a node's value of a column in the unit of the tables; None if it is missing."""
        column = self.columns[number]
        value = column.original(attributes)
        name, _, what = column.name.removesuffix(")").rpartition(" (")
        times = {one.name: one for one in self.edge_columns if isinstance(one, Time)}
        if isinstance(column, Aggregate) and isinstance(value, float) and name in times:
            return _describe_time(times[name], what.rpartition(", ")[2], value)
        return value

    def attributes(self, table: Table, log: Log) -> Array:
        """Convert a table to float32 (N, F without aggregates); it must have all columns."""
        check_columns(self.node_columns, table)
        types = {column.name: type(column) for column in self.node_columns}
        return self.matrix(read_values(table, types), table, log)

    def matrix(self, values: dict[str, Array], table: Table, log: Log) -> Array:
        """Convert values by column to float32; each column is released when it is done."""
        width = sum(len(column.feature_names) for column in self.node_columns)
        x = np.empty((len(next(iter(values.values()))), width), np.float32)
        start = 0
        for column in self.node_columns:
            own_values = values.pop(column.name)
            block = column.attributes(own_values)
            x[:, start : start + block.shape[1]] = block
            start += block.shape[1]
            if words := column.unknown(own_values):
                log(
                    f"{table.label}: column '{column.name}' holds {list_names(words)}, unknown "
                    "when the model was trained; such nodes have none of its attributes."
                )
        return x

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as they are stored with a model."""
        return {
            "columns": [column.as_dict() for column in self.columns],
            "left_out": dict(self.left_out),
            "roles": dict(self.roles),
            "class_names": list(self.class_names),
            "edge_columns": [column.as_dict() for column in self.edge_columns],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Preparation:
        """Rebuild what :meth:`as_dict` returned."""
        columns = tuple(map(Column.from_dict, content["columns"]))
        edge_columns = tuple(map(Column.from_dict, content.get("edge_columns", ())))
        about = dict(content["left_out"]), dict(content["roles"]), tuple(content["class_names"])
        return cls(columns, *about, edge_columns)


def _describe_time(column: Time, what: str, value: float) -> float | str | None:
    """Return an aggregate of times in words: first and last as dates, gaps as durations."""
    if what in ("first", "last"):
        return column.original(np.array([value]))
    if what != "mean gap":
        return value
    hours = value / 3600
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    return f"{hours:.0f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def check_columns(columns: Sequence[Column], table: Table) -> None:
    """Refuse a table that lacks columns or has another type in one."""
    missing = [column.name for column in columns if column.name not in table.types]
    if missing:
        raise HPGMNError(
            f"{table.label} has no column {list_names(missing)}, which the model was trained with.",
            "Add it; single values may be missing",
        )
    for column in columns:
        column.check(table)


_LABEL = re.compile(
    r"(?<![a-z])(is)?_?(fraud|outcome|status|churn|default|result|verdict|spam|bot|risk)", re.I
)


def likely_label(preparation: Mapping[str, Any]) -> str | None:
    """Return an attribute that may be the label: of few values, by its name or missing values."""
    few = [column for column in preparation["columns"] if column["kind"] in ("category", "flag")]
    named = [column["name"] for column in few if _LABEL.search(column["name"])]
    return next(iter([*named, *(column["name"] for column in few if column["has_missing"])]), None)


def fit(
    table: Table, names: Sequence[str], categories: Sequence[str], log: Log
) -> tuple[Preparation, Array | None]:
    """Fit column types to some columns of a table.

    Args:
        table: the nodes.
        names: the columns.
        categories: those among them that are categories whatever they hold.
        log: receives what becomes of the columns.

    Returns:
        The preparation, and the attributes (N, F) or None if no column can be used.
    """
    left_out: dict[str, str] = {}
    candidates: dict[str, list[type[Column]]] = {}
    for name in names:
        arrow_type = pa.string() if name in categories else table.types[name]
        types = [column_type for column_type in COLUMN_TYPES if column_type.holds(arrow_type)]
        if types:
            candidates[name] = types
        else:
            left_out[name] = f"of type {arrow_type}"
    values = read_values(table, {name: types[0] for name, types in candidates.items()})
    columns = []
    for name, types in candidates.items():
        sample = Sample(table, name, values[name], name in categories)
        results = (column_type.fit(sample) for column_type in types)
        result = next(result for result in results if result is not None)
        if isinstance(result, Column):
            columns.append(result)
        else:
            left_out[name] = result
            del values[name]
    preparation = Preparation(tuple(columns), left_out)
    _report(table, preparation, log)
    return preparation, preparation.matrix(values, table, log) if columns else None


def _report(table: Table, preparation: Preparation, log: Log) -> None:
    """Log what becomes of the columns."""
    for column_type in COLUMN_TYPES:
        names = [column.name for column in preparation.columns if type(column) is column_type]
        if names:
            log(f"{table.label}: {column_type.meaning}: {list_names(names)}.")
    filled = [column.name for column in preparation.columns if column.has_missing]
    if filled:
        log(
            f"{table.label}: values are missing in {list_names(filled)}; the median or a word of "
            "its own replaces them, and an attribute marks them."
        )
    report_left_out(table, preparation.left_out, log)


def report_left_out(table: Table, left_out: Mapping[str, str], log: Log) -> None:
    """Log which columns are left out and why; warn where the user may want them."""
    reasons: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        listed = list_names(names)
        if reason in ("constant", "empty", "row numbers or ids"):
            log(f"{table.label}: left out because {reason}: {listed}.")
        elif reason.startswith("of type"):
            message = "%s: %s %s cannot be an attribute and is left out."
            logger.warning(message, table.label, listed, reason)
        else:
            remedy = Remedy("Convert it to numbers to use it")
            remedy |= table.category_remedy(names[0], "Read it as a category")
            logger.warning("%s: %s: %s, left out. %s", table.label, listed, reason, remedy)


def read_values(table: Table, types: Mapping[str, type[Column]]) -> dict[str, Array]:
    """Read all values of some columns: floats with NaN, or words with None, if missing."""
    parts: dict[str, list[Array]] = {name: [] for name in types}
    read_as = {name: column_type.read_as for name, column_type in types.items()}
    for batch in table.batches(read_as) if types else ():
        for name, column_type in types.items():
            parts[name].append(column_type.read(table, name, batch.column(name)))
    values = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    for name, array in values.items():
        if array.dtype.kind == "f":
            refuse_infinite(table, name, array)
    return values


def refuse_infinite(table: Table, name: str, values: Array) -> None:
    """Refuse numbers that are infinite as attributes."""
    wrong = np.flatnonzero(np.abs(values) > _LARGEST)
    if wrong.size:
        raise GraphError(
            f"{table.label}: column '{name}' has {count_noun(wrong.size, 'number')} beyond "
            f"±3.4e38, the first in {table.row(int(wrong[0]))}.",
            Remedy("Put finite numbers there, or leave them empty") | table.drop_remedy(name),
        )
