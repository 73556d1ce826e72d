"""What the baselines share: settings, inputs and stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hpgmn.base.settings import TrainSettings, dropout_setting, setting
from hpgmn.models.stage import Parameters, StageBuilder, TrainingStage, TrainingTask, main_stage


@dataclass(frozen=True, kw_only=True)
class BaselineSettings(TrainSettings):
    """Settings of every baseline."""

    weight_decay: float = setting(
        5e-4, "weight decay (L2, added to the gradient)", low=0.0, per_replica=True
    )
    dropout: float = dropout_setting(0.5, "dropout inside the network")
    hidden_dim: int = setting(64, "width of the hidden layers", low=1)
    attributes_scaling: str = setting(
        "raw",
        "attributes as given, divided by the row's absolute sum, or of unit length",
        choices=("raw", "fraction", "unit"),
    )
    attributes_dropout: float = dropout_setting(0.0, "dropout of whole columns of the attributes")


@dataclass(frozen=True, kw_only=True)
class GraphSettings(BaselineSettings):
    """Settings of a baseline that reads edges in one direction, or both as one."""

    neighbors: str = setting(
        "undirected", "whose edges a node reads", choices=("out", "in", "undirected")
    )


def layer_widths(task: TrainingTask) -> list[int]:
    """Widths of ``layers`` layers: the attributes', each hidden layer's, the classes'."""
    first = task.settings[0]
    hidden = [first.hidden_dim] * (first.layers - 1)
    return [task.graph.num_features, *hidden, task.num_classes]


def attributes_input(task: TrainingTask) -> dict[str, Any]:
    """The attributes, scaled according to the settings."""
    return {"attributes": task.statistics.attributes(task.settings[0].attributes_scaling)}


def propagation_inputs(
    task: TrainingTask, self_loop: float = 0.0, normalization: str = "symmetric"
) -> dict[str, Any]:
    """The attributes, and the normalised adjacency of the edges that ``neighbors`` selects."""
    neighbors = task.settings[0].neighbors
    propagation = task.statistics.propagation(neighbors, normalization, self_loop)
    return attributes_input(task) | {"propagation": propagation}


def single_stage(
    model: Callable[[TrainingTask], nn.Module], inputs: Callable[[TrainingTask], Mapping[str, Any]]
) -> dict[str, StageBuilder]:
    """The stages of a model that is trained in one: "main", with the settings' own rates."""

    def build(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
        return main_stage(task, model(task), inputs(task))

    return {"main": build}
