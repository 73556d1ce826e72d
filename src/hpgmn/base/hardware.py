"""What a run ran on, and the memory it took at its peak."""

from __future__ import annotations

import ctypes
import gc
import platform
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch


def hardware(device: str) -> dict[str, Any]:
    """What the run ran on."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def forget_peak_memory(device: str) -> None:
    """Let the peak begin anew, so that a run does not report what ran before it.

    What was freed but kept by the allocator is given back first: after a few trainings that can be
    a gibibyte.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mb(device: str) -> float:
    """The process's peak memory since it was forgotten (on a GPU: the allocator's), in MB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if "VmHWM" in line)
    except (OSError, StopIteration):  # not Linux: the peak of the whole process
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
