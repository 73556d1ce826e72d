"""Explaining a whole model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hpgmn.explain.labels import entropy, label_next
from hpgmn.explain.model import explain_model
from hpgmn.explain.opened import mean_probabilities, open_replicas
from hpgmn.explain.patterns import describe_patterns
from hpgmn.explain.shapley import statistic_shares
from hpgmn.graph import Graph
from hpgmn.training.saved import SavedModel

Fit = Callable[..., SavedModel]


def test_a_model_is_explained_by_all_its_nodes(named_graph: Graph, fit: Fit) -> None:
    saved = fit(named_graph, seeds=2)
    found = explain_model(saved, named_graph, wanted=4)
    opened = open_replicas(saved, named_graph)
    chances = mean_probabilities(opened)
    every = statistic_shares(opened, np.arange(18), chances.argmax(axis=1))
    sizes = {name: np.mean([abs(own[name]) for own in every]) for name in every[0]}
    assert found.statistics == pytest.approx(sizes)
    assert list(found.statistics) == sorted(sizes, key=lambda name: -sizes[name])
    assert found.sampled == 18

    patterns = describe_patterns(opened[0], chances)
    order = np.argsort(-patterns.usage, kind="stable").tolist()
    assert [one.number for one in found.patterns] == order
    assert sum(one.attention for one in found.patterns) == pytest.approx(1, abs=1e-5)
    for one in found.patterns:
        profile = dict(zip(named_graph.class_names, patterns.profile[one.number], strict=True))
        assert one.classes == pytest.approx(profile)
    assert found.unused == tuple(patterns.unused)
    assert found.redundant == tuple(tuple(group) for group in patterns.redundant())

    outside = np.flatnonzero(~named_graph.split(0).train)
    degrees = np.diff(named_graph.adjacency("undirected").indptr)
    queries = opened[0].queries(outside).numpy()
    wanted = label_next(chances, degrees, queries, outside, 4)
    assert [one.node for one in found.label_next] == [f"account-{v}" for v in wanted]
    assert [one.degree for one in found.label_next] == degrees[wanted].tolist()
    unsure = entropy(chances)[wanted]
    assert [one.entropy for one in found.label_next] == pytest.approx(unsure)
    assert any("mean of 2 seeds" in note for note in found.notes)


def test_a_sample_is_drawn_where_asked_for(small_graph: Graph, fit: Fit) -> None:
    found = explain_model(fit(small_graph), small_graph, sample=5)
    assert found.sampled == 5
    assert found.statistics != explain_model(fit(small_graph), small_graph).statistics


def test_nodes_without_a_label_are_wanted_first(small_graph: Graph, fit: Fit) -> None:
    assert small_graph.splits is not None
    y = small_graph.y.copy()
    test = np.flatnonzero(small_graph.split(0).test)
    y[test] = -1
    split = small_graph.split(0)
    graph = Graph(
        small_graph.x,
        small_graph.edge_index,
        y,
        train_mask=split.train,
        val_mask=split.val,
        test_mask=np.zeros(18, bool),
    )
    found = explain_model(fit(graph), graph, wanted=18)
    assert {int(one.node) for one in found.label_next} == set(test.tolist())


@pytest.mark.parametrize("model", ["gcn", "hpgmn-appnp"])
def test_other_models_tell_what_they_can(small_graph: Graph, fit: Fit, model: str) -> None:
    found = explain_model(fit(small_graph, model), small_graph)
    assert found.statistics == {}
    assert found.sampled == 0
    assert (len(found.patterns) > 0) == (model != "gcn")
    assert len(found.label_next) == 10
    assert any(note.startswith(f"{model} reads no local statistics") for note in found.notes)
    assert str(found).startswith(f"Model {model}.")


def test_nothing_is_wanted_where_every_node_was_trained_on(small_graph: Graph, fit: Fit) -> None:
    saved = fit(small_graph)
    saved.train_labels = small_graph.y[None]
    assert explain_model(saved, small_graph).label_next == ()
