"""The effect of neighbours: the probability of a class with a neighbour minus that without it.

HP-GMN recomputes the node's statistics without the neighbour (:mod:`hpgmn.explain.removal`); of
more than :data:`EXACT_UP_TO` neighbours the diffusion row is recomputed only for the
:data:`EXACT_FIRST` with the largest effect at a fixed row. Other models are run again on the graph
without the edges, for up to :data:`RERUNS` neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hpgmn.explain.removal import Shared, statistics_without
from hpgmn.explain.replicas import ReplicaView, mean_log_probabilities, mean_probabilities
from hpgmn.graph import Array, Graph
from hpgmn.models.stage import logits
from hpgmn.statistics import base_name

RERUNS = 50
"""Most neighbours for which a model without statistics is run again."""

EXACT_UP_TO = 64
"""With diffusion, the effects of so many neighbours are all exact."""

EXACT_FIRST = 32
"""With diffusion and more neighbours, so many effects are exact, those that seem largest."""

_MOST_REMOVED = 64  # neighbours removed to see whether the class changes
_SETS = 8  # of them evaluated at once
_ENTRIES = 2**20  # neighbours times sets held at once
_NUMBERS = 2**24  # numbers of dense rows held at once


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


def neighbor_support(
    replicas: Sequence[ReplicaView], node: int, label: int, *, most: int = 5
) -> Support:
    """Compute how much each neighbour supports a class.

    Args:
        replicas: their probabilities are averaged.
        most: so many neighbours are removed together, those with the strongest support.
    """
    near, left_out, approximate = neighbors_of(replicas, node), 0, 0
    if not replicas[0].reads_statistics:
        left_out = max(0, near.size - RERUNS)
        near = near[:RERUNS]
    if near.size > EXACT_UP_TO and has_diffusion(replicas[0]):
        approximate = near.size - EXACT_FIRST
        support = _support(replicas, node, label, near, keep_diffusion=True)
        near, support = _rank(near, support)
        support[:EXACT_FIRST] = _support(replicas, node, label, near[:EXACT_FIRST])
    else:
        support = _support(replicas, node, label, near)
    near, support = _rank(near, support)
    removed = min(most, int((support > 0).sum()))
    without = probabilities_without(replicas, node, [near[:removed]])[0]
    return Support(near, support, removed, without, approximate, left_out)


def _support(
    replicas: Sequence[ReplicaView],
    node: int,
    label: int,
    near: Array,
    *,
    keep_diffusion: bool = False,
) -> Array:
    sets = [np.empty(0, np.int64), *near[:, None]]
    values = probabilities_without(replicas, node, sets, keep_diffusion=keep_diffusion)[:, label]
    return np.asarray(values[0] - values[1:])


def _rank(near: Array, support: Array) -> tuple[Array, Array]:
    order = np.argsort(-support, kind="stable")
    return near[order], support[order]


def turning_point(
    replicas: Sequence[ReplicaView], node: int, label: int, support: Support
) -> tuple[Array, Array] | None:
    """Return the first neighbours without which another class wins, and (C,) probabilities then.

    Neighbours are removed in the order of their support; None if the class stays without all that
    support it, or without as many as are evaluated.
    """
    most = min(int((support.support > 0).sum()), _MOST_REMOVED)
    if not replicas[0].reads_statistics:
        most = support.removed  # each set is a whole pass over the graph
    for first in range(1, most + 1, _SETS):
        sets = [support.neighbors[:k] for k in range(first, min(first + _SETS, most + 1))]
        probabilities = probabilities_without(replicas, node, sets)
        turned = np.flatnonzero(probabilities.argmax(axis=1) != label)
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
    return np.asarray(mean_log_probabilities(replicas, outputs).exp().cpu().numpy())


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
        shared: Shared = {}
        outputs = []
        for replica in replicas:
            inputs = statistics_without(
                replica,
                node,
                removed[first : first + size],
                keep_diffusion=keep_diffusion,
                shared=shared,
            )
            with torch.no_grad():
                outputs.append(replica.module(inputs).logits[0])
        parts.append(torch.stack(outputs))
    return torch.cat(parts, dim=1)


def _rerun(replica: ReplicaView, node: int, gone: Array) -> Tensor:
    """Return (C,) logits of the node on the graph without the edges."""
    statistics = replica.task.statistics.on(graph_without(replica.graph, node, gone))
    task = replace(replica.task, statistics=statistics)
    return logits(task, replica.entry, replica.parameters)[0, node]


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
        count: at most so many nodes.
        least: only nodes with so many neighbours are drawn.
        most: at most so many neighbours are named, fewer if fewer support the class.
        seed: of both draws.
    """
    random = np.random.default_rng(seed)
    probabilities = mean_probabilities(replicas)
    nodes, named, drawn = [], [], []
    for node in random.permutation(replicas[0].graph.num_nodes).tolist():
        near = neighbors_of(replicas, node)
        if near.size < least:
            continue
        label = int(probabilities[node].argmax())
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
