"""Ray Train starts the same training, and restarts it when a worker is killed."""

import importlib
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import hpgmn as package
from hpgmn.base import files as writing
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import read_tensors
from hpgmn.runs import ray_train
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.ray_train import run_with_ray
from hpgmn.runs.shard_run import run_on_shards, shard_spec
from hpgmn.shards import Shards
from hpgmn.training.ranks import Ranks
from hpgmn.training.replicas import Progress

SETTINGS: dict[str, Any] = {
    "hidden_dim": 6,
    "num_patterns": 4,
    "epochs": 5,
    "batch_size": 40,
    "statistics": ("attributes", "class_counts"),
}
SOURCE = Path(package.__file__).parents[1]


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, small and quiet; skipped where Ray Train cannot be imported."""
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    import ray

    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{before}")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.shutdown()  # of a test before, in this process
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(
            address="local",
            num_cpus=3,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield
        ray.shutdown()


def dying():
    """The work of a worker, whose second rank kills itself once; sent to workers by value."""

    def work(config):
        import signal

        from hpgmn.runs import ray_train
        from hpgmn.training import replicas
        from hpgmn.training.stage_runner import StageRunner

        replicas.SAVE_SECONDS = 0.0
        before, died = StageRunner.epoch, Path(config["folder"]) / "died"

        def epoch(self, optimizer, current, number):
            if self.ranks.rank == 1 and current.epoch == 2 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return before(self, optimizer, current, number)

        StageRunner.epoch = epoch  # type: ignore[assignment,method-assign]
        ray_train.train_worker(config)

    return work


@pytest.mark.ray
@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_killed_worker_changes_nothing(cluster, tmp_path, shards_writer, monkeypatch):
    graph = package.trading_network(num_nodes=200, seed=3).graph
    shards = Shards(shards_writer(tmp_path / "shards", graph, SETTINGS))
    spec = shard_spec(shards)
    for name in ("one", "run"):
        prepare_folder(tmp_path / name, spec, resume=False, overwrite=False)
    one = run_on_shards(spec, shards, tmp_path / "one", Ranks())
    monkeypatch.setattr(ray_train, "train_worker", dying())
    told: list[Progress] = []
    found = run_with_ray(spec, shards, tmp_path / "run", 2, retries=1, report=told.append)
    assert (tmp_path / "run" / "died").exists()
    assert found["hardware"]["ranks"] == 2
    assert one is not None
    assert found.keys() == one.keys()
    assert found["test_score"] == pytest.approx(one["test_score"], abs=0.03)
    expected, _ = read_tensors(tmp_path / "one" / "model.safetensors")
    model, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    for name, value in expected.items():
        torch.testing.assert_close(model[name], value, rtol=1e-3, atol=1e-3)
    assert not (tmp_path / "run" / "ray").exists()
    assert told
    assert {(now.stage, now.epochs) for now in told} == {("main", 5)}
    with pytest.raises(HPGMNError, match="has 3 cores, fewer than the 4 workers"):
        run_with_ray(spec, shards, tmp_path / "run", 4)


def test_without_ray_train_the_remedy_is_one_line(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(ray_train, "require_ray", lambda: None)
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(HPGMNError, match=r"Run: pip install 'hpgmn\[ray\]'"):
        ray_train.ray_train_modules()


class _Ray:
    """As much of Ray as is asked here; its training fails."""

    class TrainingFailedError(Exception):
        pass

    def __init__(self):
        self.told: dict[str, Any] = {}

    def cluster_resources(self):
        return {"CPU": 2.0}

    def __getattr__(self, name):
        return lambda **options: self.told.setdefault(name, options)

    def TorchTrainer(self, work, **options):
        self.told["config"] = options["train_loop_config"]
        return self

    def fit(self):
        raise self.TrainingFailedError("a machine\nburnt down")


@pytest.fixture
def played(monkeypatch):
    """A Ray whose training fails."""
    ray = _Ray()

    @contextmanager
    def connect_ray(address):
        ray.told["address"] = address
        yield ray

    monkeypatch.setattr(ray_train, "ray_train_modules", lambda: (ray, ray))
    monkeypatch.setattr(ray_train, "connect_ray", connect_ray)
    return ray


def test_a_failed_training_says_how_to_go_on(played, tmp_path, shards_writer, small_graph):
    shards = Shards(shards_writer(tmp_path / "shards", small_graph, SETTINGS))
    spec = shard_spec(shards)
    with pytest.raises(HPGMNError, match=r"\(a machine burnt down\)") as caught:
        run_with_ray(spec, shards, tmp_path / "run", 2, retries=7, address="host:6379")
    assert caught.value.remedy is not None
    assert caught.value.remedy.option == "resume"
    assert played.told["address"] == "host:6379"
    assert played.told["ScalingConfig"] == {"num_workers": 2, "use_gpu": False}
    assert played.told["TorchConfig"] == {"backend": "gloo"}
    assert played.told["FailureConfig"] == {"max_failures": 7}
    assert played.told["config"]["shards"] == str(shards.folder)


@pytest.mark.parametrize(
    ("workers", "device", "message"),
    [
        (9, "cpu", "too few for 9 ranks"),
        (3, "cpu", "has 2 cores, fewer than the 3 workers"),
        (1, "cuda", "has 0 GPUs, fewer than the 1 workers"),
    ],
)
def test_wrong_numbers_of_workers_are_refused(
    workers, device, message, played, tmp_path, shards_writer, small_graph
):
    shards = Shards(shards_writer(tmp_path / "shards", small_graph, SETTINGS))
    spec = shard_spec(shards, device=device)
    with pytest.raises(HPGMNError, match=message):
        run_with_ray(spec, shards, tmp_path / "run", workers)


def test_progress_goes_through_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_train, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(writing.os, "fsync", pytest.fail)  # the next note replaces it anyway
    path = tmp_path / "progress.json"
    told: list[Progress] = []
    first, second = (
        Progress(0, 1, "main", epoch, 9, 0.5, 0.25, val_loss=0.75, epoch_score=0.125)
        for epoch in (1, 2)
    )

    def wait_for(number):
        end = time.monotonic() + 20
        while len(told) < number and time.monotonic() < end:
            time.sleep(0.01)

    with ray_train._poll_progress(path, told.append):
        path.write_text("{")
        note = ray_train._progress_writer(path)
        note(first)
        wait_for(1)
        time.sleep(0.05)  # seen once, told once
        note(second)
        wait_for(2)
    assert told == [first, second]
    monkeypatch.setattr(ray_train, "POLL_SECONDS", 60.0)
    note(first)  # too soon
    assert '"epoch": 2' in path.read_text()
