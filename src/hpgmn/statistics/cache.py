"""A cache on disk, of bounded size, for statistics that are slow to compute.

The key of an entry is a digest of everything the result depends on, rounding included: inputs,
settings, the code of this package, library versions, processor, denormals and, where they matter
(:func:`rounding_environment`), device and threads. A cached result is bit-identical to computing.

An entry is a folder named by its key: arrays as ``.npy`` files and ``entry.json`` with their
shapes, types and checksums. It is written as a draft and renamed; of two writers the first wins. It
is not fsynced: what a crash leaves incomplete fails its checksums. Other names are left alone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import platform
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError, Remedy, format_bytes
from hpgmn.base.files import (
    array_digest,
    as_bytes,
    cache_folder,
    draft_path,
    file_checksum,
    remove_stale_drafts,
    with_checksum,
)
from hpgmn.base.machine import free_bytes
from hpgmn.base.parsing import npy_header, parse_json, read_array
from hpgmn.graph import Array

logger = logging.getLogger(__name__)

CACHE_VERSION = 2
"""Part of every key. Increment it when the layout of entries changes, or when code outside this
package and ``_HELPERS`` changes results."""

CACHE_VARIABLE = "HPGMN_CACHE"
"""Environment variable with the folder of the cache, or ``off``."""

MIN_SECONDS = 1.0
"""Results that took less are not stored."""

MEMORY_SHARE = 0.5
"""Rows that take more of the free memory are computed into a file: training needs the rest."""

FILE_SHARE = 0.9
"""Largest share of a disk's free space for a file of rows."""

LIMIT_BYTES = 20 * 2**30
"""Most bytes of all entries together."""

DISK_SHARE = 0.5
"""Largest share of the disk's free space, entries included, for all entries."""

ENTRY_FILE = "entry.json"
"""The file that describes the arrays of an entry."""

_KEY = re.compile(r"[0-9a-f]{40}")
_BLOCK = 1 << 20  # bytes written at once
_ALIGNMENT = 64  # bytes: alignment of torch's arrays and of those in mapped files
_HELPERS = ("sparse.py", "randomness.py", "kernels.py")  # files of base that results depend on


