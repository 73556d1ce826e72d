"""One process at a time in a folder, or at a file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import unwritable

LOCK_FILE = ".lock"
"""The file of a folder that is locked while a process works there."""


@contextmanager
def only_one(folder: Path, what: str, file_name: str = LOCK_FILE) -> Iterator[None]:
    """Refuse to work in a folder in which another process is at work; the folder is made.

    Args:
        folder: where the work is done.
        what: the work, as in "Another REPRODUCTION is at work".
        file_name: the file in it that is locked.
    """
    refusal = f"Another {what} is at work in {folder}. Wait for it, or choose another --out."
    with locked(folder / file_name, refusal):
        yield


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file, which is gone afterwards; its folder is made.

    The lock is the operating system's: it is gone with the process, however that ends, and who
    comes next takes the file over.

    Args:
        path: the lock file.
        refusal: the message for whoever comes while another process holds it.
    """
    try:
        held = _held(path)
    except BlockingIOError:
        raise HPGMNError(refusal) from None
    except OSError as error:
        raise unwritable(path.parent, error) from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(held)


def _held(path: Path) -> int:
    """The descriptor of the locked file."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise
        except OSError:
            return held  # a file system without locks: nothing is known of others
        if path.exists() and os.path.samestat(os.fstat(held), path.stat()):
            return held
        os.close(held)  # its holder removed it in between: once more, with a new one
