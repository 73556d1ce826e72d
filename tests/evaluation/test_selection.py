"""Greedy selection against a slow one, written from its definition."""

import time

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
    found = select_weights(logs, labels, "accuracy", bags=0)
    np.testing.assert_allclose(found, expected)


def test_the_average_of_selections_equals_a_slow_one():
    logs, labels = problem(3, nodes=12)
    chances, random = logs.exp().numpy(), np.random.default_rng(0)
    weights, reached = [], []
    for _ in range(20):
        part = np.sort(random.choice(7, 4, replace=False))
        sample = random.choice(12, 12)
        bag = np.zeros(7)
        bag[part] = slow_greedy(chances[part][:, sample], labels[sample], SCORES["accuracy"], 10)
        mixed = np.exp((bag[:, None, None] * np.log(chances)).sum(axis=0))
        weights.append(bag)
        reached.append(SCORES["accuracy"](labels, mixed))
    share = (max(reached) * 12 + 1) / 14
    lowest = max(reached) - 2 * np.sqrt(share * (1 - share) / 12)
    mean = np.mean([w for w, r in zip(weights, reached, strict=True) if r >= lowest], axis=0)
    total, kept = 0.0, mean.copy()
    for k in np.argsort(mean, kind="stable"):
        total += mean[k]
        if total <= 0.1:
            kept[k] = 0
    np.testing.assert_allclose(select_weights(logs, labels, "accuracy"), kept / kept.sum())


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc", "balanced_accuracy", "macro_f1"])
def test_a_candidate_that_is_far_better_has_most_of_the_weight(metric):
    logs, labels = problem(1, candidates=12, nodes=800, classes=3)
    logs[5] = torch.from_numpy(4 * np.eye(3)[labels]).log_softmax(dim=-1)
    weights = select_weights(logs, labels, metric)
    assert weights[5] > 0.99
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("candidates", [1, 2, 3])
def test_few_candidates_and_few_nodes_are_enough(candidates):
    logs, labels = problem(4, candidates=candidates, nodes=2)
    for metric in ("accuracy", "roc_auc", "average_precision"):
        weights = select_weights(logs, labels, metric)
        assert weights.shape == (candidates,)
        assert weights.sum() == pytest.approx(1)


def test_one_class_among_the_validation_nodes_is_no_fault():
    logs, _ = problem(5)
    weights = select_weights(logs, np.zeros(30, np.int64), "roc_auc")
    assert weights.sum() == pytest.approx(1)


def test_the_positive_class_matters():
    random = np.random.default_rng(0)
    labels = (np.arange(60) < 6).astype(np.int64)
    scores = random.normal(size=(10, 60))
    logs = torch.from_numpy(np.stack([-scores, scores], axis=-1)).log_softmax(dim=-1)
    rare = slow_greedy(
        logs.exp().numpy()[:, :, ::-1], 1 - labels, SCORES["average_precision"], rounds=6
    )
    found = select_weights(logs, labels, "average_precision", positive=0, rounds=6, bags=0)
    np.testing.assert_allclose(found, rare)


@pytest.mark.slow
def test_many_candidates_take_seconds():
    logs, labels = problem(6, candidates=100, nodes=4000, classes=5)
    before = time.process_time()
    select_weights(logs, labels, "accuracy", rounds=25)
    assert time.process_time() - before < 20
