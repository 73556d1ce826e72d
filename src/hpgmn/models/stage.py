"""What the trainer knows of a model: its task, its stages and its registry entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.objectives import Classification, Objective, Regression
from hpgmn.base.randomness import DropRate, stable_key
from hpgmn.base.settings import FitSettings, TrainSettings
from hpgmn.base.tasks import hide_labels, is_target
from hpgmn.graph import Array, Graph
from hpgmn.models.layers import Output
from hpgmn.models.memory import NODE_PENALTIES
from hpgmn.statistics import LocalStatistics, Statistic

Parameters: TypeAlias = dict[str, Tensor]
T = TypeVar("T")
U = TypeVar("U")

READ_NODES = 65536
"""Nodes evaluated at once by a stage in batches."""


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
        train_labels: (R, N), unknown (-1, or NaN for targets) outside the train nodes.
        val_labels: (R, N), unknown outside the validation nodes; used for selection only.
        trained_labels: (R, T) the train labels of the graph that was trained on, where it is
            another one: targets are standardised and binned by them.
    """

    statistics: LocalStatistics
    replicas: tuple[Replica, ...]
    train_labels: Array
    val_labels: Array
    num_classes: int
    trained_labels: Array | None = None

    @property
    def is_regression(self) -> bool:
        """Whether labels are targets."""
        return is_target(self.train_labels)

    @property
    def reference_labels(self) -> Array:
        """(R, T) the train labels by which targets are standardised and binned."""
        return self.train_labels if self.trained_labels is None else self.trained_labels

    @property
    def output_dim(self) -> int:
        """The number of columns of a model's output."""
        return 1 if self.is_regression else self.num_classes

    @property
    def num_groups(self) -> int:
        """The number of groups that label-wise statistics count: classes, or bins of targets."""
        return self.settings[0].target_bins if self.is_regression else self.num_classes

    @property
    def objective(self) -> Objective:
        """The loss of the task and the unit of its outputs."""
        return self.objective_on(self.device)

    def objective_on(self, device: torch.device | str) -> Objective:
        """Return the objective for logits on a device."""
        if self.is_regression:
            return Regression.of(self.reference_labels, self.settings[0].regression_loss, device)
        weights = self.class_weights
        return Classification(self.num_classes, None if weights is None else weights.to(device))

    @property
    def graph(self) -> Graph:
        """The graph to train on."""
        return self.statistics.graph

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.statistics.device

    @property
    def settings(self) -> list[Any]:
        """One settings object per replica."""
        return [replica.settings for replica in self.replicas]

    @property
    def class_weights(self) -> Tensor | None:
        """(R, C) weight of each class in the class loss; None: equal weights."""
        if self.settings[0].class_weights == "none" or self.is_regression:
            return None
        weights = balanced_weights(self.train_labels, self.num_classes)
        return torch.from_numpy(weights).float().to(self.device)

    def subset(self, positions: Sequence[int]) -> TrainingTask:
        """Return the same task for some of its replicas."""
        return replace(
            self,
            replicas=tuple(self.replicas[i] for i in positions),
            train_labels=self.train_labels[list(positions)],
            val_labels=self.val_labels[list(positions)],
            trained_labels=None
            if self.trained_labels is None
            else self.trained_labels[list(positions)],
        )

    def values(self, setting: str) -> list[Any]:
        """Return the values of a setting, one per replica."""
        return [getattr(replica.settings, setting) for replica in self.replicas]

    def drop_rate(self, setting: str) -> DropRate:
        """Return the dropout rates of a setting, one per replica."""
        return DropRate(self.values(setting), self.device)

    def rates(self, lr: str, weight_decay: str) -> Rates:
        """Return the learning rates and weight decays of two settings."""
        return Rates(self.values(lr), self.values(weight_decay))

    def keys(self, stage: str) -> Tensor:
        """Return the keys of the replicas' random numbers in a stage, (R,)."""
        return replica_keys(self.replicas, stage, self.device)

    def order_keys(self, stage: str) -> Tensor:
        """(R,) the same for the order of train nodes in batches."""
        return self.keys(stage)


