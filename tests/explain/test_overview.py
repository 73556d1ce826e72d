"""Shares by class against a plain mean, and the map against numpy's SVD."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from hpgmn.explain import explain_model
from hpgmn.explain.opened import mean_probabilities, memory_head, open_replicas
from hpgmn.explain.overview import memory_map, model_overview, principal_axes
from hpgmn.explain.shapley import statistic_shares
from hpgmn.graph import Array, Graph
from hpgmn.training.saved import SavedModel

Fit = Callable[..., SavedModel]


def by_svd(rows: Array) -> Array:
    axes: Array = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:2].T
    return np.asarray(axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]]))


@pytest.mark.parametrize("shape", [(30, 5), (6, 40), (2, 2), (7, 7)])
def test_axes_are_those_of_the_singular_value_decomposition(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(1).normal(size=shape) * np.arange(1, shape[1] + 1)
    found = principal_axes(rows)
    if shape[0] == 2:  # two points differ in one direction
        assert not found[:, 1].any()
        np.testing.assert_allclose(found[:, 0], by_svd(rows)[:, 0], atol=1e-8)
    else:
        np.testing.assert_allclose(found, by_svd(rows), atol=1e-8)


@pytest.mark.parametrize("rows", [np.ones((4, 3)), np.ones((1, 3)), np.ones((3, 1))])
def test_rows_without_difference_have_no_axes(rows: Array) -> None:
    assert not principal_axes(rows).any()


def test_a_single_column_is_the_only_axis() -> None:
    assert principal_axes(np.array([[1.0], [3.0], [4.0]])).tolist() == [[1.0, 0.0]]


def test_shares_by_class_are_means_over_its_sampled_nodes(named_graph: Graph, fit: Fit) -> None:
    saved = fit(named_graph, seeds=2, statistics=("attributes", "class_counts"))
    found = model_overview(saved, named_graph, sample=11)
    opened = open_replicas(saved, named_graph)
    chances = mean_probabilities(opened)
    nodes = np.random.default_rng(0).choice(18, 11, replace=False)
    labels = chances[nodes].argmax(axis=1)
    every = statistic_shares(opened, nodes, labels)
    assert sum(one.nodes for one in found.shares_by_class) == 11
    for one in found.shares_by_class:
        own = [
            share
            for share, label in zip(every, labels, strict=True)
            if named_graph.class_names[label] == one.name
        ]
        assert one.nodes == len(own) > 0
        for name, value in one.statistics.items():
            assert value == pytest.approx(sum(abs(share[name]) for share in own) / len(own))
    assert (found.split, found.seeds) == (0, 2)


def test_it_says_what_explain_says(named_graph: Graph, fit: Fit) -> None:
    saved = fit(named_graph)
    found = model_overview(saved, named_graph).as_dict()
    said = json.loads(json.dumps(found, allow_nan=False))
    plain = json.loads(json.dumps(explain_model(saved, named_graph).as_dict()))
    assert {name: said[name] for name in plain} == plain
    assert said["class_names"] == ["student", "faculty", "staff"]


@pytest.mark.parametrize("memory_dim", [None, 4])
def test_map_places_queries_and_patterns_in_one_plane(
    small_graph: Graph, fit: Fit, memory_dim: int | None
) -> None:
    [opened] = open_replicas(fit(small_graph, memory_dim=memory_dim), small_graph)
    chances = mean_probabilities([opened])
    found = memory_map(opened, chances)
    queries = opened.queries(np.arange(18)).double().numpy()
    head = memory_head(opened.stage.model)
    assert head is not None
    assert head.memory is not None
    patterns = head.memory.patterns[0].detach().double().numpy()
    axes = by_svd(queries)
    singular = np.linalg.svd(queries - queries.mean(axis=0))[1] ** 2
    np.testing.assert_allclose(found.node_variance, singular[:2] / singular.sum(), rtol=1e-6)
    places = (queries - queries.mean(axis=0)) @ axes
    np.testing.assert_allclose(found.nodes, places, rtol=1e-3, atol=1e-5)
    ours = (patterns - patterns.mean(axis=0)) @ axes
    np.testing.assert_allclose(found.patterns, ours, rtol=1e-3, atol=1e-5)
    assert found.classes == tuple(chances.argmax(axis=1))
    apart = patterns - patterns.mean(axis=0)
    share = [sum((apart @ axes[:, i]) ** 2) / (apart**2).sum() for i in (0, 1)]
    np.testing.assert_allclose(found.pattern_variance, share, rtol=1e-5)


def test_large_graphs_are_sampled(small_graph: Graph, fit: Fit) -> None:
    [opened] = open_replicas(fit(small_graph), small_graph)
    chances = mean_probabilities([opened])
    found = memory_map(opened, chances, shown=7)
    nodes = sorted(np.random.default_rng(0).choice(18, 7, replace=False).tolist())
    assert found.classes == tuple(chances[nodes].argmax(axis=1).tolist())
    assert (len(found.nodes), found.all_nodes) == (7, 18)


@pytest.mark.parametrize(("model", "changes"), [("gcn", {}), ("hpgmn", {"memory": False})])
def test_what_a_model_has_not_is_left_out(
    small_graph: Graph, fit: Fit, model: str, changes: dict[str, bool]
) -> None:
    found = model_overview(fit(small_graph, model, **changes), small_graph)
    assert found.memory_map is None
    assert found.as_dict()["map"] is None
    assert found.explanation.patterns == ()
    assert bool(found.shares_by_class) == (model == "hpgmn")
