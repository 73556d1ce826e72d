"""Processes of one machine take turns: only so many of them load torch at the same time.

A process that has loaded torch takes about 200 MB, so a hundred that are started together would
take more memory than many machines have, and would not be done any sooner.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PER_CORE = 4
"""So many processes of a user are at work at a time for each core of the machine."""
PATIENCE_SECONDS = 600.0
"""Whoever has waited so long goes ahead: those before may be stopped for good."""
LOOK_SECONDS = 0.1
"""Whoever waits looks this often whether it is its turn."""
QUIET_SECONDS = 5.0
"""Nothing is said of a wait that is shorter."""


@contextmanager
def own_turn(told: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Wait for one's turn and hold it; where no turns can be kept, nobody waits.

    A turn is a lock of the operating system, which is gone with its process, however that ends.

    Args:
        told: is told in a sentence that others come first.
    """
    cores = os.cpu_count() or 1
    file = _opened(os.getpid() % (PER_CORE * cores))
    if file is None:
        yield
        return
    try:
        began, is_told = time.monotonic(), False
        while not _is_locked(file):
            waited = time.monotonic() - began
            if waited > PATIENCE_SECONDS:
                break
            if waited > QUIET_SECONDS and not is_told:
                is_told = True
                told(f"Waiting: more than {PER_CORE * cores} predictions run on this machine.")
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(file)


def _opened(place: int) -> int | None:
    """The file whose lock is a turn, in a folder of the user's own; None where there is none."""
    folder = Path(tempfile.gettempdir()) / f"hpgmn-turns-{os.getuid()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():  # made by somebody else
            return None
        return os.open(folder / f"{place:04d}", flags, 0o600)
    except OSError:
        return None


def _is_locked(file: int) -> bool:
    """Whether the lock is this process's now, or cannot be had at all."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: nobody waits
    return True
