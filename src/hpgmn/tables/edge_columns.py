"""Columns of an edge table become attributes of nodes: aggregates per node and direction.

| column | aggregates of the edges of a node |
| --- | --- |
| any | number of edges, number of repeated edges |
| numbers | sum, mean, maximum and standard deviation, on a logarithmic scale |
| words | share of each word, or of each checksum of a word if there are more than ``ONE_HOT`` |
| times | first, last, mean gap, share in the last tenth of the period, share of each weekday and, \
where times have hours, of each part of a day |

A graph keeps the values of its edges, so that aggregates of old nodes follow new edges. Words,
periods and scales are fitted once and frozen. Labels are never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from hpgmn.base.errors import list_names
from hpgmn.tables.column_types import (
    HASHED,
    ONE_HOT,
    Aggregate,
    Category,
    Column,
    Degree,
    Hashed,
    Number,
    Sample,
    Time,
    other_form,
)
from hpgmn.tables.columns import Tables
from hpgmn.tables.preparation import (
    Log,
    Preparation,
    check_columns,
    refuse_infinite,
    report_left_out,
)
from hpgmn.tables.sources import Array

_HEAD = 1 << 16  # rows that tell whether words are categories, names or free text
_MANY_WORDS = 1 << 20
_RECENT = 0.9  # where the last tenth of the period begins
_SECONDS_PER_DAY = 86_400
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_KINDS = {"numbers": Number, "categories": Category, "times": Time}


class EdgeColumnReader:
    """Reads the columns of an edge table batch by batch, and fits their types at the end."""

    def __init__(self, tables: Tables, num_edges: int) -> None:
        self._table, self._categories = tables.edges, tables.edge_categories
        self._types: dict[str, type[Column]] = {}
        self._left_out: dict[str, str] = {}
        self._fitted: dict[str, Column] | None = None
        self._words: dict[str, dict[str, int]] = {}
        self.source = {name: name for name in tables.edge_columns}
        """Column of the model → column of the table."""
        if not tables.prepare:
            self.source = {}
        elif tables.preparation is not None:
            self._check(tables, tables.preparation)
        for name in self.source if self._fitted is None else ():
            arrow_type = pa.string() if name in self._categories else self._table.types[name]
            kinds = [kind for kind in _KINDS.values() if kind.holds(arrow_type)]
            if kinds:
                self._types[name] = kinds[0]
            else:
                self._left_out[name] = f"of type {arrow_type}"
        self._words = {name: {} for name, kind in self._types.items() if issubclass(kind, Category)}
        self._values = {name: np.empty(num_edges) for name in self._types}

    def _check(self, tables: Tables, preparation: Preparation) -> None:
        """Require the columns that the model was trained with."""
        self._fitted = {column.name: column for column in preparation.edge_columns}
        self.source = {name: name for name in self._fitted}
        for role in ("weight", "edge_type"):  # which may have another name now
            trained, name = preparation.roles.get(role), getattr(tables, role)
            if trained in self.source and name is not None:
                self.source[trained] = name
        own = [column for name, column in self._fitted.items() if self.source[name] == name]
        check_columns(own, self._table)
        self._types = {name: type(column) for name, column in self._fitted.items()}

    @property
    def read_as(self) -> dict[str, str]:
        """The columns of the table and how they are read."""
        return {self.source[name]: kind.read_as for name, kind in self._types.items()}

    def add(self, batch: pa.Table, start: int) -> None:
        """Add a batch that begins at row ``start``."""
        for name, kind in self._types.items():
            if name in self._left_out:
                continue
            column = batch.column(self.source[name]).combine_chunks()
            block = self._values[name][start : start + batch.num_rows]
            if name not in self._words:
                block[:] = kind.read(self._table, name, column)
                continue
            codes = Category.number(self._table, self.source[name], column, self._words[name])
            block[:] = np.where(codes < 0, np.nan, codes)
            many = max(_MANY_WORDS, (start + len(block)) // 2)
            is_open = self._fitted is None and name not in self._categories
            if is_open and len(self._words[name]) > many:
                words = list(self._words[name])  # left out before they fill the memory
                self._left_out[name] = other_form(words) or "free text or names"

    def finish(self, is_known: Array, log: Log) -> tuple[tuple[Column, ...], Array | None]:
        """Return the fitted columns and (E, columns) values of the edges marked in ``is_known``."""
        columns, kept = [], []
        for name in self._types:
            if name in self._left_out:
                continue
            values = self._values.pop(name)
            if name not in self._words:
                refuse_infinite(self._table, self.source[name], values)
            values = values[is_known]
            result = self._fit(name, values)
            if isinstance(result, str):
                self._left_out[name] = result
                continue
            columns.append(result)
            kept.append(self._positions(result, values, log) if name in self._words else values)
        if self._fitted is None:
            self._report(columns, log)
        return tuple(columns), np.stack(kept).T if kept else None

    def _fit(self, name: str, values: Array) -> Column | str:
        """Return the column, fitted now or before, or the reason to leave it out."""
        kind = self._types[name]
        if self._fitted is not None:
            return self._fitted[name]
        present = values[~np.isnan(values)]
        if not present.size or present.min() == present.max():
            return "constant" if present.size else "empty"
        is_category = name in self._categories
        if not is_category and kind is not Time and _are_ids(present, kind is Category):
            return "row numbers or ids"
        if kind is not Category:
            return Time.of(name, values) if kind is Time else Number(name)
        known = np.asarray([*self._words[name], None], object)
        head = known[np.nan_to_num(values[:_HEAD], nan=-1).astype(np.int64)]
        reason = Category.fit(Sample(self._table, name, head, is_category))
        if isinstance(reason, str) and reason not in ("constant", "empty"):
            return reason
        words = sorted(known[np.unique(present).astype(np.int64)].tolist())
        is_short = len(words) <= ONE_HOT
        return Category(name, values=tuple(words)) if is_short else Hashed(name, width=HASHED)

    def _positions(self, column: Column, codes: Array, log: Log) -> Array:
        """Replace the numbers of words by their positions among the shares; unknown ones: NaN."""
        assert isinstance(column, Category)
        words = np.asarray([*self._words[column.name]], object)
        unknown = () if self._fitted is None else column.unknown(words)
        if unknown:
            log(
                f"{self._table.label}: column '{column.name}' holds {list_names(unknown)}, unknown "
                "when the model was trained; such edges have no share."
            )
        positions = np.asarray([column.position(word) for word in words] + [-1], float)
        positions[positions < 0] = np.nan
        return positions[np.nan_to_num(codes, nan=-1).astype(np.int64)]

    def _report(self, columns: Sequence[Column], log: Log) -> None:
        for noun, kind in _KINDS.items():
            names = [column.name for column in columns if self._types[column.name] is kind]
            if names:
                log(
                    f"{self._table.label}: {noun}, aggregated per node and direction: "
                    f"{list_names(names)}."
                )
        report_left_out(self._table, self._left_out, log)


def _are_ids(values: Array, is_text: bool) -> bool:
    """Whether each edge has a word of its own, or a number of consecutive ones."""
    is_spread = is_text or (values.max() - values.min() == values.size - 1)
    return values.size > ONE_HOT and is_spread and np.unique(values).size == values.size


def add_aggregates(
    x: Array,
    edge_index: Array,
    values: Array | None,
    columns: Sequence[Column],
    directed: bool,
    fitted: Sequence[Column] | None = None,
) -> tuple[Array, tuple[Column, ...]]:
    """Append aggregates of edges to the attributes of nodes; also return the aggregates.

    Args:
        x: (N, F), possibly F = 0.
        edge_index: (2, E).
        values: (E, columns); numbers, days or positions of words, NaN where missing. None: no
            columns.
        columns: the columns of the edge table.
        directed: False: both ends of an edge count alike, and names have no direction.
        fitted: aggregates with their scale; None: fit them.
    """
    scales = None if fitted is None else {column.name: column for column in fitted}
    used: list[Column] = []
    blocks = [x]
    if scales is not None and Degree.kind in scales:
        degrees = log_degrees(edge_index, len(x))
        return scales[Degree.kind].attributes(degrees).astype(np.float32), tuple(scales.values())
    if scales == {}:
        return x, ()
    for name, numbers in aggregates(edge_index, values, columns, len(x), directed):
        column = Aggregate.of(name, numbers) if scales is None else scales.get(name)
        if column is not None:
            used.append(column)
            blocks.append(column.attributes(numbers).astype(np.float32))
    return np.concatenate(blocks, axis=1), tuple(used)


def aggregates(
    edge_index: Array,
    values: Array | None,
    columns: Sequence[Column],
    num_nodes: int,
    directed: bool,
) -> Iterator[tuple[str, Array]]:
    """Yield names and (N,) aggregates, NaN for a node without them."""
    values = np.empty((edge_index.shape[1], 0)) if values is None else values
    repeats = is_repeated(edge_index, num_nodes)
    directions = [("out, ", edge_index[0]), ("in, ", edge_index[1])]
    if not directed:
        both = np.concatenate([edge_index[0], edge_index[1]])
        is_loop = edge_index[0] == edge_index[1]
        kept = np.concatenate([np.ones(is_loop.size, bool), ~is_loop])  # a self-loop counts once
        values, repeats = np.concatenate([values, values])[kept], np.tile(repeats, 2)[kept]
        directions = [("", both[kept])]
    for direction, node in directions:
        yield f"edges ({direction}count)", np.log1p(np.bincount(node, minlength=num_nodes))
        repeated = np.bincount(node[repeats], minlength=num_nodes)
        yield f"edges ({direction}repeated)", np.log1p(repeated)
        for column, numbers in zip(columns, values.T, strict=True):
            present = ~np.isnan(numbers)
            own_node, own = node[present], numbers[present]
            if isinstance(column, Category):
                shares = _shares(own_node, own, len(column.feature_names), num_nodes)
                for name, share in zip(column.feature_names, shares.T, strict=True):
                    yield f"{name} ({direction}share)", share
                continue
            of_column = _of_times if isinstance(column, Time) else _of_numbers
            for what, aggregate in of_column(column, own_node, own, num_nodes):
                yield f"{column.name} ({direction}{what})", aggregate


def log_degrees(edge_index: Array, num_nodes: int) -> Array:
    """Return (N,) log(1 + degree) of both directions together; a self-loop counts twice.

    >>> np.expm1(log_degrees(np.array([[0, 0, 2], [1, 2, 2]]), 4)).round().tolist()
    [2.0, 1.0, 3.0, 0.0]
    """
    ends = np.asarray(edge_index).reshape(-1)
    return np.log1p(np.bincount(ends, minlength=num_nodes))


def is_repeated(edge_index: Array, num_nodes: int) -> Array:
    """Mark edges whose ends an earlier edge has in the same order.

    >>> is_repeated(np.array([[0, 1, 0], [1, 0, 1]]), 2).tolist()
    [False, False, True]
    """
    pair = edge_index[0].astype(np.int64) * num_nodes + edge_index[1]
    order = np.argsort(pair, kind="stable")
    ordered = pair[order]
    marks = np.zeros(pair.size, bool)
    marks[order[1:]] = ordered[1:] == ordered[:-1]
    return marks


def _of_numbers(
    column: Column, node: Array, values: Array, num_nodes: int
) -> Iterator[tuple[str, Array]]:
    count = np.bincount(node, minlength=num_nodes)
    total = np.bincount(node, values, num_nodes)
    highest = np.full(num_nodes, -np.inf)
    np.maximum.at(highest, node, values)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: no value
        mean = total / count
        squares = np.bincount(node, (values - mean[node]) ** 2, num_nodes)
        deviation = np.sqrt(squares / count)
    highest[count == 0] = np.nan
    yield "sum", _log_scaled(total)
    yield "mean", _log_scaled(mean)
    yield "maximum", _log_scaled(highest)
    yield "deviation", _log_scaled(deviation)


def _of_times(
    column: Column, node: Array, days: Array, num_nodes: int
) -> Iterator[tuple[str, Array]]:
    count = np.bincount(node, minlength=num_nodes)
    first, last = np.full(num_nodes, np.inf), np.full(num_nodes, -np.inf)
    np.minimum.at(first, node, days)
    np.maximum.at(last, node, days)
    first[count == 0], last[count == 0] = np.nan, np.nan
    yield "first", (first - column.mean) / column.deviation
    yield "last", (last - column.mean) / column.deviation
    gap = (last - first) * _SECONDS_PER_DAY / np.where(count > 1, count - 1, np.nan)
    yield "mean gap", np.log1p(gap)
    is_recent = (days - column.mean) / column.deviation > _RECENT
    yield "last 10 %", _shares(node, is_recent, 2, num_nodes)[:, 1]
    weekdays = _shares(node, (np.floor(days) + 3) % 7, 7, num_nodes)  # 1970 began on a Thursday
    yield from zip(_DAYS, weekdays.T, strict=True)
    if column.width:
        hours = 24 // column.width
        parts = _shares(node, np.floor(days % 1 * column.width), column.width, num_nodes)
        for number, share in enumerate(parts.T):
            yield f"{number * hours} to {(number + 1) * hours} h", share


def _shares(node: Array, codes: Array, num_codes: int, num_nodes: int) -> Array:
    """Return (N, codes) the share of each code among the edges of a node; 0 without edges."""
    cell = node.astype(np.int64) * num_codes + codes.astype(np.int64)
    counts = np.bincount(cell, minlength=num_nodes * num_codes).reshape(num_nodes, num_codes)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def _log_scaled(values: Array) -> Array:
    """Compress numbers of any sign and magnitude."""
    return np.asarray(np.copysign(np.log1p(np.abs(values)), values))
