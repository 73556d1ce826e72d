"""An ensemble as a run: its members' weights, and the files of its run folder."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.files import write_text
from hpgmn.base.metrics import log_loss
from hpgmn.base.settings import to_plain
from hpgmn.evaluation.scores import scores
from hpgmn.evaluation.selection import select_weights
from hpgmn.graph import Array, Graph, Split
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
        candidates = [
            (one, place)
            for one in trained
            for place, replica in enumerate(one.fitted.replicas)
            if replica.split == number
        ]
        nodes = torch.from_numpy(np.flatnonzero(split.val))
        logits = [one.calibrated_logits(place)[nodes] for one, place in candidates]
        chosen = select_weights(torch.stack(logits), graph.y[split.val])
        for (one, place), weight in zip(candidates, chosen.tolist(), strict=True):
            weights[one.name][place] = weight
    return weights


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
    warnings: Sequence[str] = (),
    seconds: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> FittedRun:
    """Combine trained members, score them once and write everything but the report.

    Args:
        folder: prepared; ``members/NAME`` may hold some members already.
        splits: one for each of the specification's.
        refitted: the members as they are kept, if they were trained again after the selection;
            weights, temperatures and validation scores are those of ``trained``.
        made: what the run is made with, for the configs of members.
        seconds: of the whole training; None for the sum over members.
        extra: more entries of ``metrics.json``.
    """
    started = time.perf_counter()
    final = refitted or trained
    models = {one.name: one.model for one in final}
    ensemble = SavedEnsemble.of(models, weights, spec.splits)
    selected = ensemble_logits(spec, trained, weights)
    if spec.calibrate:
        ensemble.calibrate(selected, graph.y, [split.val for split in splits])
    logits = selected if refitted is None else ensemble_logits(spec, final, weights)
    ensemble._latest = (graph, torch.device(spec.device), logits)
    kept = [one for one in final if one.name in ensemble.members]
    for one in kept:
        target = folder / MEMBERS_FOLDER / member_folder(one.name)
        target.mkdir(parents=True, exist_ok=True)
        write_config(target, one.spec, made)
    ensemble.write(folder)
    names = {member_folder(one.name) for one in kept}
    for path in (folder / MEMBERS_FOLDER).iterdir():
        if path.name not in names:
            shutil.rmtree(path)
    lines = [
        line
        for one in kept
        for line in history_lines(one.fitted.replicas, one.fitted.history, member=one.name)
    ]
    write_text(folder / HISTORY_FILE, "\n".join(lines) + "\n")
    shown = ensemble.choose([0]).explained()[0]
    fitted = _fitted(spec, graph, ensemble, selected, trained, splits, shown)
    fitted.logits = logits
    write_predictions(folder / PREDICTIONS_FILE, graph, fitted, splits, ensemble.temperatures)
    metrics = _metrics(spec, graph, fitted, splits, ensemble)
    metrics["explained_member"] = shown
    metrics["members"] = _rows(spec, graph, trained, weights, splits, fitted)
    metrics["nodes"] = {
        part: [int(getattr(split, part).sum()) for split in splits]
        for part in ("train", "val", "test")
    }
    metrics["warnings"] = list(dict.fromkeys(warnings))
    spent = sum(one.seconds for one in trained) if seconds is None else seconds
    metrics["seconds"] = spent + time.perf_counter() - started
    metrics |= extra or {}
    finish(folder, metrics)
    return FittedRun(metrics, ensemble, fitted, list(splits), spec)


def ensemble_logits(
    spec: RunSpec, trained: Sequence[TrainedMember], weights: Weights, without: str | None = None
) -> Tensor:
    """Return the logits (S, N, C) of the ensemble; NaN for a split without other members.

    Args:
        without: a member that is left out; the weights of the others then add up to one.
    """
    mixed = []
    for number in spec.splits:
        parts = [
            (weight, one.calibrated_logits(place))
            for one in trained
            for place, weight in enumerate(weights[one.name])
            if weight > 0 and one.fitted.replicas[place].split == number and one.name != without
        ]
        total = sum(weight for weight, _ in parts)
        if parts:
            mixed.append(mix_logits([(weight / total, logits) for weight, logits in parts]))
        else:
            mixed.append(torch.full_like(trained[0].fitted.logits[0], math.nan))
    return torch.stack(mixed)


def _fitted(
    spec: RunSpec,
    graph: Graph,
    ensemble: SavedEnsemble,
    logits: Tensor,
    trained: Sequence[TrainedMember],
    splits: Sequence[Split],
    shown: str,
) -> Fitted:
    """Return the ensemble as a training result, with the learning curves of one member."""
    val = [split.val for split in splits]
    score, loss = (_val_scores(spec, graph, logits, val), _val_losses(logits, graph.y, val))
    [history] = [one.fitted.history for one in trained if one.name == shown]
    seconds = {
        key: sum(one.fitted.seconds.get(key, 0.0) for one in trained)
        for key in ("statistics", "training")
    }
    return Fitted(
        replicas=ensemble.replicas,
        done={},
        logits=logits,
        val_score=torch.tensor(score),
        val_loss=torch.tensor(loss),
        best_epoch={},
        history=history,
        seconds=seconds,
    )


def _val_scores(spec: RunSpec, graph: Graph, logits: Tensor, val: Sequence[Array]) -> list[float]:
    positive = class_number(spec.positive, graph.class_names)
    return scores(logits, graph.y, val, spec.metric, positive)


def _val_losses(logits: Tensor, y: Array, val: Sequence[Array]) -> list[float]:
    return [
        log_loss(row[torch.from_numpy(mask)].double().log_softmax(dim=-1).numpy(), y[mask])
        for row, mask in zip(logits, val, strict=True)
    ]


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


def _rows(
    spec: RunSpec,
    graph: Graph,
    trained: Sequence[TrainedMember],
    weights: Weights,
    splits: Sequence[Split],
    fitted: Fitted,
) -> list[dict[str, Any]]:
    """Return every trained member with its weight and contribution, the heaviest first.

    The contribution is the validation score of the ensemble minus that without the member, over
    the splits where others have weight; None without such a split.
    """
    val, rows = [split.val for split in splits], []
    for one in trained:
        weight = sum(weights[one.name]) / len(splits)
        contribution: float | None = 0.0
        if weight:
            others = ensemble_logits(spec, trained, weights, without=one.name)
            known = [at for at, row in enumerate(others) if not row.isnan().any()]
            masks = [val[at] for at in known]
            lost = _val_scores(spec, graph, others[known], masks)
            gains = [
                float(fitted.val_score[at]) - score for at, score in zip(known, lost, strict=True)
            ]
            contribution = float(np.mean(gains)) if gains else None
        rows.append(
            {
                "name": one.name,
                "model": one.member.model,
                "settings": {key: to_plain(value) for key, value in one.member.settings.items()},
                "weight": weight,
                "val_score": float(one.fitted.val_score.mean()),
                "contribution": contribution,
                "seconds": one.seconds,
            }
        )
    return sorted(rows, key=lambda row: -row["weight"])
