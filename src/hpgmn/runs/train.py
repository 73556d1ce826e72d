"""One run: train every requested split and seed, score once, write the run folder."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpgmn.base.digests import json_digest
from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings
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
from hpgmn.runs.metrics import Result, run_metrics
from hpgmn.runs.predictions import write_history, write_predictions
from hpgmn.runs.spec import RunSpec, check_run, made_with
from hpgmn.training.checkpoint import read_seconds
from hpgmn.training.checks import class_number
from hpgmn.training.numerics import deterministic_algorithms
from hpgmn.training.replicas import Fitted, Progress, fit_replicas
from hpgmn.training.saved import MODEL_FILE, SavedModel

logger = logging.getLogger(__name__)


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
    """Train, score and write everything but the report into a prepared folder.

    A folder that holds an interrupted run of the same specification is continued. The warnings
    given are those said before, while the graph was read: they go into ``metrics.json``, too.

    Returns:
        The content of ``metrics.json``.
    """
    started = time.perf_counter()
    reset_peak_memory(spec.device)
    splits, found = check_run(spec, graph)
    entry = find_model(spec.model)
    settings = make_settings(entry.settings, spec.settings)
    found += note_made_with(folder, spec, made_with(graph, spec.splits, spec.device))
    pairs = [
        (Replica(number, seed, settings), split)
        for number, split in zip(spec.splits, splits, strict=True)
        for seed in range(spec.seeds)
    ]
    replicas = [replica for replica, _ in pairs]
    for line in found:
        logger.warning(line)
    state = folder / STATE_FOLDER
    state.mkdir(exist_ok=True)
    before = _elapsed(state)
    with deterministic_algorithms(spec.deterministic, spec.device):
        fitted = fit_replicas(
            graph,
            entry,
            replicas,
            [(split.train, split.val) for _, split in pairs],
            device=spec.device,
            metric=spec.metric,
            positive=class_number(spec.positive, graph.class_names),
            folder=state,
            identity=_identity(spec, graph, entry.source),
            report=report,
            should_stop=should_stop,
            memory_share=memory_share,
        )
    own = [split for _, split in pairs]
    val = [split.val for split in own] if spec.calibrate else None
    model = SavedModel.of(entry, fitted, graph, [split.train for split in own], val)
    model.write(folder / MODEL_FILE)
    write_history(folder / HISTORY_FILE, fitted.replicas, fitted.history)
    write_predictions(folder / PREDICTIONS_FILE, graph, fitted, own, model.temperatures)
    with deterministic_algorithms(spec.deterministic, spec.device):
        guesses = model.estimator_logits(graph, spec.device)
    metrics = _metrics(spec, graph, fitted, own, model, guesses)
    metrics["nodes"] = {
        part: [int(getattr(split, part).sum()) for split in splits]
        for part in ("train", "val", "test")
    }
    metrics["warnings"] = list(dict.fromkeys([*warnings, *found]))
    if (folder / PORTFOLIO_FILE).exists():
        metrics["portfolio"] = read_json(folder / PORTFOLIO_FILE)
    metrics["seconds"] = before + time.perf_counter() - started
    finish(folder, metrics)
    return metrics


def _elapsed(state: Path) -> float:
    """Seconds that an interrupted run spent before: its states' times."""
    return sum(read_seconds(path) for path in state.glob("state-*.safetensors"))


def _identity(spec: RunSpec, graph: Graph, source: str) -> str:
    about = [spec.as_dict(), graph.fingerprint, graph.y.tolist(), source]
    return json_digest(about)


def _metrics(
    spec: RunSpec,
    graph: Graph,
    fitted: Fitted,
    splits: Sequence[Split],
    model: SavedModel,
    guesses: Any,
) -> dict[str, Any]:
    """Everything ``metrics.json`` says of the training."""
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
        guesses=guesses,
    )
    summary = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "num_classes": graph.num_classes,
        "class_names": list(graph.class_names),
        "homophily": None if math.isnan(homophily) else homophily,  # JSON knows no NaN
    }
    return run_metrics(spec, result, graph.name, summary)
