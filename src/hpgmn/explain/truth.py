"""Whether explanations are true: the named neighbours against as many random ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpgmn.explain.neighbors import neighbor_support, neighbors_of, probabilities_without
from hpgmn.explain.opened import Opened, mean_probabilities
from hpgmn.graph import Array


@dataclass(frozen=True, eq=False)
class RemovalEffects:
    """How far the predicted class's probability falls when neighbours are removed.

    Attributes:
        nodes: (n,) by position.
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
        """Of the difference, over nodes."""
        apart = self.named - self.drawn
        return float(apart.std(ddof=1) / math.sqrt(apart.size))


def removal_effects(
    opened: Sequence[Opened],
    *,
    count: int = 200,
    least: int = 3,
    most: int = 3,
    seed: int = 0,
) -> RemovalEffects:
    """Remove named and random neighbours of nodes drawn at random.

    Args:
        opened: the replicas of a model.
        count: at most so many nodes.
        least: only nodes with so many neighbours are drawn.
        most: at most so many neighbours are named; fewer where fewer support the class.
        seed: of both draws.
    """
    random = np.random.default_rng(seed)
    every = random.permutation(opened[0].graph.num_nodes)
    chances = mean_probabilities(list(opened))
    nodes, named, drawn = [], [], []
    for node in every.tolist():
        near = neighbors_of(opened, node)
        if near.size < least:
            continue
        label = int(chances[node].argmax())
        support = neighbor_support(opened, node, label, most=most)
        others = random.choice(near, support.removed, replace=False)
        whole, without = probabilities_without(opened, node, [np.empty(0, np.int64), others])[
            :, label
        ]
        nodes.append(node)
        named.append(whole - support.without[label])
        drawn.append(whole - without)
        if len(nodes) == count:
            break
    return RemovalEffects(np.array(nodes), np.array(named), np.array(drawn))
