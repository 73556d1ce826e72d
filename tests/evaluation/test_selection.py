"""Greedy selection against a slow one, written from its definition."""

import time

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from hpgmn.evaluation.selection import MIN_WEIGHT, select_weights


def slow_greedy(chances, labels, rounds):
    """Add the candidate of lowest log loss in each round; return the best round's weights."""
    history, bag = [], []
    for _ in range(rounds):
        losses = []
        for candidate in range(len(chances)):
            mean = np.mean([np.log(chances[k]) for k in [*bag, candidate]], axis=0)
            mixed = np.exp(mean) / np.exp(mean).sum(axis=1, keepdims=True)
            losses.append(log_loss(labels, mixed, labels=np.arange(mixed.shape[1])))
        bag.append(int(np.argmin(losses)))
        history.append((min(losses), list(bag)))
    _, chosen = min(history, key=lambda entry: entry[0])
    return np.bincount(chosen, minlength=len(chances)) / len(chosen)


def problem(seed, candidates=7, nodes=30, classes=2):
    random = np.random.default_rng(seed)
    labels = np.arange(nodes) % classes
    strength = random.uniform(0, 1.5, (candidates, 1, 1))
    scores = random.normal(size=(candidates, nodes, classes)) + strength * np.eye(classes)[labels]
    return torch.from_numpy(scores).log_softmax(dim=-1), labels


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", range(6))
def test_selection_equals_a_slow_one(seed, classes):
    logs, labels = problem(seed, classes=classes)
    expected = slow_greedy(logs.exp().numpy(), labels, rounds=8)
    np.testing.assert_allclose(select_weights(logs, labels, rounds=8, bags=0), expected)


@pytest.mark.parametrize("seed", range(3))
def test_bags_average_selections_among_halves_of_the_candidates(seed):
    logs, labels = problem(seed, candidates=7, classes=3)
    random, bags, losses = np.random.default_rng(0), [], []
    for _ in range(6):
        half = np.sort(random.choice(7, 4, replace=False))
        weights = np.zeros(7)
        weights[half] = slow_greedy(logs[half].exp().numpy(), labels, rounds=6)
        mixed = np.exp((weights[:, None, None] * logs.numpy()).sum(axis=0))
        shares = mixed / mixed.sum(axis=1, keepdims=True)
        bags.append(weights)
        losses.append([-np.log(row[label]) for row, label in zip(shares, labels, strict=True)])
    best = min(losses, key=np.mean)
    kept = []
    for weights, loss in zip(bags, losses, strict=True):
        excess = np.subtract(loss, best)
        if excess.mean() <= 2 * excess.std() / np.sqrt(len(labels)):
            kept.append(weights)
    expected = np.mean(kept, axis=0)
    expected[expected < MIN_WEIGHT] = 0
    found = select_weights(logs, labels, rounds=6, bags=6)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-6)


def test_a_candidate_that_is_far_better_has_all_the_weight():
    logs, labels = problem(1, candidates=12, nodes=800, classes=3)
    logs[5] = torch.from_numpy(6 * np.eye(3)[labels]).log_softmax(dim=-1)
    weights = select_weights(logs, labels)
    assert weights[5] == 1
    assert weights.sum() == 1


@pytest.mark.parametrize("candidates", [2, 3, 4])
def test_few_candidates_nodes_and_classes_are_enough(candidates):
    logs, _ = problem(4, candidates=candidates, nodes=2)
    for labels in ([0, 1], [0, 0]):
        weights = select_weights(logs, np.array(labels))
        assert weights.shape == (candidates,)
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_array_equal(weights, select_weights(logs, np.array(labels)))


@pytest.mark.slow
def test_many_candidates_take_seconds():
    logs, labels = problem(6, candidates=100, nodes=4000, classes=5)
    before = time.process_time()
    select_weights(logs, labels, rounds=25)
    assert time.process_time() - before < 20


def test_weights_do_not_depend_on_a_constant_per_node():
    logs, labels = problem(1)
    np.testing.assert_allclose(select_weights(logs + 3, labels), select_weights(logs, labels))


def test_balanced_selection_repeats_rare_classes():
    logs, labels = problem(5, nodes=40)
    labels = np.where(np.arange(40) < 30, 0, 1)
    nodes = np.concatenate([np.arange(30), 30 + np.arange(30) % 10])
    expected = select_weights(logs[:, nodes], labels[nodes])
    np.testing.assert_allclose(select_weights(logs, labels, balanced=True), expected)


def test_one_candidate_has_all_the_weight():
    logs, labels = problem(2, candidates=1)
    assert select_weights(logs, labels).tolist() == [1.0]


def test_a_candidate_as_good_as_chance_has_no_weight_beside_good_ones():
    logs, labels = problem(4, candidates=3, nodes=300)
    good = 2 * torch.eye(2)[torch.from_numpy(labels)].double() + logs[0]
    logs = torch.stack([good.log_softmax(dim=-1), logs[1] * 0, logs[2] * 0])
    weights = select_weights(logs.log_softmax(dim=-1), labels, bags=0)
    assert weights.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_targets_are_selected_by_the_squared_error_of_the_mean(seed):
    random = np.random.default_rng(seed)
    truth = random.normal(size=40)
    outputs = truth + random.normal(size=(6, 40)) * random.uniform(0.2, 2, (6, 1))
    history, bag = [], []
    for _ in range(8):
        errors = [np.mean((outputs[[*bag, k]].mean(axis=0) - truth) ** 2) for k in range(6)]
        bag.append(int(np.argmin(errors)))
        history.append((min(errors), list(bag)))
    _, chosen = min(history, key=lambda entry: entry[0])
    weights = select_weights(torch.from_numpy(outputs)[..., None], truth, rounds=8)
    np.testing.assert_allclose(weights, np.bincount(chosen, minlength=6) / len(chosen))
