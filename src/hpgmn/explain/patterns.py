"""What the patterns of the memory stand for, described by the nodes that attend to them.

Class profile and typical neighbourhood are means over nodes, weighted by how much more a node
attends than the average node: attention that all nodes pay alike does not distinguish a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpgmn.explain.explanation import Pattern
from hpgmn.explain.replicas import ReplicaView
from hpgmn.graph import Array, Graph
from hpgmn.statistics.labelwise import class_counts, one_hot

REDUNDANT_FROM = 0.95
"""Patterns are redundant if the attention of every two correlates at least this much over nodes."""

UNUSED_BELOW = 0.1
"""A pattern is unused if its mean attention is below this part of an even share, 1/K."""

_ROUNDING = 1e-5  # attention that varies by less than this part of its mean is constant


@dataclass(frozen=True, eq=False)
class Patterns:
    """The memory's K patterns, described by N nodes.

    Attributes:
        attention: (N, K).
        usage: (K,) mean attention, which adds up to 1.
        profile: (K, C) classes of the nodes that attend to it: train labels, else probabilities.
        neighborhood: for each neighbour mode (K, C) the classes of these nodes' neighbours.
    """

    attention: Array
    usage: Array
    profile: Array
    neighborhood: dict[str, Array]

    @property
    def unused(self) -> list[int]:
        """The patterns that hardly any node attends to."""
        return [int(k) for k in np.flatnonzero(self.usage < UNUSED_BELOW / self.usage.size)]

    def redundant(self) -> list[list[int]]:
        """Return groups of used patterns whose attention correlates pairwise over nodes."""
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import squareform

        centred = self.attention - self.usage
        spread = np.sqrt(np.square(centred).mean(axis=0))
        varies = spread > _ROUNDING * self.usage
        candidates = np.setdiff1d(np.flatnonzero(varies), self.unused)
        if candidates.size < 2:
            return []
        columns = centred[:, candidates] / spread[candidates]
        distance = np.maximum(1 - columns.T @ columns / columns.shape[0], 0)
        np.fill_diagonal(distance, 0)
        # Complete linkage: the width of a group is the distance of its two farthest members.
        tree = linkage(squareform(distance, checks=False), method="complete")
        member = fcluster(tree, 1 - REDUNDANT_FROM, criterion="distance")
        groups = [candidates[member == number].tolist() for number in np.unique(member)]
        return sorted(group for group in groups if len(group) > 1)

    def typical_nodes(self, pattern: int, most: int = 3) -> Array:
        """Return the positions of the nodes that attend most to a pattern."""
        return np.argsort(-self.attention[:, pattern], kind="stable")[:most]

    def explanation(
        self, graph: Graph, number: int, attention: float, names: tuple[str, ...]
    ) -> Pattern:
        """Return a pattern with the names of classes and nodes."""
        return Pattern(
            number=number,
            attention=attention,
            classes=by_class(names, self.profile[number]),
            neighborhood={
                mode: by_class(names, shares[number]) for mode, shares in self.neighborhood.items()
            },
            typical_nodes=tuple(node_id(graph, int(v)) for v in self.typical_nodes(number)),
        )


def describe_patterns(replica: ReplicaView, probabilities: Array) -> Patterns:
    """Describe the patterns of a replica with a memory.

    Args:
        probabilities: (N, C) of the prediction.
    """
    assert replica.attention is not None
    attention = replica.attention.cpu().numpy().astype(np.float64)
    weight = np.maximum(attention - attention.mean(axis=0), 0)
    known, classes = replica.train_labels, probabilities.shape[1]
    beliefs = np.where(known[:, None] >= 0, one_hot(known, classes), probabilities)
    neighborhood = {}
    for mode in replica.neighbor_modes:
        adjacency = replica.task.statistics.adjacency(mode)
        counts = class_counts(adjacency, replica.labels, classes)
        neighborhood[mode] = _row_shares(weight.T @ counts)
    profile = _row_shares(weight.T @ beliefs)
    return Patterns(attention, attention.mean(axis=0), profile, neighborhood)


def _row_shares(totals: Array) -> Array:
    """Divide rows by their sums; rows of zeros stay zero."""
    sums = totals.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(totals, sums, out=np.zeros_like(totals), where=sums > 0))


def node_id(graph: Graph, position: int) -> str:
    """Return the id of the node at a position."""
    return str(position if graph.node_ids is None else graph.node_ids[position])


def by_class(names: tuple[str, ...], values: Array) -> dict[str, float]:
    """Return a value for each class by its name."""
    return {name: float(value) for name, value in zip(names, values, strict=True)}
