"""The built-in graph: what was planted is there, and its best accuracy is the oracle's."""

import hashlib

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from hpgmn.base.errors import SettingError
from hpgmn.graph.homophily import node_homophily
from hpgmn.graph.synthetic import (
    class_pattern,
    class_posterior,
    size_pattern,
    supply_network,
    trading_network,
)


def posterior_by_loop(x, source, target, y, is_new, means, pattern, kind=None):
    """Bayes' rule with the probability of the whole graph, written out draw by draw."""
    num_nodes, num_classes = len(y), len(pattern)
    kind = np.zeros(num_nodes, int) if kind is None else kind
    shares = pattern.reshape(num_classes, num_classes, -1)
    log_joint = np.zeros((num_nodes, num_classes))
    for node in range(num_nodes):
        for label in range(num_classes):
            guess = y.copy()
            guess[node] = label
            log_joint[node, label] = -((x[node] - means[label]) ** 2).sum() / 2
            for payer, paid in zip(source, target, strict=True):
                others = (guess == guess[paid]) & (kind == kind[paid]) & ~is_new
                others[payer] = False
                share = shares[guess[payer], guess[paid], kind[paid]] / others.sum()
                log_joint[node, label] += np.log(share)
    joint = np.exp(log_joint - log_joint.max(axis=1, keepdims=True))
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_posterior_is_bayes_rule_on_the_whole_graph(seed, kinds):
    random = np.random.default_rng(seed)
    num_nodes, num_classes = 18 * kinds + 6, 3
    y = random.permutation(np.arange(num_nodes) % num_classes)
    is_new = np.zeros(num_nodes, bool)
    is_new[:4] = True
    source = np.repeat(np.arange(num_nodes), random.integers(1, 6, num_nodes))
    target = np.array([random.choice(np.setdiff1d(np.arange(4, num_nodes), [s])) for s in source])
    means = random.normal(size=(num_classes, 2))
    x = random.normal(size=(num_nodes, 2))
    pattern = random.dirichlet(np.ones(kinds * num_classes), size=num_classes)
    kind = random.integers(kinds, size=num_nodes)
    case = (x, source, target, y, is_new, means, pattern, kind)
    np.testing.assert_allclose(class_posterior(*case), posterior_by_loop(*case), rtol=1e-9)


def test_posterior_does_not_see_the_class_of_the_node_itself():
    graph, _ = trading_network(200, seed=3)
    source, target = graph.edge_index
    is_new = ~np.isin(np.arange(200), target)
    means = np.zeros((5, 8))
    pattern = class_pattern(5, 0.1, 0.3)
    before = class_posterior(graph.x, source, target, graph.y, is_new, means, pattern)
    for node in (0, 17, int(np.flatnonzero(is_new)[0])):
        y = graph.y.copy()
        y[node] = (y[node] + 2) % 5
        after = class_posterior(graph.x, source, target, y, is_new, means, pattern)
        np.testing.assert_allclose(after[node], before[node], rtol=1e-9)


def test_defaults_allow_the_promised_accuracy():
    found = [trading_network(seed=seed).best_accuracy for seed in range(5)]
    assert min(found) > 0.965
    assert max(found) < 0.98


def test_best_accuracy_is_what_the_oracle_gets():
    """Rebuild the oracle's view from the graph; its hits must match what it expects."""
    graph, best_accuracy = trading_network(20_000, seed=1)
    source, target = graph.edge_index
    is_new = (np.bincount(target, minlength=20_000) == 0) & (
        np.bincount(source, minlength=20_000) == 1
    )
    means = np.stack([graph.x[graph.y == label].mean(axis=0) for label in range(5)])
    pattern = class_pattern(5, 0.0, 0.2)
    posterior = class_posterior(graph.x, source, target, graph.y, is_new, means, pattern)
    hits = (posterior.argmax(axis=1) == graph.y).mean()
    assert hits == pytest.approx(best_accuracy, abs=0.004)


def test_edges_follow_the_pattern():
    graph, _ = trading_network(20_000, degree=10, homophily=0.1, noise=0.3, seed=2)
    source, target = graph.edge_index
    assert not (source == target).any()
    assert len(source) / 20_000 == pytest.approx(10, abs=0.1)
    counts = np.zeros((5, 5))
    np.add.at(counts, (graph.y[source], graph.y[target]), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, class_pattern(5, 0.1, 0.3), atol=0.01)


