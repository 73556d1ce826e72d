"""Greedy selection against a slow one, written from its definition."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score

from hpgmn.evaluation.selection import select_weights


def slow_greedy(chances, labels, score, rounds):
    """Add the best candidate in each round; return the weights after the best round."""
    history = []
    bag = []
    for _ in range(rounds):
        tried = []
        for candidate in range(len(chances)):
            mean = np.mean([np.log(chances[k]) for k in [*bag, candidate]], axis=0)
            mixed = np.exp(mean) / np.exp(mean).sum(axis=1, keepdims=True)
            loss = log_loss(labels, mixed, labels=np.arange(mixed.shape[1]))
            tried.append((np.float32(score(labels, mixed)), -loss))
        best = max(range(len(tried)), key=lambda k: (*tried[k], -k))
        bag.append(best)
        history.append((tried[best], list(bag)))
    top = max(value for value, _ in history)
    chosen = next(bag for value, bag in history if value == top)
    return np.bincount(chosen, minlength=len(chances)) / len(chosen)


SCORES = {
    "accuracy": lambda labels, chances: accuracy_score(labels, chances.argmax(axis=1)),
    "roc_auc": lambda labels, chances: roc_auc_score(labels, chances[:, 1]),
    "average_precision": lambda labels, chances: average_precision_score(labels, chances[:, 1]),
}


def problem(seed, candidates=7, nodes=30, classes=2):
    random = np.random.default_rng(seed)
    labels = np.arange(nodes) % classes
    strength = random.uniform(0, 1.5, (candidates, 1, 1))
    scores = random.normal(size=(candidates, nodes, classes)) + strength * np.eye(classes)[labels]
    return torch.from_numpy(scores).log_softmax(dim=-1), labels


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("metric", SCORES)
def test_selection_equals_a_slow_one(metric, seed):
    logs, labels = problem(seed)
    expected = slow_greedy(logs.exp().numpy(), labels, SCORES[metric], rounds=8)
    found = select_weights(logs, labels, metric, rounds=8, bags=0)
    np.testing.assert_allclose(found, expected)


def test_selection_of_several_classes_equals_a_slow_one():
    logs, labels = problem(9, classes=4)
    expected = slow_greedy(logs.exp().numpy(), labels, SCORES["accuracy"], rounds=10)
    np.testing.assert_allclose(
        select_weights(logs, labels, "accuracy", rounds=10, bags=0), expected
    )
