"""The command that trains on row shards: alone, under torchrun, or by Ray Train."""

from __future__ import annotations

import dataclasses
import json
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
    from hpgmn.distributed.ranks import Ranks
    from hpgmn.experiments.run import RunSpec
    from hpgmn.sharding import Shards

WORKERS = 2
"""Processes that Ray starts, where no option says it."""

_REFUSED, _FINISHED = "refused", "finished"  # what rank 0 says in the place of a specification


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
    metric: Annotated[str | None, typer.Option(help=METRIC_HELP)] = None,
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

    Under torchrun each process reads its own ranges of nodes, and all together train as one would.
    After a rank was lost the same command goes on from the last state:

    torchrun --standalone --nproc-per-node 2 -m hpgmn train-shards SHARDS --out RUN --resume
    """
    from hpgmn.report import write_report

    if resume and overwrite:
        raise SettingError("--resume and --overwrite exclude each other; give one.")
    check_engine(engine, address, workers)
    if engine == "local" and workers is not None:
        raise SettingError(
            "--workers is of --engine ray. Here processes are started by torchrun "
            "--nproc-per-node; leave --workers out."
        )
    asked = {"seeds": seeds, "metric": metric, "positive": positive, "calibrate": calibration}
    run = _Run(folder, out_folder, set_ or [], asked, resume=resume, overwrite=overwrite)
    number = (workers or WORKERS) if engine == "ray" else None
    if number is not None:  # what is wrong is said before a cluster is started
        run.specified("cpu", number)
    with opened(engine, address, device, number) as place:
        if place.engine.is_local:
            metrics = run.here(place.device)
        else:
            metrics = run.by_ray(place.device, place.engine.workers)
    if metrics is not None:
        write_report(out_folder)
        print_scores(metrics)
        say(f"Run folder: {out_folder}")


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run that is asked for, in its folder; metrics are those of ``metrics.json``.

    Attributes:
        shards: the folder of the row shards.
        folder: that of the run.
        assignments: settings, ``KEY=VALUE``.
        asked: options of ``specification``.
    """

    shards: Path
    folder: Path
    assignments: list[str]
    asked: dict[str, Any]
    _: dataclasses.KW_ONLY
    resume: bool
    overwrite: bool

    def specified(self, device: str, ranks: int) -> tuple[RunSpec, Shards]:
        """The run for so many ranks and its shards; what can be refused is refused."""
        from hpgmn.config import parse_assignments
        from hpgmn.datasets import DATASETS
        from hpgmn.distributed import specification
        from hpgmn.sharding import Shards

        shards = Shards(self.shards)
        shards.shares(ranks)
        usual = DATASETS[shards.source].metric if shards.source in DATASETS else "accuracy"
        asked = self.asked | {"metric": self.asked["metric"] or usual}
        given = parse_assignments(self.assignments)
        return specification(shards, given, device=device, **asked), shards

    def here(self, device: str) -> dict[str, Any] | None:
        """Train as one of torchrun's processes, or alone; the metrics on rank 0."""
        from hpgmn.distributed.ranks import joined

        with joined(device) as ranks:
            if ranks.is_first:
                return self._first(ranks, device)
            self._other(ranks)
            return None

    def _first(self, ranks: Ranks, device: str) -> dict[str, Any]:
        """What rank 0 does: it alone checks, writes and speaks."""
        from hpgmn.distributed import run_on_shards

        try:
            spec, shards = self.specified(device, ranks.size)
            finished = self._prepared(spec)
        except Exception:
            ranks.words(_REFUSED)  # the message is the user's; others would only fail beside it
            ranks.leave()
            raise
        if finished is not None:
            ranks.words(_FINISHED)
            return finished
        ranks.words(json.dumps(spec.as_dict()))
        with self._told(spec, shards) as report:
            metrics = run_on_shards(spec, shards, self.folder, ranks, report=report)
        assert metrics is not None
        return metrics

    def _other(self, ranks: Ranks) -> None:
        """What all other ranks do, once rank 0 has said what."""
        from hpgmn.distributed import run_on_shards
        from hpgmn.experiments.run import RunSpec
        from hpgmn.parsing import parse_json
        from hpgmn.sharding import Shards

        said = ranks.words("")
        if said not in (_REFUSED, _FINISHED):  # torchrun ends all with the rank that failed
            spec = RunSpec.from_dict(parse_json(said))
            run_on_shards(spec, Shards(self.shards), self.folder, ranks)

    def by_ray(self, device: str, workers: int) -> dict[str, Any]:
        """Train by Ray Train; Ray is connected."""
        from hpgmn.distributed.ray_train import require_room, run_with_ray
        from hpgmn.engines.cluster import connected

        spec, shards = self.specified(device, workers)
        with connected() as ray:
            require_room(ray, device, workers)
        finished = self._prepared(spec)
        if finished is not None:
            return finished
        say(f"Ray Train starts {workers} worker{'s' * (workers > 1)}, which takes some seconds.")
        with self._told(spec, shards) as report:
            return run_with_ray(spec, shards, self.folder, workers, report=report)

    def _prepared(self, spec: RunSpec) -> dict[str, Any] | None:
        """Make the run folder; the metrics of a run that has only its report left to write."""
        from hpgmn.experiments.run import finished_run, prepare_folder

        prepare_folder(self.folder, spec, resume=self.resume, overwrite=self.overwrite)
        return finished_run(self.folder) if self.resume else None

    @contextmanager
    def _told(self, spec: RunSpec, shards: Shards) -> Iterator[Callable[[Any], None]]:
        """Progress for the user, and a log for the folder."""
        from hpgmn.experiments.log import log_file
        from hpgmn.experiments.run import LOG_FILE

        with (
            log_file(self.folder / LOG_FILE, earlier_records()),
            training_progress(f"{shards.name} {spec.model}") as report,
        ):
            try:
                yield report
            except KeyboardInterrupt:
                say("To go on, repeat the command with --resume.")
                raise
