"""What only a GPU can show. Needs no other file of the tests:

PYTHONPATH=src python -m pytest --noconftest tests/cuda
"""

import logging
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from hpgmn.base.metrics import accuracy
from hpgmn.base.settings import make_settings
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.statistics import STATISTICS, LocalStatistics, StatisticsSettings
from hpgmn.training import replay, trainer
from hpgmn.training.stage_runner import StageRunner
from hpgmn.training.state import TrainState
from hpgmn.training.trainer import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NETWORKS = [name for name, entry in MODELS.items() if entry.rounds is None]
FIXED = {"main": torch.tensor([9, 6])}
WIDTHS = {"hidden_dim": 16, "query_dim": 16, "estimator_hidden": 16, "num_patterns": 8}


@pytest.fixture(scope="module")
def graph():
    return trading_network(num_nodes=300, seed=3).graph


def task_of(graph, name, device="cuda", **values):
    cls = MODELS[name].settings
    chosen: dict[str, Any] = dict(WIDTHS)
    chosen |= {info.name: 12 for info in fields(cls) if info.name.endswith("epochs")}
    chosen |= {info.name: 0 for info in fields(cls) if info.name.endswith("patience")}
    known = {info.name for info in fields(cls)}
    chosen = {key: value for key, value in (chosen | values).items() if key in known}
    settings = make_settings(cls, chosen)
    splits = [graph.split(number) for number in (0, 1)]
    replicas = [Replica(number, number, settings) for number in (0, 1)]
    return make_task(graph, replicas, [(one.train, one.val) for one in splits], device)


def assert_alike(one, other, tolerance):
    for stage, history in one.history.items():
        for key, rows in history.items():
            torch.testing.assert_close(
                other.history[stage][key],
                rows,
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
                msg=lambda text, where=(stage, key): f"{where}: {text}",
            )


@pytest.fixture
def recordings(monkeypatch):
    """Every attempt to record an epoch or a step."""
    made: list[Any] = []
    real = replay.attempt

    def watched(make):
        made.append(real(make))
        return made[-1]

    monkeypatch.setattr(replay, "attempt", watched)
    return made


@pytest.mark.parametrize("name", NETWORKS)
def test_every_model_is_replayed_as_it_runs(graph, name, recordings, monkeypatch):
    task = task_of(graph, name)
    replayed = train(task, MODELS[name])
    assert recordings
    assert all(recordings), "an epoch could not be recorded"
    monkeypatch.setattr(StageRunner, "can_replay", False)
    assert_alike(train(task, MODELS[name]), replayed, 2e-3)


def test_steps_on_batches_are_replayed_as_they_run(graph, recordings, monkeypatch):
    kinds = ("attributes", "class_counts", "class_means")
    task = task_of(graph, "hpgmn", batch_size=40, statistics=kinds, entropy_weight=0.5)
    replayed = train(task, MODELS["hpgmn"])
    assert len(recordings) == 2
    assert all(recordings)
    monkeypatch.setattr(StageRunner, "can_replay", False)
    assert_alike(train(task, MODELS["hpgmn"]), replayed, 2e-3)


def test_replays_go_on_with_fewer_replicas_and_other_rates(graph, recordings, monkeypatch):
    cls = MODELS["hpgmn"].settings
    common: dict[str, Any] = {
        "hidden_dim": 16,
        "num_patterns": 8,
        "epochs": 60,
        "patience": 3,
        "estimator_epochs": 20,
    }
    settings = [make_settings(cls, common | {"lr": lr}) for lr in (0.2, 0.01, 0.003)]
    split = graph.split(0)
    replicas = [Replica(0, seed, one) for seed, one in enumerate(settings)]
    task = make_task(graph, replicas, [(split.train, split.val)] * 3, "cuda")
    replayed = train(task, MODELS["hpgmn"])
    assert len(recordings) > 2  # one more each time that half of the replicas have stopped
    monkeypatch.setattr(StageRunner, "can_replay", False)
    alone = train(task, MODELS["hpgmn"])
    assert_alike(alone, replayed, 5e-3)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("hpgmn-gcn", {}),
        ("hpgmn-appnp", {}),
        ("hpgmn-appnp", {"propagation": "before", "mixing": "mean"}),
        ("hpgmn-appnp", {"propagation": "before", "batch_norm": True}),
        ("gcn", {"norm": "batch", "residual": True, "layers": 4}),
    ],
)
def test_consistency_loss_between_passes_is_replayed(graph, name, more, recordings, monkeypatch):
    values = {"consistency_weight": 0.5, "consistency_warmup": 6} | more
    task = task_of(graph, name, **values)
    replayed = train(task, MODELS[name])
    assert all(recordings)
    monkeypatch.setattr(StageRunner, "can_replay", False)
    assert_alike(train(task, MODELS[name]), replayed, 2e-3)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch_size", [0, 64])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_epoch_asks_the_gpu_nothing(graph, name, batch_size):
    if batch_size and name != "hpgmn":
        pytest.skip("reads all nodes")
    values = {"batch_size": batch_size}
    if batch_size:  # rows of sparse matrices are sliced on the host
        values["statistics"] = ("attributes", "class_counts", "class_means")
    task = task_of(graph, name, **values)
    state = TrainState()
    for stage, build in MODELS[name].stages.items():
        stage_run = StageRunner(task, build, state, [0, 1], accuracy)
        if stage_run.stage.epochs:
            optimizer = stage_run.optimizer(None)
            current = trainer.start_stage(
                stage,
                trainer._values(stage_run),
                (optimizer.first, optimizer.second),
                2,
                task.device,
            )
            stage_run.epoch(optimizer, current, 1)  # sets libraries up
            torch.cuda.set_sync_debug_mode("error")  # any wait for the GPU is an error
            try:
                stage_run.epoch(optimizer, current, 2)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        state.done[stage] = trainer._values(stage_run)