@dataclass(frozen=True)
class Recipe:
    """Everything that a result is computed from.

    Attributes:
        kind: the result, for log messages.
        parameters: settings and other values that the code reads.
        inputs: digests of the arrays that it reads, by name.
    """

    kind: str
    parameters: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return everything in the key, which is also written beside the arrays."""
        return {
            "version": CACHE_VERSION,
            "kind": self.kind,
            "parameters": dict(self.parameters),
            "inputs": dict(self.inputs),
            "environment": {**_environment(), "denormals": _has_denormals()},
        }

    def key(self) -> str:
        """Return the name of the entry."""
        text = json.dumps(self.describe(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def rounding_environment(device: torch.device) -> list[str]:
    """Return what the rounding of products depends on: device, or what sets thread counts."""
    if device.type == "cuda":
        ordered = ["in order"] * torch.are_deterministic_algorithms_enabled()
        return [torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}", *ordered]
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    threads = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ["cpu", f"torch {torch.get_num_threads()}", *threads, f"cores {cores}"]


class StatisticsCache:
    """Results on disk, as one builder of statistics sees them.

    Args:
        folder: where entries are; None stores nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._digests: dict[str, str] = {}
        self._has_warned = False

    @classmethod
    def of_user(cls) -> StatisticsCache:
        """Return the cache in the folder of ``HPGMN_CACHE``, or beside the datasets."""
        named = os.environ.get(CACHE_VARIABLE, "")
        if named.lower() == "off":
            return cls(None)
        return cls(Path(named).expanduser() if named else cache_folder() / "statistics")

    def digest(self, name: str, array: Any) -> str:
        """Return :func:`array_digest` of a constant array, computed once for each name."""
        if self.folder is None:
            return ""
        if name not in self._digests:
            self._digests[name] = array_digest(array)
        return self._digests[name]

    def arrays(
        self,
        recipe: Recipe,
        compute: Callable[[], Mapping[str, Array]],
        prepare: Callable[[], object] | None = None,
    ) -> Mapping[str, Array]:
        """Return the arrays of a recipe, read or computed.

        They are aligned to 64 bytes either way, because products may round differently otherwise.
        Writing into them never changes the entry.

        Args:
            recipe: the key.
            compute: returns the arrays by name.
            prepare: compiles what ``compute`` needs; its time does not count.
        """
        stored = self._read(recipe)
        if stored is not None:
            return stored
        if prepare is not None:
            prepare()
        began = time.perf_counter()
        arrays = {name: _align(array) for name, array in compute().items()}
        seconds = time.perf_counter() - began
        if seconds > MIN_SECONDS:
            logger.info("%s computed in %.1f s.", recipe.kind, seconds)
            self._write(recipe, arrays)
        return arrays

    def sparse(
        self, recipe: Recipe, compute: Callable[[], sp.csr_array], prepare: Callable[[], object]
    ) -> sp.csr_array:
        """Return :meth:`arrays` as a square CSR matrix."""

        def parts() -> dict[str, Array]:
            matrix = compute()
            return {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}

        arrays = self.arrays(recipe, parts, prepare)
        size = arrays["indptr"].size - 1
        entries = (arrays["data"], arrays["indices"], arrays["indptr"])
        return sp.csr_array(entries, shape=(size, size))

    def rows(
        self, recipe: Recipe, shape: tuple[int, ...], fill: Callable[[Array], object]
    ) -> Array:
        """Return half-precision rows, in memory or, if they are too many, in a mapped file."""
        stored = self._read(recipe)
        if stored is not None:
            return stored["rows"]
        size, free = 2 * math.prod(shape), free_bytes(torch.device("cpu"))
        if size > MEMORY_SHARE * free:
            logger.info(
                "%s take %s and are computed into a file: %s of memory are free.",
                *(recipe.kind, format_bytes(size), format_bytes(free)),
            )
            return self._rows_in_file(recipe, shape, fill)

        def compute() -> dict[str, Array]:
            rows: Array = torch.empty(shape, dtype=torch.float16).numpy()
            fill(rows)
            return {"rows": rows}

        return self.arrays(recipe, compute)["rows"]

    def _read(self, recipe: Recipe) -> dict[str, Array] | None:
        """Return the arrays of a valid entry; drop a damaged one."""
        if self.folder is None:
            return None
        key = recipe.key()
        path = self.folder / key
        if not os.path.lexists(path):  # checked first: one that appears now is not damaged
            return None
        try:
            arrays = read_entry(self.folder, key)
        except PermissionError as error:
            self._warn(error)
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            if os.path.lexists(path):  # else another process has just dropped it
                logger.warning("'%s' is damaged (%s): it is recomputed.", path, error)
                drop(path)
            return None
        size = format_bytes(sum(array.nbytes for array in arrays.values()))
        logger.info("%s, %s, read from the cache, %s.", recipe.kind, size, path)
        return arrays

    def _write(self, recipe: Recipe, arrays: Mapping[str, Array]) -> None:
        """Store arrays; warn once if that fails."""
        if self.folder is None:
            return
        try:
            if make_room(self.folder, sum(array.nbytes for array in arrays.values())):
                with entry_draft(self.folder, recipe.key()) as draft:
                    facts = {
                        name: save_array(draft / f"{name}.npy", a) for name, a in arrays.items()
                    }
                    self._publish(draft, recipe, facts)
        except OSError as error:
            self._warn(error)

    def _publish(self, draft: Path, recipe: Recipe, facts: Mapping[str, Any]) -> None:
        key = recipe.key()
        if publish(draft, key, recipe.describe(), facts):
            size = format_bytes(sum(array["bytes"] for array in facts.values()))
            folder = draft.parent
            logger.info("%s, %s, stored in the cache, %s.", recipe.kind, size, folder / key)
            make_room(folder, 0)  # others may have written at the same time

    def _rows_in_file(
        self, recipe: Recipe, shape: tuple[int, ...], fill: Callable[[Array], object]
    ) -> Array:
        """Compute rows into an entry or, if they are too large for one, into a temporary file."""
        size, folder = 2 * math.prod(shape), Path(tempfile.gettempdir())
        try:
            if self.folder is not None and make_room(self.folder, size):
                return self._rows_in_entry(recipe, self.folder, shape, fill)
            folder = self.folder or folder
        except OSError as error:
            self._warn(error)
        try:
            free = shutil.disk_usage(folder).free
            if size > FILE_SHARE * free:
                raise OSError(errno.ENOSPC, f"{format_bytes(free)} free")
            with tempfile.TemporaryFile(dir=folder) as file:  # unnamed: ends with the process
                _reserve(file.fileno(), size)
                rows: Array = np.memmap(file, np.float16, "r+", shape=shape)
        except OSError as error:
            raise HPGMNError(
                f"{recipe.kind} take {format_bytes(size)}, which fit neither into memory nor into "
                f"'{folder}' ({error.strerror or error}).",
                Remedy(f"Set {CACHE_VARIABLE} to a folder on a larger disk")
                | "Train fewer splits and seeds at once"
                | "Leave class_means out of statistics",
            ) from None
        fill(rows)
        return np.asarray(rows)

    def _rows_in_entry(
        self, recipe: Recipe, folder: Path, shape: tuple[int, ...], fill: Callable[[Array], object]
    ) -> Array:
        with entry_draft(folder, recipe.key()) as draft:
            path, header = draft / "rows.npy", npy_header(np.dtype(np.float16), shape)
            with path.open("wb") as file:
                file.write(header)
                file.flush()
                _reserve(file.fileno(), len(header) + 2 * math.prod(shape))
            rows = np.memmap(path, np.float16, "r+", len(header), shape)
            fill(rows)
            rows.flush()
            stored = _map_array(path)  # outlives the name of its file
            try:
                self._publish(draft, recipe, {"rows": _facts(path, stored, file_checksum(path))})
            except OSError as error:  # the rows still serve this run
                self._warn(error)
        return stored

    def _warn(self, error: OSError) -> None:
        """Warn once that the folder cannot be used."""
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "Statistics are not cached in '%s' (%s). Set %s to a writable folder with free space, "
            "or to off.",
            *(self.folder, error.strerror or error, CACHE_VARIABLE),
        )


