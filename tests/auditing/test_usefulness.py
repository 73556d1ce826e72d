"""Does the graph help: what is trained, what is compared, and what is called noise."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from hpgmn.auditing import usefulness as module
from hpgmn.auditing.usefulness import (
    STATISTICS,
    cannot_train,
    interval,
    placements,
    usefulness,
    verdict,
)
from hpgmn.base.metrics import roc_auc
from hpgmn.evaluation.scores import Difference
from hpgmn.graph import Split
from hpgmn.training.replicas import Progress


@pytest.fixture
def quick(monkeypatch):
    """Few epochs: what is trained matters, not how well."""
    short = {"hidden_dim": 8, "epochs": 5, "estimator_epochs": 5, "estimator_hidden": 8}
    monkeypatch.setattr(module, "SETTINGS", module.SETTINGS | short)


def without_time(result):
    return {name: value for name, value in vars(result).items() if name != "seconds"}


def planted(sound, *, in_edges):
    """The class is in the attributes of half of the nodes, and with ``in_edges`` in all edges."""
    graph = sound()
    random = np.random.default_rng(2)
    known = random.random(300) < 0.5
    x = graph.x * 0.1
    x[np.arange(300), graph.y] += known
    edges = graph.edge_index
    if in_edges:  # four neighbours of the next class
        center = np.repeat(np.arange(300), 4)
        same_class = random.integers(0, 100, center.size) * 3
        edges = np.stack([center, (graph.y[center] + 1) % 3 + same_class])
    return sound(x=x, edge_index=edges)


@pytest.mark.slow
def test_edges_that_tell_the_class_help(sound):
    graph = planted(sound, in_edges=True)
    result = usefulness(graph, graph.split(0))
    assert [one.name for one in result.contributions] == [
        *("label estimator", *STATISTICS, "all together")
    ]
    assert result.verdict.startswith("The graph helps.")
    assert result.difference == result.contributions[-1].difference
    assert result.difference.low is not None
    assert result.difference.low > 0
    scores = {one.name: one.score for one in result.contributions}
    assert scores["class_counts"] > scores["attributes"]
    assert (result.metric, result.train_nodes, result.val_nodes) == ("accuracy", 102, 99)
    assert (result.seeds, result.is_sampled) == (3, False)


@pytest.mark.slow
def test_edges_by_chance_do_not_help(sound):
    graph = planted(sound, in_edges=False)
    result = usefulness(graph, graph.split(0))
    assert result.difference.low is not None
    assert result.difference.low <= 0
    assert not result.verdict.startswith("The graph helps")


@pytest.mark.usefixtures("quick")
def test_the_baseline_is_the_better_model_of_attributes_alone(sound):
    graph = planted(sound, in_edges=True)
    result = usefulness(graph, graph.split(0))
    scores = {one.name: one.score for one in result.contributions}
    assert scores[result.baseline] == max(scores["label estimator"], scores["attributes"])
    for one in result.contributions:
        if one.name == result.baseline:
            assert one.difference is None
        else:
            assert one.difference is not None
            assert one.difference.mean == pytest.approx(one.score - scores[result.baseline])
            assert one.difference.count == 99


@pytest.mark.usefixtures("quick")
def test_test_labels_change_nothing(sound):
    graph = planted(sound, in_edges=True)
    split = graph.split(0)
    wrong = np.where(split.test, (graph.y + 1) % 3, graph.y)
    other = sound(x=graph.x, edge_index=graph.edge_index, y=wrong)
    assert (other.y != graph.y).sum() == split.test.sum() == 99
    assert without_time(usefulness(graph, split)) == without_time(usefulness(other, split))


@pytest.mark.usefixtures("quick")
def test_validation_labels_do_count(sound):
    """The test above would pass if labels were not read at all."""
    graph = planted(sound, in_edges=True)
    split = graph.split(0)
    wrong = np.where(split.val, (graph.y + 1) % 3, graph.y)
    other = sound(x=graph.x, edge_index=graph.edge_index, y=wrong)
    assert without_time(usefulness(graph, split)) != without_time(usefulness(other, split))


@pytest.mark.usefixtures("quick")
def test_large_graphs_are_sampled_and_read_in_batches(sound, monkeypatch):
    monkeypatch.setattr(module, "LARGE", 200)
    monkeypatch.setattr(module, "MOST_NODES", {"train": 40, "val": 30})
    monkeypatch.setattr(
        module, "LARGE_SETTINGS", module.LARGE_SETTINGS | {"batch_size": 16, "epochs": 2}
    )
    fits = []
    fit = module.fit_replicas

    def watched(graph, entry, replicas, masks, **options):
        fits.append((replicas[0].settings.batch_size, len(replicas)))
        return fit(graph, entry, replicas, masks, **options)

    monkeypatch.setattr(module, "fit_replicas", watched)
    graph = planted(sound, in_edges=True)
    result = usefulness(graph, graph.split(0))
    assert (result.train_nodes, result.val_nodes, result.is_sampled) == (40, 30, True)
    assert fits == [(16, 1)] * 5
    assert result.difference.count == 30


@pytest.mark.usefixtures("quick")
def test_without_twins_only_the_other_nodes_are_compared(sound):
    graph = planted(sound, in_edges=True)
    split = graph.split(0)
    twins = np.arange(300) < 150
    rest = Split(split.train, split.val & ~twins, split.test)
    kept: dict[str, Any] = {}
    of = module._select_nodes

    def watched(logits, val):
        kept[str(len(kept))] = of(logits, val)
        return kept[str(len(kept) - 1)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_select_nodes", watched)
        result = usefulness(graph, split, twins=twins)
    baseline = kept["0"] if result.baseline == "label estimator" else kept["1"]
    together = kept["5"]
    places = np.flatnonzero(split.val)
    truth = graph.y[places]
    hits = [(one.argmax(axis=-1) == truth)[:, places >= 150] for one in (together, baseline)]
    assert result.without_twins is not None
    assert result.without_twins.count == rest.val.sum() == 48
    assert result.without_twins.mean == pytest.approx(hits[0].mean() - hits[1].mean())
    assert usefulness(graph, split).without_twins is None
    assert usefulness(graph, split, twins=np.arange(300) < 280).without_twins is None


def test_nodes_of_one_class_have_no_ranking():
    pair = (np.zeros((1, 40, 2)), np.zeros((1, 40, 2)))
    kept = np.ones(40, bool)
    assert module._difference_among(kept, pair, np.zeros(40, int), "roc_auc") is None
    assert module._difference_among(kept, pair, np.arange(40) % 2, "roc_auc") is not None


@pytest.mark.usefixtures("quick")
def test_progress_counts_the_trainings(sound):
    graph = sound()
    seen: list[Progress] = []
    usefulness(graph, graph.split(0), report=seen.append)
    assert sorted({one.batch for one in seen}) == [0, 1, 2, 3, 4]
    assert {one.batches for one in seen} == {5}


@pytest.mark.usefixtures("quick")
def test_it_can_be_stopped(sound):
    graph = sound()
    with pytest.raises(KeyboardInterrupt):
        usefulness(graph, graph.split(0), should_stop=lambda: True)


@pytest.mark.usefixtures("quick")
def test_two_skewed_classes_are_ranked(sound):
    y = (np.arange(300) % 9 == 0).astype(int)
    roles = np.random.default_rng(0).permutation(300) % 3
    graph = sound(
        y=y, train_mask=roles == 0, val_mask=roles == 1, test_mask=roles == 2, directed=False
    )
    assert usefulness(graph, graph.split(0)).metric == "roc_auc"
    one_sided = Split(roles == 0, (roles == 1) & (y == 0), roles == 2)
    assert usefulness(graph, one_sided).metric == "accuracy"


def test_the_interval_of_few_nodes_is_students():
    first, second = np.array([1.0, 0.5, 1.0, 0.0, 1.0]), np.array([0.0, 0.5, 1.0, 0.5, 0.0])
    result = interval(module._Values((first,)), module._Values((second,)))
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_the_interval_of_accuracy_is_that_of_a_bootstrap():
    random = np.random.default_rng(0)
    first, second = (random.random((3, 400)) < rate for rate in (0.8, 0.7))
    values = [module._Values((hits.mean(axis=0),)) for hits in (first, second)]
    result = interval(*values)
    apart = first.mean(axis=0) - second.mean(axis=0)
    drawn = apart[random.integers(0, 400, (4000, 400))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert result.mean == pytest.approx(apart.mean())
    assert (result.low, result.high) == pytest.approx((low, high), abs=0.004)
    assert (result.count, result.over) == (400, "validation nodes")


def test_the_interval_of_roc_auc_is_that_of_a_bootstrap():
    random = np.random.default_rng(1)
    truth = (np.arange(300) % 5 == 0).astype(int)
    both = random.normal(size=300)
    scores = [both + truth * 1.5 + random.normal(size=300) * noise for noise in (0.5, 1.5)]
    logits = [torch.tensor(np.stack([0 * one, one], axis=-1))[None] for one in scores]
    every = np.ones(300, bool)
    values = [module._values(one.numpy(), truth, "roc_auc") for one in logits]
    labels, valid = torch.tensor(truth)[None], torch.tensor(every)[None]
    areas = [float(roc_auc(one, labels, valid)) for one in logits]
    assert [one.score for one in values] == pytest.approx(areas, abs=1e-6)
    assert [one.groups[1].mean() for one in values] == pytest.approx(areas, abs=1e-6)
    result = interval(*values)
    drawn = []
    for _ in range(1500):
        chosen = random.integers(0, 300, 300)
        again = [
            float(roc_auc(one[:, chosen], labels[:, chosen], valid[:, chosen])) for one in logits
        ]
        drawn.append(again[0] - again[1])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert result.mean == pytest.approx(areas[0] - areas[1], abs=1e-6)
    assert (result.low, result.high) == pytest.approx((low, high), abs=0.01)


def test_placements_match_a_loop():
    random = np.random.default_rng(3)
    scores, others = random.integers(0, 5, 8), random.integers(0, 5, 6)
    expected = np.zeros(8)
    for (a, score), other in itertools.product(enumerate(scores), others):
        expected[a] += ((score > other) + 0.5 * (score == other)) / 6
    np.testing.assert_allclose(placements(scores, others), expected)


@pytest.mark.parametrize(
    ("low", "high", "begins", "holds"),
    [
        (0.01, 0.05, "The graph helps", "+3.0 points on 50 validation nodes"),
        (-0.05, -0.01, "The graph does not help", "-3.0 points"),
        (-0.02, 0.08, "No significant difference", "(95 % interval -2.0 to +8.0)"),
        (-0.08, 0.02, "No significant difference", "-3.0 points"),
        (0.0, 0.06, "No significant difference", "+3.0 points"),
    ],
)
def test_only_an_interval_beside_zero_is_a_difference(low, high, begins, holds):
    sentence = verdict(Difference((low + high) / 2, low, high, 50, "validation nodes"), "accuracy")
    assert sentence.startswith(begins)
    assert holds in sentence
    assert "ROC-AUC" in verdict(Difference(0.0, low, high, 50, "validation nodes"), "roc_auc")


def test_what_cannot_be_trained_says_why(sound):
    graph = sound()
    split, empty = graph.split(0), np.zeros(300, bool)
    assert cannot_train(graph, split) is None
    assert cannot_train(graph, None) == "there is no split"
    assert "two classes" in str(cannot_train(graph, Split(graph.y == 0, split.val, empty)))
    assert "validation nodes" in str(cannot_train(graph, Split(split.train, empty, empty)))
