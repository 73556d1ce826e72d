"""Effects of neighbours against statistics and models recomputed without the edges."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import hpgmn.explain.neighbors as module
from hpgmn.base.errors import HPGMNError
from hpgmn.estimators.classifier import HPGMNClassifier
from hpgmn.explain.neighbors import (
    RemovalEffects,
    Support,
    graph_without,
    neighbor_support,
    neighbors_of,
    probabilities_without,
    removal_effects,
    statistics_without,
    turning_point,
)
from hpgmn.explain.replicas import mean_probabilities, open_replicas
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.graph.synthetic import trading_network
from hpgmn.statistics import LocalStatistics

FOUR = ("attributes", "class_counts", "class_means", "diffusion")
PASSED = ("attributes", "hops", "message_passing")
CHOSEN = (0, 3, 4, 10, 13)  # in the small graph 3 has a self-loop, 4 a repeated edge
NEIGHBORS = ("adjacency", "neighbor_class_counts", "neighbor_class_means", "neighbor_adjacency")


def cut(graph, node, gone):
    """The graph without the edges between a node and others, edge by edge."""
    kept = [
        place
        for place, (source, target) in enumerate(graph.edge_index.T.tolist())
        if not ((source == node and target in gone) or (target == node and source in gone))
    ]
    weights = None if graph.edge_weight is None else graph.edge_weight[kept]
    return Graph(
        graph.x,
        graph.edge_index[:, kept],
        graph.y,
        edge_weight=weights,
        edge_type=None if graph.edge_type is None else graph.edge_type[kept],
        edge_type_names=graph.edge_type_names,
        directed=graph.directed,
        node_ids=graph.node_ids,
    )


def recomputed(opened, node, gone, columns=None):
    """All statistics recomputed without the edges, labels fixed: the node's rows and logits."""
    graph = cut(opened.graph, node, gone)
    width = None if columns is None else opened.task.statistics.width
    statistics = LocalStatistics(graph, columns=columns, width=width)
    shares = None if opened.shares is None else opened.shares[None]
    inputs = statistics.build(
        opened.labels[None], opened.task.num_classes, opened.task.settings, shares
    )
    with torch.no_grad():
        logits = opened.module(inputs).logits[0, node]
    rows = {name: inputs[name].rows(torch.tensor([node]))[0] for name in opened.module.names}
    return rows, logits


def recomputed_mean(replicas, node, gone):
    """Return (C,) the calibrated mean of the recomputed probabilities."""
    outputs = [recomputed(replica, node, gone)[1].softmax(dim=-1).numpy() for replica in replicas]
    powers = np.mean(outputs, axis=0) ** replicas[0].calibration[0, 0]
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
@pytest.mark.parametrize("statistics", [FOUR, PASSED], ids=["rows", "passed on"])
def test_support_is_the_probability_with_minus_without(small_graph, fit, seeds, statistics):
    settings = {"statistics": statistics, "hops": 3, "mp_layers": 3}
    saved = fit(small_graph, seeds=seeds, neighbors="both", **settings)
    opened = open_replicas(saved, small_graph)
    for node in (0, 4, 9):
        whole = recomputed_mean(opened, node, [])
        label = int(whole.argmax())
        result = neighbor_support(opened, node, label, most=2)
        assert sorted(result.neighbors.tolist()) == neighbors_of(opened, node).tolist()
        expected = [
            whole[label] - recomputed_mean(opened, node, [u])[label] for u in result.neighbors
        ]
        np.testing.assert_allclose(result.support, expected, atol=1e-5)
        assert (np.diff(result.support) <= 0).all()
        assert result.removed == min(2, (result.support > 0).sum())
        together = recomputed_mean(opened, node, result.neighbors[: result.removed].tolist())
        np.testing.assert_allclose(result.without, together, atol=1e-5)
        assert (result.approximate, result.left_out) == (0, 0)