def read_entry(folder: Path, key: str) -> dict[str, Array]:
    """Return the arrays of an entry after verifying every byte, and mark it as used."""
    path = folder / key
    text = (path / ENTRY_FILE).read_text(encoding="utf-8")
    entry = parse_json(text)
    if not isinstance(entry, dict) or _entry_text(entry) != text or entry["key"] != key:
        raise ValueError(f"{ENTRY_FILE} was changed")
    arrays = {}
    for name, facts in entry["arrays"].items():
        file = path / f"{name}.npy"
        if not file.is_file():
            raise ValueError(f"{file.name} is missing")
        if file.stat().st_size != facts["bytes"] or file_checksum(file) != facts["crc32"]:
            raise ValueError(f"{file.name} was changed or truncated")
        is_empty = 0 in facts["shape"]  # cannot be mapped
        arrays[name] = np.empty(facts["shape"], facts["dtype"]) if is_empty else _map_array(file)
    with contextlib.suppress(OSError):
        os.utime(path / ENTRY_FILE)
    return arrays


@contextlib.contextmanager
def entry_draft(folder: Path, key: str) -> Iterator[Path]:
    """Yield a new folder beside an entry; it is removed at the end unless it was published."""
    draft = draft_path(folder / key)
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def publish(
    draft: Path, key: str, description: Mapping[str, Any], facts: Mapping[str, Any]
) -> bool:
    """Describe a draft and rename it to its entry; return False if there is one already."""
    text = _entry_text({"key": key, "about": dict(description), "arrays": dict(facts)})
    (draft / ENTRY_FILE).write_text(text, encoding="utf-8")
    try:
        os.rename(draft, draft.parent / key)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def make_room(folder: Path, size: int) -> bool:
    """Drop stale drafts and old entries to make room; return False if none may be so large."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_stale_drafts(folder)
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # dropped by another process
            if _KEY.fullmatch(path.name):
                entries.append((*_last_used_and_size(path), path))
    total = sum(entry_size for _, entry_size, _ in entries)
    limit = min(LIMIT_BYTES, DISK_SHARE * (shutil.disk_usage(folder).free + total))
    if size > limit:
        logger.info(
            "%s are too large for the cache, %s, which may take %s.",
            *(format_bytes(size), folder, format_bytes(limit)),
        )
        return False
    for _, entry_size, path in sorted(entries):
        if total + size <= limit:
            break
        drop(path)
        logger.info("%s dropped from the cache, %s.", format_bytes(entry_size), path)
        total -= entry_size
    return True


def drop(path: Path) -> None:
    """Remove an entry, renamed first so that no process sees half of it."""
    with contextlib.suppress(OSError):
        gone = draft_path(path)
        os.rename(path, gone)
        if gone.is_dir() and not gone.is_symlink():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink()


def save_array(path: Path, array: Array) -> dict[str, Any]:
    """Write an array and return its size, checksum, shape and type."""
    header, content = npy_header(array.dtype, array.shape), as_bytes(array).data
    with path.open("wb") as file:
        file.write(header)
        file.write(content)
    return _facts(path, array, zlib.crc32(content, zlib.crc32(header)))


def _facts(path: Path, array: Array, checksum: int) -> dict[str, Any]:
    form = {"shape": list(array.shape), "dtype": array.dtype.str}
    return {"bytes": path.stat().st_size, "crc32": checksum, **form}


def _map_array(path: Path) -> Array:
    return np.asarray(read_array(path, mapped="c"))


def _reserve(file: int, size: int) -> None:
    """Allocate a file before it is mapped: a full disk would kill the process later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    zeros = bytes(_BLOCK)
    for offset in range(os.fstat(file).st_size, size, _BLOCK):
        os.pwrite(file, zeros[: min(_BLOCK, size - offset)], offset)


