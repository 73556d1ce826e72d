"""Weights of an ensemble's members, selected on validation nodes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from hpgmn.graph import Array

ROUNDS = 15
"""Candidates added in one selection, with repetition."""
BAGS = 10
"""Selections on random halves of the candidates, whose weights are averaged."""
FAR_BEHIND = 2.0
"""A selection whose log loss is this many standard errors above the lowest is left out of the
average: its half of the candidates lacked the good ones."""
MIN_WEIGHT = 0.02
"""Smaller weights are dropped: each costs a prediction."""


def select_weights(
    log_probabilities: Tensor,
    labels: Array,
    *,
    balanced: bool = False,
    rounds: int = ROUNDS,
    bags: int = BAGS,
) -> Array:
    """Return the weights of candidates in an ensemble that averages log-probabilities or targets.

    Greedy selection with replacement (Caruana et al., ICML 2004): each round adds the candidate
    whose addition has the lowest log loss on the validation nodes. The loss, unlike a score, tells
    apart candidates on a few dozen nodes; random halves of the candidates guard against chance
    (docs/decisions/0029-ensembles.md).

    Args:
        log_probabilities: (K, V, C) of K candidates for V validation nodes; or (K, V, 1) targets,
            whose loss is the squared error.
        labels: (V,) their labels.
        balanced: whether every class counts alike in the loss, as in balanced accuracy.
        rounds: candidates added in one selection.
        bags: selections that are averaged; 0, and of targets always, one among all candidates:
            squared errors of hundreds of nodes tell candidates apart.

    Returns:
        (K,) weights that add up to one.
    """
    if balanced:  # as many nodes of each class as the largest has, its own again and again
        labels, nodes = _repeat_rare_classes(labels)
        log_probabilities = log_probabilities[:, torch.from_numpy(nodes)]
    truth, count = torch.from_numpy(labels), len(log_probabilities)
    if log_probabilities.shape[-1] == 1:
        return _greedy(log_probabilities, truth, rounds)
    logs = log_softmax(log_probabilities.float(), dim=-1)
    if not bags or count < 3:
        return _greedy(logs, truth, rounds)
    random, bag_weights = np.random.default_rng(0), np.zeros((bags, count))
    size = max(-(-count // 2), 3)
    for bag in bag_weights:
        chosen = np.sort(random.choice(count, size, replace=False))
        bag[chosen] = _greedy(logs[torch.from_numpy(chosen)], truth, rounds)
    weights = bag_weights[_not_far_behind(bag_weights, logs, truth)].mean(axis=0)
    weights[weights < min(MIN_WEIGHT, weights.max())] = 0
    return np.asarray(weights / weights.sum())


def _repeat_rare_classes(labels: Array) -> tuple[Array, Array]:
    """Return labels and positions with equally many nodes of each class that is present."""
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    most = max((len(group) for group in groups), default=0)
    nodes = np.concatenate([np.resize(group, most) for group in groups] or [labels])
    return labels[nodes], nodes


def _not_far_behind(weights: Array, logs: Tensor, labels: Tensor) -> Array:
    """Return which of (B, K) weights are not clearly worse than the best, node by node."""
    losses = []
    for row in weights:
        mixed = torch.tensordot(torch.from_numpy(row).to(logs.dtype), logs, 1)
        losses.append(cross_entropy(mixed, labels, reduction="none").double().numpy())
    per_node = np.stack(losses)
    excess = per_node - per_node[per_node.mean(axis=1).argmin()]
    error = excess.std(axis=1) / math.sqrt(max(len(labels), 1))
    return np.asarray(excess.mean(axis=1) <= FAR_BEHIND * error)


def _node_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return (K, V) log losses of log-probabilities (K, V, C), or squared errors of targets."""
    if outputs.shape[-1] == 1:
        return (outputs[..., 0].double() - labels).square()
    index = labels.expand(len(outputs), -1)[..., None]
    return outputs.logsumexp(dim=-1) - outputs.gather(-1, index)[..., 0]


def _greedy(logs: Tensor, labels: Tensor, rounds: int) -> Array:
    """Return the (K,) weights of one selection: of all rounds up to the best."""
    total, picked = torch.zeros_like(logs[0]), np.zeros(len(logs))
    best, weights = -math.inf, picked
    for size in range(1, rounds + 1):
        means = (total + logs) / size
        reached = -_node_losses(means, labels).double().mean(dim=1)
        chosen = int(reached.argmax())
        picked[chosen] += 1
        total = total + logs[chosen]
        if float(reached[chosen]) > best:
            best, weights = float(reached[chosen]), picked / size
    return weights
