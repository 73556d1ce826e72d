"""The journal of a service: what was added to the served graph, durable before it is acknowledged.

One SQLite file beside the run (WAL, synchronous=FULL), one row per acknowledged request.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import check_format, damaged_file, digest, file_checksum, lock_file
from hpgmn.base.parsing import parse_json
from hpgmn.runs.run import Run
from hpgmn.training.ensemble import ENSEMBLE_FILE, MEMBERS_FOLDER
from hpgmn.training.saved import MODEL_FILE

JOURNAL_FILE = "journal.sqlite"
"""Name of the journal inside the run folder."""

JOURNAL_FORMAT = 1
"""Format of journals, their ``user_version``."""

REPLAY_ENTRIES = 1000
"""Entries that are replayed at once, at most; bounds the memory of a batch."""

Row = dict[str, Any]
Entry = tuple[list[Row], list[Row]]
"""New nodes and edges, by the column names of the training tables."""


class JournalError(HPGMNError):
    """The journal cannot be written: the request is not acknowledged."""


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
        with ExitStack() as stack:
            if is_writable:
                stack.enter_context(self._lock())
            if is_writable or self.path.is_file():
                with self._reading():
                    self._connection = stack.enter_context(closing(self._open()))
                    self._check(self._connection, run_fingerprint(run))
            if num_entries is not None:
                self.num_entries = num_entries
            self._stack = stack.pop_all()

    def _lock(self) -> AbstractContextManager[None]:
        """Lock the journal, not the run folder, which other commands may read and explain."""
        refusal = HPGMNError(
            f"Another service uses {self.path}.",
            Remedy("Stop it")
            | Remedy("Serve the graph as it is now", option="read_only", value=True),
        )
        return lock_file(self.path.with_name(f"{self.path.name}.lock"), refusal)

    def _open(self) -> sqlite3.Connection:
        mode = "mode=rwc"
        if not self.is_writable:  # without a WAL nobody writes; the folder may be read-only
            has_wal = self.path.with_name(f"{self.path.name}-wal").exists()
            mode = "mode=ro" if has_wal else "immutable=1"
        return sqlite3.connect(
            f"{self.path.resolve().as_uri()}?{mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,  # opened by the main thread, used by the worker thread
        )

    def _check(self, connection: sqlite3.Connection, fingerprint: str) -> None:
        """Verify format and run, or fill a new journal."""
        if self.is_writable:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        if self.is_writable and not connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
            connection.execute("BEGIN")
            connection.execute("CREATE TABLE run (fingerprint TEXT NOT NULL)")
            connection.execute(
                "CREATE TABLE entries (number INTEGER PRIMARY KEY, content TEXT NOT NULL)"
            )
            connection.execute("INSERT INTO run VALUES (?)", (fingerprint,))
            connection.execute(f"PRAGMA user_version = {JOURNAL_FORMAT}")
            connection.execute("COMMIT")
        [version] = connection.execute("PRAGMA user_version").fetchone()
        check_format(self.path, version, JOURNAL_FORMAT)
        if connection.execute("SELECT fingerprint FROM run").fetchone() != (fingerprint,):
            raise HPGMNError(
                f"{self.path} belongs to another run: the model was trained again since.",
                Remedy("Restore the run of the journal") | "Move the journal out of the run folder",
            )
        [self.num_entries] = connection.execute("SELECT COUNT(*) FROM entries").fetchone()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            damage = damaged_file(self.path, f"is damaged or cannot be read ({error})")
            remedy = Remedy("Restore it") | "Move it out of the run folder"
            raise HPGMNError(damage.message, remedy) from None

    def append(self, nodes: Sequence[Row], edges: Sequence[Row]) -> None:
        """Write an addition; it is on disk when this returns."""
        assert self._connection is not None
        content = json.dumps([nodes, edges])
        try:  # one statement is one transaction
            self._connection.execute("INSERT INTO entries (content) VALUES (?)", (content,))
        except sqlite3.Error as error:
            raise JournalError(
                f"The journal cannot be written ({error}); nothing was added.",
                "Free disk space and check the permissions of the run folder, then repeat the "
                "request",
            ) from None
        self.num_entries += 1

    def batches(self, most: int = REPLAY_ENTRIES) -> Iterator[Entry]:
        """Yield all additions in order, joined where values of each column are of one kind."""
        if self._connection is None:
            return
        batch: Entry = ([], [])
        kinds: dict[tuple[int, str], str] = {}
        with self._reading():
            entries = self._connection.execute(
                "SELECT content FROM entries ORDER BY number LIMIT ?", (self.num_entries,)
            )
            for number, (content,) in enumerate(entries):
                nodes, edges = parse_json(content)
                own_kinds = _kinds((nodes, edges))
                # A table reads 1 and "x", or 1 and true, in one column otherwise than alone.
                is_alike = all(kinds.get(key, kind) == kind for key, kind in own_kinds.items())
                if number and (number % most == 0 or not is_alike):
                    yield batch
                    batch, kinds = ([], []), {}
                kinds |= own_kinds
                batch[0].extend(nodes)
                batch[1].extend(edges)
        yield batch

    def close(self) -> None:
        """Close the file and release the lock."""
        self._stack.close()


def _kinds(entry: Entry) -> dict[tuple[int, str], str]:
    """Return the kind of values in each column of the nodes (0) and edges (1)."""
    return {
        (table, name): _kind(value)
        for table, rows in enumerate(entry)
        for row in rows
        for name, value in row.items()
        if value is not None
    }


def _kind(value: Any) -> str:
    if isinstance(value, str | bool):
        return type(value).__name__
    return "number" if abs(value) <= 2**53 else "large"  # beyond, integers are no floats
