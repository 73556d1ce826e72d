"""A run on row shards: the usual run folder, written by rank 0."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hpgmn.base.calibration import calibrated, fit_temperature, mean_logits
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.files import atomic_write
from hpgmn.base.metrics import require_metric
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph import Array, Split
from hpgmn.models import find_model
from hpgmn.models.label_estimator import EstimatorSettings
from hpgmn.models.stage import Parameters, Replica
from hpgmn.runs.folder import HISTORY_FILE, PREDICTIONS_FILE, STATE_FOLDER, finish, note_made_with
from hpgmn.runs.metrics import Result, run_metrics
from hpgmn.runs.predictions import NodeTable, roles, write_history
from hpgmn.runs.spec import RunSpec, surroundings
from hpgmn.shards import ESTIMATOR_FILE, Shards
from hpgmn.statistics import StatisticsSettings
from hpgmn.training.checkpoint import read_seconds, read_tensors
from hpgmn.training.checks import (
    LabelCounts,
    check_counts,
    class_number,
    scarce_counts,
    skewed_counts,
    sought_class,
)
from hpgmn.training.numerics import deterministic_algorithms, run_training_thread
from hpgmn.training.rank_rows import Rows
from hpgmn.training.rank_training import STAGE, ParallelTraining, check_settings, fit
from hpgmn.training.ranks import Ranks
from hpgmn.training.replicas import Progress
from hpgmn.training.saved import MODEL_FILE, SavedModel
from hpgmn.training.state import TrainState

logger = logging.getLogger(__name__)

MODEL = "hpgmn"
BATCH_SIZE = 1024
"""Train nodes in a step of all ranks together, where no setting says it."""
STATE_FILE = "state.safetensors"
NAMED_NODES = 1_000_000
"""A saved model keeps the names of its nodes up to so many: they are a part of the file's head."""


def specification(
    shards: Shards,
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    metric: str = "accuracy",
    positive: str | None = None,
    device: str = "cpu",
    calibrate: bool = True,
    deterministic: bool = False,
) -> RunSpec:
    """The run that is asked for on row shards; what can be refused is refused here.

    Args:
        shards: of the graph.
        settings: what differs from the settings that the shards were made with; without a
            ``batch_size`` in either it is :data:`BATCH_SIZE`.
        seeds: how many.
        metric: what selects epochs and is reported.
        positive: the class that average_precision and precision@K of two classes look for; None
            for the rarer.
        device: "cpu" or "cuda".
        calibrate: whether a temperature is fitted to the validation nodes.
        deterministic: whether a GPU is to give the same bits each time.
    """
    given = {**shards.settings, **(settings or {})}
    if not shards.settings.get("batch_size") and "batch_size" not in (settings or {}):
        given["batch_size"] = BATCH_SIZE
    chosen = make_settings(find_model(MODEL).settings, given)
    _refuse_decided(shards, chosen, settings or {})
    check_settings(chosen, list(shards.statistics))
    require_metric(metric, len(shards.class_names), f"'{shards.name}'")
    if seeds < 1:
        raise SettingError(f"--seeds must be at least 1 (got {seeds}).")
    _estimator(shards)
    counts, number = count_labels(shards), shards.split or 0
    check_counts(counts, shards.class_names, shards.name, number)
    seen = counts.train + counts.val
    rarest = 0 if seen[0] < seen[1] else 1
    return RunSpec(
        graph=shards.source or str(shards.folder.resolve()),
        model=MODEL,
        settings=settings_dict(chosen),
        splits=(number,),
        seeds=seeds,
        metric=metric,
        positive=sought_class(metric, rarest, shards.class_names, positive),
        device=device,
        calibrate=calibrate,
        deterministic=deterministic,
    )


_DECIDED = (
    {info.name for info in dataclasses.fields(StatisticsSettings)}
    | {info.name for info in dataclasses.fields(EstimatorSettings)}
    | {"label_confidence"}
) - {"statistics"}  # some of those that the shards hold may be left out


def _refuse_decided(shards: Shards, chosen: Any, given: Mapping[str, Any]) -> None:
    """Refuse what the rows were made with otherwise: a model would be saved with a false word."""
    wrong = [
        name
        for name in given
        if name in _DECIDED
        and name in shards.settings
        and getattr(chosen, name) != shards.settings[name]
    ]
    if wrong:
        verb = "is" if len(wrong) == 1 else "are"
        raise SettingError(
            f"{', '.join(wrong)} {verb} decided by `hpgmn shard`; make the shards again with it."
        )


def _estimator(shards: Shards) -> Parameters | None:
    """The label estimator behind the shards, where there is one."""
    path = shards.folder / ESTIMATOR_FILE
    if not path.exists():
        return None
    try:
        return read_tensors(path)[0]
    except HPGMNError:
        raise HPGMNError(
            f"The label estimator {path} is damaged. Repeat the `hpgmn shard` that made the "
            "shards: it writes the estimator again."
        ) from None


