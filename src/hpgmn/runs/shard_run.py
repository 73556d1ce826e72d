"""A run on row shards, trained alone, under torchrun or by Ray; rank 0 writes the run folder."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hpgmn.base.calibration import calibrated_probabilities, decision_logits
from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.files import atomic_write, lock_folder, read_tensors
from hpgmn.base.metrics import mean_logits, require_metric
from hpgmn.base.parsing import parse_json
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.graph import Array, Split
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import find_model
from hpgmn.models.hpgmn import EstimatorSettings
from hpgmn.models.stage import Parameters, Replica, TrainingStage, stage_logits
from hpgmn.runs.fit import state_identity
from hpgmn.runs.folder import (
    HISTORY_FILE,
    PREDICTIONS_FILE,
    STATE_FOLDER,
    finish,
    finished_run,
    prepare_folder,
    record_environment,
)
from hpgmn.runs.metrics import TrainingResult, graph_summary, run_metrics
from hpgmn.runs.outputs import NodeTable, roles, write_history
from hpgmn.runs.spec import RunSpec, changes, check_seeds, machine_environment
from hpgmn.shards import ESTIMATOR_FILE, Shards
from hpgmn.statistics import StatisticsSettings
from hpgmn.training.checks import (
    LabelCounts,
    check_counts,
    check_positive,
    class_number,
    scarce_classes,
    skewed_classes,
)
from hpgmn.training.ranks import Ranks, join_ranks
from hpgmn.training.replicas import Progress
from hpgmn.training.saved import MODEL_FILE, SavedModel
from hpgmn.training.shard_task import (
    STAGE,
    ShardRows,
    ShardTask,
    check_shard_settings,
    fit_shards,
    load_shard_stage,
)
from hpgmn.training.state import TrainState, read_spent
from hpgmn.training.trainer import deterministic_algorithms, run_training_thread

logger = logging.getLogger(__name__)

MODEL = "hpgmn"
BATCH_SIZE = 1024
"""Default number of train nodes in a step of all ranks together."""
STATE_FILE = "state.safetensors"
MOST_NAMED_NODES = 1_000_000
"""Largest number of node names that a saved model keeps; they are part of the file's header."""

Report = Callable[[Progress], None]


def shard_spec(
    shards: Shards,
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    metric: str = "accuracy",
    positive: str | None = None,
    **options: Any,
) -> RunSpec:
    """Return the specification of a run on row shards; refuse what cannot be trained.

    Args:
        settings: what differs from the settings of the shards; ``batch_size`` defaults to
            :data:`BATCH_SIZE`.
        positive: the positive class of two; None for the rarer.
        options: ``device``, ``calibrate`` and ``deterministic`` of :class:`RunSpec`.
    """
    requested = settings or {}
    values = {**shards.settings, **requested}
    if not shards.settings.get("batch_size") and "batch_size" not in requested:
        values["batch_size"] = BATCH_SIZE
    chosen = make_settings(find_model(MODEL).settings, values)
    _refuse_fixed_settings(shards, chosen, requested)
    check_shard_settings(chosen, list(shards.statistics))
    require_metric(metric, len(shards.class_names), f"'{shards.name}'")
    check_seeds(seeds)
    _read_estimator(shards)
    counts, number = count_labels(shards), shards.split or 0
    check_counts(counts, shards.class_names, shards.name, number)
    seen = counts.train + counts.val
    return RunSpec(
        graph=shards.source or str(shards.folder.resolve()),
        model=MODEL,
        settings=settings_dict(chosen),
        splits=(number,),
        seeds=seeds,
        metric=metric,
        positive=check_positive(metric, int(seen[0] >= seen[1]), shards.class_names, positive),
        **options,
    )


_FIXED = (
    {field.name for field in dataclasses.fields(StatisticsSettings)}
    | {field.name for field in dataclasses.fields(EstimatorSettings)}
    | {"label_confidence"}
) - {"statistics"}  # some of those that the shards hold may be left out


def _refuse_fixed_settings(shards: Shards, chosen: Any, requested: Mapping[str, Any]) -> None:
    """Refuse other settings than the rows were made with: a saved model would state them."""
    wrong = [
        name
        for name in requested
        if name in _FIXED
        and name in shards.settings
        and getattr(chosen, name) != shards.settings[name]
    ]
    if wrong:
        raise SettingError(
            f"Row shards fix {', '.join(wrong)}.",
            Remedy("Recreate the shards with these settings", command="shard"),
        )


