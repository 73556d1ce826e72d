"""Where rows come from: CSV and Parquet files and edge lists, as batches of columns."""

from __future__ import annotations

import codecs
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hpgmn.base.errors import GraphError
from hpgmn.base.machine import free_host_bytes

TEXT, NUMBER, OWN = "text", "number", "own"
Kinds: TypeAlias = Mapping[str, str]
"""Column → how the values of a CSV file are read; other files say so themselves.

TEXT and NUMBER, or OWN: of the type that its first rows have.
"""

TABLES = (".csv", ".tsv", ".parquet")
EDGE_LISTS = (".txt", ".edgelist", ".edges")
"""Endings of files that list edges, one in a line, with or without naming the columns."""

MISSING = frozenset(pacsv.ConvertOptions().null_values)
"""Words that stand for a missing value: nothing, NA, null and the like."""

_PROBE_BYTES = 1 << 22
_BLOCK_BYTES = 1 << 22
_PAGE_BYTES = 1 << 20
_ROW_BYTES = 8  # the least that a row of a graph takes: a number
_LARGEST_BLOCK = (1 << 31) - 1
_UTF8 = "is not UTF-8 text{}. Save it with the encoding UTF-8."
_SEPARATORS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
_COMMENTS = ("#", "%")
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


class Table(ABC):
    """Rows with named columns, which are read in batches and never held all at once.

    Args:
        path: the file; messages call the table by its name.
        types: (column, type) in the table's order.
        has_header: whether a line of the file names the columns.
    """

    def __init__(
        self, path: Path, types: Iterable[tuple[str, pa.DataType]], has_header: bool
    ) -> None:
        self.path = path
        self.label = path.name
        self.has_header = has_header
        self.types: dict[str, pa.DataType] = {}
        for name, kind in types:
            if name in self.types:
                raise GraphError(
                    f"{self.label} has two columns named '{name}'. Rename or remove one."
                )
            self.types[name] = kind

    def row(self, place: int) -> str:
        """The words for the row at a place that is counted from 0."""
        return f"row {place + 1:,}" + (" below the header" if self.has_header else "")

    def has_whole(self, column: str) -> bool:
        """Whether a column holds whole numbers, be it as floats, rather than text."""
        kind = self.types[column]
        is_integer = pa.types.is_integer(kind) and kind != pa.uint64()
        return bool(is_integer or pa.types.is_floating(kind))

    @abstractmethod
    def num_rows(self, tell: Callable[[int], None] = lambda count: None) -> int:
        """How many rows there are; a CSV file is read for it, and tells how far it is."""

    @abstractmethod
    def batches(self, kinds: Kinds, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, in order.

        Args:
            kinds: which columns.
            rows: about how many rows a batch has; those of a CSV file go by their bytes.
        """

    def first_text(self, column: str) -> tuple[int, str] | None:
        """Place and value of the first entry that is not a number; None where all are."""
        place = 0
        for batch in self.batches({column: TEXT}):
            for value in batch.column(0).to_pylist():
                if value is not None and str(value) not in MISSING and not _is_number(value):
                    return place, str(value)
                place += 1
        return None


class CsvTable(Table):
    """A CSV file, or an edge list.

    Args:
        path: the file.
        separator: what stands between values.
        names: the columns' names where no line of the file gives them.
        skip: lines at the top that hold comments.
    """

    def __init__(
        self, path: Path, separator: str, names: list[str] | None = None, skip: int = 0
    ) -> None:
        self._parse = pacsv.ParseOptions(delimiter=separator, newlines_in_values=True)
        self._layout = {"column_names": names, "skip_rows": skip}
        with readable(path):
            schema = self._open(path, {}, _PROBE_BYTES).schema
        super().__init__(path, zip(schema.names, schema.types, strict=True), names is None)

    def _open(self, path: Path, types: Mapping[str, pa.DataType], block: int) -> Any:
        convert = pacsv.ConvertOptions(column_types=types, include_columns=list(types))
        read = pacsv.ReadOptions(block_size=block, **self._layout)
        return pacsv.open_csv(path, read, self._parse, convert)

    def has_whole(self, column: str) -> bool:
        """Never: ids stay as they are written, such as '007'."""
        return False

    def num_rows(self, tell: Callable[[int], None] = lambda count: None) -> int:
        """See ``Table``."""
        count = 0
        for batch in self.batches({next(iter(self.types)): TEXT}):
            count += batch.num_rows
            tell(count)
        return count

    def batches(self, kinds: Kinds, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """See ``Table``; text stays as it is written ('007'), numbers become float64."""
        types = {name: self._type(name, kind) for name, kind in kinds.items()}
        try:
            with readable(self.path):
                yield from self._open(self.path, types, _BLOCK_BYTES)
        except GraphError:
            for name, kind in kinds.items():
                found = self.first_text(name) if kind == NUMBER else None
                if found is not None:
                    raise not_numbers(self, name, found) from None
                found = self._first_other(name) if kind == OWN else None
                if found is not None:
                    raise mixed(self, name, *found, str(self.types[name])) from None
            raise

    def _first_other(self, column: str) -> tuple[int, str] | None:
        """Place and value of the first entry that is not of the type of the first rows."""
        place = 0
        for batch in self.batches({column: TEXT}):
            for value in batch.column(0):
                try:
                    if value.as_py() not in MISSING:
                        value.cast(self.types[column])
                except pa.ArrowInvalid:
                    return place, value.as_py()
                place += 1
        return None

    def _type(self, name: str, kind: str) -> pa.DataType:
        if kind == TEXT:
            return pa.string()
        if kind == OWN:
            return self.types[name]
        return pa.bool_() if pa.types.is_boolean(self.types[name]) else pa.float64()


class ParquetTable(Table):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        with readable(path):
            # Read page by page: the default holds whole row groups, and is slower.
            self._file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_PAGE_BYTES)
            schema = self._file.schema_arrow
            names = schema.names  # of a damaged file they may be no text
            self._refuse_too_many_rows()
        super().__init__(path, zip(names, schema.types, strict=True), False)

    def _refuse_too_many_rows(self) -> None:
        """Refuse rows that memory cannot hold: repeated ones take no room in the file."""
        if self._file.metadata.num_rows * _ROW_BYTES > free_host_bytes():
            raise MemoryError

    def num_rows(self, tell: Callable[[int], None] = lambda count: None) -> int:
        """See ``Table``."""
        return int(self._file.metadata.num_rows)

    def batches(self, kinds: Kinds, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """See ``Table``."""
        with readable(self.path):
            for batch in self._file.iter_batches(batch_size=rows, columns=list(kinds)):
                batch.validate(full=True)  # text in a damaged file may be none
                yield batch.select(list(kinds))


class HeldTable(Table):
    """A table in memory, called by a label of its own.

    Text is read as that of a CSV file: where all of it is numbers, dates, or true and false, the
    column is of that type.
    """

    def __init__(self, path: Path, table: pa.Table, label: str) -> None:
        self._table = table
        self._read = {
            name: _read_text(column)
            for name, column in zip(table.column_names, table.columns, strict=True)
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        }
        types = [
            (name, self._read[name].type if name in self._read else kind)
            for name, kind in zip(table.column_names, table.schema.types, strict=True)
        ]
        super().__init__(path, types, False)
        self.label = label

    def has_whole(self, column: str) -> bool:
        """See ``Table``; ids in text stay as they are written."""
        return column not in self._read and super().has_whole(column)

    def num_rows(self, tell: Callable[[int], None] = lambda count: None) -> int:
        """See ``Table``."""
        return int(self._table.num_rows)

    def batches(self, kinds: Kinds, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """See ``Table``."""
        columns = [
            self._read[name] if kind != TEXT and name in self._read else self._table.column(name)
            for name, kind in kinds.items()
        ]
        yield from pa.table(columns, list(kinds)).to_batches(max_chunksize=rows)


def _read_text(column: Any) -> Any:
    """A column of text with the type that it would have in a CSV file."""
    file = io.BytesIO()
    pacsv.write_csv(pa.table({"text": column}), file)
    parse = pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    convert = pacsv.ConvertOptions(strings_can_be_null=True)
    # One block where possible: a value must not be longer than a block.
    read = pacsv.ReadOptions(block_size=min(file.tell() + 1, _LARGEST_BLOCK))
    file.seek(0)
    found = pacsv.read_csv(file, read, parse, convert).column(0)
    is_text = pa.types.is_string(found.type) or pa.types.is_binary(found.type)
    return column if is_text else found


def open_table(path: Path, edge_names: Sequence[Collection[str]] = ()) -> Table:
    """The table in a CSV or Parquet file, or in an edge list.

    Args:
        path: the file; its ending says what it is.
        edge_names: for each of the first columns of an edge list the names it may have; the first
            of them is its name where the file gives none.
    """
    if not path.is_file():
        raise GraphError(f"Table '{path}' does not exist or is no file; check the path.")
    if path.suffix == ".parquet":
        return ParquetTable(path)
    with readable(path), path.open("rb") as file:
        head = _decoded(path, file.read(_PROBE_BYTES)).splitlines()
    if path.suffix in _SEPARATORS:
        line = head[0] if head else ""
        return CsvTable(path, max(_SEPARATORS[path.suffix], key=line.count))
    skip = 0
    while skip < len(head) and (not head[skip].strip() or head[skip].startswith(_COMMENTS)):
        skip += 1
    if skip == len(head):
        raise GraphError(f"{path.name} lists no edges. Give a file with one edge in each line.")
    separator = next((one for one in "\t,;" if one in head[skip]), " ")
    words = head[skip].split(separator)
    pairs = list(zip(words, edge_names, strict=False))
    if all(word.strip().casefold() in names for word, names in pairs):
        return CsvTable(path, separator, skip=skip)
    names = [next(iter(known)) for _, known in pairs]
    names += [f"column {place + 1}" for place in range(len(names), len(words))]
    return CsvTable(path, separator, names, skip)


def _decoded(path: Path, start: bytes) -> str:
    """The beginning of a file as text; the last character may be cut."""
    try:
        text, _ = codecs.utf_8_decode(start, "strict", False)
    except UnicodeDecodeError as error:
        line = start.count(b"\n", 0, error.start) + 1
        found = f" (line {line:,} holds the byte 0x{start[error.start]:02x})"
        raise GraphError(f"{path.name} {_UTF8.format(found)}") from None
    return text.removeprefix("\ufeff")


def mixed(table: Table, column: str, place: int, value: str, kind: str) -> GraphError:
    """The refusal of a column whose values are of two types.

    Args:
        table: where.
        column: which.
        place: the row of the first value that is different, counted from 0.
        value: what stands there.
        kind: what the others are.
    """
    return GraphError(
        f"{table.label}: column '{column}' holds '{value}' in {table.row(place)}, but most of its "
        f"values are of type {kind}. Correct or empty such values, read all as categories "
        f"(--category {column}), or leave the column out (--drop {column})."
    )


def not_numbers(table: Table, column: str, found: tuple[int, str] | None) -> GraphError:
    """The refusal of a column that should hold numbers.

    Args:
        table: where.
        column: which.
        found: from ``Table.first_text``.
    """
    what = f"is of type {table.types[column]}, not numbers"
    if found is not None:
        what = f"holds '{found[1]}' in {table.row(found[0])}, which is not a number"
    return GraphError(
        f"{table.label}: column '{column}' {what}. Turn it into numbers, or leave it out (--drop "
        "for an attribute, --weight '' for the weight)."
    )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a file is read becomes one sentence."""
    try:
        yield
    except MemoryError:
        raise GraphError(
            f"'{path}' takes more memory than there is. Free some, or split the table."
        ) from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).rstrip(".")
        if "straddling object" in reason:
            raise GraphError(
                f"{path.name} has a row of more than {_BLOCK_BYTES >> 20} MiB; a quote may not be "
                "closed. Correct the row."
            ) from None
        if "invalid utf8" in reason.lower():
            raise GraphError(f"{path.name} {_UTF8.format('')}") from None
        ragged = _RAGGED.search(reason)
        if ragged is not None:
            raise _ragged(path, *(int(number) for number in ragged.groups())) from None
        what = path.suffix.removeprefix(".")
        raise GraphError(
            f"'{path}' cannot be read as a {what} file ({reason[:200]}): write it again."
        ) from None


