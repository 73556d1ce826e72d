"""Read rows from CSV and Parquet files, edge lists and memory, as batches of columns."""

from __future__ import annotations

import codecs
import collections
import io
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hpgmn.base.errors import GraphError, Remedy, count_noun
from hpgmn.base.machine import free_host_bytes

Array: TypeAlias = npt.NDArray[Any]

TEXT, NUMBER, NATIVE = "text", "number", "native"
ReadAs: TypeAlias = Mapping[str, str]
"""Column → how its values in a CSV file are read; other files store the type.

TEXT, NUMBER, or NATIVE: the type detected from the first rows.
"""

TABLES = (".csv", ".tsv", ".parquet")
EDGE_LISTS = (".txt", ".edgelist", ".edges")
"""Suffixes of files with one edge per line, with or without a header."""

MISSING = frozenset(pacsv.ConvertOptions().null_values)
"""Words that stand for a missing value: the empty string, NA, null and so on."""

_PROBE_BYTES = 1 << 22
_BLOCK_BYTES = 1 << 22
_PAGE_BYTES = 1 << 20
_ROW_BYTES = 8  # the minimum for a row of a graph: one number
_LARGEST_BLOCK = (1 << 31) - 1
_SEPARATORS = {".csv": (",", ";", "\t", "|"), ".tsv": ("\t",)}
_COMMENTS = ("#", "%")
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_ZEROS = re.compile(r"(?<=\d)\.0*$")
_CODE = r"^\s*0\d"  # a postal code rather than an integer


