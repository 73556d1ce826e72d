"""What a process takes of the machine: memory at its peak, and who else was at work."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hpgmn.base.machine import peak_memory_mb

_PROCESSES = Path("/proc")
_STAT = _PROCESSES / "stat"


def peak_bytes() -> int:
    """The most memory of this process since it was forgotten (VmHWM)."""
    return round(peak_memory_mb("cpu") * 1e6)


def device_peak_bytes(device: str) -> int | None:
    """The most memory that torch held on the GPU; None on a CPU."""
    return round(peak_memory_mb("cuda") * 1e6) if device == "cuda" else None


class Neighbours:
    """How many cores other processes keep busy, from its making on.

    Args:
        with_offspring: whether processes that this one starts are no others.
    """

    def __init__(self, *, with_offspring: bool = False) -> None:
        self._began = time.perf_counter()
        self._seconds = family_seconds if with_offspring else time.process_time
        self._machine, self._own = _busy_seconds(), self._seconds()

    def cores_taken(self) -> float | None:
        """The mean number of cores that others took; None where nobody says."""
        now = _busy_seconds()
        if now is None or self._machine is None:
            return None
        others = now - self._machine - (self._seconds() - self._own)
        return max(0.0, others) / max(time.perf_counter() - self._began, 1e-9)


def _busy_seconds() -> float | None:
    """Seconds of processor time that the whole machine has spent since it started."""
    try:
        fields = _STAT.read_text(encoding="ascii").splitlines()[0].split()
    except (OSError, IndexError):
        return None
    user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def family_seconds() -> float:
    """Processor time of this process, of those it has started, of theirs, and so on.

    Those that have ended count where the one that started them has taken note of it.
    """
    started: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for path in _PROCESSES.glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        own = int(path.parent.name)
        started.setdefault(int(fields[1]), []).append(own)
        seconds[own] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = [os.getpid()]
    for process in family:  # grows meanwhile
        family += started.get(process, [])
    return sum(seconds.get(process, 0.0) for process in family)
