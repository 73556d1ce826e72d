"""Contributions of columns: Shapley values against brute force, and columns of boosted trees."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

import hpgmn
from hpgmn.explain import explain_model, explain_node
from hpgmn.explain.columns import (
    DataColumns,
    OwnAttributes,
    attribute_row,
    baseline_row,
    column_effects,
    column_importance,
    column_shapley,
    statistic_shares,
)
from hpgmn.explain.descriptions import STATISTICS
from hpgmn.explain.explanation import ColumnEffect
from hpgmn.explain.neighbors import probabilities_without
from hpgmn.explain.replicas import open_replicas
from hpgmn.graph.graph import Graph
from hpgmn.graph.synthetic import trading_network


@pytest.fixture(scope="module")
def graph():
    return trading_network(num_nodes=120, seed=1).graph


def two_class_graph(graph):
    split = graph.split(0)
    masks = {f"{part}_mask": getattr(split, part) for part in ("train", "val", "test")}
    return Graph(graph.x, graph.edge_index, graph.y % 2, **masks)


@pytest.mark.parametrize("classes", ["many", "two"])
def test_columns_add_up_to_the_log_odds(fit, graph, classes):
    chosen = graph if classes == "many" else two_class_graph(graph)
    saved = fit(chosen, "boosting", seeds=2)
    replicas = open_replicas(saved, chosen)
    nodes = np.arange(chosen.num_nodes)
    logits = saved.logits(chosen).double().numpy()
    for label in range(chosen.num_classes):
        shares = statistic_shares(replicas, nodes, np.full(nodes.size, label))
        found = shares.columns
        assert found.shape == (nodes.size, len(replicas[0].columns))
        others = np.delete(logits, label, axis=-1).mean(axis=-1)
        expected = (logits[..., label] - others).mean(axis=0)
        rest = expected - found.sum(axis=1)  # the mean of the train nodes
        np.testing.assert_allclose(rest, rest[0], atol=1e-5)
        np.testing.assert_allclose(shares.values.sum(axis=1), found.sum(axis=1))
        assert shares.values.shape[1] == len(shares.names)
        assert set(shares.names) <= STATISTICS.keys()


def test_a_node_is_explained_by_its_columns(fit, graph):
    saved = fit(graph, "boosting")
    explained = explain_node(saved, graph, 3)
    assert explained.baseline is None
    assert sum(explained.columns.values()) == pytest.approx(sum(explained.statistics.values()))
    values = list(explained.columns.values())
    assert values == sorted(values, reverse=True)
    largest = max(explained.columns, key=lambda name: abs(explained.columns[name]))
    effects = (ColumnEffect("age", 40.0, 0.1, 0.0),)
    assert largest in str(dataclasses.replace(explained, column_effects=()))
    assert largest not in str(dataclasses.replace(explained, column_effects=effects))
    assert explained.as_dict()["columns"] == explained.columns
    near = graph.adjacency("undirected")[[3]].indices
    assert len(explained.neighbors) == near.size


def test_a_model_is_explained_by_the_sizes_of_contributions(fit, graph):
    saved = fit(graph, "boosting")
    explained = explain_model(saved, graph, sample=20)
    nodes = np.random.default_rng(0).choice(graph.num_nodes, 20, replace=False)
    replicas = open_replicas(saved, graph)
    labels = saved.logits(graph)[0].argmax(dim=-1).numpy()[nodes]
    shares = statistic_shares(replicas, nodes, labels)
    sizes = dict(zip(shares.names, np.abs(shares.values).mean(axis=0), strict=True))
    assert explained.statistics == pytest.approx(sizes)
    assert explained.sampled == 20


def test_other_models_have_no_columns(fit, graph):
    explained = explain_node(fit(graph, "mlp"), graph, 3)
    assert explained.columns == {}
    assert explained.statistics == {}


# Own columns of a node


def brute_force(evaluate, row, baseline, owner):
    """The definition: the mean gain over all orders of the columns."""
    columns = range(owner.max() + 1)
    gains = np.zeros(owner.max() + 1)
    for order in itertools.permutations(columns):
        now = baseline.copy()
        for column in order:
            before = evaluate(now[None])[0]
            now[owner == column] = row[owner == column]
            gains[column] += evaluate(now[None])[0] - before
    return gains / math.factorial(len(columns))


def network(width, seed=0):
    random = np.random.default_rng(seed)
    first, second = random.normal(size=(width, 9)), random.normal(size=9)
    return lambda rows: np.tanh(rows @ first) @ second


def test_exact_values_are_those_of_all_orders():
    random = np.random.default_rng(1)
    row, baseline = random.normal(size=(2, 8))
    row[5] = baseline[5]  # a column without an effect
    owner = np.array([0, 0, 1, 2, 2, 3, 4, 4])
    effects, errors = column_shapley(network(8), row, baseline, owner)
    np.testing.assert_allclose(effects, brute_force(network(8), row, baseline, owner), atol=1e-12)
    assert effects[3] == 0
    assert not errors.any()


def test_a_linear_model_has_its_coefficients_times_the_distance_from_the_baseline():
    random = np.random.default_rng(2)
    row, baseline, weights = random.normal(size=(3, 30))
    owner = np.repeat(np.arange(15), 2)
    expected = np.bincount(owner, weights * (row - baseline))
    for evaluations in (2, 1 << 15):  # sampled, exact
        effects, errors = column_shapley(
            lambda rows: rows @ weights, row, baseline, owner, evaluations
        )
        np.testing.assert_allclose(effects, expected, atol=1e-10)
        np.testing.assert_allclose(errors, 0, atol=1e-10)


def test_sampled_values_add_up_and_are_close_to_exact_ones():
    random = np.random.default_rng(3)
    row, baseline = random.normal(size=(2, 11))
    owner, evaluate = np.arange(11), network(11, seed=3)
    exact, _ = column_shapley(evaluate, row, baseline, owner)
    sampled, errors = column_shapley(evaluate, row, baseline, owner, evaluations=1000)
    assert (errors > 0).all()
    assert (np.abs(sampled - exact) < 4 * errors).all()
    assert np.abs(sampled - exact).max() > 0
    total = evaluate(row[None])[0] - evaluate(baseline[None])[0]
    for effects in (exact, sampled):
        assert effects.sum() == pytest.approx(total, abs=1e-10)


@pytest.mark.parametrize("model", ["hpgmn", "mlp", "linkx", "boosting", "gcn"])
def test_a_node_with_its_own_attributes_has_the_predicted_log_odds(fit, graph, predicted, model):
    saved = fit(graph, model, seeds=2 if model == "hpgmn" else 1)
    replicas, nodes = open_replicas(saved, graph), np.array([3, 40])
    outputs = OwnAttributes(replicas, nodes)
    assert outputs.needs_passes == (model == "gcn")
    chances = saved.mean_probabilities(graph).double().numpy()
    for index, node in enumerate(nodes.tolist()):
        for label in range(graph.num_classes):
            found = outputs.log_odds(index, label, attribute_row(graph, node)[None])
            chance = chances[node, label]
            assert found == pytest.approx(math.log(chance / (1 - chance)), abs=1e-4)


@pytest.mark.parametrize("model", ["hpgmn", "mlp", "gcn"])
def test_other_attributes_are_those_of_a_graph_that_has_them(fit, graph, model):
    saved = fit(graph, model, **({"statistics": ("attributes",)} if model == "hpgmn" else {}))
    replicas, node = open_replicas(saved, graph), 7
    row = attribute_row(graph, node) + 1
    found = OwnAttributes(replicas, np.array([node])).log_odds(0, 2, row[None])
    x = graph.x.copy()
    x[node] = row
    chances = [
        saved.mean_probabilities(one)[node, 2].item() for one in (graph, graph.with_attributes(x))
    ]
    before, after = (math.log(chance / (1 - chance)) for chance in chances)
    assert abs(before - after) > 1e-3
    assert found == pytest.approx(after, abs=1e-4)


def test_effects_add_up_to_the_difference_from_the_baseline(fit, graph):
    saved = fit(graph)
    replicas, nodes = open_replicas(saved, graph), np.array([3, 40])
    columns = DataColumns.of(graph)
    effects, errors = column_effects(replicas, nodes, np.array([1, 2]), columns)
    assert not errors.any()
    baseline = baseline_row(replicas[0])
    train = graph.split(0).train
    np.testing.assert_allclose(baseline, graph.x[train].mean(axis=0), rtol=1e-5, atol=1e-6)
    for index, label in enumerate((1, 2)):
        rows = np.stack([attribute_row(graph, int(nodes[index])), baseline])
        own, usual = OwnAttributes(replicas, nodes).log_odds(index, label, rows)
        assert effects[index].sum() == pytest.approx(own - usual, abs=1e-5)
    importance, _ = column_importance(replicas, nodes, np.array([1, 2]))
    sizes = np.abs(effects).mean(axis=0)
    assert importance == pytest.approx(dict(zip(columns.names, sizes, strict=True)))
    assert list(importance.values()) == sorted(importance.values(), reverse=True)


def test_sparse_attributes_are_compared_with_their_median(fit, graph):
    x = np.where(graph.x > 0.8, 1, 0).astype(np.float32)
    x[:, 0] = 1
    x[::5, 0] = 0
    sparse = Graph(
        sp.csr_array(x),
        graph.edge_index,
        graph.y,
        **{f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")},
    )
    replicas = open_replicas(fit(sparse), sparse)
    expected = np.median(x[sparse.split(0).train], axis=0)
    np.testing.assert_array_equal(baseline_row(replicas[0]), expected)
    assert expected[0] == 1
    effects, _ = column_effects(replicas, np.array([5]), np.array([0]), DataColumns.of(sparse))
    assert not effects[0, x[5] == expected].any()


@pytest.fixture(scope="module")
def from_table():
    """People of two classes with columns of every type."""
    random, count = np.random.default_rng(0), 90
    age = random.normal(40, 12, count).round().tolist()
    age[4] = None
    kind = random.choice(["bank", "firm", "person"], count)
    nodes = {
        "id": [f"p{number}" for number in range(count)],
        "age": age,
        "kind": kind.tolist(),
        "is_old": [value is not None and value > 40 for value in age],
        "since": [f"2021-03-{day:02}" for day in random.integers(1, 29, count)],
        "label": ["yes" if word == "bank" else "no" for word in kind],
    }
    source, target = random.integers(0, count, (2, 200))
    edges = {"source": [f"p{n}" for n in source], "target": [f"p{n}" for n in target]}
    graph = hpgmn.from_tables(nodes, edges)
    return graph.with_splits(hpgmn.random_splits(graph, 1)), nodes


def test_columns_of_tables_are_players_with_their_original_values(fit, from_table):
    graph, nodes = from_table
    columns = DataColumns.of(graph)
    assert {"age", "kind", "is_old", "since"} <= set(columns.names)
    for name in ("age", "kind", "since", "is_old"):
        number = columns.names.index(name)
        found = [columns.value(number, attribute_row(graph, v)) for v in range(20)]
        assert found == nodes[name][:20]
    saved = fit(graph, epochs=40)
    explained = explain_node(saved, graph, "p4")
    assert {effect.column for effect in explained.column_effects} <= set(columns.names)
    assert "age = missing" in map(str, explained.column_effects)
    sizes = [abs(effect.effect) for effect in explained.column_effects]
    assert sizes == sorted(sizes, reverse=True)
    assert str(explained.column_effects[0]) in str(explained)
    importance = explain_model(saved, graph).columns
    assert next(iter(importance)) == "kind"  # decides the label


def test_aggregates_of_times_are_dates_and_durations():
    nodes = {"id": ["a", "b", "c", "d"], "size": [1.0, 2.0, 4.0, 9.0]}
    edges = {
        "source": ["a", "a", "a", "b", "b", "c", "c"],
        "target": ["b", "c", "d", "a", "c", "d", "a"],
        "at": [
            *("2024-03-01 06:00", "2024-03-03 06:00", "2024-03-07 18:00"),
            *("2024-03-02 00:00", "2024-03-02 22:00"),
            *("2024-03-09 10:30", "2024-03-09 11:15"),
        ],
    }
    graph = hpgmn.from_tables(nodes, edges, directed=True)
    columns = DataColumns.of(graph)

    def value(what, node):
        return columns.value(columns.names.index(what), attribute_row(graph, node))

    assert value("at (out, first)", 0) == "2024-03-01 06:00"
    assert value("at (out, last)", 0) == "2024-03-07 18:00"
    gaps = [value("at (out, mean gap)", node) for node in range(3)]
    assert gaps == ["3.2 days", "22 h", "45 min"]
    assert value("at (out, last 10 %)", 2) == 1
    assert value("edges (out, count)", 0) == 3


# Regression


@pytest.fixture(scope="module")
def regression(graph):
    """Targets that depend on two attributes; every seventh is unknown."""
    y = 2e3 * graph.x[:, 0] - 1e3 * graph.x[:, 1] + 5e3
    y = np.where(np.arange(graph.num_nodes) % 7 == 0, np.nan, y)
    masks = {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    known = ~np.isnan(y)[:, None]
    masks = {name: mask & known for name, mask in masks.items()}
    return Graph(graph.x, graph.edge_index, y, name="numbers", **masks)


@pytest.mark.parametrize("model", ["hpgmn", "mlp", "boosting", "gcn"])
def test_targets_are_explained_in_their_own_unit(fit, regression, model):
    changes = {"statistics": ("attributes", "class_counts", "class_means", "target_means")}
    saved = fit(regression, model, seeds=2, **(changes if model == "hpgmn" else {}))
    node, other = np.flatnonzero(regression.split(0).train)[3:5].tolist()
    predicted = saved.mean_probabilities(regression)[:, 0].numpy()
    explained = explain_node(saved, regression, node)
    assert float(explained.prediction) == pytest.approx(predicted[node], rel=1e-3)
    assert explained.probabilities == {}
    assert float(explained.label or "nan") == pytest.approx(regression.y[node], rel=1e-3)
    baseline = baseline_row(open_replicas(saved, regression)[0])
    model_at = OwnAttributes(open_replicas(saved, regression), np.array([node]))
    own, usual = model_at.log_odds(0, 0, np.stack([attribute_row(regression, node), baseline]))
    assert own == pytest.approx(predicted[node], rel=1e-5)
    total = sum(effect.effect for effect in explained.column_effects)
    assert total == pytest.approx(own - usual, rel=1e-4, abs=0.1)
    if model == "hpgmn":
        shares = explained.baseline + sum(explained.statistics.values())
        assert shares == pytest.approx(predicted[node], rel=1e-4)
    if model == "boosting":
        second = explain_node(saved, regression, other)
        rest = predicted[node] - sum(explained.columns.values())  # the mean of the train nodes
        assert rest == pytest.approx(predicted[other] - sum(second.columns.values()), rel=1e-4)
    near = np.unique(regression.adjacency("undirected")[[node]].indices)
    assert len(explained.neighbors) == near.size
    if model == "gcn":
        removed, edges = explained.neighbors[0], regression.edge_index
        kept = [set(edge) != {node, int(removed.node)} for edge in edges.T.tolist()]
        without = Graph(regression.x, edges[:, kept], regression.y)
        after = saved.mean_probabilities(without)[node, 0].item()
        assert removed.support == pytest.approx(predicted[node] - after, rel=1e-3, abs=0.1)
    if model == "hpgmn":
        replicas = open_replicas(saved, regression)
        again = probabilities_without(replicas, node, [np.empty(0, np.int64)])
        assert again[0, 0] == pytest.approx(
            predicted[node], rel=1e-4
        )  # target_means as in training
    assert str(explained.prediction) in str(explained)
    overview = explain_model(saved, regression, sample=10)
    assert overview.label_next == overview.patterns == ()
    assert bool(overview.columns) == (model != "gcn")
    assert ("not computed" in str(overview)) == (model == "gcn")


def test_a_decision_threshold_decides_what_is_explained(fit, from_table):
    graph, _ = from_table
    saved = fit(graph)
    likely = saved.mean_probabilities(graph).numpy()
    node = int(np.abs(likely[:, 0] - likely[:, 1]).argmin())
    assert (
        explain_node(saved, graph, f"p{node}").prediction
        == graph.class_names[likely[node].argmax()]
    )
    offset = np.array([9.0, 0.0]) if likely[node].argmax() else np.array([0.0, 9.0])
    saved.mean_calibration = saved.mean_calibration.copy()
    saved.mean_calibration[:, 2] = offset
    explained = explain_node(saved, graph, f"p{node}")
    assert explained.prediction == graph.class_names[likely[node].argmin()]
