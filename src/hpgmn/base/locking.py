"""Lock a folder or file, so that one process at a time works on it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_error

LOCK_FILE = ".lock"
"""Name of the lock file inside a folder."""

_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a folder and lock it; raise HPGMNError if another process holds the lock."""
    message = f"Another process is using {folder}. Wait for it to finish, or choose another folder."
    with lock_file(folder / LOCK_FILE, message):
        yield


@contextmanager
def lock_file(path: Path, message: str) -> Iterator[None]:
    """Hold a lock file, which ends with this process and is removed afterwards.

    Args:
        path: the lock file; its folder is created.
        message: the error for a second process.
    """
    from filelock import FileLock, Timeout  # not needed by most commands

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, mode=0o666, timeout=0, fallback_to_soft=False)
        try:
            lock.acquire()
        except OSError as error:
            if isinstance(error, Timeout) or error.errno not in _NO_LOCKS:
                raise  # otherwise the file system has no locks: work without one
    except Timeout:
        raise HPGMNError(message) from None
    except OSError as error:
        raise write_error(path.parent, error) from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()
