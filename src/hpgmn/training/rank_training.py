"""Training on the row shards of several processes: the batches, the loss and the steps of one.

A batch is a function of seed and epoch, whoever reads it; a rank reads the nodes of it that are in
its own ranges. Every rank computes the loss of the whole batch from sums over all ranks, so the
mean of their gradients, which DistributedDataParallel makes, is the gradient of that loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.metrics import class_loss
from hpgmn.base.metrics import metric as metric_of
from hpgmn.base.randomness import Noise
from hpgmn.base.sparse import at_least_single
from hpgmn.models.hpgmn import HPGMN, stage_on_statistics
from hpgmn.models.layers import Output, initialise
from hpgmn.models.stage import Rates, Replica, load_parameters, replica_keys
from hpgmn.statistics import Statistic, statistic_names
from hpgmn.training.checkpoint import read_state, write_state
from hpgmn.training.diagnosis import explain_nonfinite_loss
from hpgmn.training.numerics import matmul_precision
from hpgmn.training.optimizer import ReplicaAdam, all_parameters
from hpgmn.training.rank_rows import Rows
from hpgmn.training.ranks import Ranks
from hpgmn.training.replicas import Progress
from hpgmn.training.running import READ_NODES, ahead
from hpgmn.training.state import (
    HISTORY,
    StageState,
    TrainState,
    finish_stage,
    improving_replicas,
    start_stage,
    update_best,
)

SAVE_SECONDS = 20.0
"""Rank 0 saves the state this often, after an epoch."""

STAGE = "main"


@dataclass(frozen=True)
class Batch:
    """A rank's share of a batch.

    Attributes:
        places: (B,) where its nodes stand in the batch.
        nodes: (B,) their positions among the nodes of this rank.
        labels: (B,) their classes.
        size: how many nodes all ranks together read.
    """

    places: Tensor
    nodes: Tensor
    labels: Tensor
    size: int


def check_settings(settings: Any, names: Sequence[str]) -> None:
    """Refuse settings that row shards cannot have.

    Args:
        settings: those of HP-GMN.
        names: the statistics that the shards hold.
    """
    if not settings.batch_size:
        raise SettingError(
            "Row shards are trained on in batches. Add --set batch_size=1024, or another number of "
            "train nodes for a step of all ranks together."
        )
    if settings.refinement:
        raise SettingError(
            "Refinement computes the statistics anew, and shards hold them. Set refinement=false."
        )
    missing = [name for name in statistic_names(settings) if name not in names]
    if missing:
        raise SettingError(
            f"The shards lack {', '.join(missing)}; they have {', '.join(names)}. Set statistics "
            "and neighbors as `hpgmn shard` had them."
        )


class ParallelTraining:
    """HP-GMN on the rows of all ranks.

    Args:
        rows: the nodes of this rank.
        replicas: seeds and settings; they read the same batches.
        ranks: who trains.
        metric: what selects epochs.
        positive: the number of the class that it looks for, if any.
    """

    def __init__(
        self,
        rows: Rows,
        replicas: Sequence[Replica],
        ranks: Ranks,
        metric: str = "accuracy",
        positive: int = 1,
    ) -> None:
        settings = [one.settings for one in replicas]
        device, num_classes = ranks.device, len(rows.class_names)
        check_settings(settings[0], list(rows.shards.statistics))
        self.ranks, self.num_classes, self.replicas = ranks, num_classes, tuple(replicas)
        self.metric = metric_of(metric, positive)
        self.inputs: dict[str, Statistic] = {
            name: rows.statistic(name, device) for name in statistic_names(settings[0])
        }
        self._size = 0
        self.stage = stage_on_statistics(
            self.inputs, num_classes, settings, device, node_reduction=self._reduce_nodes
        )
        assert isinstance(self.stage.model, HPGMN)
        self.model = self.stage.model.to(device)
        self.keys = replica_keys(replicas, STAGE, device)
        initialise(self.model, self.keys)
        self._keep_labels(rows)
        self.class_weights = self._class_weights(settings[0].class_weights)
        self.weights = {
            name: torch.tensor(values, device=device)
            for name, values in self.stage.penalty_weights.items()
            if any(values)
        }
        self.trained = {}
        for name, parameter in all_parameters(self.model).items():
            is_trained = not name.startswith(self.stage.frozen or ("\0",))
            parameter.requires_grad_(is_trained)
            if is_trained:
                self.trained[name] = parameter
        self._parallel = ranks.parallel(self.model)

    def _keep_labels(self, rows: Rows) -> None:
        """The labelled nodes of this rank, and where they stand among those of all ranks."""
        found = {}
        for part in ("train", "val"):
            nodes = np.flatnonzero(getattr(rows.split, part) & (rows.y >= 0))
            found[part] = torch.from_numpy(nodes), torch.from_numpy(rows.y[nodes])
            counts = self.ranks.counts(len(nodes))
            if not sum(counts):
                raise HPGMNError(
                    f"The shards in {rows.shards.folder} have no {part} nodes with a label. Make "
                    "them again with a split that has some."
                )
            if part == "train":
                self.train_size = sum(counts)
                self._train_start = sum(counts[: self.ranks.rank])
        self.train_nodes, self.train_labels = found["train"]
        self.val_nodes, own = found["val"]
        self.val_labels = self.ranks.gathered(own.unsqueeze(0).to(self.ranks.device))  # (1, V)

    def _class_weights(self, kind: str) -> Tensor | None:
        """(C,) how much a train node of each class counts; None: all alike."""
        if kind == "none":
            return None
        counts = torch.bincount(self.train_labels, minlength=self.num_classes).double()
        every = self.ranks.total(counts.to(self.ranks.device))
        balanced = every.sum() / (self.num_classes * every.clamp(min=1))
        return torch.where(every > 0, balanced, 0.0).float()

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return -(-self.train_size // self.stage.batch_size)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """This rank's share of every batch of an epoch; all ranks draw the same order."""
        order = Noise(self.keys[:1].cpu(), epoch).uniform("order", (self.train_size,))[0]
        last = self._train_start + len(self.train_nodes)
        for part in torch.split(torch.argsort(order, stable=True), self.stage.batch_size):
            places = torch.nonzero((part >= self._train_start) & (part < last)).squeeze(1)
            own = part[places] - self._train_start
            yield Batch(places, self.train_nodes[own], self.train_labels[own], len(part))

    def loss(self, batch: Batch, inputs: dict[str, Statistic], step: int) -> Tensor:
        """(R,) the loss of the whole batch, the same on every rank."""
        self._size = batch.size
        places = None if self.ranks.size == 1 else batch.places.to(self.ranks.device)
        noise = Noise(self.keys, step, places)
        half = self.stage.precision == "bfloat16" and self.keys.is_cuda
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            output: Output = self._parallel(inputs, noise, penalties=bool(self.weights))
        chances = functional.log_softmax(at_least_single(output.logits), dim=-1)
        labels = batch.labels.to(self.ranks.device)
        own = chances.gather(-1, labels.view(1, -1, 1).expand(len(chances), -1, -1)).squeeze(-1)
        counted = torch.ones_like(own[0])
        if self.class_weights is not None:
            counted = self.class_weights[labels].to(own.dtype)
        counts = counted.sum().expand(len(own))
        sums = self.ranks.total(torch.stack([-(own * counted).sum(dim=1), counts]))
        loss = sums[0] / torch.where(sums[1] > 0, sums[1], 1.0)
        for name, weight in self.weights.items():
            loss = loss + weight * output.penalties[name]
        return loss

    def _reduce_nodes(self, values: Tensor, reduction: str) -> Tensor:
        """The mean or sum of (R, B, …) over the nodes of all ranks."""
        total = self.ranks.total(values.sum(dim=1))
        return total / self._size if reduction == "mean" else total

    def step(self, loss: Tensor, optimizer: ReplicaAdam) -> Tensor:
        """Backward and step along a loss; returns it."""
        optimizer.clear()
        torch.autograd.backward(loss.sum())
        optimizer.step()
        if self.stage.after_step is not None:
            with torch.no_grad():
                self.stage.after_step(self.model)
        return loss.detach()

    def some(self, nodes: Tensor) -> dict[str, Statistic]:
        """The inputs of some nodes of this rank, (B,)."""
        wanted = nodes.expand(len(self.keys), -1)
        return {name: statistic.some(wanted) for name, statistic in self.inputs.items()}

    def warm_up(self) -> None:
        """A step without effect: DistributedDataParallel lays its buckets out after the first.

        A resumed run then adds the gradients of more than two ranks in the same order.
        """
        batch = next(self.batches(1))
        torch.autograd.backward(self.loss(batch, self.some(batch.nodes), 0).sum())

    def epoch(self, optimizer: ReplicaAdam, current: StageState) -> Tensor:
        """One pass over the train nodes, and validation; returns what HISTORY lists, (3, R)."""
        number = current.epoch + 1
        first = (number - 1) * self.steps + 1
        losses, sizes = [], []
        pairs = ahead(self.batches(number), lambda batch: self.some(batch.nodes))
        for step, (batch, inputs) in enumerate(pairs, first):
            losses.append(self.step(self.loss(batch, inputs, step), optimizer))
            sizes.append(float(batch.size))
        weights = torch.tensor(sizes, device=self.keys.device).unsqueeze(1)
        loss = (torch.stack(losses).float() * weights).sum(dim=0) / weights.sum()
        score, val_loss = self.evaluate()
        live = torch.arange(len(self.keys), device=self.keys.device)
        sound = torch.where(loss.isfinite(), val_loss, float("nan"))  # both losses, or not the best
        update_best(current, live, number, score, sound, self.stage.patience)
        return torch.stack([loss, val_loss, score])

    @torch.no_grad()
    def logits(self, nodes: Tensor) -> Tensor:
        """(R, B, C) of some nodes of this rank, dropout off."""
        parts = ahead(torch.split(nodes, READ_NODES), self.some)
        return torch.cat([self.model(inputs).logits for _, inputs in parts], dim=1)

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Validation score and loss of each replica: rank 0 has all logits, and says it."""
        found = self.ranks.gathered(self.logits(self.val_nodes))
        result = torch.zeros(2, len(self.keys), device=self.keys.device)
        if self.ranks.is_first:
            labels = self.val_labels.expand(len(self.keys), -1)
            valid = torch.ones_like(labels, dtype=torch.bool)
            result[0] = self.metric(found, labels, valid)
            result[1] = class_loss(found, labels, valid)
        score, loss = self.ranks.agreed(result)
        return score, loss

    def why(self, number: int) -> str:
        """Why the loss of a replica is not finite, by the rows of this rank."""
        return explain_nonfinite_loss(self.stage, self.replicas[number], self.train_nodes, number)

    def optimizer(self, current: StageState | None) -> ReplicaAdam:
        """Adam, going on where the state stands."""
        return ReplicaAdam(
            self.trained,
            Rates(self.stage.lr, self.stage.weight_decay),
            current.first if current else None,
            current.second if current else None,
            current.epoch * self.steps if current else 0,
        )


def fit(
    training: ParallelTraining,
    *,
    path: Path | None = None,
    identity: str = "",
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainState:
    """Train to the end; the model then has the best parameters of each replica.

    Args:
        training: what to train.
        path: where rank 0 saves the state, and all ranks find it again; None saves nothing.
        identity: names this training; a state with another name is refused.
        report: called by rank 0 after each epoch.
        should_stop: asked after each epoch; where one rank says yes all stop, the state is saved,
            and KeyboardInterrupt is raised.

    Returns:
        The state with its stage done.
    """
    state = TrainState() if path is None else saved_state(training.ranks, path, identity)
    if STAGE not in state.done:
        _run(training, state, path, identity, report, should_stop)
        finish_stage(state, training.stage, training.replicas, training.why)
        if path is not None and training.ranks.is_first:
            write_state(path, state, identity)
    load_parameters(training.model, state.done[STAGE])
    return state


def saved_state(ranks: Ranks, path: Path, identity: str) -> TrainState:
    """The state in a file, or a new one where there is none; all ranks have the same.

    A shared disk may show a file late. Ranks that began at different epochs would wait for each
    other, so where one sees another file than rank 0 all of them end.

    Args:
        ranks: who trains.
        path: the file.
        identity: names the training; a state with another name is refused.
    """
    state = TrainState()
    is_there = path.exists()
    if is_there:
        state = read_state(path, identity, ranks.device)
    epoch = state.current.epoch if state.current else 0
    own = [int(is_there), int(STAGE in state.done), epoch]
    first = ranks.agreed(torch.tensor(own, device=ranks.device)).tolist()
    if any(ranks.counts(int(own != first))):
        raise HPGMNError(
            f"The ranks do not see the same saved state {path}. Wait until every machine shows the "
            "same file, then repeat the command with --resume."
        )
    return state


def _run(
    training: ParallelTraining,
    state: TrainState,
    path: Path | None,
    identity: str,
    report: Callable[[Progress], None] | None,
    should_stop: Callable[[], bool],
) -> None:
    """The epochs that are left."""
    stage, first = training.stage, training.ranks.is_first
    if state.current is not None:
        load_parameters(training.model, state.current.parameters)
    optimizer = training.optimizer(state.current)
    values = {name: own.detach() for name, own in all_parameters(training.model).items()}
    if state.current is None:
        moments = (optimizer.first, optimizer.second)
        state.current = start_stage(
            STAGE, values, moments, len(training.keys), training.ranks.device
        )
    current = state.current
    current.parameters = values
    training.warm_up()
    saved = last = time.monotonic()
    while current.epoch < stage.epochs:
        if current.epoch and not improving_replicas(current, stage):
            break
        with matmul_precision(stage.precision, training.ranks.device):
            row = training.epoch(optimizer, current)
        for key, numbers in zip(HISTORY, row, strict=True):
            current.history[key].append(numbers)
        current.epoch += 1
        now = time.monotonic()
        state.seconds["training"] += now - last
        last = now
        is_asked = any(training.ranks.counts(int(should_stop())))
        if first and path is not None and (is_asked or now - saved > SAVE_SECONDS):
            write_state(path, state, identity)
            saved = time.monotonic()
        if is_asked:
            raise KeyboardInterrupt
        if first and report is not None:
            loss, score = float(row[0].nanmean()), float(current.best_score.mean())
            report(Progress(0, 1, STAGE, current.epoch, stage.epochs, loss, score))