def test_passes_over_the_whole_graph_are_limited(small_graph, fit, monkeypatch):
    saved = fit(small_graph, neighbors="undirected", statistics=PASSED)
    opened = open_replicas(saved, small_graph)
    monkeypatch.setattr(module, "RERUNS", 2)
    result = neighbor_support(opened, 4, 0)
    assert result.neighbors.size == 2
    assert result.left_out == neighbors_of(opened, 4).size - 2 > 0
    assert any(str(result.left_out) in note for note in module.node_notes(opened, result))


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
        result = neighbor_support(opened, node, node % 2)
        assert result.neighbors[0] == node % 2
        assert result.support[0] > 0.2
        wrong = neighbor_support(opened, node, 1 - node % 2)
        assert wrong.neighbors[-1] == node % 2
        assert wrong.support[-1] < -0.2


def test_without_no_neighbour_soft_counts_keep_the_predicted_probabilities(small_graph, fit):
    """Explanations must apply ``label_confidence`` to the shares behind soft counts too."""
    saved = fit(small_graph, soft_counts=True, label_confidence=0.6)
    opened = open_replicas(saved, small_graph)
    no_neighbor = [np.array([], dtype=np.int64)]
    for node in range(small_graph.num_nodes):
        result = probabilities_without(opened, node, no_neighbor)[0]
        np.testing.assert_allclose(result, mean_probabilities(opened)[node], atol=1e-6)


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
    result = neighbor_support(opened, 4, 1)
    strongest = sorted(rough, key=lambda u: -rough[u])[:2]
    mixed = {u: expected[u] if u in strongest else rough[u] for u in rough}
    assert dict(zip(result.neighbors.tolist(), result.support.tolist(), strict=True)) == (
        pytest.approx(mixed, abs=1e-6)
    )
    assert result.approximate == len(near) - 2
    assert (np.diff(result.support) <= 0).all()
    without_diffusion = open_replicas(fit(small_graph), small_graph)
    assert neighbor_support(without_diffusion, 4, 1).approximate == 0


@pytest.mark.parametrize("model", ["gcn", "hpgmn-appnp", "linkx"])
def test_other_models_are_rerun_without_the_edge(named_graph, fit, predicted, model):
    saved = fit(named_graph, model, seeds=2)
    opened = open_replicas(saved, named_graph)
    result = neighbor_support(opened, 4, 1, most=1)

    def rerun(gone):  # node ids keep the columns of a changed graph
        return np.asarray(predicted(saved, graph_without(named_graph, 4, gone))[4])

    whole = rerun(np.array([], np.int64))[1]
    expected = [whole - rerun(np.array([u]))[1] for u in result.neighbors]
    np.testing.assert_allclose(result.support, expected, atol=1e-6)


def test_other_models_without_node_ids_are_rerun(small_graph, fit):
    opened = open_replicas(fit(small_graph, "linkx"), small_graph)
    assert np.abs(neighbor_support(opened, 4, 1).support).max() > 1e-6


def test_other_models_are_rerun_for_the_first_neighbours(small_graph, fit, monkeypatch):
    opened = open_replicas(fit(small_graph, "gcn"), small_graph)
    count = neighbors_of(opened, 4).size
    monkeypatch.setattr(module, "RERUNS", 2)
    result = neighbor_support(opened, 4, 1)
    assert (result.neighbors.size, result.left_out) == (2, count - 2)


# The turning point.


def tried(monkeypatch, opened, turns_at, support):
    """The turning point of a fake model that changes its class without ``turns_at`` neighbours."""
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
    result, sizes = tried(monkeypatch, opened, 10, [0.1] * 30)
    assert result is not None
    assert result[0].tolist() == list(range(100, 110))
    assert result[1].tolist() == [0.2, 0.8]
    assert sizes == list(range(1, 17))
    stays, sizes = tried(monkeypatch, opened, 4, [0.1, 0.1, 0.0, -0.1])
    assert stays is None
    assert sizes == [1, 2]


