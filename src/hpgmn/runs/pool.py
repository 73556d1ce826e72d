"""Train several members on the splits and seeds of a run; keep the best, or combine them.

Members are trained one after the other. At rungs, numbers of epochs, a member that is far behind
what earlier members had there is stopped (asynchronous successive halving, Li and others, MLSys
2020). At the time limit, or on Ctrl-C, the member in training finishes with its best epoch so far.

One member is kept for all splits: where splits overlap, validation nodes of one that are test nodes
of another influence the selection, as in any search over such splits. Weights of an ensemble are
those of each split alone.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError, Remedy, count_noun, format_score
from hpgmn.base.files import (
    WriteError,
    damaged_file,
    verify_run_checksum,
    with_checksum,
    write_text,
)
from hpgmn.base.metrics import LOWER_IS_BETTER, plain_score
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings, read_yaml, settings_dict, to_plain
from hpgmn.graph import Graph
from hpgmn.models import find_model, task_settings
from hpgmn.runs.ensemble import ensemble_weights, write_ensemble
from hpgmn.runs.fit import (
    FittedRun,
    TrainedMember,
    Training,
    fit_run,
    member_identity,
    refit,
    spent,
)
from hpgmn.runs.folder import STATE_FOLDER, write_config
from hpgmn.runs.portfolio import Member, selected_members
from hpgmn.runs.spec import CONFIG_FILE, RunSpec
from hpgmn.training import replicas
from hpgmn.training.ensemble import ENSEMBLE
from hpgmn.training.replicas import Progress
from hpgmn.training.state import OtherTrainingError

logger = logging.getLogger(__name__)

RUNGS = dict(zip(replicas.RUNGS, (0.25, 0.12, 0.06), strict=True))
"""Epochs of a stage at which a member is stopped if its best validation score so far is
lower than the best of earlier members there by more than this."""
MEMBER_SHARE = 0.5
"""A member finishes after this share of the time limit."""
EPOCHS_PER_SECOND = 20
"""With deterministic algorithms a second of the time limit stands for so many epochs."""
SCHEDULE_FILE = "schedule.json"
_COMPARED = ("pretraining", "main")  # stages whose validation scores are those of a whole model


def fit_spec(spec: RunSpec, graph: Graph, folder: Path, **options: Any) -> FittedRun:
    """Train a run into a prepared folder, select what it leaves open, and write its files.

    Args:
        **options: those of :meth:`~hpgmn.runs.fit.Training.start`.
    """
    if not spec.selection:
        return fit_run(spec, graph, folder, **options)
    training = Training.start(spec, graph, folder, **options)
    if "neighbors" in spec.selection:
        return _select_direction(training)
    return _train_portfolio(training)


def _select_direction(training: Training) -> FittedRun:
    """Train a model with each edge direction and keep the best."""
    spec = training.spec
    members = [
        Member(direction, spec.model, spec.settings | {"neighbors": direction})
        for direction in spec.selection["neighbors"]
    ]
    pool = train_pool(training, members)
    best = pool.best()
    scores = {row["name"]: row["val_score_mean"] for row in pool.rows}

    def shown(score: float) -> str:
        return format_score(spec.metric, plain_score(spec.metric, score))

    others = ", ".join(
        f"{name} {shown(score)}"
        for name, score in scores.items()
        if name != best.member.name and score is not None
    )
    training.notify(
        f"Edge direction of {spec.model}: '{best.member.name}', the best on validation nodes "
        f"({shown(scores[best.member.name])}; {others or 'the others are far behind'})."
    )
    return _write_best(training, best, selected={"neighbors": scores})


def _train_portfolio(training: Training) -> FittedRun:
    """Train the members of the portfolio; keep the best, or combine them."""
    spec, graph = training.spec, training.graph
    members, note = selected_members(spec.selection, graph, spec.graph)
    limit = float(spec.selection["time_limit"])
    splits = count_noun(len(spec.splits), "split")
    within = f"{limit * EPOCHS_PER_SECOND:g} epochs" if spec.deterministic else f"{limit:g} seconds"
    training.notify(
        f"Training up to {count_noun(len(members), 'member')} of the portfolio on {splits} within "
        f"{within}."
    )
    if note is not None:
        training.notify(note)
    pool = train_pool(training, members, time_limit=limit)
    content = {
        "chosen": None,
        "metric": spec.metric,
        "positive": spec.positive,
        "splits": list(spec.splits),
        "seeds": spec.seeds,
        "seconds": pool.seconds,
        "time_limit": limit,
        "note": note,
        "members": pool.rows,
    }
    extra: dict[str, Any] = {}
    if pool.is_interrupted:
        extra["interrupted"] = True
        training = replace(training, should_stop=lambda: False)  # once is enough
    if spec.selection["portfolio"] == "single":
        best = pool.best()
        content["chosen"] = best.member.name
        training.notify(f"Best member on validation nodes: '{best.name}'.")
        return _write_best(training, best, portfolio=content, **extra)
    weights = ensemble_weights(spec, graph, pool.trained, training.splits)
    refitted = None
    if spec.refit:
        states = training.folder / STATE_FOLDER / "refit"
        refitted = [
            refit(training, one, states / one.name) if any(weights[one.name]) else one
            for one in pool.trained
        ]
    return write_ensemble(training, pool.trained, weights, refitted, portfolio=content, **extra)


def _write_best(training: Training, best: TrainedMember, **extra: Any) -> FittedRun:
    """Write the best member as the run."""
    folder, asked = training.folder, training.spec
    if asked.refit:
        best = refit(training, best, folder / STATE_FOLDER / "refit")
    best = replace(best, spec=replace(best.spec, refit=asked.refit, selection=asked.selection))
    write_config(folder, best.spec, read_yaml(folder / CONFIG_FILE).get("made_with"))
    return training.write(best, **extra)


@dataclass(frozen=True)
class Pool:
    """Trained members, in the order of their training.

    Attributes:
        rows: of every member name, model, settings, validation scores, seconds, scores at rungs and
            ``failure``: why it was not trained to its end.
        seconds: the time that all members took.
        is_interrupted: whether Ctrl-C ended the training.
    """

    trained: list[TrainedMember]
    rows: list[dict[str, Any]]
    seconds: float
    is_interrupted: bool

    def best(self) -> TrainedMember:
        """Return the member with the highest mean validation score, ties by lower loss."""
        return max(
            self.trained,
            key=lambda one: (
                float(one.fitted.val_score.double().mean()),
                -float(one.fitted.val_loss.double().mean()),
            ),
        )


def train_pool(
    training: Training, members: Sequence[Member], *, time_limit: float | None = None
) -> Pool:
    """Train members in their order; those of an interrupted run are continued or kept.

    A member that cannot be trained is skipped with a warning. At least one is trained.

    Args:
        time_limit: in seconds. Without one, Ctrl-C saves the state and raises KeyboardInterrupt.
    """
    work = _PoolWork(training, time_limit)
    trained: list[TrainedMember] = []
    rows: list[dict[str, Any]] = []
    for member in members:
        result, row = work.train(member, is_first=not trained)
        rows.append(row)
        if result is not None:
            trained.append(result)
    if not trained and time_limit is None and work.errors:
        raise work.errors[0]
    if not trained:
        raise HPGMNError(
            f"No member can be trained on '{training.graph.name}'. {rows[0]['name']}: "
            f"{rows[0]['failure']}",
            Remedy("Train the default", option="portfolio", value=False)
            | Remedy("Name a model", option="model"),
        )
    untried = ", ".join(row["name"] for row in rows if row["failure"] == work.untried_reason())
    if untried:
        training.notify(f"Not tried ({work.untried_reason()}): {untried}.")
    if work.cut:
        training.notify(f"Stopped early by the time limit: {', '.join(work.cut)}.")
    return Pool(trained, rows, sum(row["seconds"] for row in rows), work.is_interrupted)


class _StoppedMemberError(HPGMNError):
    """A member is far behind; the message says how far."""


class _PoolWork:
    """The training of a pool: its schedule file, its budget, and what is compared at rungs."""

    def __init__(self, training: Training, time_limit: float | None) -> None:
        self.training, self.time_limit = training, time_limit
        self.states = training.folder / STATE_FOLDER
        self.states.mkdir(exist_ok=True)
        self.schedule = _read_schedule(self.states / SCHEDULE_FILE)
        self.is_interrupted = False
        self.errors: list[HPGMNError] = []
        self.cut: list[str] = []  # members that the limit ended before their time
        self.best = -math.inf  # the best mean validation score so far
        self.counts_epochs = training.spec.deterministic
        self.limit: float = math.inf
        if time_limit is not None:
            self.limit = time_limit * (EPOCHS_PER_SECOND if self.counts_epochs else 1)
        dropped = [row for row in self.schedule.values() if row["failure"] is not None]
        seconds, epochs = spent(self.states)  # in earlier processes
        self.seconds: float = seconds + sum(row["seconds"] for row in dropped)
        self.epochs: int = epochs + sum(row["epochs"] for row in dropped)
        self.started = time.perf_counter()
        self.member_end: float = -math.inf  # what is left when the member in training must finish
        self.is_cut = False  # whether it had to

    @property
    def left(self) -> float:
        """The seconds, or epochs, that are left."""
        if self.counts_epochs:
            return self.limit - self.epochs
        return self.limit - self.seconds - (time.perf_counter() - self.started)

    def is_over(self) -> bool:
        """Whether no time is left, or Ctrl-C was pressed."""
        if self.time_limit is None:
            return False
        self.is_interrupted = self.is_interrupted or self.training.should_stop()
        return self.is_interrupted or self.left <= 0

    def untried_reason(self) -> str:
        """Why members were not tried."""
        return "interrupted" if self.is_interrupted else "time limit reached"

    def train(
        self, member: Member, *, is_first: bool
    ) -> tuple[TrainedMember | None, dict[str, Any]]:
        """Train a member; return it (None if it failed, was stopped or not tried) and its row."""
        row = self.schedule.get(member.name) or {
            "name": member.name,
            "model": member.model,
            "settings": {name: to_plain(value) for name, value in member.settings.items()},
            "val_score": [],
            "val_score_mean": None,
            "val_loss_mean": None,
            "seconds": 0.0,
            "epochs": 0,
            "rungs": {},
            "failure": None,
        }
        if row["failure"] is not None:
            return None, row
        if not row["val_score"] and not is_first and self.is_over():
            return None, row | {"failure": self.untried_reason()}
        self.schedule[member.name] = row
        seconds, epochs = spent(self.states / member.name)
        started, before = time.perf_counter() - seconds, self.epochs - epochs
        earlier = epochs if self.counts_epochs else seconds
        self.member_end = self.left + earlier - MEMBER_SHARE * self.limit
        self.is_cut = False
        try:
            result = self._fit(member, row)
        except (OtherTrainingError, WriteError):  # a changed graph, a full disk: no member's fault
            raise
        except HPGMNError as error:
            row["failure"] = str(error)
            self.errors.append(error.with_traceback(None))
            row["seconds"], row["epochs"] = time.perf_counter() - started, self.epochs - before
            level = logging.INFO if isinstance(error, _StoppedMemberError) else logging.WARNING
            logger.log(level, "Skipping '%s': %s", member.name, error)
            shutil.rmtree(self.states / member.name, ignore_errors=True)
            self._write_schedule()
            return None, row
        if self.is_cut:
            self.cut.append(member.name)
        if not row["val_score"]:
            row["epochs"] = self.epochs - before
            self._record(row, result)
        self.best = max(self.best, row["val_score_mean"])
        return result, row

    def _fit(self, member: Member, row: dict[str, Any]) -> TrainedMember:
        training = self.training
        kind, is_regression = find_model(member.model).settings, training.graph.is_regression
        settings = task_settings(kind, member.settings, is_regression=is_regression)
        # Members of an ensemble decide nothing themselves.
        is_ensemble = training.spec.selection.get("portfolio") == ENSEMBLE
        spec = replace(
            training.spec,
            model=member.model,
            settings=settings_dict(make_settings(kind, settings)),
            selection={},
            refit=False,
            threshold=None if is_ensemble else training.spec.threshold,
        )
        identity = member_identity(training, spec)
        should_stop = training.should_stop if self.time_limit is None else lambda: False

        def fit() -> TrainedMember:
            return training.fit(
                *(spec, self.states / member.name, identity),
                member=member,
                keep_statistics=False,
                should_finish=self._finishes,
                should_stop=should_stop,
                report=lambda now: self._on_epoch(row, now),
            )

        try:
            return fit()
        except KeyboardInterrupt:  # in Python, where no handler of signals is installed
            if self.time_limit is None or self.is_interrupted:
                raise
            self.is_interrupted = True
            return fit()

    def _finishes(self) -> bool:
        """Count an epoch; return whether the member in training must finish now."""
        self.epochs += 1
        self.is_cut = self.is_over() or self.left <= self.member_end
        return self.is_cut

    def _on_epoch(self, row: dict[str, Any], now: Progress) -> None:
        """Compare the member at a rung, and report the best score so far and what is left."""
        is_rung = now.stage in _COMPARED and now.batch == 0 and now.epoch in RUNGS
        if is_rung and not row["val_score"]:
            self._check_rung(row, now)
        if self.training.report is None:
            return
        parts = []
        if self.best > -math.inf:
            parts.append(f"best val {self.best:.3f}")
        if self.time_limit is not None:
            unit = "epochs" if self.counts_epochs else "s"
            parts.append(f"{max(0, self.left):.0f} {unit} left")
        self.training.report(replace(now, member=row["name"], note=", ".join(parts)))

    def _check_rung(self, row: dict[str, Any], now: Progress) -> None:
        """Record a score; stop the member if it is far behind the others at this rung."""
        rung, score = str(now.epoch), now.val_score
        others = [other["rungs"].get(rung) for other in self.schedule.values() if other is not row]
        best = max((other for other in others if other is not None), default=-math.inf)
        row["rungs"][rung] = max(score, row["rungs"].get(rung, score))
        self._write_schedule()
        metric = self.training.spec.metric
        if metric not in LOWER_IS_BETTER and score < best - RUNGS[now.epoch]:
            raise _StoppedMemberError(
                f"Validation score {format_score(metric, score)} after {now.epoch} epochs; "
                f"the best had {format_score(metric, best)}."
            )

    def _record(self, row: dict[str, Any], result: TrainedMember) -> None:
        """Write down a finished member; its last score counts at the rungs it did not need."""
        fitted, metric = result.fitted, self.training.spec.metric
        row["val_score"] = fitted.val_score.tolist()
        row["val_score_mean"] = float(fitted.val_score.double().mean())
        row["val_loss_mean"] = float(fitted.val_loss.double().mean())
        row["seconds"] = result.seconds
        if not self.is_over():
            for rung in RUNGS:
                row["rungs"].setdefault(str(rung), row["val_score_mean"])
        logger.info(
            "Portfolio: '%s' (%s), validation %s, %.1f seconds",
            *(result.member.name, result.member.model),
            *(format_score(metric, plain_score(metric, row["val_score_mean"])), row["seconds"]),
        )
        self._write_schedule()

    def _write_schedule(self) -> None:
        content = with_checksum({"members": list(self.schedule.values())})
        write_text(self.states / SCHEDULE_FILE, json.dumps(content, indent=1) + "\n")


def _read_schedule(path: Path) -> dict[str, dict[str, Any]]:
    """Read the members that an interrupted run has trained or stopped, by name."""
    if not path.exists():
        return {}
    try:
        rows = verify_run_checksum(read_json(path))["members"]
        return {str(row["name"]): dict(row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged_file(path, f"is damaged ({error})") from None
