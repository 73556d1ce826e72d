"""The training loop: runs the stages of a model for R replicas at once, on one rank or several.

Epochs are selected by validation score, ties by lower validation loss, and stop separately for
each replica; stopped replicas are dropped once they are half of those in training.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.metrics import Metric, selection_metric
from hpgmn.base.randomness import Noise
from hpgmn.base.tasks import is_known
from hpgmn.graph import Array, Graph
from hpgmn.models import find_model
from hpgmn.models.hpgmn import HPGMNSettings, class_shares, estimator_logits, pseudo_labels
from hpgmn.models.layers import initialise
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    Replica,
    TrainingStage,
    TrainingTask,
    load_parameters,
    make_task,
)
from hpgmn.statistics import Statistic
from hpgmn.training.checks import check_split
from hpgmn.training.ranks import Ranks
from hpgmn.training.rounds import run_rounds
from hpgmn.training.stage_runner import WARM_UP, BuildStage, StageRunner, Task, build_stage
from hpgmn.training.state import (
    HISTORY,
    ReplicaAdam,
    StageState,
    TrainState,
    all_parameters,
    count_seconds,
    drop_replicas,
    has_overflow,
    improving_replicas,
    start_stage,
)

if TYPE_CHECKING:
    from hpgmn.training.replay import Replay

logger = logging.getLogger(__name__)

LARGE = 1e9
"""Larger values overflow single precision, whatever the settings."""

_VALUES = 10_000_000  # inspected of each statistic
_SPREAD = 10.0  # a setting this many times its default is the likelier cause


def cause_of_divergence(
    stage: TrainingStage, replica: Replica, nodes: Tensor
) -> tuple[str, Remedy]:
    """Return why the loss of a stage of one replica is not finite, and the remedy.

    Args:
        nodes: (T,) nodes whose rows are inspected.
    """
    sizes = {name: largest(value, nodes) for name, value in stage.inputs.items()}
    widest = max(sizes, key=lambda name: sizes[name], default="")
    remedy = Remedy("Divide attributes and edge weights by their largest value")
    if widest and sizes[widest] >= LARGE:
        scaling = _scaling(widest, replica.settings)
        if scaling:
            remedy = Remedy("Scale it", setting=scaling, value="unit") | remedy
        return f"Statistic '{widest}' holds values up to {sizes[widest]:.3g}.", remedy
    name, value = _unusual_setting(stage, replica)
    remedy = Remedy("Lower it", setting=name)
    if stage.precision == "bfloat16":
        remedy |= Remedy("Use single precision", setting="precision", value="float32")
    rest = f", and no statistic exceeds {sizes[widest]:.3g}" if widest else ""
    return f"Setting {name} is {value:g}{rest}.", remedy


def _scaling(statistic: str, settings: Any) -> str:
    """Return the setting that scales a statistic to unit length, or "" if none or set already."""
    names = [info.name for info in dataclasses.fields(settings) if info.name.endswith("_scaling")]
    matches = [name for name in names if statistic.startswith(name.removesuffix("_scaling"))]
    for name in matches or names[:1]:
        if getattr(settings, name) != "unit":
            return name
    return ""


def largest(value: Any, nodes: Tensor) -> float:
    """Return the largest absolute value of an input of one replica; infinity for NaN.

    Args:
        value: a statistic, a tensor or several of them; anything else gives 0.
        nodes: whose rows of a statistic are inspected.
    """
    if isinstance(value, Statistic):
        value = value.rows(nodes[: max(1, _VALUES // max(value.width, 1))])
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            coo: Any = value
            value = coo.to_sparse_coo().coalesce().values()
        values = value.detach().float().abs().nan_to_num(nan=math.inf, posinf=math.inf)
        return float(values.max()) if values.numel() else 0.0
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return max((largest(item, nodes) for item in value), default=0.0)
    return 0.0


def _unusual_setting(stage: TrainingStage, replica: Replica) -> tuple[str, float]:
    """Return the setting that exceeds its default most, and its value."""
    settings = replica.settings
    defaults: dict[str, Any] = {info.name: info.default for info in dataclasses.fields(settings)}
    lr = "estimator_lr" if stage.name == "estimator" and "estimator_lr" in defaults else "lr"
    decay = lr.replace("lr", "weight_decay")
    names = [decay] + [f"{name}_weight" for name in (*stage.penalty_weights, "consistency")]
    ratios = {
        name: getattr(settings, name) / (defaults[name] or 1.0)
        for name in names
        if name in defaults and isinstance(getattr(settings, name), int | float)
    }
    # The learning rate is named unless another setting exceeds its default by far.
    ratios = {name: ratio for name, ratio in ratios.items() if ratio > _SPREAD}
    ratios[lr] = stage.lr[0] / (defaults.get(lr) or 1.0)
    name = max(ratios, key=lambda name: ratios[name])
    return name, stage.lr[0] if name == lr else float(getattr(settings, name))


Cause = Callable[[int], tuple[str, Remedy]]
"""Returns why a replica, by its number, diverged, and the remedy."""


def require_best_epoch(
    current: StageState,
    stage: TrainingStage,
    replicas: Sequence[Replica],
    cause: Cause,
    fixed: Tensor | None = None,
) -> None:
    """Require an epoch with finite loss and gradients of every replica.

    A replica that diverged later keeps its best epoch, with a warning; with (R,) fixed epochs,
    later ones do not matter.
    """
    if not current.epoch:
        return
    best = current.best_epoch.tolist()
    patience = 0 if fixed is not None else stage.patience or stage.epochs
    keys = {"loss": "loss"}
    if stage.is_supervised and fixed is None:
        keys["val_loss"] = "validation loss"
    events: dict[int, tuple[int, str]] = {}  # first epoch without a finite value, and which
    for key, what in keys.items():
        wrong = ~torch.stack(current.history[key]).cpu().isfinite()  # (epochs, R)
        for number in torch.nonzero(wrong.any(dim=0)).flatten().tolist():
            epoch = int(wrong[:, number].int().argmax()) + 1
            if number not in events or epoch < events[number][0]:
                events[number] = epoch, f"{what} is not finite from epoch {epoch} on"
    overflow = "gradients are too large to be squared, so some weights were not trained"
    lost = dict.fromkeys(torch.nonzero(current.overflowed).flatten().tolist(), overflow)
    required = [max(epoch, 1) for epoch in best] if fixed is None else fixed.tolist()
    lost = lost or {
        number: what for number, (_, what) in events.items() if best[number] < required[number]
    }
    later = {
        number: what for number, (epoch, what) in events.items() if epoch <= best[number] + patience
    }
    for position in torch.nonzero(has_overflow(current)).flatten().tolist():
        if current.live[position] not in events:
            later[current.live[position]] = "gradients are too large to be squared"
    troubled = lost or later
    if not troubled:
        return
    number = min(troubled)
    replica, (reason, remedy) = replicas[number], cause(number)
    message = (
        f"Stage '{stage.name}' diverged in {len(troubled)} of {len(best)} runs: in split "
        f"{replica.split}, seed {replica.seed}, the {troubled[number]}."
    )
    if lost:
        raise HPGMNError(f"{message} {reason}", remedy)
    logger.warning(
        "%s Its best epoch before, %d, is kept. %s %s", message, best[number], reason, remedy
    )


def finish_stage(
    state: TrainState,
    stage: TrainingStage,
    replicas: Sequence[Replica],
    cause: Cause,
    fixed: Tensor | None = None,
) -> None:
    """Finish the current stage with the best values of every replica."""
    current = state.current
    assert current is not None
    require_best_epoch(current, stage, replicas, cause, fixed)
    if fixed is not None:
        current.best_score.fill_(math.nan)
        current.best_loss.fill_(math.nan)
    name, number = current.name, current.best_score.shape[0]
    state.done[name] = current.best
    state.best_score[name] = current.best_score
    state.best_loss[name] = current.best_loss
    state.best_epoch[name] = current.best_epoch
    state.history[name] = {
        key: torch.stack(rows).cpu() if rows else torch.empty(0, number)
        for key, rows in current.history.items()
    }
    state.current = None


Result = TypeVar("Result")

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACES = (":4096:8", ":16:8")  # the values for which cuBLAS is deterministic


def run_training_thread(work: Callable[[Event], Result]) -> Result:
    """Call ``work`` in a thread that flushes denormals to zero, and wait for it.

    Denormal squared gradients made CPU runs 30 times slower. Ctrl-C sets the event passed to
    ``work``, which should stop after the epoch, and raises KeyboardInterrupt once it has returned.
    """
    interrupted = Event()
    with ThreadPoolExecutor(1, initializer=torch.set_flush_denormal, initargs=(True,)) as pool:
        try:
            return pool.submit(work, interrupted).result()
        except KeyboardInterrupt:
            interrupted.set()
            raise


@contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices in TF32 on a GPU if ``precision`` is "tf32".

    "bfloat16" is handled by autocast in the training step.
    """
    before = torch.get_float32_matmul_precision()
    if precision == "tf32" and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def deterministic_algorithms(is_requested: bool, device: torch.device | str) -> Iterator[None]:
    """Make a GPU reproducible bit for bit; a CPU always is.

    torch uses deterministic algorithms (and refuses operations that have none), cuBLAS a fixed
    workspace, sparse products our own kernel; limits use total instead of free memory.
    """
    if not is_requested or torch.device(device).type != "cuda":
        yield
        return
    if os.environ.get(_WORKSPACE) not in _FIXED_WORKSPACES:
        os.environ[_WORKSPACE] = _FIXED_WORKSPACES[0]  # read when cuBLAS is first used
    before = torch.are_deterministic_algorithms_enabled()
    options: Any = torch.utils.deterministic
    fills_memory = options.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    options.fill_uninitialized_memory = False  # nothing is read before it is written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        options.fill_uninitialized_memory = fills_memory


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
    should_finish: Callable[[], bool] = lambda: False,
    epochs: Mapping[str, Tensor] | None = None,
) -> TrainState:
    """Train every stage of a model on a graph.

    Args:
        metric: selects epochs on the validation nodes.
        positive: the positive class of the metric, see :func:`hpgmn.base.metrics.metric`.
        state: a state to resume.
        should_finish: called after each epoch; True ends the stage with its best epochs so far,
            and later stages after one epoch each.
        epochs: for some stages (R,) the epoch whose parameters each replica keeps, 0 for the
            initial ones. Validation then selects nothing and ``should_finish`` is not called.
    """
    scorer, state = selection_metric(metric, positive), state or TrainState()
    if entry.rounds is not None:
        if "main" not in state.done:
            fixed = (epochs or {}).get("main")
            stage = run_rounds(task, entry, state, scorer, watch, should_finish, fixed)
            cause = ("The sums of trees overflow.", Remedy("Lower the learning rate", setting="lr"))
            finish_stage(state, stage, task.replicas, lambda _: cause, fixed)
        return state
    return train_stages(
        task,
        entry.stages_of(task.settings[0]),
        metric=scorer,
        state=state,
        watch=watch,
        should_finish=should_finish,
        epochs=epochs,
    )