def test_other_models_are_rerun_without_the_named_ones_only(small_graph, fit, monkeypatch):
    opened = open_replicas(fit(small_graph, "gcn"), small_graph)
    result, sizes = tried(monkeypatch, opened, 3, [0.1] * 5)
    assert result is None
    assert sizes == [1, 2]


def test_replicas_share_their_diffusion_rows(small_graph, fit, monkeypatch):
    saved = fit(small_graph, seeds=3, neighbors="out", statistics=("class_counts", "diffusion"))
    opened = open_replicas(saved, small_graph)
    sets = [np.array([], np.int64), neighbors_of(opened, 4)[:1]]
    alone = [probabilities_without([one], 4, sets) for one in opened]
    walks: list[int] = []
    row = module.diffusion_row

    def counted(opened, name, adjacency, node):
        walks.append(node)
        return row(opened, name, adjacency, node)

    monkeypatch.setattr(module, "diffusion_row", counted)
    result = probabilities_without(opened, 4, sets)
    assert walks == [4, 4]  # one for each set
    [temperature] = set(1 / saved.mean_calibration[:, 0, 0])
    powers = np.mean(
        [
            chances**temperature / (chances**temperature).sum(axis=1, keepdims=True)
            for chances in alone
        ],
        axis=0,
    ) ** (1 / temperature)
    np.testing.assert_allclose(result, powers / powers.sum(axis=1, keepdims=True), atol=1e-6)


def test_effects_are_falls_of_the_predicted_class(small_graph, fit):
    opened = open_replicas(fit(small_graph), small_graph)
    chances = mean_probabilities(opened)
    result = removal_effects(opened, count=8, least=3, most=2, seed=1)
    assert result.nodes.size == 8
    assert len(set(result.nodes.tolist())) == 8
    for node, named in zip(result.nodes.tolist(), result.named, strict=True):
        assert neighbors_of(opened, node).size >= 3
        label = int(chances[node].argmax())
        support = neighbor_support(opened, node, label, most=2)
        gone = support.neighbors[: support.removed]
        without = probabilities_without(opened, node, [gone])[0, label]
        assert named == pytest.approx(chances[node, label] - without, abs=1e-6)
    again = removal_effects(opened, count=8, least=3, most=2, seed=1)
    np.testing.assert_array_equal(again.drawn, result.drawn)


def test_removing_all_neighbours_is_the_same_for_named_and_drawn(small_graph, fit):
    opened = open_replicas(fit(small_graph), small_graph)
    result = removal_effects(opened, count=18, least=1, most=99)
    chances = mean_probabilities(opened)
    equal = 0
    for place, node in enumerate(result.nodes.tolist()):
        support = neighbor_support(opened, node, int(chances[node].argmax()), most=99)
        if support.removed == support.neighbors.size:
            equal += 1
            assert result.named[place] == pytest.approx(result.drawn[place], abs=1e-6)
    assert equal > 0
    assert result.nodes.size == 17  # node 17 has no neighbour


def test_difference_and_its_error_are_paired():
    result = RemovalEffects(np.arange(4), np.array([4.0, 2, 3, 3]), np.array([1.0, 1, 0, 2]))
    assert result.difference == pytest.approx(2)
    assert result.standard_error == pytest.approx(np.std([3, 1, 3, 1], ddof=1) / 2)


def check(model, graph):
    result = removal_effects(open_replicas(model.saved_, graph), count=200, least=3)
    assert result.nodes.size == 200
    assert result.difference > 4 * result.standard_error
    return result


@pytest.mark.slow
def test_named_neighbours_matter_on_the_built_in_graph():
    graph = trading_network(seed=0).graph
    model = HPGMNClassifier(seed=0, epochs=40, num_patterns=10).fit(graph)
    result = check(model, graph)
    assert result.named.mean() > 0.03


