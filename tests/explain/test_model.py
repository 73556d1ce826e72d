"""Explaining a whole model: shares, memory, map, and nodes to label next."""

import json
import math
from copy import copy

import numpy as np
import pytest

import hpgmn.explain.model as module
from hpgmn.explain.model import (
    entropy,
    explain_model,
    label_next,
    label_worth,
    memory_map,
    model_overview,
    principal_axes,
)
from hpgmn.explain.replicas import describe_patterns, mean_probabilities, memory_head, open_replicas
from hpgmn.graph import Array, Graph


def test_a_model_is_explained_by_all_its_nodes(named_graph, fit, statistic_shares):
    saved = fit(named_graph, seeds=2)
    result = explain_model(saved, named_graph, candidates=4)
    opened = open_replicas(saved, named_graph)
    chances = mean_probabilities(opened)
    every = statistic_shares(opened, np.arange(18), chances.argmax(axis=1))
    sizes = {name: np.mean([abs(own[name]) for own in every]) for name in every[0]}
    assert result.statistics == pytest.approx(sizes)
    assert list(result.statistics) == sorted(sizes, key=lambda name: -sizes[name])
    assert result.sampled == 18

    patterns = describe_patterns(opened[0], chances)
    order = np.argsort(-patterns.usage, kind="stable").tolist()
    assert [one.number for one in result.patterns] == order
    assert sum(one.attention for one in result.patterns) == pytest.approx(1, abs=1e-5)
    for one in result.patterns:
        profile = dict(zip(named_graph.class_names, patterns.profile[one.number], strict=True))
        assert one.classes == pytest.approx(profile)
    assert result.unused == tuple(patterns.unused)
    assert result.redundant == tuple(tuple(group) for group in patterns.redundant())

    outside = np.flatnonzero(~named_graph.split(0).train)
    degrees = np.diff(named_graph.adjacency("undirected").indptr)
    queries = opened[0].queries(outside).numpy()
    expected = label_next(chances, degrees, queries, outside, 4)
    assert [one.node for one in result.label_next] == [f"account-{v}" for v in expected]
    assert [one.degree for one in result.label_next] == degrees[expected].tolist()
    unsure = entropy(chances)[expected]
    assert [one.entropy for one in result.label_next] == pytest.approx(unsure)
    assert any("mean of 2 seeds" in note for note in result.notes)


def test_shares_are_averaged_over_a_sample(small_graph, fit):
    result = explain_model(fit(small_graph), small_graph, sample=5)
    assert result.sampled == 5
    assert result.statistics != explain_model(fit(small_graph), small_graph).statistics


def test_unlabelled_nodes_are_the_candidates(small_graph, fit):
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
    result = explain_model(fit(graph), graph, candidates=18)
    assert {int(one.node) for one in result.label_next} == set(test.tolist())


@pytest.mark.parametrize("model", ["gcn", "hpgmn-appnp"])
def test_other_models_are_explained_in_part(small_graph, fit, model):
    result = explain_model(fit(small_graph, model), small_graph)
    assert result.statistics == {}
    assert result.sampled == 0
    assert (len(result.patterns) > 0) == (model != "gcn")
    assert len(result.label_next) == 10
    assert any(note.startswith(f"{model} reads no local statistics") for note in result.notes)
    assert str(result).startswith(f"Model {model}.")


def test_a_graph_of_train_nodes_has_no_candidates(small_graph, fit):
    saved = copy(fit(small_graph))  # without cached results
    saved.train_labels = small_graph.y[None]
    assert explain_model(saved, small_graph).label_next == ()


def by_svd(rows):
    axes: Array = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:2].T
    return np.asarray(axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]]))


@pytest.mark.parametrize("shape", [(30, 5), (6, 40), (2, 2), (7, 7)])
def test_axes_are_those_of_the_singular_value_decomposition(shape):
    rows = np.random.default_rng(1).normal(size=shape) * np.arange(1, shape[1] + 1)
    result = principal_axes(rows)
    if shape[0] == 2:  # two points differ in one direction
        assert not result[:, 1].any()
        np.testing.assert_allclose(result[:, 0], by_svd(rows)[:, 0], atol=1e-8)
    else:
        np.testing.assert_allclose(result, by_svd(rows), atol=1e-8)


@pytest.mark.parametrize("rows", [np.ones((4, 3)), np.ones((1, 3)), np.ones((3, 1))])
def test_rows_without_difference_have_no_axes(rows):
    assert not principal_axes(rows).any()


def test_a_single_column_is_the_only_axis():
    assert principal_axes(np.array([[1.0], [3.0], [4.0]])).tolist() == [[1.0, 0.0]]


def test_shares_by_class_are_means_over_its_sampled_nodes(
    named_graph, fit, statistic_shares, monkeypatch
):
    monkeypatch.setattr(module, "SAMPLE", 11)
    saved = fit(named_graph, seeds=2, statistics=("attributes", "class_counts"))
    opened = open_replicas(saved, named_graph)
    overview = model_overview(opened, saved.class_names)
    nodes = np.random.default_rng(0).choice(18, 11, replace=False)
    labels = mean_probabilities(opened)[nodes].argmax(axis=1)
    every = statistic_shares(opened, nodes, labels)
    assert sum(row["nodes"] for row in overview["statistics_by_class"]) == 11
    for row in overview["statistics_by_class"]:
        members = [
            shares
            for shares, label in zip(every, labels, strict=True)
            if named_graph.class_names[label] == row["name"]
        ]
        assert row["nodes"] == len(members) > 0
        for name, value in row["statistics"].items():
            assert value == pytest.approx(np.mean([abs(shares[name]) for shares in members]))
    assert (overview["split"], overview["seeds"]) == (0, 2)


