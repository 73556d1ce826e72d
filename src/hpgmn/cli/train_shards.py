"""The command that trains on row shards: alone, under torchrun, or by Ray Train."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpgmn.base.errors import SettingError
from hpgmn.base.locking import lock_folder
from hpgmn.cli.console import METRIC_HELP, earlier_records, say, training_progress
from hpgmn.cli.engines import Address, EngineName, check_engine, opened
from hpgmn.cli.several import how_to_go_on, telling_kept
from hpgmn.cli.train import Deterministic, Positive, print_scores

if TYPE_CHECKING:
    from hpgmn.runs.spec import RunSpec
    from hpgmn.shards import Shards
    from hpgmn.training.ranks import Ranks

logger = logging.getLogger(__name__)

WORKERS = 2
"""Processes that Ray starts, where no option says it."""

_REFUSED, _FINISHED = "refused", "finished"  # what rank 0 says in the place of a specification


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
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds; all read the same batches [1].")] = None,
    metric: Annotated[str | None, typer.Option(help=METRIC_HELP)] = None,
    positive: Positive = None,
    calibration: Annotated[
        bool | None,
        typer.Option(
            "--calibration/--no-calibration",
            show_default=False,
            help="Scale probabilities by a temperature fitted to the validation nodes [on].",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu (gloo) or cuda (nccl) [auto].")
    ] = None,
    deterministic: Deterministic = None,
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
    from hpgmn.models.shipped import read_config
    from hpgmn.report import write_report

    if resume and overwrite:
        raise SettingError(
            "--resume and --overwrite exclude each other. Give --resume to go on, or --overwrite "
            "to begin anew."
        )
    check_engine(engine, address, workers)
    if engine == "local" and workers is not None:
        raise SettingError(
            "--workers is of --engine ray. Here processes are started by torchrun "
            "--nproc-per-node; leave --workers out."
        )
    given = {} if config is None else read_config(config)
    options = {
        "seeds": seeds,
        "metric": metric,
        "positive": positive,
        "calibrate": calibration,
        "deterministic": deterministic,
        "device": device,
    }
    given |= {name: value for name, value in options.items() if value is not None}
    shards = _named_shards(folder, given)
    run = _Run(shards, out_folder, set_ or [], given, resume=resume, overwrite=overwrite)
    number = (workers or WORKERS) if engine == "ray" else None
    if number is not None:  # what is wrong is said before a cluster is started
        run.specified("cpu", number)
    with opened(engine, address, given.get("device", "auto"), number) as place:
        if place.engine.is_local:
            metrics = run.here(place.device)
        else:
            metrics = run.by_ray(place.device, place.engine.workers)
    if metrics is not None:
        write_report(out_folder)
        print_scores(metrics)
        say(f"Run folder: {out_folder}")


def _named_shards(folder: Path | None, given: Mapping[str, Any]) -> Path:
    """The shards that an argument names, or else the config of a run."""
    named = folder or given.get("made_with", {}).get("shards")
    if named is None:
        raise SettingError(
            "Name the folder of the row shards, or give --config with the config.yaml of a run "
            "on row shards."
        )
    return Path(named)


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run that is asked for, in its folder; metrics are those of ``metrics.json``.

    Attributes:
        shards: the folder of the row shards.
        folder: that of the run.
        assignments: settings, ``KEY=VALUE``.
        given: what the options and the config say.
    """

    shards: Path
    folder: Path
    assignments: list[str]
    given: dict[str, Any]
    _: dataclasses.KW_ONLY
    resume: bool
    overwrite: bool

    def specified(self, device: str, ranks: int) -> tuple[RunSpec, Shards]:
        """The run for so many ranks and its shards; what can be refused is refused."""
        from hpgmn.base.settings import parse_assignments
        from hpgmn.graph.datasets import DATASETS
        from hpgmn.runs.shard_run import specification
        from hpgmn.shards import Shards

        shards = Shards(self.shards)
        shards.shares(ranks)
        usual = DATASETS[shards.source].metric if shards.source in DATASETS else "accuracy"
        names = ("seeds", "metric", "positive", "calibrate", "deterministic")
        asked = {name: self.given[name] for name in names if name in self.given}
        settings = self.given.get("settings", {}) | parse_assignments(self.assignments)
        spec = specification(shards, settings, device=device, **({"metric": usual} | asked))
        self._tell_changes(shards, ranks, device)
        return spec, shards

    def _tell_changes(self, shards: Shards, ranks: int, device: str) -> None:
        """Say what has changed since the run of the config."""
        from hpgmn.runs.shard_run import made_with_shards
        from hpgmn.runs.spec import changes

        if self.given.get("made_with"):
            for line in changes(self.given, made_with_shards(shards, ranks, device)):
                logger.warning(line)

    def here(self, device: str) -> dict[str, Any] | None:
        """Train as one of torchrun's processes, or alone; the metrics on rank 0."""
        from hpgmn.training.ranks import joined

        with joined(device) as ranks:
            if ranks.is_first:
                return self._first(ranks, device)
            self._other(ranks)
            return None

    def _first(self, ranks: Ranks, device: str) -> dict[str, Any]:
        """What rank 0 does: it alone checks, writes and speaks."""
        from hpgmn.runs.shard_run import run_on_shards

        with ExitStack() as stack:
            try:
                spec, shards = self.specified(device, ranks.size)
                stack.enter_context(lock_folder(self.folder))
                stack.enter_context(telling_kept(self.folder))
                finished = self._prepared(spec)
            except Exception:
                ranks.words(_REFUSED)  # the message is the user's; others would fail beside it
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
        from hpgmn.base.parsing import parse_json
        from hpgmn.runs.shard_run import run_on_shards
        from hpgmn.runs.spec import RunSpec
        from hpgmn.shards import Shards

        said = ranks.words("")
        if said not in (_REFUSED, _FINISHED):  # torchrun ends all with the rank that failed
            spec = RunSpec.from_dict(parse_json(said))
            run_on_shards(spec, Shards(self.shards), self.folder, ranks)

    def by_ray(self, device: str, workers: int) -> dict[str, Any]:
        """Train by Ray Train; Ray is connected."""
        from hpgmn.engines.cluster import connected
        from hpgmn.runs.ray_train import require_room, run_with_ray

        spec, shards = self.specified(device, workers)
        with connected() as ray:
            require_room(ray, device, workers)
        with lock_folder(self.folder), telling_kept(self.folder):
            finished = self._prepared(spec)
            if finished is not None:
                return finished
            say(
                f"Ray Train starts {workers} worker{'s' * (workers > 1)}, which takes some seconds."
            )
            with self._told(spec, shards) as report:
                return run_with_ray(spec, shards, self.folder, workers, report=report)

    def _prepared(self, spec: RunSpec) -> dict[str, Any] | None:
        """Make the run folder; the metrics of a run that has only its report left to write."""
        from hpgmn.runs.folder import finished_run, prepare_folder

        prepare_folder(self.folder, spec, resume=self.resume, overwrite=self.overwrite)
        return finished_run(self.folder) if self.resume else None

    @contextmanager
    def _told(self, spec: RunSpec, shards: Shards) -> Iterator[Callable[[Any], None]]:
        """Progress for the user, and a log for the folder."""
        from hpgmn.runs.folder import LOG_FILE, log_file

        with (
            log_file(self.folder / LOG_FILE, earlier_records()),
            training_progress(f"{shards.name} {spec.model}") as report,
        ):
            try:
                yield report
            except KeyboardInterrupt:
                say(how_to_go_on(self.folder, is_replacing=self.overwrite))
                raise
