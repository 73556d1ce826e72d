"""Same bits from the same training on a GPU, where they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED = (":4096:8", ":16:8")  # the values by which cuBLAS promises the same bits


@contextmanager
def repeatable(is_asked: bool, device: torch.device | str) -> Iterator[None]:
    """Let a GPU compute the same bits each time; on a CPU nothing has to be done for it.

    A GPU adds in whatever order its threads come, where that is faster. Inside of this block torch
    takes the algorithms that keep to one order (and refuses those that have none), cuBLAS a fixed
    work space, sparse products our own kernel, and what depends on free memory looks at all of the
    memory instead.

    Args:
        is_asked: whether the same bits are asked for.
        device: where the work happens.
    """
    if not is_asked or torch.device(device).type != "cuda":
        yield
        return
    if os.environ.get(_WORKSPACE) not in _FIXED:
        os.environ[_WORKSPACE] = _FIXED[0]  # read when cuBLAS is first used
    before = torch.are_deterministic_algorithms_enabled()
    options: Any = torch.utils.deterministic
    filled = options.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    options.fill_uninitialized_memory = False  # nothing is read before it is written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        options.fill_uninitialized_memory = filled
