"""Batches of labelled nodes, prefetched rows, and a stage whose rows were gathered before."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hpgmn.base.metrics import accuracy
from hpgmn.base.randomness import Noise
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.stage import Replica, TrainingStage, make_task, prefetch, rows_of
from hpgmn.statistics import STATISTICS
from hpgmn.training import replay
from hpgmn.training.replay import StepReplay
from hpgmn.training.stage_runner import LabelledNodes, StageRunner
from hpgmn.training.state import TrainState
from hpgmn.training.trainer import train

ENTRY = MODELS["hpgmn"]
SETTINGS = HPGMNSettings(
    hidden_dim=6, num_patterns=5, estimator_hidden=6, estimator_epochs=6, epochs=9, patience=0
)


def task_of(graph, *settings):
    replicas = [Replica(number % 2, number, one) for number, one in enumerate(settings)]
    masks = [(graph.split(one.split).train, graph.split(one.split).val) for one in replicas]
    return make_task(graph, replicas, masks, "cpu")


@pytest.mark.parametrize("penalties", [0.0, 0.1])
def test_rows_gathered_before_change_no_result(small_graph, monkeypatch, penalties):
    settings = replace(SETTINGS, kpattern_weight=penalties, entropy_weight=penalties)
    task = task_of(small_graph, settings, settings)
    expected = train(task, ENTRY)
    kept: list[Tensor] = []

    def gather(own, nodes):
        kept.append(nodes)
        return rows_of(own.stage, nodes)

    monkeypatch.setattr(StageRunner, "_gather_once", gather)
    found = train(task, ENTRY)
    assert len(kept) == (3 if penalties else 4)  # penalties read all nodes in training
    for key, value in expected.done["main"].items():
        torch.testing.assert_close(found.done["main"][key], value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.best_score["main"], expected.best_score["main"])


@pytest.mark.parametrize("name", ["hpgmn", "hpgmn-appnp", "gcn"])
def test_replayed_epochs_are_those_run_one_by_one(small_graph, monkeypatch, name):
    values: dict[str, Any] = {"epochs": 9, "patience": 0, "hidden_dim": 6}
    if name == "hpgmn-appnp":
        values |= {"consistency_weight": 0.5, "consistency_warmup": 4, "pretraining_epochs": 5}
    settings = MODELS[name].settings(**values)
    task = task_of(small_graph, settings, settings)
    expected = train(task, MODELS[name])
    calls: list[int] = []

    def repeat(work):
        calls.append(1)
        return work

    monkeypatch.setattr(replay, "record", repeat)
    monkeypatch.setattr(StageRunner, "can_replay", True)
    found = train(task, MODELS[name])
    assert len(calls) >= len(MODELS[name].stages)  # and one each time that replicas leave
    for stage, history in expected.history.items():
        for key, rows in history.items():
            torch.testing.assert_close(
                found.history[stage][key], rows, rtol=1e-6, atol=1e-6, equal_nan=True
            )
    for key, value in expected.done["main"].items():
        torch.testing.assert_close(found.done["main"][key], value, rtol=1e-6, atol=1e-6)


def test_replayed_steps_are_those_made_one_by_one(small_graph, monkeypatch):
    settings = replace(SETTINGS, batch_size=2, statistics=STATISTICS[:3], entropy_weight=0.1)
    task = task_of(small_graph, settings, settings)
    expected = train(task, ENTRY)
    sizes: list[int] = []

    class Watched(StepReplay):
        def step(self, batch, number):
            sizes.append(batch[0].shape[1])
            return super().step(batch, number)

    monkeypatch.setattr(replay, "record", lambda work: work)
    monkeypatch.setattr(replay, "StepReplay", Watched)
    monkeypatch.setattr(TrainingStage, "is_on_gpu", True)
    monkeypatch.setattr(StageRunner, "can_replay", True)
    found = train(task, ENTRY)
    assert set(sizes) == {2}  # a shorter batch at the end of an epoch is run as it is
    for key, value in expected.done["main"].items():
        assert torch.equal(found.done["main"][key], value), key


def test_a_stage_in_batches_asks_for_rows_of_its_batch_alone(small_graph, monkeypatch):
    settings = replace(SETTINGS, batch_size=2, epochs=2, estimator_epochs=1)
    widest = 0

    def watched(stage, nodes):
        nonlocal widest
        widest = max(widest, nodes.shape[1])
        return rows_of(stage, nodes)

    monkeypatch.setattr("hpgmn.models.stage.rows_of", watched)
    monkeypatch.setattr("hpgmn.models.stage.rows_of", watched)
    monkeypatch.setattr("hpgmn.models.stage.READ_NODES", 3)
    train(task_of(small_graph, settings, settings), ENTRY)
    assert widest == 3


def skewed(graph):
    """The small graph with one train node of class 1 in each split, the other is of class 0."""
    y = graph.y.copy()
    for split in range(2):
        train = graph.split(split).train
        if (y[train] == 1).sum() == 2:
            y[np.flatnonzero(train & (y == 1))[0]] = 0
    assert graph.splits is not None
    return Graph(graph.x, graph.edge_index, y, name="skewed").with_splits(graph.splits)


@pytest.mark.parametrize("stage", ["estimator", "main"])
@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_the_class_loss_is_torchs_with_the_weights_of_the_train_nodes(small_graph, stage, weights):
    graph = skewed(small_graph)
    settings = replace(SETTINGS, class_weights=weights)
    task = task_of(graph, settings, settings)
    labels = task.train_labels
    state = train(task, ENTRY)
    own = StageRunner(task, ENTRY.stages[stage], state, [0, 1], accuracy)
    logits = torch.randn(2, own.train.nodes.shape[1], 3, generator=torch.Generator().manual_seed(0))
    own.weights = {}
    found = own._weighted_loss(None, logits, own.train)  # type: ignore[arg-type]
    for row in range(2):
        known = labels[row][labels[row] >= 0]
        counts = [int((known == c).sum()) for c in range(3)]
        if weights == "balanced":
            assert len(set(counts)) > 1  # otherwise nothing is weighted
        scale = torch.tensor([len(known) / (3 * n) if n else 0.0 for n in counts])
        truth = torch.from_numpy(labels[row])[own.train.nodes[row]]
        expected = functional.cross_entropy(
            logits[row], truth, weight=scale if weights == "balanced" else None
        )
        torch.testing.assert_close(found[row], expected)


def test_weights_do_not_touch_validation(small_graph):
    graph = skewed(small_graph)
    found = []
    for weights in ("none", "balanced"):
        settings = replace(SETTINGS, class_weights=weights, lr=0.0, estimator_lr=0.0)
        found.append(train(task_of(graph, settings, settings), ENTRY))
    one, other = (state.history["main"] for state in found)
    assert torch.equal(one["val_loss"], other["val_loss"])
    assert not torch.equal(one["loss"], other["loss"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hpgmn", "gcn", "bmgcn", "cpgnn"])
def test_balanced_weights_change_what_is_learned_and_go_on_alike(small_graph, name):
    graph, entry = skewed(small_graph), MODELS[name]

    def trained(weights, state=None, watch=None):
        settings = entry.settings(epochs=6, patience=0, class_weights=weights)
        return train(task_of(graph, settings, settings), entry, state=state, watch=watch)

    plain, balanced = trained("none"), trained("balanced")
    changed = [
        name
        for name, value in plain.done["main"].items()
        if not torch.equal(value, balanced.done["main"][name])
    ]
    assert changed
    cut = TrainState()

    def stop(state, stage):
        assert state.current is not None
        if stage.name == "main" and state.current.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained("balanced", cut, stop)
    resumed = trained("balanced", cut)
    for key, value in balanced.done["main"].items():
        assert torch.equal(resumed.done["main"][key], value), key


def test_replayed_epochs_with_weights_are_those_run_one_by_one(small_graph, monkeypatch):
    settings = replace(SETTINGS, class_weights="balanced")
    task = task_of(skewed(small_graph), settings, settings)
    expected = train(task, ENTRY, metric="average_precision")
    monkeypatch.setattr(replay, "record", lambda work: work)
    monkeypatch.setattr(StageRunner, "can_replay", True)
    found = train(task, ENTRY, metric="average_precision")
    for key, value in expected.done["main"].items():
        torch.testing.assert_close(found.done["main"][key], value, rtol=1e-6, atol=1e-6)


def batch_nodes(labelled, size, epoch):
    noise = Noise(torch.tensor([3, 4]), epoch)
    return [part.nodes.masked_fill(~part.valid, -1) for part in labelled.node_batches(size, noise)]


def test_an_epoch_reads_every_train_node_once_in_an_order_of_its_own():
    labels = np.full((2, 9), -1)
    labels[0, [1, 3, 4, 7, 8]] = [0, 1, 0, 1, 1]
    labels[1, [0, 2, 5]] = 1
    labelled = LabelledNodes.of(labels, torch.device("cpu"))
    first, second = (torch.cat(batch_nodes(labelled, 2, epoch), dim=1) for epoch in (1, 2))
    for order in (first, second):
        assert sorted(order[0].tolist()) == [1, 3, 4, 7, 8]
        assert sorted(order[1].tolist()) == [-1, -1, 0, 2, 5]
        assert order[1, 3:].tolist() == [-1, -1]  # padding comes last
    assert first.tolist() != second.tolist()
    assert [part.shape[1] for part in batch_nodes(labelled, 2, 1)] == [2, 2, 1]
    for part in labelled.node_batches(2, Noise(torch.tensor([3, 4]), 1)):
        for row in range(2):
            for node, label, valid in zip(
                part.nodes[row], part.labels[row], part.valid[row], strict=True
            ):
                assert not valid or labels[row, node] == label


def test_the_next_is_fetched_while_one_is_in_use():
    fetched = {number: threading.Event() for number in range(4)}

    def fetch(number):
        fetched[number].set()
        return number * number

    found = []
    for number, square in prefetch(range(4), fetch):
        if number < 3:
            assert fetched[number + 1].wait(10)
        found.append((number, square))
    assert found == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert list(prefetch([], fetch)) == []


def test_what_fails_to_be_fetched_fails_where_it_is_used():
    def fetch(number):
        return 1 / (2 - number)

    pairs = prefetch(range(4), fetch)
    assert [next(pairs), next(pairs)] == [(0, 0.5), (1, 1.0)]
    with pytest.raises(ZeroDivisionError):
        next(pairs)
