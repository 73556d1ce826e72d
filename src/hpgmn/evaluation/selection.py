"""Weights of an ensemble's members, selected on validation nodes.

Greedy selection with replacement (Caruana and others, ICML 2004) overfits small validation sets. It
is repeated on random halves of the candidates and bootstrap samples of the nodes, and the weights
are averaged: 0.7 points more on nodes that selected nothing (docs/decisions/0029-ensembles.md).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from hpgmn.base.metrics import metric as metric_of
from hpgmn.graph import Array

ROUNDS, BAGS = 10, 20
"""Candidates added in one selection, with repetition, and the selections that are averaged."""
MOST_NODES = 2000
"""Nodes of a bootstrap sample, at most."""
DROPPED = 0.1
"""The smallest weights, up to this sum, are dropped: each costs a prediction."""
FAR_BEHIND = 2.0
"""A selection this many standard errors below the best one is left out of the average: its half of
the candidates lacked those that matter."""


def select_weights(
    log_probabilities: Tensor,
    labels: Array,
    metric: str,
    positive: int = 1,
    *,
    rounds: int = ROUNDS,
    bags: int = BAGS,
) -> Array:
    """Return the weights of candidates in an ensemble that averages log-probabilities.

    Args:
        log_probabilities: (K, V, C) of K candidates for V validation nodes.
        labels: (V,) their labels.
        positive: the positive class of the metric, see :func:`hpgmn.base.metrics.metric`.
        rounds: candidates added in one selection.
        bags: selections that are averaged; 0 for a single one on all candidates and nodes.

    Returns:
        (K,) weights that add up to one.
    """
    logs = log_softmax(log_probabilities.double(), dim=-1)
    truth, score = torch.from_numpy(np.asarray(labels)), _Score(metric, positive)
    count, nodes = logs.shape[:2]
    if not bags or count == 1 or not nodes:
        return _greedy(logs, truth, score, rounds)
    random, part_size = np.random.default_rng(0), max(-(-count // 2), min(count, 3))
    weights = np.zeros((bags, count))
    for bag in weights:
        chosen = np.sort(random.choice(count, part_size, replace=False))
        sample = torch.from_numpy(random.choice(nodes, min(nodes, MOST_NODES)))
        part = logs[torch.from_numpy(chosen)][:, sample]
        bag[chosen] = _greedy(part, truth[sample], score, rounds)
    mixed = torch.stack([torch.tensordot(torch.from_numpy(bag), logs, 1) for bag in weights])
    reached = score(mixed, truth).numpy()
    is_kept = reached >= reached.max() - FAR_BEHIND * _standard_error(reached.max(), labels, metric)
    return _without_smallest(weights[is_kept].mean(axis=0))


class _Score:
    """The metric of several predictions at once; lowest where it is undefined."""

    def __init__(self, metric: str, positive: int) -> None:
        self.function = metric_of(metric, positive)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Score logits (K, V, C) for labels (V,): (K,)."""
        truth = labels.expand(len(logits), -1)
        values = self.function(logits, truth, torch.ones_like(truth, dtype=torch.bool)).double()
        return torch.where(values.isnan(), -1.0, values)


def _greedy(logs: Tensor, labels: Tensor, score: _Score, rounds: int) -> Array:
    """Add the best candidate in each round, ties by log loss; return the best round's weights."""
    total, picked = torch.zeros_like(logs[0]), np.zeros(len(logs))
    best, weights = (-math.inf, -math.inf), picked
    every = torch.arange(len(labels))
    for size in range(1, rounds + 1):
        means = (total + logs) / size
        values = score(means, labels)
        tied = torch.nonzero(values == values.max()).flatten()
        likelihood = log_softmax(means[tied], dim=-1)[:, every, labels].mean(dim=1)
        first = int(likelihood.argmax())
        chosen = int(tied[first])
        picked[chosen] += 1
        total = total + logs[chosen]
        reached = (float(values[chosen]), float(likelihood[first]))
        if reached > best:
            best, weights = reached, picked / size
    return weights


def _standard_error(score: float, labels: Array, metric: str) -> float:
    """Estimate the standard error of a score, as that of a share of nodes (Laplace's rule).

    For metrics other than accuracy, these are the nodes of the rarest class.
    """
    counts = np.unique(labels, return_counts=True)[1]
    number = counts.sum() if metric == "accuracy" else counts.min()
    share = (max(score, 0.0) * number + 1) / (number + 2)
    return math.sqrt(share * (1 - share) / number)


def _without_smallest(weights: Array) -> Array:
    """Drop the smallest weights, up to a sum of :data:`DROPPED`.

    >>> _without_smallest(np.array([0.5, 0.05, 0.4, 0.04, 0.01]))
    array([0.55555556, 0.        , 0.44444444, 0.        , 0.        ])
    """
    order = np.argsort(weights, kind="stable")
    is_small = np.cumsum(weights[order]) <= DROPPED + 1e-9
    kept = weights.copy()
    kept[order[is_small]] = 0
    return np.asarray(kept / kept.sum())
