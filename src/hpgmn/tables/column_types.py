"""Types of columns: how each is detected, read, fitted, converted to attributes and stored.

To add a type, write a subclass of :class:`Column` and list it in ``COLUMN_TYPES``.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpgmn.base.errors import GraphError
from hpgmn.tables.sources import (
    MISSING,
    NATIVE,
    NUMBER,
    TEXT,
    Array,
    Table,
    as_numbers,
    as_text,
    canonical,
    is_date,
    is_numeric,
    is_text,
    mixed_types,
    not_numeric,
    number_words,
)

ONE_HOT = 32
"""The most words for which a category has one attribute each."""
HASHED = 32
"""The attributes of a category with more words."""
DAY_PARTS = 8
"""The parts of a day in which times of edges are counted, three hours each."""
LONG_TEXT = 40
"""Words of this mean length that seldom repeat are free text."""

_ON_LOG_SCALE = {"count", "repeated", "sum", "mean", "maximum", "deviation", "mean gap", "degree"}
_WHOLE_DAY = 0.01  # a date that differs by less from midnight, in days, has no time
_MICROSECONDS_PER_DAY = 86_400 * 1e6
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_ISO_DATE = re.compile(r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_LOCAL_NUMBER = re.compile(
    r"[€$£]?\s?[+-]?(\d+|\d{1,3}([.,' ]\d{3})+)([.,]\d+)?\s?(%|[€$£]|[A-Z]{3})?"
)
_FORM_SAMPLE = 100  # words whose form is looked at
_TIME_OF_DAY = re.compile(r"[ T]\d?\d:\d\d.*$")
_OTHER_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%d.%m.%y", "%Y/%m/%d", "%Y.%m.%d")


@dataclass(frozen=True)
class Sample:
    """The values of one column to which a column type is fitted."""

    table: Table
    name: str
    values: Array
    is_category: bool = False


@dataclass(frozen=True)
class Column:
    """How one column becomes attributes; a subclass for each type of column.

    The fields of all types are stored with a model, so that files keep their format.

    Args:
        name: the column's name.
        mean: subtracted from a number.
        deviation: the divisor of a number; 0: only the missing mark is an attribute.
        fill: replaces a missing number.
        has_missing: whether an attribute marks missing values.
        values: the words of a category, in order.
        width: the attributes of a hashed category, without the missing mark.
    """

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    fill: float = 0.0
    has_missing: bool = False
    values: tuple[str, ...] = ()
    width: int = 0

    kind: ClassVar[str]
    """The type's name in files."""
    read_as: ClassVar[str]
    """How a CSV file is read: TEXT, NUMBER or NATIVE."""
    meaning: ClassVar[str]
    """What becomes of such columns, for the log."""
    holds: ClassVar[staticmethod[[pa.DataType], bool]]
    """Whether a column of an Arrow type may be of this type."""

    @classmethod
    def read(cls, table: Table, name: str, column: Any) -> Array:
        """Convert a batch to floats with NaN, or words with None, for missing values."""
        raise NotImplementedError

    @classmethod
    def fit(cls, sample: Sample) -> Column | str | None:
        """Return the fitted column, the reason to leave it out, or None if it is another type."""
        raise NotImplementedError

    def check(self, table: Table) -> None:
        """Refuse a table with another type in this column."""

    @property
    def feature_names(self) -> list[str]:
        """The names of the attributes."""
        return [*self._names(), *([f"{self.name} is missing"] if self.has_missing else [])]

    def _names(self) -> list[str]:
        raise NotImplementedError

    def attributes(self, values: Array) -> Array:
        """Convert N values to attributes (N, F)."""
        raise NotImplementedError

    def original(self, attributes: Array) -> float | str | None:
        """Return the value behind the attributes (F,) of a node; None if it is missing."""
        raise NotImplementedError

    def unknown(self, values: Array) -> list[str]:
        """Return the values that were absent when the column was fitted."""
        return []

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as they are stored with a model."""
        return {"name": self.name, "kind": self.kind} | asdict(self)

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Column:
        """Rebuild what :meth:`as_dict` returned."""
        every: tuple[type[Column], ...] = (*COLUMN_TYPES, Time, Aggregate, Degree)
        types = {column_type.kind: column_type for column_type in every}
        fields = {name: value for name, value in content.items() if name != "kind"}
        return types[content["kind"]](**{**fields, "values": tuple(content["values"])})


class Number(Column):
    """Numbers, standardised."""

    kind = "number"
    read_as = NUMBER
    meaning = "standardised"
    holds = staticmethod(is_numeric)

    @classmethod
    def read(cls, table: Table, name: str, column: Any) -> Array:
        """See ``Column``."""
        return np.asarray(as_numbers(column).astype(np.float64))

    @classmethod
    def fit(cls, sample: Sample) -> Column | str | None:
        """See ``Column``."""
        values = sample.values
        present = np.sort(values[~np.isnan(values)])  # sorted: row order does not matter
        has_missing = present.size < values.size
        if not present.size:
            return "empty"
        if present[0] == present[-1]:
            constant = float(present[0])
            return cls(sample.name, constant, 0.0, constant, True) if has_missing else "constant"
        mean, deviation = float(present.mean()), float(present.std())
        if not deviation:  # the values differ by less than float64 resolves
            return "constant"
        return cls(sample.name, mean, deviation, float(np.median(present)), has_missing)

    def check(self, table: Table) -> None:
        """See ``Column``."""
        if not table.holds_numbers(self.name):
            raise not_numeric(table, self.name)

    def _names(self) -> list[str]:
        return [self.name] if self.deviation else []

    def attributes(self, values: Array) -> Array:
        """See ``Column``."""
        missing = np.isnan(values)
        scaled = (np.where(missing, self.fill, values) - self.mean) / (self.deviation or 1)
        parts = [scaled] if self.deviation else []
        return np.stack([*parts, missing] if self.has_missing else parts, axis=1)

    def original(self, attributes: Array) -> float | str | None:
        """See ``Column``.

        >>> Number("age", mean=40.0, deviation=10.0, has_missing=True).original([-0.5, 0])
        35.0
        """
        if self.has_missing and attributes[-1]:
            return None
        return self._unscaled(attributes)

    def _unscaled(self, attributes: Array) -> float:
        """Return the number behind an attribute, as precise as single precision is."""
        digits = 5 - math.floor(math.log10(self.deviation)) if self.deviation else 5
        return round(float(attributes[0]) * self.deviation + self.mean, digits) + 0.0


class Flag(Number):
    """Booleans, or numbers that are all 0 or 1, unchanged."""

    kind = "flag"
    meaning = "as they are (0 and 1)"

    @classmethod
    def fit(cls, sample: Sample) -> Column | str | None:
        """See ``Column``."""
        present = sample.values[~np.isnan(sample.values)]
        if np.unique(present).tolist() != [0, 1]:
            return None
        has_missing = present.size < sample.values.size
        return cls(sample.name, fill=float(np.median(present)), has_missing=has_missing)


class Date(Number):
    """Dates and times as days since 1970, standardised."""

    kind = "date"
    read_as = NATIVE
    meaning = "dates as days, standardised"
    holds = staticmethod(is_date)

    @classmethod
    def read(cls, table: Table, name: str, column: Any) -> Array:
        """See ``Column``.

        >>> Date.read(None, "", pa.array(["1970-01-03", None]).cast(pa.date32())).tolist()
        [2.0, nan]
        """
        if pa.types.is_null(column.type):
            return np.full(len(column), np.nan)
        integers = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())  # of UTC
        microseconds = integers.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.asarray(microseconds, np.float64) / _MICROSECONDS_PER_DAY

    def original(self, attributes: Array) -> str | None:
        """See ``Column``.

        >>> Date("since", mean=10.0, deviation=2.0).original([1.5])
        '1970-01-14'
        """
        if self.has_missing and attributes[-1]:
            return None
        days = self._unscaled(attributes)
        if abs(days - round(days)) < _WHOLE_DAY:
            days = round(days)
        return describe_days(days, "minutes")

    def check(self, table: Table) -> None:
        """See ``Column``."""
        arrow_type = table.types[self.name]
        if not (is_date(arrow_type) or pa.types.is_null(arrow_type)):
            raise GraphError(
                f"{table.label}: column '{self.name}' is of type {arrow_type}, but held dates when "
                "the model was trained.",
                "Write dates such as 2024-03-01",
            )


class Time(Date):
    """Times of edges, aggregated per node.

    ``mean`` is the first time and ``deviation`` the length of the period, so that scaled times are
    0 to 1; ``width`` is how many parts of a day are told apart, 0 for dates without hours.
    """

    kind = "time"

    @classmethod
    def of(cls, name: str, values: Array) -> Time:
        """Fit the period to times in days."""
        present = values[~np.isnan(values)]
        has_hours = bool((present % 1).any())
        first, last = float(present.min()), float(present.max())
        return cls(name, first, last - first, width=DAY_PARTS if has_hours else 0)


class Aggregate(Number):
    """A number made of the edges of each node, standardised; nodes without it get the median."""

    kind = "aggregate"

    @classmethod
    def of(cls, name: str, values: Array) -> Aggregate | None:
        """Fit an aggregate; None if it is the same for all nodes."""
        present = np.sort(values[~np.isnan(values)])  # sorted: row order does not matter
        if not present.size or present[0] == present[-1] or not (deviation := present.std()):
            return None
        return cls(name, float(present.mean()), float(deviation), float(np.median(present)))

    def original(self, attributes: Array) -> float | None:
        """See ``Column``.

        >>> Aggregate("amount (out, mean)", mean=2.0, deviation=3.0).original([0.5])
        32.1155
        """
        value = self._unscaled(attributes)
        what = self.name.rpartition("(")[2].rpartition(", ")[2].removesuffix(")")
        if what in _ON_LOG_SCALE:
            value = math.copysign(math.expm1(abs(value)), value)
        return float(f"{value:.6g}")


class Degree(Aggregate):
    """The only attribute of nodes whose table has none: log(1 + degree), standardised."""

    kind = "degree"

    @classmethod
    def fitted(cls, degrees: Array) -> Degree:
        """Fit the attribute to degrees on a logarithmic scale."""
        return cls(cls.kind, float(degrees.mean()), float(degrees.std()) or 1.0)


class Category(Column):
    """Few different words: one attribute for each."""

    kind = "category"
    read_as = TEXT
    meaning = "one attribute for each word"
    holds = staticmethod(is_text)

    @classmethod
    def read(cls, table: Table, name: str, column: Any) -> Array:
        """See ``Column``."""
        numbers: dict[str, int] = {}
        codes = cls.number(table, name, column, numbers)
        return np.asarray([*numbers, None], object)[codes]

    @staticmethod
    def number(table: Table, name: str, column: Any, numbers: dict[str, int]) -> Array:
        """Return the numbers of words, -1 where missing; see :func:`number_words`."""
        is_flag = pa.types.is_boolean(table.types[name])  # true, TRUE: one word in every file

        def spell(text: str) -> str:
            word = text.strip()
            return "" if word in MISSING else canonical(word) if is_flag else word

        return number_words(as_text(table, name, column), numbers, spell)

    @classmethod
    def fit(cls, sample: Sample) -> Column | str | None:
        """See ``Column``."""
        present = [word for word in sample.values.tolist() if word is not None]
        words = sorted(set(present))
        has_missing = len(present) < len(sample.values)
        if not words:
            return "empty"
        if len(words) == 1 and not has_missing:
            return "constant"
        if not sample.is_category:
            _refuse_mixed(sample, len(present))
            mean_length = sum(map(len, present)) / len(present)
            seldom_repeats = 2 * len(words) > len(present)
            is_varied = seldom_repeats or len(words) > ONE_HOT
            if is_varied and (form := other_form(words)):
                return form
            if seldom_repeats and (len(words) > ONE_HOT or mean_length >= LONG_TEXT):
                return "free text or names"
        if len(words) > ONE_HOT:
            return None
        return cls(sample.name, has_missing=has_missing, values=tuple(words))

    def _names(self) -> list[str]:
        return [f"{self.name}={value}" for value in self.values]

    def attributes(self, values: Array) -> Array:
        """See ``Column``."""
        x = np.zeros((len(values), len(self.feature_names)))
        position: dict[str | None, int] = {
            word: self.position(word) for word in set(values.tolist()) - {None}
        }
        position[None] = x.shape[1] - 1 if self.has_missing else -1
        chosen = np.asarray([position[word] for word in values.tolist()], np.int64)
        rows = np.flatnonzero(chosen >= 0)
        x[rows, chosen[rows]] = 1
        return x

    def original(self, attributes: Array) -> str | None:
        """See ``Column``; of a hashed word the attribute.

        >>> Category("kind", values=("bank", "firm")).original([0, 1])
        'firm'
        """
        chosen = np.flatnonzero(attributes)
        if not chosen.size or (self.has_missing and attributes[-1]):
            return None
        name: str = self._names()[chosen[0]]
        return name.removeprefix(self.name).removeprefix("=")

    def position(self, word: str) -> int:
        """Return the attribute of a word, -1 for an unknown one."""
        return self.values.index(word) if word in self.values else -1

    def unknown(self, values: Array) -> list[str]:
        """See ``Column``."""
        return sorted(set(values.tolist()) - set(self.values) - {None})


class Hashed(Category):
    """Many different words: a checksum of the word chooses the attribute."""

    kind = "hashed"
    meaning = f"hashed to {HASHED} attributes"

    @classmethod
    def fit(cls, sample: Sample) -> Column | str | None:
        """See ``Column``."""
        return cls(sample.name, has_missing=None in sample.values.tolist(), width=HASHED)

    def _names(self) -> list[str]:
        return [f"{self.name}#{number}" for number in range(self.width)]

    def position(self, word: str) -> int:
        """See ``Category``."""
        return zlib.crc32(word.encode()) % self.width

    def unknown(self, values: Array) -> list[str]:
        """Return nothing: every word has an attribute."""
        return []


COLUMN_TYPES: tuple[type[Column], ...] = (Flag, Number, Date, Category, Hashed)
"""The types of columns; the first that fits is taken."""


def describe_days(days: float, precision: str = "auto") -> str:
    """Return days since 1970 as a date, with the time of day if there is one.

    >>> describe_days(2.0), describe_days(2.5)
    ('1970-01-03', '1970-01-03 12:00:00')
    """
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(days=days)
    return moment.isoformat(" ", precision) if days % 1 else str(moment.date())


def parse_date(word: str) -> datetime.date | None:
    """Parse a date in a usual form other than ISO 8601; a time of day may follow.

    >>> parse_date("31.01.2025 02:21")
    datetime.date(2025, 1, 31)
    """
    day = _TIME_OF_DAY.sub("", word.strip())
    for form in _OTHER_DATES:
        with contextlib.suppress(ValueError):
            return datetime.datetime.strptime(day, form).date()
    return None


def other_form(words: Sequence[str]) -> str | None:
    """Return what words are if they are dates or numbers, some of them in another form than ours.

    >>> other_form(["03.04.2024", "2024-04-05"]), other_form(["1,5", "12"]), other_form(["x"])
    ('dates not written as 2024-04-03', 'numbers not written as 1234.5', None)
    """
    words = words[:: -(-len(words) // _FORM_SAMPLE)]
    others = [word for word in words if not _ISO_DATE.match(word)]
    dates = [parse_date(word) for word in others]
    if dates and all(dates):
        return f"dates not written as {dates[0]}"
    if all(map(_LOCAL_NUMBER.fullmatch, words)) and not all(word.isdigit() for word in words):
        return "numbers not written as 1234.5"
    return None


def _refuse_mixed(sample: Sample, count: int) -> None:
    """Refuse words among numbers or dates; ``count`` values are not missing."""
    text = pa.array(sample.values.tolist(), pa.string())
    for pattern, kind in ((_NUMBER, "number"), (_ISO_DATE.pattern, "date")):
        is_kind = pc.match_substring_regex(text, pattern)
        words = np.flatnonzero(~is_kind.fill_null(True).to_numpy(zero_copy_only=False))
        if words.size and 2 * words.size < count:
            row = int(words[0])
            raise mixed_types(sample.table, sample.name, row, sample.values[row], kind)
