"""A stage on its device: the loss and the step of its live replicas, and their validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hpgmn.base.machine import free_gpu_bytes
from hpgmn.base.metrics import Metric, class_loss
from hpgmn.base.randomness import Noise
from hpgmn.graph import Array
from hpgmn.models.layers import Output
from hpgmn.models.stage import Rates, StageBuilder, TrainingStage, TrainingTask
from hpgmn.statistics import Statistic
from hpgmn.training.optimizer import ReplicaAdam, all_parameters
from hpgmn.training.replay import WARM_UP, StepReplay, attempt
from hpgmn.training.state import StageState, TrainState, update_best

READ_NODES = 65536
"""A stage in batches evaluates so many nodes at once."""

_KEPT_SHARE = 1 / 8  # of the free GPU memory: rows of a fixed set of nodes, gathered once

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Labelled:
    """The labelled nodes of each replica, padded to one length.

    Replicas trained in batches have equally many (:func:`hpgmn.training.replicas.batches`): padding
    would be steps of their own, and nodes that the penalties see.
    """

    nodes: Tensor  # (R, T)
    labels: Tensor  # (R, T)
    valid: Tensor  # (R, T)

    @classmethod
    def of(cls, labels: Array, device: torch.device) -> Labelled:
        """Those of (R, N) labels that are not -1."""
        known = torch.from_numpy(labels).to(device)  # (R, N)
        valid = known >= 0
        length = max(int(valid.sum(dim=1).max()), 1)
        nodes = torch.argsort(~valid, dim=1, stable=True)[:, :length]
        chosen = valid.gather(1, nodes)
        return cls(nodes, known.gather(1, nodes).clamp(min=0), chosen)

    def batches(self, size: int, noise: Noise) -> Iterator[Labelled]:
        """All of them once, in a random order of each replica's own, so many at a time."""
        order = noise.uniform("order", (self.nodes.shape[1],))
        order = torch.argsort(order + 2.0 * ~self.valid, dim=1, stable=True)  # padding at the end
        for places in torch.split(order, size, dim=1):
            yield Labelled(
                self.nodes.gather(1, places),
                self.labels.gather(1, places),
                self.valid.gather(1, places),
            )


