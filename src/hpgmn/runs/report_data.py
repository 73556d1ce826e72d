"""What the report of a run shows: recorded results, and explanations of the model and the graph."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpgmn.base.errors import TARGET_METRICS, HPGMNError, Remedy, SettingError
from hpgmn.base.files import RESTORE, RUN_FORMAT, check_format, damaged_file, write_text
from hpgmn.base.settings import read_yaml
from hpgmn.graph import Array, Graph
from hpgmn.report import LearningCurves, ReportData, ReportDataError, render_report
from hpgmn.report.rendering import CURVE_NAMES, mapping, number
from hpgmn.runs.folder import (
    AUDIT_FILE,
    EXPLORER_FILE,
    HISTORY_FILE,
    METRICS_FILE,
    PREDICTIONS_FILE,
    REPORT_FILE,
    UNDERSTANDING_FILE,
)
from hpgmn.runs.outputs import (
    read_history,
    read_metrics,
    read_object,
    read_predictions,
    require_entries,
    roles,
)
from hpgmn.runs.spec import CONFIG_FILE, RunSpec
from hpgmn.training.ensemble import Predictor, SavedEnsemble
from hpgmn.training.saved import SavedModel

if TYPE_CHECKING:
    from hpgmn.explain.replicas import ReplicaView

logger = logging.getLogger(__name__)

_FILES = {
    "config": CONFIG_FILE,
    "metrics": METRICS_FILE,
    "audit": AUDIT_FILE,
    "understanding": UNDERSTANDING_FILE,
    "explorer": EXPLORER_FILE,
}
"""The file behind each part of the report's data."""

_CONFIG = ("graph", "model", "metric", "splits", "seeds", "settings")
_METRICS = ("model", "graph", "splits", "seeds", "metric", "test_score_mean", "test_score")
_EXPLORER = ("split", "seeds", "num_nodes", "classes", "ids", "counts_as", "is_known", "nodes")
_CLASS_COLUMN = "probability_"

MOST_RANKED = 50
"""Nodes in the ranked list."""
LARGEST_AUDIT = 5_000_000
"""Nodes and edges together up to which a run audits its graph: a matter of seconds."""
LARGEST_OVERVIEW = 500_000
"""Nodes up to which a run describes its model: attention and queries of all are held at once."""

_NO_MEMORY = (
    "can't allocate memory",  # torch on a CPU, as on the next line
    "not enough memory",
    "out of memory",
    "alloc_failed",  # cuBLAS and cuDNN
    "insufficient_resources",  # cuSPARSE
)


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run folder, from the folder's other files."""
    path = folder / REPORT_FILE
    write_text(path, build_report(folder))
    return path


def build_report(folder: Path) -> str:
    """Return the page of a run folder, or raise an HPGMNError that names the faulty file."""
    try:
        return render_report(read_report_data(folder))
    except ReportDataError as error:
        path = folder / _FILES[error.part]
        raise damaged_file(path, f"has unexpected content ({error})") from None


# Explanations


