"""The training loop: runs the stages of a model for R replicas at once, on one rank or several.

Selection is by validation score, ties by lower validation loss. Every replica keeps its own best
epoch and stops on its own; stopped replicas are dropped once they are half of those in training.
The whole state is one object (:class:`TrainState`), so a run can be interrupted and resumed.
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
    TrainingStage,
    TrainingTask,
    load_parameters,
)
from hpgmn.training.diagnosis import explain_nonfinite_loss
from hpgmn.training.numerics import matmul_precision
from hpgmn.training.optimizer import ReplicaAdam, all_parameters
from hpgmn.training.ranks import Ranks
from hpgmn.training.replay import WARM_UP, Replay, attempt
from hpgmn.training.stage_runner import BuildStage, StageRunner, Task, build_stage, stage_logits
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
    """Train every stage of a model on a graph.

    Args:
        task: graph, replicas and the labels training may see.
        entry: the model.
        metric: selects epochs on the validation nodes.
        positive: the positive class of the metric, see :func:`hpgmn.base.metrics.metric`.
        state: a state to resume.
        watch: called after each epoch.
    """
    stages = entry.stages_of(task.settings[0])
    return train_stages(task, stages, metric=metric_of(metric, positive), state=state, watch=watch)


def train_stages(
    task: Task,
    stages: Mapping[str, BuildStage],
    *,
    metric: Metric,
    state: TrainState | None = None,
    watch: Watcher | None = None,
    ranks: Ranks | None = None,
) -> TrainState:
    """Train stages in order; of several ranks each calls this with a task of its own rows."""
    state = state or TrainState()
    ranks = ranks or Ranks(device=task.device)
    for name, build in stages.items():
        if name not in state.done:
            _run_stage(task, name, build, state, metric, watch, ranks)
    return state


def _run_stage(
    task: Task,
    name: str,
    build: BuildStage,
    state: TrainState,
    metric: Metric,
    watch: Watcher | None,
    ranks: Ranks,
) -> None:
    replicas = len(task.replicas)
    is_fresh = state.current is None
    live = list(range(replicas)) if state.current is None else state.current.live
    runner = StageRunner(task, build, state, live, metric, ranks)
    if state.current is None:
        initialise(runner.model, runner.keys)
        load_parameters(runner.model, runner.stage.initial)
        optimizer = runner.optimizer(None)
        moments = (optimizer.first, optimizer.second)
        state.current = start_stage(name, _values(runner), moments, replicas, task.device)
    current = state.current
    if not is_fresh:
        optimizer = _resume(runner, current)
    check_every = 10 if task.device.type == "cuda" else 1
    epochs = _Epochs(runner, optimizer, current)
    last = time.perf_counter()
    while current.epoch < runner.stage.epochs:
        if current.epoch and current.epoch % check_every == 0:  # a resumed run decides alike
            improving = improving_replicas(current, runner.stage)
            if len(improving) <= len(current.live) // 2:
                drop_replicas(current, improving)
                if not improving:
                    break
                runner = StageRunner(task, build, state, current.live, metric, ranks)
                epochs = _Epochs(runner, _resume(runner, current), current)
                last = time.perf_counter()
        with matmul_precision(runner.stage.precision, task.device):
            row = epochs.next()
        for key, values in zip(HISTORY, row, strict=True):
            current.history[key].append(values)
        current.epoch += 1
        last = _count_seconds(state, name, last)
        if watch is not None:
            watch(state, runner.stage)
            last = _count_seconds(state, name, last)  # reading the numbers waits for a GPU

    def explain(number: int) -> str:
        alone, stage = build_stage(task, build, state, [number])
        nodes = torch.from_numpy(alone.train_labels[0] >= 0).nonzero()[:, 0].to(task.device)
        return explain_nonfinite_loss(stage, task.replicas[number], nodes)

    finish_stage(state, runner.stage, task.replicas, explain)
    _count_seconds(state, name, last)  # a GPU may have had work left


def _count_seconds(state: TrainState, stage: str, since: float) -> float:
    """Add the time since then to the training time, in total and of this stage; return now."""
    now = time.perf_counter()
    for key in ("training", f"training {stage}"):
        state.seconds[key] = state.seconds.get(key, 0.0) + now - since
    return now


def _values(runner: StageRunner) -> Parameters:
    return {key: value.detach() for key, value in all_parameters(runner.model).items()}


def _resume(runner: StageRunner, current: StageState) -> ReplicaAdam:
    """Load the recorded parameters; return the optimizer that continues."""
    load_parameters(runner.model, current.parameters)
    current.parameters = _values(runner)
    return runner.optimizer(current)


class _Epochs:
    """The epochs of a stage with its live replicas; on a GPU replayed where possible."""

    def __init__(self, runner: StageRunner, optimizer: ReplicaAdam, current: StageState) -> None:
        self.runner, self.optimizer, self.current = runner, optimizer, current
        self._replay: Replay | None = None
        self._warm_up = WARM_UP if runner.can_replay and not runner.stage.batch_size else -1
        runner.warm_up()

    def next(self) -> Tensor:
        """Run the next epoch; return its row of the history, (3, R)."""
        if self._replay is None and self._warm_up == 0:
            steps = [self.runner.noise_steps(e) for e in range(self.runner.stage.epochs + 1)]
            shape = (len(HISTORY), self.current.best_score.shape[0])
            keys, done = self.runner.keys, self.current.epoch
            self._replay = attempt(lambda: Replay(self._run, keys, steps, done, shape))
            if self._replay is None:
                self._warm_up = -1
        if self._replay is not None:
            return self._replay.next()
        self._warm_up -= 1
        return self.runner.epoch(self.optimizer, self.current, self.current.epoch + 1)

    def _run(self, epoch: Tensor, noises: list[Noise]) -> Tensor:
        return self.runner.epoch(self.optimizer, self.current, epoch, noises)


def logits(
    task: TrainingTask,
    entry: ModelEntry,
    parameters: Mapping[str, Parameters],
    nodes: Tensor | None = None,
) -> Tensor:
    """Return a trained model's logits, dropout off: (R, N, C), or (R, B, C) of some nodes.

    Args:
        task: the graph and the replicas.
        entry: the model.
        parameters: those of every stage.
        nodes: (B,) positions of the requested nodes; None for all.
    """
    *_, build = entry.stages.values()
    stage = build(task, parameters)
    model = stage.model.to(task.device)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    if shapes != {name: tuple(value.shape) for name, value in parameters[stage.name].items()}:
        raise HPGMNError(
            f"The code of {entry.name} has changed: its parameters are not those that were "
            "trained. Restore the code, or train again."
        )
    load_parameters(model, parameters[stage.name])
    if nodes is None and stage.batch_size:
        nodes = torch.arange(task.graph.num_nodes)
    chosen = None if nodes is None else nodes.to(task.device).expand(len(task.replicas), -1)
    with torch.no_grad():
        return stage_logits(stage, chosen)