def _read_estimator(shards: Shards) -> Parameters | None:
    """Read the label estimator of the shards, if there is one."""
    path = shards.folder / ESTIMATOR_FILE
    if not path.exists():
        return None
    try:
        return read_tensors(path)[0]
    except HPGMNError:
        raise HPGMNError(
            f"The label estimator {path} is damaged.",
            Remedy("Recreate the shards, which writes it again", command="shard"),
        ) from None


def count_labels(shards: Shards) -> LabelCounts:
    """Count the classes of all nodes, range by range to save memory."""

    def count(part: int) -> LabelCounts:
        split = Split(*(shards.mask(name, part) for name in ("train", "val", "test")))
        return LabelCounts.of(shards.y(part), split, len(shards.class_names))

    return reduce(LabelCounts.__add__, map(count, range(len(shards))))


def label_warnings(shards: Shards, metric: str) -> list[str]:
    """Return warnings about the labels that do not prevent a training."""
    counts, names = count_labels(shards), shards.class_names
    return [
        *check_counts(counts, names, shards.name, shards.split or 0),
        *scarce_classes(counts.train[None], names),
        *skewed_classes(counts.every, names, metric),
    ]


def shard_environment(shards: Shards, ranks: int, device: str) -> dict[str, Any]:
    """Return what results depend on besides the specification, for ``config.yaml``."""
    about = {"shards": str(shards.folder.resolve()), "shards_content": shards.identity}
    return {**about, "ranks": ranks, **machine_environment(device)}


def run_on_shards(
    spec: RunSpec, shards: Shards, folder: Path, ranks: Ranks, *, report: Report | None = None
) -> dict[str, Any] | None:
    """Train on the row shards of all ranks, score, and write everything but the report.

    An interrupted run of the same specification is continued. Ctrl-C finishes the epoch and saves
    the state.

    Args:
        spec: from :func:`shard_spec`.
        folder: a prepared run folder that every rank sees.
        report: called by rank 0 after each epoch.

    Returns:
        The content of ``metrics.json`` on rank 0, None on others.
    """
    run = _RankRun(spec, shards, folder, ranks)
    with deterministic_algorithms(spec.deterministic, ranks.device):
        return run_training_thread(lambda interrupted: run.train(report, interrupted.is_set))


