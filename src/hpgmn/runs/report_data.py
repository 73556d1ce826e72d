"""The data of a report, from a run folder or from memory, and the page written from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpgmn.auditing import audit
from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.files import RUN_FORMAT, check_format, verify_run_checksum, write_text
from hpgmn.base.parsing import parse_json, read_json
from hpgmn.base.settings import read_yaml
from hpgmn.explain.explorer import explorer_data
from hpgmn.explain.model import model_overview
from hpgmn.explain.replicas import ReplicaView, open_replicas
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
from hpgmn.runs.outputs import roles
from hpgmn.runs.spec import CONFIG_FILE, RunSpec
from hpgmn.training.saved import SavedModel

if TYPE_CHECKING:
    from torch import Tensor

    from hpgmn.graph import Graph, Split
    from hpgmn.runs.fit import FittedRun

logger = logging.getLogger(__name__)

_FILES = {
    "config": CONFIG_FILE,
    "metrics": METRICS_FILE,
    "audit": AUDIT_FILE,
    "understanding": UNDERSTANDING_FILE,
    "explorer": EXPLORER_FILE,
}
"""The file behind each part of the report's data."""

RESTORE = Remedy("Train again", option="overwrite", value=True) | "Restore the file"
_UNFINISHED = Remedy("Resume it", option="resume", value=True) | Remedy(
    "Train again", option="overwrite", value=True
)

_CONFIG = ("graph", "model", "metric", "splits", "seeds", "settings")
_METRICS = ("model", "graph", "splits", "seeds", "metric", "test_score_mean", "test_score")
_PREDICTIONS = ("split", "seed", "node", "role", "label", "prediction")
_EXPLORER = ("split", "seeds", "num_nodes", "classes", "ids", "counts_as", "is_known", "nodes")
_CLASS_COLUMN = "probability_"


def write_report(folder: Path, data: ReportData | None = None) -> Path:
    """Write ``report.html`` into a run folder, from memory or from the folder's files."""
    path = folder / REPORT_FILE
    write_text(path, build_report(folder, data))
    return path


def build_report(folder: Path, data: ReportData | None = None) -> str:
    """Return the page of a run folder, or raise an HPGMNError that names the faulty file."""
    try:
        return render_report(data or read_report_data(folder))
    except ReportDataError as error:
        raise _broken(folder / _FILES[error.part], f"has unexpected content ({error})") from None


# From memory


def learning_curves(histories: Mapping[str, Mapping[str, Tensor]]) -> tuple[LearningCurves, ...]:
    """Return the curves of a training.

    Args:
        histories: for each stage and each recorded number (E, R), NaN where a run has stopped.
    """
    stages = []
    for stage, history in histories.items():
        values = {name: _finite(history.get(name), history["loss"]) for name in CURVE_NAMES}
        reached = ~np.isnan(history["loss"].numpy()).all(axis=1)
        epochs = np.flatnonzero(reached) + 1
        curves = {name: table[:, reached] for name, table in values.items()}
        if epochs.size:
            stages.append(LearningCurves(stage, epochs, curves))
    return tuple(stages)


def _finite(values: Tensor | None, loss: Tensor) -> Array:
    """Return (R, E) values of running runs, NaN where not recorded, infinite or stopped."""
    if values is None:
        return np.full(tuple(reversed(loss.shape)), np.nan)
    table = np.asarray(values.double().T.numpy())
    return np.where(np.isfinite(table) & ~np.isnan(loss.T.numpy()), table, np.nan)


def confusion_counts(
    predictions: Array, y: Array, splits: Sequence[Split], num_classes: int
) -> Array:
    """Return (C, C) labelled test nodes of all runs by class and prediction.

    Args:
        predictions: (R, N) predicted classes.
        y: (N,) classes, -1 unknown.
        splits: R, one for each run.
    """
    counts = np.zeros((num_classes, num_classes), np.int64)
    for predicted, split in zip(predictions, splits, strict=True):
        chosen = split.test & (y >= 0)
        np.add.at(counts, (y[chosen], predicted[chosen]), 1)
    return counts


