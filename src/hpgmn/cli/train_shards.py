"""The command that trains on rows: alone, under torchrun, or by Ray Train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hpgmn.cli.console import METRIC_HELP, earlier_records, say, training_progress
from hpgmn.cli.engines import chosen_device
from hpgmn.cli.train import print_scores
from hpgmn.errors import SettingError, unknown_name

_ENGINES = ("local", "ray")


def train_shards(
    folder: Annotated[Path, typer.Argument(help="A folder of rows with its manifest.json.")],
    out_folder: Annotated[
        Path, typer.Option("--out", help="The run folder, on a disk that every rank sees.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds; all read the same batches.")] = 1,
    metric: Annotated[str, typer.Option(help=METRIC_HELP)] = "accuracy",
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration/--no-calibration",
            help="Scale probabilities by a temperature fitted to the validation nodes.",
        ),
    ] = True,
    device: Annotated[str, typer.Option(help="auto, cpu (gloo) or cuda (nccl).")] = "auto",
    resume: Annotated[
        bool, typer.Option(help="Continue the interrupted run in --out, if there is one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in --out.")] = False,
    engine: Annotated[str, typer.Option(help="local (this process, torchrun) or ray.")] = "local",
    workers: Annotated[int, typer.Option(help="Processes that Ray starts.")] = 2,
    address: Annotated[str | None, typer.Option(help="A Ray cluster [one is started].")] = None,
) -> None:
    """Train HP-GMN on the rows of a graph that were computed in ranges of nodes.

    Under torchrun each process reads its own ranges, and all together train as one would:
    torchrun --standalone --nproc-per-node 2 -m hpgmn train-shards FOLDER --out RUN --resume
    After a rank was lost the same command goes on from the last state.
    """
    from hpgmn.config import parse_assignments
    from hpgmn.report import write_report

    if resume and overwrite:
        raise SettingError("--resume and --overwrite exclude each other; give one.")
    if engine not in _ENGINES:
        raise SettingError(unknown_name("engine", engine, _ENGINES))
    options: dict[str, Any] = {
        "settings": parse_assignments(set_ or []),
        "seeds": seeds,
        "metric": metric,
        "device": chosen_device(device),
        "calibrate": calibration,
    }
    metrics: dict[str, Any] | None
    if engine == "ray":
        from hpgmn.distributed import train_with_ray

        metrics = train_with_ray(
            folder,
            out_folder,
            workers,
            **options,
            resume=resume,
            overwrite=overwrite,
            address=address,
        )
    else:
        metrics = _train_here(folder, out_folder, options, resume=resume, overwrite=overwrite)
    if metrics is not None:
        write_report(out_folder)
        print_scores(metrics)
        say(f"Run folder: {out_folder}")


def _train_here(
    folder: Path, out_folder: Path, options: dict[str, Any], *, resume: bool, overwrite: bool
) -> dict[str, Any] | None:
    """Train as one of torchrun's processes, or alone; the metrics on rank 0."""
    from hpgmn.distributed.ranks import joined
    from hpgmn.distributed.run import run_on_rows, specification
    from hpgmn.distributed.shards import Manifest
    from hpgmn.experiments.log import log_file
    from hpgmn.experiments.run import LOG_FILE, finished_run, prepare_folder

    manifest = Manifest.read(folder)
    spec = specification(manifest, **options)
    with joined(spec.device) as ranks:
        manifest.shares(ranks.size)
        finished = None
        if ranks.is_first:
            prepare_folder(out_folder, spec, resume=resume, overwrite=overwrite)
            finished = finished_run(out_folder) if resume else None
        if ranks.says(finished is not None):
            return finished
        if not ranks.is_first:
            return run_on_rows(spec, manifest, out_folder, ranks)
        with (
            log_file(out_folder / LOG_FILE, earlier_records()),
            training_progress(f"{manifest.name} {spec.model}") as report,
        ):
            return run_on_rows(spec, manifest, out_folder, ranks, report=report)
