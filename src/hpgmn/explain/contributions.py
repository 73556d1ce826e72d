"""What a prediction rests on: the statistics' Shapley values and the patterns of the memory.

The value of a subset of statistics is the log-probability of the predicted class with the others
replaced by the mean encoding of the train nodes. A pattern is described by its nodes, weighted by
their attention above the average node's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hpgmn.explain.explanation import Pattern
from hpgmn.explain.replicas import ReplicaView, mean_log_probabilities
from hpgmn.graph import Array, Graph
from hpgmn.statistics import base_name
from hpgmn.statistics.labelwise import class_counts, one_hot

REDUNDANT_FROM = 0.95
"""Patterns are redundant if the attention of every two correlates at least this much over nodes."""

UNUSED_BELOW = 0.1
"""A pattern is unused if its mean attention is below this part of an even share, 1/K."""

_ROUNDING = 1e-5  # attention that varies by less than this part of its mean is constant


def shapley_values(values: Array) -> Array:
    """Compute exact Shapley values from the value of every subset.

    Args:
        values: (2^S,) at index ``b`` that of the subset of players whose bits are set in ``b``.

    Returns:
        (S,) values that add up to ``values[-1] - values[0]``.

    >>> shapley_values(np.array([0.0, 1.0, 3.0, 4.0]))
    array([1., 3.])
    """
    count = int(values.shape[0]).bit_length() - 1
    subsets = np.arange(values.shape[0])
    size = sum((subsets >> player) & 1 for player in range(count))
    weight = np.array(
        [math.factorial(k) * math.factorial(count - 1 - k) for k in range(count)]
    ) / math.factorial(count)
    shares = np.zeros(count)
    for player in range(count):
        before = subsets[(subsets >> player) & 1 == 0]
        gain = values[before | (1 << player)] - values[before]
        shares[player] = (weight[np.asarray(size)[before]] * gain).sum()
    return shares


def players(replica: ReplicaView) -> list[str]:
    """Return the statistics without directions: both directions are one player."""
    return list(dict.fromkeys(base_name(name) for name in replica.module.names))


def subset_values(replicas: Sequence[ReplicaView], nodes: Array, labels: Array) -> Array:
    """Return (n, 2^S) the log-probability of a class for every subset of statistics.

    Nodes are evaluated one by one, so that only one node's (R, 2^S, C) logits are held.

    Args:
        replicas: of HP-GMN on local statistics; their probabilities are averaged.
        nodes: (n,) positions.
        labels: (n,) the class of each node.
    """
    names = players(replicas[0])
    subsets = torch.arange(1 << len(names))
    present = torch.stack([(subsets >> player) & 1 for player in range(len(names))], dim=1).bool()
    encodings = [replica.encodings(nodes) for replica in replicas]
    masks = [_masks(replica, names, present) for replica in replicas]
    values = []
    for index, label in enumerate(labels.tolist()):
        logits = [
            _logits(replica, encoding[index], mask)
            for replica, encoding, mask in zip(replicas, encodings, masks, strict=True)
        ]
        # A copy: a view would keep the numbers of all classes.
        values.append(mean_log_probabilities(replicas, torch.stack(logits))[:, label].clone())
    return np.asarray(torch.stack(values).cpu().numpy(), np.float64)


def _masks(replica: ReplicaView, names: list[str], present: Tensor) -> Tensor:
    """Return (2^S, S·D) which components of an encoding are present in each subset."""
    columns = [names.index(base_name(name)) for name in replica.module.names]
    width = replica.baseline.shape[0] // len(columns)
    return present[:, columns].to(replica.task.device).repeat_interleave(width, dim=1)


def _logits(replica: ReplicaView, encoding: Tensor, mask: Tensor) -> Tensor:
    """Return (2^S, C) logits of one node."""
    with torch.no_grad():
        query = torch.where(mask, encoding, replica.baseline)
        return cast(Tensor, replica.module.head(query[None]).logits[0])


def statistic_shares(
    replicas: Sequence[ReplicaView], nodes: Array, labels: Array
) -> list[dict[str, float]]:
    """Return for each node the Shapley value of every statistic for a class."""
    names = players(replicas[0])
    return [
        dict(zip(names, shapley_values(values).tolist(), strict=True))
        for values in subset_values(replicas, nodes, labels)
    ]


@dataclass(frozen=True, eq=False)
class SampledShares:
    """The Shapley values of every statistic for a sample of nodes.

    Attributes:
        names: the S statistics.
        labels: (n,) the predicted class of each node.
        values: (n, S) Shapley values for that class.
    """

    names: tuple[str, ...]
    labels: Array
    values: Array

    def mean_sizes(self, label: int | None = None) -> dict[str, float]:
        """Return the mean absolute value of each statistic, the largest first.

        Args:
            label: over the nodes of this predicted class only.
        """
        chosen = self.values if label is None else self.values[self.labels == label]
        mean = dict(zip(self.names, np.abs(chosen).mean(axis=0).tolist(), strict=True))
        return dict(sorted(mean.items(), key=lambda pair: -pair[1]))


def sampled_shares(
    replicas: Sequence[ReplicaView], probabilities: Array, sample: int
) -> SampledShares:
    """Compute the shares of at most ``sample`` nodes, drawn with seed 0.

    Args:
        replicas: of HP-GMN on local statistics.
        probabilities: (N, C) of the prediction.
    """
    count = min(sample, probabilities.shape[0])
    nodes = np.random.default_rng(0).choice(probabilities.shape[0], count, replace=False)
    labels = probabilities[nodes].argmax(axis=1)
    shares = statistic_shares(replicas, nodes, labels)
    names = tuple(players(replicas[0]))
    values = np.array([[row[name] for name in names] for row in shares])
    return SampledShares(names, labels, values)


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
