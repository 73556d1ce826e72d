"""What the trainer needs to know of a model: its task, and its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from hpgmn.base.randomness import DropRate, stable_key
from hpgmn.base.settings import TrainSettings
from hpgmn.graph import Array, Graph
from hpgmn.models.memory import NODE_PENALTIES
from hpgmn.statistics import LocalStatistics

Parameters: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Replica:
    """One training: a split, a seed and settings."""

    split: int
    seed: int
    settings: Any


@dataclass(frozen=True)
class TrainingTask:
    """R replicas on one graph, with only the labels that training may see.

    Attributes:
        statistics: the builder of the graph's statistics, shared by all stages.
        replicas: R of them; shapes of their settings agree.
        train_labels: (R, N), -1 outside the train nodes.
        val_labels: (R, N), -1 outside the validation nodes; used for selection only.
        num_classes: C.
    """

    statistics: LocalStatistics
    replicas: tuple[Replica, ...]
    train_labels: Array
    val_labels: Array
    num_classes: int

    @property
    def graph(self) -> Graph:
        """The graph the task is about."""
        return self.statistics.graph

    @property
    def device(self) -> torch.device:
        """Where tensors live."""
        return self.statistics.device

    @property
    def settings(self) -> list[Any]:
        """One settings object per replica."""
        return [replica.settings for replica in self.replicas]

    @property
    def class_weights(self) -> Tensor | None:
        """(R, C) how much a train node of each class counts in the class loss; None: all alike."""
        if self.settings[0].class_weights == "none":
            return None
        weights = balanced_weights(self.train_labels, self.num_classes)
        return torch.from_numpy(weights).float().to(self.device)

    def subset(self, chosen: Sequence[int]) -> TrainingTask:
        """The same task for some of its replicas."""
        return replace(
            self,
            replicas=tuple(self.replicas[i] for i in chosen),
            train_labels=self.train_labels[list(chosen)],
            val_labels=self.val_labels[list(chosen)],
        )

    def drop_rate(self, setting: str) -> DropRate:
        """The dropout that a setting asks for, one rate per replica."""
        return DropRate([getattr(one, setting) for one in self.settings], self.device)

    def keys(self, stage: str) -> Tensor:
        """(R,) the roots of the replicas' random numbers in a stage."""
        return replica_keys(self.replicas, stage, self.device)


def replica_keys(
    replicas: Sequence[Replica], stage: str, device: torch.device | str = "cpu"
) -> Tensor:
    """(R,) the roots of replicas' random numbers in a stage."""
    numbers = [stable_key(one.seed, one.split, stage) for one in replicas]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def balanced_weights(labels: Array, num_classes: int) -> Array:
    """N / (C · n_c) for each class c of each replica, 0 for a class without a node.

    Args:
        labels: (R, N), -1 for nodes that do not count.
        num_classes: C.

    Returns:
        (R, C)

    >>> balanced_weights(np.array([[0, 0, 0, 1, -1]]), 3)
    array([[0.44444444, 1.33333333, 0.        ]])
    """
    counts = np.stack([np.bincount(own[own >= 0], minlength=num_classes) for own in labels])
    total = counts.sum(axis=1, keepdims=True)
    return np.where(counts > 0, total / (num_classes * np.maximum(counts, 1)), 0.0)


def make_task(
    graph: Graph,
    replicas: Sequence[Replica],
    masks: Sequence[tuple[Array, Array]],
    device: torch.device | str,
) -> TrainingTask:
    """A task from a graph and, for each replica, its train and validation masks."""
    y = graph.y
    train = np.stack([np.where(train, y, -1) for train, _ in masks])
    val = np.stack([np.where(val, y, -1) for _, val in masks])
    return TrainingTask(
        LocalStatistics(graph, device), tuple(replicas), train, val, graph.num_classes
    )


@dataclass(frozen=True)
class Rates:
    """Learning rate and weight decay, one of each per replica."""

    lr: list[float]
    weight_decay: list[float]