class Table(ABC):
    """Rows with named columns, read in batches.

    Args:
        path: the file; its name is the table's label in messages.
        types: (column, type) in the table's order.
        has_header: whether a line of the file names the columns.
    """

    def __init__(
        self, path: Path, types: Iterable[tuple[str, pa.DataType]], has_header: bool
    ) -> None:
        self.path = path
        self.label = path.name
        self.has_header = has_header
        self.prefix = ""  # of the options about its columns, "edge_" of an edge table
        self.types: dict[str, pa.DataType] = {}
        self.codes: frozenset[str] = frozenset()
        for name, kind in types:
            if name in self.types:
                raise GraphError(
                    f"{self.label} has two columns named '{name}'.", "Rename or remove one"
                )
            self.types[name] = kind

    def drop_remedy(self, column: str, action: str = "Leave the column out") -> Remedy:
        """Return the remedy that leaves a column out."""
        return Remedy(action, option=f"{self.prefix}drop", value=[column])

    def category_remedy(self, column: str, action: str) -> Remedy:
        """Return the remedy that reads a column as a category."""
        option, flag = f"{self.prefix}categories", f"{self.prefix}category"
        return Remedy(action, option=option, value=[column], flag=flag)

    def row(self, position: int) -> str:
        """Describe the row at a position counted from 0."""
        return f"row {position + 1:,}" + (" below the header" if self.has_header else "")

    def refuse_rows(
        self, wrong: Array, describe: Callable[[int], str], remedy: Remedy | str
    ) -> None:
        """Raise an error about the first row that ``wrong`` marks, if any."""
        rows = np.flatnonzero(wrong)
        if rows.size:
            more = f" ({rows.size:,} such rows in all)" if rows.size > 1 else ""
            raise GraphError(f"{self.label}: {describe(int(rows[0]))}{more}.", remedy)

    def has_integers(self, column: str) -> bool:
        """Whether a column holds integers, possibly as floats, rather than text."""
        kind = self.types[column]
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind)) and kind != pa.uint64()

    @abstractmethod
    def num_rows(self, progress: Callable[[int], None] = lambda count: None) -> int:
        """Count the rows; a CSV file is read for it and reports its progress."""

    @abstractmethod
    def batches(self, read_as: ReadAs, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """Iterate over some columns of all rows, in order.

        Args:
            read_as: the columns, in the order of the batches' columns.
            rows: the approximate rows per batch; batches of a CSV file go by bytes.
        """

    def holds_numbers(self, column: str) -> bool:
        """Whether a column can be read as numbers; integers with leading zeros can."""
        return is_numeric(self.types[column]) or column in self.codes

    def keep_codes(self, names: Iterable[str]) -> None:
        """Read columns of integers with leading zeros, such as postal codes, as text."""
        self.codes = frozenset(names)
        self.types |= dict.fromkeys(self.codes, pa.string())

    def first_text(self, column: str, parse: Any = float) -> tuple[int, str] | None:
        """Return row and value of the first entry that cannot be parsed, or None."""
        row = 0
        for batch in self.batches({column: TEXT}):
            for value in batch.column(0).to_pylist():
                try:
                    if value is not None and str(value) not in MISSING:
                        parse(value)
                except (TypeError, ValueError):
                    return row, str(value)
                row += 1
        return None


class CsvTable(Table):
    """A CSV file or an edge list.

    Args:
        path: the file.
        separator: the delimiter.
        names: the columns; None if the first line is a header.
        skip: the number of comment lines before the data.
    """

    def __init__(
        self, path: Path, separator: str, names: list[str] | None = None, skip: int = 0
    ) -> None:
        self._parse = pacsv.ParseOptions(delimiter=separator, newlines_in_values=True)
        self._layout = {"column_names": names, "skip_rows": skip}
        self.path = path
        with self._readable({}):
            schema = self._open({}, _PROBE_BYTES).schema
        super().__init__(path, zip(schema.names, schema.types, strict=True), names is None)
        integers = [name for name, kind in self.types.items() if pa.types.is_integer(kind)]
        heads = self.batches(dict.fromkeys(integers, TEXT)) if integers else ()
        for head in itertools.islice(heads, 1):
            self.keep_codes(name for name in integers if has_codes(head.column(name)))

    def _open(self, types: Mapping[str, pa.DataType], block: int, threads: bool = True) -> Any:
        convert = pacsv.ConvertOptions(column_types=types, include_columns=list(types))
        read = pacsv.ReadOptions(block_size=block, use_threads=threads, **self._layout)
        return pacsv.open_csv(self.path, read, self._parse, convert)

    @contextmanager
    def _readable(self, types: Mapping[str, pa.DataType]) -> Iterator[None]:
        """Convert errors; to name the row pyarrow has to read again without threads."""
        with readable(self.path):
            try:
                yield
            except pa.ArrowInvalid:
                collections.deque(self._open(types, _BLOCK_BYTES, threads=False), 0)
                raise

    def has_integers(self, column: str) -> bool:
        """Return False: ids stay as they are written, such as '007'."""
        return False

    def num_rows(self, progress: Callable[[int], None] = lambda count: None) -> int:
        """See ``Table``."""
        count = 0
        for batch in self.batches({next(iter(self.types)): TEXT}):
            count += batch.num_rows
            progress(count)
        return count

    def batches(self, read_as: ReadAs, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """See ``Table``; text stays as it is written, numbers become float64."""
        types: dict[str, pa.DataType] = {}
        for name, kind in read_as.items():
            types[name] = pa.string() if kind == TEXT else self.types[name]
            if kind == NUMBER and not pa.types.is_boolean(types[name]):
                types[name] = pa.float64()
        try:
            with self._readable(types):
                yield from self._open(types, _BLOCK_BYTES)
        except GraphError:
            for name, kind in read_as.items():
                if kind == NUMBER and self.first_text(name) is not None:
                    raise not_numeric(self, name) from None
                native = self.types[name]  # that of the first rows
                parse = lambda word, native=native: pa.scalar(word).cast(native)  # noqa: E731
                if kind == NATIVE and (other := self.first_text(name, parse)) is not None:
                    raise mixed_types(self, name, *other, str(native)) from None
            raise


class ParquetTable(Table):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        with readable(path):
            # Page by page: the default buffers whole row groups and is slower.
            self._file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_PAGE_BYTES)
            schema = self._file.schema_arrow
            names = schema.names  # raises if a damaged file has names that are not text
            # Repeated rows take no space in the file, but in memory.
            if self._file.metadata.num_rows * _ROW_BYTES > free_host_bytes():
                raise MemoryError
        super().__init__(path, zip(names, schema.types, strict=True), False)

    def num_rows(self, progress: Callable[[int], None] = lambda count: None) -> int:
        """See ``Table``."""
        return int(self._file.metadata.num_rows)

    def batches(self, read_as: ReadAs, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """See ``Table``."""
        with readable(self.path):
            for batch in self._file.iter_batches(batch_size=rows, columns=list(read_as)):
                batch.validate(full=True)  # text in a damaged file may not be UTF-8
                yield batch.select(list(read_as))


class MemoryTable(Table):
    """A table in memory.

    Text is parsed as in a CSV file: a column of numbers, dates or booleans gets that type.
    """

    def __init__(self, table: pa.Table, label: str) -> None:
        self._table = table
        self._parsed = {
            name: _parse_text(column)
            for name, column in zip(table.column_names, table.columns, strict=True)
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        }
        types = [
            (name, self._parsed[name].type if name in self._parsed else kind)
            for name, kind in zip(table.column_names, table.schema.types, strict=True)
        ]
        super().__init__(Path(label), types, False)
        self.keep_codes(
            name
            for name, parsed in self._parsed.items()
            if pa.types.is_integer(parsed.type) and has_codes(table.column(name))
        )

    def has_integers(self, column: str) -> bool:
        """See ``Table``; ids in text stay as they are written."""
        return column not in self._parsed and super().has_integers(column)

    def num_rows(self, progress: Callable[[int], None] = lambda count: None) -> int:
        """See ``Table``."""
        return int(self._table.num_rows)

    def batches(self, read_as: ReadAs, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """See ``Table``."""
        columns = [
            self._parsed[name]
            if kind != TEXT and name in self._parsed
            else self._table.column(name)
            for name, kind in read_as.items()
        ]
        table = pa.table(columns, list(read_as))
        empty = [pa.RecordBatch.from_pylist([], schema=table.schema)]  # has the types of columns
        yield from table.to_batches(max_chunksize=rows) or empty


def _parse_text(column: Any) -> Any:
    """Convert a column of text to the type that it would have in a CSV file."""
    file = io.BytesIO()
    pacsv.write_csv(pa.table({"text": column}), file)
    parse = pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    convert = pacsv.ConvertOptions(strings_can_be_null=True)
    # One block if possible: a value must not be longer than a block.
    read = pacsv.ReadOptions(block_size=min(file.tell() + 1, _LARGEST_BLOCK))
    file.seek(0)
    parsed = pacsv.read_csv(file, read, parse, convert).column(0)
    is_text = pa.types.is_string(parsed.type) or pa.types.is_binary(parsed.type)
    return column if is_text else parsed


def has_codes(column: Any) -> bool:
    """Whether some integers in text have leading zeros, which a number would lose."""
    return bool(pc.any(pc.match_substring_regex(column, _CODE)).as_py())


def open_table(path: Path, edge_names: Sequence[Collection[str]] = ()) -> Table:
    """Open a CSV file, a Parquet file or an edge list.

    Args:
        path: the file; its suffix tells the format.
        edge_names: for each of the first columns of an edge list its possible names; the first of
            them names the column if the file has no header.
    """
    if not path.is_file():
        raise GraphError(f"Table '{path}' does not exist or is not a file.", "Check the path")
    if path.suffix == ".parquet":
        return ParquetTable(path)
    with readable(path), path.open("rb") as file:
        head = _decode_start(path, file.read(_PROBE_BYTES)).splitlines()
    if path.suffix in _SEPARATORS:
        line = head[0] if head else ""
        return CsvTable(path, max(_SEPARATORS[path.suffix], key=line.count))
    skip = 0
    while skip < len(head) and (not head[skip].strip() or head[skip].startswith(_COMMENTS)):
        skip += 1
    if skip == len(head):
        raise GraphError(f"{path.name} lists no edges.", "Pass a file with one edge per line")
    separator = next((one for one in "\t,;" if one in head[skip]), " ")
    words = head[skip].split(separator)
    pairs = list(zip(words, edge_names, strict=False))
    if all(word.strip().casefold() in names for word, names in pairs):
        return CsvTable(path, separator, skip=skip)
    names = [next(iter(known)) for _, known in pairs]
    names += [f"column {number + 1}" for number in range(len(names), len(words))]
    return CsvTable(path, separator, names, skip)


def _decode_start(path: Path, start: bytes) -> str:
    """Decode the start of a file; its last character may be incomplete."""
    try:
        text, _ = codecs.utf_8_decode(start, "strict", False)
    except UnicodeDecodeError as error:
        line = start.count(b"\n", 0, error.start) + 1
        where = f" (line {line:,} holds the byte 0x{start[error.start]:02x})"
        raise _not_utf8(path, where) from None
    return text.removeprefix("\ufeff")


def _not_utf8(path: Path, where: str = "") -> GraphError:
    return GraphError(f"{path.name} is not UTF-8 text{where}.", "Save it with the encoding UTF-8")


def mixed_types(table: Table, column: str, row: int, value: str, kind: str) -> GraphError:
    """Return the error for a column of type ``kind`` with another value in a row."""
    return GraphError(
        f"{table.label}: column '{column}' holds '{value}' in {table.row(row)}, but most of its "
        f"values are of type {kind}.",
        Remedy("Correct or empty such values")
        | table.category_remedy(column, "Read all as categories")
        | table.drop_remedy(column),
    )


def not_numeric(table: Table, column: str, *, is_weight: bool = False) -> GraphError:
    """Return the error for a column that should hold numbers."""
    what = f"is of type {table.types[column]}, not numbers"
    first = table.first_text(column)
    if first is not None:
        row, value = first
        what = f"holds '{value}' in {table.row(row)}, which is not a number"
    without = table.drop_remedy(column, "Leave it out")
    if is_weight:
        without = Remedy("Use no weights", option="weight", value="")
    return GraphError(
        f"{table.label}: column '{column}' {what}.", Remedy("Convert it to numbers") | without
    )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert errors of reading a file to ``GraphError``."""
    try:
        yield
    except MemoryError:
        raise GraphError(
            f"'{path}' needs more memory than is available.", "Free some, or split the table"
        ) from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).rstrip(".")
        if "straddling object" in reason:
            raise GraphError(
                f"{path.name} has a row of more than {_BLOCK_BYTES >> 20} MiB; a quote may not be "
                "closed.",
                "Correct the row",
            ) from None
        if "invalid utf8" in reason.lower():
            raise _not_utf8(path) from None
        ragged = _RAGGED.search(reason)
        if ragged is not None:
            raise _ragged_row(path, *(int(number) for number in ragged.groups())) from None
        what = path.suffix.removeprefix(".")
        raise GraphError(
            f"'{path}' cannot be read as a {what} file ({reason[:200]}).", "Write it again"
        ) from None


def _ragged_row(path: Path, row: int, expected: int, received: int) -> GraphError:
    """Return the error for a row with fewer or more values than columns."""
    where = f"{path.name}: row {row:,} of the file has"
    if received < expected:
        return GraphError(
            f"{where} {received:,} of {expected:,} values; the file may be truncated.",
            "Correct the row, or write the file again",
        )
    remedy = "Quote values that contain the separator"
    if expected == 1:
        remedy = "Remove lines above the header, or separate its columns by commas"
    return GraphError(f"{where} {received:,} values for {count_noun(expected, 'column')}.", remedy)


def decoded(column: Any) -> Any:
    """Convert dictionaries and half floats to plain types, and NaN to null."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type == pa.float16():
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def as_text(table: Table, name: str, column: Any) -> Any:
    """Convert a column of any type to text."""
    try:
        return decoded(column).cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise GraphError(
            f"{table.label}: column '{name}' of type {column.type} cannot be read as text.",
            "Choose another column",
        ) from None


def number_words(text: Any, numbers: dict[str, int], spell: Callable[[str], str]) -> Array:
    """Return the number of each word, -1 where ``spell`` is empty; ``numbers`` gets new words."""
    encoded = text.dictionary_encode()
    words = map(spell, encoded.dictionary.to_pylist())
    codes = [numbers.setdefault(word, len(numbers)) if word else -1 for word in words]
    index = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
    return np.asarray(np.asarray([*codes, -1], np.int32)[index])


def as_numbers(column: Any) -> Any:
    """Convert numbers of any type to floats, nulls to NaN."""
    if not pa.types.is_floating(column.type):
        column = decoded(column).cast(pa.float64(), safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a type holds numbers; an empty column counts as numeric."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def is_date(kind: pa.DataType) -> bool:
    """Whether a type holds dates or times."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def canonical(word: str) -> str:
    """Spell equal values of any file type alike: booleans and integers.

    >>> canonical("TRUE"), canonical("1.0"), canonical("007"), canonical("Red"), canonical("1.5")
    ('True', '1', '007', 'Red', '1.5')
    """
    stripped = word.strip()
    if stripped.casefold() in ("true", "false"):
        return stripped.capitalize()
    return _ZEROS.sub("", stripped) if is_integer(stripped) else word


def is_integer(word: str) -> bool:
    """Whether text is an integer, possibly written as 1.0."""
    return _WHOLE.fullmatch(word) is not None
