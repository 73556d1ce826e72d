"""Where rows come from: CSV and Parquet files and edge lists, as batches of columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hpgmn.errors import GraphError

TEXT, NUMBER = "text", "number"
Kinds: TypeAlias = Mapping[str, str]
"""Column → TEXT or NUMBER: how the values of a CSV file are read; other files say so themselves."""

TABLES = (".csv", ".tsv", ".parquet")
EDGE_LISTS = (".txt", ".edgelist", ".edges")
"""Endings of files that list edges, one in a line, with or without naming the columns."""

_PROBE_BYTES = 1 << 22
_BLOCK_BYTES = 1 << 22
_PAGE_BYTES = 1 << 20
_MISSING = frozenset(pacsv.ConvertOptions().null_values)
_SEPARATORS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
_COMMENTS = ("#", "%")


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
                if value is not None and str(value) not in _MISSING and not _is_number(value):
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
            raise

    def _type(self, name: str, kind: str) -> pa.DataType:
        if kind == TEXT:
            return pa.string()
        return pa.bool_() if pa.types.is_boolean(self.types[name]) else pa.float64()


class ParquetTable(Table):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        with readable(path):
            # Read page by page: the default holds whole row groups, and is slower.
            self._file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_PAGE_BYTES)
        schema = self._file.schema_arrow
        super().__init__(path, zip(schema.names, schema.types, strict=True), False)

    def num_rows(self, tell: Callable[[int], None] = lambda count: None) -> int:
        """See ``Table``."""
        return int(self._file.metadata.num_rows)

    def batches(self, kinds: Kinds, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """See ``Table``."""
        with readable(self.path):
            for batch in self._file.iter_batches(batch_size=rows, columns=list(kinds)):
                yield batch.select(list(kinds))


class HeldTable(Table):
    """A table in memory, called by a label of its own."""

    def __init__(self, path: Path, table: pa.Table, label: str) -> None:
        self._table = table
        super().__init__(path, zip(table.column_names, table.schema.types, strict=True), False)
        self.label = label

    def num_rows(self, tell: Callable[[int], None] = lambda count: None) -> int:
        """See ``Table``."""
        return int(self._table.num_rows)

    def batches(self, kinds: Kinds, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """See ``Table``."""
        yield from self._table.select(list(kinds)).to_batches(max_chunksize=rows)


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
        head = file.read(_PROBE_BYTES).decode("utf-8-sig", errors="replace").splitlines()
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
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).rstrip(".")
        what = path.suffix.removeprefix(".")
        raise GraphError(
            f"'{path}' cannot be read as a {what} file ({reason[:200]}): write it again."
        ) from None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