def _last_used_and_size(entry: Path) -> tuple[float, int]:
    members = {path.name: path.stat() for path in entry.iterdir()} if entry.is_dir() else {}
    last = members[ENTRY_FILE] if ENTRY_FILE in members else entry.lstat()
    return last.st_mtime, sum(member.st_size for member in members.values())


def _entry_text(content: Mapping[str, Any]) -> str:
    return json.dumps(with_checksum(content), indent=1) + "\n"


@cache
def _environment() -> dict[str, str]:
    """Return what any rounding depends on beside the inputs."""
    return {
        "code": _code_digest(Path(__file__).parents[1]),
        "processor": _processor(Path("/proc/cpuinfo")),
        **{name: metadata.version(name) for name in ("numpy", "scipy", "torch", "numba")},
    }


def _code_digest(package: Path) -> str:
    """Return a digest of the code that computes statistics, so that old results are not read."""
    result = hashlib.blake2b(digest_size=20)
    paths = sorted((package / "statistics").glob("*.py"))
    if paths:  # a zip archive has no source files: the versions must suffice
        paths += [package / "base" / name for name in _HELPERS]
    for path in paths:
        result.update(path.name.encode() + b"\0" + path.read_bytes())
    return result.hexdigest()


def _processor(cpuinfo: Path) -> str:
    """Return a digest of the kind of processor, by which libraries choose kernels."""
    kinds = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")
    try:
        first, _, _ = cpuinfo.read_text(encoding="utf-8").partition("\n\n")
        facts = "\n".join(line for line in first.splitlines() if line.startswith(kinds))
    except (OSError, ValueError):
        facts = platform.processor()
    return hashlib.blake2b(f"{platform.machine()}\n{facts}".encode(), digest_size=8).hexdigest()


def _has_denormals() -> bool:
    """Return whether this thread computes with denormals (training flushes them to zero)."""
    return bool(torch.tensor(1e-30).mul(1e-10) > 0)


def _align(array: Array) -> Array:
    """Return the array, copied if it is not aligned as a mapped one."""
    if array.ctypes.data % _ALIGNMENT:
        copy: Array = torch.from_numpy(array).clone().numpy()
        return copy
    return array
