"""An ensemble as a run: its members' weights, and the files of its run folder."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.files import write_text
from hpgmn.base.settings import to_plain
from hpgmn.evaluation.scores import scores
from hpgmn.evaluation.selection import select_weights
from hpgmn.graph import Graph, Split
from hpgmn.graph.homophily import node_homophily
from hpgmn.runs.fit import FittedRun, TrainedMember
from hpgmn.runs.folder import HISTORY_FILE, PREDICTIONS_FILE, finish, write_config
from hpgmn.runs.outputs import (
    TrainingResult,
    graph_summary,
    history_lines,
    run_metrics,
    write_predictions,
)
from hpgmn.runs.spec import RunSpec
from hpgmn.training.checks import class_number
from hpgmn.training.ensemble import (
    MEMBERS_FOLDER,
    SavedEnsemble,
    Weights,
    member_folder,
    mix_logits,
)
from hpgmn.training.replicas import Fitted


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
        chosen = select_weights(torch.stack(logits), graph.y[split.val])
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


def ensemble_logits(spec: RunSpec, trained: Sequence[TrainedMember], weights: Weights) -> Tensor:
    """Return the logits (S, N, C) of the ensemble, one row for each split."""
    return torch.stack(
        [
            mix_logits(
                [
                    (weights[one.name][place], one.calibrated_logits(place))
                    for one, place in _candidates(trained, number)
                    if weights[one.name][place] > 0
                ]
            )
            for number in spec.splits
        ]
    )


def write_ensemble(
    spec: RunSpec,
    graph: Graph,
    folder: Path,
    trained: Sequence[TrainedMember],
    weights: Weights,
    splits: Sequence[Split],
    *,
    refitted: Sequence[TrainedMember] | None = None,
    made: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> FittedRun:
    """Combine trained members, score them once and write everything but the report.

    Args:
        folder: prepared; ``members/NAME`` may hold some members already.
        splits: one for each of the specification's.
        refitted: the members as they are kept, if they were trained again after the selection;
            weights, temperatures and validation scores are those of ``trained``.
        made: what the run is made with, for the configs of members.
        extra: more entries of ``metrics.json``.
    """
    final = refitted or trained
    ensemble = SavedEnsemble.of({one.name: one.model for one in final}, weights, spec.splits)
    selected = ensemble_logits(spec, trained, weights)
    if spec.calibrate:
        ensemble.calibrate(selected, graph.y, [split.val for split in splits])
    logits = selected if refitted is None else ensemble_logits(spec, final, weights)
    ensemble.remember(graph, spec.device, logits)
    kept = {member_folder(one.name): one for one in final if one.name in ensemble.members}
    for name, one in kept.items():
        target = folder / MEMBERS_FOLDER / name
        target.mkdir(parents=True, exist_ok=True)
        write_config(target, one.spec, made)
    ensemble.write(folder)
    for path in (folder / MEMBERS_FOLDER).iterdir():
        if path.name not in kept:
            shutil.rmtree(path)
    lines = [
        line
        for one in kept.values()
        for line in history_lines(one.fitted.replicas, one.fitted.history, member=one.name)
    ]
    write_text(folder / HISTORY_FILE, "\n".join(lines) + "\n")
    val_score, rows = _describe_members(spec, graph, trained, weights, splits)
    shown = ensemble.choose([0]).explained()[0]
    [history] = [one.fitted.history for one in kept.values() if one.name == shown]
    fitted = Fitted(
        replicas=ensemble.replicas,
        done={},
        logits=logits,
        val_score=torch.tensor(val_score),
        val_loss=torch.full((len(splits),), math.nan),
        best_epoch={},
        history=history,
        seconds={
            key: sum(one.fitted.seconds.get(key, 0.0) for one in final)
            for key in ("statistics", "training")
        },
    )
    write_predictions(folder / PREDICTIONS_FILE, graph, fitted, splits, ensemble.temperatures)
    metrics = _metrics(spec, graph, fitted, splits, ensemble)
    metrics |= {"explained_member": shown, "members": rows, **(extra or {})}
    finish(folder, metrics)
    return FittedRun(metrics, ensemble, fitted, list(splits), spec)


def _metrics(
    spec: RunSpec, graph: Graph, fitted: Fitted, splits: Sequence[Split], ensemble: SavedEnsemble
) -> dict[str, Any]:
    """Return the content of ``metrics.json``: one run for each split, scored once."""
    homophily = node_homophily(graph)
    result = TrainingResult(
        logits=fitted.logits,
        y=graph.y,
        val=[split.val for split in splits],
        test=[split.test for split in splits],
        temperatures=ensemble.temperatures,
        mean_temperatures=ensemble.temperatures,
        val_score=fitted.val_score,
        best_epoch=torch.zeros(0),
        history={},
        seconds=fitted.seconds,
    )
    summary = graph_summary(graph, None if math.isnan(homophily) else homophily)
    metrics = run_metrics(replace(spec, seeds=1), result, graph.name, summary)
    return metrics | {"config": spec.as_dict()}


def _describe_members(
    spec: RunSpec,
    graph: Graph,
    trained: Sequence[TrainedMember],
    weights: Weights,
    splits: Sequence[Split],
) -> tuple[list[float], list[dict[str, Any]]]:
    """Return the validation score of each split, and every trained member, the heaviest first.

    The contribution of a member is the ensemble's validation score minus that without the member,
    averaged over the splits where others have weight; None without such a split.
    """
    val_score: list[float] = []
    gains: dict[str, list[float]] = {one.name: [] for one in trained}
    for number, split in zip(spec.splits, splits, strict=True):
        nodes = torch.from_numpy(np.flatnonzero(split.val))
        parts = [
            (one.name, weights[one.name][place], one.calibrated_logits(place)[nodes])
            for one, place in _candidates(trained, number)
            if weights[one.name][place] > 0
        ]
        reached = _score(spec, graph, split, [(weight, row) for _, weight, row in parts])
        val_score.append(reached)
        for name, gain in gains.items():
            others = [(weight, row) for other, weight, row in parts if other != name]
            if others:
                is_used = len(others) < len(parts)
                gain.append(reached - _score(spec, graph, split, others) if is_used else 0.0)
    rows = [
        {
            "name": one.name,
            "model": one.member.model,
            "settings": {key: to_plain(value) for key, value in one.member.settings.items()},
            "weight": sum(weights[one.name]) / len(splits),
            "val_score": float(one.fitted.val_score.mean()),
            "contribution": float(np.mean(gains[one.name])) if gains[one.name] else None,
            "seconds": one.seconds,
        }
        for one in trained
    ]
    return val_score, sorted(rows, key=lambda row: -row["weight"])


def _score(
    spec: RunSpec, graph: Graph, split: Split, parts: Sequence[tuple[float, Tensor]]
) -> float:
    """Score weights and logits of the validation nodes of a split; weights need not add up."""
    total, positive = (
        sum(weight for weight, _ in parts),
        class_number(spec.positive, graph.class_names),
    )
    mixed = mix_logits([(weight / total, logits) for weight, logits in parts])[None]
    labels = graph.y[split.val]
    return scores(mixed, labels, [np.ones(labels.size, bool)], spec.metric, positive)[0]
