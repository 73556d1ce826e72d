"""Ray Train starts the same training, and starts it anew when a worker is killed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hpgmn as package
from hpgmn.distributed import ray_train, train_with_ray
from hpgmn.distributed.ranks import Ranks
from hpgmn.distributed.run import run_on_rows, specification
from hpgmn.distributed.shards import Manifest
from hpgmn.errors import HPGMNError, SettingError
from hpgmn.experiments.run import prepare_folder
from hpgmn.graph import Graph
from hpgmn.training.checkpoint import read_tensors

SETTINGS: dict[str, Any] = {
    "hidden_dim": 6,
    "num_patterns": 4,
    "epochs": 5,
    "batch_size": 40,
    "statistics": ("attributes", "class_counts"),
}
SOURCE = Path(package.__file__).parents[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on this machine, small and quiet; skipped where Ray Train cannot be imported."""
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    import ray

    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{before}")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield
        ray.shutdown()


def dying() -> Callable[[Mapping[str, Any]], None]:
    """The work of a worker, whose second rank kills itself once; sent to workers by value."""

    def work(config: Mapping[str, Any]) -> None:
        import signal

        from hpgmn.distributed import ray_train, training

        training.SAVE_SECONDS = 0.0
        before, died = training.ParallelTraining.epoch, Path(config["folder"]) / "died"

        def epoch(self: Any, optimizer: Any, current: Any) -> Any:
            if self.ranks.rank == 1 and current.epoch == 2 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return before(self, optimizer, current)

        training.ParallelTraining.epoch = epoch  # type: ignore[method-assign]
        ray_train.work(config)

    return work


@pytest.mark.ray
@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_killed_worker_changes_nothing(
    cluster: None,
    tmp_path: Path,
    rows_writer: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = package.trading_network(num_nodes=200, seed=3).graph
    rows = rows_writer(tmp_path / "rows", graph, SETTINGS)
    manifest = Manifest.read(rows)
    spec = specification(manifest, None)
    prepare_folder(tmp_path / "one", spec, resume=False, overwrite=False)
    one = run_on_rows(spec, manifest, tmp_path / "one", Ranks())
    monkeypatch.setattr(ray_train, "work", dying())
    found = train_with_ray(rows, tmp_path / "run", 2, retries=1)
    assert (tmp_path / "run" / "died").exists()
    assert found["hardware"]["ranks"] == 2
    assert one is not None
    assert found["test_score"] == pytest.approx(one["test_score"], abs=0.03)
    expected, _ = read_tensors(tmp_path / "one" / "model.safetensors")
    model, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    for name, value in expected.items():
        torch.testing.assert_close(model[name], value, rtol=1e-3, atol=1e-3)
    assert not (tmp_path / "run" / "ray").exists()
    with pytest.raises(HPGMNError, match="is finished"):
        train_with_ray(rows, tmp_path / "run", 2, resume=True)


def test_without_ray_the_remedy_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(HPGMNError, match=r"Install it: pip install 'hpgmn\[ray\]'"):
        train_with_ray(tmp_path, tmp_path / "run")


class _Ray:
    """As much of Ray as is asked here."""

    class TrainingFailedError(Exception):
        pass

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        self.told["init"] = options

    def shutdown(self) -> None:
        self.told["shutdown"] = True

    def __getattr__(self, name: str) -> Any:
        return lambda **options: self.told.setdefault(name, options)

    def TorchTrainer(self, work: Any, **options: Any) -> _Ray:
        self.told["config"] = options["train_loop_config"]
        return self

    def fit(self) -> None:
        raise self.TrainingFailedError("a machine burnt down.")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> _Ray:
    """A Ray whose training fails."""
    ray = _Ray()
    monkeypatch.setattr(ray_train, "_ray", lambda name: ray)
    return ray


def test_a_failed_training_says_how_to_go_on(
    played: _Ray, tmp_path: Path, rows_writer: Callable[..., Path], small_graph: Graph
) -> None:
    rows = rows_writer(tmp_path / "rows", small_graph, SETTINGS)
    with pytest.raises(HPGMNError, match=r"a machine burnt down\. What was saved is kept"):
        train_with_ray(rows, tmp_path / "run", 2, retries=7)
    assert played.told["init"]["include_dashboard"] is False
    assert played.told["shutdown"]
    assert played.told["ScalingConfig"] == {"num_workers": 2, "use_gpu": False}
    assert played.told["TorchConfig"] == {"backend": "gloo"}
    assert played.told["FailureConfig"] == {"max_failures": 7}
    assert played.told["config"]["rows"] == str(rows)
    with pytest.raises(HPGMNError, match="a machine burnt down"):
        train_with_ray(rows, tmp_path / "run", 2, resume=True, address="host:6379")
    assert played.told["init"]["address"] == "host:6379"
    assert "include_dashboard" not in played.told["init"]


@pytest.mark.parametrize(("workers", "message"), [(0, "at least 1"), (9, "too few for 9 ranks")])
def test_wrong_numbers_of_workers_are_refused(
    workers: int,
    message: str,
    played: _Ray,
    tmp_path: Path,
    rows_writer: Callable[..., Path],
    small_graph: Graph,
) -> None:
    rows = rows_writer(tmp_path / "rows", small_graph, SETTINGS)
    with pytest.raises((HPGMNError, SettingError), match=message):
        train_with_ray(rows, tmp_path / "run", workers)
    assert not (tmp_path / "run").exists()
