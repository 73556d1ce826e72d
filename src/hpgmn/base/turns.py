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
from contextlib import contextmanager, suppress
from pathlib import Path

from hpgmn.base.machine import free_host_bytes

PER_CORE = 4
"""So many processes of a user are at work at a time for each core that they may use."""
ROOM_BYTES = 2**28
"""Each of them takes about so much; no more are let in than free memory holds."""
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
    held = None
    with suppress(OSError):  # no folder, or no locks in it
        held = _awaited(_folder(), _number(), told)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _number() -> int:
    """How many may be at work, by cores and free memory; in a container those of the container."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min(PER_CORE * cores, free_host_bytes() / ROOM_BYTES)))


def _awaited(folder: Path, number: int, told: Callable[[str], None]) -> int | None:
    """The locked file of a place that is free, as soon as there is one; None after too long."""
    began, is_told = time.monotonic(), False
    while True:
        for place in range(number):
            held = _place(folder / f"{place:04d}")
            if held is not None:
                return held
        waited = time.monotonic() - began
        if waited > PATIENCE_SECONDS:
            return None
        if waited > QUIET_SECONDS and not is_told:
            is_told = True
            told(f"Waiting: {number} other predictions run on this machine.")
        time.sleep(LOOK_SECONDS)


def _folder() -> Path:
    """The folder of the places, the user's own."""
    folder = Path(tempfile.gettempdir()) / f"hpgmn-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} was made by somebody else")
    return folder


def _place(path: Path) -> int | None:
    """The open file of a place, locked; None where it is another's."""
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    except OSError:
        os.close(held)
        raise
    return held
