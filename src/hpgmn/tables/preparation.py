"""From columns of any type to numbers: fitted once on a node table, applied to later ones.

| column | attributes |
| --- | --- |
| numbers | standardised by mean and deviation; missing ones become the median |
| dates | days since 1970, then like numbers |
| true and false, or 0 and 1 only | as they are |
| up to ``ONE_HOT`` different words | one attribute for each; missing is a word of its own |
| more words | ``HASHED`` attributes, one of them chosen by a checksum of the word |
| free text, names | left out with a warning |
| one value only | left out |

A column with missing numbers has one more attribute, which says where. Labels have no part in it.
"""

from __future__ import annotations

import contextlib
import datetime
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.graph import Array
from hpgmn.tables.sources import (
    MISSING,
    NUMBER,
    OWN,
    TEXT,
    Table,
    as_numbers,
    as_text,
    is_numeric,
    mixed,
    not_numbers,
)
from hpgmn.tables.words import canonical

ONE_HOT = 32
"""Up to this many different words a category has an attribute for each."""
HASHED = 32
"""So many attributes has a category with more words."""
LONG_TEXT = 40
"""Words of this mean length that seldom repeat are free text."""

DEGREE = "degree"
"""The one attribute of nodes whose table has none, and its kind."""

_NUMBER, _DATE, _FLAG, _CATEGORY, _HASHED = "number", "date", "flag", "category", "hashed"
_KINDS = {_NUMBER: NUMBER, _FLAG: NUMBER, _DATE: OWN, _CATEGORY: TEXT, _HASHED: TEXT}
_LARGEST = float(np.finfo(np.float32).max)
_SECONDS_A_DAY = 86_400
_OTHER_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%d.%m.%y", "%Y/%m/%d", "%Y.%m.%d")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Column:
    """What becomes of one column.

    Args:
        name: its name.
        kind: number, date, flag, category or hashed.
        mean: what is subtracted from a number.
        deviation: what a number is divided by after that; 0: only where it is missing is kept.
        fill: what stands for a missing number.
        has_missing: whether an attribute says where values are missing.
        values: the words of a category, in order.
        width: the attributes of a hashed category, missing not counted.
    """

    name: str
    kind: str
    mean: float = 0.0
    deviation: float = 1.0
    fill: float = 0.0
    has_missing: bool = False
    values: tuple[str, ...] = ()
    width: int = 0

    @property
    def feature_names(self) -> list[str]:
        """The names of its attributes."""
        names = [self.name] if self.deviation else []
        if self.kind == _CATEGORY:
            names = [f"{self.name}={value}" for value in self.values]
        elif self.kind == _HASHED:
            names = [f"{self.name}#{place}" for place in range(self.width)]
        return names + ([f"{self.name} is missing"] if self.has_missing else [])

    def attributes(self, values: Array) -> Array:
        """(N, F) attributes of N floats or words; NaN and None are missing."""
        if self.kind in (_CATEGORY, _HASHED):
            return self._words(values)
        missing = np.isnan(values)
        scaled = (np.where(missing, self.fill, values) - self.mean) / (self.deviation or 1)
        parts = [scaled] if self.deviation else []
        return np.stack([*parts, missing] if self.has_missing else parts, axis=1)

    def _words(self, values: Array) -> Array:
        x = np.zeros((len(values), len(self.feature_names)))
        known = {value: place for place, value in enumerate(self.values)}
        places: dict[str | None, int] = {}
        for value in set(values.tolist()):
            if value is None:
                places[value] = x.shape[1] - 1 if self.has_missing else -1
            else:
                places[value] = (
                    zlib.crc32(value.encode()) % self.width
                    if self.kind == _HASHED
                    else known.get(value, -1)
                )
        chosen = np.asarray([places[value] for value in values.tolist()], np.int64)
        rows = np.flatnonzero(chosen >= 0)
        x[rows, chosen[rows]] = 1
        return x


