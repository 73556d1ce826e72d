"""Which form of diffusion and of class means to take, and whether it fits into memory.

``diffusion_form=auto`` follows one rule:

1. *dense* where an N×N matrix takes at most :data:`DENSE_LIMIT_BYTES` and there is memory for it;
2. *sketch* where that limit is passed and N·E exceeds :data:`IMPLICIT_LIMIT`;
3. *implicit* in between.

``class_means_form=auto`` in batches, which read single rows:

1. *sketch* where neither rows of half precision nor sparse rows keep to :data:`ROWS_LIMIT_BYTES`;
2. *sparse* where the attributes are sparse and the rows then take less memory;
3. *half* otherwise.

Without batches it is *dense* up to :data:`MEANS_LIMIT_BYTES`, and *factored* beyond or where the
attributes are sparse.

Whether it is a sketch depends on the graph alone: a sketch has fewer columns than the other forms,
so that a run continued on a smaller machine, or a model that is used on another graph, would not
fit its own weights if free memory had a say.
"""

from __future__ import annotations

import dataclasses
import logging
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.machine import free_bytes
from hpgmn.base.text import format_bytes
from hpgmn.graph import Attributes, Graph
from hpgmn.statistics.diffusion import DENSE_LIMIT_BYTES, led_to
from hpgmn.statistics.push import worker_bytes
from hpgmn.statistics.sketch import BLOCK

if TYPE_CHECKING:
    from hpgmn.statistics.settings import StatisticsSettings

logger = logging.getLogger(__name__)

IMPLICIT_LIMIT = 5 * 10**9
"""``auto`` takes the implicit form up to this N·E, E the stored edges: an exact row length or self
entry needs every column of S, N·E·terms multiplications, about five minutes at this limit."""

FORMS = ("dense", "implicit", "topk", "sketch")
"""Every form of diffusion but ``auto``."""

MEANS_FORMS = ("dense", "half", "sparse", "sketch", "factored")
"""Every form of class means but ``auto``."""

MEANS_LIMIT_BYTES = 512 * 2**20
"""``auto`` without batches takes dense class means up to this size, if the attributes are dense."""

HALF_LIMIT = 65504
"""The largest number of half precision."""

MEANS_GPU_SHARE = 0.2
"""On a GPU it takes them up to this share of the free memory, where that is more."""

ROWS_LIMIT_BYTES = 2 * 2**30
"""``auto`` in batches stores class means as they are up to this size, for one replica and one
direction of edges; both directions then leave room for training within 8 GiB."""

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


def means_are_sketched(graph: Graph, settings: StatisticsSettings) -> bool:
    """Whether class means are a sketch on that graph, by the settings or by the rule of ``auto``.

    Replicas may read different neighbours, so the rule looks at edges in both directions.
    """
    if settings.class_means_form != "auto":
        return settings.class_means_form == "sketch"
    width = graph.num_classes * graph.num_features
    half = 2 * graph.num_nodes * width
    in_batches = getattr(settings, "batch_size", 0) > 0
    is_shorter = settings.class_means_dim < graph.num_features
    if not (in_batches and is_shorter and half > ROWS_LIMIT_BYTES):
        return False
    if not graph.has_sparse_attributes:
        return True
    adjacency = graph.adjacency("out")
    most = max(mean_entries(edges, graph.x, width) for edges in (adjacency, adjacency.T))
    return 8 * most > ROWS_LIMIT_BYTES


