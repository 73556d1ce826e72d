"""What ``metrics.json`` of a run says, wherever its training happened."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch import Tensor

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import (
    RUN_FORMAT,
    atomic_write,
    check_format,
    verify_run_checksum,
    with_checksum,
    write_text,
)
from hpgmn.base.machine import hardware, peak_memory_mb
from hpgmn.base.metrics import calibrated_probabilities
from hpgmn.base.parsing import read_json
from hpgmn.base.version import __version__
from hpgmn.graph import Array, Graph, Split
from hpgmn.models.stage import Replica
from hpgmn.runs.spec import RunSpec
from hpgmn.training.checkpoint import read_tensors
from hpgmn.training.checks import class_number
from hpgmn.training.replicas import Fitted
from hpgmn.training.saved import MODEL_FILE


@dataclass(frozen=True)
class Result:
    """What a training came to, of R replicas: split by split, with the seeds inside.

    Attributes:
        logits: (R, M, C) of all nodes, or of those that are scored.
        y: (M,) their true labels.
        val: R masks of the validation nodes.
        test: R masks of the test nodes.
        temperatures: R.
        mean_temperatures: R, of the average over the seeds of each replica's split.
        val_score: (R,) of the best epoch.
        best_epoch: (R,) of the last stage.
        history: for each stage and each recorded number (epochs, R).
        seconds: of statistics and of training.
        guesses: (R, M, C) of the label estimator, where they are known.
    """

    logits: Tensor
    y: Array
    val: Sequence[Array]
    test: Sequence[Array]
    temperatures: Sequence[float]
    mean_temperatures: Sequence[float]
    val_score: Tensor
    best_epoch: Tensor
    history: Mapping[str, Mapping[str, Tensor]]
    seconds: Mapping[str, float]
    guesses: Tensor | None = None


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json``, with a checksum of itself."""
    write_text(path, json.dumps(with_checksum(metrics), indent=1) + "\n")


def read_metrics(path: Path) -> dict[str, Any]:
    """Read ``metrics.json``, the one reader of it; a damaged file is refused."""
    remedy = Remedy("Restore it") | Remedy("Train that run again", option="overwrite", value=True)
    try:
        found = read_json(path)
        if isinstance(found, dict):
            check_format(path, found.get("format"), RUN_FORMAT)
        return verify_run_checksum(found)
    except OSError as error:
        raise HPGMNError(f"Cannot read {path} ({error.strerror or error}).", remedy) from None
    except ValueError as error:
        raise HPGMNError(f"{path} is damaged: {error}.", remedy) from None


