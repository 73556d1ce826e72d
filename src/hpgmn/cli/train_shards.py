"""The command that trains on row shards: alone, under torchrun, or by Ray Train."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.cli.console import METRIC_HELP, earlier_records, say, training_progress
from hpgmn.cli.engines import Address, EngineName, check_engine, opened
from hpgmn.cli.train import Positive, print_scores
from hpgmn.errors import SettingError

if TYPE_CHECKING:
    from hpgmn.experiments.run import RunSpec
    from hpgmn.sharding import Shards

WORKERS = 2
"""Processes that Ray starts, where no option says it."""


def train_shards(
    folder: Annotated[Path, typer.Argument(help="The row shards that `hpgmn shard` made.")],
    out_folder: Annotated[
        Path, typer.Option("--out", help="The run folder, on a disk that every rank sees.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds; all read the same batches.")] = 1,
    metric: Annotated[str, typer.Option(help=METRIC_HELP)] = "accuracy",
    positive: Positive = None,
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
    engine: EngineName = "local",
    workers: Annotated[
        int | None, typer.Option(help=f"With --engine ray: processes [{WORKERS}].")
    ] = None,
    address: Address = None,
) -> None:
    """Train HP-GMN on the row shards of a graph.

    Under torchrun each process reads its own ranges of nodes, and all together train as one would:
    torchrun --standalone --nproc-per-node 2 -m hpgmn train-shards SHARDS --out RUN --resume
    After a rank was lost the same command goes on from the last state.
    """
    from hpgmn.config import parse_assignments
    from hpgmn.distributed import specification
    from hpgmn.report import write_report
    from hpgmn.sharding import Shards

    if resume and overwrite:
        raise SettingError("--resume and --overwrite exclude each other; give one.")
    check_engine(engine, address, workers)
    if engine == "local" and workers is not None:
        raise SettingError(
            "--workers is of --engine ray. Here processes are started by torchrun "
            "--nproc-per-node; leave --workers out."
        )
    shards = Shards(folder)
    spec = specification(  # what is wrong is said before a cluster is started
        shards,
        parse_assignments(set_ or []),
        seeds=seeds,
        metric=metric,
        positive=positive,
        calibrate=calibration,
    )
    number = (workers or WORKERS) if engine == "ray" else None
    shards.shares(number or 1)
    with opened(engine, address, device, number) as place:
        spec = dataclasses.replace(spec, device=place.device)
        run = _Run(spec, shards, out_folder, resume=resume, overwrite=overwrite)
        metrics = run.here() if place.engine.is_local else run.by_ray(place.engine.workers)
    if metrics is not None:
        write_report(out_folder)
        print_scores(metrics)
        say(f"Run folder: {out_folder}")


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run that is asked for, in its folder; metrics are those of ``metrics.json``."""

    spec: RunSpec
    shards: Shards
    folder: Path
    _: dataclasses.KW_ONLY
    resume: bool
    overwrite: bool

    def here(self) -> dict[str, Any] | None:
        """Train as one of torchrun's processes, or alone; the metrics on rank 0."""
        from hpgmn.distributed import run_on_shards
        from hpgmn.distributed.ranks import joined

        with joined(self.spec.device) as ranks:
            self.shards.shares(ranks.size)
            finished = self._prepared() if ranks.is_first else None
            if ranks.says(finished is not None):
                return finished
            if not ranks.is_first:
                return run_on_shards(self.spec, self.shards, self.folder, ranks)
            with self._told() as report:
                return run_on_shards(self.spec, self.shards, self.folder, ranks, report=report)

    def by_ray(self, workers: int) -> dict[str, Any]:
        """Train by Ray Train; Ray is connected."""
        from hpgmn.distributed.ray_train import require_room, run_with_ray
        from hpgmn.engines.cluster import connected

        with connected() as ray:
            require_room(ray, self.spec.device, workers)
        finished = self._prepared()
        if finished is not None:
            return finished
        say(f"Ray Train starts {workers} worker{'s' * (workers > 1)}, which takes some seconds.")
        with self._told() as report:
            return run_with_ray(self.spec, self.shards, self.folder, workers, report=report)

    def _prepared(self) -> dict[str, Any] | None:
        """Make the run folder; the metrics of a run that has only its report left to write."""
        from hpgmn.experiments.run import finished_run, prepare_folder

        prepare_folder(self.folder, self.spec, resume=self.resume, overwrite=self.overwrite)
        return finished_run(self.folder) if self.resume else None

    @contextmanager
    def _told(self) -> Iterator[Callable[[Any], None]]:
        """Progress for the user, and a log for the folder."""
        from hpgmn.experiments.log import log_file
        from hpgmn.experiments.run import LOG_FILE

        with (
            log_file(self.folder / LOG_FILE, earlier_records()),
            training_progress(f"{self.shards.name} {self.spec.model}") as report,
        ):
            try:
                yield report
            except KeyboardInterrupt:
                say("To go on, repeat the command with --resume.")
                raise
