"""Run one stage: loss, optimizer step and validation of its live replicas.

Each of several ranks reads its nodes of every batch; losses are summed and gradients averaged over
ranks, so every rank makes the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.machine import free_gpu_bytes
from hpgmn.base.metrics import Metric
from hpgmn.base.objectives import Objective
from hpgmn.base.randomness import Noise
from hpgmn.base.tasks import is_known
from hpgmn.graph import Array
from hpgmn.models.layers import Output
from hpgmn.models.stage import (
    Parameters,
    Rates,
    Replica,
    TrainingStage,
    prefetch,
    rows_of,
    stage_logits,
)
from hpgmn.training.ranks import Ranks
from hpgmn.training.state import ReplicaAdam, StageState, TrainState, all_parameters, update_best

if TYPE_CHECKING:
    from hpgmn.training.replay import StepReplay

WARM_UP = 2
"""Runs before a CUDA graph is recorded: libraries initialise themselves in the first."""


@dataclass(frozen=True)
class NodeBatch:
    """The part of a batch of train nodes that this rank reads.

    Attributes:
        nodes: (R, B), or (1, B) for all replicas.
        labels: of the same shape.
        valid: of the same shape; other entries are padding.
        positions: (B,) in the batch of all ranks; None: it is the whole batch.
        size: (R,) or (1,) nodes of the whole batch.
    """

    nodes: Tensor
    labels: Tensor
    valid: Tensor
    positions: Tensor | None
    size: Tensor


@dataclass(frozen=True)
class LabelledNodes:
    """The labelled nodes of each replica, padded to one length.

    Replicas trained in batches have equally many (:func:`hpgmn.training.replicas.replica_groups`).

    Attributes:
        nodes: (R, T), or (1, T) for all replicas.
        labels: of the same shape.
        valid: of the same shape; other entries are padding.
        first: position of this rank's first node among those of all ranks.
        total: nodes of all ranks; None: this rank has all of them.
    """

    nodes: Tensor
    labels: Tensor
    valid: Tensor
    first: int = 0
    total: int | None = None

    @classmethod
    def of(cls, labels: Array, device: torch.device, ranks: Ranks | None = None) -> LabelledNodes:
        """Select the nodes whose label is known; several ranks count theirs together."""
        valid = torch.from_numpy(is_known(labels)).to(device)
        known = torch.from_numpy(np.where(is_known(labels), labels, 0)).to(device)
        length = max(int(valid.sum(dim=1).max()), 1)
        if ranks is not None and ranks.size > 1:
            length = int(valid.sum())
        nodes = torch.argsort(~valid, dim=1, stable=True)[:, :length]
        chosen = known.gather(1, nodes), valid.gather(1, nodes)
        if ranks is None or ranks.size == 1:
            return cls(nodes, *chosen)
        counts = ranks.gather_numbers(length)
        return cls(nodes, *chosen, first=sum(counts[: ranks.rank]), total=sum(counts))

    @property
    def count(self) -> int:
        """Nodes of all ranks, padding included."""
        return self.nodes.shape[1] if self.total is None else self.total

    def node_batches(self, size: int, noise: Noise) -> Iterator[NodeBatch]:
        """Yield all nodes once in random order; every rank draws the same order."""
        order = noise.uniform("order", (self.count,))
        if self.total is None:
            order = order + 2.0 * ~self.valid  # padding at the end
        order = torch.argsort(order, dim=1, stable=True)
        for chosen in torch.split(order, size, dim=1):
            if self.total is None:
                valid = self.valid.gather(1, chosen)
                positions, count = None, valid.sum(dim=1)
            else:
                last = self.first + self.nodes.shape[1]
                positions = torch.nonzero((chosen[0] >= self.first) & (chosen[0] < last))[:, 0]
                count = torch.tensor([chosen.shape[1]])
                chosen = chosen[:, positions] - self.first
                valid = self.valid.gather(1, chosen)
            nodes, labels = self.nodes.gather(1, chosen), self.labels.gather(1, chosen)
            yield NodeBatch(nodes, labels, valid, positions, count)


_GATHERED_SHARE = 1 / 8  # of the free GPU memory: rows of a fixed set of nodes, gathered once


class Task(Protocol):
    """What the loop reads of a task: of a graph, or of the row shards of one rank."""

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """R replicas."""

    @property
    def train_labels(self) -> Array:
        """(R, N), or (1, N) for all replicas; unknown outside the train nodes."""

    @property
    def val_labels(self) -> Array:
        """The same for the validation nodes."""

    @property
    def objective(self) -> Objective:
        """The loss of the task and the unit of its outputs."""

    @property
    def device(self) -> torch.device:
        """Where tensors live."""

    def subset(self, chosen: Sequence[int]) -> Self:
        """Select replicas."""

    def keys(self, stage: str) -> Tensor:
        """(R,) the roots of the replicas' random numbers."""

    def order_keys(self, stage: str) -> Tensor:
        """The same for the order of train nodes: (R,), or (1,) where replicas share batches."""


