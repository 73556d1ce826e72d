"""Explanations are true: the named neighbours matter more than random ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpgmn.classifier import HPGMNClassifier
from hpgmn.explain.neighbors import neighbor_support, neighbors_of, probabilities_without
from hpgmn.explain.opened import mean_probabilities, open_replicas
from hpgmn.explain.truth import RemovalEffects, removal_effects
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.graph.synthetic import trading_network
from hpgmn.training.saved import SavedModel

Fit = Callable[..., SavedModel]


def test_effects_are_falls_of_the_predicted_class(small_graph: Graph, fit: Fit) -> None:
    opened = open_replicas(fit(small_graph), small_graph)
    chances = mean_probabilities(opened)
    found = removal_effects(opened, count=8, least=3, most=2, seed=1)
    assert found.nodes.size == 8
    assert len(set(found.nodes.tolist())) == 8
    for node, named in zip(found.nodes.tolist(), found.named, strict=True):
        assert neighbors_of(opened, node).size >= 3
        label = int(chances[node].argmax())
        support = neighbor_support(opened, node, label, most=2)
        gone = support.neighbors[: support.removed]
        without = probabilities_without(opened, node, [gone])[0, label]
        assert named == pytest.approx(chances[node, label] - without, abs=1e-6)
    again = removal_effects(opened, count=8, least=3, most=2, seed=1)
    np.testing.assert_array_equal(again.drawn, found.drawn)


def test_removing_all_neighbours_is_the_same_for_named_and_drawn(
    small_graph: Graph, fit: Fit
) -> None:
    opened = open_replicas(fit(small_graph), small_graph)
    found = removal_effects(opened, count=18, least=1, most=99)
    chances = mean_probabilities(opened)
    equal = 0
    for place, node in enumerate(found.nodes.tolist()):
        support = neighbor_support(opened, node, int(chances[node].argmax()), most=99)
        if support.removed == support.neighbors.size:
            equal += 1
            assert found.named[place] == pytest.approx(found.drawn[place], abs=1e-6)
    assert equal > 0
    assert found.nodes.size == 17  # node 17 has no neighbour


def test_difference_and_its_error_are_paired() -> None:
    found = RemovalEffects(np.arange(4), np.array([4.0, 2, 3, 3]), np.array([1.0, 1, 0, 2]))
    assert found.difference == pytest.approx(2)
    assert found.standard_error == pytest.approx(np.std([3, 1, 3, 1], ddof=1) / 2)


def check(model: HPGMNClassifier, graph: Graph) -> RemovalEffects:
    found = removal_effects(open_replicas(model.saved_, graph), count=200, least=3)
    assert found.nodes.size == 200
    assert found.difference > 4 * found.standard_error
    return found


def test_named_neighbours_matter_on_the_built_in_graph() -> None:
    graph = trading_network(seed=0).graph
    model = HPGMNClassifier(seed=0, epochs=40, num_patterns=10).fit(graph)
    found = check(model, graph)
    assert found.named.mean() > 0.03


def test_named_neighbours_matter_on_chameleon(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPGMN_DATA", str(data_dir))
    graph = load("chameleon")
    model = HPGMNClassifier(
        seed=0, neighbors="out", epochs=30, estimator_epochs=20, num_patterns=20, lr=0.02
    )
    found = check(model.fit(graph), graph)
    assert found.named.mean() > 0.1
