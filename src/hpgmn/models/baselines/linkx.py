"""LINKX: an MLP on the adjacency rows and one on the attributes, joined by a third."""

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
from hpgmn.models.baselines.baseline import GraphSettings, RowModel, attributes_input
from hpgmn.models.layers import MLP, Linear, StatisticMLP
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage


@dataclass(frozen=True, kw_only=True)
class LINKXSettings(GraphSettings):
    """Everything that can be set about LINKX."""

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
    normalisation between the layers of each MLP; it is left out here, because it would tie a
    node's result to the nodes asked for with it. Dropout of input columns is added, off by
    default. The authors train with AdamW, here weight decay is Adam's.

    Args:
        task: gives classes and the settings of the R replicas.
        widths: the widths of the adjacency rows and of the attributes.
    """

    def __init__(self, task: TrainingTask, widths: tuple[int, int]) -> None:
        super().__init__()
        settings: list[LINKXSettings] = task.settings
        first, replicas = settings[0], len(settings)
        hidden, (neighbors, attributes) = first.hidden_dim, widths
        self.encode_adjacency = StatisticMLP(
            replicas, [neighbors, *[hidden] * first.adjacency_layers]
        )
        self.encode_attributes = StatisticMLP(
            replicas, [attributes, *[hidden] * first.attributes_layers]
        )
        self.join = Linear(replicas, 2 * hidden, hidden)
        self.classify = MLP(replicas, [*[hidden] * first.layers, task.num_classes])
        self.adjacency_rate = task.drop_rate("adjacency_dropout")
        self.attributes_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")
        self.no_rate = DropRate([0.0] * replicas, task.device)

    @override
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        own = self.encode_attributes(
            inputs["attributes"], self.attributes_rate, self.no_rate, noise, "attributes", nodes
        )
        around = self.encode_adjacency(
            inputs["adjacency"], self.adjacency_rate, self.no_rate, noise, "adjacency", nodes
        )
        joined = self.join(torch.cat([around, own], dim=-1)) + around + own
        logits: Tensor = self.classify(torch.relu(joined), self.drop_rate, noise, "classify")
        return logits


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    first: LINKXSettings = task.settings[0]
    adjacency = task.statistics.adjacency_rows(first.neighbors, first.adjacency_scaling)
    model = LINKX(task, (adjacency.width, task.graph.num_features))
    return main_stage(task, model, attributes_input(task) | {"adjacency": adjacency})


def _floats(graph: Graph, settings: LINKXSettings) -> tuple[int, int]:
    layers = settings.layers + settings.adjacency_layers + settings.attributes_layers
    parameters = (graph.num_nodes + graph.num_features) * settings.hidden_dim
    return parameters, settings.hidden_dim * (3 * layers + 6)


ENTRY = ModelEntry(
    "linkx",
    "MLPs on adjacency rows and attributes, joined",
    "Derek Lim, Felix Hohne, Xiuyu Li, Sijia Linda Huang, Vaishnavi Gupta, Omkar Bhalerao, "
    "Ser-Nam Lim. Large Scale Learning on Non-Homophilous Graphs: New Benchmarks and Strong "
    "Simple Methods. NeurIPS 2021.",
    LINKXSettings,
    {"main": _main},
    _floats,
    tied=("adjacency",),
)
