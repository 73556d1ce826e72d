"""How much each statistic speaks for a decision: exact Shapley values.

A statistic is taken away by putting the mean encoding of the train nodes in the place of its own.
The value of a subset of statistics is the log-probability of the predicted class with the others
taken away; a statistic's share is the mean of what it adds over all orders in which statistics may
be put back. The shares add up to the difference between all statistics and none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hpgmn.explain.opened import Opened, mean_log_probabilities
from hpgmn.graph import Array
from hpgmn.statistics import base_name


def shapley_values(values: Array) -> Array:
    """Exact Shapley values from the value of every subset.

    Args:
        values: (2^S,) at place ``b`` that of the subset of players whose bits are set in ``b``.

    Returns:
        (S,) they add up to ``values[-1] - values[0]``.

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


def players(opened: Opened) -> list[str]:
    """The statistics without their directions: both directions are one player."""
    return list(dict.fromkeys(base_name(name) for name in opened.module.names))


def subset_values(opened: Sequence[Opened], nodes: Array, labels: Array) -> Array:
    """(n, 2^S) the log-probability of a class for every subset of statistics.

    Probabilities are averaged over the replicas first, as in prediction. Nodes are read one after
    the other, so that only one node's (R, 2^S, C) logits are held.

    Args:
        opened: the replicas of HP-GMN on local statistics.
        nodes: (n,) by position.
        labels: (n,) for each node the class.
    """
    names = players(opened[0])
    subsets = torch.arange(1 << len(names))
    present = torch.stack([(subsets >> place) & 1 for place in range(len(names))], dim=1).bool()
    encodings = [one.encodings(nodes) for one in opened]
    columns = [_columns(one, names, present) for one in opened]
    found = []
    for place, label in enumerate(labels.tolist()):
        logits = [
            _logits(one, own[place], chosen)
            for one, own, chosen in zip(opened, encodings, columns, strict=True)
        ]
        # A copy: a view would keep the numbers of all classes.
        found.append(mean_log_probabilities(opened, torch.stack(logits))[:, label].clone())
    return np.asarray(torch.stack(found).cpu().numpy(), np.float64)


def _columns(opened: Opened, names: list[str], present: Tensor) -> Tensor:
    """(2^S, S·D) which numbers of an encoding are there in every subset."""
    places = [names.index(base_name(name)) for name in opened.module.names]
    width = opened.baseline.shape[0] // len(places)
    return present[:, places].to(opened.task.device).repeat_interleave(width, dim=1)


def _logits(opened: Opened, encoding: Tensor, columns: Tensor) -> Tensor:
    """(2^S, C) of one node in one replica."""
    with torch.no_grad():
        query = torch.where(columns, encoding, opened.baseline)
        return cast(Tensor, opened.module.head(query[None]).logits[0])


def statistic_shares(
    opened: Sequence[Opened], nodes: Array, labels: Array
) -> list[dict[str, float]]:
    """For each node the Shapley value of every statistic for a class, by name."""
    names = players(opened[0])
    return [
        dict(zip(names, shapley_values(values).tolist(), strict=True))
        for values in subset_values(opened, nodes, labels)
    ]


@dataclass(frozen=True, eq=False)
class SampledShares:
    """The shares of every statistic in the decisions about a sample of nodes.

    Attributes:
        names: the S statistics.
        labels: (n,) the predicted class of each node.
        values: (n, S) Shapley values for that class.
    """

    names: tuple[str, ...]
    labels: Array
    values: Array

    def mean_sizes(self, label: int | None = None) -> dict[str, float]:
        """Mean absolute value of each statistic, the largest first.

        Args:
            label: over the nodes of this predicted class, of which there must be one; None for all.
        """
        chosen = self.values if label is None else self.values[self.labels == label]
        mean = dict(zip(self.names, np.abs(chosen).mean(axis=0).tolist(), strict=True))
        return dict(sorted(mean.items(), key=lambda pair: -pair[1]))


def sampled_shares(opened: Sequence[Opened], probabilities: Array, sample: int) -> SampledShares:
    """The shares of at most so many nodes, drawn with seed 0.

    Args:
        opened: the replicas of HP-GMN on local statistics.
        probabilities: (N, C) of the prediction.
        sample: how many nodes.
    """
    count = min(sample, probabilities.shape[0])
    nodes = np.random.default_rng(0).choice(probabilities.shape[0], count, replace=False)
    labels = probabilities[nodes].argmax(axis=1)
    every = statistic_shares(opened, nodes, labels)
    names = tuple(players(opened[0]))
    return SampledShares(names, labels, np.array([[own[name] for name in names] for own in every]))
