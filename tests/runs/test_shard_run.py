"""A run on row shards: the files of a run, one process's accuracy, and a rank that is killed."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.conftest import environment

import hpgmn as package
from hpgmn.base.calibration import calibrated_probabilities
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import read_tensors, write_tensors
from hpgmn.base.settings import read_yaml
from hpgmn.cli import main
from hpgmn.runs import shard_run as module
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.outputs import read_metrics
from hpgmn.runs.shard_run import ShardTraining, count_labels, run_on_shards, shard_spec
from hpgmn.shards import Shards
from hpgmn.training.ranks import Ranks
from hpgmn.training.saved import SavedModel

SETTINGS: dict[str, Any] = {
    "hidden_dim": 12,
    "num_patterns": 8,
    "estimator_hidden": 12,
    "estimator_epochs": 40,
    "epochs": 15,
    "batch_size": 64,
    "statistics": ("attributes", "class_counts", "class_means"),
}

# Rank 1 is killed at the start of its fifth epoch: always, or in the first attempt alone.
PROGRAM = """
import os, signal, sys
from hpgmn.training import replicas
from hpgmn.training.stage_runner import StageRunner

replicas.SAVE_SECONDS = 0.0
before = StageRunner.epoch
when = sys.argv.pop(1)

def epoch(self, optimizer, current, number):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if self.ranks.rank == 1 and current.epoch == 4 and (when == "die" or when == "once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    return before(self, optimizer, current, number)

StageRunner.epoch = epoch
from hpgmn.cli import main
sys.exit(main(sys.argv[1:]))
"""


def trading(num_nodes=400):
    return package.trading_network(num_nodes=num_nodes, seed=3).graph


def run_here(folder, out, settings=None, **options):
    shards = Shards(folder)
    spec = shard_spec(shards, settings, **options)
    prepare_folder(out, spec, resume=False, overwrite=False)
    return run_on_shards(spec, shards, out, Ranks())


@pytest.mark.distributed
@pytest.mark.slow
def test_two_ranks_are_as_good_as_one_process_and_a_killed_rank_changes_no_bit(
    tmp_path, trained_writer, several, monkeypatch
):
    graph = trading()
    folder, (_, logits) = trained_writer(tmp_path / "shards", graph, SETTINGS)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def train(out, when, *words, before=(), **more):
        command = ["train-shards", str(folder), "--out", str(tmp_path / out), "--device", "cpu"]
        return several(2, *before, str(program), when, *command, *words, **more).stderr

    whole = train("whole", "never")
    assert "Warning" not in whole
    test = graph.split(0).test
    expected = (logits[0].argmax(dim=-1).numpy() == graph.y)[test].mean()
    metrics = json.loads((tmp_path / "whole" / "metrics.json").read_text())
    assert metrics["test_score"][0] == pytest.approx(expected, abs=0.02)
    assert expected > 0.8
    assert metrics["hardware"]["ranks"] == 2

    train("cut", "die", expect=1)
    state = tmp_path / "cut" / "state" / "state.safetensors"
    assert read_tensors(state)[1]["current"]["epoch"] in (3, 4)
    assert not (tmp_path / "cut" / "metrics.json").exists()
    train("cut", "never", "--resume")
    # torchrun begins anew by itself; the processes must not share the store of the lost ones.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    train("once", "once", "--resume", before=("--max-restarts", "1"))
    model, _ = read_tensors(tmp_path / "whole" / "model.safetensors")
    table = pq.read_table(tmp_path / "whole" / "predictions.parquet")
    for out in ("cut", "once"):
        found, _ = read_tensors(tmp_path / out / "model.safetensors")
        assert found.keys() == model.keys()
        assert all(torch.equal(found[name], value) for name, value in model.items())
        assert pq.read_table(tmp_path / out / "predictions.parquet").equals(table)
        assert {path.name for path in (tmp_path / out).iterdir()} == {
            *("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet"),
            *("model.safetensors", "report.html", "log.txt"),
        }


@pytest.mark.distributed
@pytest.mark.slow
def test_ctrl_c_under_torchrun_ends_within_an_epoch_and_saves(tmp_path, shards_writer):
    folder = shards_writer(tmp_path / "shards", trading(200), SETTINGS)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)  # which saves the state after every epoch
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words = ["train-shards", str(folder), "--out", str(tmp_path / "run"), "--device", "cpu"]
    endless = ["--set", "epochs=1000000", "--set", "patience=1000000"]
    with subprocess.Popen(
        [*command, "--standalone", str(program), "never", *words, *endless],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        state = tmp_path / "run" / "state" / "state.safetensors"
        end = time.monotonic() + 100
        while not state.exists() and time.monotonic() < end:
            time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        _, told = run.communicate(timeout=100)
    # torchrun kills after 30 seconds who has not ended by itself; the killed say nothing.
    assert "--resume" in told
    assert read_tensors(state)[1]["current"]["epoch"] > 0


def test_a_run_on_shards_has_the_files_of_a_run(tmp_path, trained_writer):
    graph = trading(200)
    folder, _ = trained_writer(tmp_path / "shards", graph, SETTINGS | {"epochs": 3}, split=1)
    metrics = run_here(folder, tmp_path / "run", seeds=2)
    split = graph.split(1)
    model = SavedModel.read(tmp_path / "run" / "model.safetensors")
    assert [(one.split, one.seed) for one in model.replicas] == [(1, 0), (1, 1)]
    assert model.train_labels.tolist() == [np.where(split.train, graph.y, -1).tolist()] * 2
    # The saved model on the graph itself says what the ranks said of their rows.
    logits = model.logits(graph)
    table = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pydict()
    assert table["node"] == [*range(200), *range(200)]
    assert table["seed"] == [0] * 200 + [1] * 200
    names = np.array(graph.class_names)
    assert table["label"][:200] == names[graph.y].tolist()
    assert table["prediction"] == names[logits.argmax(dim=-1).numpy()].reshape(-1).tolist()
    chances = calibrated_probabilities(logits, model.calibration)[:, :, 0].reshape(-1)
    assert table[f"probability_{names[0]}"] == pytest.approx(chances.tolist(), abs=1e-5)
    roles = np.array(table["role"][:200])
    right = logits.argmax(dim=-1).numpy() == graph.y
    for part in ("train", "val", "test"):
        assert np.array_equal(roles == part, getattr(split, part))
    assert metrics["test_score"] == pytest.approx(right[:, split.test].mean(axis=1).tolist())
    assert metrics["val_score"] == pytest.approx(right[:, split.val].mean(axis=1).tolist())
    assert metrics["nodes"]["train"] == [int(split.train.sum())]
    assert metrics["ensemble"]["seeds"] == 2
    assert metrics == read_metrics(tmp_path / "run" / "metrics.json")
    assert (model.calibration[:, 0] != 1).all()
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 6
    assert not (tmp_path / "run" / "state").exists()


def test_without_calibration_or_estimator_or_test_nodes(
    tmp_path, shards_writer, rewrite, small_graph
):
    settings = SETTINGS | {"epochs": 2}
    folder = shards_writer(tmp_path / "shards", small_graph, settings, ranges=2)
    for number in range(2):
        rewrite(folder, f"rows-{number:05d}/test.npy", np.zeros(9, bool))
        names = np.array([f"n{v}" for v in range(9)])
        rewrite(folder, f"rows-{number:05d}/node_ids.npy", names)
    metrics = run_here(folder, tmp_path / "run", calibrate=False)
    assert metrics["test_score_mean"] is None
    assert metrics["calibration"]["temperature"] == [1.0]
    model = SavedModel.read(tmp_path / "run" / "model.safetensors")
    assert model.node_ids is not None
    assert model.node_ids.tolist() == [f"n{v}" for v in range(9)] * 2
    with pytest.raises(HPGMNError, match="whose labels are not the label estimator's"):
        model.logits(small_graph)


def test_the_model_predicts_by_command(tmp_path, trained_writer):
    graph = trading(200)
    package.write_graph(graph, tmp_path / "graph.npz")
    folder, _ = trained_writer(tmp_path / "shards", graph, SETTINGS | {"epochs": 2})
    run_here(folder, tmp_path / "run")
    out = tmp_path / "found.parquet"
    words = ["predict", str(tmp_path / "run"), str(tmp_path / "graph.npz"), "--out", str(out)]
    assert main(words) == 0
    expected = pq.read_table(tmp_path / "run" / "predictions.parquet")["prediction"]
    assert pq.read_table(out)["prediction"].to_pylist() == expected.to_pylist()


def test_shards_are_always_read_in_batches(tmp_path, shards_writer, small_graph):
    shards = Shards(shards_writer(tmp_path, small_graph, SETTINGS))
    assert shard_spec(shards).settings["batch_size"] == 64
    assert shard_spec(shards, {"batch_size": 7}).settings["batch_size"] == 7
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    content["settings"]["batch_size"] = 0
    path.write_text(json.dumps(content))
    assert shard_spec(Shards(tmp_path)).settings["batch_size"] == 1024


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"batch_size": 0}, {}, "batch_size=1024"),
        ({}, {"seeds": 0}, "Seeds must be 1 to"),
        ({}, {"metric": "precision@3"}, "needs two classes"),
        ({"hiden_dim": 3}, {}, "Did you mean 'hidden_dim'"),
    ],
)
def test_what_cannot_be_trained_is_refused_first(
    settings, options, message, tmp_path, shards_writer, small_graph
):
    shards = Shards(shards_writer(tmp_path, small_graph, SETTINGS))
    with pytest.raises(SettingError, match=message):
        shard_spec(shards, settings, **options)


@pytest.mark.parametrize(
    "changed",
    [
        {"attributes_scaling": "unit"},
        {"diffusion_dim": 32},
        {"soft_counts": True},
        {"neighbors": "in"},
        {"label_confidence": 0.5},
        {"estimator_hidden": 5},
        {"teleport": 0.3, "estimator_lr": 0.5},
    ],
)
def test_what_the_rows_were_made_with_is_not_set_again(
    changed, tmp_path, shards_writer, small_graph
):
    """The saved model would say it, and `evaluate` build other statistics."""
    shards = Shards(shards_writer(tmp_path, small_graph, SETTINGS | {"neighbors": "out"}))
    with pytest.raises(SettingError, match=", ".join(changed)) as caught:
        shard_spec(shards, {"lr": 0.1} | changed)
    assert caught.value.remedy is not None
    assert caught.value.remedy.command == "shard"
    same = {name: shards.settings[name] for name in changed}
    allowed = {"class_counts_dropout": 0.2, "statistics": ("class_counts",)} | same
    found = shard_spec(shards, allowed).settings
    assert (found["class_counts_dropout"], list(found["statistics"])) == (0.2, ["class_counts"])


def test_resuming_with_other_versions_warns_and_keeps_the_record_of_the_start(
    tmp_path, shards_writer, small_graph, monkeypatch, caplog
):
    shards = Shards(shards_writer(tmp_path / "shards", small_graph, SETTINGS))
    out, spec = tmp_path / "run", shard_spec(shards)
    prepare_folder(out, spec, resume=False, overwrite=False)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "shard_environment", lambda *_: {"torch": "1.0"})
        patch.setattr(module._RankRun, "_score", crash)
        with pytest.raises(KeyboardInterrupt):
            run_on_shards(spec, shards, out, Ranks())
    assert "torch" not in caplog.text
    monkeypatch.setattr(module, "shard_environment", lambda *_: {"torch": "2.0"})
    metrics = run_on_shards(spec, shards, out, Ranks())
    assert metrics is not None
    assert read_yaml(out / "config.yaml")["made_with"] == {"torch": "1.0"}
    (warning,) = [line for line in caplog.messages if "torch" in line]
    assert "was trained with torch 1.0 (now 2.0)" in warning
    assert warning in metrics["warnings"]


@pytest.mark.parametrize("version", ["0.1.0", "99.0"])
def test_a_run_interrupted_under_another_version_is_resumed(
    version, tmp_path, shards_writer, small_graph, monkeypatch
):
    """Versions before 0.2 hashed their version into the identity of a state."""
    shards = Shards(shards_writer(tmp_path / "shards", small_graph, SETTINGS | {"epochs": 2}))
    out, spec = tmp_path / "run", shard_spec(shards)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hpgmn.runs.spec.__version__", version)
        patch.setattr(module._RankRun, "_score", crash)
        prepare_folder(out, spec, resume=False, overwrite=False)
        with pytest.raises(KeyboardInterrupt):
            run_on_shards(spec, shards, out, Ranks())
        earlier = json.dumps([spec.as_dict(), shards.identity], sort_keys=True)
    if version == "0.1.0":
        state = out / "state" / "state.safetensors"
        tensors, about = read_tensors(state)
        identity = hashlib.sha256(earlier.encode()).hexdigest()
        write_tensors(state, tensors, about | {"identity": identity})
    seen: list[Any] = []
    assert run_on_shards(spec, shards, out, Ranks(), report=seen.append) is not None
    assert not seen  # every epoch was in the state


def test_labels_are_counted_range_by_range(tmp_path, shards_writer, small_graph, monkeypatch):
    """No process holds the labels of all nodes before the training begins."""
    shards = Shards(shards_writer(tmp_path, small_graph, SETTINGS, split=1))
    monkeypatch.delattr("hpgmn.runs.shard_run.ShardRows")
    shard_spec(shards)
    split = small_graph.split(1)
    found = count_labels(shards)
    for part, labels in (
        ("train", small_graph.y[split.train]),
        ("val", small_graph.y[split.val]),
        ("every", small_graph.y),
    ):
        assert getattr(found, part).tolist() == [(labels == c).sum() for c in range(3)]


def test_a_damaged_estimator_is_refused_before_the_training(tmp_path, shards_writer, small_graph):
    shards = Shards(shards_writer(tmp_path, small_graph, SETTINGS))
    (tmp_path / "estimator.safetensors").write_text("nothing")
    with pytest.raises(HPGMNError, match="`hpgmn shard`"):
        shard_spec(shards)


def test_a_training_runs_once_and_only_lacks_its_report(tmp_path, small_graph, shards_writer):
    shards = shards_writer(tmp_path / "shards", small_graph, SETTINGS, ranges=2)
    reports: list[Any] = []

    @contextmanager
    def watch(*_):
        yield reports.append

    def requested(resume=False):
        options = {"settings": {"lr": 0.02, "epochs": 2}, "metric": "macro_f1"}
        return ShardTraining(
            shards, tmp_path / "run", options, {}, resume=resume, overwrite=False, watch=watch
        )

    metrics = requested().run("cpu")
    assert metrics is not None
    assert metrics["metric"] == "macro_f1"
    assert metrics["config"]["settings"]["lr"] == 0.02
    assert [progress.epoch for progress in reports] == [1, 2]
    with pytest.raises(HPGMNError, match="exists"):
        requested().run("cpu")
    assert requested(resume=True).run("cpu") == metrics
    assert len(reports) == 2  # nothing is trained again
    with pytest.raises(HPGMNError, match="ranks"):
        requested().spec("cpu", 9)