def test_newcomers_pay_once_and_are_paid_by_no_one():
    graph, _ = trading_network(10_000, newcomers=0.3, degree=12)
    source, target = graph.edge_index
    paid, received = (np.bincount(end, minlength=10_000) for end in (source, target))
    assert (paid[received == 0] == 1).mean() > 0.99
    assert (received == 0).mean() == pytest.approx(0.3, abs=0.02)
    assert paid.min() == 1


def test_within_a_class_everyone_else_is_paid_alike():
    graph, _ = trading_network(100, 5, degree=400, newcomers=0.0, noise=0.5, seed=4)
    counts = np.zeros((100, 100))
    np.add.at(counts, tuple(graph.edge_index), 1)
    pattern = class_pattern(5, 0.0, 0.5)
    sizes = np.bincount(graph.y)
    others = sizes[graph.y][None, :] - (graph.y[:, None] == graph.y[None, :])
    expected = 400 * pattern[np.ix_(graph.y, graph.y)] / others * (1 - np.eye(100))
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected.max())
    assert np.diag(counts).sum() == 0


def test_attributes_are_normal_around_the_class_means():
    graph, _ = trading_network(20_000, signal=2.0)
    means = np.stack([graph.x[graph.y == label].mean(axis=0) for label in range(5)])
    np.testing.assert_allclose(np.linalg.norm(means, axis=1), 2.0, atol=0.05)
    next_ones = np.linalg.norm(means - np.roll(means, 1, axis=0), axis=1)
    np.testing.assert_allclose(next_ones, 4 * np.sin(np.pi / 5), atol=0.07)
    np.testing.assert_allclose((graph.x - means[graph.y]).std(axis=0), 1.0, atol=0.02)


@given(st.integers(2, 9), st.floats(0, 1), st.floats(0, 1))
def test_pattern_has_the_asked_homophily(num_classes, homophily, noise):
    pattern = class_pattern(num_classes, homophily, noise)
    np.testing.assert_allclose(pattern.sum(axis=1), 1)
    assert (pattern >= 0).all()
    if num_classes > 2:
        own = (1 - noise) * homophily + noise / num_classes
        np.testing.assert_allclose(np.diag(pattern), own, atol=1e-12)