@pytest.mark.slow
def test_named_neighbours_matter_on_chameleon(data_dir, monkeypatch):
    monkeypatch.setenv("HPGMN_DATA", str(data_dir))
    graph = load("chameleon")
    model = HPGMNClassifier(
        seed=0, neighbors="out", epochs=30, estimator_epochs=20, num_patterns=20, lr=0.02
    )
    result = check(model.fit(graph), graph)
    assert result.named.mean() > 0.1


# Statistics of one node without neighbours.


def compare(opened, columns=None, tolerance=1e-5):
    """Check every node with each of its neighbours, and with two at once; returns how many."""
    checked = 0
    both = opened.graph.adjacency("undirected")
    for node in CHOSEN:
        near = both.indices[both.indptr[node] : both.indptr[node + 1]].tolist()
        assert near
        sets = [[], *([one] for one in near[:4]), near[:2], near]
        inputs = statistics_without(opened, node, [np.array(own, np.int64) for own in sets])
        with torch.no_grad():
            logits = opened.module(inputs).logits[0]
        for place, gone in enumerate(sets):
            rows, expected = recomputed(opened, node, gone, columns)
            for name, row in rows.items():
                result = inputs[name].rows(torch.tensor([place]))[0]
                torch.testing.assert_close(result, row, atol=tolerance, rtol=tolerance)
            torch.testing.assert_close(
                logits[place].softmax(dim=-1), expected.softmax(dim=-1), atol=1e-5, rtol=0
            )
            checked += 1
    return checked


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected", "both"])
@pytest.mark.parametrize("statistics", [FOUR, ("attributes", *NEIGHBORS)])
def test_every_statistic_in_every_mode(named_graph, fit, neighbors, statistics):
    saved = fit(named_graph, neighbors=neighbors, statistics=statistics)
    assert compare(open_replicas(saved, named_graph)[0]) > 25


@pytest.mark.parametrize("neighbors", ["out", "both"])
def test_statistics_by_type(named_graph, typed, fit, neighbors):
    graph = typed(named_graph)
    saved = fit(graph, neighbors=neighbors, statistics=("class_counts", "class_means"))
    assert compare(open_replicas(saved, graph)[0]) > 25


@pytest.mark.parametrize("statistics", [("class_counts", "class_means"), ("message_passing",)])
def test_support_on_types_is_the_probability_with_minus_without(
    small_graph, typed, fit, statistics
):
    graph = typed(small_graph)
    replicas = open_replicas(fit(graph, seeds=2, statistics=statistics), graph)
    label = int(mean_probabilities(replicas)[4].argmax())
    support = neighbor_support(replicas, 4, label)
    whole = mean_probabilities(replicas)[4, label]
    for other, value in zip(support.neighbors.tolist(), support.support, strict=True):
        expected = whole - recomputed_mean(replicas, 4, [other])[label]
        assert value == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"class_counts_scaling": "raw", "class_means_scaling": "unit"},
        {"class_counts_scaling": "fraction", "diffusion_scaling": "raw"},
        {"class_counts_scaling": "unit", "diffusion_self_entry": True},
        {"soft_counts": True},
        {"label_confidence": 0.5},
        {"refinement": True, "epochs": 3},
        {"diffusion": "heat"},
        {"diffusion_form": "implicit", "normalization": "row"},
        {"normalization": "symmetric", "diffusion_self_loop": 1},
        {"diffusion_form": "sketch", "diffusion_dim": 16},
        {"diffusion_form": "sketch", "diffusion_dim": 16, "diffusion_self_entry": True},
        {"diffusion_form": "sketch", "diffusion_dim": 16, "diffusion_scaling": "raw"},
        {"diffusion_form": "topk", "diffusion_topk": 4, "diffusion_threshold": 1e-9},
        {"diffusion_form": "topk", "diffusion_topk": 4, "diffusion_threshold": 0.02},
        {"diffusion_form": "topk", "diffusion": "heat", "diffusion_self_entry": True},
        {"batch_size": 4},
        {"batch_size": 4, "class_means_form": "half", "class_means_scaling": "unit"},
        {"class_means_form": "sketch", "class_means_dim": 4},
        {"class_means_form": "factored", "class_means_scaling": "unit"},
    ],
)
def test_every_form_and_scaling(small_graph, fit, changes):
    saved = fit(small_graph, **{"neighbors": "out", "statistics": FOUR} | changes)
    # Half precision may round the last digit the other way.
    is_half = "batch_size" in changes or changes.get("class_means_form") == "sketch"
    assert compare(open_replicas(saved, small_graph)[0], tolerance=1e-3 if is_half else 1e-5) > 25


