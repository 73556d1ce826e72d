"""The statistics of one node as they would be without some of its neighbours.

All edges between the node and a removed neighbour go, in both directions. Pseudo labels stay, and
so does every statistic but the node's own. Rows of class counts, class means, adjacency and means
over neighbours are those of a full recomputation, because no other node that they read changes; a
diffusion row is computed anew on the graph without the edges, of the top-k form by pushing as in
training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpgmn.base.randomness import signs
from hpgmn.base.sparse import SparseMatrix
from hpgmn.explain.opened import Opened
from hpgmn.graph import Array
from hpgmn.graph.edges import sorted_csr
from hpgmn.statistics import Statistic, averaged, base_name
from hpgmn.statistics.diffusion import DenseDiffusion, coefficients, series, transition
from hpgmn.statistics.labelwise import FactoredMeans, class_counts, class_means, scaled_counts
from hpgmn.statistics.operators import DenseRows, NeighborMean, ReplicaRows, SparseRows
from hpgmn.statistics.push import largest_entries
from hpgmn.statistics.scaling import inverse_or_zero, scaled_attributes
from hpgmn.statistics.settings import StatisticsSettings
from hpgmn.statistics.sketch import node_keys, sketched_attributes

Shared = dict[tuple[str, Any], Statistic]
"""Diffusion rows by statistic and settings: they are the same for all replicas of one graph."""

_EXACT = 1e-9  # what the series of an inverted diffusion may leave out


def statistics_without(
    opened: Opened,
    node: int,
    removed: Sequence[Array],
    *,
    keep_diffusion: bool = False,
    shared: Shared | None = None,
) -> dict[str, Statistic]:
    """The statistics that a node would have without some neighbours.

    Args:
        opened: HP-GMN on local statistics.
        node: v, by position.
        removed: B sets of neighbours, by position; an empty one changes nothing.
        keep_diffusion: whether the node's diffusion row stays as it is.
        shared: what was computed for other replicas, with the same node and sets; it is added to.

    Returns:
        For each statistic B rows, row b without the neighbours ``removed[b]``.
    """
    again = torch.full((1, len(removed)), node, device=opened.task.device)
    shared = {} if shared is None else shared
    found: dict[str, Statistic] = {}
    for name in opened.module.names:
        is_diffusion = base_name(name) == "diffusion"
        if name not in opened.modes or (is_diffusion and keep_diffusion):
            found[name] = opened.stage.inputs[name].some(again)
        elif is_diffusion:
            key = name, opened.task.settings[0]
            if key not in shared:
                shared[key] = _diffusion(opened, name, node, removed)
            found[name] = shared[key]
        else:
            found[name] = _of_neighbors(opened, name, node, removed)
    return found


def _of_neighbors(opened: Opened, name: str, node: int, removed: Sequence[Array]) -> Statistic:
    settings, device = opened.task.settings[0], opened.task.device
    near, kept = kept_neighbors(opened, opened.modes[name], node, removed)
    base, whole = base_name(name), opened.stage.inputs[name]
    if averaged(base) is not None:
        there = torch.from_numpy(near.astype(np.int64))[None].to(device)
        inner = whole.statistic.some(there)
        return NeighborMean(inner, SparseMatrix(transition(kept, "row"), device))
    if base == "class_counts":
        labels = opened.labels if opened.shares is None else opened.shares
        shares = labels[near] if labels.ndim == 1 else labels[near][None]
        counts = class_counts_of_rows(kept, shares, opened.task.num_classes)
        scaled = scaled_counts(counts, settings.class_counts_scaling)
        return ReplicaRows(torch.from_numpy(scaled)[None].to(device))
    if base == "class_means":
        return _class_means(opened, whole, near, kept)
    rows = scaled_attributes(kept, settings.adjacency_scaling)
    shape = (len(removed), opened.graph.num_nodes)
    placed = sp.csr_array((rows.data, near[rows.indices], rows.indptr), shape=shape)
    return opened.task.statistics.reindexed(SparseRows(SparseMatrix(sorted_csr(placed), device)))


def kept_neighbors(
    opened: Opened, mode: str, node: int, removed: Sequence[Array]
) -> tuple[Array, sp.csr_array]:
    """The neighbours of a node, n of them, and (B, n) the weights of those that are kept.

    A node without neighbours gets one of weight zero: no product wants an empty matrix.
    """
    adjacency = opened.task.statistics.adjacency(mode)
    row = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
    near, weights = adjacency.indices[row], adjacency.data[row]
    if near.size == 0:
        near, weights = np.zeros(1, adjacency.indices.dtype), np.zeros(1, np.float32)
    kept = np.stack([np.where(np.isin(near, gone), 0, weights) for gone in removed])
    return near, sorted_csr(sp.csr_array(kept.astype(np.float32)))


def class_counts_of_rows(kept: sp.csr_array, labels: Array, num_classes: int) -> Array:
    """Class counts of (B, n) rows: labels are (n,), or (1, n, C) shares of each class."""
    if labels.ndim == 1:
        return class_counts(kept, labels, num_classes)
    return np.asarray(kept @ labels[0], np.float32)


def _class_means(opened: Opened, whole: Statistic, near: Array, kept: sp.csr_array) -> Statistic:
    settings, classes = opened.task.settings[0], opened.task.num_classes
    device, labels = opened.task.device, opened.labels[near]
    x, unit_length = opened.graph.x[near], settings.class_means_scaling == "unit"
    if sp.issparse(x):
        x = sorted_csr(sp.csr_array(x))
    if whole.width != classes * opened.graph.num_features:
        x = sketched_attributes(x, settings.class_means_dim)
    if isinstance(whole, ReplicaRows) and whole.matrices.dtype == torch.float16:
        rows = class_means(kept, x, labels, classes).toarray()
        if unit_length:
            rows *= inverse_or_zero(np.sqrt(np.square(rows).sum(axis=1)))[:, None]
        return ReplicaRows(torch.from_numpy(rows.astype(np.float16))[None].to(device))
    return FactoredMeans(kept, x, labels[None], classes, unit_length=unit_length, device=device)


def _diffusion(opened: Opened, name: str, node: int, removed: Sequence[Array]) -> Statistic:
    settings, statistics = opened.task.settings[0], opened.task.statistics
    adjacency = statistics.adjacency(opened.modes[name])
    rows = [diffusion_row(opened, name, _cut(adjacency, node, gone), node) for gone in removed]
    found = np.stack(rows).astype(np.float32)
    if settings.diffusion_form == "sketch":
        return DenseRows(torch.from_numpy(_sketched(opened, found, node)).to(opened.task.device))
    if settings.diffusion_scaling == "unit":
        found *= inverse_or_zero(np.sqrt(np.square(found).sum(axis=1)))[:, None]
    return statistics.reindexed(DenseRows(torch.from_numpy(found).to(opened.task.device)))


def _cut(adjacency: sp.csr_array, node: int, gone: Array) -> sp.csr_array:
    """The adjacency without the edges between a node and some others."""
    matrix = adjacency.copy()
    own = slice(matrix.indptr[node], matrix.indptr[node + 1])
    matrix.data[own][np.isin(matrix.indices[own], gone)] = 0
    for other in gone:
        there = slice(matrix.indptr[other], matrix.indptr[other + 1])
        matrix.data[there][matrix.indices[there] == node] = 0
    matrix.eliminate_zeros()
    return matrix


def diffusion_row(opened: Opened, name: str, adjacency: sp.csr_array, node: int) -> Array:
    """(N,) row v of S on an adjacency, unscaled, its self entry as the settings want it."""
    settings, whole = opened.task.settings[0], opened.stage.inputs[name]
    matrix = transition(adjacency, settings.normalization, settings.diffusion_self_loop)
    if settings.diffusion_form == "topk":
        return _pushed_row(matrix, settings, node)
    inner = getattr(whole, "statistic", whole)
    inverted = settings.diffusion == "ppr" and isinstance(inner, DenseDiffusion)
    theta = coefficients(
        settings.diffusion,
        teleport=settings.teleport,
        heat_time=settings.heat_time,
        tolerance=_EXACT if inverted else settings.diffusion_tolerance,
    )
    if not settings.diffusion_self_entry:
        theta = np.append(0.0, theta[1:])
    start = np.zeros(matrix.shape[0])
    start[node] = 1
    row: Array = series(matrix.astype(np.float64).T, start, theta)
    if not settings.diffusion_self_entry and settings.diffusion_form != "sketch":
        row[node] = 0
    return row


def _pushed_row(matrix: sp.csr_array, settings: StatisticsSettings, node: int) -> Array:
    """(N,) the largest entries of row v, found as in training."""
    entries = largest_entries(
        matrix,
        settings.diffusion,
        count=settings.diffusion_topk,
        threshold=settings.diffusion_threshold,
        self_entry=settings.diffusion_self_entry,
        threads=1,
        nodes=np.array([node]),
        teleport=settings.teleport,
        heat_time=settings.heat_time,
        tolerance=settings.diffusion_tolerance,
    )
    row = np.zeros(matrix.shape[0])
    row[entries.indices] = entries.data
    return row


def _sketched(opened: Opened, rows: Array, node: int) -> Array:
    """Rows of S in the columns of the sketch; see :func:`hpgmn.statistics.sketch.sketch`."""
    settings = opened.task.settings[0]
    dim = settings.diffusion_dim
    omega = signs(node_keys(opened.graph), 0, dim).numpy()
    found = rows @ omega
    if not settings.diffusion_self_entry:
        found -= omega[node] * (found @ omega[node])[:, None] / dim
        alone = np.delete(rows, node, axis=1).sum(axis=1) == 0
        found[alone] = 0
    if settings.diffusion_scaling == "unit":
        return np.asarray(found * inverse_or_zero(np.sqrt(np.square(found).sum(axis=1)))[:, None])
    return np.asarray(found / np.float32(math.sqrt(dim)))