def replica_keys(
    replicas: Sequence[Replica], stage: str, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the keys of replicas' random numbers in a stage, (R,)."""
    numbers = [stable_key(replica.seed, replica.split, stage) for replica in replicas]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def balanced_weights(labels: Array, num_classes: int) -> Array:
    """N / (C · n_c) for each class c of each replica, 0 for a class without a node: (R, C).

    Args:
        labels: (R, N), -1 for nodes that do not count.

    >>> balanced_weights(np.array([[0, 0, 0, 1, -1]]), 3)
    array([[0.44444444, 1.33333333, 0.        ]])
    """
    counts = np.stack([np.bincount(row[row >= 0], minlength=num_classes) for row in labels])
    total = counts.sum(axis=1, keepdims=True)
    return np.where(counts > 0, total / (num_classes * np.maximum(counts, 1)), 0.0)


def make_task(
    graph: Graph,
    replicas: Sequence[Replica],
    masks: Sequence[tuple[Array, Array]],
    device: torch.device | str,
) -> TrainingTask:
    """Make a task from a graph and, for each replica, its train and validation masks."""
    y = graph.y
    train = np.stack([hide_labels(y, train) for train, _ in masks])
    val = np.stack([hide_labels(y, val) for _, val in masks])
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
    """One optimisation: parameters, loss, duration, and how the best epoch is selected.

    Attributes:
        name: unique among a model's stages.
        model: called as ``model(inputs, noise, nodes, classify, penalties=…)``. Its parameters
            that require no gradient are saved and resumed like the others, but not trained.
        inputs: what the model reads (statistics by name, sparse matrices, …).
        lr: one per replica.
        weight_decay: one per replica.
        epochs: upper limit.
        patience: a replica stops after this number of epochs without improvement; 0: never.
        penalty_weights: one weight per replica for each penalty the model returns.
        initial: initial values of some parameters, from an earlier stage.
        consistency: settings of the agreement between noisy passes; None: no such loss.
        own_rates: prefixes of parameter names with rates that differ from the rest.
        is_supervised: False leaves the class loss out: the penalties are the loss, no label is
            read, and the last epoch is the best.
        after_step: called with the model after each step, for updates without gradients.
        batch_size: train nodes read in a step; 0 for all of them in one. The penalties are then
            those of the nodes read.
        reads_rows: whether every input is a statistic, and a node's output depends on its own
            rows alone: a requirement of batches.
        precision: of the products on a GPU.
        is_replayable: whether a CUDA graph may repeat an epoch: epochs differ in nothing but
            tensors and noise.
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
    consistency: list[TrainSettings] | None = None
    own_rates: Mapping[str, Rates] = field(default_factory=dict)
    is_supervised: bool = True
    after_step: Callable[[nn.Module], None] | None = None
    batch_size: int = 0
    reads_rows: bool = False
    precision: str = "float32"
    is_replayable: bool = True

    @property
    def is_on_gpu(self) -> bool:
        """Whether rows of a batch are read without the host."""
        return all(statistic.is_on_gpu for statistic in self.inputs.values())

    @property
    def needs_all_nodes(self) -> bool:
        """Whether a training step must read more than the train nodes."""
        if self.batch_size:
            return False
        return self.consistency is not None or any(
            any(self.penalty_weights.get(name, ())) for name in NODE_PENALTIES
        )


StageBuilder: TypeAlias = Callable[[TrainingTask, Mapping[str, Parameters]], TrainingStage]
"""Builds a stage from the task and the best parameters of the stages before it."""


class Rounds(Protocol):
    """The training of R replicas of a model without gradients, one round after the other."""

    def update(self, replica: int) -> tuple[Tensor, Tensor, Tensor]:
        """Train a round; return train loss (1,), validation logits (1, V, C) and labels (1, V).

        Targets are standardised, see :class:`~hpgmn.base.objectives.Regression`.
        """

    def parameters(self, rounds: Sequence[int]) -> Parameters:
        """Return the parameters of each replica after so many rounds."""


def default_floats(graph: Graph, settings: Any) -> tuple[int, int]:
    """Estimate :attr:`ModelEntry.floats` of a network of a few layers on the attributes."""
    layers = getattr(settings, "layers", 2)
    return graph.num_features * settings.hidden_dim, settings.hidden_dim * (6 * layers + 4)


@dataclass(frozen=True)
class ModelEntry:
    """A model as the trainer, the commands and saved files know it.

    Attributes:
        settings: the dataclass of its settings.
        stages: its stages in order; the last is called "main".
        floats: estimates, from a graph and settings, how many numbers a replica has in its
            parameters and in its activations for one node; decides how many train together.
        optional: for a stage that not all settings have, a function of settings.
        tied: statistics the model always reads whose columns are the nodes trained on.
        rounds: what trains the model if not the gradients of its stages: its only stage, "main",
            then has the parameters that it returns.
        predicts_targets: whether it can be trained for regression; a model about classes cannot.
        source: a digest of the code behind a custom model; empty for built-in models.
        summary: one line; a built-in model's is in the registry.
        citation: the paper; a built-in model's is in the registry.
    """

    name: str
    settings: type[FitSettings]
    stages: Mapping[str, StageBuilder]
    floats: Callable[[Graph, Any], tuple[int, int]] = default_floats
    optional: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    tied: tuple[str, ...] = ()
    rounds: Callable[[TrainingTask], Rounds] | None = None
    predicts_targets: bool = True
    source: str = ""
    summary: str = ""
    citation: str = ""

    def stages_of(self, settings: Any) -> dict[str, StageBuilder]:
        """Return the stages of the settings, in order."""
        return {
            name: build
            for name, build in self.stages.items()
            if name not in self.optional or self.optional[name](settings)
        }


def require_task(entry: ModelEntry, settings: Any, graph: Graph) -> None:
    """Refuse a model or statistic that cannot predict the labels of a graph."""
    if graph.is_regression and not entry.predicts_targets:
        raise HPGMNError(
            f"Model {entry.name} is about classes, and the labels of '{graph.name}' are numbers.",
            Remedy("Choose another", option="model", value="hpgmn"),
        )
    if graph.is_regression and getattr(settings, "soft_counts", False):
        raise HPGMNError(
            f"soft_counts counts class probabilities; the labels of '{graph.name}' are numbers.",
            Remedy("Leave it out", setting="soft_counts", value=False),
        )
    if not graph.is_regression and "target_means" in getattr(settings, "statistics", ()):
        raise HPGMNError(
            f"Statistic target_means is the mean target of neighbours; '{graph.name}' has classes.",
            Remedy("Leave it out", setting="statistics"),
        )


def main_stage(
    task: TrainingTask, model: nn.Module, inputs: Mapping[str, Any], **overrides: Any
) -> TrainingStage:
    """Build a stage from the task's settings; ``overrides`` are fields of the stage."""
    return stage_of(task.settings, model, inputs, **overrides)


def stage_of(
    settings: Sequence[Any], model: nn.Module, inputs: Mapping[str, Any], **overrides: Any
) -> TrainingStage:
    """Build a stage as :func:`main_stage` does, from settings (one per replica) alone."""
    is_consistent = any(replica.consistency_weight for replica in settings)
    fields: dict[str, Any] = {
        "name": "main",
        "lr": [replica.lr for replica in settings],
        "weight_decay": [replica.weight_decay for replica in settings],
        "epochs": settings[0].epochs,
        "patience": settings[0].patience,
        "consistency": list(settings) if is_consistent else None,
        "batch_size": getattr(settings[0], "batch_size", 0),
        "precision": settings[0].precision,
    }
    return TrainingStage(model=model, inputs=inputs, **(fields | overrides))


def load_parameters(model: nn.Module, parameters: Parameters) -> None:
    """Copy values into a model's parameters of the same names."""
    with torch.no_grad():
        by_name = dict(model.named_parameters())
        for name, value in parameters.items():
            by_name[name].copy_(value)


def logits(
    task: TrainingTask,
    entry: ModelEntry,
    parameters: Mapping[str, Parameters],
    nodes: Tensor | None = None,
) -> Tensor:
    """Return a trained model's logits, dropout off: (R, N, C), or (R, B, C) of (B,) nodes.

    Of a regression they are (R, N, 1) targets in their own unit.
    """
    *_, build = entry.stages.values()
    stage = build(task, parameters)
    shapes = {name: value.shape for name, value in stage.model.named_parameters()}
    if shapes != {name: value.shape for name, value in parameters[stage.name].items()}:
        raise HPGMNError(
            f"The code of {entry.name} has changed: its parameters are not those that were "
            "trained.",
            Remedy("Restore the code") | "Train again",
        )
    return trained_logits(task, stage, parameters[stage.name], nodes)


def trained_logits(
    task: TrainingTask, stage: TrainingStage, parameters: Parameters, nodes: Tensor | None = None
) -> Tensor:
    """Return the logits of a stage with trained parameters, as :func:`logits` does."""
    model = stage.model.to(task.device)
    for name, parameter in model.named_parameters():  # shared: copies of wide ones take long
        parameter.data = parameters[name].to(parameter).expand_as(parameter)
    if nodes is None and stage.batch_size:
        nodes = torch.arange(task.graph.num_nodes)
    chosen = None if nodes is None else nodes.to(task.device).expand(len(task.replicas), -1)
    with torch.no_grad():
        outputs = stage_logits(stage, chosen)
    return task.objective.values(outputs) if stage.is_supervised else outputs


def stage_logits(stage: TrainingStage, nodes: Tensor | None) -> Tensor:
    """Return logits of (R, B) nodes, or of all; in parts for a stage in batches."""
    model = stage.model
    if nodes is None or not stage.batch_size:
        output: Output = model(stage.inputs, None, nodes)
        return output.logits
    parts = torch.split(nodes, READ_NODES, dim=1)
    if stage.is_on_gpu:
        return torch.cat([model(rows_of(stage, part)).logits for part in parts], dim=1)
    pairs = prefetch(parts, lambda part: rows_of(stage, part))
    return torch.cat([model(inputs).logits for _, inputs in pairs], dim=1)


def rows_of(stage: TrainingStage, nodes: Tensor) -> dict[str, Statistic]:
    """Return the inputs of (R, B) nodes, for a stage that reads rows."""
    return {name: statistic.some(nodes) for name, statistic in stage.inputs.items()}


def prefetch(items: Iterable[T], fetch: Callable[[T], U]) -> Iterator[tuple[T, U]]:
    """Yield each item with its fetched value, fetching the next one meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for item in items:
            coming = (item, pool.submit(fetch, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = coming
        if waiting is not None:
            yield waiting[0], waiting[1].result()
