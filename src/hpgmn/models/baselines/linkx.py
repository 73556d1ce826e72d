"""LINKX: MLPs on adjacency rows and attributes, joined by a third (Lim et al., NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import DropRate, Noise
from hpgmn.base.settings import dropout_setting, setting
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import GraphSettings, attributes_input
from hpgmn.models.layers import MLP, Linear, RowModel, StatisticMLP
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage


@dataclass(frozen=True, kw_only=True)
class LINKXSettings(GraphSettings):
    """Settings of LINKX."""

    layers: int = setting(2, "layers of the MLP that joins both inputs", low=1, high=8)
    adjacency_layers: int = setting(1, "layers of the MLP on the adjacency rows", low=1, high=4)
    attributes_layers: int = setting(1, "layers of the MLP on the attributes", low=1, high=4)
    adjacency_scaling: str = setting(
        "raw",
        "adjacency rows as they are, divided by the row's sum, or of unit length",
        choices=("raw", "fraction", "unit"),
    )
    adjacency_dropout: float = dropout_setting(
        0.0, "dropout of whole columns of the adjacency rows"
    )


class LINKX(RowModel):
    """logits = MLP_f(ReLU(W·[a ‖ x] + a + x)), a = MLP_A(adjacency row), x = MLP_X(attributes).

    As in the authors' code, ``dropout`` acts inside MLP_f only. Theirs and PyG's put batch
    normalisation between the layers of each MLP; it is left out here, because a node's result would
    depend on the other nodes requested. Dropout of input columns is added, off by default. The
    authors train with AdamW, here weight decay is Adam's.
    """

    def __init__(self, task: TrainingTask, adjacency_width: int) -> None:
        super().__init__()
        first, replicas = task.settings[0], len(task.replicas)
        hidden = first.hidden_dim
        self.encode_adjacency = StatisticMLP(
            replicas, [adjacency_width, *[hidden] * first.adjacency_layers]
        )
        self.encode_attributes = StatisticMLP(
            replicas, [task.graph.num_features, *[hidden] * first.attributes_layers]
        )
        self.join = Linear(replicas, 2 * hidden, hidden)
        self.classify = MLP(replicas, [*[hidden] * first.layers, task.output_dim])
        self.adjacency_rate = task.drop_rate("adjacency_dropout")
        self.attributes_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")
        self.no_rate = DropRate([0.0] * replicas, task.device)

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        attributes = self.encode_attributes(
            inputs["attributes"], self.attributes_rate, self.no_rate, noise, "attributes", nodes
        )
        adjacency = self.encode_adjacency(
            inputs["adjacency"], self.adjacency_rate, self.no_rate, noise, "adjacency", nodes
        )
        joined = self.join(torch.cat([adjacency, attributes], dim=-1)) + adjacency + attributes
        logits: Tensor = self.classify(torch.relu(joined), self.drop_rate, noise, "classify")
        return logits


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    first: LINKXSettings = task.settings[0]
    adjacency = task.statistics.adjacency_rows(first.neighbors, first.adjacency_scaling)
    inputs = attributes_input(task) | {"adjacency": adjacency}
    return main_stage(task, LINKX(task, adjacency.width), inputs)


def _floats(graph: Graph, settings: LINKXSettings) -> tuple[int, int]:
    layers = settings.layers + settings.adjacency_layers + settings.attributes_layers
    parameters = (graph.num_nodes + graph.num_features) * settings.hidden_dim
    return parameters, settings.hidden_dim * (3 * layers + 6)


ENTRY = ModelEntry("linkx", LINKXSettings, {"main": _main}, _floats, tied=("adjacency",))