@dataclass
class TrainingStage:
    """One optimisation: which parameters, which loss, how long, and how the best is chosen.

    Attributes:
        name: unique among a model's stages.
        model: called as ``model(inputs, noise, nodes, classify, penalties=…)``.
        inputs: what the model reads (statistics by name, sparse matrices, …).
        lr: one per replica.
        weight_decay: one per replica.
        epochs: at most so many.
        patience: stop a replica after so many epochs without a better one; 0: never.
        penalty_weights: one weight per replica for each penalty the model returns.
        initial: first values of some parameters, from an earlier stage.
        frozen: prefixes of parameter names that keep their first values.
        consistency: settings of the agreement between noisy passes, where wanted.
        own_rates: prefixes of parameter names that have other rates than the rest.
        is_supervised: False leaves the class loss out: the penalties are the loss, no label is
            read, and the last epoch is the best.
        after_step: called with the model after each step, to move what gradients do not.
        batch_size: train nodes read in a step; 0 for all of them in one. The penalties are then
            those of the nodes read.
        reads_rows: whether every input is a statistic, and a node's output needs no more than its
            own rows of them: only then can there be batches.
        precision: of the products on a GPU.
        is_replayable: whether a CUDA graph may repeat an epoch: nothing but tensors and the epoch's
            noise tells one epoch from the next.
    """

    name: str
    model: nn.Module
    inputs: Mapping[str, Any]
    lr: list[float]
    weight_decay: list[float]
    epochs: int
    patience: int
    penalty_weights: dict[str, list[float]] = field(default_factory=dict)
    initial: Parameters = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    consistency: list[TrainSettings] | None = None
    own_rates: Mapping[str, Rates] = field(default_factory=dict)
    is_supervised: bool = True
    after_step: Callable[[nn.Module], None] | None = None
    batch_size: int = 0
    reads_rows: bool = False
    precision: str = "float32"
    is_replayable: bool = True

    @property
    def needs_all_nodes(self) -> bool:
        """Whether a train step must see more than the train nodes."""
        if self.batch_size:
            return False
        return self.consistency is not None or any(
            any(self.penalty_weights.get(name, ())) for name in NODE_PENALTIES
        )


StageBuilder: TypeAlias = Callable[[TrainingTask, Mapping[str, Parameters]], TrainingStage]
"""Makes a stage from the task and the best parameters of the stages before it."""


@dataclass(frozen=True)
class ModelEntry:
    """A model as the commands know it.

    Attributes:
        name: what ``--model`` takes.
        summary: one line.
        citation: the source.
        settings: the dataclass of its settings.
        stages: its stages in order; the last is called "main".
        floats: from a graph and settings, about how many numbers a replica has in its parameters
            and in its activations for one node; decides how many are trained at once.
        optional: for a stage that not all settings have, whether given ones do.
        tied: statistics the model always reads whose columns are the nodes trained on.
        source: a digest of the code behind a user's own model; empty for the models here.
    """

    name: str
    summary: str
    citation: str
    settings: type[TrainSettings]
    stages: Mapping[str, StageBuilder]
    floats: Callable[[Graph, Any], tuple[int, int]]
    optional: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    tied: tuple[str, ...] = ()
    source: str = ""

    def stages_of(self, settings: Any) -> dict[str, StageBuilder]:
        """The stages that settings have, in order."""
        return {
            name: build
            for name, build in self.stages.items()
            if name not in self.optional or self.optional[name](settings)
        }


def main_stage(
    task: TrainingTask, model: nn.Module, inputs: Mapping[str, Any], **more: Any
) -> TrainingStage:
    """The stage that trains a model with its own settings; most models have no other."""
    return stage_of(task.settings, model, inputs, **more)


def stage_of(
    settings: Sequence[Any], model: nn.Module, inputs: Mapping[str, Any], **more: Any
) -> TrainingStage:
    """:func:`main_stage` where there are settings, one for each replica, and no task."""
    consistent = any(one.consistency_weight for one in settings)
    return TrainingStage(
        name="main",
        model=model,
        inputs=inputs,
        lr=[one.lr for one in settings],
        weight_decay=[one.weight_decay for one in settings],
        epochs=settings[0].epochs,
        patience=settings[0].patience,
        consistency=list(settings) if consistent else None,
        batch_size=getattr(settings[0], "batch_size", 0),
        precision=settings[0].precision,
        **more,
    )


def load_parameters(model: nn.Module, parameters: Parameters) -> None:
    """Copy values into a model's parameters of the same names."""
    with torch.no_grad():
        own = dict(model.named_parameters())
        for name, value in parameters.items():
            own[name].copy_(value)
