"""Read rows of ``.npy`` files by position, and write them block by block.

Nothing is mapped, so that the memory of a task is bounded. Writes are atomic but not fsynced, which
would take longer than the work: checksums detect what a crash leaves.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import as_bytes, draft_path, file_checksum
from hpgmn.base.parsing import npy_header, read_array, read_npy_header, require_file
from hpgmn.graph import Array

GAP_BYTES = 1 << 14
"""Rows no further apart are read together: sequential reads are faster than seeks."""

RUN_BYTES = 1 << 22
"""Most bytes that are read at once beside those requested."""


def small_array(path: Path) -> Array:
    """Read an array at once."""
    try:
        return read_array(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> HPGMNError:
    return HPGMNError(f"{path} cannot be read ({error}).", "Write the graph or its shards again.")


class RowFile:
    """The rows of one ``.npy`` file.

    Args:
        path: a file in C order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            require_file(path)
            with path.open("rb") as file:
                header = read_npy_header(file, os.fstat(file.fileno()).st_size)
                self._offset = file.tell()
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from None
        if header.is_fortran and len(header.shape) > 1:
            raise HPGMNError(
                f"{path} is not an array of plain values in C order.",
                "Write the graph again with write_graph.",
            )
        self.shape = header.shape
        self.dtype = header.dtype
        self.row_bytes = math.prod(header.shape[1:]) * header.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def span(self, first: int, last: int) -> Array:
        """Read the rows from ``first`` up to and without ``last``."""
        with self.path.open("rb", buffering=0) as file:
            return self._read(file, first, last)

    def whole(self) -> Array:
        """Read all rows."""
        return self.span(0, len(self))

    def take(self, positions: Array) -> Array:
        """Read the rows at ascending positions."""
        rows = np.empty((positions.size, *self.shape[1:]), self.dtype)
        with self.path.open("rb", buffering=0) as file:
            for start, stop in self._runs(positions):
                first, last = int(positions[start]), int(positions[stop - 1]) + 1
                run = self._read(file, first, last)
                is_whole = len(run) == stop - start
                rows[start:stop] = run if is_whole else run[positions[start:stop] - first]
        return rows

    def _runs(self, positions: Array) -> Iterator[tuple[int, int]]:
        """Yield parts of ``positions`` that are read at once."""
        if not positions.size:
            return
        gap, most = (max(1, size // max(1, self.row_bytes)) for size in (GAP_BYTES, RUN_BYTES))
        ends = (np.diff(positions) > gap) | (np.diff(positions // most) != 0)
        yield from pairwise([0, *(np.flatnonzero(ends) + 1).tolist(), positions.size])

    def _read(self, file: FileIO, first: int, last: int) -> Array:
        rows = np.empty((last - first, *self.shape[1:]), self.dtype)
        remaining = as_bytes(rows).data if rows.size else memoryview(b"")
        file.seek(self._offset + first * self.row_bytes)
        while remaining:
            count = file.readinto(remaining)
            if not count:
                raise HPGMNError(
                    f"{self.path} is truncated.", "Write the graph or its shards again."
                )
            remaining = remaining[count:]
        return rows


class ShardedRows:
    """The rows of all nodes, in one file per range.

    Args:
        paths: one file for each range.
        starts: the first node of each range, and N.
    """

    def __init__(self, paths: Sequence[Path], starts: Sequence[int]) -> None:
        self._files = [RowFile(path) for path in paths]
        self._starts = starts

    def take(self, positions: Array) -> Array:
        """Read the rows of nodes at ascending positions."""
        bounds = np.searchsorted(positions, self._starts)
        parts = []
        for file, start, first, last in zip(
            self._files, self._starts, bounds, bounds[1:], strict=False
        ):
            parts.append(file.take(positions[first:last] - start))
        return np.concatenate(parts)


class SparseRowFile:
    """Rows of a CSR matrix whose three arrays are files."""

    def __init__(self, indptr: Path, indices: Path, data: Path, width: int) -> None:
        self._parts = RowFile(indptr), RowFile(indices), RowFile(data)
        self.shape = (len(self._parts[0]) - 1, width)

    def lengths(self, positions: Array) -> tuple[Array, Array]:
        """Return where rows at ascending positions begin, and how many entries each has."""
        indptr = self._parts[0]
        starts = indptr.take(positions).astype(np.int64)
        return starts, indptr.take(positions + 1).astype(np.int64) - starts

    def take(self, positions: Array) -> sp.csr_array:
        """Read the rows at ascending positions."""
        starts, lengths = self.lengths(positions)
        indptr = np.append(0, np.cumsum(lengths))
        entries = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        columns, values = self._parts[1].take(entries), self._parts[2].take(entries)
        return sp.csr_array(
            (values.astype(np.float32, copy=False), columns.astype(np.int32), indptr),
            shape=(positions.size, self.shape[1]),
        )

    def span(self, first: int, last: int) -> sp.csr_array:
        """Read the rows from ``first`` up to and without ``last``."""
        return self.take(np.arange(first, last))


class RowWriter:
    """A ``.npy`` file written block by block and atomically.

    Args:
        path: the target; its folder is created.
        width: the shape of one row.
    """

    def __init__(self, path: Path, dtype: Any, width: tuple[int, ...] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._dtype, self._width = path, np.dtype(dtype), width
        self._draft = draft_path(path)
        self._file = self._draft.open("wb")
        self._file.write(self._header())  # as long as the final one
        self._rows = self._checksum = 0

    def _header(self, rows: int = 0) -> bytes:
        return npy_header(self._dtype, (rows, *self._width))

    def append(self, rows: Array) -> None:
        """Write the next rows."""
        content = as_bytes(np.asarray(rows, self._dtype))
        self._file.write(content.data)
        self._checksum = zlib.crc32(content.data, self._checksum)
        self._rows += len(rows)

    def done(self) -> dict[str, Any]:
        """Rename the file to its target; return its size, checksum, shape and type."""
        self._file.seek(0)
        header = self._header(self._rows)
        self._file.write(header)
        self._file.close()
        os.replace(self._draft, self.path)
        return {
            "bytes": self.path.stat().st_size,
            "skip": len(header),
            "crc32": self._checksum,
            "shape": [self._rows, *self._width],
            "dtype": self._dtype.str,
        }

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._file.close()  # flushes, which fails on a full disk
        finally:
            self._draft.unlink(missing_ok=True)  # exists only after an error


def write_array(path: Path, array: Array) -> dict[str, Any]:
    """Write an array atomically; see :meth:`RowWriter.done`."""
    with RowWriter(path, array.dtype, array.shape[1:]) as writer:
        writer.append(array)
        return writer.done()


class SparseWriter:
    """A CSR matrix as the ``.npz`` file that SciPy reads, written block by block.

    Args:
        width: the number of columns.
    """

    def __init__(self, path: Path, width: int) -> None:
        self.path, self._width = path, width
        types = {"indptr": np.int64, "indices": np.int32, "data": np.float32}
        with ExitStack() as stack:  # removes the first drafts if another cannot be opened
            self._parts = {
                # A unique name: a restarted task must not write into these.
                part: stack.enter_context(
                    RowWriter(draft_path(path.with_name(f"{path.name}.{part}")), dtype)
                )
                for part, dtype in types.items()
            }
            self._stack = stack.pop_all()
        self._parts["indptr"].append(np.zeros(1, np.int64))
        self._rows = self._entries = 0

    def append(self, rows: sp.csr_array) -> None:
        """Write the next rows."""
        self._parts["indptr"].append(rows.indptr[1:].astype(np.int64) + self._entries)
        self._parts["indices"].append(rows.indices)
        self._parts["data"].append(rows.data)
        self._rows += rows.shape[0]
        self._entries += rows.nnz

    def done(self) -> dict[str, Any]:
        """Rename the file to its target; return its size, checksum, shape and type."""
        draft = draft_path(self.path)
        small = {
            "format": np.array(b"csr"),
            "shape": np.array([self._rows, self._width]),
            "_is_array": np.array(True),
        }
        try:
            for writer in self._parts.values():
                writer.done()
            with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for part, writer in self._parts.items():
                    archive.write(writer.path, f"{part}.npy")
                for name, value in small.items():
                    content = npy_header(value.dtype, value.shape) + value.tobytes()
                    archive.writestr(f"{name}.npy", content)
            checksum = file_checksum(draft)
            os.replace(draft, self.path)
        finally:
            draft.unlink(missing_ok=True)
            for writer in self._parts.values():
                writer.path.unlink(missing_ok=True)
        return {
            "bytes": self.path.stat().st_size,
            "skip": 0,
            "crc32": checksum,
            "shape": [self._rows, self._width],
            "dtype": "<f4",
            "entries": self._entries,
        }

    def __enter__(self) -> SparseWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def are_complete(
    folder: Path, files: Mapping[str, Mapping[str, Any]], *, checked: bool = False
) -> bool:
    """Return whether files exist in the sizes they were written with.

    Args:
        files: the facts from :meth:`RowWriter.done` by name.
        checked: whether their checksums are verified, too.
    """
    for name, facts in files.items():
        path = folder / name
        try:
            if path.stat().st_size != facts["bytes"]:
                return False
            if checked and not _is_unchanged(path, facts):
                return False
        except OSError:
            return False
    return True


def _is_unchanged(path: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether a file has the header and checksum it was written with."""
    if facts["skip"]:
        with path.open("rb") as file:
            if file.read(facts["skip"]) != npy_header(np.dtype(facts["dtype"]), (*facts["shape"],)):
                return False
    return file_checksum(path, facts["skip"]) == int(facts["crc32"])