BuildStage: TypeAlias = Callable[[Any, Mapping[str, Parameters]], TrainingStage]
"""Builds a stage from a task and the best parameters of the stages before it."""


def build_stage(
    task: Task, build: BuildStage, state: TrainState, live: Sequence[int]
) -> tuple[Any, TrainingStage]:
    """Build a stage for some replicas; return their task and the stage."""
    chosen = list(live)
    parameters = {
        name: {key: value[chosen] for key, value in values.items()}
        for name, values in state.done.items()
    }
    subset = task.subset(chosen)
    return subset, build(subset, parameters)


class StageRunner:
    """A stage with its live replicas on the device.

    Args:
        task: all replicas.
        state: results of earlier stages; the time to build is added to its seconds.
        live: the replicas to train, as positions in the task.
        fixed: (R,) the epoch whose values each replica keeps, whatever the validation labels are;
            None selects the best on validation.
    """

    def __init__(
        self,
        task: Task,
        build: BuildStage,
        state: TrainState,
        live: list[int],
        metric: Metric,
        ranks: Ranks | None = None,
        fixed: Tensor | None = None,
    ) -> None:
        started = time.perf_counter()
        self.task, self.stage = build_stage(task, build, state, live)
        if fixed is not None:
            self.stage = replace(self.stage, epochs=int(fixed.max()), patience=0)
        self.metric, self.ranks = metric, ranks or Ranks(device=task.device)
        stage, device = self.stage, self.task.device
        self.live = torch.tensor(live, device=device)
        self._fixed = None if fixed is None else fixed.to(device)[self.live]
        self.model = stage.model.to(device)
        self.keys = self.task.keys(stage.name)
        # Rows read from the host are chosen there, so that the host need not wait for a GPU.
        nodes_device = torch.device("cpu") if stage.batch_size and not stage.is_on_gpu else device
        self.order_keys = self.task.order_keys(stage.name).to(nodes_device)
        self.train = LabelledNodes.of(self.task.train_labels, nodes_device, self.ranks)
        self.val = LabelledNodes.of(self.task.val_labels, nodes_device, self.ranks)
        val_labels, val_valid = self.val.labels.to(device), self.val.valid.to(device)
        if self.ranks.size > 1:  # rank 0 has all labels; there is no padding
            val_labels = self.ranks.gather(val_labels)
            val_valid = torch.ones_like(val_labels, dtype=torch.bool)
        self._val_labels = val_labels.expand(len(live), -1)
        self._val_valid = val_valid.expand(len(live), -1)
        self.objective = self.task.objective
        self.weights = {
            name: torch.tensor(values, device=device)
            for name, values in stage.penalty_weights.items()
            if any(values)
        }
        self.trained = {
            name: parameter
            for name, parameter in all_parameters(self.model).items()
            if parameter.requires_grad
        }
        self._parallel = self.ranks.average_gradients(self.model)
        self._consistency_weights = torch.tensor(
            [settings.consistency_weight for settings in stage.consistency or ()], device=device
        )
        self._recorded: StepReplay | None = None
        self._until_recorded = WARM_UP
        self._val_inputs = self._gather_once(self.val.nodes)
        self._train_inputs = None
        if not stage.needs_all_nodes and not stage.batch_size:
            self._train_inputs = self._gather_once(self.train.nodes)
        state.seconds["statistics"] += time.perf_counter() - started

    def _gather_once(self, nodes: Tensor) -> dict[str, Any] | None:
        """Gather the inputs of nodes that every epoch reads, if GPU memory allows."""
        stage = self.stage
        if nodes.device.type != "cuda" or stage.batch_size or not stage.reads_rows:
            return None
        size = 4 * nodes.numel() * sum(statistic.width for statistic in stage.inputs.values())
        if size > _GATHERED_SHARE * free_gpu_bytes(nodes.device):
            return None
        return rows_of(stage, nodes)

    def optimizer(self, current: StageState | None) -> ReplicaAdam:
        """Return Adam over the trained parameters, continuing from a state."""
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
        """Steps per epoch."""
        size = self.stage.batch_size
        return -(-self.train.count // size) if size else 1

    @property
    def passes(self) -> int:
        """Noisy passes in a step that reads all train nodes."""
        consistency = self.stage.consistency
        return 1 if consistency is None else consistency[0].consistency_passes

    @property
    def can_replay(self) -> bool:
        """Whether a CUDA graph may replay the stage."""
        return self.keys.is_cuda and self.stage.is_replayable and self.ranks.size == 1

    def noise_steps(self, epoch: int) -> list[int]:
        """Return the step numbers from which the passes of an epoch without batches draw noise."""
        return (
            [epoch] if self.passes == 1 else [epoch * self.passes + p for p in range(self.passes)]
        )

    def warm_up(self) -> None:
        """Make a backward pass without effect, after which gradient buckets keep their layout.

        A resumed run then adds the gradients of more than two ranks in the same order.
        """
        if self.ranks.size > 1:
            batch = next(self.node_batches(1))
            torch.autograd.backward(self.batch_loss(batch, self._rows(batch), 0).sum())

    def epoch(
        self,
        optimizer: ReplicaAdam,
        current: StageState,
        epoch: int | Tensor,
        noises: list[Noise] | None = None,
    ) -> Tensor:
        """Train, validate and update the best values, without host–device synchronisation.

        Args:
            current: the stage; its best values are changed in place.
            epoch: its number; a tensor inside a CUDA graph.
            noises: one per pass; drawn here if None.

        Returns:
            (3, R) the values of :data:`~hpgmn.training.state.HISTORY`, NaN for replicas that are
            not live and, in an unsupervised stage or with fixed epochs, for validation.
        """
        if self.stage.batch_size:
            assert isinstance(epoch, int)
            loss = self._epoch_in_batches(optimizer, epoch)
        else:
            if noises is None:
                assert isinstance(epoch, int)
                noises = [Noise(self.keys, number) for number in self.noise_steps(epoch)]
            loss = self._step(optimizer, self._full_loss(noises, epoch))
        values = [loss]
        if self._fixed is not None:  # a score in that epoch alone
            score, val_loss = torch.where(self._fixed == epoch, 0.0, float("nan")), loss
        elif self.stage.is_supervised:
            score, val_loss = self.evaluate()
            values += [val_loss, score]
        else:  # no label may choose: the last epoch with a finite loss is the best
            score, val_loss = torch.zeros_like(loss), loss * 0 - epoch
        finite = torch.where(loss.isfinite(), val_loss, float("nan"))  # both losses, or not best
        update_best(current, self.live, epoch, score, finite, self.stage.patience)
        row = loss.new_full((3, current.best_score.shape[0]), float("nan"))
        row[: len(values)] = row[: len(values)].index_copy(
            1, self.live, torch.stack(values).float()
        )
        return row

    def node_batches(self, epoch: int) -> Iterator[NodeBatch]:
        """Yield this rank's part of every batch of an epoch."""
        return self.train.node_batches(self.stage.batch_size, Noise(self.order_keys, epoch))

    def _epoch_in_batches(self, optimizer: ReplicaAdam, epoch: int) -> Tensor:
        """Read all train nodes once; return the mean loss of each replica, (R,)."""
        batches = self.node_batches(epoch)
        first = (epoch - 1) * self.steps + 1
        losses, sizes = [], []
        if self.can_replay and self.stage.is_on_gpu:
            for number, batch in enumerate(batches, first):
                losses.append(self._replayed_step(optimizer, batch, number))
                sizes.append(batch.size)
        else:
            for number, (batch, inputs) in enumerate(prefetch(batches, self._rows), first):
                losses.append(self._step(optimizer, self.batch_loss(batch, inputs, number)))
                sizes.append(batch.size)
        weights = torch.stack(sizes).float().to(self.keys.device)
        return (torch.stack(losses) * weights).sum(dim=0) / weights.sum(dim=0).clamp(min=1)

    def _replayed_step(self, optimizer: ReplicaAdam, batch: NodeBatch, number: int) -> Tensor:
        """Make a step on a batch, replayed if it has the recorded size."""

        def step(tensors: Sequence[Tensor], noise: Noise) -> Tensor:
            part = NodeBatch(tensors[0], tensors[1], tensors[2], None, batch.size)
            return self._step(optimizer, self._loss_of_rows(part, self._rows(part), noise))

        tensors = (batch.nodes, batch.labels, batch.valid)
        is_full = batch.nodes.shape[1] == self.stage.batch_size
        if self._until_recorded == 0 and is_full:
            from hpgmn.training.replay import StepReplay, attempt  # for a GPU only

            self._recorded = attempt(lambda: StepReplay(step, self.keys, tensors))
        self._until_recorded -= is_full
        if self._recorded is not None and self._recorded.fits(tensors):
            return self._recorded.step(tensors, number)
        return step(tensors, Noise(self.keys, number))

    def batch_loss(self, batch: NodeBatch, inputs: Mapping[str, Any], step: int) -> Tensor:
        """(R,) the loss of the batch of all ranks, from this rank's part of it."""
        positions = batch.positions
        if positions is not None:
            positions = positions.to(self.keys.device)
        return self._loss_of_rows(batch, inputs, Noise(self.keys, step, positions))

    def _loss_of_rows(self, batch: NodeBatch, inputs: Mapping[str, Any], noise: Noise) -> Tensor:
        output = self._forward(inputs, noise)
        return self._weighted_loss(output, output.logits, batch)

    def _rows(self, batch: NodeBatch) -> dict[str, Any]:
        return rows_of(self.stage, batch.nodes.expand(len(self.keys), -1))

    def _forward(self, inputs: Any, noise: Noise, *nodes: Tensor | None) -> Output:
        """Call the model in training, in the precision of the stage."""
        half = self.stage.precision == "bfloat16" and self.keys.is_cuda
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            output: Output = self._parallel(inputs, noise, *nodes, penalties=bool(self.weights))
        return output

    def _step(self, optimizer: ReplicaAdam, loss: Tensor) -> Tensor:
        """Backpropagate and step; return the loss."""
        optimizer.clear()
        torch.autograd.backward(loss.sum())
        optimizer.step()
        if self.stage.after_step is not None:
            with torch.no_grad():
                self.stage.after_step(self.model)
        return loss.detach()

    def _weighted_loss(
        self, output: Output, logits: Tensor, nodes: NodeBatch | LabelledNodes
    ) -> Tensor:
        """(R,) class loss plus weighted penalties."""
        loss = logits.new_zeros(logits.shape[0], dtype=torch.float32)
        if self.stage.is_supervised:
            labels, valid = (
                values.to(logits.device).expand(len(logits), -1)
                for values in (nodes.labels, nodes.valid)
            )
            total = self.ranks.sum if self.ranks.size > 1 else None
            loss = self.objective.loss(logits, labels, valid, total)
        for name, weight in self.weights.items():
            loss = loss + weight * output.penalties[name]
        return loss

    def _full_loss(self, noises: list[Noise], epoch: int | Tensor) -> Tensor:
        if self.stage.consistency is not None:
            return self._consistency_loss(noises, epoch)
        nodes, stage = self.train.nodes, self.stage
        if stage.needs_all_nodes:
            output = self._forward(stage.inputs, noises[0], None, nodes)
        elif self._train_inputs is not None:
            output = self._forward(self._train_inputs, noises[0])
        else:
            output = self._forward(stage.inputs, noises[0], nodes)
        return self._weighted_loss(output, output.logits, self.train)

    def _consistency_loss(self, noises: list[Noise], epoch: int | Tensor) -> Tensor:
        """Return the mean loss of several noisy passes, plus their distance from its target."""
        assert self.stage.consistency is not None
        first = self.stage.consistency[0]
        weight = self._consistency_weights
        if first.consistency_warmup:  # agreement on early predictions can lock them in
            grown = epoch / first.consistency_warmup
            weight = weight * (grown.clamp(max=1) if isinstance(grown, Tensor) else min(1.0, grown))
        outputs = [self._forward(self.stage.inputs, noise) for noise in noises]
        index = self.train.nodes.unsqueeze(-1).expand(-1, -1, self.objective.output_dim)
        loss = torch.stack(
            [
                self._weighted_loss(output, output.logits.gather(1, index), self.train)
                for output in outputs
            ]
        ).mean(dim=0)
        # (P, R, N, C): passes, replicas, nodes, classes
        probabilities = torch.stack([output.logits.float().softmax(dim=-1) for output in outputs])
        sharp = probabilities.mean(dim=0).detach().pow(1 / first.consistency_temperature)
        target = sharp / sharp.sum(dim=-1, keepdim=True)
        distance = (probabilities - target).square().sum(dim=-1).mean(dim=(0, 2))  # (R,)
        return loss + weight * distance

    @torch.no_grad()
    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Return validation score and loss of each replica; rank 0 computes them for all."""
        if self._val_inputs is not None:
            output: Output = self.model(self._val_inputs)
            logits = output.logits
        else:
            logits = stage_logits(self.stage, self.val.nodes.expand(len(self.keys), -1))
        if self.ranks.size > 1:
            logits = self.ranks.gather(logits)
        if self.ranks.is_first:
            labels = (self._val_labels, self._val_valid)
            score = self.metric(self.objective.values(logits), *labels)
            loss = self.objective.validation_loss(logits, *labels)
        else:
            score = loss = torch.zeros(len(self.keys), device=logits.device)
        if self.ranks.size > 1:
            score, loss = self.ranks.broadcast(torch.stack([score, loss]).float())
        return score, loss