class Running:
    """A stage with its batch of live replicas on the device.

    Args:
        task: all replicas.
        build: makes the stage.
        state: what earlier stages have found; the time to build is added to its seconds.
        live: the replicas in the batch, as positions in the task.
        metric: what selects epochs.
    """

    def __init__(
        self,
        task: TrainingTask,
        build: StageBuilder,
        state: TrainState,
        live: list[int],
        metric: Metric,
    ) -> None:
        started = time.perf_counter()
        self.task = task.subset(live)
        done = {
            name: {key: value[live] for key, value in parameters.items()}
            for name, parameters in state.done.items()
        }
        self.stage = build(self.task, done)
        self.metric = metric
        device = self.task.device
        self.live = torch.tensor(live, device=device)
        self.model = self.stage.model.to(device)
        self.keys = self.task.keys(self.stage.name)
        self.train = Labelled.of(self.task.train_labels, device)
        self.val = Labelled.of(self.task.val_labels, device)
        self.class_weights = self.task.class_weights if self.stage.is_supervised else None
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
        self._consistency_weights = torch.tensor(
            [one.consistency_weight for one in self.stage.consistency or ()], device=device
        )
        self._recorded: StepReplay | None = None
        self._until_recorded = WARM_UP
        self._val_inputs = self._kept(self.val.nodes)
        self._train_inputs = None
        if not self.stage.needs_all_nodes and not self.stage.batch_size:
            self._train_inputs = self._kept(self.train.nodes)
        state.seconds["statistics"] += time.perf_counter() - started

    def _kept(self, nodes: Tensor) -> dict[str, Any] | None:
        """The inputs of nodes that every epoch reads, gathered once where a GPU has the room."""
        stage = self.stage
        if nodes.device.type != "cuda" or stage.batch_size or not stage.reads_rows:
            return None
        size = 4 * nodes.numel() * sum(statistic.width for statistic in stage.inputs.values())
        if size > _KEPT_SHARE * free_gpu_bytes(nodes.device):
            return None
        return rows_of(stage, nodes)

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

    @property
    def passes(self) -> int:
        """Noisy passes in a step that reads all train nodes."""
        consistency = self.stage.consistency
        return 1 if consistency is None else consistency[0].consistency_passes

    @property
    def can_replay(self) -> bool:
        """Whether what the stage does may become a CUDA graph."""
        return self.keys.is_cuda and self.stage.is_replayable

    def noise_steps(self, epoch: int) -> list[int]:
        """The numbers by which the passes of an epoch without batches draw their noise."""
        return (
            [epoch] if self.passes == 1 else [epoch * self.passes + p for p in range(self.passes)]
        )

    def epoch(
        self,
        optimizer: ReplicaAdam,
        current: StageState,
        epoch: int | Tensor,
        noises: list[Noise] | None = None,
    ) -> Tensor:
        """Train, evaluate, keep what is better; asks a GPU nothing.

        Args:
            optimizer: of the trained parameters.
            current: the stage; its best values are changed in place.
            epoch: its number; a tensor inside a CUDA graph.
            noises: that of each pass; made here if None.

        Returns:
            (3, R) what :data:`~hpgmn.training.state.HISTORY` lists, NaN for replicas not in the
            batch and, where no label is read, for validation.
        """
        if self.stage.batch_size:
            assert isinstance(epoch, int)
            loss = self._epoch_in_batches(optimizer, epoch)
        else:
            if noises is None:
                assert isinstance(epoch, int)
                noises = [Noise(self.keys, number) for number in self.noise_steps(epoch)]
            loss = self._step(optimizer, self._full_loss(noises, epoch))
        found = [loss]
        if self.stage.is_supervised:
            score, val_loss = self.evaluate()
            found += [val_loss, score]
        else:  # no label may choose: the last epoch with a finite loss is the best
            score, val_loss = torch.zeros_like(loss), loss * 0 - epoch
        sound = torch.where(loss.isfinite(), val_loss, float("nan"))  # both losses, or not the best
        update_best(current, self.live, epoch, score, sound, self.stage.patience)
        row = loss.new_full((3, current.best_score.shape[0]), float("nan"))
        row[: len(found)] = row[: len(found)].index_copy(1, self.live, torch.stack(found).float())
        return row

    def _epoch_in_batches(self, optimizer: ReplicaAdam, epoch: int) -> Tensor:
        """One pass over the train nodes; returns the mean loss of each replica, (R,)."""
        parts = self.train.batches(self.stage.batch_size, Noise(self.keys, epoch))
        first = (epoch - 1) * self.steps + 1
        losses, sizes = [], []
        if self.can_replay and is_on_gpu(self.stage):
            for number, part in enumerate(parts, first):
                losses.append(self._step_alike(optimizer, part, number))
                sizes.append(part.valid.sum(dim=1))
        else:
            for number, (part, inputs) in enumerate(ahead(parts, self._rows), first):
                losses.append(self._step_on(optimizer, part, inputs, Noise(self.keys, number)))
                sizes.append(part.valid.sum(dim=1))
        weights = torch.stack(sizes).float()
        return (torch.stack(losses) * weights).sum(dim=0) / weights.sum(dim=0).clamp(min=1)

    def _step_alike(self, optimizer: ReplicaAdam, part: Labelled, number: int) -> Tensor:
        """A step on a batch, replayed if it has the size of those before."""

        def step(batch: Sequence[Tensor], noise: Noise) -> Tensor:
            own = Labelled(*batch)
            return self._step_on(optimizer, own, self._rows(own), noise)

        batch = (part.nodes, part.labels, part.valid)
        is_whole = part.nodes.shape[1] == self.stage.batch_size
        if self._until_recorded == 0 and is_whole:
            self._recorded = attempt(lambda: StepReplay(step, self.keys, batch))
        self._until_recorded -= is_whole
        if self._recorded is not None and self._recorded.fits(batch):
            return self._recorded.step(batch, number)
        return step(batch, Noise(self.keys, number))

    def _step_on(self, optimizer: ReplicaAdam, part: Labelled, inputs: Any, noise: Noise) -> Tensor:
        output = self._forward(inputs, noise)
        return self._step(optimizer, self._weighted(output, output.logits, part))

    def _rows(self, part: Labelled) -> dict[str, Any]:
        return rows_of(self.stage, part.nodes)

    def _forward(self, inputs: Any, noise: Noise, *places: Tensor | None) -> Output:
        """The model in training, in the precision of the stage."""
        half = self.stage.precision == "bfloat16" and self.keys.is_cuda
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            output: Output = self.model(inputs, noise, *places, penalties=bool(self.weights))
        return output

    def _step(self, optimizer: ReplicaAdam, loss: Tensor) -> Tensor:
        """Backward and step along a loss whose forward pass is done."""
        optimizer.clear()
        torch.autograd.backward(loss.sum())
        optimizer.step()
        if self.stage.after_step is not None:
            with torch.no_grad():
                self.stage.after_step(self.model)
        return loss.detach()

    def _weighted(self, output: Output, logits: Tensor, part: Labelled) -> Tensor:
        loss = logits.new_zeros(logits.shape[0], dtype=torch.float32)
        if self.stage.is_supervised:
            loss = class_loss(logits, part.labels, part.valid, self.class_weights)
        for name, weight in self.weights.items():
            loss = loss + weight * output.penalties[name]
        return loss

    def _full_loss(self, noises: list[Noise], epoch: int | Tensor) -> Tensor:
        if self.stage.consistency is not None:
            return self._agreement(noises, epoch)
        nodes, stage = self.train.nodes, self.stage
        if stage.needs_all_nodes:
            output = self._forward(stage.inputs, noises[0], None, nodes)
        elif self._train_inputs is not None:
            output = self._forward(self._train_inputs, noises[0])
        else:
            output = self._forward(stage.inputs, noises[0], nodes)
        return self._weighted(output, output.logits, self.train)

    def _agreement(self, noises: list[Noise], epoch: int | Tensor) -> Tensor:
        """The loss over several noisy passes, plus their distance from the sharpened mean."""
        assert self.stage.consistency is not None
        first = self.stage.consistency[0]
        weight = self._consistency_weights
        if first.consistency_warmup:  # agreement on first guesses can lock them in
            grown = epoch / first.consistency_warmup
            weight = weight * (grown.clamp(max=1) if isinstance(grown, Tensor) else min(1.0, grown))
        outputs = [self._forward(self.stage.inputs, noise) for noise in noises]
        index = self.train.nodes.unsqueeze(-1).expand(-1, -1, self.task.num_classes)
        loss = torch.stack(
            [self._weighted(one, one.logits.gather(1, index), self.train) for one in outputs]
        ).mean(dim=0)
        chances = torch.stack(
            [one.logits.float().softmax(dim=-1) for one in outputs]
        )  # (P, R, N, C)
        # (P, R, N, C): passes, replicas, nodes, classes
        sharp = chances.mean(dim=0).detach().pow(1 / first.consistency_temperature)
        target = sharp / sharp.sum(dim=-1, keepdim=True)
        distance = (chances - target).square().sum(dim=-1).mean(dim=(0, 2))  # (R,)
        return loss + weight * distance

    @torch.no_grad()
    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Validation score and loss of each replica, dropout off."""
        if self._val_inputs is not None:
            output: Output = self.model(self._val_inputs)
            found = output.logits
        else:
            found = logits_of(self.model, self.stage, self.val.nodes)
        score = self.metric(found, self.val.labels, self.val.valid)
        return score, class_loss(found, self.val.labels, self.val.valid)


def rows_of(stage: TrainingStage, nodes: Tensor) -> dict[str, Statistic]:
    """The inputs of a stage that reads rows, of some nodes of each replica alone: (R, B)."""
    return {name: statistic.some(nodes) for name, statistic in stage.inputs.items()}


def logits_of(model: nn.Module, stage: TrainingStage, nodes: Tensor | None) -> Tensor:
    """Logits of some nodes of each replica, (R, B), or of all; in parts where a stage reads so."""
    if nodes is None or not stage.batch_size:
        output: Output = model(stage.inputs, None, nodes)
        return output.logits
    parts = torch.split(nodes, READ_NODES, dim=1)
    if is_on_gpu(stage):
        return torch.cat([model(rows_of(stage, part)).logits for part in parts], dim=1)
    pairs = ahead(parts, lambda part: rows_of(stage, part))
    return torch.cat([model(inputs).logits for _, inputs in pairs], dim=1)


def is_on_gpu(stage: TrainingStage) -> bool:
    """Whether the rows of a batch are a matter of the GPU alone."""
    return all(statistic.is_on_gpu for statistic in stage.inputs.values())


def ahead(items: Iterable[T], fetch: Callable[[T], U]) -> Iterator[tuple[T, U]]:
    """Each item with what is fetched for it, the next one fetched while this one is in use."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for item in items:
            coming = (item, pool.submit(fetch, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = coming
        if waiting is not None:
            yield waiting[0], waiting[1].result()