@pytest.mark.parametrize("form", ["dense", "half", "factored"])
@pytest.mark.parametrize("diffusion_form", ["dense", "implicit", "topk", "sketch"])
def test_statistics_are_those_of_the_cpu(graph, form, diffusion_form):
    settings = StatisticsSettings(
        statistics=STATISTICS,
        class_means_form=form,
        class_means_scaling="unit",
        diffusion_form=diffusion_form,
    )
    labels = np.stack([graph.y, np.roll(graph.y, 1)])
    nodes = torch.arange(graph.num_nodes)
    here, there = (
        LocalStatistics(graph, device).build(labels, 5, [settings] * 2)
        for device in ("cpu", "cuda")
    )
    for name, statistic in here.items():
        tolerance = 1e-3 if form == "half" and "means" in name else 1e-5
        for replica in (0, 1):
            found = there[name].rows(nodes.cuda(), replica).cpu()
            expected = statistic.rows(nodes, replica)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("batch_size", [0, 64])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_training_is_that_of_the_cpu_to_its_precision(graph, precision, batch_size):
    values = {"dropout": 0.0, "batch_size": batch_size, "precision": precision}
    values |= {
        name: 0.0 for name in MODELS["hpgmn"].settings.__dataclass_fields__ if "_dropout" in name
    }
    here = train(task_of(graph, "hpgmn", "cpu", **values), MODELS["hpgmn"])
    there = train(task_of(graph, "hpgmn", "cuda", **values), MODELS["hpgmn"])
    tolerance = {"float32": 5e-3, "tf32": 3e-2, "bfloat16": 0.15}[precision]
    found, expected = there.history["main"]["loss"], here.history["main"]["loss"]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert expected[-1].max() < 0.8 * expected[0].max()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_running_averages_are_replayed_as_on_the_cpu(graph, precision, recordings):
    values = {"norm": "batch", "residual": True, "layers": 3, "dropout": 0.0}
    values |= {"precision": precision, "lr": 0.001}
    here, there = (
        train(task_of(graph, "gcn", device, **values), MODELS["gcn"], epochs=FIXED)
        for device in ("cpu", "cuda")
    )
    assert all(recordings)
    tolerance = {"float32": 5e-3, "bfloat16": 5e-2}[precision]
    for key, value in here.done["main"].items():
        if key.startswith("norms"):
            found = there.done["main"][key].cpu()
            torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance)


def test_replayed_epochs_end_when_they_should(graph, recordings):
    epochs = []

    def should_finish():
        epochs.append(1)
        return len(epochs) == 7

    state = train(task_of(graph, "gcn"), MODELS["gcn"], should_finish=should_finish)
    assert all(recordings)
    assert len(state.history["main"]["loss"]) == 7
    assert (state.best_epoch["main"] > 0).all()


def test_predictions_after_batches_are_those_of_the_cpu(graph):
    task = task_of(graph, "hpgmn", batch_size=64)
    state = train(task, MODELS["hpgmn"])
    found = logits(task, MODELS["hpgmn"], state.done).cpu()
    done = {
        stage: {key: value.cpu() for key, value in parameters.items()}
        for stage, parameters in state.done.items()
    }
    again = logits(task_of(graph, "hpgmn", "cpu", batch_size=64), MODELS["hpgmn"], done)
    torch.testing.assert_close(found, again, rtol=1e-3, atol=1e-3)


def test_the_log_says_nothing_of_graphs_that_failed(graph, caplog):
    with caplog.at_level(logging.INFO):
        train(task_of(graph, "hpgmn"), MODELS["hpgmn"])
    assert "No CUDA graph" not in caplog.text
