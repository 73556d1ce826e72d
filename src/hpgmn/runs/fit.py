"""Fit the replicas of a run, score them once, and write the results into the run folder."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings, read_yaml
from hpgmn.graph import Graph, Split
from hpgmn.graph.homophily import node_homophily
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.runs.folder import (
    HISTORY_FILE,
    PORTFOLIO_FILE,
    PREDICTIONS_FILE,
    STATE_FOLDER,
    finish,
    note_made_with,
)
from hpgmn.runs.outputs import Result, run_metrics, write_history, write_predictions
from hpgmn.runs.spec import (
    CONFIG_FILE,
    RunSpec,
    check_run,
    earlier_identity,
    made_with,
    run_identity,
)
from hpgmn.training.checkpoint import read_tensors
from hpgmn.training.checks import class_number
from hpgmn.training.replicas import Fitted, Progress, fit_replicas
from hpgmn.training.saved import MODEL_FILE, SavedModel
from hpgmn.training.state import read_seconds
from hpgmn.training.trainer import deterministic_algorithms

logger = logging.getLogger(__name__)


ProgressCallback = Callable[[str, Progress], None]
"""Called with what is running and how far it is."""


@dataclass(frozen=True)
class Monitor:
    """The callbacks of a long operation.

    Attributes:
        progress: called after each epoch and step.
        notify: called with remarks about the data and about decisions.
        should_stop: polled after each epoch and step; True saves the state and raises
            KeyboardInterrupt.
    """

    progress: ProgressCallback = lambda task, now: None
    notify: Callable[[str], None] = lambda line: None
    should_stop: Callable[[], bool] = lambda: False

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

    def epochs_of(self, task: str) -> Callable[[Progress], None]:
        """Return the callback for the epochs of a training."""
        return lambda now: self.progress(task, now)


def make_monitor(
    progress: ProgressCallback | None,
    notify: Callable[[str], None] | None,
    should_stop: Callable[[], bool] | None,
) -> Monitor:
    """Collect the callbacks that are given."""
    callbacks = {"progress": progress, "notify": notify, "should_stop": should_stop}
    return Monitor(**{name: call for name, call in callbacks.items() if call is not None})  # type: ignore[arg-type]


@dataclass(frozen=True)
class FittedRun:
    """The result of a training, as it was written into the run folder.

    Attributes:
        metrics: the content of ``metrics.json``.
        model: the trained model.
        fitted: the trained replicas.
        splits: the split of each replica.
    """

    metrics: dict[str, Any]
    model: SavedModel
    fitted: Fitted
    splits: list[Split]


def train_folder(
    spec: RunSpec,
    graph: Graph,
    folder: Path,
    *,
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    memory_share: float = 1.0,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Train into a prepared folder, all but the report; return the content of ``metrics.json``.

    An interrupted run of the same specification is continued.

    Args:
        spec: what is trained.
        graph: the graph.
        folder: the run folder.
        report: called after each epoch.
        should_stop: polled after each epoch; True saves the state and raises KeyboardInterrupt.
        memory_share: this process's share of the memory, where several train at once.
        warnings: those logged before, which ``metrics.json`` lists, too.
    """
    checked = check_run(spec, graph)
    for line in checked[1]:
        logger.warning(line)
    return fit_run(
        *(spec, graph, folder),
        checked=checked,
        made=made_with(graph, spec.splits, spec.device),
        report=report,
        should_stop=should_stop,
        memory_share=memory_share,
        warnings=warnings,
    ).metrics


