"""One run: train every asked split and seed, score once, write the run folder."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import yaml
from torch import Tensor

from hpgmn.base.calibration import calibrated
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import RUN_FORMAT, atomic_write, check_format, write_text
from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.metrics import require_metric
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import make_settings, read_yaml
from hpgmn.base.version import __version__
from hpgmn.graph import Array, Graph, Split
from hpgmn.graph.homophily import node_homophily
from hpgmn.models import find_model
from hpgmn.models.shipped import wanted_instead
from hpgmn.models.stage import Replica
from hpgmn.runs.metrics import Result, run_metrics, write_metrics
from hpgmn.runs.predictions import NodeTable
from hpgmn.runs.provenance import changes, made_with
from hpgmn.runs.replaced import drop
from hpgmn.training.checkpoint import read_seconds
from hpgmn.training.checks import (
    check_split,
    class_number,
    graph_warnings,
    positive_class,
    scarce_classes,
    skewed_classes,
)
from hpgmn.training.repeatable import repeatable
from hpgmn.training.replicas import Fitted, Progress, fit_replicas
from hpgmn.training.saved import MODEL_FILE, SavedModel

logger = logging.getLogger(__name__)

CONFIG_FILE, METRICS_FILE, HISTORY_FILE = "config.yaml", "metrics.json", "history.jsonl"
PREDICTIONS_FILE, LOG_FILE, STATE_FOLDER = "predictions.parquet", "log.txt", "state"
REPORT_FILE, PORTFOLIO_FILE, EXPLORER_FILE = "report.html", "portfolio.json", "explorer.json"
AUDIT_FILE, UNDERSTANDING_FILE = "audit.json", "understanding.json"


@dataclass(frozen=True)
class RunSpec:
    """What is to be trained; with the graph itself it determines the result.

    Attributes:
        graph: the dataset's name or the graph file, as the user gave it.
        model: the model's name.
        settings: all of the model's settings.
        splits: the numbers of the splits.
        seeds: how many seeds on each split: 0 … seeds-1.
        protocol: the protocol whose splits are used, if any.
        metric: what selects epochs and is reported.
        positive: the class that average_precision and precision@K of two classes look for.
        device: "cpu" or "cuda".
        calibrate: whether a temperature is fitted to the validation nodes of each run.
        tables: what the user said of the columns where the graph is two tables.
        deterministic: whether a GPU is to give the same bits each time.
    """

    graph: str
    model: str
    settings: dict[str, Any]
    splits: tuple[int, ...]
    seeds: int = 1
    protocol: str | None = None
    metric: str = "accuracy"
    device: str = "cpu"
    calibrate: bool = True
    tables: dict[str, Any] = field(default_factory=dict)
    positive: str | None = None
    deterministic: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The specification as ``config.yaml`` holds it."""
        return {
            "graph": self.graph,
            "model": self.model,
            "protocol": self.protocol,
            "metric": self.metric,
            **({} if self.positive is None else {"positive": self.positive}),
            "splits": list(self.splits),
            "seeds": self.seeds,
            "device": self.device,
            "calibrate": self.calibrate,
            **({"deterministic": True} if self.deterministic else {}),
            **({"tables": dict(self.tables)} if self.tables else {}),
            "settings": dict(self.settings),
            "version": __version__,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> RunSpec:
        """The specification in the ``config.yaml`` of a run folder."""
        try:
            for name, value in content.items():
                if (wanted := wanted_instead(name, value)) is not None:
                    raise TypeError(f"{name} must be {wanted}")
            for name in ("graph", "model", "settings", "splits", "seeds", "metric"):
                if content.get(name) is None:
                    raise KeyError(name)
            return cls(
                graph=str(content["graph"]),
                model=str(content["model"]),
                settings=dict(content["settings"]),
                splits=tuple(int(split) for split in content["splits"]),
                seeds=int(content["seeds"]),
                protocol=content.get("protocol"),
                metric=str(content["metric"]),
                device=str(content.get("device") or "cpu"),
                calibrate=content.get("calibrate") is not False,
                tables=dict(content.get("tables") or {}),
                positive=content.get("positive"),
                deterministic=bool(content.get("deterministic", False)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(
                f"{CONFIG_FILE} of the run is incomplete or damaged ({error!r}). Restore it, or "
                "train again with --overwrite."
            ) from None


def read_spec(folder: Path) -> RunSpec:
    """The specification of the run in a folder, which says the version of its form, too."""
    content = read_yaml(folder / CONFIG_FILE)
    check_format(f"The run in {folder}", content.get("format"), RUN_FORMAT)
    return RunSpec.from_dict(content)


def resolve_device(name: str) -> str:
    """The device behind "auto", "cpu" or "cuda"; asking for a missing GPU is an error."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise HPGMNError("No CUDA device is available. Use --device cpu (or auto).")
    return name


def check_run(spec: RunSpec, graph: Graph) -> tuple[list[Split], list[str]]:
    """Everything that can be refused before work begins; returns splits and warnings."""
    entry = find_model(spec.model)
    entry.floats(graph, make_settings(entry.settings, spec.settings))  # makes a user's own once
    require_metric(spec.metric, graph.num_classes, f"'{graph.name}'")
    positive_class(spec.metric, graph.y[:0], graph.class_names, spec.positive)
    if spec.seeds < 1:
        raise SettingError(f"--seeds must be at least 1 (got {spec.seeds}).")
    warnings = graph_warnings(graph)
    chosen = []
    for number in spec.splits:
        split = graph.split(number)
        warnings += check_split(graph, split, number)
        chosen.append(split)
    warnings += scarce_classes(graph, chosen) + skewed_classes(graph, spec.metric)
    return chosen, warnings


def write_config(folder: Path, spec: RunSpec, made: Mapping[str, Any] | None = None) -> None:
    """Write ``config.yaml``; ``made`` says what from and with, see ``experiments/again.py``."""
    content = {
        "format": RUN_FORMAT,
        **spec.as_dict(),
        **({"made_with": dict(made)} if made else {}),
    }
    write_text(folder / CONFIG_FILE, yaml.safe_dump(content, sort_keys=False))


def note_made_with(folder: Path, spec: RunSpec, now: Mapping[str, Any]) -> list[str]:
    """Note in the config what a run is made with; of one that goes on, tell what has changed.

    There the note of its beginning stays.
    """
    if any((folder / STATE_FOLDER).glob("state*.safetensors")):
        before = read_yaml(folder / CONFIG_FILE)
        if "made_with" in before:
            return changes(before, now)
    write_config(folder, spec, now)
    return []


def run(
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
    with repeatable(spec.deterministic, spec.device):
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
    _write_predictions(folder / PREDICTIONS_FILE, graph, fitted, own, model.temperatures)
    with repeatable(spec.deterministic, spec.device):
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


def finish(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write the metrics, by which a run is finished, and drop what is not needed any more."""
    write_metrics(folder / METRICS_FILE, metrics)
    shutil.rmtree(folder / STATE_FOLDER)
    drop(folder)


def _elapsed(state: Path) -> float:
    """Seconds that an interrupted run spent before: its states' times."""
    return sum(read_seconds(path) for path in state.glob("state-*.safetensors"))


def _identity(spec: RunSpec, graph: Graph, source: str) -> str:
    about = [spec.as_dict(), graph.fingerprint, graph.y.tolist(), source]
    parts = json.dumps(about, sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()


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


def write_history(
    path: Path, replicas: Sequence[Replica], histories: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write the learning curves, one line for each run, stage and epoch.

    Args:
        path: the file.
        replicas: R of them.
        histories: for each stage and each recorded number (epochs, R).
    """
    lines = []
    for stage, history in histories.items():
        columns = {key: rows.tolist() for key, rows in history.items()}
        for place, replica in enumerate(replicas):
            for epoch in range(history["loss"].shape[0]):
                numbers = {key: rows[epoch][place] for key, rows in columns.items()}
                if numbers["loss"] != numbers["loss"]:  # NaN: this replica had stopped
                    continue
                finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
                about = {"split": replica.split, "seed": replica.seed, "stage": stage}
                lines.append(json.dumps(about | {"epoch": epoch + 1} | finite))
    write_text(path, "\n".join(lines) + "\n")


def roles(split: Split) -> Array:
    """For each node its role in a split."""
    names = np.full(split.train.shape, "unlabelled", dtype=object)
    for part in ("train", "val", "test"):
        names[getattr(split, part)] = part
    return names


def _write_predictions(
    path: Path,
    graph: Graph,
    fitted: Fitted,
    splits: Sequence[Split],
    temperatures: Sequence[float],
) -> None:
    ids = graph.node_ids
    if ids is None:
        ids = np.arange(graph.num_nodes).astype(str)
    chances = calibrated(fitted.logits, temperatures).numpy()
    best = fitted.logits.argmax(dim=-1).numpy()  # a temperature may round a small lead away
    nodes = np.arange(graph.num_nodes)
    with atomic_write(path) as draft, ExitStack() as stack:
        writer = None
        for replica, split, own, guess in zip(fitted.replicas, splits, chances, best, strict=True):
            about = NodeTable(nodes, ids, roles(split), graph.y, graph.class_names)
            table = about.with_predictions(replica, guess, own)
            writer = writer or stack.enter_context(
                pq.ParquetWriter(draft, table.schema, write_page_checksum=True)
            )
            writer.write_table(table)
