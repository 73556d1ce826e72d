"""Replicas, statistics' Shapley values and patterns, each against its definition."""

import itertools
import math
import sys
from copy import copy

import numpy as np
import pytest
import torch

import hpgmn.explain.replicas as module
from hpgmn.base.errors import HPGMNError
from hpgmn.estimators.classifier import HPGMNClassifier
from hpgmn.explain.replicas import (
    Patterns,
    describe_patterns,
    mean_outputs,
    mean_probabilities,
    memory_head,
    open_replicas,
    players,
    shapley_values,
    subset_values,
)
from hpgmn.graph import Graph
from hpgmn.graph.synthetic import class_pattern, trading_network
from hpgmn.models.hpgmn import estimator_logits


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("hpgmn", {}),
        ("hpgmn", {"batch_size": 4}),
        ("hpgmn", {"refinement": True, "epochs": 3}),
        ("hpgmn", {"memory": False}),
        ("hpgmn-gcn", {}),
        ("hpgmn-appnp", {}),
        ("gcn", {}),
        ("mlp", {}),
    ],
)
def test_probabilities_are_those_of_prediction(small_graph, fit, predicted, model, changes):
    saved = fit(small_graph, model, seeds=2, **changes)
    opened = open_replicas(saved, small_graph)
    expected = predicted(saved, small_graph)
    np.testing.assert_allclose(mean_probabilities(opened), expected, atol=1e-6)
    answered = saved.mean_probabilities(small_graph).numpy()
    np.testing.assert_allclose(mean_probabilities(opened), answered, atol=1e-6)
    has_memory = model.startswith("hpgmn") and changes.get("memory", True)
    assert all((one.attention is not None) == has_memory for one in opened)
    for one in opened:
        assert one.reads_statistics == (model == "hpgmn")
        if one.attention is not None:
            torch.testing.assert_close(one.attention.sum(dim=1), torch.ones(18))
        if (head := memory_head(one.stage.model)) is not None:
            query = one.queries(np.arange(18))
            with torch.no_grad():
                classified = _classified(head, query)
            torch.testing.assert_close(classified, one.logits, atol=1e-5, rtol=1e-5)


OWN_MODEL = """
from hpgmn.models.baselines.baseline import attributes_input, single_stage
from hpgmn.models.baselines.mlp import AttributesMLP, MLPSettings
from hpgmn.models.stage import ModelEntry
from hpgmn.nn import MemoryHead, MemorySettings


class Net(AttributesMLP):
    def __init__(self, task):
        super().__init__(task)
        classes = task.num_classes
        self.head = MemoryHead(
            len(task.replicas), classes, 4, classes, MemorySettings(num_patterns=3), self.drop_rate
        )

    def rows(self, inputs, noise, nodes):
        return self.head(super().rows(inputs, noise, nodes), noise).logits


ENTRY = ModelEntry("net", MLPSettings, single_stage(Net, attributes_input))
"""


