"""Files and folders written whole: under another name first, forced onto the disk, then moved.

Whoever is killed, or whose disk is full, leaves what was there before. A draft is in a hidden
folder beside its place, where no reader looks. The folder is locked by its writer, so that the next
one who writes to the same place tells a draft at work from one left behind, which it removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError

ENDING = ".unfinished"
"""What the names of drafts end in; they begin with a dot and the name of their place."""

_NAME, _OLD = re.compile(rf"\..+\.[0-9a-f]{{32}}{re.escape(ENDING)}"), ".old"

STALE_SECONDS = 24 * 60 * 60
"""So old a draft is abandoned where the file system has no locks."""

SEAL = "crc32"
"""The key of a description's checksum."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the system says where no room is left."""

STORAGE = FULL | {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO}
"""What it says of a disk or a folder rather than of a mistake in a program."""


class UnwritableError(HPGMNError):
    """A place cannot be written; see :func:`unwritable`.

    Attributes:
        reason: why, as the system says it.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def unwritable(path: Path, error: OSError) -> UnwritableError:
    """The sentence for a place that cannot be written: which, why, and what to do.

    >>> print(unwritable(Path("runs/a"), OSError(errno.ENOSPC, "No space left on device")))
    Cannot write runs/a (No space left on device). Make room on its disk, or choose another place.
    """
    reason, remedy = _reason_and_remedy(error)
    return UnwritableError(f"Cannot write {path} ({reason}). {remedy}", reason)


def cache_folder() -> Path:
    """Return the user's cache of datasets and statistics; it may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "hpgmn"


def refused(error: OSError) -> HPGMNError | None:
    """The sentence for an error of a disk or folder that nobody was ready for; None for another."""
    if error.errno not in STORAGE:
        return None
    place = error.filename or "a file"
    reason, remedy = _reason_and_remedy(error)
    return HPGMNError(f"Cannot read or write {place} ({reason}). {remedy}")


def _reason_and_remedy(error: OSError) -> tuple[str, str]:
    remedy = "Choose another place, one that you may write to."
    if error.errno is None:  # NumPy, for one, tells no reason
        remedy = "See that its disk has room and that you may write there."
    elif error.errno in FULL:
        remedy = "Make room on its disk, or choose another place."
    elif error.errno == errno.ENOENT:
        remedy = "Make its folder, or choose another place."
    reason = str(error) if error.errno is None else os.strerror(error.errno)
    return reason, remedy


def write_text(path: Path, text: str, *, forced: bool = True) -> None:
    """Write a text file whole: a crash leaves the old one or the new one.

    Args:
        path: the place; its folder exists.
        text: its content.
        forced: see :func:`whole`.
    """
    write_bytes(path, text.encode("utf-8"), forced=forced)


def write_bytes(path: Path, content: bytes, *, forced: bool = True) -> None:
    """Write a file whole: a crash leaves the old one or the new one."""
    with whole(path, forced=forced) as draft:
        draft.write_bytes(content)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A description with a checksum of itself, for a file whose numbers count.

    >>> unsealed(sealed({"score": 0.5}))
    {'score': 0.5}
    """
    plain = {key: value for key, value in content.items() if key != SEAL}
    from hpgmn.base.parsing import parse_json  # which loads NumPy, and a command's help should not

    as_read = parse_json(json.dumps(plain))  # numbers as keys become words
    return {**plain, SEAL: zlib.crc32(json.dumps(as_read, sort_keys=True).encode())}


def unsealed(content: Any) -> dict[str, Any]:
    """What was :func:`sealed`, or, as in earlier versions, was not; ValueError if it changed."""
    if not isinstance(content, dict):
        raise ValueError("no description")
    if SEAL in content and sealed(content)[SEAL] != content[SEAL]:
        raise ValueError("its checksum differs")
    return {key: value for key, value in content.items() if key != SEAL}


@contextlib.contextmanager
def whole(path: Path, *, forced: bool = True) -> Iterator[Path]:
    """The name of a draft, which is moved to its place at the end, or removed after an error.

    Args:
        path: the place; its folder exists.
        forced: whether the file is forced onto the disk, so that not even a power cut leaves half
            of it. A file whose checksum is kept elsewhere can do without.

    Raises:
        HPGMNError: the file cannot be written.
    """
    with _drafts(path) as folder:
        draft = folder / path.name  # in a folder, for libraries that have drafts of their own
        yield draft
        if forced:
            _force(draft)
        os.replace(draft, path)
        if forced:
            _force(path.parent)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder, which takes its place at the end, or is removed after an error.

    Where a folder is in that place already, the two are exchanged at once.

    Args:
        path: the place; what is above it exists.

    Raises:
        HPGMNError: the folder cannot be written.
    """
    if path.is_symlink():
        path = path.resolve()
    with _drafts(path) as draft:
        yield draft
        for member in sorted(draft.iterdir()):
            _force(member)
        _force(draft)
        _exchange(draft, path)
        _force(path.parent)