@given(st.integers(4, 12), st.floats(0, 1), st.floats(0, 0.9))
@example(11, 0.125, 0.0)  # just too much homophily
@example(11, 0.124, 0.0)
@example(4, 0.5, 0.0)
def test_class_means_of_all_neighbours_cancel_unless_homophily_outweighs_the_further_class(
    num_classes, homophily, noise
):
    """Beyond the bound, what is left is that of all other payments going to the further class."""
    pattern = class_pattern(num_classes, homophily, noise)
    circle = circle_of(num_classes)
    further = np.cos(2 * np.pi * (num_classes // 4 + 1) / num_classes)
    left = (1 - noise) * max(0, homophily + (1 - homophily) * further)
    np.testing.assert_allclose((pattern + pattern.T) @ circle, 2 * left * circle, atol=1e-9)


@given(st.integers(4, 12), st.floats(0, 0.12), st.floats(0, 0.9))
def test_with_little_homophily_patterns_differ_where_class_means_cancel(
    num_classes, homophily, noise
):
    pattern = class_pattern(num_classes, homophily, noise)
    assert len(np.unique(pattern.round(9), axis=0)) == num_classes
    np.testing.assert_allclose((pattern + pattern.T) @ circle_of(num_classes), 0, atol=1e-9)


def circle_of(num_classes):
    angle = 2 * np.pi * np.arange(num_classes) / num_classes
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


@pytest.mark.parametrize("fractions", [(0.48, 0.32, 0.2), (0.1, 0.3, 0.6)])
def test_splits_are_stratified(fractions):
    graph, _ = trading_network(fractions=fractions)
    assert len(graph.splits) == 10
    for split in graph.splits:
        for part, share in zip((split.train, split.val, split.test), fractions, strict=True):
            sizes = np.bincount(graph.y[part], minlength=5) / np.bincount(graph.y)
            np.testing.assert_allclose(sizes, share, atol=0.005)


def test_the_seed_decides_everything():
    one, same, other = (trading_network(300, seed=seed) for seed in (5, 5, 6))
    assert one.best_accuracy == same.best_accuracy
    assert one.graph.fingerprint == same.graph.fingerprint
    np.testing.assert_array_equal(one.graph.splits.train, same.graph.splits.train)
    assert one.graph.fingerprint != other.graph.fingerprint


@pytest.mark.parametrize(
    ("settings", "digest", "best_accuracy"),
    [
        ({}, "c8c4c462af848747da01ca58", 0.9721439428532768),
        (
            {
                **{"num_nodes": 700, "num_classes": 7, "num_features": 3, "degree": 5.5},
                **{"homophily": 0.2, "noise": 0.3, "newcomers": 0.3, "seed": 4},
            },
            "7a1a70ed415ad1d1f482a1ba",
            0.9168523467744314,
        ),
        (
            {"num_nodes": 60, "num_classes": 3, "newcomers": 0, "seed": 9},
            "5dfb2a46d8f74c2663dcf599",
            1,
        ),
    ],
)
def test_graphs_of_known_seeds_keep_their_bits(settings, digest, best_accuracy):
    """Records name a graph by its parameters alone. (x passes through LAPACK: bits may differ.)"""
    graph, best = trading_network(**settings)
    masks = (getattr(graph.splits, part) for part in ("train", "val", "test"))
    found = hashlib.sha256()
    for array in (graph.edge_index, graph.y, *masks):
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    assert found.hexdigest()[:24] == digest
    assert best == pytest.approx(best_accuracy, rel=1e-6)


def test_classes_have_names_and_connect_to_others():
    graph, _ = trading_network()
    assert graph.class_names == ("fraudster", "mule", "exchange", "broker", "trader")
    assert graph.directed
    assert node_homophily(graph) < 0.1
    assert trading_network(200, num_classes=7).graph.class_names[5:] == ("role 5", "role 6")
    assert trading_network(200, num_classes=2).graph.class_names == ("fraudster", "mule")


def test_neighbourhood_patterns_tell_what_attributes_and_means_do_not():
    """The demo's promise, with logistic regression in place of the models."""
    graph, best_accuracy = trading_network()
    split, x, y = graph.split(0), graph.x, graph.y
    out, into, undirected = (graph.adjacency(mode) for mode in ("out", "in", "undirected"))

    def fitted(features):
        return LogisticRegression(C=0.3, max_iter=2000).fit(features[split.train], y[split.train])

    def score(features):
        return float(fitted(features).score(features[split.test], y[split.test]))

    looped = undirected + sp.eye_array(graph.num_nodes)
    scale = sp.diags_array(1 / np.sqrt(looped.sum(axis=1)))
    smooth = scale @ looped @ scale @ x
    attributes_only = fitted(x)
    labels = np.where(split.train, y, attributes_only.predict(x))
    counts = np.hstack([x, out @ np.eye(5)[labels], into @ np.eye(5)[labels]])

    by_attributes = attributes_only.score(x[split.test], y[split.test])
    by_counts = score(counts)
    assert 0.55 < by_attributes < 0.7
    assert score(smooth) < by_attributes - 0.2
    assert score(np.hstack([x, smooth])) < by_attributes + 0.05
    assert by_counts > by_attributes + 0.2
    assert by_counts > best_accuracy - 0.03


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_nodes": 99}, r"num_nodes must be at least 100, 20 for each class \(got 99\)"),
        ({"num_classes": 1}, r"num_classes must be at least 2 \(got 1\)"),
        ({"num_features": 1}, r"num_features must be at least 2 \(got 1\)"),
        ({"degree": 0.5}, r"degree must be at least 1 \(got 0.5\)"),
        ({"degree": float("nan")}, "degree must be at least 1"),
        ({"homophily": 1.5}, r"homophily must be from 0 to 1 \(got 1.5\)"),
        ({"noise": -0.1}, r"noise must be from 0 to 1 \(got -0.1\)"),
        ({"newcomers": 0.9}, r"newcomers must be from 0 to 0.5 \(got 0.9\)"),
        ({"signal": -1.0}, r"signal must be at least 0 \(got -1.0\)"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        trading_network(**settings)


def supply_parts(graph, num_classes):
    """Sizes and class means as the attributes show them on a large graph, and the edges."""
    means = np.stack([graph.x[graph.y == label].mean(axis=0) for label in range(num_classes)])
    rest = graph.x - means[graph.y]
    axis = np.linalg.svd(rest[:2000], full_matrices=False)[2][0]
    means -= np.outer(means @ axis, axis)  # sizes are independent of the class
    return (rest @ axis > 0).astype(int), means, *graph.edge_index


def test_supply_best_accuracy_is_what_the_oracle_gets():
    """Where sizes are visible without error, the oracle's view is rebuilt from the graph."""
    settings = {"degree": 3, "noise": 0.5, "signal": 0.5, "size_signal": 9.0, "seed": 1}
    graph, best_accuracy = supply_network(20_000, **settings)
    is_large, means, source, target = supply_parts(graph, 4)
    nobody = np.zeros(20_000, bool)
    hits = []
    for kind in (is_large, 1 - is_large):  # the sign of an axis is arbitrary
        posterior = class_posterior(
            graph.x, source, target, graph.y, nobody, means, size_pattern(0.5), kind
        )
        hits.append((posterior.argmax(axis=1) == graph.y).mean())
    assert 0.6 < best_accuracy < 0.95
    assert max(hits) == pytest.approx(best_accuracy, abs=0.006)


@given(st.floats(0, 1))
def test_size_pattern_hides_class_and_size_in_every_mean(noise):
    pattern = size_pattern(noise).reshape(4, 4, 2)
    np.testing.assert_allclose(pattern.sum(axis=2), 1 / 4)  # suppliers by class
    np.testing.assert_allclose(pattern.sum(axis=1), 0.5)  # suppliers by size
    np.testing.assert_allclose(pattern.sum(axis=0), 0.5)  # all are bought from equally often
    preference = pattern[:, :, 1] - pattern[:, :, 0]
    visible = np.array([1, -1, 1, -1])  # two look alike
    # Suppliers: size by visible class; customers: visible class, whatever the firm's size.
    np.testing.assert_allclose(preference @ visible, 0, atol=1e-12)
    np.testing.assert_allclose(preference.T @ visible, 0, atol=1e-12)
    if noise < 0.99:
        assert len(np.unique(preference.round(9), axis=0)) == 4


def test_purchases_follow_the_pattern():
    graph, _ = supply_network(20_000, noise=0.3, size_signal=9.0, degree=6, seed=2)
    is_large, _, source, target = supply_parts(graph, 4)
    assert not (source == target).any()
    assert len(source) / 20_000 == pytest.approx(6, abs=0.1)
    counts = np.zeros((4, 8))
    np.add.at(counts, (graph.y[source], 2 * graph.y[target] + is_large[target]), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    flipped = shares.reshape(4, 4, 2)[:, :, ::-1].reshape(4, 8)
    expected = size_pattern(0.3)
    assert min(np.abs(found - expected).max() for found in (shares, flipped)) < 0.01


def test_supply_graphs_of_a_seed_are_equal_and_named():
    one, same, other = (supply_network(300, seed=seed) for seed in (5, 5, 6))
    assert one.best_accuracy == same.best_accuracy
    assert one.graph.fingerprint == same.graph.fingerprint != other.graph.fingerprint
    assert one.graph.class_names == ("builder", "carrier", "dealer", "lender")
    assert one.graph.directed
    assert one.graph.name == "supply-network"


def test_only_attributes_by_class_of_supplier_tell_the_sector():
    """What the docstring says, with logistic regression in place of the models."""
    graph, best_accuracy = supply_network()
    split, x, y = graph.split(0), graph.x, graph.y
    out, into = (graph.adjacency(mode) for mode in ("out", "in"))

    def score(*parts):
        features = np.hstack(parts)
        fitted = LogisticRegression(C=0.3, max_iter=2000).fit(features[split.train], y[split.train])
        return float(fitted.score(features[split.test], y[split.test]))

    def mean(matrix, values):
        return matrix @ values / np.maximum(matrix.sum(axis=1), 1)[:, None]

    labels = np.eye(4)[y] * split.train[:, None]
    by_class = [out @ (labels[:, [label]] * x) for label in range(4)]
    by_attributes = score(x)
    hops = [mean(first, mean(second, x)) for first in (out, into) for second in (out, into)]
    assert 0.4 < by_attributes < 0.52
    assert score(x, mean(out, x), mean(into, x), *hops) < by_attributes + 0.1
    assert score(x, out @ np.eye(4)[y]) < by_attributes + 0.1  # true classes of all suppliers
    assert score(x, *by_class) > by_attributes + 0.4  # classes of train nodes alone
    assert best_accuracy > 0.99


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_nodes": 79}, r"num_nodes must be at least 80, 20 for each class \(got 79\)"),
        ({"size_signal": -1.0}, r"size_signal must be at least 0 \(got -1.0\)"),
        ({"noise": 2}, r"noise must be from 0 to 1 \(got 2\)"),
    ],
)
def test_impossible_supply_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        supply_network(**settings)
