"""Which labels are wanted: unsure, well connected, unlike each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hpgmn.explain.labels as module
from hpgmn.explain.labels import entropy, label_next, most_worth


def test_entropy_of_even_and_certain_rows() -> None:
    found = entropy(np.array([[0.25] * 4, [1, 0, 0, 0]]))
    assert found == pytest.approx([math.log(4), 0], abs=1e-9)


def test_the_unsure_node_of_high_degree_comes_first() -> None:
    chances = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5], [0.99, 0.01]])
    degrees = np.array([1, 9, 9, 9])
    queries = np.eye(4)
    assert label_next(chances, degrees, queries, np.arange(4), 4) == [2, 0, 1, 3]


def test_a_twin_of_a_chosen_node_is_not_asked_for_before_others() -> None:
    chances = np.array([[0.5, 0.5], [0.5, 0.5], [0.8, 0.2]])
    queries = np.array([[1.0, 0], [1.0, 0], [0, 1]])
    assert label_next(chances, np.array([3, 2, 1]), queries, np.arange(3), 3) == [0, 2, 1]


def test_every_choice_is_the_best_of_its_step() -> None:
    random = np.random.default_rng(0)
    chances = random.dirichlet(np.ones(3), size=20)
    degrees, queries = random.integers(0, 9, 20), random.normal(size=(12, 2))
    candidates = np.arange(4, 16)
    found = label_next(chances, degrees, queries, candidates, 5)
    chosen: list[int] = []
    for _ in range(5):
        gains = {}
        for place, node in enumerate(candidates.tolist()):
            if node in chosen:
                continue
            unsure = -sum(p * math.log(p) for p in chances[node])
            near = [math.dist(queries[place], queries[other - 4]) for other in chosen]
            gains[node] = unsure * (1 + math.log(1 + degrees[node])) * min(near, default=1)
        chosen.append(max(gains, key=gains.__getitem__))
    assert found == chosen


def test_no_more_than_there_are() -> None:
    chances, none = np.array([[0.5, 0.5]]), np.array([], np.int64)
    assert label_next(chances, np.array([1]), np.ones((1, 1)), np.array([0]), 3) == [0]
    assert label_next(chances, np.array([1]), np.ones((0, 1)), none, 3) == []


def test_of_many_candidates_the_most_worth_are_considered(monkeypatch: pytest.MonkeyPatch) -> None:
    chances = np.array([[0.5, 0.5], [1, 0], [0.7, 0.3], [0.5, 0.5], [0.5, 0.5]])
    degrees = np.array([0, 100, 1, 0, 5])
    monkeypatch.setattr(module, "CONSIDERED", 2)
    assert most_worth(chances, degrees, np.array([0, 1, 2, 4])).tolist() == [2, 4]
    assert most_worth(chances, degrees, np.array([1, 0])).tolist() == [1, 0]