def count_labels(shards: Shards) -> LabelCounts:
    """The classes of all nodes, counted range by range: arrays of all nodes would be large."""

    def counted(part: int) -> LabelCounts:
        split = Split(*(shards.mask(name, part) for name in ("train", "val", "test")))
        return LabelCounts.of(shards.y(part), split, len(shards.class_names))

    return reduce(LabelCounts.__add__, map(counted, range(len(shards))))


def warnings_of(shards: Shards, metric: str) -> list[str]:
    """What is odd about the labels but does not stop a training."""
    counts, names = count_labels(shards), shards.class_names
    return [
        *check_counts(counts, names, shards.name, shards.split or 0),
        *scarce_counts(counts.train[None], names),
        *skewed_counts(counts.every, names, metric),
    ]


def run_on_shards(
    spec: RunSpec,
    shards: Shards,
    folder: Path,
    ranks: Ranks,
    *,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, Any] | None:
    """Train on the row shards of all ranks, score, and write everything but the report.

    The folder must be one that every rank sees. One that holds an interrupted run of the same
    specification is continued. Ctrl-C finishes the epoch and saves the state.

    Args:
        spec: from :func:`specification`.
        shards: of the graph.
        folder: a prepared run folder.
        ranks: who trains.
        report: called by rank 0 after each epoch.

    Returns:
        The content of ``metrics.json`` on rank 0, None on others.
    """
    run = _OneRun(spec, shards, folder, ranks)
    with deterministic_algorithms(spec.deterministic, ranks.device):
        return run_training_thread(lambda interrupted: run.work(report, interrupted.is_set))


def made_with_shards(shards: Shards, ranks: int, device: str) -> dict[str, Any]:
    """What the same bits depend on beside the specification, as ``config.yaml`` holds it."""
    about = {"shards": str(shards.folder.resolve()), "shards_content": shards.identity}
    return {**about, "ranks": ranks, **surroundings(device)}


