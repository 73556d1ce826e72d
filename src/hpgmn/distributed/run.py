"""A run on a folder of rows: the usual run folder, written by rank 0."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hpgmn import __version__
from hpgmn.calibration import calibrated, fit_temperature, mean_logits
from hpgmn.config import make_settings, settings_dict
from hpgmn.distributed.ranks import Ranks
from hpgmn.distributed.shards import ESTIMATOR_FILE, Manifest, Rows
from hpgmn.distributed.training import STAGE, ParallelTraining, check_settings, fit
from hpgmn.errors import SettingError
from hpgmn.evaluation import Score, calibration_report, ensemble_scores, ensemble_size, scores
from hpgmn.experiments.machine import hardware, peak_memory_mb
from hpgmn.experiments.predictions import NodeTable
from hpgmn.experiments.run import (
    HISTORY_FILE,
    METRICS_FILE,
    PREDICTIONS_FILE,
    STATE_FOLDER,
    RunSpec,
    roles,
    write_history,
    write_text,
)
from hpgmn.graph import Array, Split
from hpgmn.metrics import require_metric
from hpgmn.models import find_model
from hpgmn.models.stage import Parameters, Replica
from hpgmn.training.checkpoint import read_tensors
from hpgmn.training.denormals import without_denormals
from hpgmn.training.replicas import Progress
from hpgmn.training.saved import MODEL_FILE, SavedModel
from hpgmn.training.state import TrainState

MODEL = "hpgmn"
BATCH_SIZE = 1024
"""Train nodes in a step of all ranks together, where no setting says it."""
STATE_FILE = "state.safetensors"
NAMED_NODES = 1_000_000
"""A saved model keeps the names of its nodes up to so many: they are a part of the file's head."""


def specification(
    manifest: Manifest,
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    metric: str = "accuracy",
    device: str = "cpu",
    calibrate: bool = True,
) -> RunSpec:
    """The run that is asked for on a folder of rows.

    Args:
        manifest: of the folder.
        settings: what differs from the settings that the rows were made with; without a
            ``batch_size`` in either it is :data:`BATCH_SIZE`.
        seeds: how many.
        metric: what selects epochs and is reported.
        device: "cpu" or "cuda".
        calibrate: whether a temperature is fitted to the validation nodes.
    """
    given = {**manifest.settings, **(settings or {})}
    if not manifest.settings.get("batch_size") and "batch_size" not in (settings or {}):
        given["batch_size"] = BATCH_SIZE
    chosen = make_settings(find_model(MODEL).settings, given)
    check_settings(chosen, list(manifest.widths))
    require_metric(metric, len(manifest.class_names), f"'{manifest.name}'")
    if seeds < 1:
        raise SettingError(f"--seeds must be at least 1 (got {seeds}).")
    return RunSpec(
        graph=manifest.source or str(manifest.folder.resolve()),
        model=MODEL,
        settings=settings_dict(chosen),
        splits=(manifest.split,),
        seeds=seeds,
        metric=metric,
        device=device,
        calibrate=calibrate,
    )


def run_on_rows(
    spec: RunSpec,
    manifest: Manifest,
    folder: Path,
    ranks: Ranks,
    *,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, Any] | None:
    """Train on the rows of all ranks, score, and write everything but the report.

    The folder must be one that every rank sees. One that holds an interrupted run of the same
    specification is continued.

    Args:
        spec: from :func:`specification`.
        manifest: of the folder of rows.
        folder: a prepared run folder.
        ranks: who trains.
        report: called by rank 0 after each epoch.

    Returns:
        The content of ``metrics.json`` on rank 0, None on others.
    """
    return without_denormals(lambda _: _OneRun(spec, manifest, folder, ranks).work(report))