def fitted_report_data(
    folder: Path, graph: Graph, run: FittedRun, understanding: Understanding
) -> ReportData:
    """Return the report data of a training in memory; only the config is read from the folder."""
    names = graph.class_names
    predicted = run.fitted.logits.argmax(dim=-1).numpy()
    return ReportData(
        config=_read_config(folder / CONFIG_FILE),
        metrics=run.metrics,
        stages=learning_curves(run.fitted.history),
        classes=tuple(str(name) for name in names),
        confusion=confusion_counts(predicted, graph.y, run.splits, len(names)),
        audit=understanding.audit,
        understanding=understanding.overview,
        explorer=understanding.explorer,
    )


# From a folder


def read_report_data(folder: Path) -> ReportData:
    """Read a run folder, or raise an HPGMNError that names the faulty file and the remedy."""
    if not folder.is_dir():
        raise HPGMNError(f"There is no run folder {folder}.", "Choose a folder of `hpgmn train`")
    config = _read_config(_existing(folder, CONFIG_FILE))
    path = _existing(folder, METRICS_FILE)
    metrics = _read_metrics(path)
    classes, confusion = _read_confusion(
        _existing(folder, PREDICTIONS_FILE), _class_names(path, metrics)
    )
    data = ReportData(
        config=config,
        metrics=metrics,
        stages=_read_history(_existing(folder, HISTORY_FILE)),
        classes=classes,
        confusion=confusion,
        audit=_read_optional(folder / AUDIT_FILE),
        understanding=_read_optional(folder / UNDERSTANDING_FILE),
        explorer=_read_optional(folder / EXPLORER_FILE),
    )
    if (folder / EXPLORER_FILE).is_file():
        _require(folder / EXPLORER_FILE, data.explorer, _EXPLORER)
    for name in ("test_score", "val_score", "epochs"):
        try:
            data.per_run(name)
        except ValueError as error:
            raise _broken(path, f"is inconsistent: {error}") from None
    return data


