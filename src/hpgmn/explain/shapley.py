"""The contribution of each statistic to a prediction: exact Shapley values.

A removed statistic is replaced by the mean encoding of the train nodes. The value of a subset is
the log-probability of the predicted class with the other statistics removed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hpgmn.explain.replicas import ReplicaView, mean_log_probabilities
from hpgmn.graph import Array
from hpgmn.statistics import base_name


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