@contextlib.contextmanager
def _drafts(path: Path) -> Iterator[Path]:
    """A new, locked folder beside a place, gone at the end; errors are one sentence."""
    try:
        sweep(path)
        draft, held = _begun(path)
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            os.close(held)
    except OSError as error:
        raise unwritable(path, error) from None


def sweep(path: Path) -> None:
    """Remove the drafts that killed writers have left for a place; others are left alone."""
    start = f".{path.name}."
    with contextlib.suppress(OSError):  # it is done again with the next draft
        for name in os.listdir(path.parent):
            if name.startswith(start) and is_draft(name):
                _remove_abandoned(path.parent / name)


def sweep_folder(folder: Path) -> None:
    """Remove the drafts that killed writers have left in a folder, whatever they were to be."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if is_draft(name):
                _remove_abandoned(folder / name)


def is_draft(name: str) -> bool:
    """Whether a folder of that name is a draft of ours: it may be removed, no other is.

    >>> is_draft(".a.json.0123456789abcdef0123456789abcdef.unfinished")
    True
    >>> is_draft("book.unfinished")
    False
    """
    return _NAME.fullmatch(name) is not None


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{ENDING}")


def _begun(path: Path) -> tuple[Path, int]:
    """A new draft and the descriptor that locks it."""
    while True:
        draft = _draft(path)
        draft.mkdir()
        with contextlib.suppress(FileNotFoundError):  # somebody swept it before it was locked
            held = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # a file system without locks: known by its age
                fcntl.flock(held, fcntl.LOCK_EX)
            if draft.exists():
                return draft, held
            os.close(held)


def _remove_abandoned(draft: Path) -> None:
    with contextlib.suppress(OSError):  # gone meanwhile, or at work
        held = os.open(draft, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if _is_abandoned(draft, held):
                shutil.rmtree(draft, ignore_errors=True)
        finally:
            os.close(held)  # not before: a writer that has just made the folder waits for it


def _is_abandoned(draft: Path, held: int) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - draft.stat().st_mtime >= STALE_SECONDS
    return True


def _force(path: Path) -> None:
    """Have the content of a file or the names in a folder on the disk."""
    held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of some file systems, for folders
            raise
    finally:
        os.close(held)


def _exchange(draft: Path, path: Path) -> None:
    """Move a folder to its place; one that was there takes the name of the draft."""
    try:
        os.rename(draft, path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchanged(draft, path):
        return
    # Two renames, where the system has no single one. A kill between them leaves the old folder
    # under a name that nobody sweeps.
    old = _draft(path).with_suffix(_OLD)
    os.rename(path, old)
    try:
        os.rename(draft, path)
    except OSError:
        os.rename(old, path)
        raise
    for name in os.listdir(path.parent):
        if name.startswith(f".{path.name}.") and is_draft(f"{name.removesuffix(_OLD)}{ENDING}"):
            shutil.rmtree(path.with_name(name), ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names at once; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return rename is not None and rename(here, bytes(one), here, bytes(other), exchange) == 0
