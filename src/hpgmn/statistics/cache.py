"""Statistics that took long, kept on disk under a digest of all that they were made from.

Whoever reads one gets the bits that computing would have given. So the key names what rounding
depends on, too: the code of this package, the versions of libraries, the kind of processor,
whether denormal numbers are flushed and, where they matter (:func:`circumstances`), the device and
the number of threads. How entries lie on the disk is the matter of ``entries.py``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import cache_folder
from hpgmn.base.machine import free_bytes
from hpgmn.base.parsing import npy_header
from hpgmn.base.text import format_bytes
from hpgmn.graph import Array
from hpgmn.statistics.entries import (
    as_bytes,
    described,
    draft,
    drop,
    make_room,
    mapped,
    publish,
    read_entry,
    reserve,
    save_array,
)

logger = logging.getLogger(__name__)

CACHE_VERSION = 1
"""Part of every key. Raise it when entries are laid out otherwise, or when code outside of this
folder changes what is stored; the code inside counts by itself."""

CACHE_VARIABLE = "HPGMN_CACHE"
"""The environment variable that names the folder of the cache, or says ``off``."""

WORTH_SECONDS = 1.0
"""What took less is not kept: to compute it again costs less than to look after it, and so small
graphs leave nothing on the disk."""

MEMORY_SHARE = 0.5
"""Rows that take more of the free memory are computed into a file: training needs the rest."""

FILE_SHARE = 0.9
"""The most that a file of rows takes of what a disk has free."""

_ALIGNMENT = 64  # bytes: where torch's own arrays and those in mapped files begin


@dataclass(frozen=True)
class Recipe:
    """All that a result is made from.

    Attributes:
        kind: what it is, in words.
        parameters: whatever the computing code is told: numbers, words, truth values.
        inputs: digests of the arrays that it reads, by name.
    """

    kind: str
    parameters: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        """Everything in the key, which is also written beside the arrays."""
        return {
            "version": CACHE_VERSION,
            "kind": self.kind,
            "parameters": dict(self.parameters),
            "inputs": dict(self.inputs),
            "surroundings": {**_surroundings(), "denormals": _has_denormals()},
        }

    def key(self) -> str:
        """The name of the entry."""
        text = json.dumps(self.about(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def digest(array: Any) -> str:
    """A digest of the type, shape and bytes of an array or a CSR matrix; "" of None.

    >>> digest(np.zeros(2)) == digest(np.zeros(2)) != digest(np.zeros((2, 1)))
    True
    """
    if array is None:
        return ""
    found = hashlib.blake2b(str(array.shape).encode(), digest_size=20)
    parts = (array.indptr, array.indices, array.data) if sp.issparse(array) else (array,)
    for part in parts:
        found.update(f"{part.dtype.str}{part.shape}".encode())
        found.update(as_bytes(part).data)  # no copy
    return found.hexdigest()


def circumstances(device: torch.device) -> list[str]:
    """What the rounding of products and inversions depends on beside all else.

    Libraries share their work out among threads, and sum up accordingly. Not all can be asked for
    the number of their threads: what they take it from is listed instead.
    """
    if device.type == "cuda":
        ordered = ["in order"] * torch.are_deterministic_algorithms_enabled()
        return [torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}", *ordered]
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    threads = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ["cpu", f"torch {torch.get_num_threads()}", *threads, f"cores {cores}"]


class StatisticsCache:
    """What was computed before and is on disk, as one builder of statistics sees it.

    Args:
        folder: where entries are; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._digests: dict[str, str] = {}
        self._has_warned = False

    @classmethod
    def of_user(cls) -> StatisticsCache:
        """The user's own: the folder that ``HPGMN_CACHE`` names, or one beside the datasets."""
        named = os.environ.get(CACHE_VARIABLE, "")
        if named.lower() == "off":
            return cls(None)
        return cls(Path(named).expanduser() if named else cache_folder() / "statistics")

    def digest(self, name: str, array: Any) -> str:
        """:func:`digest` of an array that stays as it is, computed once for each name."""
        if self.folder is None:
            return ""
        if name not in self._digests:
            self._digests[name] = digest(array)
        return self._digests[name]

    def arrays(
        self,
        recipe: Recipe,
        compute: Callable[[], Mapping[str, Array]],
        prepare: Callable[[], object] | None = None,
    ) -> Mapping[str, Array]:
        """What was computed before by the same recipe, or what is computed now.

        Read or computed, the arrays begin at a multiple of 64 bytes, because products may round
        otherwise elsewhere. They may be written to, which never changes the entry.

        Args:
            recipe: all that the arrays are made from.
            compute: gives the arrays by name.
            prepare: called before computing; its time does not count.
        """
        found = self._read(recipe)
        return self._computed(recipe, compute, prepare) if found is None else found

    def sparse(
        self, recipe: Recipe, compute: Callable[[], sp.csr_array], prepare: Callable[[], object]
    ) -> sp.csr_array:
        """:meth:`arrays` for a square CSR matrix."""

        def parts() -> dict[str, Array]:
            found = compute()
            return {"data": found.data, "indices": found.indices, "indptr": found.indptr}

        kept = self.arrays(recipe, parts, prepare)
        size = kept["indptr"].size - 1
        return sp.csr_array((kept["data"], kept["indices"], kept["indptr"]), shape=(size, size))

    def rows(
        self, recipe: Recipe, shape: tuple[int, ...], fill: Callable[[Array], object]
    ) -> Array:
        """Rows of half precision, in memory or, where they are too many, in a mapped file.

        Args:
            recipe: all that they are made from.
            shape: theirs.
            fill: writes every one of them into the array it is given.
        """
        found = self._read(recipe)
        if found is not None:
            return found["rows"]
        size, free = 2 * math.prod(shape), free_bytes(torch.device("cpu"))
        if size > MEMORY_SHARE * free:
            logger.info(
                "%s take %s and go into a file, for %s of memory are free.",
                *(recipe.kind, format_bytes(size), format_bytes(free)),
            )
            return self._rows_in_a_file(recipe, shape, fill)

        def compute() -> dict[str, Array]:
            rows: Array = torch.empty(shape, dtype=torch.float16).numpy()
            fill(rows)
            return {"rows": rows}

        return self._computed(recipe, compute)["rows"]

    def _computed(
        self,
        recipe: Recipe,
        compute: Callable[[], Mapping[str, Array]],
        prepare: Callable[[], object] | None = None,
    ) -> Mapping[str, Array]:
        if prepare is not None:
            prepare()
        began = time.perf_counter()
        found = {name: _aligned(array) for name, array in compute().items()}
        seconds = time.perf_counter() - began
        if seconds > WORTH_SECONDS:
            logger.info("%s computed in %.1f s.", recipe.kind, seconds)
            self._write(recipe, found)
        return found

    def _read(self, recipe: Recipe) -> dict[str, Array] | None:
        """The arrays of an entry that is whole and right; any other is dropped."""
        if self.folder is None:
            return None
        key = recipe.key()
        place = self.folder / key
        if not os.path.lexists(place):  # asked first: one that appears now is not a damaged one
            return None
        try:
            found = read_entry(self.folder, key)
        except PermissionError as error:
            self._warn(error)
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            if os.path.lexists(place):  # or somebody dropped it just now
                logger.warning("'%s' is damaged (%s): it is computed again.", place, error)
                drop(place)
            return None
        size = format_bytes(sum(array.nbytes for array in found.values()))
        logger.info("%s, %s, read from the cache, %s.", recipe.kind, size, place)
        return found

    def _write(self, recipe: Recipe, arrays: Mapping[str, Array]) -> None:
        """Keep arrays; where that is impossible a line says so, and nothing stays behind."""
        if self.folder is None:
            return
        key, size = recipe.key(), sum(array.nbytes for array in arrays.values())
        try:
            if make_room(self.folder, size):
                with draft(self.folder, key) as place:
                    self._publish(
                        place,
                        recipe,
                        {name: save_array(place / f"{name}.npy", a) for name, a in arrays.items()},
                    )
        except OSError as error:
            self._warn(error)

    def _publish(self, place: Path, recipe: Recipe, arrays: Mapping[str, Any]) -> None:
        key = recipe.key()
        if publish(place, key, recipe.about(), arrays):
            size = format_bytes(sum(said["bytes"] for said in arrays.values()))
            folder = place.parent
            logger.info("%s, %s, kept in the cache, %s.", recipe.kind, size, folder / key)
            make_room(folder, 0)  # others may have written at the same time

    def _rows_in_a_file(
        self, recipe: Recipe, shape: tuple[int, ...], fill: Callable[[Array], object]
    ) -> Array:
        """Rows in an entry or, where none may be so large, in a file that is gone afterwards."""
        size, folder = 2 * math.prod(shape), Path(tempfile.gettempdir())
        try:
            if self.folder is not None and make_room(self.folder, size):
                return self._rows_in_an_entry(recipe, self.folder, shape, fill)
            folder = self.folder or folder
        except OSError as error:
            self._warn(error)
        try:
            free = shutil.disk_usage(folder).free
            if size > FILE_SHARE * free:
                raise OSError(errno.ENOSPC, f"{format_bytes(free)} free")
            # It has no name, so that it goes with the last who maps it, even if that is killed.
            with tempfile.TemporaryFile(dir=folder) as file:
                reserve(file.fileno(), size)
                rows: Array = np.memmap(file, np.float16, "r+", shape=shape)
        except OSError as error:
            raise HPGMNError(
                f"{recipe.kind} take {format_bytes(size)}, which fit neither into memory nor into "
                f"'{folder}' ({error.strerror or error}). Set {CACHE_VARIABLE} to a folder on a "
                "disk with more room, train fewer splits and seeds at once, or leave class_means "
                "out of statistics."
            ) from None
        fill(rows)
        return np.asarray(rows)

    def _rows_in_an_entry(
        self,
        recipe: Recipe,
        folder: Path,
        shape: tuple[int, ...],
        fill: Callable[[Array], object],
    ) -> Array:
        with draft(folder, recipe.key()) as place:
            path, header = place / "rows.npy", npy_header(np.dtype(np.float16), shape)
            with path.open("wb") as file:
                file.write(header)
                file.flush()
                reserve(file.fileno(), len(header) + 2 * math.prod(shape))
            rows = np.memmap(path, np.float16, "r+", len(header), shape)
            fill(rows)
            rows.flush()
            kept = mapped(path)  # outlives the name of its file
            try:
                self._publish(place, recipe, {"rows": described(path, kept)})
            except OSError as error:  # the work is done: the rows serve this run at least
                self._warn(error)
        return kept

    def _warn(self, error: OSError) -> None:
        """Say once that the folder cannot be used; computing goes on without it."""
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "Statistics are not kept in '%s' (%s). Set %s to a folder that you may write to and "
            "that has room, or to off.",
            *(self.folder, error.strerror or error, CACHE_VARIABLE),
        )


