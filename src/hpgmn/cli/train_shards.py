"""The command that trains on row shards: alone, under torchrun, or by Ray Train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.cli.console import resume_hint, say, training_progress
from hpgmn.cli.options import (
    Address,
    Calibration,
    Deterministic,
    EngineName,
    Metric,
    Overwrite,
    Positive,
    Settings,
    check_engine,
    open_engine,
)
from hpgmn.cli.train import print_scores

if TYPE_CHECKING:
    from hpgmn.runs.spec import RunSpec
    from hpgmn.shards import Shards

WORKERS = 2
"""Default number of processes that Ray starts."""

_OPTIONS = ("seeds", "metric", "positive", "calibrate", "deterministic")


def train_shards(
    out_folder: Annotated[
        Path, typer.Option("--out", help="The run folder, on a disk that every rank sees.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The row shards that `hpgmn shard` made. A run's config.yaml names them."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="The config.yaml of a run on row shards, to be trained again."),
    ] = None,
    set_: Settings = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds; all read the same batches [1].")] = None,
    metric: Metric = None,
    positive: Positive = None,
    calibration: Calibration = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu (gloo) or cuda (nccl) [auto].")
    ] = None,
    deterministic: Deterministic = None,
    resume: Annotated[
        bool, typer.Option(help="Continue the interrupted run in --out, if there is one.")
    ] = False,
    overwrite: Overwrite = False,
    engine: EngineName = "local",
    workers: Annotated[
        int | None, typer.Option(help=f"With --engine ray: processes [{WORKERS}].")
    ] = None,
    address: Address = None,
) -> None:
    """Train HP-GMN on the row shards of a graph.

    Under torchrun each process reads its own ranges of nodes; the result is that of one process.
    After a rank was lost the same command resumes from the last state:

    torchrun --standalone --nproc-per-node 2 -m hpgmn train-shards SHARDS --out RUN --resume
    """
    from hpgmn.base.settings import parse_assignments
    from hpgmn.models import read_config
    from hpgmn.runs.folder import LOG_FILE, check_resume, interruptible, log_file, record_log
    from hpgmn.runs.report_data import write_report
    from hpgmn.runs.shard_run import ShardTraining

    check_resume(out_folder, resume=resume, overwrite=overwrite)
    check_engine(engine, address, workers)
    if engine == "local" and workers is not None:
        raise SettingError(
            "--workers needs --engine ray.",
            Remedy("Start the processes by Ray", option="engine", value="ray")
            | "Start them by torchrun --nproc-per-node, without --workers",
        )
    values = {} if config is None else read_config(config)
    given = {
        "seeds": seeds,
        "metric": metric,
        "positive": positive,
        "calibrate": calibration,
        "deterministic": deterministic,
        "device": device,
    }
    values |= {name: value for name, value in given.items() if value is not None}
    settings = values.get("settings", {}) | parse_assignments(set_ or [])
    ray_workers = (workers or WORKERS) if engine == "ray" else None

    @contextmanager
    def watch(spec: RunSpec, shards: Shards) -> Iterator[Callable[[Any], None]]:
        if ray_workers is not None:
            say(f"Starting {ray_workers} Ray Train workers; this takes some seconds.")
        with (
            resume_hint(),
            interruptible(out_folder, say),
            log_file(out_folder / LOG_FILE, records),
            training_progress() as progress,
        ):
            yield lambda now: progress(f"{shards.name} {spec.model}", now)

    training = ShardTraining(
        _shards_folder(folder, values),
        out_folder,
        {"settings": settings} | {name: values[name] for name in _OPTIONS if name in values},
        values,
        resume=resume,
        overwrite=overwrite,
        watch=watch,
    )
    with record_log() as records:
        if ray_workers is not None:  # refuse mistakes before a cluster is started
            training.spec("cpu", ray_workers)
        with open_engine(engine, address, values.get("device", "auto"), ray_workers) as opened:
            session, chosen = opened
            if session.is_local:
                metrics = training.run(chosen)
            else:
                from hpgmn.runs.ray_train import train_with_ray

                metrics = train_with_ray(training, chosen, session.workers)
    if metrics is not None:
        write_report(out_folder)
        print_scores(metrics)
        say(f"Run folder: {out_folder}")


def _shards_folder(folder: Path | None, config: Mapping[str, Any]) -> Path:
    """Return the shards that the argument names, or else the config of a run."""
    path = folder or config.get("made_with", {}).get("shards")
    if path is None:
        raise SettingError(
            "Missing folder of row shards.",
            Remedy("Name the folder")
            | Remedy("Give the config.yaml of a run on row shards", option="config"),
        )
    return Path(path)
