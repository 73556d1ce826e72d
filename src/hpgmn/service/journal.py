"""The journal of a service: what was added to the served graph, durable before it is acknowledged.

One SQLite file beside the run (WAL, synchronous=FULL), one row per acknowledged request.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, NamedTuple

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import check_format, damaged_file, digest, file_checksum, lock_file
from hpgmn.base.parsing import parse_json
from hpgmn.runs.run import Run
from hpgmn.training.ensemble import ENSEMBLE_FILE, MEMBERS_FOLDER
from hpgmn.training.saved import MODEL_FILE

JOURNAL_FILE = "journal.sqlite"
"""Name of the journal inside the run folder."""

JOURNAL_FORMAT = 1
"""Format of journals."""

REPLAY_ITEMS = 50_000
"""Nodes and edges that are replayed at once; bounds the memory of a batch."""

Row = dict[str, Any]

_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE entries (number INTEGER PRIMARY KEY, content TEXT NOT NULL, crc32 INTEGER NOT NULL);
"""


class JournalError(HPGMNError):
    """The journal cannot be written: the request is not acknowledged."""


class Rows(NamedTuple):
    """New nodes and edges, by the column names of the training tables."""

    nodes: list[Row]
    edges: list[Row]


def run_fingerprint(run: Run) -> str:
    """Return a digest of the model files of a run, by which its journal is recognised."""
    members = sorted(run.folder.glob(f"{MEMBERS_FOLDER}/*/{MODEL_FILE}"))
    paths = [run.folder / MODEL_FILE, run.folder / ENSEMBLE_FILE, *members]
    names = [path.relative_to(run.folder).as_posix() for path in paths if path.is_file()]
    return digest(*(f"{name}:{file_checksum(run.folder / name)};" for name in names))


class Journal:
    """The acknowledged additions to the graph of a run, in order.

    Args:
        is_writable: hold the lock of the journal, and create the file if it is missing.
        num_entries: read the first so many only; None for all.
    """

    def __init__(
        self, run: Run, *, is_writable: bool = True, num_entries: int | None = None
    ) -> None:
        self.path, self.is_writable = run.folder / JOURNAL_FILE, is_writable
        self.num_entries = 0
        self._connection: sqlite3.Connection | None = None
        self._stack = ExitStack()
        with ExitStack() as stack:
            if is_writable:
                stack.enter_context(self._lock())
            if is_writable or self.path.is_file():
                self._connection = stack.enter_context(closing(self._open(is_writable)))
                with self._reading():
                    self._check(run_fingerprint(run), is_writable)
            if num_entries is not None:
                self.num_entries = num_entries
            self._stack = stack.pop_all()

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        """Lock the journal, not the run folder, which other commands may read and explain."""
        refusal = HPGMNError(
            f"Another service uses {self.path}.",
            Remedy("Stop it")
            | Remedy("Serve the graph as it is now", option="read_only", value=True),
        )
        return lock_file(self.path.with_name(f"{self.path.name}.lock"), refusal)

    def _open(self, is_writable: bool) -> sqlite3.Connection:
        mode = "mode=rwc"
        if not is_writable:  # without a WAL nobody writes; the folder may be read-only
            has_wal = self.path.with_name(f"{self.path.name}-wal").exists()
            mode = "mode=ro" if has_wal else "immutable=1"
        with self._reading():
            return sqlite3.connect(
                f"{self.path.resolve().as_uri()}?{mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,  # opened by the main thread, used by the worker thread
            )

    def _check(self, fingerprint: str, is_writable: bool) -> None:
        """Verify file, format and run, or fill a new journal."""
        connection = self._required
        if is_writable:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        if is_writable and not connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
            about = {"format": str(JOURNAL_FORMAT), "run": fingerprint}
            with self._transaction():
                for statement in _SCHEMA.strip().splitlines():
                    connection.execute(statement)
                connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        if connection.execute("PRAGMA quick_check").fetchone() != ("ok",):
            raise self._damaged("is damaged (SQLite's quick_check fails)")
        about = dict(connection.execute("SELECT name, value FROM about"))
        if not {"format", "run"} <= about.keys() or not about["format"].isdigit():
            raise self._damaged("is not a journal of hpgmn")
        check_format(self.path, int(about["format"]), JOURNAL_FORMAT)
        if about["run"] != fingerprint:
            raise HPGMNError(
                f"{self.path} belongs to another run: the model was trained again since.",
                Remedy("Restore the run of the journal") | "Move the journal out of the run folder",
            )
        self.num_entries = connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0]

    @property
    def _required(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _damaged(self, fault: str) -> HPGMNError:
        remedy = Remedy("Restore it") | "Move it out of the run folder to serve the trained graph"
        return HPGMNError(damaged_file(self.path, fault).message, remedy)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise self._damaged(f"is damaged or cannot be read ({error})") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._required
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # the failed statement may have ended it
                connection.execute("ROLLBACK")
            raise

    def append(self, rows: Rows) -> None:
        """Write an addition; it is on disk when this returns."""
        content = json.dumps(rows._asdict())
        try:
            with self._transaction():
                self._required.execute(
                    "INSERT INTO entries (content, crc32) VALUES (?, ?)",
                    (content, zlib.crc32(content.encode())),
                )
        except sqlite3.Error as error:
            raise JournalError(
                f"The journal cannot be written ({error}); nothing was added.",
                "Free disk space and check the permissions of the run folder, then repeat the "
                "request",
            ) from None
        self.num_entries += 1

    def batches(self, items: int = REPLAY_ITEMS) -> Iterator[Rows]:
        """Yield all additions in order, joined into few of about so many nodes and edges."""
        if self._connection is None:
            return
        batch, kinds = Rows([], []), dict[tuple[int, str], str]()
        with self._reading():
            entries = self._connection.execute(
                "SELECT * FROM entries ORDER BY number LIMIT ?", (self.num_entries,)
            )
            for number, content, checksum in entries:
                rows = self._parse(number, content, checksum)
                own_kinds = _kinds(rows)
                # A table reads 1 and "x", or 1 and true, in one column otherwise than alone.
                is_alike = all(kinds.get(key, kind) == kind for key, kind in own_kinds.items())
                if not is_alike or len(batch.nodes) + len(batch.edges) >= items:
                    yield batch
                    batch, kinds = Rows([], []), {}
                kinds |= own_kinds
                batch.nodes.extend(rows.nodes)
                batch.edges.extend(rows.edges)
        if batch.nodes or batch.edges:
            yield batch

    def _parse(self, number: int, content: str, checksum: int) -> Rows:
        if zlib.crc32(content.encode()) != checksum:
            raise self._damaged(f"is damaged (the checksum of entry {number} differs)")
        rows = parse_json(content)
        return Rows(rows["nodes"], rows["edges"])

    def close(self) -> None:
        """Close the file and release the lock."""
        self._stack.close()


def _kinds(rows: Rows) -> dict[tuple[int, str], str]:
    """Return the kind of values in each column of the nodes (0) and edges (1)."""
    kinds = {}
    for table, members in enumerate(rows):
        for row in members:
            for name, value in row.items():
                if value is not None:
                    kinds[table, name] = _kind(value)
    return kinds


def _kind(value: Any) -> str:
    if isinstance(value, str | bool):
        return type(value).__name__
    return "number" if abs(value) <= 2**53 else "large"  # beyond, integers are no floats
