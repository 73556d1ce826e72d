"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpgmn.errors import HPGMNError

LOCK_FILE = ".lock"
"""The file that is locked; it stays, for another process may have opened it."""


@contextmanager
def only_one(folder: Path, what: str, file_name: str = LOCK_FILE) -> Iterator[None]:
    """Refuse to work in a folder in which another process is at work; the folder is made.

    The lock is the operating system's: it is gone with the process, however that ends.

    Args:
        folder: where the work is done.
        what: the work, as in "Another REPRODUCTION is at work".
        file_name: the file in it that is locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / file_name).open("a")
    except OSError as error:
        raise HPGMNError(
            f"Cannot write into the folder {folder} ({error.strerror or error}). Choose another "
            "--out."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HPGMNError(
                f"Another {what} is at work in {folder}. Wait for it, or choose another --out."
            ) from None
        except OSError:
            pass  # a file system without locks: nothing is known of others
        yield
