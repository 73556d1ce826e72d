"""A folder of entries: arrays under a key, written whole, read checked, of bounded size.

An entry is a folder named by its key. It holds arrays as ``.npy`` files and ``entry.json``, which
says what they are, with their shapes, types and checksums. It is written beside its place (a
draft) and moved there by one rename, so that it is there whole or not at all, and of two writers
the first one wins. None is forced onto the disk: what a crash leaves half-written fails its checks.

Folders and files of any other name are left alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.parsing import npy_header, parse_json, read_array
from hpgmn.base.text import format_bytes
from hpgmn.graph import Array

logger = logging.getLogger(__name__)

LIMIT_BYTES = 20 * 2**30
"""The most that all entries take together."""

DISK_SHARE = 0.5
"""The most that they take of what the disk would have free without them."""

STALE_SECONDS = 24 * 60 * 60
"""A draft that nobody has written to for so long was left by a killed writer."""

ABOUT = "entry.json"
"""The file that describes the arrays of an entry."""

_KEY = re.compile(r"[0-9a-f]{40}")
_DRAFT = re.compile(r"\.[0-9a-f]{40}\.[0-9a-f]{32}\.draft")
_BLOCK = 1 << 20  # bytes read, written and summed up at once


def read_entry(folder: Path, key: str) -> dict[str, Array]:
    """The arrays of an entry, every byte of it checked; used last now.

    They are mapped: reading costs no memory, and whoever writes into one changes a copy.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is damaged, or not the entry of that key.
    """
    place = folder / key
    text = (place / ABOUT).read_text(encoding="utf-8")
    about = parse_json(text)
    if not isinstance(about, dict) or _sealed(about) != text or about["key"] != key:
        raise ValueError(f"{ABOUT} was changed")
    arrays = {}
    for name, said in about["arrays"].items():
        path = place / f"{name}.npy"
        if not path.is_file():
            raise ValueError(f"{path.name} is missing")
        if path.stat().st_size != said["bytes"] or _checksum(path) != said["crc32"]:
            raise ValueError(f"{path.name} was changed or cut")
        empty = 0 in said["shape"]  # nothing to map
        arrays[name] = np.empty(said["shape"], said["dtype"]) if empty else mapped(path)
    with contextlib.suppress(OSError):
        os.utime(place / ABOUT)
    return arrays


@contextlib.contextmanager
def draft(folder: Path, key: str) -> Iterator[Path]:
    """A new folder beside the place of an entry; what is not moved there goes, come what may."""
    place = _beside(folder, key)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(place: Path, key: str, about: Mapping[str, Any], arrays: Mapping[str, Any]) -> bool:
    """Describe a draft and move it to the place of its entry.

    Args:
        place: the draft, with all its arrays.
        key: the name of the entry.
        about: what it is.
        arrays: what :func:`save_array` or :func:`described` said of each array.

    Returns:
        False if somebody was faster: then theirs stays.
    """
    text = _sealed({"key": key, "about": dict(about), "arrays": dict(arrays)})
    (place / ABOUT).write_text(text, encoding="utf-8")
    try:
        os.rename(place, place.parent / key)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def make_room(folder: Path, size: int) -> bool:
    """Drop what killed writers left, and what was used least recently, for an entry of that size.

    Returns:
        False if no entry may be so large; then nothing is dropped for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now, entries = time.time(), []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # others drop entries, too
            if _DRAFT.fullmatch(path.name) and now - _last_written(path) > STALE_SECONDS:
                drop(path)
            elif _KEY.fullmatch(path.name):
                entries.append((*_last_used_and_size(path), path))
    total = sum(own for _, own, _ in entries)
    limit = min(LIMIT_BYTES, DISK_SHARE * (shutil.disk_usage(folder).free + total))
    if size > limit:
        logger.info(
            "%s are too large for the cache, %s, which may take %s.",
            *(format_bytes(size), folder, format_bytes(limit)),
        )
        return False
    for _, own, path in sorted(entries):
        if total + size <= limit:
            break
        drop(path)
        logger.info("%s dropped from the cache, %s.", format_bytes(own), path)
        total -= own
    return True


def drop(path: Path) -> None:
    """Remove an entry or a draft, moved away first so that nobody ever sees half of it."""
    with contextlib.suppress(OSError):
        gone = _beside(path.parent, path.name.lstrip(".")[:40])
        os.rename(path, gone)
        if gone.is_dir() and not gone.is_symlink():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink()


def save_array(path: Path, array: Array) -> dict[str, Any]:
    """Write an array; what its entry says of it."""
    header, content = npy_header(array.dtype, array.shape), as_bytes(array)
    with path.open("wb") as file:
        file.write(header)
        checksum = zlib.crc32(header)
        for first in range(0, content.size, _BLOCK):  # summed up while it is near
            block = content[first : first + _BLOCK].data
            file.write(block)
            checksum = zlib.crc32(block, checksum)
    return {"bytes": len(header) + content.size, "crc32": checksum, **_form(array)}


def described(path: Path, array: Array) -> dict[str, Any]:
    """What an entry says of an array whose file is already there."""
    return {"bytes": path.stat().st_size, "crc32": _checksum(path), **_form(array)}


def mapped(path: Path) -> Array:
    """The array in a file; whoever writes into it changes a copy of the page, never the file."""
    return np.asarray(read_array(path, mapped="c"))


def as_bytes(array: Array) -> Array:
    """The bytes of an array in C order; not copied where it is so already."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def reserve(file: int, size: int) -> None:
    """Take the room of a file before it is mapped: a full disk would end the process later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    zeros = bytes(_BLOCK)
    for place in range(os.fstat(file).st_size, size, _BLOCK):
        os.pwrite(file, zeros[: min(_BLOCK, size - place)], place)


def _beside(folder: Path, key: str) -> Path:
    return folder / f".{key}.{uuid.uuid4().hex}.draft"


def _last_used_and_size(entry: Path) -> tuple[float, int]:
    members = {path.name: path.stat() for path in entry.iterdir()} if entry.is_dir() else {}
    last = members[ABOUT] if ABOUT in members else entry.lstat()
    return last.st_mtime, sum(one.st_size for one in members.values())


def _last_written(place: Path) -> float:
    """Of a draft or of any file in it: a mapped file grows older than its folder."""
    members = place.iterdir() if place.is_dir() else ()
    times: list[float] = [path.lstat().st_mtime for path in (place, *members)]
    return max(times)


def _form(array: Array) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.str}


def _checksum(path: Path) -> int:
    """Of a whole file, read in parts, so that it takes no memory."""
    checksum, room = 0, memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(room):
            checksum = zlib.crc32(room[:count], checksum)
    return checksum


def _sealed(about: Mapping[str, Any]) -> str:
    """A description as text, with a checksum of itself in place of the one it may have."""
    plain = {key: value for key, value in about.items() if key != "crc32"}
    checksum = zlib.crc32(json.dumps(plain, sort_keys=True).encode())
    return json.dumps({**plain, "crc32": checksum}, indent=1, sort_keys=True) + "\n"
