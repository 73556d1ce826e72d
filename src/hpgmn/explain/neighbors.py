"""The effect of neighbours: the probability of a class with a neighbour minus that without it.

HP-GMN recomputes the node's statistics: all edges between the node and a removed neighbour are
removed, in both directions; pseudo-labels and the statistics of other nodes stay. Class counts,
class means, adjacency and neighbour means equal a full recomputation; a diffusion row is recomputed
on the graph without the edges, with more than :data:`EXACT_UP_TO` neighbours only for the
:data:`EXACT_FIRST` with the largest effect at a fixed row. Hops, message passing and other models
are run again on the graph without the edges, for up to :data:`RERUNS` neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.errors import HPGMNError
from hpgmn.base.randomness import signs
from hpgmn.base.sparse import SparseMatrix, inverse_or_zero, scale_attributes, transition
from hpgmn.explain.descriptions import NEIGHBORS_NOTE, RERUN_NOTE
from hpgmn.explain.replicas import (
    ReplicaView,
    mean_probabilities,
    predicted_labels,
    probabilities_of,
)
from hpgmn.graph import Array, Graph
from hpgmn.graph.edges import sorted_csr
from hpgmn.models.stage import logits
from hpgmn.statistics import Statistic, averaged_statistic, base_name
from hpgmn.statistics.labelwise import FactoredMeans, class_counts, class_means, scale_counts
from hpgmn.statistics.operators import DenseRows, NeighborMean, ReplicaRows, SparseRows
from hpgmn.statistics.targets import target_means

RERUNS = 50
"""Most neighbours for which a whole graph is read again."""

EXACT_UP_TO = 64
"""With diffusion, up to this number of neighbours all effects are exact."""

EXACT_FIRST = 32
"""With diffusion and more neighbours, the number of exact effects: those that seem largest."""

_MOST_REMOVED = 64  # neighbours removed to see whether the class changes
_SETS = 8  # of them evaluated at once
_ENTRIES = 2**20  # neighbours times sets held at once
_NUMBERS = 2**24  # numbers of dense rows held at once
_EXACT = 1e-9  # truncation error of the series that replaces an inverse


@dataclass(frozen=True, eq=False)
class Support:
    """The effect of each neighbour of a node on the probability of a class.

    Attributes:
        neighbors: (n,) positions, the strongest support first.
        support: (n,) the probability with the neighbour minus that without it.
        removed: how many of the first are removed together in ``without``.
        without: (C,) probabilities without these.
        approximate: for how many the node's diffusion row was kept.
        left_out: neighbours that were not evaluated.
    """

    neighbors: Array
    support: Array
    removed: int
    without: Array
    approximate: int
    left_out: int


def neighbors_of(replicas: Sequence[ReplicaView], node: int) -> Array:
    """Return the positions of the neighbours of a node that the model reads."""
    parts: list[Array] = []
    for replica in replicas:
        for mode in replica.neighbor_modes:
            adjacency = replica.task.statistics.adjacency(mode)
            parts.append(adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]])
    return np.unique(np.concatenate(parts)).astype(np.int64)


def has_diffusion(replica: ReplicaView) -> bool:
    """Whether the model reads a diffusion."""
    return any(base_name(name) == "diffusion" for name in replica.modes)


def reads_whole_graph(replica: ReplicaView) -> bool:
    """Whether each removal of a neighbour is a pass over the whole graph."""
    names = {base_name(name) for name in replica.modes}
    return not replica.reads_statistics or not names.isdisjoint({"hops", "message_passing"})


def neighbor_support(
    replicas: Sequence[ReplicaView], node: int, label: int, *, most: int = 5
) -> Support:
    """Compute how much each neighbour supports a class.

    Args:
        replicas: their probabilities are averaged.
        most: how many neighbours are removed together, those with the strongest support.
    """

    def effects(neighbors: Array, *, keep_diffusion: bool = False) -> Array:
        sets = [np.empty(0, np.int64), *neighbors[:, None]]
        values = probabilities_without(replicas, node, sets, keep_diffusion=keep_diffusion)
        return np.asarray(values[0, label] - values[1:, label])

    near, left_out, approximate = neighbors_of(replicas, node), 0, 0
    if reads_whole_graph(replicas[0]):
        left_out = max(0, near.size - RERUNS)
        near = near[:RERUNS]
    if near.size > EXACT_UP_TO and has_diffusion(replicas[0]):
        approximate = near.size - EXACT_FIRST
        support = effects(near, keep_diffusion=True)
        order = np.argsort(-support, kind="stable")
        near, support = near[order], support[order]
        support[:EXACT_FIRST] = effects(near[:EXACT_FIRST])
    else:
        support = effects(near)
    order = np.argsort(-support, kind="stable")
    near, support = near[order], support[order]
    removed = min(most, int((support > 0).sum()))
    without = probabilities_without(replicas, node, [near[:removed]])[0]
    return Support(near, support, removed, without, approximate, left_out)


def turning_point(
    replicas: Sequence[ReplicaView], node: int, label: int, support: Support
) -> tuple[Array, Array] | None:
    """Return the first neighbours without which another class wins, and (C,) probabilities then.

    Neighbours are removed in the order of their support; None if the class stays without all that
    support it, or without as many as are evaluated.
    """
    most = min(int((support.support > 0).sum()), _MOST_REMOVED)
    if reads_whole_graph(replicas[0]):
        most = support.removed  # each set is a whole pass over the graph
    for first in range(1, most + 1, _SETS):
        sets = [support.neighbors[:k] for k in range(first, min(first + _SETS, most + 1))]
        probabilities = probabilities_without(replicas, node, sets)
        turned = np.flatnonzero(predicted_labels(replicas, probabilities) != label)
        if turned.size:
            return sets[turned[0]], probabilities[turned[0]]
    return None


def probabilities_without(
    replicas: Sequence[ReplicaView],
    node: int,
    removed: Sequence[Array],
    *,
    keep_diffusion: bool = False,
) -> Array:
    """Return (B, C) probabilities of a node without sets of its neighbours, mean of the replicas.

    Args:
        removed: B sets of positions.
        keep_diffusion: whether the node's diffusion row stays as it is, to save time.
    """
    if replicas[0].reads_statistics:
        outputs = _from_statistics(replicas, node, removed, keep_diffusion)
    else:
        outputs = torch.stack(
            [torch.stack([_rerun(replica, node, gone) for gone in removed]) for replica in replicas]
        )
    return probabilities_of(replicas, outputs)


def _from_statistics(
    replicas: Sequence[ReplicaView], node: int, removed: Sequence[Array], keep_diffusion: bool
) -> Tensor:
    """Return (R, B, C) logits."""
    degree = max(neighbors_of(replicas, node).size, 1)
    widest = max(
        replica.stage.inputs[name].width for replica in replicas for name in replica.module.names
    )
    size = max(1, min(_ENTRIES // degree, _NUMBERS // widest))
    parts = []
    for first in range(0, len(removed), size):
        sets, outputs = removed[first : first + size], []
        shared: dict[Any, Statistic] = {}
        for replica in replicas:
            inputs = statistics_without(
                replica, node, sets, keep_diffusion=keep_diffusion, shared=shared
            )
            with torch.no_grad():
                outputs.append(replica.values(replica.module(inputs).logits[0]))
        parts.append(torch.stack(outputs))
    return torch.cat(parts, dim=1)


def _rerun(replica: ReplicaView, node: int, gone: Array) -> Tensor:
    """Return (C,) logits of the node on the graph without the edges."""
    statistics = replica.task.statistics.on(graph_without(replica.graph, node, gone))
    task = replace(replica.task, statistics=statistics)
    return logits(task, replica.entry, replica.parameters, torch.tensor([node]))[0, 0]


def graph_without(graph: Graph, node: int, gone: Array) -> Graph:
    """Return the graph without the edges between a node and some others, in both directions."""
    source, target = graph.edge_index
    between = (source == node) & np.isin(target, gone)
    between |= (target == node) & np.isin(source, gone)
    return Graph(
        graph.x,
        graph.edge_index[:, ~between],
        graph.y,
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[~between],
        edge_type=None if graph.edge_type is None else graph.edge_type[~between],
        edge_type_names=graph.edge_type_names,
        directed=graph.directed,
        node_ids=graph.node_ids,
        class_names=graph.class_names,
        name=graph.name,
    )


@dataclass(frozen=True, eq=False)
class RemovalEffects:
    """How far the predicted class's probability falls when neighbours are removed.

    Attributes:
        nodes: (n,) positions.
        named: (n,) the fall without the neighbours that an explanation names.
        drawn: (n,) the fall without as many drawn at random.
    """

    nodes: Array
    named: Array
    drawn: Array

    @property
    def difference(self) -> float:
        """Mean of named minus drawn."""
        return float((self.named - self.drawn).mean())

    @property
    def standard_error(self) -> float:
        """Standard error of the difference, over nodes."""
        difference = self.named - self.drawn
        return float(difference.std(ddof=1) / math.sqrt(difference.size))


def removal_effects(
    replicas: Sequence[ReplicaView],
    *,
    count: int = 200,
    least: int = 3,
    most: int = 3,
    seed: int = 0,
) -> RemovalEffects:
    """Validate explanations: remove named and random neighbours of nodes drawn at random.

    Args:
        count: the most nodes that are drawn.
        least: the fewest neighbours of a drawn node.
        most: the most neighbours that are named; fewer if fewer support the class.
        seed: of both draws.
    """
    random = np.random.default_rng(seed)
    probabilities = mean_probabilities(replicas)
    nodes, named, drawn = [], [], []
    for node in random.permutation(replicas[0].graph.num_nodes).tolist():
        near = neighbors_of(replicas, node)
        if near.size < least:
            continue
        label = int(predicted_labels(replicas, probabilities[[node]])[0])
        support = neighbor_support(replicas, node, label, most=most)
        others = random.choice(near, support.removed, replace=False)
        sets = [np.empty(0, np.int64), others]
        whole, without = probabilities_without(replicas, node, sets)[:, label]
        nodes.append(node)
        named.append(whole - support.without[label])
        drawn.append(whole - without)
        if len(nodes) == count:
            break
    return RemovalEffects(np.array(nodes), np.array(named), np.array(drawn))


def node_notes(replicas: Sequence[ReplicaView], support: Support) -> list[str]:
    """Note how the effects of neighbours were computed."""
    how = NEIGHBORS_NOTE if replicas[0].reads_statistics else RERUN_NOTE
    notes = [how] if support.neighbors.size else ["The node has no neighbours."]
    if replicas[0].reads_statistics and not replicas[0].modes:
        notes = ["The model reads attributes only: neighbours have no effect."]
    if support.approximate:
        notes.append(
            f"Points are exact for the {EXACT_FIRST} neighbours with the largest effect; for the "
            "others the node's diffusion row is kept."
        )
    if support.left_out:
        notes.append(
            f"{support.left_out} more neighbours were not evaluated: {replicas[0].entry.name} has "
            "to be run again for each."
        )
    return notes


# Statistics of one node without neighbours


def statistics_without(
    replica: ReplicaView,
    node: int,
    removed: Sequence[Array],
    *,
    keep_diffusion: bool = False,
    shared: dict[Any, Statistic] | None = None,
) -> dict[str, Statistic | Tensor]:
    """Return for each statistic of HP-GMN B rows, row b without the neighbours ``removed[b]``.

    Of message passing the encodings are returned, (1, B, D).

    Args:
        removed: B sets of positions.
        keep_diffusion: whether the node's diffusion row stays as it is.
        shared: diffusion rows of other replicas, same node and sets; extended here.
    """
    index = torch.full((1, len(removed)), node, device=replica.task.device)
    shared = {} if shared is None else shared
    statistics: dict[str, Statistic | Tensor] = {}
    for name in replica.module.names:
        is_diffusion = base_name(name) == "diffusion"
        if name not in replica.modes or (is_diffusion and keep_diffusion):
            statistics[name] = replica.stage.inputs[name].some(index)
        elif is_diffusion:
            key = name, replica.task.settings[0]
            if key not in shared:
                shared[key] = _diffusion(replica, name, node, removed)
            statistics[name] = shared[key]
        elif base_name(name) == "hops":
            statistics[name] = _hops(replica, name, node, removed)
        elif base_name(name) == "message_passing":
            statistics[name] = _messages(replica, name, node, removed)
        else:
            statistics[name] = _of_neighbors(replica, name, node, removed)
    return statistics


def _of_neighbors(
    replica: ReplicaView, name: str, node: int, removed: Sequence[Array]
) -> Statistic:
    """Return B rows of a statistic of the neighbours, from (B, n) weights, 0 for removed ones."""
    settings, device = replica.task.settings[0], replica.task.device
    adjacency = replica.task.statistics.adjacency(replica.modes[name])
    row = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
    near, weights = adjacency.indices[row], adjacency.data[row]
    if near.size == 0:  # a neighbour of weight zero avoids empty matrices
        near, weights = np.zeros(1, adjacency.indices.dtype), np.zeros(1, np.float32)
    dense = np.stack([np.where(np.isin(near, gone), 0, weights) for gone in removed])
    kept = sorted_csr(sp.csr_array(dense.astype(np.float32)))
    base, whole = base_name(name), replica.stage.inputs[name]
    if averaged_statistic(base) is not None:
        there = torch.from_numpy(near.astype(np.int64))[None].to(device)
        inner = whole.statistic.some(there)
        return NeighborMean(inner, SparseMatrix(transition(kept, "row"), device))
    if base == "class_counts":
        counts = class_counts(kept, replica.labels[near], replica.task.num_groups)
        if replica.shares is not None and not replica.is_regression:
            counts = np.asarray(kept @ replica.shares[near], np.float32)
        scaled = scale_counts(counts, settings.class_counts_scaling)
        return ReplicaRows(torch.from_numpy(scaled)[None].to(device))
    if base == "target_means":
        means = target_means(kept, np.asarray(replica.shares)[None, near])
        return ReplicaRows(torch.from_numpy(means).to(device))
    if base == "class_means":
        return _class_means(replica, whole, near, kept)
    if base == "adjacency":
        rows = scale_attributes(kept, settings.adjacency_scaling)
        shape = (len(removed), replica.graph.num_nodes)
        placed = sp.csr_array((rows.data, near[rows.indices], rows.indptr), shape=shape)
        return replica.task.statistics.reindex(SparseRows(SparseMatrix(sorted_csr(placed), device)))
    raise HPGMNError(
        f"The statistic '{base}' cannot be recomputed without some neighbours.",
        "Handle it in hpgmn.explain.neighbors, or explain a model without it",
    )


def _hops(replica: ReplicaView, name: str, node: int, removed: Sequence[Array]) -> Statistic:
    from hpgmn.statistics.hops import hop_attributes, hop_row

    settings = replica.task.settings[0]
    adjacency = replica.task.statistics.adjacency(replica.modes[name])
    x = hop_attributes(replica.graph.x, settings)
    rows = [
        hop_row(_remove_edges(adjacency, node, gone), x, node, settings.hops) for gone in removed
    ]
    return DenseRows(torch.from_numpy(np.stack(rows)).to(replica.task.device))


def _messages(replica: ReplicaView, name: str, node: int, removed: Sequence[Array]) -> Tensor:
    """Return (1, B, D) encodings of the node, from passes over the graph without the edges."""
    index = torch.full((1, 1), node, device=replica.task.device)
    parts = []
    for gone in removed:
        statistics = replica.task.statistics.on(graph_without(replica.graph, node, gone))
        links = statistics.linked_attributes(replica.modes[name], replica.task.settings[0])
        with torch.no_grad():
            parts.append(replica.module.encoding(name, links, None, index))
    return torch.cat(parts, dim=1)


def _class_means(
    replica: ReplicaView, whole: Statistic, near: Array, kept: sp.csr_array
) -> Statistic:
    settings, classes = replica.task.settings[0], replica.task.num_groups
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
            rows *= _inverse_lengths(rows)
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
        matrix *= _inverse_lengths(matrix)
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
    from hpgmn.statistics.diffusion import DenseDiffusion, coefficients_of_others, series

    settings, whole = replica.task.settings[0], replica.stage.inputs[name]
    matrix = transition(adjacency, settings.normalization, settings.diffusion_self_loop)
    if settings.diffusion_form == "topk":
        from hpgmn.statistics.push import largest_entries

        entries = largest_entries(matrix, settings, threads=1, nodes=np.array([node]))
        row = np.zeros(matrix.shape[0])
        row[entries.indices] = entries.data
        return row
    inner = getattr(whole, "statistic", whole)
    inverted = settings.diffusion == "ppr" and isinstance(inner, DenseDiffusion)
    if inverted:
        settings = replace(settings, diffusion_tolerance=_EXACT)
    theta = coefficients_of_others(settings)
    start = np.zeros(matrix.shape[0])
    start[node] = 1
    row = np.asarray(series(matrix.astype(np.float64).T, start, theta))
    if not settings.diffusion_self_entry and settings.diffusion_form != "sketch":
        row[node] = 0
    return row


def _inverse_lengths(rows: Array) -> Array:
    """Return (B, 1) the inverse length of each row, 0 for rows of zeros."""
    return inverse_or_zero(np.sqrt(np.square(rows).sum(axis=1)))[:, None]


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
        return np.asarray(projected * _inverse_lengths(projected))
    return np.asarray(projected / np.float32(math.sqrt(dim)))
