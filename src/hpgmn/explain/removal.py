"""The statistics of one node without some of its neighbours.

All edges between the node and a removed neighbour are removed, in both directions; pseudo-labels
and the statistics of other nodes stay. Class counts, class means, adjacency and neighbour means
equal a full recomputation; a diffusion row is recomputed on the graph without the edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpgmn.base.randomness import signs
from hpgmn.base.sparse import SparseMatrix, inverse_or_zero, scale_attributes, transition
from hpgmn.explain.replicas import ReplicaView
from hpgmn.graph import Array
from hpgmn.graph.edges import sorted_csr
from hpgmn.statistics import Statistic, averaged_statistic, base_name
from hpgmn.statistics.labelwise import FactoredMeans, class_counts, class_means, scale_counts
from hpgmn.statistics.operators import DenseRows, NeighborMean, ReplicaRows, SparseRows
from hpgmn.statistics.settings import StatisticsSettings

Shared = dict[tuple[str, Any], Statistic]
"""Diffusion rows by statistic and settings, which replicas share."""

_EXACT = 1e-9  # truncation error of the series that replaces an inverse


def statistics_without(
    replica: ReplicaView,
    node: int,
    removed: Sequence[Array],
    *,
    keep_diffusion: bool = False,
    shared: Shared | None = None,
) -> dict[str, Statistic]:
    """Return for each statistic B rows, row b without the neighbours ``removed[b]``.

    Args:
        replica: of HP-GMN on local statistics.
        removed: B sets of positions.
        keep_diffusion: whether the node's diffusion row stays as it is.
        shared: rows computed for other replicas with the same node and sets; extended here.
    """
    index = torch.full((1, len(removed)), node, device=replica.task.device)
    shared = {} if shared is None else shared
    statistics: dict[str, Statistic] = {}
    for name in replica.module.names:
        is_diffusion = base_name(name) == "diffusion"
        if name not in replica.modes or (is_diffusion and keep_diffusion):
            statistics[name] = replica.stage.inputs[name].some(index)
        elif is_diffusion:
            key = name, replica.task.settings[0]
            if key not in shared:
                shared[key] = _diffusion(replica, name, node, removed)
            statistics[name] = shared[key]
        else:
            statistics[name] = _of_neighbors(replica, name, node, removed)
    return statistics


def _of_neighbors(
    replica: ReplicaView, name: str, node: int, removed: Sequence[Array]
) -> Statistic:
    settings, device = replica.task.settings[0], replica.task.device
    near, kept = kept_neighbors(replica, replica.modes[name], node, removed)
    base, whole = base_name(name), replica.stage.inputs[name]
    if averaged_statistic(base) is not None:
        there = torch.from_numpy(near.astype(np.int64))[None].to(device)
        inner = whole.statistic.some(there)
        return NeighborMean(inner, SparseMatrix(transition(kept, "row"), device))
    if base == "class_counts":
        labels = replica.labels if replica.shares is None else replica.shares
        shares = labels[near] if labels.ndim == 1 else labels[near][None]
        counts = class_counts_of_rows(kept, shares, replica.task.num_classes)
        scaled = scale_counts(counts, settings.class_counts_scaling)
        return ReplicaRows(torch.from_numpy(scaled)[None].to(device))
    if base == "class_means":
        return _class_means(replica, whole, near, kept)
    rows = scale_attributes(kept, settings.adjacency_scaling)
    shape = (len(removed), replica.graph.num_nodes)
    placed = sp.csr_array((rows.data, near[rows.indices], rows.indptr), shape=shape)
    return replica.task.statistics.reindex(SparseRows(SparseMatrix(sorted_csr(placed), device)))


def kept_neighbors(
    replica: ReplicaView, mode: str, node: int, removed: Sequence[Array]
) -> tuple[Array, sp.csr_array]:
    """Return the n neighbours of a node, and (B, n) weights, 0 for removed ones.

    A node without neighbours gets one of weight zero, to avoid empty matrices.
    """
    adjacency = replica.task.statistics.adjacency(mode)
    row = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
    near, weights = adjacency.indices[row], adjacency.data[row]
    if near.size == 0:
        near, weights = np.zeros(1, adjacency.indices.dtype), np.zeros(1, np.float32)
    kept = np.stack([np.where(np.isin(near, gone), 0, weights) for gone in removed])
    return near, sorted_csr(sp.csr_array(kept.astype(np.float32)))


def class_counts_of_rows(kept: sp.csr_array, labels: Array, num_classes: int) -> Array:
    """Compute class counts of (B, n) rows; labels are (n,), or (1, n, C) class shares."""
    if labels.ndim == 1:
        return class_counts(kept, labels, num_classes)
    return np.asarray(kept @ labels[0], np.float32)


def _class_means(
    replica: ReplicaView, whole: Statistic, near: Array, kept: sp.csr_array
) -> Statistic:
    settings, classes = replica.task.settings[0], replica.task.num_classes
    device, labels = replica.task.device, replica.labels[near]
    x, unit_length = replica.graph.x[near], settings.class_means_scaling == "unit"
    if sp.issparse(x):
        x = sorted_csr(sp.csr_array(x))
    if whole.width != classes * replica.graph.num_features:
        from hpgmn.statistics.diffusion import sketch_attributes  # rarely used

        x = sketch_attributes(x, settings.class_means_dim)
    if isinstance(whole, ReplicaRows) and whole.matrices.dtype == torch.float16:
        rows = class_means(kept, x, labels, classes).toarray()
        if unit_length:
            rows *= inverse_or_zero(np.sqrt(np.square(rows).sum(axis=1)))[:, None]
        return ReplicaRows(torch.from_numpy(rows.astype(np.float16))[None].to(device))
    return FactoredMeans(kept, x, labels[None], classes, unit_length=unit_length, device=device)


def _diffusion(replica: ReplicaView, name: str, node: int, removed: Sequence[Array]) -> Statistic:
    settings, statistics = replica.task.settings[0], replica.task.statistics
    adjacency = statistics.adjacency(replica.modes[name])
    rows = [
        diffusion_row(replica, name, _remove_edges(adjacency, node, gone), node) for gone in removed
    ]
    matrix = np.stack(rows).astype(np.float32)
    if settings.diffusion_form == "sketch":
        return DenseRows(torch.from_numpy(_sketch(replica, matrix, node)).to(replica.task.device))
    if settings.diffusion_scaling == "unit":
        matrix *= inverse_or_zero(np.sqrt(np.square(matrix).sum(axis=1)))[:, None]
    return statistics.reindex(DenseRows(torch.from_numpy(matrix).to(replica.task.device)))


def _remove_edges(adjacency: sp.csr_array, node: int, gone: Array) -> sp.csr_array:
    """Return the adjacency without the edges between a node and some others."""
    matrix = adjacency.copy()
    row = slice(matrix.indptr[node], matrix.indptr[node + 1])
    matrix.data[row][np.isin(matrix.indices[row], gone)] = 0
    for other in gone:
        there = slice(matrix.indptr[other], matrix.indptr[other + 1])
        matrix.data[there][matrix.indices[there] == node] = 0
    matrix.eliminate_zeros()
    return matrix


def diffusion_row(replica: ReplicaView, name: str, adjacency: sp.csr_array, node: int) -> Array:
    """Return (N,) the unscaled diffusion row of a node on an adjacency."""
    from hpgmn.statistics.diffusion import DenseDiffusion, coefficients, series

    settings, whole = replica.task.settings[0], replica.stage.inputs[name]
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
    """Return (N,) the largest entries of the node's row, found as in training."""
    from hpgmn.statistics.push import largest_entries

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


def _sketch(replica: ReplicaView, rows: Array, node: int) -> Array:
    """Project rows into the columns of the sketch; see ``statistics.diffusion.sketch``."""
    from hpgmn.statistics.diffusion import node_keys

    settings = replica.task.settings[0]
    dim = settings.diffusion_dim
    omega = signs(node_keys(replica.graph), 0, dim).numpy()
    projected = rows @ omega
    if not settings.diffusion_self_entry:
        projected -= omega[node] * (projected @ omega[node])[:, None] / dim
        alone = np.delete(rows, node, axis=1).sum(axis=1) == 0
        projected[alone] = 0
    if settings.diffusion_scaling == "unit":
        scale = inverse_or_zero(np.sqrt(np.square(projected).sum(axis=1)))
        return np.asarray(projected * scale[:, None])
    return np.asarray(projected / np.float32(math.sqrt(dim)))
