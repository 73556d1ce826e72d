"""Train many replicas on one graph, as many at once as memory allows."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import (
    RUN_FORMAT,
    check_format,
    damaged_file,
    verify_run_checksum,
    with_checksum,
    write_text,
)
from hpgmn.base.machine import free_gpu_bytes
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import FitSettings, make_settings, per_replica_names, settings_dict
from hpgmn.base.tasks import is_known
from hpgmn.graph import Array, Graph
from hpgmn.models import is_custom
from hpgmn.models.memory import NODE_PENALTIES
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    Replica,
    TrainingStage,
    TrainingTask,
    logits,
    make_task,
)
from hpgmn.statistics import LocalStatistics
from hpgmn.training.ranks import Ranks
from hpgmn.training.state import HISTORY, TrainState, read_state, require_identity, write_state
from hpgmn.training.trainer import run_training_thread, train

SAVE_SECONDS = 20.0
"""A running training saves its state this often."""

REPORT_SECONDS = 0.1
"""Progress on a GPU is reported this often: each report waits for the GPU."""

RUNGS = (30, 100, 300)
"""Epochs that are always reported: members of a pool are compared there."""

CPU_BATCH_BYTES = 1 * 2**30
"""Memory shared by the replicas trained together on a CPU: more would not be faster."""


@dataclass
class Fitted:
    """The result of a training, replica by replica.

    Attributes:
        done: the best parameters of each stage, each (R, …), in host memory; empty if the
            replicas' shapes differ, as in a search.
        logits: (R, N, C) of the training graph.
        val_score: (R,) at the best epoch of the last stage.
        val_loss: (R,) there.
        best_epoch: (R,) for each stage.
        history: for each stage and each recorded number (epochs, R).
        seconds: time of statistics, of training, and of training each stage.
        statistics: those of the training graph, for predictions and explanations.
    """

    replicas: list[Replica]
    done: dict[str, Parameters]
    logits: Tensor
    val_score: Tensor
    val_loss: Tensor
    best_epoch: dict[str, Tensor]
    history: dict[str, dict[str, Tensor]]
    seconds: dict[str, float]
    statistics: LocalStatistics | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Progress:
    """The progress of a training.

    While a slow statistic is computed, the stage is its name, epochs are its rows, and loss and
    score are NaN. ``seconds_statistics`` is the time spent so far on preparing stages.

    Attributes:
        loss: the mean training loss of the replicas in this epoch.
        val_score: the mean of their best validation scores so far.
        val_loss: the mean of their validation losses in this epoch.
        epoch_score: the mean of their validation scores in this epoch.
        member: the member of a pool that is trained; empty if there is one model.
        note: the state of its pool.
    """

    batch: int
    batches: int
    stage: str
    epoch: int
    epochs: int
    loss: float
    val_score: float
    seconds_statistics: float = 0.0
    val_loss: float = math.nan
    epoch_score: float = math.nan
    member: str = ""
    note: str = ""

    @property
    def is_epoch(self) -> bool:
        """Whether this is about an epoch, not about the rows of a slow statistic."""
        return not math.isnan(self.loss)


def replica_bytes(graph: Graph, entry: ModelEntry, settings: Any) -> int:
    """Estimate the memory of one replica: parameters with moments, and activations."""
    parameters, per_node = entry.floats(graph, settings)
    if getattr(settings, "consistency_weight", 0):
        per_node *= settings.consistency_passes
    return int(4 * (6 * parameters + per_node * graph.num_nodes))


def replicas_at_once(
    graph: Graph, entry: ModelEntry, settings: Any, device: torch.device, memory_share: float = 1.0
) -> int:
    """Return how many replicas to train together, given a share of the memory."""
    if device.type == "cuda":
        budget = int(free_gpu_bytes(device) * 0.6 * memory_share)
    else:  # total, not free memory: the group size may change last bits
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        budget = min(CPU_BATCH_BYTES, int(memory // 4 * memory_share))
    return max(1, budget // replica_bytes(graph, entry, settings))


def valid_settings(kind: type[FitSettings], values: Mapping[str, Any]) -> Any | None:
    """Return settings, or None where values are invalid, which training them will report."""
    try:
        return make_settings(kind, values)
    except HPGMNError:
        return None


def group_by_shape(
    settings: Sequence[Any], extra: Sequence[Hashable] | None = None
) -> list[list[int]]:
    """Group positions of settings whose replicas can be trained as one, in order of the first.

    Args:
        settings: one object each; None (:func:`valid_settings`) is a group of its own.
        extra: what else must agree, such as the model's name.
    """
    groups: dict[Hashable, list[int]] = {}
    for position, values in enumerate(settings):
        shape = position if values is None else _shape_of(values)
        groups.setdefault((shape, None if extra is None else extra[position]), []).append(position)
    return list(groups.values())


def _shape_of(settings: Any) -> str:
    """Return what must agree between replicas that are trained as one."""
    free = per_replica_names(type(settings))
    shape = {key: value for key, value in settings_dict(settings).items() if key not in free}
    if "neighbors" in free:
        shape["both"] = settings.neighbors == "both"
    if "consistency_weight" in free:
        shape["consistent"] = settings.consistency_weight > 0
    shape["reads all nodes"] = any(  # decides where dropout falls
        getattr(settings, f"{name}_weight", 0) for name in NODE_PENALTIES
    )
    return repr(sorted(shape.items()))


def replica_groups(
    graph: Graph,
    entry: ModelEntry,
    replicas: Sequence[Replica],
    device: torch.device,
    train_sizes: Sequence[int],
    memory_share: float = 1.0,
) -> list[list[int]]:
    """Return positions of the replicas trained together: equal shapes, and no more than fit.

    Replicas that read batches of nodes also have equally many train nodes, and so as many steps.
    """
    settings = [replica.settings for replica in replicas]
    steps = [
        size if getattr(values, "batch_size", 0) else None
        for values, size in zip(settings, train_sizes, strict=True)
    ]
    groups = []
    for positions in group_by_shape(settings, steps):
        most = replicas_at_once(graph, entry, settings[positions[0]], device, memory_share)
        number = -(-len(positions) // most)  # groups of nearly equal size
        size = -(-len(positions) // number)
        groups += [positions[first : first + size] for first in range(0, len(positions), size)]
    return groups


def fit_replicas(
    graph: Graph,
    entry: ModelEntry,
    replicas: Sequence[Replica],
    masks: Sequence[tuple[Array, Array]],
    *,
    device: torch.device | str = "cpu",
    metric: str = "accuracy",
    positive: int = 1,
    folder: Path | None = None,
    identity: str = "",
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    should_finish: Callable[[], bool] = lambda: False,
    epochs: Mapping[str, Tensor] | None = None,
    memory_share: float = 1.0,
) -> Fitted:
    """Train replicas in groups of equal shape.

    Ctrl-C saves the state after the epoch and raises KeyboardInterrupt.

    Args:
        masks: train and validation mask of each replica.
        metric: selects epochs.
        positive: the positive class of the metric, see :func:`hpgmn.base.metrics.metric`.
        folder: where states are saved, and read if there are any; None saves nothing.
        identity: identifies this training; a state of another one is refused.
        report: called after each epoch.
        should_stop: called after each epoch; True acts like Ctrl-C.
        should_finish: called after each epoch; True ends every stage with its best epochs so far,
            see :func:`~hpgmn.training.trainer.train`.
        epochs: for some stages (R,) the epoch whose parameters each replica keeps; validation
            then selects nothing, and its scores are NaN.
        memory_share: share of the memory to use, which limits the replicas trained together.
    """
    torch_device = torch.device(device)

    def work(interrupted: Event) -> Fitted:
        def stop() -> bool:
            return interrupted.is_set() or should_stop()

        with torch.cuda.device(torch_device) if torch_device.type == "cuda" else nullcontext():
            task = make_task(graph, replicas, masks, torch_device)
            sizes = is_known(task.train_labels).sum(axis=1).tolist()
            plan = _plan(
                folder,
                identity,
                len(replicas),
                lambda: replica_groups(graph, entry, replicas, torch_device, sizes, memory_share),
            )
            train_group = partial(
                train, entry=entry, metric=metric, positive=positive, should_finish=should_finish
            )
            return _fit(
                task, entry, plan, train_group, epochs or {}, folder, identity, report, stop
            )

    try:
        return run_training_thread(work)
    except (MemoryError, torch.OutOfMemoryError):
        raise HPGMNError(
            f"Out of memory while training {entry.name} on '{graph.name}'.",
            Remedy("Choose a smaller network", setting="hidden_dim")
            | Remedy("Train in batches if the model can", setting="batch_size")
            | "Choose a model that reads neighbours only",
        ) from None
    except RuntimeError as error:
        if not is_custom(entry.name):
            raise
        raise HPGMNError(f"Training {entry.name} failed: {error}") from error


def _fit(
    task: TrainingTask,
    entry: ModelEntry,
    plan: list[list[int]],
    train_group: Callable[..., TrainState],
    epochs: Mapping[str, Tensor],
    folder: Path | None,
    identity: str,
    report: Callable[[Progress], None] | None,
    should_stop: Callable[[], bool],
) -> Fitted:
    results: list[tuple[list[int], TrainState, Tensor]] = []
    for number, positions in enumerate(plan):
        path = None if folder is None else folder / f"state-{number:03d}.safetensors"
        part = task.subset(positions)
        state = (
            read_state(path, identity, task.device) if path is not None and path.exists() else None
        )
        monitor = EpochMonitor(path, identity, (number, len(plan)), report, should_stop)
        with task.statistics.reporting(monitor.report_rows):
            fixed = {stage: values[positions] for stage, values in epochs.items()}
            state = train_group(part, state=state, watch=monitor, epochs=fixed)
            if path is not None:
                write_state(path, state, identity)
            results.append((positions, state, logits(part, entry, state.done).cpu()))
    fitted = _join(list(task.replicas), results)
    fitted.statistics = task.statistics
    return fitted


def _plan(
    folder: Path | None, identity: str, replicas: int, make: Callable[[], list[list[int]]]
) -> list[list[int]]:
    """Return the groups of this training; a resumed one keeps its groups."""
    if folder is None:
        return make()
    path = folder / "plan.json"
    plan: list[list[int]]
    if not path.exists():
        plan = make()
        content = {"format": RUN_FORMAT, "identity": identity, "plan": plan}
        write_text(path, json.dumps(with_checksum(content)))
        return plan
    try:
        stored = read_json(path)
        check_format(path, stored.get("format"), RUN_FORMAT)
        stored = verify_run_checksum(stored)
        require_identity(stored["identity"], identity, folder)
        plan = stored["plan"]
        if not all(plan) or sorted(chain(*plan)) != list(range(replicas)):
            raise ValueError(f"it does not name each of {replicas} runs once")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise damaged_file(path, f"is damaged or not an hpgmn file ({error})") from None
    return plan


def _mean_score(scores: Tensor) -> float:
    """Return the mean of the best scores so far; NaN where epochs are fixed and none counts."""
    mean = float(scores.mean())
    return mean if math.isfinite(mean) else math.nan


class EpochMonitor:
    """Reports progress, saves the state now and then, and stops the training on request.

    Args:
        path: the state file; None saves nothing.
        group: the number of this group of replicas, and how many groups there are.
        report: called after each epoch and some rows of a slow statistic.
        should_stop: called likewise; True saves the state and raises KeyboardInterrupt.
        ranks: those that train together; rank 0 writes and reports, all of them stop.
    """

    def __init__(
        self,
        path: Path | None,
        identity: str,
        group: tuple[int, int],
        report: Callable[[Progress], None] | None,
        should_stop: Callable[[], bool],
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.path = path if self.ranks.is_first else None
        self.report = report if self.ranks.is_first else None
        self.identity, self.group, self.should_stop = identity, group, should_stop
        self.saved = time.monotonic()
        self.reported = -math.inf
        self.state: TrainState | None = None

    def report_rows(self, statistic: str, rows: int, total: int) -> None:
        """Report the progress of a statistic."""
        if self.report is not None:
            self.report(Progress(*self.group, statistic, rows, total, math.nan, math.nan))
        if self.should_stop():
            if self.path is not None and self.state is not None:
                write_state(self.path, self.state, self.identity)
            raise KeyboardInterrupt

    def __call__(self, state: TrainState, stage: TrainingStage) -> None:
        """Act after an epoch."""
        current = state.current
        assert current is not None
        self.state = state
        now, is_last = time.monotonic(), current.epoch == stage.epochs
        is_due = not current.best_score.is_cuda or now - self.reported > REPORT_SECONDS
        is_due = is_due or current.epoch in RUNGS
        if self.report is not None and (is_due or is_last):
            self.reported = now
            latest = torch.stack([current.history[name][-1] for name in HISTORY])
            loss, val_loss, score = latest.nanmean(dim=1).tolist()
            self.report(
                Progress(
                    *self.group,
                    stage=stage.name,
                    epoch=current.epoch,
                    epochs=stage.epochs,
                    loss=loss,
                    val_score=_mean_score(current.best_score),
                    seconds_statistics=state.seconds["statistics"],
                    val_loss=val_loss,
                    epoch_score=score,
                )
            )
        stops = self.ranks.any(self.should_stop())
        if self.path is not None and (stops or time.monotonic() - self.saved > SAVE_SECONDS):
            write_state(self.path, state, self.identity)
            self.saved = time.monotonic()
        if stops:
            raise KeyboardInterrupt


def _join(replicas: list[Replica], results: list[tuple[list[int], TrainState, Tensor]]) -> Fitted:
    """Join the results of the groups in the order of the replicas."""
    order = [position for positions, _, _ in results for position in positions]
    back = torch.tensor(order).argsort()

    def join(tensors: list[Tensor]) -> Tensor:
        if len(tensors) == 1:  # in order already: no copy of gigabytes
            return tensors[0].cpu()
        return torch.cat([tensor.cpu() for tensor in tensors])[back]

    def shapes(state: TrainState) -> dict[tuple[str, str], torch.Size]:
        return {
            (stage, name): value.shape[1:]
            for stage, parameters in state.done.items()
            for name, value in parameters.items()
        }

    states = [state for _, state, _ in results]
    _pad_texts(states)
    # Some settings have stages that others lack; all have the last one.
    stages = [name for name in states[0].done if all(name in state.done for state in states)]
    done: dict[str, Parameters] = {}
    if all(shapes(state) == shapes(states[0]) for state in states):
        done = {
            stage: {
                name: join([state.done[stage][name] for state in states])
                for name in states[0].done[stage]
            }
            for stage in stages
        }
    history = {
        stage: {
            key: _concatenate_padded([state.history[stage][key] for state in states])[:, back]
            for key in states[0].history[stage]
        }
        for stage in stages
    }
    return Fitted(
        replicas=replicas,
        done=done,
        logits=join([scores for _, _, scores in results]),
        val_score=join([state.best_score[stages[-1]] for state in states]),
        val_loss=join([state.best_loss[stages[-1]] for state in states]),
        best_epoch={stage: join([state.best_epoch[stage] for state in states]) for stage in stages},
        history=history,
        seconds={
            key: sum(state.seconds.get(key, 0.0) for state in states) for key in states[0].seconds
        },
    )


def _pad_texts(states: list[TrainState]) -> None:
    """Give parameters that hold bytes one length, filled with zeros."""
    for stage, parameters in states[0].done.items():
        for name, first in parameters.items():
            if first.dtype == torch.uint8:
                length = max(state.done[stage][name].shape[1] for state in states)
                for state in states:
                    value = state.done[stage][name]
                    state.done[stage][name] = pad(value, (0, length - value.shape[1]))


def _concatenate_padded(blocks: list[Tensor]) -> Tensor:
    """Concatenate (epochs, R) blocks of different lengths, short ones filled with NaN."""
    length = max(len(block) for block in blocks)
    filled = [pad(block, (0, 0, 0, length - len(block)), value=math.nan) for block in blocks]
    return torch.cat(filled, dim=1)
