"""What patterns stand for, against loops over nodes; and the planted patterns found back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hpgmn.classifier import HPGMNClassifier
from hpgmn.explain.patterns import Patterns, describe_patterns
from hpgmn.explain.replicas import mean_probabilities, open_replicas
from hpgmn.graph import Array, Graph
from hpgmn.graph.synthetic import class_pattern, trading_network
from hpgmn.training.saved import SavedModel

Fit = Callable[..., SavedModel]


def made(attention: Array) -> Patterns:
    count = attention.shape[1]
    return Patterns(attention, attention.mean(axis=0), np.zeros((count, 2)), {})


@pytest.mark.parametrize("model", ["hpgmn", "hpgmn-gcn"])
def test_descriptions_are_weighted_means_over_nodes(
    small_graph: Graph, fit: Fit, model: str
) -> None:
    changes = {"neighbors": "both"} if model == "hpgmn" else {}
    opened = open_replicas(fit(small_graph, model, **changes), small_graph)[0]
    chances = mean_probabilities([opened])
    found = describe_patterns(opened, chances)
    assert opened.attention is not None
    attention = opened.attention.numpy()
    train = small_graph.split(0).train
    assert list(found.neighborhood) == (["out", "in"] if model == "hpgmn" else ["undirected"])
    for pattern in range(attention.shape[1]):
        mean = attention[:, pattern].mean()
        profile = np.zeros(3)
        around = {mode: np.zeros(3) for mode in found.neighborhood}
        for node in range(18):
            weight = max(attention[node, pattern] - mean, 0)
            profile += weight * (np.eye(3)[small_graph.y[node]] if train[node] else chances[node])
            for mode, total in around.items():
                for other in np.flatnonzero(small_graph.adjacency(mode).toarray()[node]):
                    total[opened.labels[other]] += weight
        assert found.usage[pattern] == pytest.approx(mean, abs=1e-6)
        np.testing.assert_allclose(found.profile[pattern], profile / profile.sum(), atol=1e-5)
        for mode, total in around.items():
            expected = total / total.sum()
            np.testing.assert_allclose(found.neighborhood[mode][pattern], expected, atol=1e-5)
    first = attention[:, 0]
    assert found.typical_nodes(0, 2).tolist() == sorted(range(18), key=lambda v: -first[v])[:2]


def test_patterns_that_the_same_nodes_attend_to_are_redundant() -> None:
    random = np.random.default_rng(0)
    base = random.random((50, 3)) ** 4
    attention = np.column_stack([base, 0.5 * base[:, 1], base[:, 1] * random.uniform(0.9, 1.1, 50)])
    found = made(attention / attention.sum(axis=1, keepdims=True))
    assert found.redundant() == [[1, 3, 4]]
    assert found.unused == []


def test_patterns_of_no_attention_are_unused_and_not_redundant() -> None:
    attention = np.full((10, 4), [0.5, 0.48, 0.01, 0.01])
    attention[:5, 0] = 0.1
    attention[5:, 1] = 0.1
    found = made(attention / attention.sum(axis=1, keepdims=True))
    assert found.unused == [2, 3]
    assert found.redundant() == []


def test_nearly_even_attention_is_not_redundant_by_itself() -> None:
    """The cosine of such columns is about 1 whatever they do; these do the opposite."""
    attention = np.array([[0.55, 0.45], [0.45, 0.55]] * 10)
    assert made(attention).redundant() == []


def test_attention_that_all_nodes_pay_alike_is_not_redundant() -> None:
    random = np.random.default_rng(1)
    attention = np.full((40, 4), 0.25)
    attention[:, 0] += random.uniform(-0.05, 0.05, 40)
    attention[:, 1] = 0.5 - attention[:, 0]
    rounded = attention + 1e-8 * np.array([[1], [-1]] * 20)  # as single precision does
    found = made(rounded / rounded.sum(axis=1, keepdims=True))
    assert found.redundant() == []
    assert found.unused == []


def test_groups_are_not_chained() -> None:
    """Neighbours in a chain are alike, its ends are not: every two of a group have to be."""
    random = np.random.default_rng(0)
    plane = random.normal(size=(200, 2))
    plane = np.linalg.qr(plane - plane.mean(axis=0))[0]
    steps = np.deg2rad(15 * np.arange(6))  # the cosine of 15 degrees is 0.966, of 30 0.866
    columns = np.cos(steps) * plane[:, :1] + np.sin(steps) * plane[:, 1:]
    found = made(1 / 6 + 0.05 * columns)
    close = np.corrcoef(found.attention.T)
    assert close[0, 1] > 0.95 > close[0, 2]
    groups = found.redundant()
    assert sum(len(group) for group in groups) == 6
    assert groups == sorted(groups)
    for group in groups:
        assert close[np.ix_(group, group)].min() >= 0.95


def test_attention_alike_for_all_nodes_describes_nothing(small_graph: Graph, fit: Fit) -> None:
    opened = open_replicas(fit(small_graph), small_graph)[0]
    assert opened.attention is not None
    opened.attention.fill_(0.25)
    found = describe_patterns(opened, mean_probabilities([opened]))
    np.testing.assert_array_equal(found.profile, 0)


@pytest.fixture(scope="module")
def planted() -> tuple[Graph, HPGMNClassifier]:
    graph = trading_network(seed=0).graph
    return graph, HPGMNClassifier(seed=0, epochs=60, num_patterns=20).fit(graph)


def distance(one: Array, other: Array) -> float:
    """Total variation: the share of neighbours that would have to change their class."""
    return float(np.abs(one - other).sum() / 2)


def test_the_planted_patterns_are_found_back(planted: tuple[Graph, HPGMNClassifier]) -> None:
    """Class c pays by row c of the planted mix, and is paid by column c of it (classes are even).

    Found back: for each class the most used pattern whose nodes are mostly (at least 75 %) of that
    class has a typical neighbourhood that is nearer to the mix planted for that class than to
    that of any other, in both directions, and within 0.2 of it: labels are partly guessed, which
    blurs the mixes.
    """
    graph, model = planted
    opened = open_replicas(model.saved_, graph)
    found = describe_patterns(opened[0], mean_probabilities(opened))
    rows = class_pattern(5, homophily=0.0, noise=0.2)
    for label in range(5):
        mostly = np.flatnonzero(found.profile[:, label] >= 0.75)
        assert mostly.size, f"no pattern for class {label}"
        best = mostly[found.usage[mostly].argmax()]
        assert best not in found.unused
        for mode, mixes in (("out", rows), ("in", rows.T)):
            far = [distance(found.neighborhood[mode][best], mix) for mix in mixes]
            assert int(np.argmin(far)) == label
            assert far[label] < 0.2
            assert min(other for place, other in enumerate(far) if place != label) > 0.3


def test_patterns_of_an_untrained_memory_are_not_found_back(
    planted: tuple[Graph, HPGMNClassifier],
) -> None:
    """The description above is the memory's own: shuffled attention has no planted mix."""
    graph, model = planted
    opened = open_replicas(model.saved_, graph)
    attention = opened[0].attention
    assert attention is not None
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    attention.copy_(attention[order])
    found = describe_patterns(opened[0], mean_probabilities(opened))
    assert found.profile[found.usage.argmax()].max() < 0.4
