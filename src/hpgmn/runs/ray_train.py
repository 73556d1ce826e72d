"""Training on row shards started by Ray Train instead of torchrun."""

from __future__ import annotations

import importlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import lock_folder, write_text
from hpgmn.base.parsing import parse_json
from hpgmn.engines.ray import connect_ray, require_ray
from hpgmn.runs.folder import METRICS_FILE, STATE_FOLDER
from hpgmn.runs.outputs import read_metrics
from hpgmn.runs.shard_run import ShardTraining, run_on_shards
from hpgmn.runs.spec import RunSpec
from hpgmn.shards import Shards
from hpgmn.training.ranks import join_ranks
from hpgmn.training.replicas import Progress

RAY_FOLDER = "ray"
"""Ray Train's own files, inside the run folder while it trains."""
PROGRESS_FILE = "progress.json"
"""Where the first worker reports its progress, beside the saved state."""
POLL_SECONDS = 0.5
"""How often progress is written and read."""


def train_with_ray(training: ShardTraining, device: str, workers: int) -> dict[str, Any]:
    """Check a request, prepare its folder and train it by Ray Train; return the metrics."""
    spec, shards = training.spec(device, workers)
    with connect_ray() as ray:
        require_room(ray, device, workers)
    with lock_folder(training.folder):
        metrics = training.prepare(spec)
        if metrics is not None:
            return metrics
        with training.watch(spec, shards) as report:
            return run_with_ray(spec, shards, training.folder, workers, report=report)


def run_with_ray(
    spec: RunSpec,
    shards: Shards,
    folder: Path,
    workers: int = 2,
    *,
    address: str | None = None,
    retries: int = 3,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train on row shards by Ray Train; after a lost worker all restart from the last state.

    Args:
        spec: from :func:`hpgmn.runs.shard_run.shard_spec`.
        shards: on a disk that every worker sees, as the prepared run folder.
        workers: how many processes train, each with a core or with a GPU.
        retries: how often the workers are restarted after one was lost.
        report: called while the first worker trains.

    Returns:
        The content of ``metrics.json``.
    """
    shards.shares(workers)
    train, torch_train = ray_train_modules()
    folder = folder.resolve()
    uses_gpu = spec.device == "cuda"
    config = {"spec": spec.as_dict(), "shards": str(shards.folder.resolve()), "folder": str(folder)}
    with connect_ray(address) as ray:
        require_room(ray, spec.device, workers)
        trainer = torch_train.TorchTrainer(
            train_worker,
            train_loop_config=config,
            torch_config=torch_train.TorchConfig(backend="nccl" if uses_gpu else "gloo"),
            scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=uses_gpu),
            run_config=train.RunConfig(
                name="shards",
                storage_path=str(folder / RAY_FOLDER),
                failure_config=train.FailureConfig(max_failures=retries),
            ),
        )
        try:
            with _poll_progress(folder / STATE_FOLDER / PROGRESS_FILE, report):
                trainer.fit()
        except train.TrainingFailedError as error:
            reason = " ".join(str(error).split())
            remedy = Remedy("Resume it: its saved state is kept", option="resume", value=True)
            raise HPGMNError(f"Training by Ray failed ({reason}).", remedy) from error
        finally:
            shutil.rmtree(folder / RAY_FOLDER, ignore_errors=True)
    return read_metrics(folder / METRICS_FILE)


def ray_train_modules() -> tuple[ModuleType, ModuleType]:
    """Import Ray Train and its part for torch."""
    require_ray()
    try:
        return importlib.import_module("ray.train"), importlib.import_module("ray.train.torch")
    except ImportError as error:
        raise HPGMNError(
            f"Ray Train cannot be imported ({error}).", "Run: pip install 'hpgmn[ray]'"
        ) from None


def require_room(ray: Any, device: str, workers: int) -> None:
    """Refuse more workers than the cluster has room for: Ray would wait forever."""
    resource, unit = ("GPU", "GPUs") if device == "cuda" else ("CPU", "cores")
    available = int(ray.cluster_resources().get(resource, 0))
    if available < workers:
        raise HPGMNError(
            f"The Ray cluster has {available} {unit}, fewer than the {workers} workers requested.",
            Remedy("Request fewer workers", option="workers", value=available or None)
            | "Add machines",
        )


def train_worker(config: Mapping[str, Any]) -> None:
    """Train as one of Ray Train's workers; the folder is prepared."""
    spec, folder = RunSpec.from_dict(dict(config["spec"])), Path(config["folder"])
    with join_ranks(spec.device) as ranks:
        report = _progress_writer(folder / STATE_FOLDER / PROGRESS_FILE)
        run_on_shards(spec, Shards(config["shards"]), folder, ranks, report=report)


def _progress_writer(path: Path) -> Callable[[Progress], None]:
    """Return a callback that writes progress into a file, at most twice a second."""
    last = 0.0

    def write(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= POLL_SECONDS:
            last = time.monotonic()
            write_text(path, json.dumps(asdict(progress)), fsync=False)

    return write


@contextmanager
def _poll_progress(path: Path, report: Callable[[Progress], None] | None) -> Iterator[None]:
    """Report the progress that another process writes into a file."""
    ended = threading.Event()

    def poll() -> None:
        latest = ""
        while report is not None and not ended.wait(POLL_SECONDS):
            with suppress(OSError, ValueError):  # not there yet, or no longer
                if (text := path.read_text(encoding="utf-8")) != latest:
                    latest = text
                    report(Progress(**parse_json(text)))

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
