"""GCN: every layer averages over the neighbours, symmetrically normalised."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import Noise, column_factors, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.models.baselines.baseline import GraphSettings, NodeModel, attributes_input, usual_floats
from hpgmn.models.layers import Convolution, Output
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage


@dataclass(frozen=True, kw_only=True)
class GCNSettings(GraphSettings):
    """Everything that can be set about GCN."""

    layers: int = setting(2, "number of layers", low=1, high=16)
    self_loop: float = setting(1.0, "weight of the self-loop added to every node", low=0.0)


class GCN(NodeModel):
    """H⁽ˡ⁾ = ReLU(Â·H⁽ˡ⁻¹⁾·W_l + b_l), the last one without ReLU; Â = D̃^-½·(A + I)·D̃^-½.

    With ``neighbors`` other than "undirected", rows are normalised by the degrees of the edges
    read and columns by those of the edges that lead there; PyG takes one degree for both.

    Args:
        task: gives widths, classes and the settings of the R replicas.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        settings: list[GCNSettings] = task.settings
        hidden = [settings[0].hidden_dim] * (settings[0].layers - 1)
        widths = [task.graph.num_features, *hidden, task.num_classes]
        self.convolve = nn.ModuleList(
            Convolution(len(settings), inputs, outputs)
            for inputs, outputs in itertools.pairwise(widths)
        )
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        attributes, propagation = inputs["attributes"], inputs["propagation"]
        columns = column_factors(attributes.width, self.input_rate, noise, "attributes")
        first, *rest = self.convolve
        hidden: Tensor = first(propagation, attributes, columns)
        for number, layer in enumerate(rest, start=1):
            hidden = relu_dropout(hidden, self.drop_rate, noise, f"hidden.{number}")
            hidden = layer(propagation, hidden)
        return Output(hidden)


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    first: GCNSettings = task.settings[0]
    propagation = task.statistics.propagation(first.neighbors, "symmetric", first.self_loop)
    return main_stage(task, GCN(task), attributes_input(task) | {"propagation": propagation})


ENTRY = ModelEntry(
    "gcn",
    "graph convolutional network",
    "Thomas N. Kipf, Max Welling. Semi-Supervised Classification with Graph Convolutional "
    "Networks. ICLR 2017.",
    GCNSettings,
    {"main": _main},
    usual_floats,
)