def run_metrics(
    spec: RunSpec, result: Result, graph: str, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``metrics.json``; the only place that reads test labels.

    Args:
        spec: what was trained.
        result: what it came to.
        graph: the graph's name.
        summary: its sizes and ``class_names``.
    """
    from hpgmn.evaluation.scores import Score, calibration_report, scores

    tested = all(mask.any() for mask in result.test)
    sought = class_number(spec.positive, summary["class_names"])
    score, accuracy, estimator = None, None, None
    if tested:
        own = (result.y, result.test)
        score = Score.of(scores(result.logits, *own, spec.metric, sought))
        accuracy = Score.of(scores(result.logits, *own, "accuracy"))
        if result.guesses is not None:
            guessed = Score.of(scores(result.guesses, *own, "accuracy"))
            estimator = {"test_accuracy_mean": guessed.mean, "test_accuracy_std": guessed.std}
    calibration = calibration_report(
        *(result.logits, result.temperatures, result.y, result.val, result.test),
        seeds=spec.seeds,
        mean_temperatures=result.mean_temperatures,
    )
    return {
        "format": RUN_FORMAT,
        "model": spec.model,
        "graph": graph,
        "splits": list(spec.splits),
        "seeds": spec.seeds,
        "metric": spec.metric,
        "positive": spec.positive,
        "test_score_mean": score.mean if score else None,
        "test_score_std": score.std if score else None,
        "test_score": list(score.values) if score else [],
        "val_score": result.val_score.tolist(),
        "test_accuracy_mean": accuracy.mean if accuracy else None,
        "test_accuracy_std": accuracy.std if accuracy else None,
        "label_estimator": estimator,
        "calibration": calibration
        | {"mean_temperature": list(result.mean_temperatures[:: spec.seeds])},
        **(_ensemble(spec, result, sought) if tested else {}),
        "seconds_statistics": result.seconds["statistics"],
        "seconds_training": result.seconds["training"],
        "epochs": result.best_epoch.tolist(),
        "epochs_trained": {
            stage: int(history["loss"].shape[0]) for stage, history in result.history.items()
        },
        "peak_memory_mb": peak_memory_mb(spec.device),
        "version": __version__,
        "config": spec.as_dict(),
        "hardware": hardware(spec.device),
        "graph_summary": dict(summary),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _ensemble(spec: RunSpec, result: Result, sought: int) -> dict[str, Any]:
    """The score of seeds averaged, where there are several."""
    from hpgmn.evaluation.scores import Score, ensemble_scores, ensemble_size

    if spec.seeds == 1:
        return {}
    size = ensemble_size(len(spec.splits), spec.seeds)
    own = Score.of(
        ensemble_scores(
            *(result.logits, result.y, result.test, spec.metric, sought),
            seeds=spec.seeds,
            size=size,
        )
    )
    about = {"seeds": size, "test_score": list(own.values)}
    return {"ensemble": about | {"test_score_mean": own.mean, "test_score_std": own.std}}


@dataclass(frozen=True)
class NodeTable:
    """What is known of some nodes before a model speaks.

    Attributes:
        nodes: (N,) their positions in the graph.
        ids: (N,) their names.
        roles: (N,) train, val, test or unlabelled.
        y: (N,) their classes, -1 where unknown.
        class_names: C of them.
    """

    nodes: Array
    ids: Array
    roles: Array
    y: Array
    class_names: Sequence[str]

    def with_predictions(self, replica: Replica, guess: Array, chances: Array) -> pa.Table:
        """The rows of one run.

        Args:
            replica: its split and seed.
            guess: (N,) predicted classes.
            chances: (N, C) probabilities.
        """
        names = np.asarray(self.class_names, dtype=object)
        labels = [str(names[label]) if label >= 0 else None for label in self.y.tolist()]
        columns = {
            "split": np.full(self.nodes.shape, replica.split, np.int32),
            "seed": np.full(self.nodes.shape, replica.seed, np.int32),
            "node": self.nodes,
            "node_id": pa.array(self.ids.tolist()),
            "role": pa.array(self.roles.tolist(), pa.string()),
            "label": pa.array(labels, pa.string()),
            "prediction": pa.array(names[guess].tolist(), pa.string()),
        }
        for number, name in enumerate(self.class_names):
            columns[f"probability_{name}"] = chances[:, number]
        return pa.table(columns)


def roles(split: Split) -> Array:
    """For each node its role in a split."""
    names = np.full(split.train.shape, "unlabelled", dtype=object)
    for part in ("train", "val", "test"):
        names[getattr(split, part)] = part
    return names


def write_predictions(
    path: Path, graph: Graph, fitted: Fitted, splits: Sequence[Split], temperatures: Sequence[float]
) -> None:
    """Write ``predictions.parquet``: a row per split, seed and node."""
    ids = graph.node_ids
    if ids is None:
        ids = np.arange(graph.num_nodes).astype(str)
    chances = calibrated_probabilities(fitted.logits, temperatures).numpy()
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


def guessed_labels(path: Path, class_names: Sequence[str], split: int) -> Array:
    """(N,) the class of each node as a run's first seed predicts it; train nodes have their own.

    Args:
        path: ``predictions.parquet`` of the run.
        class_names: those of the graph.
        split: one of the run's splits.
    """
    names = pa.array([str(name) for name in class_names])
    nodes, labels = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    columns = ["split", "seed", "node", "role", "label", "prediction"]
    try:
        for batch in pq.ParquetFile(path, page_checksum_verification=True).iter_batches(
            columns=columns
        ):
            chosen = pc.and_(pc.equal(batch["split"], split), pc.equal(batch["seed"], 0))
            own = batch.filter(chosen)
            is_train = pc.equal(own["role"], "train")
            words = pc.if_else(is_train, own["label"], own["prediction"])
            nodes.append(own["node"].to_numpy())
            found = pc.fill_null(pc.index_in(words, value_set=names), -1)
            labels.append(found.to_numpy(zero_copy_only=False))
    except (OSError, ValueError, pa.ArrowException, KeyError) as error:
        raise HPGMNError(f"{path} cannot be read ({error}).", "Train the run again") from None
    order, values = np.concatenate(nodes), np.concatenate(labels)
    if not len(order):
        remedy = Remedy("Choose another split", option="split")
        raise HPGMNError(f"{path} has no predictions for split {split}.", remedy)
    if (values < 0).any():
        raise HPGMNError(
            f"{path} names classes that the graph does not have.", "Choose another run"
        )
    labels_of = np.full(int(order.max()) + 1, -1, np.int32)
    labels_of[order] = values
    return labels_of


def used_ids(path: Path) -> dict[int, list[str]]:
    """For each split the ids of its train and validation nodes.

    Args:
        path: ``predictions.parquet`` of the run.
    """
    columns = ["split", "node_id", "seed", "role"]
    try:
        table = pq.read_table(path, columns=columns, page_checksum_verification=True)
        # Not while it is read: that trusts the end of the file, which has no checksum.
        table = table.filter((pc.field("seed") == 0) & pc.field("role").isin(["train", "val"]))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise HPGMNError(
            f"{path} is damaged ({type(error).__name__}).",
            Remedy("Restore it") | Remedy("Train again", option="overwrite", value=True),
        ) from None
    found: dict[int, list[str]] = {}
    for split, name in zip(*(table[key].to_pylist() for key in columns[:2]), strict=True):
        found.setdefault(split, []).append(name)
    return found


def refuse_other_graph(metrics: Path, num_nodes: int, fingerprint: str | None) -> None:
    """Refuse a run whose graph is not the one at hand: its predictions are those of other nodes.

    Args:
        metrics: ``metrics.json`` of the run.
        num_nodes: how many the graph has.
        fingerprint: the graph's; None where it was not read whole, and its size alone is compared.
    """
    run = metrics.parent
    try:
        about = verify_run_checksum(read_json(metrics))
        before = int(about["graph_summary"]["num_nodes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HPGMNError(
            f"{run} is not the folder of a finished run ({metrics.name}: {error!r}).",
            Remedy("Resume the run", option="resume", value=True) | "Choose another run",
        ) from None
    trained = None
    if fingerprint is not None and (run / MODEL_FILE).is_file():
        trained = read_tensors(run / MODEL_FILE)[1].get("fingerprint")
    differs = bool(trained and fingerprint and trained != fingerprint)
    if before != num_nodes or differs:
        size = "" if before == num_nodes else f" ({before:,} nodes instead of {num_nodes:,})"
        raise HPGMNError(
            f"The run {run} was trained on another graph{size}.", "Choose a run on this one."
        )