class _RankRun:
    """The run of one rank, from its first row to the last file."""

    def __init__(self, spec: RunSpec, shards: Shards, folder: Path, ranks: Ranks) -> None:
        self.spec, self.shards, self.folder, self.ranks = spec, shards, folder, ranks
        self.state_folder = folder / STATE_FOLDER
        settings = make_settings(find_model(MODEL).settings, spec.settings)
        self.replicas = [Replica(spec.splits[0], seed, settings) for seed in range(spec.seeds)]
        self.rows = ShardRows(shards, shards.shares(ranks.size)[ranks.rank])

    def train(
        self, report: Report | None, should_stop: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Train, score and write; return the metrics on rank 0."""
        started = time.perf_counter()
        warnings: list[str] = []
        identity = ""
        if self.ranks.is_first:
            about = [self.shards.identity]
            identity = state_identity(self.folder, self.spec, about, lambda: about)
            self.state_folder.mkdir(parents=True, exist_ok=True)
            made = shard_environment(self.shards, self.ranks.size, self.spec.device)
            warnings += label_warnings(self.shards, self.spec.metric)
            warnings += record_environment(self.folder, self.spec, made)
        for line in warnings:
            logger.warning(line)
        identity = self.ranks.broadcast_text(identity)
        path = self.state_folder / STATE_FILE
        earlier = read_spent(path)[0] if self.ranks.is_first and path.exists() else 0.0
        task = ShardTask.of(self.rows, self.replicas, self.ranks)
        state = fit_shards(
            task,
            metric=self.spec.metric,
            positive=class_number(self.spec.positive, self.shards.class_names),
            path=path,
            identity=identity,
            report=report,
            should_stop=should_stop,
        )
        stage = load_shard_stage(task, state)
        result = self._score(stage, state)
        train_size = sum(self.ranks.gather_numbers(int((task.train_labels >= 0).sum())))
        self._write_parts(stage, result.calibration)
        self.ranks.barrier()
        metrics = None
        if self.ranks.is_first:
            self._merge_parts()
            self._write_model(state, result)
            write_history(self.folder / HISTORY_FILE, self.replicas, state.history)
            summary = graph_summary(self.shards, self.shards.homophily)
            metrics = run_metrics(self.spec, result, self.shards.name, summary)
            metrics["hardware"]["ranks"] = self.ranks.size
            sizes = {"train": train_size, "val": result.val[0].sum(), "test": result.test[0].sum()}
            metrics["nodes"] = {part: [int(size)] for part, size in sizes.items()}
            metrics["warnings"] = warnings
            metrics["seconds"] = earlier + time.perf_counter() - started
            finish(self.folder, metrics)
        self.ranks.barrier()
        return metrics

    def _logits(self, stage: TrainingStage, nodes: Tensor) -> Tensor:
        with torch.no_grad():
            return stage_logits(stage, nodes.expand(len(self.replicas), -1))

    def _score(self, stage: TrainingStage, state: TrainState) -> TrainingResult:
        """Gather the validation and test nodes of all ranks on rank 0; it fits the calibration."""
        split, y = self.rows.split, self.rows.y
        nodes = np.flatnonzero((split.val | split.test) & (y >= 0))
        logits = self.ranks.gather(self._logits(stage, torch.from_numpy(nodes))).cpu()
        about = np.stack([y[nodes], split.val[nodes], split.test[nodes]]).astype(np.int64)
        gathered = self.ranks.gather(torch.from_numpy(about).to(self.ranks.device)).cpu().numpy()
        labels, val, test = gathered[0], gathered[1].astype(bool), gathered[2].astype(bool)
        number = len(self.replicas)
        shape = (number + 1, 3, len(self.shards.class_names))
        maps = torch.zeros(shape, dtype=torch.float64, device=self.ranks.device)
        if self.ranks.is_first:
            is_weighted = self.replicas[0].settings.class_weights != "none"
            calibrator = self.spec.calibrator(self.shards.class_names, is_weighted)
            together = torch.cat([logits.double(), mean_logits(logits)[None]])
            fitted = calibrator.fit(together, labels, [val] * (number + 1))
            maps.copy_(torch.from_numpy(fitted))
        calibration = self.ranks.broadcast(maps).cpu().numpy()
        return TrainingResult(
            logits=logits,
            y=labels,
            val=[val] * number,
            test=[test] * number,
            calibration=calibration[:-1],
            mean_calibration=np.repeat(calibration[-1:], number, axis=0),
            val_score=state.best_score[STAGE],
            best_epoch=state.best_epoch[STAGE],
            history=state.history,
            seconds=state.seconds,
        )

    def _part(self, number: int, place: int) -> Path:
        return self.state_folder / f"predictions-{place:03d}-{number:05d}.parquet"

    def _write_parts(self, stage: TrainingStage, calibration: Array) -> None:
        """Write the predictions of this rank's nodes, range by range."""
        split = self.rows.split
        for number in self.rows.parts:
            start, stop = self.shards.ranges[number]
            chosen = slice(start - self.rows.first, stop - self.rows.first)
            logits = self._logits(stage, torch.arange(chosen.start, chosen.stop)).cpu()
            nodes = NodeTable(
                np.arange(start, stop),
                self.shards.names([number]),
                roles(Split(split.train[chosen], split.val[chosen], split.test[chosen])),
                self.rows.y[chosen],
                self.shards.class_names,
            )
            probabilities = calibrated_probabilities(logits, calibration).numpy()
            classes = decision_logits(logits, calibration).argmax(dim=-1).numpy()
            for place, replica in enumerate(self.replicas):
                table = nodes.with_predictions(replica, classes[place], probabilities[place])
                pq.write_table(table, self._part(number, place))

    def _merge_parts(self) -> None:
        """Write one file of all predictions, seed by seed; one range at a time is in memory."""
        schema = pq.read_schema(self._part(0, 0))
        with (
            atomic_write(self.folder / PREDICTIONS_FILE) as draft,
            pq.ParquetWriter(draft, schema, write_page_checksum=True) as writer,
        ):
            for place in range(len(self.replicas)):
                for number in range(len(self.shards)):
                    writer.write_table(pq.read_table(self._part(number, place)))

    def _write_model(self, state: TrainState, result: TrainingResult) -> None:
        shards, parts = self.shards, range(len(self.shards))
        stages: dict[str, Parameters] = {}
        if estimator := _read_estimator(shards):
            stages["estimator"] = {
                name: value.expand(len(self.replicas), *value.shape[1:])
                for name, value in estimator.items()
            }
        stages[STAGE] = {name: value.cpu() for name, value in state.done[STAGE].items()}
        labels: Array = np.concatenate(
            [np.where(shards.mask("train", part), shards.y(part), -1) for part in parts]
        )
        has_names = shards.num_nodes <= MOST_NAMED_NODES and shards.has_names
        about = {
            "graph": shards.name,
            "fingerprint": shards.fingerprint,
            "num_nodes": shards.num_nodes,
            "num_features": shards.num_features,
            "class_names": list(shards.class_names),
            "source": "",
            "preparation": shards.preparation,
        }
        SavedModel(
            find_model(MODEL),
            self.replicas,
            stages,
            np.broadcast_to(labels, (len(self.replicas), len(labels))),
            about,
            shards.names(parts) if has_names else None,
            result.calibration,
            result.mean_calibration,
        ).write(self.folder / MODEL_FILE)


_REFUSED, _FINISHED = "refused", "finished"  # what rank 0 broadcasts instead of a specification


@dataclass(frozen=True)
class ShardTraining:
    """A requested training on row shards.

    Attributes:
        shards: the folder of the shards, on a disk that every rank sees.
        folder: the run folder, on such a disk.
        options: keywords of :func:`shard_spec`; the metric defaults to that of the dataset.
        config: the ``config.yaml`` of an earlier run to compare with; empty without one.
        resume: continue the interrupted run in the folder.
        overwrite: replace the run in the folder.
        watch: opens the log and the progress of a training.
    """

    shards: Path
    folder: Path
    options: Mapping[str, Any]
    config: Mapping[str, Any]
    resume: bool
    overwrite: bool
    watch: Callable[[RunSpec, Shards], AbstractContextManager[Report]]

    def spec(self, device: str, ranks: int) -> tuple[RunSpec, Shards]:
        """Check the request for this number of ranks; log what differs from the earlier run."""
        shards = Shards(self.shards)
        shards.shares(ranks)
        metric = DATASETS[shards.source].metric if shards.source in DATASETS else "accuracy"
        spec = shard_spec(shards, device=device, **({"metric": metric} | dict(self.options)))
        if self.config.get("made_with"):
            for line in changes(self.config, shard_environment(shards, ranks, device)):
                logger.warning(line)
        return spec, shards

    def run(self, device: str) -> dict[str, Any] | None:
        """Train as one of torchrun's processes, or alone; return the metrics on rank 0."""
        with join_ranks(device) as ranks:
            if ranks.is_first:
                return self._run_first(ranks, device)
            message = ranks.broadcast_text("")
            if message not in (_REFUSED, _FINISHED):  # torchrun ends all with a failed rank
                spec = RunSpec.from_dict(parse_json(message))
                run_on_shards(spec, Shards(self.shards), self.folder, ranks)
            return None

    def _run_first(self, ranks: Ranks, device: str) -> dict[str, Any]:
        """Check, prepare the folder and train: rank 0 alone refuses, writes and reports."""
        with ExitStack() as stack:
            try:
                spec, shards = self.spec(device, ranks.size)
                stack.enter_context(lock_folder(self.folder))
                metrics = self.prepare(spec)
            except Exception:
                ranks.broadcast_text(_REFUSED)
                ranks.leave()
                raise
            if metrics is not None:
                ranks.broadcast_text(_FINISHED)
                return metrics
            ranks.broadcast_text(json.dumps(spec.as_dict()))
            with self.watch(spec, shards) as report:
                metrics = run_on_shards(spec, shards, self.folder, ranks, report=report)
        assert metrics is not None
        return metrics

    def prepare(self, spec: RunSpec) -> dict[str, Any] | None:
        """Prepare the run folder; return the metrics of a run that only lacks its report."""
        prepare_folder(self.folder, spec, resume=self.resume, overwrite=self.overwrite)
        return finished_run(self.folder) if self.resume else None
