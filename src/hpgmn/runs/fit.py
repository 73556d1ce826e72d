"""Fit the replicas of a run, score them once, and write the results into the run folder."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.calibration import calibrated_logits
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import json_digest, read_tensors
from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.metrics import BALANCED_METRICS
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings, read_yaml
from hpgmn.graph import Array, Graph, Split
from hpgmn.graph.content import graph_content
from hpgmn.graph.homophily import node_homophily
from hpgmn.models import find_model
from hpgmn.models.stage import Replica, require_task
from hpgmn.runs.folder import (
    HISTORY_FILE,
    PREDICTIONS_FILE,
    STATE_FOLDER,
    finish,
    record_environment,
)
from hpgmn.runs.metrics import TrainingResult, graph_summary, run_metrics
from hpgmn.runs.outputs import write_history, write_predictions
from hpgmn.runs.portfolio import Member
from hpgmn.runs.spec import CONFIG_FILE, RunSpec, check_run, run_environment
from hpgmn.training.checks import class_number
from hpgmn.training.ensemble import Predictor
from hpgmn.training.replicas import Fitted, Progress, fit_replicas
from hpgmn.training.saved import MODEL_FILE, SavedModel
from hpgmn.training.state import read_spent, state_files
from hpgmn.training.trainer import deterministic_algorithms

logger = logging.getLogger(__name__)


ProgressCallback = Callable[[str, Progress], None]
"""Called with the name of the current step and its progress."""

EpochCallback = Callable[[Progress], None]
"""Called after each epoch; see :mod:`hpgmn.training.callbacks`."""


@dataclass(frozen=True)
class Monitor:
    """The callbacks of a long operation.

    Attributes:
        progress: called after each epoch and step.
        notify: called with remarks about the data and about decisions.
        should_stop: polled after each epoch and step; True saves the state and raises
            KeyboardInterrupt.
        callbacks: called after each epoch.
    """

    progress: ProgressCallback = lambda task, now: None
    notify: Callable[[str], None] = lambda line: None
    should_stop: Callable[[], bool] = lambda: False
    callbacks: Sequence[EpochCallback] = ()

    def epoch(self, task: str, now: Progress) -> None:
        """Report the progress of a training."""
        self.progress(task, now)
        for callback in self.callbacks if now.is_epoch else ():
            callback(now)

    def note(self, line: str) -> None:
        """Log a remark, and pass it on."""
        self.notify(line)
        logger.info(line)

    def step(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Report a step that is not a training."""
        if self.should_stop():
            raise KeyboardInterrupt
        self.progress("", self.step_progress(what, done, total))

    @staticmethod
    def step_progress(what: str, done: int = 0, total: int | None = None) -> Progress:
        """Return the progress of a step that is not a training."""
        return Progress(0, 1, what, done, total or 0, math.nan, math.nan)


def make_monitor(
    progress: ProgressCallback | None,
    notify: Callable[[str], None] | None,
    should_stop: Callable[[], bool] | None,
    callbacks: Sequence[EpochCallback] = (),
) -> Monitor:
    """Collect the callbacks that are given."""
    calls = {"progress": progress, "notify": notify, "should_stop": should_stop}
    given = {name: call for name, call in calls.items() if call is not None}
    return Monitor(**given, callbacks=callbacks)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TrainedMember:
    """A model that was trained on every split and seed of a run.

    Attributes:
        member: that of the portfolio; otherwise named like its model.
        spec: what was trained.
        fitted: the trained replicas.
        model: the trained model.
        seconds: the time it took, in earlier processes too.
    """

    member: Member
    spec: RunSpec
    fitted: Fitted
    model: SavedModel
    seconds: float

    @property
    def name(self) -> str:
        """The member's name."""
        return self.member.name

    def calibrated_logits(self, place: int) -> Tensor:
        """Return the logits (N, C) of a replica as an ensemble mixes them."""
        own = slice(place, place + 1)
        return calibrated_logits(self.fitted.logits[own], self.mixed_calibration[own])[0]

    @property
    def mixed_calibration(self) -> Array:
        """(R, 3, C), without biases where every class counts alike in decisions."""
        calibration = self.model.calibration.copy()
        if self.spec.metric in BALANCED_METRICS:
            calibration[:, 1:] = 0
        return calibration


