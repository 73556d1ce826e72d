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
from hpgmn.base.files import json_digest, read_tensors
from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings, read_yaml
from hpgmn.graph import Graph, Split
from hpgmn.graph.graph import graph_content
from hpgmn.graph.homophily import node_homophily
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.runs.folder import (
    HISTORY_FILE,
    PORTFOLIO_FILE,
    PREDICTIONS_FILE,
    STATE_FOLDER,
    finish,
    record_environment,
)
from hpgmn.runs.outputs import (
    TrainingResult,
    graph_summary,
    run_metrics,
    write_history,
    write_predictions,
)
from hpgmn.runs.spec import CONFIG_FILE, RunSpec, check_run, run_environment
from hpgmn.training.checks import class_number
from hpgmn.training.ensemble import Predictor
from hpgmn.training.replicas import Fitted, Progress, fit_replicas
from hpgmn.training.saved import MODEL_FILE, SavedModel
from hpgmn.training.state import read_seconds
from hpgmn.training.trainer import deterministic_algorithms

logger = logging.getLogger(__name__)


ProgressCallback = Callable[[str, Progress], None]
"""Called with the name of the current step and its progress."""


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
    model: Predictor
    fitted: Fitted
    splits: list[Split]


def fit_run(
    spec: RunSpec,
    graph: Graph,
    folder: Path,
    *,
    checked: tuple[list[Split], list[str]] | None = None,
    made: Mapping[str, Any] | None = None,
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    memory_share: float = 1.0,
    warnings: Sequence[str] = (),
) -> FittedRun:
    """Train into a prepared folder, score, and write everything but the report.

    An interrupted run of the same specification is continued.

    Args:
        checked: the result of :func:`check_run`, if it was called and its warnings logged.
        made: the result of :func:`run_environment`, if it was called.
        report: called after each epoch.
        should_stop: polled after each epoch; True saves the state and raises KeyboardInterrupt.
        memory_share: this process's share of the memory, where several train at once.
        warnings: those logged before, which ``metrics.json`` lists, too.
    """
    if checked is None:
        checked = check_run(spec, graph)
        for line in checked[1]:
            logger.warning(line)
    started = time.perf_counter()
    reset_peak_memory(spec.device)
    splits, split_warnings = checked
    entry = find_model(spec.model)
    identity = state_identity(  # reads the config's version, which may be replaced below
        *(folder, spec),
        [graph_content(graph, spec.splits), entry.source],
        lambda: [graph.fingerprint, graph.y.tolist(), entry.source],
    )
    changed = record_environment(
        folder, spec, made or run_environment(graph, spec.splits, spec.device)
    )
    for line in changed:
        logger.warning(line)
    settings = make_settings(entry.settings, spec.settings)
    replicas = [
        Replica(number, seed, settings) for number in spec.splits for seed in range(spec.seeds)
    ]
    replica_splits = [split for split in splits for _ in range(spec.seeds)]
    state = folder / STATE_FOLDER
    state.mkdir(exist_ok=True)
    elapsed = sum(read_seconds(path) for path in state.glob("state-*.safetensors"))
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
    metrics = _metrics(spec, graph, fitted, replica_splits, model)
    metrics["nodes"] = {
        part: [int(getattr(split, part).sum()) for split in splits]
        for part in ("train", "val", "test")
    }
    metrics["warnings"] = list(dict.fromkeys([*warnings, *split_warnings, *changed]))
    if (folder / PORTFOLIO_FILE).exists():
        metrics["portfolio"] = read_json(folder / PORTFOLIO_FILE)
    metrics["seconds"] = elapsed + time.perf_counter() - started
    finish(folder, metrics)
    return FittedRun(metrics, model, fitted, replica_splits)


def state_identity(
    folder: Path,
    spec: RunSpec,
    content: Sequence[Any],
    earlier_content: Callable[[], Sequence[Any]],
) -> str:
    """Return the identity under which states of a training are saved and resumed.

    States written before 0.2 keep their original identity, which contains the version.

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
    about["version"] = read_yaml(folder / CONFIG_FILE).get("version")
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


def _metrics(
    spec: RunSpec, graph: Graph, fitted: Fitted, splits: Sequence[Split], model: SavedModel
) -> dict[str, Any]:
    """Return the content of ``metrics.json`` that the training determines."""
    estimates = None
    if "estimator" in model.done:
        with deterministic_algorithms(spec.deterministic, spec.device):
            estimates = model.on_graph(graph, spec.device).estimator_logits
    homophily = node_homophily(graph)
    result = TrainingResult(
        logits=fitted.logits,
        y=graph.y,
        val=[split.val for split in splits],
        test=[split.test for split in splits],
        temperatures=model.temperatures,
        mean_temperatures=model.mean_temperatures,
        val_score=fitted.val_score,
        best_epoch=list(fitted.best_epoch.values())[-1],
        history=fitted.history,
        seconds=fitted.seconds,
        estimator_logits=estimates,
    )
    summary = graph_summary(graph, None if math.isnan(homophily) else homophily)
    return run_metrics(spec, result, graph.name, summary)
