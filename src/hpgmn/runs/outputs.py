"""The files that a training writes: metrics, predictions and learning curves, and their readers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.calibration import calibrated_probabilities, decision_logits
from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import (
    RUN_FORMAT,
    atomic_write,
    check_format,
    damaged_file,
    read_tensors,
    verify_run_checksum,
    with_checksum,
    write_text,
)
from hpgmn.base.parsing import parse_json, read_json
from hpgmn.base.tasks import hide_labels, is_known, is_target
from hpgmn.graph import Array, Graph, Split
from hpgmn.models.stage import Replica
from hpgmn.training.ensemble import MEMBERS_FOLDER
from hpgmn.training.saved import MODEL_FILE

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from hpgmn.training.replicas import Fitted


# metrics.json


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json``, with a checksum of itself."""
    write_text(path, json.dumps(with_checksum(metrics), indent=1) + "\n")


def read_metrics(path: Path, require: Sequence[str] = ()) -> dict[str, Any]:
    """Read ``metrics.json``; refuse a damaged file, and one without the required entries."""
    content = read_object(path)
    check_format(path, content.get("format"), RUN_FORMAT)
    try:
        metrics = verify_run_checksum(content)
    except ValueError as error:
        raise damaged_file(path, f"is damaged: {error}") from None
    require_entries(path, metrics, require)
    return metrics