@dataclass(frozen=True)
class FittedRun:
    """The result of a training, as it was written into the run folder.

    Attributes:
        metrics: the content of ``metrics.json``.
        model: the trained model.
        fitted: the trained replicas.
        splits: the split of each replica.
        spec: what was trained, with the settings that were selected.
    """

    metrics: dict[str, Any]
    model: Predictor
    fitted: Fitted
    splits: list[Split]
    spec: RunSpec


@dataclass(frozen=True)
class Training:
    """A run in training: its folder, its splits, and how it is observed and stopped.

    Attributes:
        splits: one for each of the specification's.
        warnings: what ``metrics.json`` lists.
        started: the time at which this process began.
        report: called after each epoch.
        notify: called with remarks about decisions.
        should_stop: polled after each epoch; True saves the state and raises KeyboardInterrupt.
        memory_share: this process's share of the memory, where several train at once.
    """

    spec: RunSpec
    graph: Graph
    folder: Path
    splits: list[Split]
    warnings: list[str]
    started: float
    report: Callable[[Progress], None] | None = None
    notify: Callable[[str], None] = logger.info
    should_stop: Callable[[], bool] = lambda: False
    memory_share: float = 1.0

    @classmethod
    def start(
        cls,
        spec: RunSpec,
        graph: Graph,
        folder: Path,
        *,
        checked: tuple[list[Split], list[str]] | None = None,
        made: Mapping[str, Any] | None = None,
        warnings: Sequence[str] = (),
        **callbacks: Any,
    ) -> Training:
        """Check a run and record its environment; log warnings.

        Args:
            checked: the result of :func:`check_run`, if it was called and its warnings logged.
            made: the result of :func:`run_environment`, if it was called.
            warnings: those logged before.
            **callbacks: fields of this class.
        """
        if checked is None:
            checked = check_run(spec, graph)
            for line in checked[1]:
                logger.warning(line)
        started = time.perf_counter()
        reset_peak_memory(spec.device)
        changed = record_environment(
            folder, spec, made or run_environment(graph, spec.splits, spec.device)
        )
        for line in changed:
            logger.warning(line)
        started -= spent(folder / STATE_FOLDER)[0]
        listed = list(dict.fromkeys([*warnings, *checked[1], *changed]))
        return cls(spec, graph, folder, checked[0], listed, started, **callbacks)

    @property
    def replica_splits(self) -> list[Split]:
        """The split of each replica."""
        return [split for split in self.splits for _ in range(self.spec.seeds)]

    def fit(
        self,
        spec: RunSpec,
        state: Path,
        identity: str,
        *,
        member: Member | None = None,
        masks: Sequence[tuple[Array, Array]] | None = None,
        keep_statistics: bool = True,
        **options: Any,
    ) -> TrainedMember:
        """Train a model on every split and seed, or continue from its states.

        Args:
            state: the folder of the states.
            identity: that of the training; states of another one are refused.
            masks: train and validation mask of each replica [those of its split].
            keep_statistics: for explanations; they may need much memory.
            **options: those of :func:`~hpgmn.training.replicas.fit_replicas`.
        """
        before = time.perf_counter() - spent(state)[0]
        state.mkdir(parents=True, exist_ok=True)
        entry = find_model(spec.model)
        settings = make_settings(entry.settings, spec.settings)
        require_task(entry, settings, self.graph)
        replicas = [
            Replica(number, seed, settings) for number in spec.splits for seed in spec.seed_numbers
        ]
        splits = self.replica_splits
        masks = masks or [(split.train, split.val) for split in splits]
        with deterministic_algorithms(spec.deterministic, spec.device):
            fitted = fit_replicas(
                *(self.graph, entry, replicas, masks),
                device=spec.device,
                metric=spec.metric,
                positive=class_number(spec.positive, self.graph.class_names),
                folder=state,
                identity=identity,
                memory_share=self.memory_share,
                **({"report": self.report, "should_stop": self.should_stop} | options),
            )
        if not keep_statistics:
            fitted.statistics = None
        model = SavedModel.of(
            *(entry, fitted, self.graph, [train for train, _ in masks]),
            val=[split.val for split in splits],
            calibrator=spec.calibrator(self.graph.class_names, settings.class_weights != "none"),
        )
        if self.graph.full is not self.graph:
            fitted = replace(fitted, logits=self._full_logits(model, fitted.logits))
        member = member or Member(spec.model, spec.model, spec.settings)
        return TrainedMember(member, spec, fitted, model, time.perf_counter() - before)

    def _full_logits(self, model: SavedModel, logits: Tensor) -> Tensor:
        """Return logits with later edges; those of train and validation nodes stay as they are."""
        nodes, spec = np.arange(self.graph.num_nodes), self.spec
        with deterministic_algorithms(spec.deterministic, spec.device):
            full = model.logits(self.graph.full, spec.device, nodes)
        selected = np.stack([split.train | split.val for split in self.replica_splits])
        return torch.where(torch.from_numpy(selected)[..., None], logits, full)

    def write(self, trained: TrainedMember, **extra: Any) -> FittedRun:
        """Score a trained model once and write everything but the report.

        Args:
            **extra: further entries of ``metrics.json``.
        """
        spec, fitted, model, folder = trained.spec, trained.fitted, trained.model, self.folder
        model.write(folder / MODEL_FILE)
        write_history(folder / HISTORY_FILE, fitted.replicas, fitted.history)
        splits = self.replica_splits
        write_predictions(folder / PREDICTIONS_FILE, self.graph, fitted, splits, model.calibration)
        estimates = None
        if "estimator" in model.done:
            with deterministic_algorithms(spec.deterministic, spec.device):
                estimates = model.on_graph(self.graph.full, spec.device).estimator_logits
        maps = (model.calibration, model.mean_calibration)
        metrics = fitted_metrics(spec, self.graph, fitted, splits, *maps, estimates)
        metrics |= self.common_metrics() | extra
        finish(folder, metrics)
        return FittedRun(metrics, model, fitted, splits, spec)

    def common_metrics(self) -> dict[str, Any]:
        """Return the entries of ``metrics.json`` that every kind of run has."""
        return {
            "nodes": {
                part: [int(getattr(split, part).sum()) for split in self.splits]
                for part in ("train", "val", "test", *(["calibration"] * self.spec.conformal))
            },
            "warnings": self.warnings,
            **({"refit": True} if self.spec.refit else {}),
            "seconds": time.perf_counter() - self.started,
        }