def settled(graph: Graph, settings: Any) -> Any:
    """Settings that name the sketches that ``auto`` took on the graph of the training.

    A trained model keeps these, so that ``auto`` on another graph may still choose among the
    forms of the same columns, but never change the number of columns.
    """
    used = getattr(settings, "statistics", ())
    named = {}
    if "diffusion" in used and is_sketched(graph, settings):
        named["diffusion_form"] = "sketch"
    if {"class_means", "neighbor_class_means"} & set(used) and means_are_sketched(graph, settings):
        named["class_means_form"] = "sketch"
    if all(getattr(settings, key) == value for key, value in named.items()):
        return settings
    return dataclasses.replace(settings, **named)


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
        form, because = "dense", f"a matrix takes at most {format_bytes(DENSE_LIMIT_BYTES)}"
        if sketched:
            form, because = "sketch", f"nodes times edges exceed {IMPLICIT_LIMIT:,}"
        elif num_nodes**2 * 4 > DENSE_LIMIT_BYTES:
            form, because = "implicit", f"a matrix takes {format_bytes(num_nodes**2 * 4)}"
        elif needed["dense"] > free:
            form, because = "implicit", f"a matrix does not fit into {format_bytes(free)}"
    size = format_bytes(needed[form])
    logger.info("Diffusion of %s nodes: %s form, %s; %s.", f"{num_nodes:,}", form, size, because)
    is_slow = num_nodes * matrix.nnz > IMPLICIT_LIMIT
    if needed[form] > free:
        fitting = [
            f"diffusion_form={name} ({format_bytes(needed[name])})"
            for name in FORMS
            if needed[name] <= free and not (name == "implicit" and is_slow)
        ]
        remedy = " or ".join(fitting) or _SMALLER.get(form, _SMALLER["sketch"])
        raise HPGMNError(
            f"The {form} form of diffusion would take {size} for {num_nodes:,} nodes, and "
            f"{format_bytes(free)} are free. Set {remedy}, or leave diffusion out of statistics."
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


def mean_entries(adjacency: Any, x: Attributes, width: int) -> int:
    """The most entries that class means of sparse attributes have, by the degrees alone.

    Args:
        adjacency: (N, N), row v lists the neighbours of v.
        x: (N, F) sparse.
        width: C·F, the most entries of a row.
    """
    pattern = copy(adjacency)
    pattern.data = np.ones_like(adjacency.data)  # weights do not make entries
    reached = pattern @ np.diff(x.indptr).astype(np.float32)
    return int(np.minimum(reached, width).sum(dtype=np.float64))


def chosen_means_form(
    adjacency: sp.csr_array,
    x: Attributes,
    replicas: int,
    num_classes: int,
    settings: StatisticsSettings,
    device: torch.device,
    *,
    sketched: bool,
) -> str:
    """The form of class means to build; one that does not fit is refused before work starts.

    Args:
        adjacency: (N, N), row v lists the neighbours of v.
        x: (N, F).
        replicas: R.
        num_classes: C.
        settings: the form, or ``auto``, and its parameters.
        device: where the statistic will live.
        sketched: whether ``auto`` means the sketch (:func:`means_are_sketched`).
    """
    num_nodes, free = adjacency.shape[0], free_bytes(device)
    in_batches = getattr(settings, "batch_size", 0) > 0
    names = ("half", "sparse", "sketch") if in_batches else ("dense", "factored", "sketch")
    needed = means_bytes(adjacency, x, replicas, num_classes, settings.class_means_dim)
    form, because = settings.class_means_form, "as set"
    if form == "auto" and sketched:
        form, because = "sketch", f"rows take more than {format_bytes(ROWS_LIMIT_BYTES)}"
    elif form == "auto" and in_batches:
        form, because = "half", "batches read single rows"
        width = num_classes * x.shape[1]
        if sp.issparse(x) and 8 * mean_entries(adjacency, x, width) < 2 * num_nodes * width:
            form, because = "sparse", "attributes are sparse"
    elif form == "auto":
        size = 4 * replicas * num_nodes * num_classes * x.shape[1]
        limit: float = MEANS_LIMIT_BYTES
        if device.type == "cuda":  # dense products are what it is best at
            limit = max(limit, MEANS_GPU_SHARE * free)
        form, because = "dense", f"rows take at most {format_bytes(limit)}"
        if sp.issparse(x):
            form, because = "factored", "attributes are sparse"
        elif size > limit:
            form, because = "factored", f"rows take {format_bytes(size)}"
    size_in_words = format_bytes(needed[form])
    logger.info(
        "Class means of %s nodes: %s form, %s; %s.", f"{num_nodes:,}", form, size_in_words, because
    )
    is_mapped = form in ("half", "sketch") and device.type != "cuda"  # rows may go into a file
    if needed[form] > free and not is_mapped:
        fitting = [
            f"class_means_form={name} ({format_bytes(needed[name])})"
            for name in names
            if needed[name] <= free
        ]
        remedy = " or ".join(fitting) or "class_means_form=sketch and a smaller class_means_dim"
        raise HPGMNError(
            f"The {form} form of class means would take {size_in_words} for {num_nodes:,} nodes, "
            f"and {format_bytes(free)} are free. Set {remedy}, or leave class_means out of "
            "statistics."
        )
    return form


def refuse_beyond_half(x: Attributes) -> None:
    """Refuse attributes whose means could exceed the largest number of half precision."""
    values = x.data if sp.issparse(x) else x
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    if largest > HALF_LIMIT:
        raise HPGMNError(
            f"Attributes as large as {largest:g} have class means beyond half precision (at most "
            f"{HALF_LIMIT:,}). Scale the attributes, or set class_means_scaling=unit."
        )


def means_bytes(
    adjacency: sp.csr_array, x: Attributes, replicas: int, num_classes: int, dim: int
) -> dict[str, int]:
    """About the most memory that each form of class means holds at once.

    Args:
        adjacency: (N, N), row v lists the neighbours of v.
        x: (N, F).
        replicas: R.
        num_classes: C.
        dim: the columns of a class in a sketch.
    """
    num_nodes, width = x.shape
    cells = num_nodes * num_classes * width
    edges = int(adjacency.nnz)
    stored = int(x.nnz) if sp.issparse(x) else num_nodes * width
    entries = mean_entries(adjacency, x, num_classes * width) if sp.issparse(x) else cells
    weights = 16 * edges  # the averaging matrix while it is made
    return {
        "dense": 4 * cells * (replicas + 2) + weights,
        "half": 2 * cells * replicas + weights,
        # Several replicas are joined: there are two copies for a moment.
        "sparse": 8 * (entries * (replicas if replicas == 1 else 2 * replicas) + stored) + weights,
        "sketch": num_nodes * dim * (2 * num_classes * replicas + 4) + weights,
        "factored": 32 * replicas * (edges + stored),  # matrices, their blocks and transposes
    }
