"""Work in a thread that treats numbers below 1e-38 as zero.

Probabilities and squared gradients of a well-fitted model underflow, and arithmetic on denormal
numbers made whole runs 30 times slower on a CPU (texas). Flushing them is a mode of each thread;
a fresh thread hands it on to the workers torch starts for it, and the caller's own threads, in
which other libraries may want denormals, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

import torch

Result = TypeVar("Result")


def without_denormals(work: Callable[[Event], Result]) -> Result:
    """Call ``work`` in its own thread and wait for it.

    Args:
        work: is handed an event, which is set when the waiting is interrupted (Ctrl-C); it should
            then come to an end.
    """
    interrupted = Event()
    with ThreadPoolExecutor(1, initializer=torch.set_flush_denormal, initargs=(True,)) as pool:
        try:
            return pool.submit(work, interrupted).result()
        except KeyboardInterrupt:
            interrupted.set()
            raise
