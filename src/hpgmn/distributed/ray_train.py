"""The same training started by Ray Train instead of torchrun."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpgmn.distributed.ranks import joined
from hpgmn.distributed.run import run_on_rows, specification
from hpgmn.distributed.shards import Manifest
from hpgmn.errors import HPGMNError, SettingError
from hpgmn.experiments.run import METRICS_FILE, RunSpec, prepare_folder

RAY_FOLDER = "ray"
"""What Ray Train notes of its own, inside the run folder while it trains."""


def train_with_ray(
    rows: Path | str,
    out: Path | str,
    workers: int = 2,
    *,
    settings: Mapping[str, Any] | None = None,
    seeds: int = 1,
    metric: str = "accuracy",
    device: str = "cpu",
    calibrate: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    retries: int = 3,
    address: str | None = None,
) -> dict[str, Any]:
    """Train on a folder of rows by Ray Train; a lost worker starts all anew from the last state.

    Args:
        rows: the folder of rows, on a disk that every worker sees.
        out: the run folder, on such a disk, too.
        workers: how many processes train, each with a CPU, or with a GPU.
        settings: what differs from the settings that the rows were made with.
        seeds: how many.
        metric: what selects epochs and is reported.
        device: "cpu" or "cuda".
        calibrate: whether a temperature is fitted to the validation nodes.
        resume: go on with an interrupted run in ``out``.
        overwrite: replace the run in ``out``.
        retries: how often the workers are started anew after one was lost.
        address: of a Ray cluster; None takes the one that is joined already, or starts one on this
            machine.

    Returns:
        The content of ``metrics.json``.
    """
    ray, train, torch_train = (_ray(name) for name in ("ray", "ray.train", "ray.train.torch"))
    folder = Path(out).resolve()
    manifest = Manifest.read(Path(rows).resolve())
    spec = specification(
        manifest, settings, seeds=seeds, metric=metric, device=device, calibrate=calibrate
    )
    if workers < 1:
        raise SettingError(f"workers must be at least 1 (got {workers}).")
    manifest.shares(workers)
    prepare_folder(folder, spec, resume=resume, overwrite=overwrite)
    if (folder / METRICS_FILE).exists():
        raise HPGMNError(
            f"The run in {folder} is finished. Read {folder / METRICS_FILE}, or train it again "
            "with overwrite."
        )
    started = not ray.is_initialized()
    if started:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            **({} if address else {"include_dashboard": False}),
        )
    try:
        _train(train, torch_train, spec, manifest, folder, workers, retries)
    finally:
        shutil.rmtree(folder / RAY_FOLDER, ignore_errors=True)
        if started:
            ray.shutdown()
    metrics: dict[str, Any] = json.loads((folder / METRICS_FILE).read_text(encoding="utf-8"))
    return metrics


def _ray(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HPGMNError(
            f"Training by Ray needs Ray Train ({error}). Install it: pip install 'hpgmn[ray]'."
        ) from None


def _train(
    train: Any,
    torch_train: Any,
    spec: RunSpec,
    manifest: Manifest,
    folder: Path,
    workers: int,
    retries: int,
) -> None:
    trainer = torch_train.TorchTrainer(
        work,
        train_loop_config={
            "spec": spec.as_dict(),
            "rows": str(manifest.folder),
            "folder": str(folder),
        },
        torch_config=torch_train.TorchConfig(backend="nccl" if spec.device == "cuda" else "gloo"),
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=spec.device == "cuda"),
        run_config=train.RunConfig(
            name="rows",
            storage_path=str(folder / RAY_FOLDER),
            failure_config=train.FailureConfig(max_failures=retries),
        ),
    )
    try:
        trainer.fit()
    except train.TrainingFailedError as error:
        raise HPGMNError(
            f"Training by Ray failed: {error} What was saved is kept; repeat it with resume."
        ) from error


def work(config: Mapping[str, Any]) -> None:
    """What each worker of Ray Train does; the folder is prepared."""
    spec = RunSpec.from_dict(dict(config["spec"]))
    with joined(spec.device) as ranks:
        run_on_rows(spec, Manifest.read(Path(config["rows"])), Path(config["folder"]), ranks)