@dataclass(frozen=True)
class Explanations:
    """What is explained after a training; ``left_out`` instead of content gives the reason.

    Attributes:
        audit: the audit of the graph without training.
        overview: what the models of the first split have learned.
        explorer: explanations of its nodes; empty if there are none.
    """

    audit: dict[str, Any]
    overview: dict[str, Any]
    explorer: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write ``audit.json``, ``understanding.json`` and ``explorer.json``."""
        contents = {AUDIT_FILE: self.audit, UNDERSTANDING_FILE: self.overview}
        if self.explorer:
            contents[EXPLORER_FILE] = self.explorer
        for name, content in contents.items():
            text = json.dumps(content, allow_nan=False, separators=(",", ":"))
            write_text(folder / name, text + "\n")


def explain_training(
    spec: RunSpec,
    graph: Graph,
    model: Predictor,
    progress: Callable[[str], None] = lambda step: None,
    ranked: Sequence[str] = (),
) -> Explanations:
    """Audit the graph and explain the models of the first split, which are opened once.

    Args:
        ranked: ids of nodes that the explorer lists in any case.
    """
    from hpgmn.auditing import audit
    from hpgmn.explain.explorer import explorer_data
    from hpgmn.explain.model import model_overview
    from hpgmn.explain.replicas import open_replicas

    progress("Audit of the graph")
    if graph.num_nodes + graph.num_listed_edges > LARGEST_AUDIT:
        fault = f"Graphs of more than {LARGEST_AUDIT:,} nodes and edges are not audited."
        remedy = Remedy(f"Audit {spec.graph} separately", command="audit")
        audited = _left_out(HPGMNError(fault, remedy))
    else:
        audited = compute(
            lambda: audit(graph, spec.splits[0], training=False).as_dict(), "audit it"
        )
    if graph.is_regression:  # pages about single nodes and patterns are about classes
        return Explanations(audited, {})
    progress("Explanation of the model")
    if graph.num_nodes > LARGEST_OVERVIEW:
        fault = f"Models on more than {LARGEST_OVERVIEW:,} nodes are not explained after training."
        remedy = Remedy("Explain it separately", command="explain")
        return Explanations(audited, _left_out(HPGMNError(fault, remedy)))
    split = spec.splits[0]
    places = [place for place, replica in enumerate(model.replicas) if replica.split == split]
    chosen = model.choose(places)
    ensemble = chosen if isinstance(chosen, SavedEnsemble) else None
    if ensemble is not None:
        chosen = ensemble.members[ensemble.explained()[0]]
    assert isinstance(chosen, SavedModel)
    replicas: list[ReplicaView] = []

    def overview() -> dict[str, Any]:
        replicas.extend(open_replicas(chosen, graph, spec.device))
        return model_overview(replicas, chosen.class_names)

    described = compute(overview, "explain the model")
    if not replicas:
        return Explanations(audited, described)
    progress("Node explorer")
    node_roles = roles(graph.split(split))
    first = [*ranked, *(row["node"] for row in described.get("label_next", ()))]
    explorer = compute(
        lambda: explorer_data(replicas, chosen.class_names, node_roles, graph.y, first, ensemble),
        "explain its nodes",
    )
    if "left_out" in explorer:
        logger.warning("The report has no node explorer. %s", explorer["left_out"])
        explorer = {}
    return Explanations(audited, described, explorer)


def compute(function: Callable[[], dict[str, Any]], purpose: str) -> dict[str, Any]:
    """Call a function; return the reason if user input or lack of memory makes it fail."""
    try:
        return function()
    except HPGMNError as error:
        return _left_out(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _left_out(f"Not enough memory to {purpose}.")


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether memory ran out: torch has its own class for GPUs alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error).lower() for words in _NO_MEMORY)


def _left_out(reason: object) -> dict[str, Any]:
    return {"left_out": str(reason)}


# The data of the report


def read_report_data(folder: Path) -> ReportData:
    """Read a run folder, or raise an HPGMNError that names the faulty file and the remedy."""
    if not folder.is_dir():
        raise HPGMNError(f"There is no run folder {folder}.", "Choose a folder of `hpgmn train`")
    for name in (CONFIG_FILE, METRICS_FILE, PREDICTIONS_FILE, HISTORY_FILE):
        if not (folder / name).is_file():
            raise HPGMNError(
                f"The run folder {folder} has no {name}: its training may not have finished.",
                Remedy("Resume it", option="resume", value=True)
                | Remedy("Train again", option="overwrite", value=True),
            )
    config, path = _read_config(folder / CONFIG_FILE), folder / METRICS_FILE
    metrics = read_metrics(path, _METRICS)
    if not isinstance(metrics["splits"], list) or not metrics["splits"]:
        raise damaged_file(path, f"must hold 'splits' in a list (got {metrics['splits']!r})")
    predictions = folder / PREDICTIONS_FILE
    named = _class_names(path, metrics)
    classes: tuple[str, ...] = ()
    confusion, targets = np.zeros((0, 0), np.int64), np.empty((2, 0))
    if named == [] and metrics["metric"] in TARGET_METRICS:
        targets = _read_targets(predictions)
    else:
        classes, confusion = _read_confusion(predictions, named)
    recorded = {  # runs of earlier versions lack some of these files
        part: read_object(folder / _FILES[part])
        for part in ("audit", "understanding", "explorer")
        if (folder / _FILES[part]).is_file()
    }
    if "explorer" in recorded:
        require_entries(folder / EXPLORER_FILE, recorded["explorer"], _EXPLORER)
    stages = _read_history(folder / HISTORY_FILE, metrics.get("explained_member"))
    ranked = rank_nodes(predictions, metrics, classes)
    return ReportData(
        config, metrics, stages, classes, confusion, ranked=ranked, targets=targets, **recorded
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = read_yaml(path)
    except SettingError as error:
        raise HPGMNError(str(error), RESTORE) from None
    check_format(path, config.get("format"), RUN_FORMAT)
    require_entries(path, config, _CONFIG)
    return config


def _class_names(path: Path, metrics: Mapping[str, Any]) -> list[str] | None:
    names = mapping(metrics.get("graph_summary")).get("class_names")
    if names is None:
        return None
    if not isinstance(names, list) or len({str(name) for name in names}) != len(names):
        raise damaged_file(path, f"must hold distinct 'class_names' in a list (got {names!r})")
    return [str(name) for name in names]


def _read_history(path: Path, member: str | None = None) -> tuple[LearningCurves, ...]:
    """Read the curves by stage, of an ensemble those of one member, in the order of the lines."""
    points: dict[str, dict[tuple[str, str], dict[int, list[float]]]] = {}
    for row in read_history(path):
        if row.get("member") == member:
            run = (str(row["split"]), str(row["seed"]))
            point = [number(row.get(name)) for name in CURVE_NAMES]
            points.setdefault(row["stage"], {}).setdefault(run, {})[row["epoch"]] = point
    stages = []
    for stage, runs in points.items():
        epochs = sorted({epoch for run_points in runs.values() for epoch in run_points})
        column = {epoch: index for index, epoch in enumerate(epochs)}
        table = np.full((len(CURVE_NAMES), len(runs), len(epochs)), np.nan)
        for index, run_points in enumerate(runs.values()):
            for epoch, point in run_points.items():
                table[:, index, column[epoch]] = point
        curves = dict(zip(CURVE_NAMES, table, strict=True))
        stages.append(LearningCurves(stage, np.array(epochs), curves))
    return tuple(stages)


def _read_confusion(path: Path, classes: list[str] | None) -> tuple[tuple[str, ...], Array]:
    """Read the class names, and (C, C) labelled test nodes by class and prediction."""
    import pyarrow.compute as pc

    columns = ["role", "label", "prediction"]
    table, names = read_predictions(path, columns, pc.field("role") == "test")
    pairs = table.drop_null()
    counts = pairs.group_by(["label", "prediction"]).aggregate([([], "count_all")])
    if classes is None:
        classes = [
            name.removeprefix(_CLASS_COLUMN) for name in names if name.startswith(_CLASS_COLUMN)
        ]
    index = {name: position for position, name in enumerate(classes)}
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    for pair in counts.to_pylist():
        for name in (pair["label"], pair["prediction"]):
            if name not in index:
                fault = f"holds the class {name!r}, unknown in the run's other files"
                raise damaged_file(path, fault)
        confusion[index[pair["label"]], index[pair["prediction"]]] = pair["count_all"]
    return tuple(classes), confusion


def _read_targets(path: Path) -> Array:
    """Read (2, n) the targets and predictions of labelled test nodes, all runs together."""
    import pyarrow.compute as pc

    columns, is_test = ["role", "label", "prediction"], pc.field("role") == "test"
    table = read_predictions(path, columns, is_test, is_regression=True)[0].drop_null()
    pairs = np.stack([table[name].to_numpy() for name in ("label", "prediction")])
    return np.asarray(pairs[:, np.isfinite(pairs).all(axis=0)])


def rank_nodes(path: Path, metrics: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Rank the unlabelled nodes of the first split, or else its test nodes: mean over seeds.

    They are ranked by the probability of the positive class, or of the predicted one if the metric
    has none; in regression by the predicted value. Empty for large graphs, which have no explorer.

    Args:
        path: ``predictions.parquet`` of the run.
        metrics: the content of ``metrics.json``.
        classes: none in regression.
    """
    import pyarrow.compute as pc

    positive, split = metrics.get("positive"), metrics["splits"][0]
    if number(mapping(metrics.get("graph_summary")).get("num_nodes")) > LARGEST_OVERVIEW:
        return {}
    names = [_CLASS_COLUMN + name for name in ([positive] if positive else classes)]
    names = names or ["prediction"]
    is_outside = (pc.field("split") == split) & pc.field("role").isin(["test", "unlabelled"])
    columns = ["split", "role", "node_id", "label", *names]
    table, _ = read_predictions(path, columns, is_outside, is_regression=not classes)
    has_label = pc.field("label").is_valid()
    unlabelled = table.filter(~has_label)
    table = unlabelled if len(unlabelled) else table.filter(has_label)
    means = table.group_by(["node_id", "label"], use_threads=False).aggregate(
        [(name, "mean") for name in names]
    )
    scores = np.column_stack([means[f"{name}_mean"].to_numpy() for name in names])
    best = np.argsort(-scores.max(axis=1, initial=-np.inf), kind="stable")[:MOST_RANKED]
    return {
        "class": positive,
        "split": split,
        "num_nodes": len(means),
        "is_labelled": not len(unlabelled),
        "rows": [
            {
                "node": str(means["node_id"][k]),
                "label": means["label"][k].as_py(),
                "class": positive or (classes[int(scores[k].argmax())] if classes else None),
                "probability" if classes else "value": float(scores[k].max()),
            }
            for k in best.tolist()
        ],
    }
