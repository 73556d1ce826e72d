"""An ensemble as a run: its members' weights, and the files of its run folder."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.files import write_text
from hpgmn.base.metrics import BALANCED_METRICS, plain_score
from hpgmn.base.settings import read_yaml, to_plain
from hpgmn.evaluation.scores import scores
from hpgmn.evaluation.selection import select_weights
from hpgmn.graph import Graph, Split
from hpgmn.runs.fit import FittedRun, TrainedMember, Training, fitted_metrics
from hpgmn.runs.folder import HISTORY_FILE, PREDICTIONS_FILE, finish, write_config
from hpgmn.runs.outputs import history_lines, write_predictions
from hpgmn.runs.spec import CONFIG_FILE, RunSpec
from hpgmn.training.checks import class_number
from hpgmn.training.ensemble import (
    MEMBERS_FOLDER,
    SavedEnsemble,
    Weights,
    member_folder,
    mix_logits,
)
from hpgmn.training.replicas import Fitted

logger = logging.getLogger(__name__)


def ensemble_weights(
    spec: RunSpec, graph: Graph, trained: Sequence[TrainedMember], splits: Sequence[Split]
) -> dict[str, list[float]]:
    """Select the weights of members and seeds, split by split, on validation nodes alone.

    Args:
        splits: one for each of the specification's.

    Returns:
        For each member the weight of each of its replicas.
    """
    weights = {one.name: [0.0] * len(one.fitted.replicas) for one in trained}
    for number, split in zip(spec.splits, splits, strict=True):
        candidates = _candidates(trained, number)
        nodes = torch.from_numpy(np.flatnonzero(split.val))
        logits = [one.calibrated_logits(place)[nodes] for one, place in candidates]
        chosen = select_weights(
            torch.stack(logits), graph.y[split.val], balanced=spec.metric in BALANCED_METRICS
        )
        for (one, place), weight in zip(candidates, chosen.tolist(), strict=True):
            weights[one.name][place] = weight
    return weights


def _candidates(trained: Sequence[TrainedMember], split: int) -> list[tuple[TrainedMember, int]]:
    """Return members and places of the replicas of a split."""
    return [
        (one, place)
        for one in trained
        for place, replica in enumerate(one.fitted.replicas)
        if replica.split == split
    ]


def _used(
    trained: Sequence[TrainedMember], weights: Weights, split: int
) -> list[tuple[str, float, Tensor]]:
    """Return the name, weight and logits (N, C) of each replica with weight in a split."""
    return [
        (one.name, weights[one.name][place], one.calibrated_logits(place))
        for one, place in _candidates(trained, split)
        if weights[one.name][place] > 0
    ]


def ensemble_logits(spec: RunSpec, trained: Sequence[TrainedMember], weights: Weights) -> Tensor:
    """Return the logits (S, N, C) of the ensemble, one row for each split."""
    return torch.stack(
        [
            mix_logits([(weight, logits) for _, weight, logits in _used(trained, weights, number)])
            for number in spec.splits
        ]
    )


def write_ensemble(
    training: Training,
    trained: Sequence[TrainedMember],
    weights: Weights,
    refitted: Sequence[TrainedMember] | None = None,
    **extra: Any,
) -> FittedRun:
    """Combine trained members, score them once and write everything but the report.

    Args:
        refitted: the members as they are kept, if they were trained again after the selection;
            weights, calibration and validation scores are those of ``trained``.
        **extra: further entries of ``metrics.json``.
    """
    spec, graph, folder, splits = training.spec, training.graph, training.folder, training.splits
    final = refitted or trained
    for one in final:  # as in their logits below
        one.model.calibration = one.mixed_calibration
    ensemble = SavedEnsemble.of({one.name: one.model for one in final}, weights, spec.splits)
    selected = ensemble_logits(spec, trained, weights)
    val = [split.val for split in splits]
    is_weighted = any(
        replica.settings.class_weights != "none"
        for model in ensemble.members.values()
        for replica in model.replicas
    )
    calibrator = spec.calibrator(graph.class_names, is_weighted)
    ensemble.calibration = calibrator.fit(selected, graph.y, val, logger.warning)
    logits = selected if refitted is None else ensemble_logits(spec, final, weights)
    if graph.full is graph:
        ensemble.remember(graph, spec.device, logits)
    shutil.rmtree(folder / MEMBERS_FOLDER, ignore_errors=True)  # of a killed process
    kept = [one for one in final if one.name in ensemble.members]
    ensemble.write(folder)
    made = read_yaml(folder / CONFIG_FILE).get("made_with")
    for one in kept:
        write_config(folder / MEMBERS_FOLDER / member_folder(one.name), one.spec, made)
    lines = [
        line
        for one in kept
        for line in history_lines(one.fitted.replicas, one.fitted.history, member=one.name)
    ]
    write_text(folder / HISTORY_FILE, "\n".join(lines) + "\n")
    val_score, rows = _describe_members(training, trained, weights)
    fitted = Fitted(
        replicas=ensemble.replicas,
        done={},
        logits=logits,
        val_score=torch.tensor(val_score),
        val_loss=torch.full((len(splits),), math.nan),
        best_epoch={"main": torch.zeros(0)},
        history={},
        seconds={
            key: sum(one.fitted.seconds.get(key, 0.0) for one in final)
            for key in ("statistics", "training")
        },
    )
    maps = ensemble.calibration
    write_predictions(folder / PREDICTIONS_FILE, graph, fitted, splits, maps)
    metrics = fitted_metrics(*(replace(spec, seeds=1), graph, fitted, splits, maps, maps))
    shown = ensemble.choose([0]).explained()[0]
    metrics |= {"config": spec.as_dict(), "explained_member": shown, "members": rows}
    metrics |= training.common_metrics() | extra
    finish(folder, metrics)
    return FittedRun(metrics, ensemble, fitted, splits, spec)


def _describe_members(
    training: Training, trained: Sequence[TrainedMember], weights: Weights
) -> tuple[list[float], list[dict[str, Any]]]:
    """Return the validation score of each split, and every trained member, the heaviest first.

    The contribution of a member is the ensemble's validation score minus that without the member,
    averaged over the splits where others have weight; None without such a split.
    """
    spec, graph = training.spec, training.graph
    positive = class_number(spec.positive, graph.class_names)
    val_score: list[float] = []
    gains: dict[str, list[float]] = {one.name: [] for one in trained}

    def score(split: Split, parts: Sequence[tuple[str, float, Tensor]]) -> float:
        nodes, labels = torch.from_numpy(np.flatnonzero(split.val)), graph.y[split.val]
        total = sum(weight for _, weight, _ in parts)
        mixed = mix_logits([(weight / total, logits[nodes]) for _, weight, logits in parts])
        masks = [np.ones(labels.size, bool)]
        value = scores(mixed[None], labels, masks, spec.metric, positive)[0]
        return plain_score(spec.metric, value)  # the sign that selects

    for number, split in zip(spec.splits, training.splits, strict=True):
        used = _used(trained, weights, number)
        val_score.append(score(split, used))
        for name, gain in gains.items():
            others = [part for part in used if part[0] != name]
            if others:
                is_used = len(others) < len(used)
                gain.append(val_score[-1] - score(split, others) if is_used else 0.0)
    rows = [
        {
            "name": one.name,
            "model": one.member.model,
            "settings": {key: to_plain(value) for key, value in one.member.settings.items()},
            "weight": sum(weights[one.name]) / len(training.splits),
            "val_score": plain_score(spec.metric, float(one.fitted.val_score.mean())),
            "contribution": float(np.mean(gains[one.name])) if gains[one.name] else None,
            "seconds": one.seconds,
        }
        for one in trained
    ]
    return val_score, sorted(rows, key=lambda row: -row["weight"])