def spent(states: Path) -> tuple[float, int]:
    """Return the seconds and epochs of the trainings whose states are in a folder."""
    rows = [read_spent(path) for path in state_files(states)]
    return sum(seconds for seconds, _ in rows), sum(epochs for _, epochs in rows)


def fit_run(spec: RunSpec, graph: Graph, folder: Path, **options: Any) -> FittedRun:
    """Train one model into a prepared folder, score, and write everything but the report.

    An interrupted run of the same specification is continued.

    Args:
        **options: those of :meth:`Training.start`.
    """
    entry = find_model(spec.model)
    identity = state_identity(  # reads the config's version, which may be replaced below
        *(folder, spec),
        [graph_content(graph, spec.splits), entry.source],
        lambda: [graph.fingerprint, graph.y.tolist(), entry.source],
    )
    training = Training.start(spec, graph, folder, **options)
    trained = training.fit(spec, folder / STATE_FOLDER, identity)
    if spec.refit:
        trained = refit(training, trained, folder / STATE_FOLDER / "refit")
    return training.write(trained)


def refit(training: Training, trained: TrainedMember, state: Path) -> TrainedMember:
    """Train a model again on train and validation nodes, for the epochs that were selected.

    Calibration and validation scores stay those of the first training: the validation nodes
    select nothing now.
    """
    masks = [(split.train | split.val, split.val) for split in training.replica_splits]

    def report(now: Progress) -> None:
        if training.report is not None:
            training.report(replace(now, member=f"{trained.name}-refit"))

    again = training.fit(
        *(trained.spec, state, member_identity(training, trained.spec, "refit")),
        report=report,
        member=trained.member,
        masks=masks,
        keep_statistics=trained.fitted.statistics is not None,
        epochs=trained.fitted.best_epoch,
    )
    model, before = again.model, trained.model
    model.calibration, model.mean_calibration = before.calibration, before.mean_calibration
    fitted = replace(
        again.fitted, val_score=trained.fitted.val_score, val_loss=trained.fitted.val_loss
    )
    return replace(again, fitted=fitted, seconds=trained.seconds + again.seconds)