def _existing(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise HPGMNError(
            f"The run folder {folder} has no {name}: its training may not have finished.",
            _UNFINISHED,
        )
    return path


def _broken(path: Path, fault: str) -> HPGMNError:
    return HPGMNError(f"The file {path} {fault}.", RESTORE)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = read_yaml(path)
    except SettingError as error:
        raise HPGMNError(str(error), RESTORE) from None
    check_format(path, config.get("format"), RUN_FORMAT)
    _require(path, config, _CONFIG)
    if not isinstance(config["splits"], list) or not isinstance(config["settings"], dict):
        raise _broken(path, "must hold a list 'splits' and a mapping 'settings'")
    return config


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except OSError as error:
        raise _broken(path, f"cannot be read ({type(error).__name__})") from None
    except ValueError as error:
        raise _broken(path, f"is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise _broken(path, "must hold one JSON object")
    return content


def _read_optional(path: Path) -> dict[str, Any]:
    """Read a file that runs of earlier versions do not have."""
    return _read_object(path) if path.is_file() else {}


def _read_metrics(path: Path) -> dict[str, Any]:
    metrics = _read_object(path)
    check_format(path, metrics.get("format"), RUN_FORMAT)
    try:
        metrics = verify_run_checksum(metrics)
    except ValueError as error:
        raise _broken(path, f"is damaged: {error}") from None
    _require(path, metrics, _METRICS)
    splits, seeds = metrics["splits"], metrics["seeds"]
    if not isinstance(splits, list) or not splits:
        raise _broken(path, f"must hold a list 'splits' (got {splits!r})")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise _broken(path, f"must hold a whole number 'seeds' (got {seeds!r})")
    return metrics


def _require(path: Path, content: Mapping[str, Any], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in content]
    if missing:
        raise _broken(path, f"lacks {', '.join(missing)}")


def _class_names(path: Path, metrics: Mapping[str, Any]) -> list[str] | None:
    names = mapping(metrics.get("graph_summary")).get("class_names")
    if names is None:
        return None
    if not isinstance(names, list) or len({str(name) for name in names}) != len(names):
        raise _broken(path, f"must hold distinct 'class_names' in a list (got {names!r})")
    return [str(name) for name in names]


def _read_history(path: Path) -> tuple[LearningCurves, ...]:
    """Read the curves by stage, stages in the order of their first line."""
    points: dict[str, dict[tuple[str, str], dict[int, list[float]]]] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _broken(path, f"cannot be read ({type(error).__name__})") from None
    # Split at newlines only: a JSON string may contain other line separators.
    for number_of_line, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            run = (str(row["split"]), str(row["seed"]))
            epoch, stage = int(row["epoch"]), str(row["stage"])
            point = [number(row.get(name)) for name in CURVE_NAMES]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _broken(
                path, f"is damaged at line {number_of_line}: split, seed, stage and epoch expected"
            ) from None
        points.setdefault(stage, {}).setdefault(run, {})[epoch] = point
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
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        missing = [name for name in _PREDICTIONS if name not in names]
        if missing:
            raise _broken(path, f"lacks the columns {', '.join(missing)}")
        columns = ["role", "label", "prediction"]
        table = pq.read_table(path, columns=columns, page_checksum_verification=True)
        table = table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
        table = table.filter(pc.equal(table["role"], "test")).drop_columns("role").drop_null()
        pairs = table.group_by(["label", "prediction"]).aggregate([([], "count_all")]).to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _broken(path, f"is damaged or not a Parquet file ({type(error).__name__})") from None
    if classes is None:
        classes = [
            name.removeprefix(_CLASS_COLUMN) for name in names if name.startswith(_CLASS_COLUMN)
        ]
    index = {name: position for position, name in enumerate(classes)}
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    for pair in pairs:
        for name in (pair["label"], pair["prediction"]):
            if name not in index:
                raise _broken(path, f"holds the class {name!r}, unknown in the run's other files")
        confusion[index[pair["label"]], index[pair["prediction"]]] = pair["count_all"]
    return tuple(classes), confusion


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


@dataclass(frozen=True)
class Understanding:
    """What is recorded beside the scores of a run; ``left_out`` instead of content says why.

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
        _write(folder / AUDIT_FILE, self.audit)
        _write(folder / UNDERSTANDING_FILE, self.overview)
        if self.explorer:
            _write(folder / EXPLORER_FILE, self.explorer)


def understand(
    spec: RunSpec,
    graph: Graph,
    model: SavedModel,
    progress: Callable[[str], None] = lambda step: None,
) -> Understanding:
    """Audit the graph and explain the models of the first split, which are opened once."""
    progress("Audit of the graph")
    audited = _audit(spec, graph)
    progress("Explanation of the model")
    if graph.num_nodes > LARGEST_OVERVIEW:
        remedy = Remedy("Explain it separately", command="explain")
        fault = f"Models on more than {LARGEST_OVERVIEW:,} nodes are not explained after training."
        return Understanding(audited, _left_out(HPGMNError(fault, remedy)))
    split = spec.splits[0]
    chosen = model.choose([at for at, one in enumerate(model.replicas) if one.split == split])
    replicas: list[ReplicaView] = []

    def overview() -> dict[str, Any]:
        replicas.extend(open_replicas(chosen, graph, spec.device))
        return model_overview(replicas, chosen.class_names)

    described = computed(overview, "explain the model")
    if not replicas:
        return Understanding(audited, described)
    progress("Node explorer")
    node_roles = roles(graph.split(split))
    explorer = computed(
        lambda: explorer_data(replicas, chosen.class_names, node_roles, graph.y),
        "explain its nodes",
    )
    if "left_out" in explorer:
        logger.warning("The report has no node explorer. %s", explorer["left_out"])
        explorer = {}
    return Understanding(audited, described, explorer)


def _audit(spec: RunSpec, graph: Graph) -> dict[str, Any]:
    if graph.num_nodes + graph.num_listed_edges > LARGEST_AUDIT:
        remedy = Remedy(f"Audit {spec.graph} separately", command="audit")
        fault = f"Graphs of more than {LARGEST_AUDIT:,} nodes and edges are not audited."
        return _left_out(HPGMNError(fault, remedy))
    return computed(lambda: audit(graph, spec.splits[0], training=False).as_dict(), "audit it")


def computed(compute: Callable[[], dict[str, Any]], purpose: str) -> dict[str, Any]:
    """Call a function; return the reason if user input or lack of memory makes it fail."""
    try:
        return compute()
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


def _write(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    write_text(path, text + "\n")
