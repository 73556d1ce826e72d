"""Arithmetic modes of a training: denormals, matrix precision, deterministic GPU algorithms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACES = (":4096:8", ":16:8")  # the values for which cuBLAS is deterministic


def run_training_thread(work: Callable[[Event], Result]) -> Result:
    """Call ``work`` in a thread that flushes denormals to zero, and wait for it.

    Squared gradients of a well-fitted model underflow, and denormal arithmetic made whole CPU runs
    30 times slower. Flushing is a mode of a thread, inherited by the workers torch starts for it;
    the caller's threads keep their mode.

    Ctrl-C reaches the waiting caller: it sets the event passed to ``work``, which should stop after
    the current epoch, and raises KeyboardInterrupt once ``work`` has returned.
    """
    interrupted = Event()
    with ThreadPoolExecutor(1, initializer=torch.set_flush_denormal, initargs=(True,)) as pool:
        try:
            return pool.submit(work, interrupted).result()
        except KeyboardInterrupt:
            interrupted.set()
            raise


@contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices in TF32 on a GPU if ``precision`` is "tf32".

    "bfloat16" is handled by autocast in the training step.
    """
    before = torch.get_float32_matmul_precision()
    if precision == "tf32" and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def deterministic_algorithms(is_requested: bool, device: torch.device | str) -> Iterator[None]:
    """Make a GPU reproducible bit for bit; a CPU always is.

    torch uses deterministic algorithms (and refuses operations that have none), cuBLAS a fixed
    workspace, sparse products our own kernel; limits use total instead of free memory.
    """
    if not is_requested or torch.device(device).type != "cuda":
        yield
        return
    if os.environ.get(_WORKSPACE) not in _FIXED_WORKSPACES:
        os.environ[_WORKSPACE] = _FIXED_WORKSPACES[0]  # read when cuBLAS is first used
    before = torch.are_deterministic_algorithms_enabled()
    options: Any = torch.utils.deterministic
    fills_memory = options.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    options.fill_uninitialized_memory = False  # nothing is read before it is written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        options.fill_uninitialized_memory = fills_memory
