"""How much memory this machine, or the container on it, has left."""

from __future__ import annotations

import math
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
# Limit, use and statistics of a container's control group, version 2 and 1.
_CONTAINERS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def free_host_bytes() -> float:
    """What a process may still take; endless where the system does not say."""
    return min(_available(), *(_container(*files) for files in _CONTAINERS))


def _available() -> float:
    """What Linux says a new program could take without swapping."""
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        [line] = [line for line in lines if line.startswith("MemAvailable:")]
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return math.inf


def _container(limit: str, use: str, statistics: str) -> float:
    """What is left below the limit of this container; cached files can be given back."""
    try:
        left = int((_GROUPS / limit).read_text()) - int((_GROUPS / use).read_text())
        lines = (_GROUPS / statistics).read_text().splitlines()
        cached = [int(line.split()[1]) for line in lines if line.startswith("inactive_file ")]
        return left + sum(cached)
    except (OSError, ValueError):  # no such group, or the limit is "max"
        return math.inf
