"""What each pattern of the memory stands for, told by the nodes that attend to it.

A pattern's class profile is the mean class of the nodes, weighted by their attention: train nodes
count with their label, all others with the probabilities of the prediction. Its typical
neighbourhood is the weighted mean of their class counts, as shares. Means are weighted by how much
more a node attends than the nodes do on average, because attention that all nodes pay alike says
nothing about a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from hpgmn.explain.opened import Opened
from hpgmn.graph import Array
from hpgmn.statistics.labelwise import class_counts, one_hot

REDUNDANT_FROM = 0.95
"""Patterns are redundant where the attention that nodes pay to every two correlates so much."""

UNUSED_BELOW = 0.1
"""A pattern is unused where its mean attention is below this part of an even share, 1/K."""

_ROUNDING = 1e-5  # attention that varies by less than this part of its mean is the same for all


@dataclass(frozen=True, eq=False)
class Patterns:
    """The memory's K patterns, described by N nodes.

    Attributes:
        attention: (N, K).
        usage: (K,) mean attention, which adds up to 1.
        profile: (K, C) the class of the nodes that attend to it.
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
        """Groups of used patterns that the same nodes attend to: in a group, every two of them.

        The correlation is that over nodes. Attention that all nodes pay alike has none.
        """
        centred = self.attention - self.usage
        spread = np.sqrt(np.square(centred).mean(axis=0))
        varies = spread > _ROUNDING * self.usage
        told = np.setdiff1d(np.flatnonzero(varies), self.unused)
        if told.size < 2:
            return []
        columns = centred[:, told] / spread[told]
        apart = np.maximum(1 - columns.T @ columns / columns.shape[0], 0)
        np.fill_diagonal(apart, 0)
        # Complete linkage: a group is as wide as its two members furthest apart.
        tree = linkage(squareform(apart, checks=False), method="complete")
        member = fcluster(tree, 1 - REDUNDANT_FROM, criterion="distance")
        groups = [told[member == number].tolist() for number in np.unique(member)]
        return sorted(group for group in groups if len(group) > 1)

    def typical_nodes(self, pattern: int, most: int = 3) -> Array:
        """The nodes that attend most to a pattern, by position."""
        return np.argsort(-self.attention[:, pattern], kind="stable")[:most]


def describe_patterns(opened: Opened, probabilities: Array) -> Patterns:
    """The patterns of one replica's memory.

    Args:
        opened: the replica, which has a memory.
        probabilities: (N, C) of the prediction.
    """
    assert opened.attention is not None
    attention = opened.attention.cpu().numpy().astype(np.float64)
    weight = np.maximum(attention - attention.mean(axis=0), 0)
    known, classes = opened.train_labels, probabilities.shape[1]
    believed = np.where(known[:, None] >= 0, one_hot(known, classes), probabilities)
    neighborhood = {}
    for mode in opened.neighbor_modes:
        adjacency = opened.task.statistics.adjacency(mode)
        counts = class_counts(adjacency, opened.labels, classes)
        neighborhood[mode] = _shares(weight.T @ counts)
    profile = _shares(weight.T @ believed)
    return Patterns(attention, attention.mean(axis=0), profile, neighborhood)


def _shares(totals: Array) -> Array:
    """Rows divided by their sums; a row of zeros stays so."""
    sums = totals.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(totals, sums, out=np.zeros_like(totals), where=sums > 0))
