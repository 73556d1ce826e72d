"""Hardware, free memory and peak memory of this process."""

from __future__ import annotations

import gc
import math
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_GROUPS = Path("/sys/fs/cgroup")
# Limit, usage and statistics of a container's control group, version 2 and 1.
_CONTAINERS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def free_host_bytes() -> float:
    """Return the memory this process may still allocate; infinity where it is unknown."""
    return min(_available_bytes(), *(_container_bytes(*files) for files in _CONTAINERS))


def _available_bytes() -> float:
    try:
        import psutil
    except ImportError:
        return math.inf
    return float(psutil.virtual_memory().available)


def _container_bytes(limit: str, usage: str, statistics: str) -> float:
    """Return what is left below the limit of this container; cached files can be evicted."""
    try:
        left = int((_GROUPS / limit).read_text()) - int((_GROUPS / usage).read_text())
        lines = (_GROUPS / statistics).read_text().splitlines()
        cached = [int(line.split()[1]) for line in lines if line.startswith("inactive_file ")]
        return left + sum(cached)
    except (OSError, ValueError):  # no such group, or the limit is "max"
        return math.inf


def free_bytes(device: torch.device) -> float:
    """Return the free memory of the host and, for a CUDA device, of the GPU: the smaller one."""
    host = free_host_bytes()
    return min(host, free_gpu_bytes(device)) if device.type == "cuda" else host


def free_gpu_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU, or all of it in deterministic mode.

    Free memory decides how many replicas form a batch, which can change the last bits of results.
    """
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return total if torch.are_deterministic_algorithms_enabled() else free


def hardware(device: str) -> dict[str, Any]:
    """Return the processor, threads, device and versions that a run records."""
    import torch

    processor = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def reset_peak_memory(device: str) -> None:
    """Restart the peak measurement, after returning freed memory to the system."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
    gc.collect()
    with suppress(ImportError, AttributeError, OSError):  # psutil before 7.2: memory stays cached
        import psutil

        psutil.heap_trim()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mb(device: str) -> float:
    """Return the peak memory since the last reset (on a GPU: the allocator's), in MB."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if "VmHWM" in line)
    except (OSError, StopIteration):  # not Linux: the peak since the process started
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: small arrays wait longer for others than they take."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