def train_stages(
    task: Task,
    stages: Mapping[str, BuildStage],
    *,
    metric: Metric,
    state: TrainState | None = None,
    watch: Watcher | None = None,
    ranks: Ranks | None = None,
    should_finish: Callable[[], bool] = lambda: False,
    epochs: Mapping[str, Tensor] | None = None,
) -> TrainState:
    """Train stages in order; of several ranks each calls this with a task of its own rows."""
    state = state or TrainState()
    ranks = ranks or Ranks(device=task.device)
    for name, build in stages.items():
        if name not in state.done:
            fixed = (epochs or {}).get(name)
            _run_stage(task, name, build, state, metric, watch, ranks, should_finish, fixed)
    return state


def _run_stage(
    task: Task,
    name: str,
    build: BuildStage,
    state: TrainState,
    metric: Metric,
    watch: Watcher | None,
    ranks: Ranks,
    should_finish: Callable[[], bool],
    fixed: Tensor | None,
) -> None:
    replicas, current = len(task.replicas), state.current
    live = list(range(replicas)) if current is None else current.live
    runner = StageRunner(task, build, state, live, metric, ranks, fixed)
    if current is None:
        initialise(runner.model, runner.keys)
        load_parameters(runner.model, runner.stage.initial)
        optimizer = runner.optimizer(None)
        moments = (optimizer.first, optimizer.second)
        current = start_stage(name, _values(runner), moments, replicas, task.device)
        state.current = current
        epochs = _Epochs(runner, optimizer, current)
    else:
        epochs = _resume(runner, current)
    check_every = 10 if task.device.type == "cuda" else 1
    last = time.perf_counter()
    while current.epoch < runner.stage.epochs:
        if current.epoch and current.epoch % check_every == 0:  # a resumed run decides alike
            improving = improving_replicas(current, runner.stage, fixed)
            if len(improving) <= len(current.live) // 2:
                drop_replicas(current, improving)
                if not improving:
                    break
                runner = StageRunner(task, build, state, current.live, metric, ranks, fixed)
                epochs = _resume(runner, current)
                last = time.perf_counter()
        with matmul_precision(runner.stage.precision, task.device):
            row = epochs.next()
        for key, values in zip(HISTORY, row, strict=True):
            current.history[key].append(values)
        current.epoch += 1
        last = count_seconds(state, name, last)
        if watch is not None:
            watch(state, runner.stage)
            last = count_seconds(state, name, last)  # reading the numbers waits for a GPU
        if fixed is None and should_finish():
            break

    def cause(number: int) -> tuple[str, Remedy]:
        alone, stage = build_stage(task, build, state, [number])
        nodes = torch.from_numpy(is_known(alone.train_labels[0])).nonzero()[:, 0].to(task.device)
        return cause_of_divergence(stage, task.replicas[number], nodes)

    finish_stage(state, runner.stage, task.replicas, cause, fixed)
    count_seconds(state, name, last)  # a GPU may have had work left


