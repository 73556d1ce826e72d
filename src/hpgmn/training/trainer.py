"""The only training loop: runs the stages of a model for R replicas at once.

Selection is by validation score, ties by lower validation loss. Every replica keeps its own best
epoch and stops on its own; replicas that have stopped are taken out of the batch once half of it
has. The whole state is one object (:class:`TrainState`), so that a run can be cut and continued.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hpgmn.base.errors import HPGMNError
from hpgmn.base.metrics import Metric
from hpgmn.base.metrics import metric as metric_of
from hpgmn.base.randomness import Noise
from hpgmn.models.layers import initialise
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    StageBuilder,
    TrainingStage,
    TrainingTask,
    load_parameters,
)
from hpgmn.training.diagnosis import explain_nonfinite_loss
from hpgmn.training.numerics import matmul_precision
from hpgmn.training.optimizer import ReplicaAdam, all_parameters
from hpgmn.training.replay import WARM_UP, Replay, attempt
from hpgmn.training.running import Running, logits_of
from hpgmn.training.state import (
    HISTORY,
    StageState,
    TrainState,
    drop_replicas,
    finish_stage,
    improving_replicas,
    start_stage,
)

Watcher = Callable[[TrainState, TrainingStage], None]
"""Called after each epoch; may save the state or stop the run by raising."""


def train(
    task: TrainingTask,
    entry: ModelEntry,
    *,
    metric: str = "accuracy",
    positive: int = 1,
    state: TrainState | None = None,
    watch: Watcher | None = None,
) -> TrainState:
    """Train every stage of a model.

    Args:
        task: graph, replicas and the labels training may see.
        entry: the model.
        metric: what selects epochs on the validation nodes.
        positive: which of two classes the metric looks for, see :func:`hpgmn.base.metrics.metric`.
        state: a state to continue from.
        watch: called after each epoch.

    Returns:
        The state with every stage done.
    """
    state = state or TrainState()
    for name, build in entry.stages_of(task.settings[0]).items():
        if name not in state.done:
            _run_stage(task, name, build, state, metric_of(metric, positive), watch)
    return state


def _run_stage(
    task: TrainingTask,
    name: str,
    build: StageBuilder,
    state: TrainState,
    metric: Metric,
    watch: Watcher | None,
) -> None:
    replicas = len(task.replicas)
    fresh = state.current is None
    live = list(range(replicas)) if state.current is None else state.current.live
    running = Running(task, build, state, live, metric)
    if state.current is None:
        initialise(running.model, running.keys)
        load_parameters(running.model, running.stage.initial)
        optimizer = running.optimizer(None)
        moments = (optimizer.first, optimizer.second)
        state.current = start_stage(name, _values(running), moments, replicas, task.device)
    current = state.current
    if not fresh:
        optimizer = _continued(running, current)
    check_every = 10 if task.device.type == "cuda" else 1
    epochs = _Epochs(running, optimizer, current)
    last = time.perf_counter()
    while current.epoch < running.stage.epochs:
        if current.epoch and current.epoch % check_every == 0:  # a resumed run decides alike
            waiting = improving_replicas(current, running.stage)
            if len(waiting) <= len(current.live) // 2:
                drop_replicas(current, waiting)
                if not waiting:
                    break
                running = Running(task, build, state, current.live, metric)
                epochs = _Epochs(running, _continued(running, current), current)
                last = time.perf_counter()
        with matmul_precision(running.stage.precision, task.device):
            row = epochs.next()
        for key, values in zip(HISTORY, row, strict=True):
            current.history[key].append(values)
        current.epoch += 1
        last = _count_seconds(state, name, last)
        if watch is not None:
            watch(state, running.stage)
            last = _count_seconds(state, name, last)  # a look at the numbers waits for a GPU

    def why(number: int) -> str:
        alone = Running(task, build, state, [number], metric)
        return explain_nonfinite_loss(alone.stage, task.replicas[number], alone.train.nodes[0])

    finish_stage(state, running.stage, task.replicas, why)
    _count_seconds(state, name, last)  # a GPU may have had work left


def _count_seconds(state: TrainState, stage: str, since: float) -> float:
    """Add the time since then to that of training, and of training this stage; returns now."""
    now = time.perf_counter()
    for key in ("training", f"training {stage}"):
        state.seconds[key] = state.seconds.get(key, 0.0) + now - since
    return now


def _values(running: Running) -> Parameters:
    return {key: value.detach() for key, value in all_parameters(running.model).items()}


def _continued(running: Running, current: StageState) -> ReplicaAdam:
    """The optimizer of a stage that goes on with the values on record."""
    load_parameters(running.model, current.parameters)
    current.parameters = _values(running)
    return running.optimizer(current)


class _Epochs:
    """The epochs of a stage with one batch of replicas; on a GPU replayed where possible."""

    def __init__(self, running: Running, optimizer: ReplicaAdam, current: StageState) -> None:
        self.running, self.optimizer, self.current = running, optimizer, current
        self._replay: Replay | None = None
        self._warm_up = WARM_UP if running.can_replay and not running.stage.batch_size else -1

    def next(self) -> Tensor:
        """Run the next epoch; returns its row of the history, (3, R)."""
        if self._replay is None and self._warm_up == 0:
            steps = [self.running.noise_steps(e) for e in range(self.running.stage.epochs + 1)]
            shape = (len(HISTORY), self.current.best_score.shape[0])
            keys, done = self.running.keys, self.current.epoch
            self._replay = attempt(lambda: Replay(self._run, keys, steps, done, shape))
            if self._replay is None:
                self._warm_up = -1
        if self._replay is not None:
            return self._replay.next()
        self._warm_up -= 1
        return self.running.epoch(self.optimizer, self.current, self.current.epoch + 1)

    def _run(self, epoch: Tensor, noises: list[Noise]) -> Tensor:
        return self.running.epoch(self.optimizer, self.current, epoch, noises)


def logits(
    task: TrainingTask,
    entry: ModelEntry,
    done: Mapping[str, Parameters],
    nodes: Tensor | None = None,
) -> Tensor:
    """A trained model's logits, dropout off: (R, N, C), or (R, B, C) of some nodes.

    Args:
        task: the graph and the replicas.
        entry: the model.
        done: the parameters of every stage.
        nodes: (B,) positions of the nodes that are wanted; None for all.
    """
    *_, build = entry.stages.values()
    stage = build(task, done)
    model = stage.model.to(task.device)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    if shapes != {name: tuple(value.shape) for name, value in done[stage.name].items()}:
        raise HPGMNError(
            f"The parameters of {entry.name} are not those that were trained: its code has "
            "changed. Restore the code, or train again."
        )
    load_parameters(model, done[stage.name])
    if nodes is None and stage.batch_size:
        nodes = torch.arange(task.graph.num_nodes)
    wanted = None if nodes is None else nodes.to(task.device).expand(len(task.replicas), -1)
    with torch.no_grad():
        return logits_of(model, stage, wanted)
