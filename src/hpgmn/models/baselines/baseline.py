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
from hpgmn.graph import Graph
from hpgmn.models.layers import Linear, RunningBatchNorm, Skip
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


@dataclass(frozen=True, kw_only=True)
class DeepSettings(BaselineSettings):
    """Settings of a baseline whose layers may be many; see :meth:`Baseline.connect_layers`."""

    norm: str = setting(
        "none", "normalise each layer: none, or batch norm", choices=("none", "batch")
    )
    residual: bool = setting(False, "add a linear map of its input to each layer's output")

    @property
    def is_deep(self) -> bool:
        """Whether a linear classifier follows the layers, all of them ``hidden_dim`` wide."""
        return self.residual or self.norm != "none"


class Baseline(nn.Module):
    """Dropout rates of :class:`BaselineSettings`, and layers with them."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")
        self.skips, self.norms = nn.ModuleList(), nn.ModuleList()
        self.classifier: Linear | None = None

    def connect_layers(
        self,
        task: TrainingTask,
        layers: nn.ModuleList,
        widths: Sequence[int],
        *,
        has_classifier: bool = True,
    ) -> None:
        """Add what :class:`DeepSettings` request to layers of these widths.

        With ``residual`` or ``norm`` a layer is dropout(ReLU(norm(layer(H) + H·V))), and a linear
        classifier reads the last one, as by Luo et al. (NeurIPS 2024). V has no bias: the layer
        has one. With ``norm`` that one stays 0, since the norm's shift takes its place.
        """
        settings: DeepSettings = task.settings[0]
        replicas = len(task.replicas)
        if settings.residual:
            self.skips = stack_layers(Skip, replicas, widths)
        if settings.norm == "batch":
            self.norms = nn.ModuleList(RunningBatchNorm(replicas, width) for width in widths[1:])
            for name, value in layers.named_parameters():
                if name.endswith("bias"):  # Adam would follow the rounding of a zero gradient
                    value.requires_grad_(False)
        if settings.is_deep and has_classifier:
            self.classifier = Linear(replicas, widths[-1], task.output_dim)

    def connect(
        self,
        number: int,
        output: Tensor,
        x: Statistic | Tensor,
        columns: Tensor | None,
        noise: Noise | None,
    ) -> Tensor:
        """Return norm(output + x·V) of a layer, counted from 0, that reads ``x``."""
        if self.skips:
            output = self.skips[number](output, x, columns)
        if self.norms:
            output = self.norms[number](output, noise)
        return output

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

        The result is that of the last layer, or of the classifier after it.

        Args:
            columns: names the random numbers of the input's columns.
            hidden: names those of the hidden states.
        """
        first, *rest = layers
        factors = self.column_factors(attributes, noise, columns)
        states: Tensor = first(propagation, attributes, factors)
        states = self.connect(0, states, attributes, factors, noise)
        for number, layer in enumerate(rest, start=1):
            states = relu_dropout(states, self.drop_rate, noise, f"{hidden}.{number}")
            states = self.connect(number, layer(propagation, states), states, None, noise)
        if self.classifier is None:
            return states
        states = relu_dropout(states, self.drop_rate, noise, f"{hidden}.{len(rest) + 1}")
        logits: Tensor = self.classifier(states)
        return logits


def stack_layers(
    layer: Callable[[int, int, int], nn.Module], replicas: int, widths: Sequence[int]
) -> nn.ModuleList:
    """Make ``layer(replicas, inputs, outputs)`` for each pair of consecutive widths."""
    return nn.ModuleList(
        layer(replicas, inputs, outputs) for inputs, outputs in itertools.pairwise(widths)
    )


def layer_widths(task: TrainingTask) -> list[int]:
    """Widths of ``layers`` layers: the attributes', each hidden layer's, the classes'.

    The last is a hidden layer's too if a classifier follows.
    """
    first = task.settings[0]
    widths = [task.graph.num_features, *[first.hidden_dim] * first.layers]
    if not (isinstance(first, DeepSettings) and first.is_deep):
        widths[-1] = task.output_dim
    return widths


def deep_floats(
    floats: Callable[[Graph, Any], tuple[int, int]],
) -> Callable[[Graph, Any], tuple[int, int]]:
    """Extend an estimate of :attr:`ModelEntry.floats` by what :class:`DeepSettings` add."""

    def estimate(graph: Graph, settings: Any) -> tuple[int, int]:
        parameters, per_node = floats(graph, settings)
        width, layers = settings.hidden_dim, settings.layers
        if settings.residual:
            parameters += width * (graph.num_features + (layers - 1) * width)
        if settings.norm == "batch":
            per_node += 3 * width * layers
        return parameters, per_node

    return estimate


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