def fit_run(
    spec: RunSpec,
    graph: Graph,
    folder: Path,
    *,
    checked: tuple[list[Split], list[str]],
    made: Mapping[str, Any],
    report: Callable[[Progress], None] | None,
    should_stop: Callable[[], bool],
    memory_share: float = 1.0,
    warnings: Sequence[str] = (),
) -> FittedRun:
    """Train, score and write everything but the report."""
    started = time.perf_counter()
    reset_peak_memory(spec.device)
    splits, found = checked
    entry = find_model(spec.model)
    identity = _identity(spec, graph, entry.source, folder)  # reads the config's version
    changed = note_made_with(folder, spec, made)
    for line in changed:
        logger.warning(line)
    settings = make_settings(entry.settings, spec.settings)
    replicas = [
        Replica(number, seed, settings) for number in spec.splits for seed in range(spec.seeds)
    ]
    replica_splits = [split for split in splits for _ in range(spec.seeds)]
    state = folder / STATE_FOLDER
    state.mkdir(exist_ok=True)
    before = _elapsed(state)
    with deterministic_algorithms(spec.deterministic, spec.device):
        fitted = fit_replicas(
            graph,
            entry,
            replicas,
            [(split.train, split.val) for split in replica_splits],
            device=spec.device,
            metric=spec.metric,
            positive=class_number(spec.positive, graph.class_names),
            folder=state,
            identity=identity,
            report=report,
            should_stop=should_stop,
            memory_share=memory_share,
        )
    val = [split.val for split in replica_splits] if spec.calibrate else None
    model = SavedModel.of(entry, fitted, graph, [split.train for split in replica_splits], val)
    model.write(folder / MODEL_FILE)
    write_history(folder / HISTORY_FILE, fitted.replicas, fitted.history)
    write_predictions(folder / PREDICTIONS_FILE, graph, fitted, replica_splits, model.temperatures)
    with deterministic_algorithms(spec.deterministic, spec.device):
        estimates = model.estimator_logits(graph, spec.device)
    metrics = _metrics(spec, graph, fitted, replica_splits, model, estimates)
    metrics["nodes"] = {
        part: [int(getattr(split, part).sum()) for split in splits]
        for part in ("train", "val", "test")
    }
    metrics["warnings"] = list(dict.fromkeys([*warnings, *found, *changed]))
    if (folder / PORTFOLIO_FILE).exists():
        metrics["portfolio"] = read_json(folder / PORTFOLIO_FILE)
    metrics["seconds"] = before + time.perf_counter() - started
    finish(folder, metrics)
    return FittedRun(metrics, model, fitted, replica_splits)


def _elapsed(state: Path) -> float:
    """Return the seconds that an interrupted run has spent."""
    return sum(read_seconds(path) for path in state.glob("state-*.safetensors"))


def _identity(spec: RunSpec, graph: Graph, source: str, folder: Path) -> str:
    """Return the identity of a training: that of its states where an earlier version wrote them."""
    identity = run_identity(spec, graph, source)
    recorded = _recorded_identity(folder / STATE_FOLDER)
    if recorded in (None, identity):
        return identity
    version = read_yaml(folder / CONFIG_FILE).get("version")
    earlier = earlier_identity(spec, graph, source, version)
    return earlier if recorded == earlier else identity


def _recorded_identity(state: Path) -> str | None:
    """Return the identity in the states of an interrupted run, if there are any."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(read_json(state / "plan.json")["identity"])
    with suppress(HPGMNError):
        for path in sorted(state.glob("state-*.safetensors")):
            return str(read_tensors(path)[1].get("identity"))
    return None


def _metrics(
    spec: RunSpec,
    graph: Graph,
    fitted: Fitted,
    splits: Sequence[Split],
    model: SavedModel,
    estimates: Any,
) -> dict[str, Any]:
    """Return the content of ``metrics.json`` that the training determines."""
    last = list(fitted.best_epoch)[-1]
    homophily = node_homophily(graph)
    result = Result(
        logits=fitted.logits,
        y=graph.y,
        val=[split.val for split in splits],
        test=[split.test for split in splits],
        temperatures=model.temperatures,
        mean_temperatures=model.mean_temperatures,
        val_score=fitted.val_score,
        best_epoch=fitted.best_epoch[last],
        history=fitted.history,
        seconds=fitted.seconds,
        guesses=estimates,
    )
    summary = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "num_classes": graph.num_classes,
        "class_names": list(graph.class_names),
        "homophily": None if math.isnan(homophily) else homophily,  # JSON has no NaN
    }
    return run_metrics(spec, result, graph.name, summary)