def _values(runner: StageRunner) -> Parameters:
    return {key: value.detach() for key, value in all_parameters(runner.model).items()}


def _resume(runner: StageRunner, current: StageState) -> _Epochs:
    """Load the recorded parameters; return the remaining epochs."""
    load_parameters(runner.model, current.parameters)
    current.parameters = _values(runner)
    return _Epochs(runner, runner.optimizer(current), current)


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
            from hpgmn.training.replay import Replay, attempt  # for a GPU only

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


class EstimatedLabels(NamedTuple):
    """The predictions of the label estimator for every node.

    Attributes:
        labels: (N,) pseudo-labels, the true ones on train nodes, -1 where unknown.
        shares: (N, C) probabilities of each class, 0 where unknown.
        parameters: of the estimator, for one replica.
    """

    labels: Array
    shares: Array
    parameters: Parameters


def estimate_labels(graph: Graph, settings: HPGMNSettings, split: int = 0) -> EstimatedLabels:
    """Train the label estimator of HP-GMN on a split and predict every node."""
    entry = find_model("hpgmn")
    chosen = graph.split(split)
    check_split(graph, chosen, split)
    task = make_task(graph, [Replica(split, 0, settings)], [(chosen.train, chosen.val)], "cpu")
    estimator = dataclasses.replace(entry, stages={"estimator": entry.stages["estimator"]})
    parameters = train(task, estimator).done["estimator"]
    predicted, confidence = estimator_logits(task, parameters), [settings.label_confidence]
    labels = pseudo_labels(predicted, task.train_labels, confidence)
    shares = class_shares(predicted, task.train_labels, confidence)
    return EstimatedLabels(labels[0], shares[0], parameters)
