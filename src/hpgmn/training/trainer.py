"""The only training loop: runs the stages of a model for R replicas at once.

Selection is by validation score, ties by lower validation loss. Every replica keeps its own best
epoch and stops on its own; replicas that have stopped are taken out of the batch once half of it
has. The whole state is one object (:class:`TrainState`), so that a run can be cut and continued.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hpgmn.errors import HPGMNError
from hpgmn.graph import Array
from hpgmn.metrics import METRICS, class_loss
from hpgmn.models.layers import initialise
from hpgmn.models.output import Output
from hpgmn.models.stage import (
    ModelEntry,
    Parameters,
    Rates,
    Stage,
    StageBuilder,
    Task,
    load_parameters,
)
from hpgmn.randomness import Noise
from hpgmn.training.optimizer import ReplicaAdam, all_parameters

READ_NODES = 65536
"""A stage in batches evaluates so many nodes at once."""

HISTORY = ("loss", "val_loss", "val_score")
"""What is recorded each epoch for each replica."""


@dataclass
class StageState:
    """Everything about a stage that is under way.

    Attributes:
        name: which stage.
        epoch: epochs finished.
        live: the replicas still in the batch, as positions in the task.
        parameters: (L, …) current values by name.
        first: Adam's first moments.
        second: Adam's second moments.
        best: (R, …) the values at each replica's best epoch.
        best_score: (R,) validation score there.
        best_loss: (R,) validation loss there.
        best_epoch: (R,) which epoch that was.
        history: for each of HISTORY one (R,) tensor per epoch; NaN for replicas that stopped, and
            for validation in a stage without labels.
    """

    name: str
    epoch: int
    live: list[int]
    parameters: Parameters
    first: Parameters
    second: Parameters
    best: Parameters
    best_score: Tensor
    best_loss: Tensor
    best_epoch: Tensor
    history: dict[str, list[Tensor]]


@dataclass
class TrainState:
    """The whole state of a training: stages that are done, and the one under way."""

    done: dict[str, Parameters] = field(default_factory=dict)
    best_score: dict[str, Tensor] = field(default_factory=dict)
    best_loss: dict[str, Tensor] = field(default_factory=dict)
    best_epoch: dict[str, Tensor] = field(default_factory=dict)
    history: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"statistics": 0.0, "training": 0.0})
    current: StageState | None = None


Watcher = Callable[[TrainState, Stage], None]
"""Called after each epoch; may save the state or stop the run by raising."""


def train(
    task: Task,
    entry: ModelEntry,
    *,
    metric: str = "accuracy",
    state: TrainState | None = None,
    watch: Watcher | None = None,
) -> TrainState:
    """Train every stage of a model.

    Args:
        task: graph, replicas and the labels training may see.
        entry: the model.
        metric: what selects epochs on the validation nodes.
        state: a state to continue from.
        watch: called after each epoch.

    Returns:
        The state with every stage done.
    """
    state = state or TrainState()
    for name, build in entry.stages.items():
        if name not in state.done:
            _run_stage(task, name, build, state, metric, watch)
    return state


@dataclass(frozen=True)
class _Labelled:
    """The labelled nodes of each replica, padded to one length."""

    nodes: Tensor  # (R, T)
    labels: Tensor  # (R, T)
    valid: Tensor  # (R, T)

    @classmethod
    def of(cls, labels: Array, device: torch.device) -> _Labelled:
        known = torch.from_numpy(labels).to(device)  # (R, N)
        valid = known >= 0
        length = max(int(valid.sum(dim=1).max()), 1)
        nodes = torch.argsort(~valid, dim=1, stable=True)[:, :length]
        chosen = valid.gather(1, nodes)
        return cls(nodes, known.gather(1, nodes).clamp(min=0), chosen)

    def batches(self, size: int, noise: Noise) -> Iterator[_Labelled]:
        """All of them once, in a random order of each replica's own, so many at a time."""
        if not size:
            yield self
            return
        order = noise.uniform("order", (self.nodes.shape[1],))
        order = torch.argsort(order + 2.0 * ~self.valid, dim=1)  # padding stays at the end
        for places in torch.split(order, size, dim=1):
            yield _Labelled(
                self.nodes.gather(1, places),
                self.labels.gather(1, places),
                self.valid.gather(1, places),
            )