def read_object(path: Path) -> dict[str, Any]:
    """Read a file of one JSON object."""
    try:
        content = read_json(path)
    except OSError as error:
        raise damaged_file(path, f"cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise damaged_file(path, f"is damaged: {error}") from None
    if not isinstance(content, dict):
        raise damaged_file(path, "is damaged: one JSON object expected")
    return content


def require_entries(path: Path, content: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a file that lacks entries."""
    missing = [name for name in names if name not in content]
    if missing:
        raise damaged_file(path, f"lacks {', '.join(missing)}")


# predictions.parquet

_PREDICTION_COLUMNS = ("split", "seed", "node", "role", "label", "prediction")


@dataclass(frozen=True)
class NodeTable:
    """The columns of predictions that do not depend on the model.

    Attributes:
        nodes: (N,) positions in the graph.
        ids: (N,) names.
        roles: (N,) train, val, calibration, test or unlabelled.
        y: (N,) classes, -1 where unknown, or targets, NaN where unknown.
    """

    nodes: Array
    ids: Array
    roles: Array
    y: Array
    class_names: Sequence[str]

    def with_predictions(self, replica: Replica, classes: Array, probabilities: Array) -> pa.Table:
        """Return the rows of a replica, from its (N,) classes and (N, C) probabilities.

        Targets (N, 1) take the place of probabilities.
        """
        import pyarrow as pa

        if is_target(self.y):
            labels, predictions = (
                pa.array(values, from_pandas=True) for values in (self.y, probabilities[:, 0])
            )
        else:
            names = np.asarray(self.class_names, dtype=object)
            known = [str(names[label]) if label >= 0 else None for label in self.y.tolist()]
            labels = pa.array(known, pa.string())
            predictions = pa.array(names[classes].tolist(), pa.string())
        columns = {
            "split": np.full(self.nodes.shape, replica.split, np.int32),
            "seed": np.full(self.nodes.shape, replica.seed, np.int32),
            "node": self.nodes,
            "node_id": pa.array(self.ids.tolist()),
            "role": pa.array(self.roles.tolist(), pa.string()),
            "label": labels,
            "prediction": predictions,
        }
        for number, name in enumerate(self.class_names):
            columns[f"probability_{name}"] = probabilities[:, number]
        return pa.table(columns)


def roles(split: Split) -> Array:
    """Return the role of each node in a split."""
    names = np.full(split.train.shape, "unlabelled", dtype=object)
    for part in ("train", "val", "test"):
        names[getattr(split, part)] = part
    if split.calibration is not None:
        names[split.calibration] = "calibration"
    return names


def write_predictions(
    path: Path, graph: Graph, fitted: Fitted, splits: Sequence[Split], calibration: Array
) -> None:
    """Write ``predictions.parquet``: a row per split, seed and node."""
    import pyarrow.parquet as pq

    nodes = np.arange(graph.num_nodes)
    ids = nodes.astype(str) if graph.node_ids is None else graph.node_ids
    probabilities = calibrated_probabilities(fitted.logits, calibration).numpy()
    classes = decision_logits(fitted.logits, calibration).argmax(dim=-1).numpy()
    with atomic_write(path) as draft, ExitStack() as stack:
        writer = None
        for place, (replica, split) in enumerate(zip(fitted.replicas, splits, strict=True)):
            node_table = NodeTable(nodes, ids, roles(split), graph.y, graph.class_names)
            table = node_table.with_predictions(replica, classes[place], probabilities[place])
            writer = writer or stack.enter_context(
                pq.ParquetWriter(draft, table.schema, write_page_checksum=True)
            )
            writer.write_table(table)


def read_predictions(
    path: Path, columns: Sequence[str], condition: pc.Expression, *, is_regression: bool = False
) -> tuple[pa.Table, list[str]]:
    """Read columns of the rows that meet a condition; return also the names of all columns.

    Roles and classes are read as text and targets as numbers, whatever type they are stored as.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        names = file.schema_arrow.names
        missing = [name for name in _PREDICTION_COLUMNS if name not in names]
        missing += [name for name in columns if name not in (*names, *missing)]
        if missing:
            raise damaged_file(path, f"lacks the columns {', '.join(missing)}")
        label = pa.float64() if is_regression else pa.string()
        kinds = {"role": pa.string(), "label": label, "prediction": label}
        fields = [file.schema_arrow.field(name) for name in columns]
        schema = pa.schema([f.with_type(kinds.get(f.name, f.type)) for f in fields])
        # Rows are chosen after reading: statistics in the footer have no checksum.
        parts = [
            pa.Table.from_batches([batch]).cast(schema).filter(condition)
            for batch in file.iter_batches(columns=list(columns))
        ]
        return pa.concat_tables([schema.empty_table(), *parts]), names
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise damaged_file(
            path, f"is damaged or not a Parquet file ({type(error).__name__})"
        ) from None


def read_test_probabilities(
    path: Path, replicas: Sequence[Replica], class_names: Sequence[str], num_nodes: int
) -> tuple[Tensor, Array, list[Array]]:
    """Read probabilities (R, N, C), labels (N,) and R masks of the labelled test nodes.

    Without classes they are predicted targets (R, N, 1).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    chances = [f"probability_{name}" for name in class_names] or ["prediction"]
    columns = ["split", "seed", "node", "role", "label", *chances]
    is_test = pc.field("role") == "test"
    table, _ = read_predictions(path, columns, is_test, is_regression=not class_names)
    if class_names:
        names = pa.array([str(name) for name in class_names])
        classes = pc.fill_null(pc.index_in(table["label"], value_set=names), -1).to_numpy()
    else:
        table = table.drop_null()
        classes = table["label"].to_numpy()
    split, seed, nodes = (table[name].to_numpy() for name in ("split", "seed", "node"))
    if nodes.size and not 0 <= int(nodes.min()) <= int(nodes.max()) < num_nodes:
        raise damaged_file(path, f"names nodes beyond the {num_nodes:,} there are")
    rows = np.stack([table[name].to_numpy() for name in chances], axis=1)
    y = hide_labels(np.zeros(num_nodes, classes.dtype if not class_names else np.int64), False)
    y[nodes] = classes
    probabilities = np.zeros((len(replicas), num_nodes, len(chances)), rows.dtype)
    masks = []
    for number, replica in enumerate(replicas):
        own = (split == replica.split) & (seed == replica.seed) & is_known(classes)
        probabilities[number, nodes[own]] = rows[own]
        masks.append(np.isin(np.arange(num_nodes), nodes[own]))
    return torch.from_numpy(probabilities), y, masks


def read_pseudo_labels(path: Path, class_names: Sequence[str], split: int) -> Array:
    """Read (N,) the class that a run's first seed predicts for each node; train nodes keep theirs.

    Args:
        path: ``predictions.parquet`` of the run.
        class_names: those of the graph.
        split: one of the run's splits.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = ["split", "seed", "node", "role", "label", "prediction"]
    table, _ = read_predictions(path, columns, pc.field("split") == split)
    table = _first_seed(table)
    if not len(table):
        remedy = Remedy("Choose another split", option="split")
        raise HPGMNError(f"{path} has no predictions for split {split}.", remedy)
    is_train = pc.equal(table["role"], "train")
    classes = pc.if_else(is_train, table["label"], table["prediction"])
    names = pa.array([str(name) for name in class_names])
    numbers = pc.fill_null(pc.index_in(classes, value_set=names), -1).to_numpy()
    if (numbers < 0).any():
        raise HPGMNError(
            f"{path} names classes that the graph does not have.", "Choose another run"
        )
    nodes = table["node"].to_numpy()
    labels = np.full(int(nodes.max()) + 1, -1, np.int32)
    labels[nodes] = numbers
    return labels


def _first_seed(table: pa.Table) -> pa.Table:
    """Return the rows of the lowest seed."""
    import pyarrow.compute as pc

    return table.filter(pc.field("seed") == pc.min(table["seed"])) if len(table) else table


def read_used_ids(path: Path) -> dict[int, list[str]]:
    """Read from ``predictions.parquet`` the ids of the train and validation nodes of each split."""
    import pyarrow.compute as pc

    is_used = pc.field("role").isin(["train", "val", "calibration"])
    table = _first_seed(read_predictions(path, ["split", "node_id", "seed", "role"], is_used)[0])
    ids: dict[int, list[str]] = {}
    for split, name in zip(table["split"].to_pylist(), table["node_id"].to_pylist(), strict=True):
        ids.setdefault(split, []).append(name)
    return ids


def refuse_other_graph(metrics: Path, num_nodes: int, fingerprint: str | None) -> None:
    """Refuse a run on another graph: its predictions are those of other nodes.

    Args:
        metrics: ``metrics.json`` of the run.
        fingerprint: the graph's; None where it was not read whole, and its size alone is compared.
    """
    run = metrics.parent
    try:
        trained_nodes = int(read_metrics(metrics)["graph_summary"]["num_nodes"])
    except (HPGMNError, ValueError, KeyError, TypeError) as error:
        raise HPGMNError(
            f"{run} is not the folder of a finished run ({metrics.name}: {error!r}).",
            Remedy("Resume the run", option="resume", value=True) | "Choose another run",
        ) from None
    trained = None
    models = [run / MODEL_FILE, *sorted(run.glob(f"{MEMBERS_FOLDER}/*/{MODEL_FILE}"))]
    if fingerprint is not None and (path := next(filter(Path.is_file, models), None)):
        trained = read_tensors(path)[1].get("fingerprint")
    if trained_nodes != num_nodes or (trained and trained != fingerprint):
        is_same_size = trained_nodes == num_nodes
        size = "" if is_same_size else f" ({trained_nodes:,} nodes instead of {num_nodes:,})"
        raise HPGMNError(
            f"The run {run} was trained on another graph{size}.", "Choose a run on this one"
        )


# history.jsonl


def write_history(
    path: Path, replicas: Sequence[Replica], histories: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write the learning curves, one line for each run, stage and epoch.

    Args:
        histories: for each stage and each recorded number (epochs, R).
    """
    write_text(path, "\n".join(history_lines(replicas, histories)) + "\n")


def history_lines(
    replicas: Sequence[Replica], histories: Mapping[str, Mapping[str, Tensor]], **about: str
) -> list[str]:
    """Return the lines of :func:`write_history`, each with the entries ``about``."""
    lines = []
    for stage, history in histories.items():
        columns = {key: rows.tolist() for key, rows in history.items()}
        for place, replica in enumerate(replicas):
            for epoch in range(history["loss"].shape[0]):
                numbers = {key: rows[epoch][place] for key, rows in columns.items()}
                if math.isnan(numbers["loss"]):  # this replica had stopped
                    continue
                finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
                run = {"split": replica.split, "seed": replica.seed, "stage": stage}
                lines.append(json.dumps({**about, **run, "epoch": epoch + 1, **finite}))
    return lines


def read_history(path: Path) -> list[dict[str, Any]]:
    """Read the rows of :func:`write_history`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged_file(path, f"cannot be read ({type(error).__name__})") from None
    rows = []
    # Split at newlines only: a JSON string may contain other line separators.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            run = {"split": row["split"], "seed": row["seed"], "stage": str(row["stage"])}
            rows.append({**row, **run, "epoch": int(row["epoch"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise damaged_file(
                path, f"is damaged at line {number}: split, seed, stage and epoch expected"
            ) from None
    return rows
