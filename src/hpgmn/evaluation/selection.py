"""Weights of an ensemble's members, selected on validation nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from hpgmn.base.metrics import Metric
from hpgmn.base.metrics import metric as metric_of
from hpgmn.graph import Array

ROUNDS = 25
"""Members added one after the other, with repetition."""
BAGS = 10
"""Selections on random halves of the candidates, whose weights are averaged."""


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

    Greedy selection with replacement (Caruana et al., 2004): each round adds the candidate whose
    addition scores highest on the validation nodes; ties go to the lower log loss.

    Args:
        log_probabilities: (K, V, C) of K candidates for V validation nodes.
        labels: (V,) their labels.
        positive: the positive class of the metric, see :func:`hpgmn.base.metrics.metric`.
        bags: how many selections are averaged, each on a random half of the candidates; 0 for one
            selection among all.

    Returns:
        (K,) weights that add up to one.
    """
    logs = log_softmax(log_probabilities.double(), dim=-1)
    truth, function = torch.from_numpy(np.asarray(labels)), metric_of(metric, positive)
    count = len(logs)
    if not bags or count < 3:
        return _greedy(logs, truth, function, rounds)
    random, weights = np.random.default_rng(0), np.zeros(count)
    for _ in range(bags):
        chosen = np.sort(random.choice(count, -(-count // 2), replace=False))
        weights[chosen] += _greedy(logs[chosen], truth, function, rounds)
    return np.asarray(weights / weights.sum())


def _greedy(logs: Tensor, labels: Tensor, function: Metric, rounds: int) -> Array:
    """Return the (K,) weights of one selection: of all rounds up to the best."""
    count, valid = len(logs), torch.ones(len(labels), dtype=torch.bool)
    total, picked = torch.zeros_like(logs[0]), np.zeros(count)
    best, weights = (-np.inf, -np.inf), np.zeros(count)
    for size in range(1, rounds + 1):
        sums = (total + logs) / size
        scores = function(sums, labels.expand(count, -1), valid.expand(count, -1)).double()
        scores = torch.where(scores.isnan(), -np.inf, scores)
        tied = torch.nonzero(scores == scores.max()).flatten()
        likelihood = log_softmax(sums[tied], dim=-1)[:, torch.arange(len(labels)), labels].mean(1)
        first = int(likelihood.argmax())
        chosen = int(tied[first])
        picked[chosen] += 1
        total = total + logs[chosen]
        reached = (float(scores[chosen]), float(likelihood[first]))
        if reached > best:
            best, weights = reached, picked / size
    return weights
