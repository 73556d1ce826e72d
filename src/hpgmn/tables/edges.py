"""Read the edge table: ids become positions, and edges to unknown nodes are explained."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpgmn.base.edge_types import MISSING
from hpgmn.base.errors import GraphError, Remedy, SettingError
from hpgmn.tables.column_types import Category, Column, Date, describe_days
from hpgmn.tables.columns import Tables
from hpgmn.tables.edge_columns import EdgeColumnReader
from hpgmn.tables.options import column_remedy
from hpgmn.tables.preparation import Log, read_values
from hpgmn.tables.sources import (
    NUMBER,
    TEXT,
    Array,
    Table,
    as_numbers,
    as_text,
    canonical,
    decoded,
    is_date,
    number_words,
)
from hpgmn.tables.splitting import read_times, time_type

logger = logging.getLogger(__name__)

_LOOKUP_EDGES = 1 << 21  # edges looked up at once, or as many as there are nodes
_EVEN_WEIGHTS = 1_000
_MOST = 0.9  # a guess is right if it explains this share of the unknown ends


@dataclass
class Faults:
    """How many edges have a fault, and the first of them."""

    count: int = 0
    row: int = 0
    value: Any = None

    def note(self, wrong: Array, start: int, value: Callable[[int], Any]) -> None:
        """Add the rows of a batch that ``wrong`` marks; the batch starts at row ``start``."""
        rows = np.flatnonzero(wrong)
        if rows.size and not self.count:
            first = int(rows[0])
            self.row, self.value = start + first, value(first)
        self.count += int(rows.size)

    @property
    def total(self) -> str:
        """The count in parentheses, such as "(3 such edges in all)"; empty for one."""
        return f" ({self.count:,} such edges in all)" if self.count > 1 else ""


@dataclass(frozen=True, eq=False)
class EdgeData:
    """Edges as arrays.

    Attributes:
        index: (2, E) positions of their ends among the nodes.
        weight: (E,) or None.
        type: (E,) positions among ``type_names``, or None.
        type_names: in the order of their first occurrence.
        columns: the other columns that are used.
        values: (E, columns) their values; None without columns.
    """

    index: Array
    weight: Array | None
    type: Array | None
    type_names: Sequence[str]
    columns: tuple[Column, ...]
    values: Array | None


def read_edges(
    tables: Tables,
    ids: Any,
    has_integer_ids: bool,
    progress: Callable[[str, int, int | None], None],
    log: Log,
    earlier_ids: Array | None,
) -> EdgeData:
    """Read the edge table.

    Args:
        tables: both tables.
        ids: the nodes' ids as :func:`id_keys` returns them.
        has_integer_ids: whether ids are compared as integers.
        progress: called after each batch.
        log: receives the number of edges that are left out.
        earlier_ids: ids of an earlier graph, for the message about unknown nodes.
    """
    table = tables.edges
    num_edges = table.num_rows(
        lambda rows: progress(f"Counting the edges in {table.label}", rows, None)
    )
    ends = (tables.source, tables.target)
    reader = EdgeColumnReader(tables, num_edges)
    read_as = reader.read_as | dict.fromkeys(ends, TEXT)
    if tables.weight is not None:
        read_as[tables.weight] = NUMBER
    if tables.edge_type is not None:
        read_as[tables.edge_type] = TEXT
    limit = None if tables.as_of is None else time_limit(tables)
    time, times = tables.edge_time or "", np.empty(0 if limit is None else num_edges)
    if limit is not None:
        kind_of_time = time_type(table, time)
        read_as[time] = kind_of_time.read_as
    type_numbers: dict[str, int] = {}
    edge_index = np.empty((2, num_edges), np.int32)
    edge_weight = None if tables.weight is None else np.empty(num_edges, np.float32)
    edge_type = None if tables.edge_type is None else np.empty(num_edges, np.int32)
    unknown, unusable = Faults(), Faults()
    unknown_ids: set[str | None] = set()
    start = 0
    batches = table.batches(read_as, min(_LOOKUP_EDGES, 1 << 18))
    for group in _groups(batches, max(_LOOKUP_EDGES, len(ids))):
        size = group.num_rows
        columns = [group.column(name) for name in ends]
        keys = [
            id_keys(table, name, column, has_integer_ids)
            for name, column in zip(ends, columns, strict=True)
        ]
        both = pa.chunked_array([chunk for key in keys for chunk in key.chunks], keys[0].type)
        positions = pc.index_in(both, value_set=ids).fill_null(-1)  # one hash table for both ends
        block = edge_index[:, start : start + size]
        block[:] = positions.to_numpy().reshape(2, size)
        unknown.note(block.min(axis=0) < 0, start, partial(_unknown_end, columns, block))
        if unknown.count:
            new_ids = both.filter(pc.equal(positions, -1)).unique().cast(pa.string())
            unknown_ids.update(new_ids.to_pylist())
        if edge_weight is not None:
            values = group.column(tables.weight)
            with np.errstate(over="ignore"):
                weight = as_numbers(values.combine_chunks()).astype(np.float32)
            edge_weight[start : start + size] = weight
            usable: Array = np.isfinite(weight) & (weight > 0)
            if tables.drop_unknown_edges:
                usable |= block.min(axis=0) < 0
            unusable.note(~usable, start, values.__getitem__)
        if tables.edge_type is not None and edge_type is not None:
            words = as_text(
                table, tables.edge_type, group.column(tables.edge_type).combine_chunks()
            )
            edge_type[start : start + size] = number_words(
                words.fill_null(""), type_numbers, lambda word: canonical(word.strip()) or MISSING
            )
        if limit is not None:
            column = group.column(time).combine_chunks()
            times[start : start + size] = kind_of_time.read(table, time, column)
        reader.add(group, start)
        start += size
        progress(f"Reading the edges in {table.label}", start, num_edges)
    if unknown.count:
        is_most = 2 * unknown.count > num_edges
        names = {name for name in unknown_ids if name is not None}
        guess = explain_unknown(tables, ids if is_most else None, names, earlier_ids)
        _handle_unknown(tables, unknown, guess, log)
    if unusable.count:
        value = unusable.value.as_py()
        what = "no weight" if value is None else f"weight {value:g}"
        raise GraphError(
            f"{table.label}: {table.row(unusable.row)} has {what}{unusable.total}; "
            "weights must be finite and positive.",
            Remedy("Remove such edges") | Remedy("Use no weights", option="weight", value=""),
        )
    if edge_weight is not None and tables.preparation is None and num_edges:
        _warn_uneven(tables, edge_weight)
    is_known = edge_index.min(axis=0) >= 0
    if limit is not None:
        is_known &= _are_early(tables, times, limit, log)
    columns_read = reader.finish(is_known, log)
    if unknown.count or limit is not None:
        edge_index = edge_index[:, is_known]
        edge_weight = None if edge_weight is None else edge_weight[is_known]
        edge_type = None if edge_type is None else edge_type[is_known]
    return EdgeData(edge_index, edge_weight, edge_type, list(type_numbers), *columns_read)


def _warn_uneven(tables: Tables, weight: Array) -> None:
    """Warn of weights of which a few dominate all sums over neighbours."""
    low, high = float(weight.min()), float(weight.max())
    if high > _EVEN_WEIGHTS * low > 0:
        remedy = Remedy("Scale them, for example by log(1 + weight)") | Remedy(
            "Use no weights; the column is an attribute in any case", option="weight", value=""
        )
        message = "%s: weights in column '%s' range from %.3g to %.3g: few edges dominate. %s"
        logger.warning(message, tables.edges.label, tables.weight, low, high, remedy)


def newest_validation_time(tables: Tables, val: Array, log: Log) -> str | None:
    """Return the time up to which edges may be trained on, if nodes are split by time."""
    assert tables.split_by is not None
    kind, column = tables.split_by
    if kind != "time" or tables.edge_time is None:
        return None
    has_dates = is_date(tables.nodes.types[column])
    if has_dates != is_date(tables.edges.types[tables.edge_time]):
        logger.warning(
            "%s: times of edges in '%s' cannot be compared with '%s' of nodes, so models see all "
            "edges. %s",
            *(tables.edges.label, tables.edge_time, column),
            column_remedy("Name the time up to which they may", "as_of"),
        )
        return None
    newest = float(read_times(tables.nodes, column)[val[:, 0]].max())
    text = describe_days(newest) if has_dates else repr(newest)
    log(f"{tables.edges.label}: trained as of {text}, the time of the newest validation node.")
    return text


def time_limit(tables: Tables) -> float:
    """Return the last time of edges to train on: days, of a date its end, or a number."""
    assert tables.edge_time is not None
    assert tables.as_of is not None
    is_days = is_date(tables.edges.types[tables.edge_time])
    text = tables.as_of.strip()
    try:
        if not is_days:
            return float(text)
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        example = "date such as 2024-03-01" if is_days else "number"
        raise SettingError(
            f"as_of takes a {example}, as column '{tables.edge_time}' of {tables.edges.label} "
            f"holds (got '{tables.as_of}').",
            column_remedy("Write it so", "as_of"),
        ) from None
    days = float(Date.read(tables.edges, "", pa.array([moment]))[0])
    is_date_only = re.fullmatch(r"[\d-]{8,10}", text) is not None
    return float(np.nextafter(days + 1, 0)) if is_date_only else days


def _are_early(tables: Tables, times: Array, limit: float, log: Log) -> Array:
    """Mark edges to train on; an edge without a time counts as later."""
    is_early: Array = times <= limit
    where = f"{tables.edges.label}: column '{tables.edge_time}'"
    if not is_early.any():
        first = np.nanmin(times, initial=np.inf)
        is_days = is_date(tables.edges.types[tables.edge_time or ""])
        begin = f"begins at {describe_days(first) if is_days else first}"
        begin = begin if first < np.inf else "is empty"
        raise GraphError(
            f"{where} {begin}: no edge is left to train on as of {tables.as_of}.",
            column_remedy("Choose a later time", "as_of")
            | Remedy("Use all edges", option="edge_time", value=""),
        )
    count = int(is_early.sum())
    log(
        f"{where}: {count:,} edges up to {tables.as_of} to train on; {times.size - count:,} later "
        "ones for tests and predictions only."
    )
    return is_early


def _handle_unknown(tables: Tables, unknown: Faults, guess: Remedy | None, log: Log) -> None:
    """Refuse edges to unknown nodes, or log that they are left out."""
    table = tables.edges
    end, value = unknown.value
    is_empty = value is None or value == "" or value != value  # null, empty, NaN
    what = f"no {end}" if is_empty else f"the {end} '{value}', not an id in {tables.nodes.label}"
    message = f"{table.label}: {table.row(unknown.row)} has {what}{unknown.total}"
    if tables.drop_unknown_edges:
        log(f"{message}; left out.")
        if guess is not None:
            logger.warning("%s", guess)
        return
    leave_out = Remedy("Leave out such edges", option="drop_unknown_edges", value=True)
    raise GraphError(f"{message}.", (guess or Remedy("Add the node")) | leave_out)


def explain_unknown(
    tables: Tables, ids: Any | None, unknown: Collection[str], earlier_ids: Array | None
) -> Remedy | None:
    """Guess why ends of edges are no ids: other spelling, another column, an earlier graph.

    Without ``ids`` the unknown ends are compared with the earlier graph only.
    """
    if ids is not None:
        guess = _other_names(tables, ids.cast(pa.string()).to_pylist(), unknown)
        if guess is not None:
            return guess
    count = 0 if earlier_ids is None else len(set(unknown).intersection(earlier_ids.tolist()))
    if not count:
        return None
    return Remedy(
        f"The model was trained on {count:,} of the unknown nodes: if the tables hold new nodes "
        "only, add them to the trained graph",
        option="onto",
        flag="add",
    )


def _other_names(tables: Tables, ids: Iterable[str], unknown: Collection[str]) -> Remedy | None:
    """Suggest another spelling of ids, or another column with ids."""
    nodes = tables.nodes
    spelling = {_simplified(name): name for name in ids}
    pairs = [
        (end, spelling[_simplified(end)]) for end in sorted(unknown) if _simplified(end) in spelling
    ]
    if pairs and len(pairs) >= _MOST * len(unknown):
        end, name = pairs[0]
        return Remedy(
            f"Spell ids alike: '{end}' in {tables.edges.label} is '{name}' in {nodes.label}"
        )
    for name, kind in nodes.types.items():
        if name == tables.id or not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            continue
        words = set(read_values(nodes, {name: Category})[name].tolist())
        if sum(end in words for end in unknown) >= _MOST * len(unknown):
            return Remedy(
                f"Use column '{name}' of {nodes.label}, which holds such names",
                option="id",
                value=name,
            )
    return None


def _simplified(word: str) -> str:
    """Remove from an id what a spreadsheet may add or take away.

    >>> _simplified("007"), _simplified("7.0"), _simplified(" A1 "), _simplified("000")
    ('7', '7', 'a1', '0')
    """
    return canonical(word.strip()).casefold().lstrip("0") or "0"


def _unknown_end(columns: list[Any], block: Array, row: int) -> tuple[str, Any]:
    """Return which end of an edge is unknown, and its value."""
    end = 0 if block[0, row] < 0 else 1
    return ("source", "target")[end], columns[end][row].as_py()


def _groups(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Combine batches to a minimum number of rows: each group costs a hash table of all ids."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(member.num_rows for member in group) >= rows:
            yield pa.Table.from_batches(group)
            group = []
    if group:
        yield pa.Table.from_batches(group)


def id_keys(table: Table, name: str, column: Any, as_integers: bool) -> Any:
    """Convert ids to the type in which they are compared: int64 or text, null where empty."""
    column = decoded(column)
    if pa.types.is_floating(column.type):  # integers that a library converted to floats
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise GraphError(
                f"{table.label}: column '{name}' holds fractions; ids are text or integers.",
                "Choose another column, or write them as text",
            ) from None
    if as_integers:
        return column.cast(pa.int64())
    text = as_text(table, name, column)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text)