def test_a_custom_model_with_a_memory_head_has_no_patterns(small_graph, fit, tmp_path, monkeypatch):
    """Its ``forward`` takes no ``details``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "net_with_head.py").write_text(OWN_MODEL, encoding="utf-8")
    saved = fit(small_graph, "net_with_head:ENTRY")
    [replica] = open_replicas(saved, small_graph)
    assert replica.attention is None
    torch.testing.assert_close(replica.logits, saved.logits(small_graph)[0])


def _classified(head, query):
    """Memory and classifier on queries, by the formulas of the paper."""
    joined = query
    if head.memory is not None:
        patterns = head.memory.patterns[0]
        joined = torch.cat([query, (query @ patterns.T).softmax(dim=1) @ patterns], dim=1)
    [layer] = head.classify.layers
    result: torch.Tensor = joined.relu() @ layer.weight[0] + layer.bias[0]
    return result


def test_queries_are_mapped_where_the_memory_is_narrower(small_graph, fit):
    opened = open_replicas(fit(small_graph, memory_dim=3), small_graph)[0]
    assert opened.queries(np.array([2, 5])).shape == (2, 3)
    assert opened.encodings(np.array([2, 5])).shape == (2, 7 * 6)


def test_labels_are_train_labels_and_the_guesses_behind_the_statistics(small_graph, fit):
    saved = fit(small_graph)
    opened = open_replicas(saved, small_graph)[0]
    train = small_graph.split(0).train
    guessed = estimator_logits(opened.task, saved.done["estimator"])[0].argmax(dim=-1).numpy()
    np.testing.assert_array_equal(opened.labels, np.where(train, small_graph.y, guessed))
    assert opened.shares is None
    refined = open_replicas(fit(small_graph, refinement=True, soft_counts=True), small_graph)[0]
    assert refined.shares is not None
    np.testing.assert_allclose(refined.shares.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(refined.shares[train].argmax(axis=1), small_graph.y[train])
    gcn = fit(small_graph, "gcn")
    answers = gcn.logits(small_graph)[0].argmax(dim=-1).numpy()
    labels = open_replicas(gcn, small_graph)[0].labels
    np.testing.assert_array_equal(labels, np.where(train, small_graph.y, answers))


def test_the_baseline_without_train_nodes_is_the_mean_of_all(small_graph, fit):
    saved = fit(small_graph, statistics=("attributes", "class_counts"))
    train = np.flatnonzero(small_graph.split(0).train)
    here = open_replicas(saved, small_graph)[0]
    torch.testing.assert_close(here.baseline, here.encodings(train).mean(dim=0))
    other = Graph(small_graph.x[:9], [[0, 1], [1, 2]], name="other")
    there = open_replicas(saved, other)[0]
    torch.testing.assert_close(there.baseline, there.encodings(np.arange(9)).mean(dim=0))


def test_modes_are_those_the_statistics_read(small_graph, fit):
    both = fit(small_graph, neighbors="both", statistics=("attributes", "class_counts"))
    opened = open_replicas(both, small_graph)[0]
    assert opened.modes == {"class_counts_out": "out", "class_counts_in": "in"}
    assert opened.neighbor_modes == ["out", "in"]
    alone = open_replicas(fit(small_graph, statistics=("attributes",)), small_graph)[0]
    assert alone.modes == {}
    assert open_replicas(fit(small_graph, "mlp"), small_graph)[0].neighbor_modes == ["undirected"]


def test_probabilities_that_are_not_numbers_are_refused(small_graph, fit):
    saved = copy(fit(small_graph, "mlp", seeds=2))  # without cached results
    for parameters in saved.done.values():
        for value in parameters.values():
            value[1] = torch.nan  # one seed is enough to spoil the mean
    with pytest.raises(HPGMNError, match="finite"):
        open_replicas(saved, small_graph)


def over_orders(values):
    """The definition: the mean of what a player adds, over all orders of arrival."""
    count = int(math.log2(len(values)))
    total = np.zeros(count)
    orders = list(itertools.permutations(range(count)))
    for order in orders:
        subset = 0
        for player in order:
            total[player] += values[subset | 1 << player] - values[subset]
            subset |= 1 << player
    return total / len(orders)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_values_are_means_over_orders(count):
    values = np.random.default_rng(count).normal(size=2**count)
    result = shapley_values(values)
    np.testing.assert_allclose(result, over_orders(values), atol=1e-12)
    assert result.sum() == pytest.approx(values[-1] - values[0], abs=1e-12)


def test_directions_are_one_player_and_means_over_neighbours_their_own(small_graph, fit):
    names = ("attributes", "class_means", "neighbor_class_means")
    opened = open_replicas(fit(small_graph, neighbors="both", statistics=names), small_graph)[0]
    assert len(opened.module.names) == 5
    assert players(opened) == list(names)


def test_subsets_replace_encodings_by_the_mean_of_the_train_nodes(small_graph, fit):
    names = ("attributes", "class_counts", "class_means")
    saved = fit(small_graph, seeds=2, neighbors="both", statistics=names, memory_dim=4)
    opened = open_replicas(saved, small_graph)
    node, label = 7, 2
    assert abs(saved.mean_calibration[0, 0, 0] - 1) > 0.05
    result = subset_values(opened, np.array([3, node]), np.array([0, label]))[1]
    train = torch.from_numpy(np.flatnonzero(small_graph.split(0).train))
    for subset in range(8):
        chances = []
        for one in opened:
            with torch.no_grad():
                parts = one.module.query(one.stage.inputs)[0].split(6, dim=-1)  # five of width 6
                query = torch.cat(
                    [
                        part[node] if subset >> player & 1 else part[train].mean(dim=0)
                        for part, player in zip(parts, (0, 1, 1, 2, 2), strict=True)
                    ]
                )
                chances.append(one.module.head(query[None, None]).logits[0, 0].softmax(dim=0))
        powers = torch.stack(chances).mean(dim=0) ** saved.mean_calibration[0, 0, 0]
        expected = (powers[label] / powers.sum()).log()
        assert result[subset] == pytest.approx(float(expected), abs=1e-5)


def test_the_numbers_of_one_node_are_held_at_a_time(small_graph, fit, monkeypatch):
    """Of more nodes there are more values only, not the logits of every class."""
    opened = open_replicas(fit(small_graph, seeds=2), small_graph)
    sizes: list[int] = []

    def counted(replicas, logits):
        sizes.append(logits.numel())
        return mean_outputs(replicas, logits)

    monkeypatch.setattr(module, "mean_outputs", counted)
    nodes = np.arange(18)
    together = subset_values(opened, nodes, nodes % 3)
    assert max(sizes) <= 2 * 2**4 * 3  # replicas, subsets, classes
    alone = [subset_values(opened, nodes[v : v + 1], nodes[v : v + 1] % 3)[0] for v in nodes]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_shares_add_up_to_the_gain_over_an_average_node(small_graph, fit, statistic_shares):
    opened = open_replicas(fit(small_graph, seeds=2), small_graph)
    chances = mean_probabilities(opened)
    nodes = np.array([0, 5, 17])
    labels = chances[nodes].argmax(axis=1)
    every = zip(
        nodes,
        labels,
        subset_values(opened, nodes, labels),
        statistic_shares(opened, nodes, labels),
        strict=True,
    )
    for node, label, values, shares in every:
        assert list(shares) == ["attributes", "class_counts", "class_means", "adjacency"]
        full = math.log(chances[node, label])
        assert sum(shares.values()) == pytest.approx(full - values[0], abs=1e-5)


def test_a_statistic_that_is_the_same_for_all_nodes_has_no_share(fit, statistic_shares):
    random = np.random.default_rng(0)
    y = np.arange(30) % 2
    ring = np.stack([np.arange(30), (np.arange(30) + 2) % 30])  # one neighbour of the same class
    mask = np.arange(30) < 20
    x = np.ones((30, 3)) + 0 * random.normal(size=(30, 3))
    graph = Graph(x, ring, y, train_mask=mask, val_mask=~mask, test_mask=np.zeros(30, bool))
    statistics = ("attributes", "adjacency")
    opened = open_replicas(fit(graph, neighbors="out", statistics=statistics), graph)
    [shares] = statistic_shares(opened, [4], [0])
    assert shares["attributes"] == pytest.approx(0, abs=1e-6)
    assert abs(shares["adjacency"]) > 1e-4


def made(attention):
    count = attention.shape[1]
    return Patterns(attention, attention.mean(axis=0), np.zeros((count, 2)), {})


@pytest.mark.parametrize("model", ["hpgmn", "hpgmn-gcn"])
def test_descriptions_are_weighted_means_over_nodes(small_graph, fit, model):
    changes = {"neighbors": "both"} if model == "hpgmn" else {}
    opened = open_replicas(fit(small_graph, model, **changes), small_graph)[0]
    chances = mean_probabilities([opened])
    result = describe_patterns(opened, chances)
    assert opened.attention is not None
    attention = opened.attention.numpy()
    train = small_graph.split(0).train
    assert list(result.neighborhood) == (["out", "in"] if model == "hpgmn" else ["undirected"])
    for pattern in range(attention.shape[1]):
        mean = attention[:, pattern].mean()
        profile = np.zeros(3)
        around = {mode: np.zeros(3) for mode in result.neighborhood}
        for node in range(18):
            weight = max(attention[node, pattern] - mean, 0)
            profile += weight * (np.eye(3)[small_graph.y[node]] if train[node] else chances[node])
            for mode, total in around.items():
                for other in np.flatnonzero(small_graph.adjacency(mode).toarray()[node]):
                    total[opened.labels[other]] += weight
        assert result.usage[pattern] == pytest.approx(mean, abs=1e-6)
        np.testing.assert_allclose(result.profile[pattern], profile / profile.sum(), atol=1e-5)
        for mode, total in around.items():
            expected = total / total.sum()
            np.testing.assert_allclose(result.neighborhood[mode][pattern], expected, atol=1e-5)
    first = attention[:, 0]
    assert result.typical_nodes(0, 2).tolist() == sorted(range(18), key=lambda v: -first[v])[:2]


def test_patterns_that_the_same_nodes_attend_to_are_redundant():
    random = np.random.default_rng(0)
    base = random.random((50, 3)) ** 4
    attention = np.column_stack([base, 0.5 * base[:, 1], base[:, 1] * random.uniform(0.9, 1.1, 50)])
    result = made(attention / attention.sum(axis=1, keepdims=True))
    assert result.redundant() == [[1, 3, 4]]
    assert result.unused == []


def test_patterns_of_no_attention_are_unused_and_not_redundant():
    attention = np.full((10, 4), [0.5, 0.48, 0.01, 0.01])
    attention[:5, 0] = 0.1
    attention[5:, 1] = 0.1
    result = made(attention / attention.sum(axis=1, keepdims=True))
    assert result.unused == [2, 3]
    assert result.redundant() == []


def test_nearly_even_attention_is_not_redundant_by_itself():
    """The cosine of such columns is about 1 whatever they do; these do the opposite."""
    attention = np.array([[0.55, 0.45], [0.45, 0.55]] * 10)
    assert made(attention).redundant() == []


def test_attention_that_all_nodes_pay_alike_is_not_redundant():
    random = np.random.default_rng(1)
    attention = np.full((40, 4), 0.25)
    attention[:, 0] += random.uniform(-0.05, 0.05, 40)
    attention[:, 1] = 0.5 - attention[:, 0]
    rounded = attention + 1e-8 * np.array([[1], [-1]] * 20)  # as single precision does
    result = made(rounded / rounded.sum(axis=1, keepdims=True))
    assert result.redundant() == []
    assert result.unused == []


def test_groups_are_not_chained():
    """Neighbours in a chain are alike, its ends are not: every two of a group have to be."""
    random = np.random.default_rng(0)
    plane = random.normal(size=(200, 2))
    plane = np.linalg.qr(plane - plane.mean(axis=0))[0]
    steps = np.deg2rad(15 * np.arange(6))  # the cosine of 15 degrees is 0.966, of 30 0.866
    columns = np.cos(steps) * plane[:, :1] + np.sin(steps) * plane[:, 1:]
    result = made(1 / 6 + 0.05 * columns)
    close = np.corrcoef(result.attention.T)
    assert close[0, 1] > 0.95 > close[0, 2]
    groups = result.redundant()
    assert sum(len(group) for group in groups) == 6
    assert groups == sorted(groups)
    for group in groups:
        assert close[np.ix_(group, group)].min() >= 0.95


def test_attention_alike_for_all_nodes_describes_nothing(small_graph, fit):
    opened = open_replicas(fit(small_graph), small_graph)[0]
    assert opened.attention is not None
    opened.attention.fill_(0.25)
    result = describe_patterns(opened, mean_probabilities([opened]))
    np.testing.assert_array_equal(result.profile, 0)


@pytest.fixture(scope="module")
def planted():
    graph = trading_network(seed=0).graph
    return graph, HPGMNClassifier(seed=0, epochs=60, num_patterns=20).fit(graph)


def distance(one, other):
    """Total variation: the share of neighbours that would have to change their class."""
    return float(np.abs(one - other).sum() / 2)


def test_the_planted_patterns_are_found_back(planted):
    """Class c pays by row c of the planted mix, and is paid by column c of it (classes are even).

    Found back: for each class the most used pattern whose nodes are mostly (at least 75 %) of that
    class has a typical neighbourhood that is nearer to the mix planted for that class than to
    that of any other, in both directions, and within 0.2 of it: labels are partly guessed, which
    blurs the mixes.
    """
    graph, model = planted
    opened = open_replicas(model.saved_, graph)
    result = describe_patterns(opened[0], mean_probabilities(opened))
    rows = class_pattern(5, homophily=0.0, noise=0.2)
    for label in range(5):
        mostly = np.flatnonzero(result.profile[:, label] >= 0.75)
        assert mostly.size, f"no pattern for class {label}"
        best = mostly[result.usage[mostly].argmax()]
        assert best not in result.unused
        for mode, mixes in (("out", rows), ("in", rows.T)):
            far = [distance(result.neighborhood[mode][best], mix) for mix in mixes]
            assert int(np.argmin(far)) == label
            assert far[label] < 0.2
            assert min(other for place, other in enumerate(far) if place != label) > 0.3


def test_patterns_of_an_untrained_memory_are_not_found_back(planted):
    """The description above is the memory's own: shuffled attention has no planted mix."""
    graph, model = planted
    opened = open_replicas(model.saved_, graph)
    attention = opened[0].attention
    assert attention is not None
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    attention.copy_(attention[order])
    result = describe_patterns(opened[0], mean_probabilities(opened))
    assert result.profile[result.usage.argmax()].max() < 0.4
