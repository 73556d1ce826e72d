"""Rounds: the best is kept, replicas stop, and a stopped training gives the same result."""

import numpy as np
import pytest
import torch

from hpgmn.base.metrics import metric
from hpgmn.base.settings import make_settings
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS
from hpgmn.models.baselines.boosting import BoostingRounds
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.trainer import train

ENTRY = MODELS["boosting"]
FEW = {"epochs": 8, "patience": 0, "min_leaf": 2, "svd_dim": 4}


@pytest.fixture(scope="module")
def graph():
    return trading_network(num_nodes=150, seed=1).graph


def task_of(graph, seeds=(0,), **values):
    split, settings = graph.split(0), make_settings(ENTRY.settings, FEW | values)
    chosen = [Replica(0, seed, settings) for seed in seeds]
    return make_task(graph, chosen, [(split.train, split.val)] * len(seeds), "cpu")


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy"])
def test_the_best_round_is_kept(graph, name):
    task = task_of(graph, epochs=40)
    state = train(task, ENTRY, metric=name)
    scores, losses = (state.history["main"][key][:, 0].numpy() for key in ("val_score", "val_loss"))
    best = np.lexsort((losses, -scores))[0]
    assert state.best_epoch["main"].item() == best + 1
    found = logits(task, ENTRY, state.done)
    val = torch.from_numpy(task.val_labels)
    score = metric(name)(found, val.clamp(min=0), val >= 0)
    assert score.item() == state.best_score["main"].item() == pytest.approx(scores[best])


def test_it_stops_without_improvement(graph):
    state = train(task_of(graph, (0, 1), epochs=300, patience=5), ENTRY)
    last = (~state.history["main"]["loss"].isnan()).sum(dim=0)
    assert last.tolist() == (state.best_epoch["main"] + 5).tolist()
    assert len(state.history["main"]["loss"]) == last.max() < 300


def test_an_early_stop_does_not_change_the_rounds_before(graph):
    short, long = (train(task_of(graph, epochs=epochs), ENTRY) for epochs in (5, 12))
    assert torch.equal(short.history["main"]["val_loss"], long.history["main"]["val_loss"][:5])


def test_rounds_are_reported_and_can_be_stopped(graph, tmp_path):
    split, settings = graph.split(0), make_settings(ENTRY.settings, FEW)
    seen = []
    arguments = (graph, ENTRY, [Replica(0, 0, settings)], [(split.train, split.val)])
    with pytest.raises(KeyboardInterrupt):
        fit_replicas(
            *arguments, folder=tmp_path, report=seen.append, should_stop=lambda: len(seen) > 2
        )
    assert [progress.epoch for progress in seen] == [1, 2, 3]
    resumed = fit_replicas(*arguments, folder=tmp_path)
    assert torch.equal(resumed.logits, fit_replicas(*arguments).logits)


def test_a_training_that_finishes_early_keeps_its_best_round(graph):
    calls = []

    def should_finish():
        calls.append(None)
        return len(calls) == 3

    task = task_of(graph, (0, 1))
    found = train(task, ENTRY, should_finish=should_finish)
    expected = train(task_of(graph, (0, 1), epochs=3), ENTRY)
    assert len(found.history["main"]["loss"]) == 3
    assert torch.equal(found.best_epoch["main"], expected.best_epoch["main"])
    assert torch.equal(logits(task, ENTRY, found.done), logits(task, ENTRY, expected.done))


def test_fixed_rounds_are_kept_whatever_validation_labels_say(graph):
    task, rounds = task_of(graph, (0, 1)), torch.tensor([2, 5])
    found = train(task, ENTRY, epochs={"main": rounds})
    assert torch.equal(found.best_epoch["main"], rounds)
    assert found.best_score["main"].isnan().all()
    for replica, number in enumerate(rounds.tolist()):
        alone = task.subset([replica])
        expected = BoostingRounds(alone)
        for _ in range(number):
            expected.update(0)
        done = {"main": expected.parameters([number])}
        kept = {"main": {key: value[[replica]] for key, value in found.done["main"].items()}}
        assert torch.equal(logits(alone, ENTRY, kept), logits(alone, ENTRY, done))