def _ragged(path: Path, row: int, wanted: int, got: int) -> GraphError:
    """The refusal of a row that has fewer values, or more, than there are columns."""
    where = f"{path.name}: row {row:,} of the file has"
    if got < wanted:
        return GraphError(
            f"{where} {got:,} of {wanted:,} values; the file may be cut. Correct the row, or write "
            "the file again."
        )
    columns = f"{wanted:,} column{'s'[: wanted > 1]}"
    return GraphError(
        f"{where} {got:,} values for {columns}. Put values that hold the separator into quotes."
    )


def without_nat(values: Iterable[Any]) -> list[Any]:
    """Values of a column, None for NumPy's "not a time": beside numbers pyarrow crashes on it."""
    return [
        None if isinstance(one, np.datetime64 | np.timedelta64) and np.isnat(one) else one
        for one in values
    ]


def plain(column: Any) -> Any:
    """A column of a type that arithmetic knows, null where a float is not a number."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type == pa.float16():
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def as_text(table: Table, name: str, column: Any) -> Any:
    """Values of any type as text, null where there is none."""
    try:
        return plain(column).cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise GraphError(
            f"{table.label}: column '{name}' of type {column.type} cannot be read as text. Choose "
            "another column."
        ) from None


def as_numbers(column: Any) -> Any:
    """Numbers of any type as floats, NaN where there is none."""
    if not pa.types.is_floating(column.type):
        column = plain(column).cast(pa.float64(), safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a type holds numbers; a column without any value may hold them."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