class _OneRun:
    """What a rank does from the first row to the last file."""

    def __init__(self, spec: RunSpec, manifest: Manifest, folder: Path, ranks: Ranks) -> None:
        self.spec, self.manifest, self.folder, self.ranks = spec, manifest, folder, ranks
        self.state_folder = folder / STATE_FOLDER
        settings = make_settings(find_model(MODEL).settings, spec.settings)
        self.replicas = [Replica(manifest.split, seed, settings) for seed in range(spec.seeds)]
        self.rows = Rows(manifest, manifest.shares(ranks.size)[ranks.rank])

    def work(self, report: Callable[[Progress], None] | None) -> dict[str, Any] | None:
        """Train, score and write; the metrics on rank 0."""
        started = time.perf_counter()
        if self.ranks.is_first:
            self.state_folder.mkdir(parents=True, exist_ok=True)
        self.ranks.wait()
        path = self.state_folder / STATE_FILE
        before = sum(read_tensors(path)[1]["seconds"].values()) if path.exists() else 0.0
        training = ParallelTraining(self.rows, self.replicas, self.ranks, self.spec.metric)
        state = fit(training, path=path, identity=self._identity(), report=report)
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
            metrics["nodes"]["train"] = [training.train_size]
            metrics["seconds"] = before + time.perf_counter() - started
            write_text(self.folder / METRICS_FILE, json.dumps(metrics, indent=1) + "\n")
            shutil.rmtree(self.state_folder)
        self.ranks.wait()
        return metrics

    def _identity(self) -> str:
        about = json.dumps([self.spec.as_dict(), self.manifest.identity], sort_keys=True)
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
        for number in self.rows.numbers:
            start, stop = self.manifest.ranges[number]
            own = slice(start - self.rows.first, stop - self.rows.first)
            found = training.logits(torch.arange(own.start, own.stop)).cpu()
            about = NodeTable(
                np.arange(start, stop),
                self.manifest.names([number]),
                roles(Split(split.train[own], split.val[own], split.test[own])),
                self.rows.y[own],
                self.manifest.class_names,
            )
            chances = calibrated(found, temperatures[:-1]).numpy()
            guesses = found.argmax(dim=-1).numpy()
            for place, replica in enumerate(self.replicas):
                table = about.with_predictions(replica, guesses[place], chances[place])
                pq.write_table(table, self._part(number, place))

    def _merge_parts(self) -> None:
        """One file of all predictions, seed by seed; one range at a time is in memory."""
        path = self.folder / PREDICTIONS_FILE
        unfinished = path.with_name(path.name + ".unfinished")
        with pq.ParquetWriter(unfinished, pq.read_schema(self._part(0, 0))) as writer:
            for place in range(len(self.replicas)):
                for number in range(len(self.manifest.ranges)):
                    writer.write_table(pq.read_table(self._part(number, place)))
        os.replace(unfinished, path)

    def _write_model(self, state: TrainState, temperatures: list[float]) -> None:
        manifest, every = self.manifest, range(len(self.manifest.ranges))
        done: dict[str, Parameters] = {}
        if (manifest.folder / ESTIMATOR_FILE).exists():
            estimator, _ = read_tensors(manifest.folder / ESTIMATOR_FILE)
            done["estimator"] = {
                name: value.expand(len(self.replicas), *value.shape[1:])
                for name, value in estimator.items()
            }
        labels = np.concatenate(
            [
                np.where(manifest.array(number, "train"), manifest.array(number, "y"), -1)
                for number in every
            ]
        )
        names = None
        if manifest.num_nodes <= NAMED_NODES and manifest.has_names:
            names = manifest.names(every)
        about = {
            "graph": manifest.name,
            "fingerprint": manifest.fingerprint,
            "num_nodes": manifest.num_nodes,
            "num_features": manifest.num_features,
            "class_names": list(manifest.class_names),
            "source": "",
            "preparation": None,
        }
        model = SavedModel(
            find_model(MODEL),
            self.replicas,
            done | {STAGE: {name: value.cpu() for name, value in state.done[STAGE].items()}},
            np.broadcast_to(labels, (len(self.replicas), len(labels))),
            about,
            names,
            temperatures[:-1],
            [temperatures[-1]] * len(self.replicas),
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
        """Everything ``metrics.json`` says; the one reading of the test labels."""
        spec, manifest, number = self.spec, self.manifest, len(self.replicas)
        tests = [test] * number
        score, accuracy = (
            Score.of(scores(logits, y, tests, name)) if test.any() else None
            for name in (spec.metric, "accuracy")
        )
        ensemble = {}
        if number > 1 and test.any():
            size = ensemble_size(1, number)
            own = Score.of(ensemble_scores(logits, y, tests, spec.metric, seeds=number, size=size))
            about = {"seeds": size, "test_score": list(own.values)}
            ensemble["ensemble"] = about | {
                "test_score_mean": own.mean,
                "test_score_std": own.std,
            }
        calibration = calibration_report(logits, temperatures[:-1], y, [val] * number, tests)
        return {
            "model": spec.model,
            "graph": manifest.name,
            "splits": list(spec.splits),
            "seeds": spec.seeds,
            "metric": spec.metric,
            "test_score_mean": score.mean if score else None,
            "test_score_std": score.std if score else None,
            "test_score": list(score.values) if score else [],
            "val_score": state.best_score[STAGE].tolist(),
            "test_accuracy_mean": accuracy.mean if accuracy else None,
            "test_accuracy_std": accuracy.std if accuracy else None,
            "label_estimator": None,
            "calibration": calibration | {"mean_temperature": [temperatures[-1]]},
            **ensemble,
            "seconds_statistics": 0.0,
            "seconds_training": state.seconds["training"],
            "epochs": state.best_epoch[STAGE].tolist(),
            "epochs_trained": {STAGE: int(state.history[STAGE]["loss"].shape[0])},
            "peak_memory_mb": peak_memory_mb(spec.device),
            "version": __version__,
            "config": spec.as_dict(),
            "hardware": hardware(spec.device) | {"ranks": self.ranks.size},
            "graph_summary": {
                "num_nodes": manifest.num_nodes,
                "num_features": manifest.num_features,
                "num_classes": len(manifest.class_names),
                "class_names": list(manifest.class_names),
            },
            "nodes": {"val": [int(val.sum())], "test": [int(test.sum())]},
            "warnings": [],
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