@cache
def _surroundings() -> dict[str, str]:
    """What any rounding depends on, beside the inputs."""
    return {
        "code": _code(Path(__file__).parent),
        "processor": _processor(Path("/proc/cpuinfo")),
        **{name: metadata.version(name) for name in ("numpy", "scipy", "torch", "numba")},
    }


def _code(folder: Path) -> str:
    """A digest of the code that computes statistics, so that none of yesterday's is read."""
    found = hashlib.blake2b(digest_size=20)
    helpers = [folder.parent / name for name in ("sparse.py", "randomness.py")]
    for path in [*sorted(folder.glob("*.py")), *helpers]:
        if path.is_file():  # within a zip there is none, and the versions have to do
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _processor(cpuinfo: Path) -> str:
    """The kind of processor, by which libraries choose their kernels."""
    kinds = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")
    try:
        first, _, _ = cpuinfo.read_text(encoding="utf-8").partition("\n\n")
        said = "\n".join(line for line in first.splitlines() if line.startswith(kinds))
    except (OSError, ValueError):
        said = platform.processor()
    return hashlib.blake2b(f"{platform.machine()}\n{said}".encode(), digest_size=8).hexdigest()


def _has_denormals() -> bool:
    """Whether this thread computes with numbers below 1e-38 (training flushes them to zero)."""
    return bool(torch.tensor(1e-30).mul(1e-10) > 0)


def _aligned(array: Array) -> Array:
    """The array, copied where it does not begin as a mapped one would."""
    if array.ctypes.data % _ALIGNMENT:
        copy: Array = torch.from_numpy(array).clone().numpy()
        return copy
    return array
