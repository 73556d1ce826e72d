"""Train a model without gradients, such as boosted trees, in rounds that count as epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hpgmn.base.machine import one_thread
from hpgmn.base.metrics import Metric
from hpgmn.models.stage import ModelEntry, TrainingStage, TrainingTask
from hpgmn.training.state import (
    HISTORY,
    TrainState,
    count_seconds,
    drop_replicas,
    improving_replicas,
    start_stage,
    update_best,
)


def run_rounds(
    task: TrainingTask,
    entry: ModelEntry,
    state: TrainState,
    metric: Metric,
    watch: Callable[[TrainState, TrainingStage], None] | None = None,
    should_finish: Callable[[], bool] = lambda: False,
    fixed: Tensor | None = None,
) -> TrainingStage:
    """Train until no replica improves; return the stage, whose best parameters are in the state.

    A resumed training begins again: rounds are quick, and their results do not differ.

    Args:
        fixed: (R,) the round that each replica keeps, whatever the validation labels are.
    """
    assert entry.rounds is not None
    started, replicas = time.perf_counter(), len(task.replicas)
    rounds, stage = entry.rounds(task), entry.stages["main"](task, {})
    if fixed is not None:
        stage = replace(stage, epochs=int(fixed.max()), patience=0)
    objectives = [task.subset([number]).objective_on("cpu") for number in range(replicas)]
    state.seconds["statistics"] += time.perf_counter() - started
    numbers = {"round": torch.zeros(replicas, dtype=torch.int64)}  # a state needs parameters
    current = start_stage(stage.name, numbers, ({}, {}), replicas, torch.device("cpu"))
    state.current, last = current, time.perf_counter()
    while current.epoch < stage.epochs:
        if current.epoch:
            drop_replicas(current, improving_replicas(current, stage, fixed))
            if not current.live:
                break
        row = torch.full((len(HISTORY), replicas), math.nan)
        with one_thread():
            for number in current.live:
                loss, logits, labels = rounds.update(number)
                valid = torch.ones_like(labels, dtype=torch.bool)
                objective = objectives[number]
                val_loss = objective.validation_loss(logits, labels, valid)
                score = metric(objective.values(logits), labels, valid)
                row[:, number] = torch.cat([loss, val_loss, score])
        current.epoch += 1
        live = torch.tensor(current.live)
        loss, val_loss, score = row[:, live]
        if fixed is not None:  # a score in that round alone
            val_loss, score = loss, torch.where(fixed[live] == current.epoch, 0.0, math.nan)
            row[1:] = math.nan
        update_best(current, live, current.epoch, score, val_loss, stage.patience)
        for key, values_of_replicas in zip(HISTORY, row, strict=True):
            current.history[key].append(values_of_replicas)
        last = count_seconds(state, stage.name, last)
        if watch is not None:
            watch(state, stage)
            last = count_seconds(state, stage.name, last)
        if fixed is None and should_finish():
            break
    current.best = rounds.parameters([max(number, 1) for number in current.best_epoch.tolist()])
    count_seconds(state, stage.name, last)
    return stage
