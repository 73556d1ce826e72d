"""What the baselines share: settings, the base class, inputs and stages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hpgmn.base.randomness import Noise, column_factors, relu_dropout
from hpgmn.base.settings import TrainSettings, dropout_setting, inherited_setting, setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.models.stage import Parameters, StageBuilder, TrainingStage, TrainingTask, main_stage
from hpgmn.statistics import Statistic


@dataclass(frozen=True, kw_only=True)
class BaselineSettings(TrainSettings):
    """Settings of every baseline."""

    weight_decay: float = inherited_setting(TrainSettings, "weight_decay", 5e-4)
    dropout: float = inherited_setting(TrainSettings, "dropout", 0.5)
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

    neighbors: str = setting("undirected", "edge direction", choices=("out", "in", "undirected"))


class Baseline(nn.Module):
    """Dropout rates of :class:`BaselineSettings`, and convolutions with them."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    def column_factors(
        self, attributes: Statistic, noise: Noise | None, place: str = "attributes"
    ) -> Tensor | None:
        """Draw the dropout of the attributes' columns, (R, inputs)."""
        return column_factors(attributes.width, self.input_rate, noise, place)

    def apply_layers(
        self,
        layers: Iterable[nn.Module],
        propagation: SparseMatrix | Callable[[Tensor], Tensor],
        attributes: Statistic,
        noise: Noise | None,
        *,
        columns: str = "attributes",
        hidden: str = "hidden",
    ) -> Tensor:
        """Apply layers called as ``layer(propagation, x, columns)``, ReLU and dropout between them.

        Args:
            columns: names the random numbers of the input's columns.
            hidden: names those of the hidden states.
        """
        first, *rest = layers
        states: Tensor = first(
            propagation, attributes, self.column_factors(attributes, noise, columns)
        )
        for number, layer in enumerate(rest, start=1):
            states = relu_dropout(states, self.drop_rate, noise, f"{hidden}.{number}")
            states = layer(propagation, states)
        return states


def stack_layers(
    layer: Callable[[int, int, int], nn.Module], replicas: int, widths: Sequence[int]
) -> nn.ModuleList:
    """Make ``layer(replicas, inputs, outputs)`` for each pair of consecutive widths."""
    return nn.ModuleList(
        layer(replicas, inputs, outputs) for inputs, outputs in itertools.pairwise(widths)
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
    model: Callable[[TrainingTask], nn.Module],
    inputs: Callable[[TrainingTask], Mapping[str, Any]],
    *,
    own_rates: Mapping[str, tuple[str, str]] | None = None,
    penalties: Sequence[str] = (),
) -> dict[str, StageBuilder]:
    """The stages of a model that is trained in one: "main".

    Args:
        own_rates: for prefixes of parameter names, the settings of learning rate and weight decay.
        penalties: those that the model returns; each is weighted by the setting ``<name>_weight``.
    """

    def build(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
        return main_stage(
            task,
            model(task),
            inputs(task),
            own_rates={prefix: task.rates(*names) for prefix, names in (own_rates or {}).items()},
            penalty_weights={name: task.values(f"{name}_weight") for name in penalties},
        )

    return {"main": build}