class _OneRun:
    """What a rank does from the first row to the last file."""

    def __init__(self, spec: RunSpec, shards: Shards, folder: Path, ranks: Ranks) -> None:
        self.spec, self.shards, self.folder, self.ranks = spec, shards, folder, ranks
        self.state_folder = folder / STATE_FOLDER
        settings = make_settings(find_model(MODEL).settings, spec.settings)
        self.replicas = [Replica(spec.splits[0], seed, settings) for seed in range(spec.seeds)]
        self.rows = Rows(shards, shards.shares(ranks.size)[ranks.rank])

    def work(
        self, report: Callable[[Progress], None] | None, should_stop: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Train, score and write; the metrics on rank 0."""
        started = time.perf_counter()
        warnings: list[str] = []
        if self.ranks.is_first:
            self.state_folder.mkdir(parents=True, exist_ok=True)
            made = made_with_shards(self.shards, self.ranks.size, self.spec.device)
            warnings += warnings_of(self.shards, self.spec.metric)
            warnings += note_made_with(self.folder, self.spec, made)
        for line in warnings:
            logger.warning(line)
        self.ranks.wait()
        path = self.state_folder / STATE_FILE
        is_begun = self.ranks.is_first and path.exists()
        before = read_seconds(path) if is_begun else 0.0
        sought = class_number(self.spec.positive, self.shards.class_names)
        training = ParallelTraining(self.rows, self.replicas, self.ranks, self.spec.metric, sought)
        state = fit(
            training,
            path=path,
            identity=self._identity(),
            report=report,
            should_stop=should_stop,
        )
        judged, labels, val, test = self._judged(training)
        temperatures = self._temperatures(judged, labels, val)
        self._write_parts(training, temperatures)
        self.ranks.wait()
        metrics = None
        if self.ranks.is_first:
            self._merge_parts()
            self._write_model(state, temperatures)
            write_history(self.folder / HISTORY_FILE, self.replicas, state.history)
            metrics = self._metrics(state, judged, labels, val, test, temperatures)
            sizes = (training.train_size, int(val.sum()), int(test.sum()))
            metrics["nodes"] = {
                part: [size] for part, size in zip(("train", "val", "test"), sizes, strict=True)
            }
            metrics["warnings"] = warnings
            metrics["seconds"] = before + time.perf_counter() - started
            finish(self.folder, metrics)
        self.ranks.wait()
        return metrics

    def _identity(self) -> str:
        about = json.dumps([self.spec.as_dict(), self.shards.identity], sort_keys=True)
        return hashlib.sha256(about.encode()).hexdigest()

    def _judged(self, training: ParallelTraining) -> tuple[Tensor, Array, Array, Array]:
        """On rank 0 logits, labels, and masks of the validation and test nodes of all ranks."""
        split, y = self.rows.split, self.rows.y
        nodes = np.flatnonzero((split.val | split.test) & (y >= 0))
        found = self.ranks.gathered(training.logits(torch.from_numpy(nodes)))
        about = np.stack([y[nodes], split.val[nodes], split.test[nodes]]).astype(np.int64)
        every = self.ranks.gathered(torch.from_numpy(about).to(self.ranks.device)).cpu().numpy()
        return found.cpu(), every[0], every[1].astype(bool), every[2].astype(bool)

    def _temperatures(self, logits: Tensor, y: Array, val: Array) -> list[float]:
        """One for each replica, and last that of their average; rank 0 fits them."""
        scales = torch.ones(len(self.replicas) + 1, dtype=torch.float64, device=self.ranks.device)
        if self.ranks.is_first and self.spec.calibrate:
            chosen = torch.from_numpy(val)
            for place, own in enumerate([*logits, mean_logits(logits)]):
                scales[place] = fit_temperature(own[chosen].double().numpy(), y[val])
        return [float(scale) for scale in self.ranks.agreed(scales).tolist()]

    def _part(self, number: int, place: int) -> Path:
        return self.state_folder / f"predictions-{place:03d}-{number:05d}.parquet"

    def _write_parts(self, training: ParallelTraining, temperatures: list[float]) -> None:
        """The predictions of this rank's nodes, range by range."""
        split = self.rows.split
        for number in self.rows.parts:
            start, stop = self.shards.ranges[number]
            own = slice(start - self.rows.first, stop - self.rows.first)
            found = training.logits(torch.arange(own.start, own.stop)).cpu()
            about = NodeTable(
                np.arange(start, stop),
                self.shards.names([number]),
                roles(Split(split.train[own], split.val[own], split.test[own])),
                self.rows.y[own],
                self.shards.class_names,
            )
            chances = calibrated(found, temperatures[:-1]).numpy()
            guesses = found.argmax(dim=-1).numpy()
            for place, replica in enumerate(self.replicas):
                table = about.with_predictions(replica, guesses[place], chances[place])
                pq.write_table(table, self._part(number, place))

    def _merge_parts(self) -> None:
        """One file of all predictions, seed by seed; one range at a time is in memory."""
        path = self.folder / PREDICTIONS_FILE
        with (
            atomic_write(path) as draft,
            pq.ParquetWriter(
                draft, pq.read_schema(self._part(0, 0)), write_page_checksum=True
            ) as writer,
        ):
            for place in range(len(self.replicas)):
                for number in range(len(self.shards)):
                    writer.write_table(pq.read_table(self._part(number, place)))

    def _write_model(self, state: TrainState, temperatures: list[float]) -> None:
        shards, every = self.shards, range(len(self.shards))
        done: dict[str, Parameters] = {}
        if estimator := _estimator(shards):
            done["estimator"] = {
                name: value.expand(len(self.replicas), *value.shape[1:])
                for name, value in estimator.items()
            }
        labels = np.concatenate(
            [np.where(shards.mask("train", part), shards.y(part), -1) for part in every]
        )
        names = None
        if shards.num_nodes <= NAMED_NODES and shards.has_names:
            names = shards.names(every)
        about = {
            "graph": shards.name,
            "fingerprint": shards.fingerprint,
            "num_nodes": shards.num_nodes,
            "num_features": shards.num_features,
            "class_names": list(shards.class_names),
            "source": "",
            "preparation": shards.about["preparation"],
        }
        model = SavedModel(
            find_model(MODEL),
            self.replicas,
            done | {STAGE: {name: value.cpu() for name, value in state.done[STAGE].items()}},
            np.broadcast_to(labels, (len(self.replicas), len(labels))),
            about,
            names,
            temperatures[:-1],
            temperatures[-1:] * len(self.replicas),
        )
        model.write(self.folder / MODEL_FILE)

    def _metrics(
        self,
        state: TrainState,
        logits: Tensor,
        y: Array,
        val: Array,
        test: Array,
        temperatures: list[float],
    ) -> dict[str, Any]:
        """Everything ``metrics.json`` says of the training."""
        shards, number = self.shards, len(self.replicas)
        result = Result(
            logits=logits,
            y=y,
            val=[val] * number,
            test=[test] * number,
            temperatures=temperatures[:-1],
            mean_temperatures=temperatures[-1:] * number,
            val_score=state.best_score[STAGE],
            best_epoch=state.best_epoch[STAGE],
            history=state.history,
            seconds=state.seconds,
        )
        summary = {
            "num_nodes": shards.num_nodes,
            "num_edges": shards.about["num_edges"],
            "num_features": shards.num_features,
            "num_classes": len(shards.class_names),
            "class_names": list(shards.class_names),
            "homophily": shards.about["homophily"],
        }
        metrics = run_metrics(self.spec, result, shards.name, summary)
        metrics["hardware"]["ranks"] = self.ranks.size
        return metrics
