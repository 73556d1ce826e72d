"""What neighbours add, against models asked again on graphs without the edges."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import hpgmn.explain.neighbors as module
import hpgmn.explain.removal as without
from hpgmn.classifier import HPGMNClassifier
from hpgmn.explain.neighbors import (
    RemovalEffects,
    Support,
    graph_without,
    neighbor_support,
    neighbors_of,
    probabilities_without,
    removal_effects,
    turning_point,
)
from hpgmn.explain.replicas import mean_probabilities, open_replicas
from hpgmn.graph import Array, Graph
from hpgmn.graph.datasets import load
from hpgmn.graph.synthetic import trading_network
from hpgmn.statistics import LocalStatistics
from hpgmn.training.saved import SavedModel

Fit = Callable[..., SavedModel]
Predicted = Callable[[SavedModel, Graph], Array]


def recomputed(opened, node, gone):
    """(C,) every statistic built anew without the edges, labels fixed; the calibrated mean."""
    found = []
    for one in opened:
        statistics = LocalStatistics(graph_without(one.graph, node, np.array(gone)))
        inputs = statistics.build(one.labels[None], 3, one.task.settings)
        with torch.no_grad():
            found.append(one.module(inputs).logits[0, node].softmax(dim=-1).numpy())
    powers = np.mean(found, axis=0) ** (1 / opened[0].temperature)
    return np.asarray(powers / powers.sum())


def test_the_graph_loses_the_edges_of_both_directions(named_graph):
    edges = named_graph.edge_index.T.tolist()
    source, target = edges[5]
    left = graph_without(named_graph, source, np.array([target]))
    assert named_graph.edge_weight is not None
    assert left.edge_weight is not None
    kept = [place for place, edge in enumerate(edges) if set(edge) != {source, target}]
    assert left.edge_index.T.tolist() == [edges[place] for place in kept]
    np.testing.assert_array_equal(left.edge_weight, named_graph.edge_weight[kept])
    assert left.class_names == named_graph.class_names
    assert left.num_listed_edges < named_graph.num_listed_edges


def test_neighbours_are_those_of_the_modes_read(small_graph, fit):
    for mode in ("out", "in"):
        opened = open_replicas(fit(small_graph, neighbors=mode), small_graph)
        expected = np.flatnonzero(small_graph.adjacency(mode).toarray()[4])
        np.testing.assert_array_equal(neighbors_of(opened, 4), expected)
    both = open_replicas(fit(small_graph, neighbors="both"), small_graph)
    expected = np.flatnonzero(small_graph.adjacency("undirected").toarray()[4])
    np.testing.assert_array_equal(neighbors_of(both, 4), expected)
    assert neighbors_of(both, 17).size == 0


@pytest.mark.parametrize("seeds", [1, 2])
def test_support_is_the_probability_with_minus_without(small_graph, fit, seeds):
    statistics = ("attributes", "class_counts", "class_means", "diffusion")
    saved = fit(small_graph, seeds=seeds, neighbors="both", statistics=statistics)
    opened = open_replicas(saved, small_graph)
    for node in (0, 4, 9):
        whole = recomputed(opened, node, [])
        label = int(whole.argmax())
        found = neighbor_support(opened, node, label, most=2)
        assert sorted(found.neighbors.tolist()) == neighbors_of(opened, node).tolist()
        expected = [whole[label] - recomputed(opened, node, [u])[label] for u in found.neighbors]
        np.testing.assert_allclose(found.support, expected, atol=1e-5)
        assert (np.diff(found.support) <= 0).all()
        assert found.removed == min(2, (found.support > 0).sum())
        together = recomputed(opened, node, found.neighbors[: found.removed].tolist())
        np.testing.assert_allclose(found.without, together, atol=1e-5)
        assert (found.approximate, found.left_out) == (0, 0)


def test_a_neighbour_that_gives_the_class_away_supports_it(fit):
    """Class 0 points to a hub of class 0, class 1 to one of class 1; attributes say nothing."""
    y = np.arange(40) % 2
    edges = [(v, v % 2) for v in range(2, 40)] + [(v, (v * 7) % 38 + 2) for v in range(2, 40)]
    mask = np.arange(40) < 30
    graph = Graph(
        np.eye(40)[y] + 1,
        np.array(edges).T,
        y,
        train_mask=mask,
        val_mask=~mask,
        test_mask=np.zeros(40, bool),
    )
    saved = fit(graph, neighbors="out", statistics=("adjacency",), epochs=60, num_patterns=3)
    opened = open_replicas(saved, graph)
    for node in (34, 35):
        found = neighbor_support(opened, node, node % 2)
        assert found.neighbors[0] == node % 2
        assert found.support[0] > 0.2
        wrong = neighbor_support(opened, node, 1 - node % 2)
        assert wrong.neighbors[-1] == node % 2
        assert wrong.support[-1] < -0.2


def test_without_no_neighbour_soft_counts_keep_the_predicted_probabilities(small_graph, fit):
    """Explanations must apply ``label_confidence`` to the shares behind soft counts too."""
    saved = fit(small_graph, soft_counts=True, label_confidence=0.6)
    opened = open_replicas(saved, small_graph)
    no_neighbor = [np.array([], dtype=np.int64)]
    for node in range(small_graph.num_nodes):
        found = probabilities_without(opened, node, no_neighbor)[0]
        np.testing.assert_allclose(found, mean_probabilities(opened)[node], atol=1e-6)


def test_blocks_do_not_change_the_answer(small_graph, fit, monkeypatch):
    opened = open_replicas(fit(small_graph), small_graph)
    sets = [np.array([u]) for u in neighbors_of(opened, 4)]
    expected = probabilities_without(opened, 4, sets)
    monkeypatch.setattr(module, "_ENTRIES", 1)
    np.testing.assert_allclose(probabilities_without(opened, 4, sets), expected, atol=1e-6)


def test_of_many_neighbours_only_the_strongest_are_exact(small_graph, fit, monkeypatch):
    opened = open_replicas(fit(small_graph, statistics=("class_counts", "diffusion")), small_graph)
    exact = neighbor_support(opened, 4, 1)
    expected = dict(zip(exact.neighbors.tolist(), exact.support.tolist(), strict=True))
    near = neighbors_of(opened, 4)
    kept = probabilities_without(opened, 4, [near[:0], *near[:, None]], keep_diffusion=True)[:, 1]
    rough = dict(zip(near.tolist(), (kept[0] - kept[1:]).tolist(), strict=True))
    monkeypatch.setattr(module, "EXACT_UP_TO", 2)
    monkeypatch.setattr(module, "EXACT_FIRST", 2)
    found = neighbor_support(opened, 4, 1)
    strongest = sorted(rough, key=lambda u: -rough[u])[:2]
    wanted = {u: expected[u] if u in strongest else rough[u] for u in rough}
    assert dict(zip(found.neighbors.tolist(), found.support.tolist(), strict=True)) == (
        pytest.approx(wanted, abs=1e-6)
    )
    assert found.approximate == len(near) - 2
    assert (np.diff(found.support) <= 0).all()
    without_diffusion = open_replicas(fit(small_graph), small_graph)
    assert neighbor_support(without_diffusion, 4, 1).approximate == 0


@pytest.mark.parametrize("model", ["gcn", "hpgmn-appnp", "linkx"])
def test_other_models_are_asked_again_without_the_edge(named_graph, fit, predicted, model):
    saved = fit(named_graph, model, seeds=2)
    opened = open_replicas(saved, named_graph)
    found = neighbor_support(opened, 4, 1, most=1)

    def asked(gone):  # node ids keep the columns of a changed graph
        return np.asarray(predicted(saved, graph_without(named_graph, 4, gone))[4])

    whole = asked(np.array([], np.int64))[1]
    expected = [whole - asked(np.array([u]))[1] for u in found.neighbors]
    np.testing.assert_allclose(found.support, expected, atol=1e-6)


def test_other_models_without_node_ids_are_asked_again_too(small_graph, fit):
    opened = open_replicas(fit(small_graph, "linkx"), small_graph)
    assert np.abs(neighbor_support(opened, 4, 1).support).max() > 1e-6


def test_other_models_are_asked_about_some_neighbours_only(small_graph, fit, monkeypatch):
    opened = open_replicas(fit(small_graph, "gcn"), small_graph)
    count = neighbors_of(opened, 4).size
    monkeypatch.setattr(module, "RERUNS", 2)
    found = neighbor_support(opened, 4, 1)
    assert (found.neighbors.size, found.left_out) == (2, count - 2)


# The turning point.


def tried(monkeypatch, opened, turns_at, support):
    """The turning point of a made-up model that changes its mind without so many neighbours."""
    sizes: list[int] = []

    def chances(_, __, removed, **___):
        sizes.extend(len(own) for own in removed)
        return np.array([[0.2, 0.8] if len(own) >= turns_at else [0.9, 0.1] for own in removed])

    monkeypatch.setattr(module, "probabilities_without", chances)
    values = np.array(support)
    given = Support(np.arange(values.size) + 100, values, 2, np.array([1.0, 0.0]), 0, 0)
    return turning_point(opened, 0, 0, given), sizes


def test_the_fewest_neighbours_that_change_the_class(small_graph, fit, monkeypatch):
    opened = open_replicas(fit(small_graph), small_graph)
    found, sizes = tried(monkeypatch, opened, 10, [0.1] * 30)
    assert found is not None
    assert found[0].tolist() == list(range(100, 110))
    assert found[1].tolist() == [0.2, 0.8]
    assert sizes == list(range(1, 17))
    stays, sizes = tried(monkeypatch, opened, 4, [0.1, 0.1, 0.0, -0.1])
    assert stays is None
    assert sizes == [1, 2]


def test_other_models_are_asked_about_the_named_ones_only(small_graph, fit, monkeypatch):
    opened = open_replicas(fit(small_graph, "gcn"), small_graph)
    found, sizes = tried(monkeypatch, opened, 3, [0.1] * 5)
    assert found is None
    assert sizes == [1, 2]


def test_replicas_share_their_diffusion_rows(small_graph, fit, monkeypatch):
    saved = fit(small_graph, seeds=3, neighbors="out", statistics=("class_counts", "diffusion"))
    opened = open_replicas(saved, small_graph)
    sets = [np.array([], np.int64), neighbors_of(opened, 4)[:1]]
    alone = [probabilities_without([one], 4, sets) for one in opened]
    walks: list[int] = []
    row = without.diffusion_row

    def counted(opened, name, adjacency, node):
        walks.append(node)
        return row(opened, name, adjacency, node)

    monkeypatch.setattr(without, "diffusion_row", counted)
    found = probabilities_without(opened, 4, sets)
    assert walks == [4, 4]  # one for each set
    [temperature] = set(saved.mean_temperatures)
    powers = np.mean(
        [
            chances**temperature / (chances**temperature).sum(axis=1, keepdims=True)
            for chances in alone
        ],
        axis=0,
    ) ** (1 / temperature)
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-6)


def test_effects_are_falls_of_the_predicted_class(small_graph, fit):
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


def test_removing_all_neighbours_is_the_same_for_named_and_drawn(small_graph, fit):
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


def test_difference_and_its_error_are_paired():
    found = RemovalEffects(np.arange(4), np.array([4.0, 2, 3, 3]), np.array([1.0, 1, 0, 2]))
    assert found.difference == pytest.approx(2)
    assert found.standard_error == pytest.approx(np.std([3, 1, 3, 1], ddof=1) / 2)


def check(model, graph):
    found = removal_effects(open_replicas(model.saved_, graph), count=200, least=3)
    assert found.nodes.size == 200
    assert found.difference > 4 * found.standard_error
    return found


@pytest.mark.slow
def test_named_neighbours_matter_on_the_built_in_graph():
    graph = trading_network(seed=0).graph
    model = HPGMNClassifier(seed=0, epochs=40, num_patterns=10).fit(graph)
    found = check(model, graph)
    assert found.named.mean() > 0.03


@pytest.mark.slow
def test_named_neighbours_matter_on_chameleon(data_dir, monkeypatch):
    monkeypatch.setenv("HPGMN_DATA", str(data_dir))
    graph = load("chameleon")
    model = HPGMNClassifier(
        seed=0, neighbors="out", epochs=30, estimator_epochs=20, num_patterns=20, lr=0.02
    )
    found = check(model.fit(graph), graph)
    assert found.named.mean() > 0.1
