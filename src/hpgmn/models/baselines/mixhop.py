"""MixHop: every layer sets neighbourhoods of several distances side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import Noise, column_factors, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import GraphSettings, NodeModel, attributes_input
from hpgmn.models.layers import Initialised, Linear, Output, draw_glorot, product, propagate
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage
from hpgmn.statistics.operators import Statistic


@dataclass(frozen=True, kw_only=True)
class MixHopSettings(GraphSettings):
    """Everything that can be set about MixHop."""

    hidden_dim: int = setting(64, "width of each power's part of a hidden layer", low=1)
    layers: int = setting(2, "number of layers before the linear classifier", low=1, high=16)
    powers: int = setting(2, "highest power of the propagation matrix", low=1, high=8)


class MixHopConvolution(Initialised):
    """y = [x·W_0 ‖ P·x·W_1 ‖ … ‖ P^p·x·W_p] + b.

    The weights come first, so that products with P are as wide as the output and not the input;
    parts of a higher power ride along in the products of the lower ones.

    Args:
        replicas: R.
        inputs: width of x.
        outputs: width of each power's part of y.
        powers: p.
    """

    def __init__(self, replicas: int, inputs: int, outputs: int, powers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, powers + 1, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, (powers + 1) * outputs))

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Glorot weights for each power, zero biases."""
        draw_glorot(self.weight.transpose(1, 2), noise, f"{place}.weight")
        self.bias.zero_()

    def forward(
        self,
        propagation: SparseMatrix,
        x: Statistic | Tensor,
        columns: Tensor | None = None,
    ) -> Tensor:
        """A statistic's rows, or (R, N, inputs), to (R, N, (powers + 1)·outputs).

        Args:
            propagation: P.
            x: the input.
            columns: (R, inputs) factors of a statistic's columns, from ``column_factors``.
        """
        _, _, count, width = self.weight.shape
        rest = product(x, self.weight.flatten(2), columns)
        parts = []
        for waiting in range(count - 1, 0, -1):
            part, rest = rest.split_with_sizes([width, waiting * width], dim=-1)
            parts.append(part)
            rest = propagate(propagation, rest)
        return torch.cat([*parts, rest], dim=-1) + self.bias


class MixHop(NodeModel):
    """H⁽ˡ⁾ = ReLU([H⁽ˡ⁻¹⁾·W_l0 ‖ Â·H⁽ˡ⁻¹⁾·W_l1 ‖ …] + b_l), logits = H⁽ᴸ⁾·W + b.

    Â = D̃^-½·(A + I)·D̃^-½. The classifier is linear; the paper's code sums groups of the last
    layer's columns with learned weights instead. Every power has the same width and there is no
    batch normalisation; the paper learns widths with a group lasso.

    Args:
        task: gives widths, classes and the settings of the R replicas.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        settings: list[MixHopSettings] = task.settings
        first = settings[0]
        wide = first.hidden_dim * (first.powers + 1)
        self.convolve = nn.ModuleList(
            MixHopConvolution(len(settings), inputs, first.hidden_dim, first.powers)
            for inputs in [task.graph.num_features, *[wide] * (first.layers - 1)]
        )
        self.classify = Linear(len(settings), wide, task.num_classes)
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        hidden, propagation = inputs["attributes"], inputs["propagation"]
        columns = column_factors(hidden.width, self.input_rate, noise, "attributes")
        for number, layer in enumerate(self.convolve, start=1):
            hidden = layer(propagation, hidden, columns)
            hidden = relu_dropout(hidden, self.drop_rate, noise, f"hidden.{number}")
        return Output(self.classify(hidden))


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    propagation = task.statistics.propagation(task.settings[0].neighbors, "symmetric", 1.0)
    return main_stage(task, MixHop(task), attributes_input(task) | {"propagation": propagation})


def _floats(graph: Graph, settings: MixHopSettings) -> tuple[int, int]:
    wide = settings.hidden_dim * (settings.powers + 1)
    parameters = graph.num_features * wide + (settings.layers - 1) * wide * wide
    return parameters, wide * (2 * settings.layers + 4)


ENTRY = ModelEntry(
    "mixhop",
    "graph convolutions that mix powers of the adjacency",
    "Sami Abu-El-Haija, Bryan Perozzi, Amol Kapoor, Nazanin Alipourfard, Kristina Lerman, Hrayr "
    "Harutyunyan, Greg Ver Steeg, Aram Galstyan. MixHop: Higher-Order Graph Convolutional "
    "Architectures via Sparsified Neighborhood Mixing. ICML 2019.",
    MixHopSettings,
    {"main": _main},
    _floats,
)