@pytest.mark.parametrize("scaling", ["raw", "fraction", "unit"])
def test_adjacency_rows_in_every_scaling(small_graph, fit, scaling):
    saved = fit(small_graph, statistics=("adjacency",), adjacency_scaling=scaling)
    compare(open_replicas(saved, small_graph)[0])


def test_sparse_attributes(small_graph, fit):
    x = np.where(np.abs(small_graph.x) > 0.3, small_graph.x, 0)
    assert small_graph.splits is not None
    masks = {f"{part}_mask": getattr(small_graph.splits, part) for part in ("train", "val", "test")}
    graph = Graph(sp.csr_array(x), small_graph.edge_index, small_graph.y, **masks)
    saved = fit(graph, statistics=(*FOUR[:3], "neighbor_attributes"))
    compare(open_replicas(saved, graph)[0])


def test_columns_are_those_of_the_training_on_another_graph(named_graph, fit):
    saved = fit(named_graph, neighbors="both", statistics=("adjacency", "diffusion"))
    order = np.random.default_rng(0).permutation(18)[:14]
    place = {int(old): new for new, old in enumerate(order)}
    edges = [
        (place[s], place[t])
        for s, t in named_graph.edge_index.T.tolist()
        if s in place and t in place
    ]
    assert named_graph.node_ids is not None
    names = named_graph.node_ids[order].copy()
    names[0] = "a new one"
    other = Graph(
        named_graph.x[order], np.array(edges).T, named_graph.y[order], node_ids=names, name="other"
    )
    columns = np.where(np.arange(14) == 0, -1, order)
    assert compare(open_replicas(saved, other)[0], columns) > 25


def test_a_kept_diffusion_row_is_the_only_one_that_stays(small_graph, fit):
    opened = open_replicas(fit(small_graph, neighbors="out", statistics=FOUR), small_graph)[0]
    near = small_graph.adjacency("out").indices[:1].astype(np.int64)
    row = torch.tensor([0])
    kept = statistics_without(opened, 0, [near], keep_diffusion=True)
    recomputed_rows = statistics_without(opened, 0, [near])
    whole = opened.stage.inputs["diffusion"].rows(row)
    torch.testing.assert_close(kept["diffusion"].rows(row), whole)
    assert not torch.allclose(recomputed_rows["diffusion"].rows(row), whole, atol=1e-3)
    torch.testing.assert_close(
        kept["class_counts"].rows(row), recomputed_rows["class_counts"].rows(row)
    )


def test_a_node_without_neighbours_keeps_its_statistics(small_graph, fit):
    saved = fit(small_graph, neighbors="both", statistics=(*FOUR, *NEIGHBORS))
    opened = open_replicas(saved, small_graph)[0]
    inputs = statistics_without(opened, 17, [np.array([], np.int64)])
    with torch.no_grad():
        torch.testing.assert_close(opened.module(inputs).logits[0, 0], opened.logits[17])


def test_an_unknown_statistic_is_refused(small_graph, fit):
    """A statistic that is added must not pass for adjacency rows."""
    replica = open_replicas(fit(small_graph, statistics=("adjacency",)), small_graph)[0]
    replica.module.names = ["triangles"]
    replica.__dict__["modes"] = {"triangles": "out"}
    replica.stage.inputs["triangles"] = replica.stage.inputs["adjacency_out"]
    with pytest.raises(HPGMNError, match="The statistic 'triangles' cannot be recomputed"):
        statistics_without(replica, 0, [np.array([], np.int64)])