def member_identity(training: Training, spec: RunSpec, *parts: Any) -> str:
    """Return the identity under which states of a member of a run are saved and resumed."""
    about = spec.as_dict()
    del about["version"]
    content = graph_content(training.graph, spec.splits)
    return json_digest([about, content, find_model(spec.model).source, *parts])


def state_identity(
    folder: Path,
    spec: RunSpec,
    content: Sequence[Any],
    earlier_content: Callable[[], Sequence[Any]],
) -> str:
    """Return the identity under which states of a training are saved and resumed.

    States of an earlier version keep their identity: it lacks the settings that were added since,
    and before 0.2 it contains the version.

    Args:
        content: what determines the result besides the specification.
        earlier_content: returns what earlier versions hashed instead.
    """
    about = spec.as_dict()
    del about["version"]  # a newer version resumes, too
    identity = json_digest([about, *content])
    recorded = _recorded_identity(folder / STATE_FOLDER)
    if recorded in (None, identity):
        return identity
    config = read_yaml(folder / CONFIG_FILE)
    known = config.get("settings") or {}
    settings = about["settings"].items()
    about["settings"] = {name: value for name, value in settings if name in known}
    earlier = json_digest([about, *content])
    if recorded == earlier:
        return earlier
    about["version"] = config.get("version")
    earlier = json_digest([about, *earlier_content()])
    return earlier if recorded == earlier else identity


def _recorded_identity(state: Path) -> str | None:
    """Return the identity in the states of an interrupted run, if there are any."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(read_json(state / "plan.json")["identity"])
    with suppress(HPGMNError):
        for path in sorted(state.glob("state*.safetensors")):
            return str(read_tensors(path)[1].get("identity"))
    return None


def fitted_metrics(
    spec: RunSpec,
    graph: Graph,
    fitted: Fitted,
    splits: Sequence[Split],
    calibration: Array,
    mean_calibration: Array,
    estimates: Tensor | None = None,
) -> dict[str, Any]:
    """Return the content of ``metrics.json`` that the training determines.

    Args:
        estimates: (R, N, C) logits of the label estimator, if there is one.
    """
    homophily = node_homophily(graph)
    result = TrainingResult(
        logits=fitted.logits,
        y=graph.y,
        val=[split.val for split in splits],
        test=[split.test for split in splits],
        reserved=[split.calibration for split in splits if split.calibration is not None],
        calibration=calibration,
        mean_calibration=mean_calibration,
        val_score=fitted.val_score,
        best_epoch=list(fitted.best_epoch.values())[-1],
        history=fitted.history,
        seconds=fitted.seconds,
        estimator_logits=estimates,
    )
    summary = graph_summary(graph, None if math.isnan(homophily) else homophily)
    return run_metrics(spec, result, graph.name, summary)
