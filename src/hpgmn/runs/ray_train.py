"""The same training started by Ray Train instead of torchrun."""

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

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_text
from hpgmn.base.parsing import parse_json
from hpgmn.engines.cluster import connected, require_ray
from hpgmn.runs.folder import METRICS_FILE, STATE_FOLDER
from hpgmn.runs.metrics import read_metrics
from hpgmn.runs.shard_run import run_on_shards
from hpgmn.runs.spec import RunSpec
from hpgmn.shards import Shards
from hpgmn.training.ranks import joined
from hpgmn.training.replicas import Progress

RAY_FOLDER = "ray"
"""What Ray Train notes of its own, inside the run folder while it trains."""
PROGRESS_FILE = "progress.json"
"""Where the first worker says how far it is, beside the saved state."""
LOOK_SECONDS = 0.5
"""How often it says so, and how often that is looked at."""


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
    """Train on row shards by Ray Train; a lost worker starts all anew from the last state.

    Args:
        spec: from :func:`hpgmn.runs.shard_run.specification`.
        shards: of the graph, on a disk that every worker sees.
        folder: a prepared run folder, on such a disk, too.
        workers: how many processes train, each with a core or with a GPU.
        address: of a Ray cluster; see :func:`hpgmn.engines.cluster.connected`.
        retries: how often the workers are started anew after one was lost.
        report: called while the first worker trains.

    Returns:
        The content of ``metrics.json``.
    """
    shards.shares(workers)
    train, torch_train = ray_train_modules()
    folder = folder.resolve()
    with connected(address) as ray:
        require_room(ray, spec.device, workers)
        try:
            with _watched(folder / STATE_FOLDER / PROGRESS_FILE, report):
                _train(train, torch_train, spec, shards, folder, workers, retries)
        finally:
            shutil.rmtree(folder / RAY_FOLDER, ignore_errors=True)
    return read_metrics(folder / METRICS_FILE)


def ray_train_modules() -> tuple[ModuleType, ModuleType]:
    """Ray Train and its part for torch, if they are installed."""
    require_ray()
    try:
        return importlib.import_module("ray.train"), importlib.import_module("ray.train.torch")
    except ImportError as error:
        raise HPGMNError(
            f"--engine ray needs Ray Train here ({error}). Run: pip install 'hpgmn[ray]'"
        ) from None


def require_room(ray: Any, device: str, workers: int) -> None:
    """Refuse more workers than the cluster can ever have at once: Ray would wait for ever."""
    kind, word = ("GPU", "GPUs") if device == "cuda" else ("CPU", "cores")
    room = int(ray.cluster_resources().get(kind, 0))
    if room < workers:
        raise HPGMNError(
            f"The Ray cluster has {room} {word}, fewer than the {workers} of --workers. Use "
            "fewer, or add machines."
        )


def _train(
    train: Any,
    torch_train: Any,
    spec: RunSpec,
    shards: Shards,
    folder: Path,
    workers: int,
    retries: int,
) -> None:
    trainer = torch_train.TorchTrainer(
        work,
        train_loop_config={
            "spec": spec.as_dict(),
            "shards": str(shards.folder.resolve()),
            "folder": str(folder),
        },
        torch_config=torch_train.TorchConfig(backend="nccl" if spec.device == "cuda" else "gloo"),
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=spec.device == "cuda"),
        run_config=train.RunConfig(
            name="shards",
            storage_path=str(folder / RAY_FOLDER),
            failure_config=train.FailureConfig(max_failures=retries),
        ),
    )
    try:
        trainer.fit()
    except train.TrainingFailedError as error:
        reason = " ".join(str(error).split())
        raise HPGMNError(
            f"Training by Ray failed ({reason}). What was saved is kept; repeat it with --resume."
        ) from error


def work(config: Mapping[str, Any]) -> None:
    """What each worker of Ray Train does; the folder is prepared."""
    spec, folder = RunSpec.from_dict(dict(config["spec"])), Path(config["folder"])
    with joined(spec.device) as ranks:
        note = _noted(folder / STATE_FOLDER / PROGRESS_FILE)
        run_on_shards(spec, Shards(config["shards"]), folder, ranks, report=note)


def _noted(path: Path) -> Callable[[Progress], None]:
    """Writes progress into a file, now and then."""
    last = 0.0

    def note(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= LOOK_SECONDS:
            last = time.monotonic()
            write_text(path, json.dumps(asdict(now)), fsync=False)

    return note


@contextmanager
def _watched(path: Path, report: Callable[[Progress], None] | None) -> Iterator[None]:
    """Report what another process notes in a file."""
    ended = threading.Event()

    def look() -> None:
        before = ""
        while report is not None and not ended.wait(LOOK_SECONDS):
            with suppress(OSError, ValueError):  # not there yet, or not any more
                if (text := path.read_text(encoding="utf-8")) != before:
                    before = text
                    report(Progress(**parse_json(text)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