class _Running:
    """A stage with its batch of live replicas on the device."""

    def __init__(self, task: Task, build: StageBuilder, state: TrainState, live: list[int]) -> None:
        started = time.perf_counter()
        self.task = task.subset(live)
        done = {
            name: {key: value[live] for key, value in parameters.items()}
            for name, parameters in state.done.items()
        }
        self.stage = build(self.task, done)
        device = self.task.device
        self.model = self.stage.model.to(device)
        self.keys = self.task.keys(self.stage.name)
        self.train = _Labelled.of(self.task.train_labels, device)
        self.val = _Labelled.of(self.task.val_labels, device)
        self.weights = {
            name: torch.tensor(values, device=device)
            for name, values in self.stage.penalty_weights.items()
            if any(values)
        }
        self.trained = {
            name: parameter
            for name, parameter in all_parameters(self.model).items()
            if not name.startswith(self.stage.frozen or ("\0",))
        }
        for name, parameter in all_parameters(self.model).items():
            parameter.requires_grad_(name in self.trained)
        state.seconds["statistics"] += time.perf_counter() - started

    def optimizer(self, current: StageState | None) -> ReplicaAdam:
        """Adam over the trained parameters, going on where the state stands."""
        stage = self.stage
        return ReplicaAdam(
            self.trained,
            Rates(stage.lr, stage.weight_decay),
            current.first if current else None,
            current.second if current else None,
            current.epoch * self.steps if current else 0,
            stage.own_rates,
        )

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        size = self.stage.batch_size
        return -(-self.train.nodes.shape[1] // size) if size else 1

    def epoch(self, optimizer: ReplicaAdam, epoch: int) -> Tensor:
        """One pass over the train nodes; returns the mean loss of each replica, (R,)."""
        if self.stage.consistency is not None:
            return self._step(optimizer, self._agreement(epoch))
        losses, sizes = [], []
        parts = self.train.batches(self.stage.batch_size, Noise(self.keys, epoch))
        for number, part in enumerate(parts):
            noise = Noise(self.keys, (epoch - 1) * self.steps + number + 1)
            losses.append(self._step(optimizer, self._loss(part, noise)))
            sizes.append(part.valid.sum(dim=1))
        weights = torch.stack(sizes).float()
        return (torch.stack(losses) * weights).sum(dim=0) / weights.sum(dim=0).clamp(min=1)

    def _step(self, optimizer: ReplicaAdam, loss: Tensor) -> Tensor:
        """Backward and step along a loss whose forward pass is done."""
        optimizer.clear()
        torch.autograd.backward(loss.sum())
        optimizer.step()
        if self.stage.after_step is not None:
            with torch.no_grad():
                self.stage.after_step(self.model)
        return loss.detach()

    def _weighted(self, output: Output, logits: Tensor, part: _Labelled) -> Tensor:
        loss = logits.new_zeros(logits.shape[0])
        if self.stage.is_supervised:
            loss = class_loss(logits, part.labels, part.valid)
        for name, weight in self.weights.items():
            loss = loss + weight * output.penalties[name]
        return loss

    def _loss(self, part: _Labelled, noise: Noise) -> Tensor:
        everywhere = self.stage.needs_all_nodes
        output: Output = self.model(
            self.stage.inputs,
            noise,
            None if everywhere else part.nodes,
            part.nodes if everywhere else None,
            penalties=bool(self.weights),
        )
        return self._weighted(output, output.logits, part)

    def _agreement(self, epoch: int) -> Tensor:
        """The loss over several noisy passes, plus their distance from the sharpened mean."""
        assert self.stage.consistency is not None
        first = self.stage.consistency[0]
        weight = torch.tensor(
            [one.consistency_weight for one in self.stage.consistency], device=self.keys.device
        )
        if first.consistency_warmup:  # agreement on first guesses can lock them in
            weight = weight * min(1.0, epoch / first.consistency_warmup)
        passes = first.consistency_passes
        outputs: list[Output] = [
            self.model(
                self.stage.inputs,
                Noise(self.keys, epoch * passes + number),
                penalties=bool(self.weights),
            )
            for number in range(passes)
        ]
        index = self.train.nodes.unsqueeze(-1).expand(-1, -1, self.task.num_classes)
        loss = torch.stack(
            [self._weighted(one, one.logits.gather(1, index), self.train) for one in outputs]
        ).mean(dim=0)
        chances = torch.stack([one.logits.softmax(dim=-1) for one in outputs])  # (P, R, N, C)
        sharp = chances.mean(dim=0).detach().pow(1 / first.consistency_temperature)
        target = sharp / sharp.sum(dim=-1, keepdim=True)
        distance = (chances - target).square().sum(dim=-1).mean(dim=(0, 2))  # (R,)
        return loss + weight * distance

    @torch.no_grad()
    def evaluate(self, metric: str) -> tuple[Tensor, Tensor]:
        """Validation score and loss of each replica, dropout off."""
        found = _logits_of(self.model, self.stage, self.val.nodes)
        score = METRICS[metric](found, self.val.labels, self.val.valid)
        return score, class_loss(found, self.val.labels, self.val.valid)


def _logits_of(model: nn.Module, stage: Stage, nodes: Tensor | None) -> Tensor:
    """Logits of some nodes of each replica, (R, B), or of all; in parts where a stage reads so."""
    if nodes is None or not stage.batch_size:
        output: Output = model(stage.inputs, None, nodes)
        return output.logits
    parts = [
        model(stage.inputs, None, part).logits for part in torch.split(nodes, READ_NODES, dim=1)
    ]
    return torch.cat(parts, dim=1)


def _run_stage(
    task: Task,
    name: str,
    build: StageBuilder,
    state: TrainState,
    metric: str,
    watch: Watcher | None,
) -> None:
    replicas = len(task.replicas)
    if state.current is None:
        running = _Running(task, build, state, list(range(replicas)))
        initialise(running.model, running.keys)
        load_parameters(running.model, running.stage.initial)
        optimizer = running.optimizer(None)
        device = task.device
        state.current = StageState(
            name=name,
            epoch=0,
            live=list(range(replicas)),
            parameters={key: p.detach() for key, p in all_parameters(running.model).items()},
            first=optimizer.first,
            second=optimizer.second,
            best={key: p.detach().clone() for key, p in all_parameters(running.model).items()},
            best_score=torch.full((replicas,), -1.0, device=device),
            best_loss=torch.full((replicas,), float("inf"), device=device),
            best_epoch=torch.zeros(replicas, dtype=torch.int64, device=device),
            history={key: [] for key in HISTORY},
        )
    else:
        running = _Running(task, build, state, state.current.live)
        load_parameters(running.model, state.current.parameters)
        optimizer = running.optimizer(state.current)
        state.current.parameters = {
            key: p.detach() for key, p in all_parameters(running.model).items()
        }
    current, stage = state.current, running.stage
    check_every = 10 if task.device.type == "cuda" else 1
    while current.epoch < stage.epochs:
        if current.epoch and current.epoch % check_every == 0:  # a resumed run decides alike
            waiting = _still_waiting(current, stage)
            if len(waiting) <= len(current.live) // 2:
                _shrink(current, waiting)
                if not waiting:
                    break
                running = _Running(task, build, state, current.live)
                load_parameters(running.model, current.parameters)
                current.parameters = {
                    key: p.detach() for key, p in all_parameters(running.model).items()
                }
                optimizer = running.optimizer(current)
                stage = running.stage
        epoch = current.epoch + 1
        started = time.perf_counter()
        loss = running.epoch(optimizer, epoch)
        if stage.is_supervised:
            score, val_loss = running.evaluate(metric)
        else:  # no label may choose: the last epoch with a finite loss is the best
            score, val_loss = torch.zeros_like(loss), loss * 0 - epoch
        _record(current, stage, epoch, loss, val_loss, score)
        state.seconds["training"] += time.perf_counter() - started
        if watch is not None:
            watch(state, stage)
    _require_a_best(current, stage)
    state.done[name] = current.best
    state.best_score[name] = current.best_score
    state.best_loss[name] = current.best_loss
    state.best_epoch[name] = current.best_epoch
    state.history[name] = {
        key: torch.stack(rows).cpu() if rows else torch.empty(0, replicas)
        for key, rows in current.history.items()
    }
    state.current = None


def _record(
    current: StageState, stage: Stage, epoch: int, loss: Tensor, val_loss: Tensor, score: Tensor
) -> None:
    """Note the epoch's numbers and keep the parameters of replicas that became better."""
    device = loss.device
    live = torch.tensor(current.live, device=device)
    everyone = current.best_score.shape[0]
    for key, values in zip(HISTORY, (loss, val_loss, score), strict=True):
        row = torch.full((everyone,), float("nan"), device=device)
        if key == "loss" or stage.is_supervised:
            row = row.index_copy(0, live, values.float())
        current.history[key].append(row)
    best_score, best_loss = current.best_score[live], current.best_loss[live]
    better = (score > best_score) | ((score == best_score) & (val_loss < best_loss))
    better &= val_loss.isfinite()  # a diverged model still has an argmax, and so a score
    if stage.patience:
        better &= epoch - current.best_epoch[live] <= stage.patience
    current.epoch = epoch
    if device.type != "cuda":
        chosen = torch.nonzero(better).squeeze(1)
        if not chosen.numel():
            return
        places = live[chosen]
        for key, value in current.parameters.items():
            current.best[key][places] = value[chosen]
    else:  # no question to the host inside an epoch
        for key, value in current.parameters.items():
            shape = (-1, *[1] * (value.dim() - 1))
            kept = torch.where(better.view(shape), value, current.best[key][live])
            current.best[key].index_copy_(0, live, kept)
    current.best_score.index_copy_(0, live, torch.where(better, score, best_score))
    current.best_loss.index_copy_(0, live, torch.where(better, val_loss, best_loss))
    epochs = torch.where(better, epoch, current.best_epoch[live])
    current.best_epoch.index_copy_(0, live, epochs)


def _still_waiting(current: StageState, stage: Stage) -> list[int]:
    """Positions within ``live`` of the replicas that may still become better."""
    best = current.best_epoch.tolist()
    losses = current.history["loss"][-1].tolist()
    patience = stage.patience or stage.epochs
    return [
        place
        for place, replica in enumerate(current.live)
        if current.epoch - best[replica] < patience and math.isfinite(losses[replica])
    ]


def _require_a_best(current: StageState, stage: Stage) -> None:
    """Every replica must have had at least one epoch with a finite loss."""
    lost = [r for r, epoch in enumerate(current.best_epoch.tolist()) if not epoch]
    if stage.epochs and lost:
        raise HPGMNError(
            f"The loss of stage '{stage.name}' was never finite in {len(lost)} of "
            f"{len(current.best_epoch)} runs. Lower lr or the penalty weights, or scale the "
            "attributes (attributes_scaling=unit, where the model has it)."
        )


def _shrink(current: StageState, places: list[int]) -> None:
    """Take replicas that have stopped out of the batch."""
    current.live = [current.live[place] for place in places]
    for part in (current.parameters, current.first, current.second):
        for key, value in part.items():
            part[key] = value[places]


def logits(task: Task, entry: ModelEntry, done: Mapping[str, Parameters]) -> Tensor:
    """A trained model's logits for all nodes of the task's graph: (R, N, C), dropout off."""
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
    nodes = None
    if stage.batch_size:
        every = torch.arange(task.graph.num_nodes, device=task.device)
        nodes = every.expand(len(task.replicas), -1)
    with torch.no_grad():
        return _logits_of(model, stage, nodes)
