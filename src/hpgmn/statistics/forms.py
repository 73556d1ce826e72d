"""Which form of the diffusion statistic to take, and whether it fits into memory.

``diffusion_form=auto`` follows one rule:

1. *dense* where an N×N matrix takes at most :data:`DENSE_LIMIT_BYTES` and there is memory for it;
2. *sketch* where that limit is passed and N·E exceeds :data:`IMPLICIT_LIMIT`;
3. *implicit* in between.

Whether it is a sketch depends on the graph alone: the sketch has d columns and the other forms N,
so that a run continued on a smaller machine, or a model that is used on another graph, would not
fit its own weights if free memory had a say.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scipy.sparse as sp
import torch

from hpgmn.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.statistics.diffusion import DENSE_LIMIT_BYTES, led_to
from hpgmn.statistics.push import worker_bytes
from hpgmn.statistics.sketch import BLOCK

if TYPE_CHECKING:
    from hpgmn.statistics.local import StatisticsSettings

logger = logging.getLogger(__name__)

IMPLICIT_LIMIT = 5 * 10**9
"""``auto`` takes the implicit form up to this N·E, E the stored edges: an exact row length or self
entry needs every column of S, N·E·terms multiplications, about five minutes at this limit."""

FORMS = ("dense", "implicit", "topk", "sketch")
"""Every form but ``auto``."""

_COLUMNS = 256  # of a product: what the implicit form diffuses at once
_SMALLER = {
    "topk": "a smaller diffusion_topk",
    "sketch": "diffusion_form=sketch and a smaller diffusion_dim",
}


def is_sketched(graph: Graph, settings: StatisticsSettings) -> bool:
    """Whether diffusion is a sketch of that graph, by its settings or by the rule of ``auto``."""
    if settings.diffusion_form != "auto":
        return settings.diffusion_form == "sketch"
    is_small = graph.num_nodes**2 * 4 <= DENSE_LIMIT_BYTES
    return not is_small and graph.num_nodes * graph.adjacency("out").nnz > IMPLICIT_LIMIT


def settled(graph: Graph, settings: Any) -> Any:
    """Settings that name the sketch where ``auto`` took it on the graph of the training.

    A trained model keeps these, so that ``auto`` on another graph may still choose among the
    forms whose columns are nodes, but never change the number of columns.
    """
    used = "diffusion" in getattr(settings, "statistics", ())
    if used and settings.diffusion_form == "auto" and is_sketched(graph, settings):
        return dataclasses.replace(settings, diffusion_form="sketch")
    return settings


def chosen_form(
    matrix: sp.csr_array,
    settings: StatisticsSettings,
    device: torch.device,
    *,
    sketched: bool,
) -> str:
    """The form to build; one that does not fit is refused before any work starts.

    Args:
        matrix: T, (N, N).
        settings: the form, or ``auto``, and its parameters.
        device: where the statistic will live.
        sketched: whether ``auto`` means the sketch (:func:`is_sketched`).
    """
    num_nodes, free = matrix.shape[0], free_bytes(device)
    needed = {name: form_bytes(name, matrix, settings) for name in FORMS}
    form, because = settings.diffusion_form, "as set"
    if form == "auto":
        form, because = "dense", f"a matrix takes at most {in_words(DENSE_LIMIT_BYTES)}"
        if sketched:
            form, because = "sketch", f"nodes times edges exceed {IMPLICIT_LIMIT:,}"
        elif num_nodes**2 * 4 > DENSE_LIMIT_BYTES:
            form, because = "implicit", f"a matrix takes {in_words(num_nodes**2 * 4)}"
        elif needed["dense"] > free:
            form, because = "implicit", f"a matrix does not fit into {in_words(free)}"
    size = in_words(needed[form])
    logger.info("Diffusion of %s nodes: %s form, %s; %s.", f"{num_nodes:,}", form, size, because)
    is_slow = num_nodes * matrix.nnz > IMPLICIT_LIMIT
    if needed[form] > free:
        fitting = [
            f"diffusion_form={name} ({in_words(needed[name])})"
            for name in FORMS
            if needed[name] <= free and not (name == "implicit" and is_slow)
        ]
        remedy = " or ".join(fitting) or _SMALLER.get(form, _SMALLER["sketch"])
        raise HPGMNError(
            f"The {form} form of diffusion would take {size} for {num_nodes:,} nodes, and "
            f"{in_words(free)} are free. Set {remedy}, or leave diffusion out of statistics."
        )
    if form == "implicit" and is_slow:
        logger.warning("The implicit form is slow on this graph; diffusion_form=sketch is not.")
    return form


def form_bytes(form: str, matrix: sp.csr_array, settings: StatisticsSettings) -> int:
    """About the most memory that a form holds at once beside T.

    Args:
        form: one of :data:`FORMS`.
        matrix: T, (N, N).
        settings: how many entries or columns.
    """
    num_nodes = int(matrix.shape[0])
    block = 8 * 4 * _COLUMNS * num_nodes  # a step of the series on the host, and squares of it
    if form == "dense":
        # The columns that edges lead to; for PPR beside the square among them that is inverted.
        inner = int(led_to(matrix).size)
        square = inner**2 if settings.diffusion == "ppr" else 0
        return 4 * (inner * num_nodes + square) + block
    if form == "implicit":  # the transpose, and what a product needs
        return 8 * int(matrix.nnz) + block
    if form == "topk":  # the entries as found, as kept and transposed, and work arrays
        entries = num_nodes * min(settings.diffusion_topk, num_nodes)
        own = worker_bytes(num_nodes, settings.diffusion)
        return 3 * 8 * entries + torch.get_num_threads() * own
    # The result and a step of the series; about 256 bytes a node to hash its name into signs; what
    # torch's products keep of T.
    return 4 * num_nodes * (settings.diffusion_dim + 3 * BLOCK + 64) + 16 * int(matrix.nnz)


def in_words(size: float) -> str:
    """A number of bytes as people say it.

    >>> in_words(3 * 2**29)
    '1.5 GiB'
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def free_bytes(device: torch.device) -> float:
    """The memory that is free: of this machine, its container and, where it is one, the GPU.

    Infinite where nobody says, so that nothing is refused for lack of knowledge.
    """
    found = [_available(), *(_container(*files) for files in _CONTAINERS)]
    if device.type == "cuda":
        found.append(torch.cuda.mem_get_info(device)[0])
    return min(found)


_MEMORY = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
# Limit, use and statistics of a container's control group, version 2 and 1.
_CONTAINERS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


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