def test_the_overview_contains_the_explanation(named_graph, fit):
    saved = fit(named_graph)
    overview = model_overview(open_replicas(saved, named_graph), saved.class_names)
    overview = json.loads(json.dumps(overview, allow_nan=False))
    explanation = json.loads(json.dumps(explain_model(saved, named_graph).as_dict()))
    assert {name: overview[name] for name in explanation} == explanation
    assert overview["class_names"] == ["student", "faculty", "staff"]


@pytest.mark.parametrize("memory_dim", [None, 4])
def test_map_places_queries_and_patterns_in_one_plane(small_graph, fit, memory_dim):
    [opened] = open_replicas(fit(small_graph, memory_dim=memory_dim), small_graph)
    chances = mean_probabilities([opened])
    result = memory_map(opened, chances)
    queries = opened.queries(np.arange(18)).double().numpy()
    head = memory_head(opened.stage.model)
    assert head is not None
    assert head.memory is not None
    patterns = head.memory.patterns[0].detach().double().numpy()
    axes = by_svd(queries)
    singular = np.linalg.svd(queries - queries.mean(axis=0))[1] ** 2
    np.testing.assert_allclose(result["node_variance"], singular[:2] / singular.sum(), rtol=1e-6)
    places = (queries - queries.mean(axis=0)) @ axes
    np.testing.assert_allclose(result["nodes"], places, rtol=1e-3, atol=1e-5)
    ours = (patterns - patterns.mean(axis=0)) @ axes
    np.testing.assert_allclose(result["patterns"], ours, rtol=1e-3, atol=1e-5)
    assert result["classes"] == chances.argmax(axis=1).tolist()
    apart = patterns - patterns.mean(axis=0)
    share = [sum((apart @ axes[:, i]) ** 2) / (apart**2).sum() for i in (0, 1)]
    np.testing.assert_allclose(result["pattern_variance"], share, rtol=1e-5)


def test_large_graphs_are_sampled(small_graph, fit):
    [opened] = open_replicas(fit(small_graph), small_graph)
    chances = mean_probabilities([opened])
    result = memory_map(opened, chances, shown=7)
    nodes = sorted(np.random.default_rng(0).choice(18, 7, replace=False).tolist())
    assert result["classes"] == chances[nodes].argmax(axis=1).tolist()
    assert (len(result["nodes"]), result["all_nodes"]) == (7, 18)


@pytest.mark.parametrize(("model", "changes"), [("gcn", {}), ("hpgmn", {"memory": False})])
def test_parts_a_model_lacks_are_left_out(small_graph, fit, model, changes):
    saved = fit(small_graph, model, **changes)
    result = model_overview(open_replicas(saved, small_graph), saved.class_names)
    assert result["map"] is None
    assert result["patterns"] == ()
    assert bool(result["statistics_by_class"]) == (model == "hpgmn")


def test_entropy_of_even_and_certain_rows():
    result = entropy(np.array([[0.25] * 4, [1, 0, 0, 0]]))
    assert result == pytest.approx([math.log(4), 0], abs=1e-9)


def test_the_unsure_node_of_high_degree_comes_first():
    chances = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5], [0.99, 0.01]])
    degrees = np.array([1, 9, 9, 9])
    queries = np.eye(4)
    assert label_next(chances, degrees, queries, np.arange(4), 4) == [2, 0, 1, 3]


def test_a_twin_of_a_chosen_node_comes_last():
    chances = np.array([[0.5, 0.5], [0.5, 0.5], [0.8, 0.2]])
    queries = np.array([[1.0, 0], [1.0, 0], [0, 1]])
    assert label_next(chances, np.array([3, 2, 1]), queries, np.arange(3), 3) == [0, 2, 1]


def test_every_choice_is_the_best_of_its_step():
    random = np.random.default_rng(0)
    chances = random.dirichlet(np.ones(3), size=20)
    degrees, queries = random.integers(0, 9, 20), random.normal(size=(12, 2))
    candidates = np.arange(4, 16)
    result = label_next(chances, degrees, queries, candidates, 5)
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
    assert result == chosen


def test_no_more_than_there_are():
    chances, none = np.array([[0.5, 0.5]]), np.array([], np.int64)
    assert label_next(chances, np.array([1]), np.ones((1, 1)), np.array([0]), 3) == [0]
    assert label_next(chances, np.array([1]), np.ones((0, 1)), none, 3) == []


def test_of_many_candidates_the_most_worth_are_considered(small_graph, fit, monkeypatch):
    saved = fit(small_graph)
    monkeypatch.setattr(module, "CONSIDERED", 2)
    chosen = explain_model(saved, small_graph).label_next
    probabilities = mean_probabilities(open_replicas(saved, small_graph))
    degrees = np.diff(small_graph.adjacency("undirected").indptr)
    worth = np.where(small_graph.split(0).train, -1, label_worth(probabilities, degrees))
    assert {int(one.node) for one in chosen} == set(np.argsort(-worth)[:2].tolist())