@dataclass(frozen=True)
class Preparation:
    """How a node table becomes attributes; fitted by :func:`fit`, kept with the model.

    Args:
        columns: what becomes of each column that is used.
        left_out: column → why it is not.
        roles: which columns were id, label, split and so on.
        class_names: the classes in their order.
    """

    columns: tuple[Column, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    roles: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    @property
    def degree(self) -> Column | None:
        """What becomes of the nodes' degrees, if they are the only attribute."""
        return next((column for column in self.columns if column.kind == DEGREE), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the table that are used."""
        return tuple(column.name for column in self.columns if column.kind != DEGREE)

    @property
    def feature_names(self) -> list[str]:
        """F names."""
        return [name for column in self.columns for name in column.feature_names]

    def attributes(self, table: Table, tell: Tell) -> Array:
        """(N, F) float32 of a table that has the columns of the fitted one.

        Args:
            table: the nodes.
            tell: is told of words that were not there before.
        """
        for column in self.columns:
            self._check(table, column)
        kinds = {column.name: _KINDS[column.kind] for column in self.columns}
        return self._matrix(_values(table, kinds), tell, table)

    def _check(self, table: Table, column: Column) -> None:
        """Refuse a table that lacks a column, or has one of another type."""
        if column.name not in table.types:
            raise HPGMNError(
                f"{table.label} has no column '{column.name}', which the model was trained with. "
                "Add it; single values may be missing."
            )
        kind = table.types[column.name]
        if column.kind in (_NUMBER, _FLAG) and not is_numeric(kind):
            raise not_numbers(table, column.name, table.first_text(column.name))
        if column.kind == _DATE and not (_is_date(kind) or pa.types.is_null(kind)):
            raise GraphError(
                f"{table.label}: column '{column.name}' is of type {kind}, but held dates when the "
                "model was trained. Write dates such as 2024-03-01."
            )

    def _matrix(self, values: dict[str, Array], tell: Tell, table: Table) -> Array:
        x = np.empty((len(next(iter(values.values()))), len(self.feature_names)), np.float32)
        start = 0
        for column in self.columns:
            own = values.pop(column.name)
            block = column.attributes(own)
            x[:, start : start + block.shape[1]] = block
            start += block.shape[1]
            new = _new_words(column, own)
            if new:
                tell(
                    f"{table.label}: column '{column.name}' holds {_some(new)}, unknown when the "
                    "model was trained; such nodes have none of its attributes."
                )
        return x

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they are kept with a model."""
        return {
            "columns": [asdict(column) for column in self.columns],
            "left_out": dict(self.left_out),
            "roles": dict(self.roles),
            "class_names": list(self.class_names),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Preparation:
        """The preparation that :meth:`as_dict` wrote."""
        columns = tuple(
            Column(**{**one, "values": tuple(one["values"])}) for one in content["columns"]
        )
        names = tuple(content["class_names"])
        return cls(columns, dict(content["left_out"]), dict(content["roles"]), names)


def fit(
    table: Table, names: Sequence[str], categories: Sequence[str], tell: Tell, warn: Tell
) -> tuple[Preparation, Array | None]:
    """Look at all rows of some columns; returns what becomes of them, and their attributes.

    The attributes are None where no column can be used.

    Args:
        table: the nodes.
        names: the columns.
        categories: those among them that are categories whatever they hold.
        tell: is told what becomes of the columns.
        warn: is told of columns that are left out though they vary.
    """
    left_out: dict[str, str] = {}
    kinds = {}
    for name in names:
        kind = TEXT if name in categories else _read_as(table.types[name])
        if kind is None:
            left_out[name] = f"of type {table.types[name]}"
        else:
            kinds[name] = kind
    values = _values(table, kinds) if kinds else {}
    columns = []
    for name in kinds:
        column = _column(table, name, values[name], is_category=name in categories)
        if isinstance(column, Column):
            columns.append(column)
        else:
            left_out[name] = column
            del values[name]
    found = Preparation(tuple(columns), left_out)
    _report(table, found, tell, warn)
    return found, found._matrix(values, tell, table) if columns else None


def _read_as(kind: pa.DataType) -> str | None:
    """How a column of some type is read; None if it is not."""
    if is_numeric(kind):
        return NUMBER
    if _is_date(kind):
        return OWN
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return TEXT if is_text or pa.types.is_string_view(kind) else None


def _is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _values(table: Table, kinds: Mapping[str, str]) -> dict[str, Array]:
    """All values of some columns: floats with NaN, or words with None, where one is missing."""
    parts: dict[str, list[Array]] = {name: [] for name in kinds}
    for batch in table.batches(kinds):
        for name, kind in kinds.items():
            column = batch.column(name)
            if kind == TEXT:
                part = _words(as_text(table, name, column))
                if pa.types.is_boolean(table.types[name]):  # true, TRUE: one word in every file
                    part = np.asarray([one and canonical(one) for one in part], object)
            elif kind == OWN:
                part = days(column)
            else:
                part = as_numbers(column).astype(np.float64)
            parts[name].append(part)
    found = {name: np.concatenate(own) for name, own in parts.items()}
    for name, own in found.items():
        if kinds[name] != TEXT:
            _refuse_infinite(table, name, own)
    return found


def read_words(table: Table, name: str) -> list[str | None]:
    """The words of a column, None where one is missing."""
    words: list[str | None] = _values(table, {name: TEXT})[name].tolist()
    return words


def read_times(table: Table, name: str) -> Array:
    """The numbers of a column, or its dates in days; NaN where one is missing."""
    kind = _read_as(table.types[name])
    if kind not in (NUMBER, OWN):
        place, value = table.first_text(name) or (0, "")
        told = f" ('{value}' in {table.row(place)})" if value else ""
        date = _date(value)
        told += f"; write them as {date}" if date else ""
        raise ValueError(f"holds neither numbers nor dates such as 2024-03-01{told}")
    return _values(table, {name: kind})[name]


def _date(word: str) -> datetime.date | None:
    """The date that a word in one of the usual forms stands for."""
    for form in _OTHER_DATES:
        with contextlib.suppress(ValueError):
            return datetime.datetime.strptime(word.strip(), form).date()
    return None


def _words(column: Any) -> Array:
    """Words as objects, None where one is missing."""
    words = [
        None if word is None or word.strip() in MISSING else word.strip()
        for word in column.to_pylist()
    ]
    found = np.empty(len(words), object)
    found[:] = words
    return found


def days(column: Any) -> Array:
    """Dates as days since 1970, NaN where one is missing.

    >>> days(pa.array(["1970-01-03", None]).cast(pa.date32())).tolist()
    [2.0, nan]
    """
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    seconds = column.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64(), safe=False)
    microseconds = np.asarray(seconds.to_numpy(zero_copy_only=False), np.float64)
    return microseconds / (_SECONDS_A_DAY * 1e6)


def _refuse_infinite(table: Table, name: str, values: Array) -> None:
    wrong = np.flatnonzero(np.abs(values) > _LARGEST)
    if wrong.size:
        many = f"{wrong.size:,} number{'s'[: wrong.size > 1]}"
        raise GraphError(
            f"{table.label}: column '{name}' has {many} beyond ±3.4e38, the first in "
            f"{table.row(int(wrong[0]))}. Put finite numbers there, leave them empty, or leave the "
            "column out (--drop)."
        )


def _column(table: Table, name: str, values: Array, *, is_category: bool) -> Column | str:
    """What becomes of a column, or why it is left out."""
    if values.dtype == object:
        return _text_column(table, name, values, is_category=is_category)
    kind = _DATE if _is_date(table.types[name]) else _NUMBER
    present = np.sort(values[~np.isnan(values)])  # sorted: rows in another order give the same
    has_missing = present.size < values.size
    if not present.size:
        return "empty"
    if present[0] == present[-1]:
        if not has_missing:
            return "constant"
        return Column(name, kind, float(present[0]), 0.0, float(present[0]), True)
    fill = float(np.median(present))
    if kind == _NUMBER and np.isin(present, (0, 1)).all():
        return Column(name, _FLAG, fill=fill, has_missing=has_missing)
    mean, deviation = float(present.mean()), float(present.std())
    if not deviation:  # values so near each other that float64 cannot tell
        return "constant"
    return Column(name, kind, mean, deviation, fill, has_missing)


def _text_column(table: Table, name: str, values: Array, *, is_category: bool) -> Column | str:
    present = [value for value in values.tolist() if value is not None]
    words = sorted(set(present))
    has_missing = len(present) < len(values)
    if not words:
        return "empty"
    if len(words) == 1 and not has_missing:
        return "constant"
    if not is_category:
        _refuse_mixed(table, name, values, len(present))
        mean_length = sum(map(len, present)) / len(present)
        seldom_repeats = 2 * len(words) > len(present)
        if seldom_repeats and (len(words) > ONE_HOT or mean_length >= LONG_TEXT):
            date = _date(words[0])
            return f"dates not written as {date}" if date else "free text or names"
    if len(words) <= ONE_HOT:
        return Column(name, _CATEGORY, has_missing=has_missing, values=tuple(words))
    return Column(name, _HASHED, has_missing=has_missing, width=HASHED)


def _refuse_mixed(table: Table, name: str, values: Array, count: int) -> None:
    """Refuse words among numbers."""
    text = pa.array(values.tolist(), pa.string())
    numbers = pc.match_substring_regex(text, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
    is_number = numbers.fill_null(True).to_numpy(zero_copy_only=False)
    words = np.flatnonzero(~is_number)
    if words.size and 2 * words.size < count:
        raise mixed(table, name, int(words[0]), values[words[0]], "number")


def _new_words(column: Column, values: Array) -> list[str]:
    """Words of a category that it does not know."""
    if column.kind != _CATEGORY:
        return []
    return sorted(set(values.tolist()) - set(column.values) - {None})


def _some(words: Sequence[str]) -> str:
    """Some words in quotes.

    >>> _some(["a", "b"]), _some(["a", "b", "c", "d", "e"])
    ("'a', 'b'", "'a', 'b', 'c' and 2 more")
    """
    more = f" and {len(words) - 3:,} more" if len(words) > 3 else ""
    return ", ".join(f"'{word}'" for word in words[:3]) + more


def _report(table: Table, found: Preparation, tell: Tell, warn: Tell) -> None:
    """Say what becomes of the columns."""
    meanings = {
        _NUMBER: "standardised",
        _DATE: "dates as days, standardised",
        _FLAG: "as they are (0 and 1)",
        _CATEGORY: "one attribute for each word",
        _HASHED: f"hashed to {HASHED} attributes",
    }
    for kind, meaning in meanings.items():
        names = [column.name for column in found.columns if column.kind == kind]
        if names:
            tell(f"{table.label}: {meaning}: {_some(names)}.")
    filled = [column.name for column in found.columns if column.has_missing]
    if filled:
        tell(
            f"{table.label}: values are missing in {_some(filled)}; the median or a word of its "
            "own stands for them, and an attribute says where."
        )
    reasons: dict[str, list[str]] = {}
    for name, reason in found.left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        if reason in ("constant", "empty"):
            tell(f"{table.label}: left out because {reason}: {_some(names)}.")
        elif reason.startswith("of type"):
            warn(f"{table.label}: {_some(names)} {reason} cannot be an attribute and is left out.")
        else:
            warn(
                f"{table.label}: {_some(names)}: {reason}, left out. Turn it into numbers to use "
                f"it, or read it as a category (--category {names[0]}; in Python: categories)."
            )


def original_ids(node_ids: Array, preparation: Mapping[str, Any] | None) -> Array:
    """Ids of the type that they had in the node table: whole numbers where it had such.

    Args:
        node_ids: ids as a graph keeps them.
        preparation: that of the graph.

    >>> original_ids(np.array(["7", "9"]), {"roles": {"has_whole_ids": True}}).tolist()
    [7, 9]
    """
    roles = {} if preparation is None else preparation["roles"]
    if not roles.get("has_whole_ids", False):  # older models do not know
        return node_ids
    try:
        return node_ids.astype(np.int64)
    except ValueError:  # nodes that were added from a table of text
        return node_ids


def with_roles(
    found: Preparation, roles: Mapping[str, Any], class_names: Iterable[str]
) -> Preparation:
    """A preparation that knows the other columns too.

    Args:
        found: what was fitted.
        roles: which columns were id, label, split and so on.
        class_names: the classes in their order.
    """
    return replace(found, roles=dict(roles), class_names=tuple(class_names))
