"""GAT, graph attention network (Veličković et al., ICLR 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from hpgmn.base.randomness import DropRate, Noise, dropout, relu_dropout
from hpgmn.base.settings import dropout_setting, setting
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    DeepSettings,
    GraphSettings,
    attributes_input,
    deep_floats,
    single_stage,
)
from hpgmn.models.baselines.edge_pattern import EdgePattern, add_self_loops
from hpgmn.models.layers import Initialised, NodeModel, Output, product
from hpgmn.models.stage import ModelEntry, TrainingTask
from hpgmn.statistics.operators import Statistic


@dataclass(frozen=True, kw_only=True)
class GATSettings(DeepSettings, GraphSettings):
    """Settings of GAT."""

    layers: int = setting(2, "number of layers", low=1, high=16)
    heads: int = setting(
        8, "attention heads of a hidden layer, each hidden_dim / heads wide (rounded up)", low=1
    )
    output_heads: int = setting(1, "attention heads of the last layer, averaged", low=1)
    attention_dropout: float = dropout_setting(0.5, "dropout of the attention weights")


class GATConvolution(Initialised):
    """y_i = Σ_j α_ij·x_j·W for each head, α_ij = softmax over j of LeakyReLU(a·x_i·W + b·x_j·W).

    The sum is over the neighbours j of i and i itself; edge weights are not read. ``outputs`` is
    the width of each head; heads are concatenated or averaged.
    """

    def __init__(
        self, replicas: int, inputs: int, outputs: int, heads: int, *, concat: bool
    ) -> None:
        super().__init__()
        self.concat = concat
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, heads * outputs))
        self.center = nn.Parameter(torch.zeros(replicas, heads, outputs))
        self.neighbor = nn.Parameter(torch.zeros(replicas, heads, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs * (heads if concat else 1)))

    def forward(
        self,
        edges: EdgePattern,
        x: Statistic | Tensor,
        columns: Tensor | None,
        rate: DropRate,
        noise: Noise | None,
        place: str,
    ) -> Tensor:
        """Map to (R, N, outputs), times heads if concatenated; ``rate`` drops attention weights."""
        replicas, heads, width = self.center.shape
        hidden = product(x, self.weight, columns)
        hidden = hidden.view(replicas, -1, heads, width).transpose(1, 2)  # (R, H, N, D)
        center, neighbor = (
            torch.matmul(hidden, vector.unsqueeze(-1)).flatten(0, 1)  # (R·H, N, 1)
            for vector in (self.center, self.neighbor)
        )
        ones = torch.ones_like(center)
        scores = edges.products(
            torch.cat([center, ones], dim=-1), torch.cat([ones, neighbor], dim=-1)
        )
        attention = edges.softmax(functional.leaky_relu(scores, 0.2)).view(replicas, heads, -1)
        attention = dropout(attention, rate, noise, f"{place}.attention").flatten(0, 1)
        result = edges.propagate(attention, hidden.flatten(0, 1)).view(replicas, heads, -1, width)
        joined = result.transpose(1, 2).flatten(2) if self.concat else result.mean(dim=1)
        return joined + self.bias


class GAT(Baseline, NodeModel):
    """H⁽ˡ⁾ = ELU of :class:`GATConvolution` of H⁽ˡ⁻¹⁾; the last averages its heads, without ELU.

    The paper drops entries of every layer's input, here of the attributes whole columns. With
    ``residual`` or ``norm`` (:meth:`Baseline.connect_layers`) ReLU replaces ELU, and every layer
    concatenates its heads.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first, replicas = task.settings[0], len(task.replicas)
        heads, width = first.heads, -(-first.hidden_dim // first.heads)
        widths = [task.graph.num_features, *[heads * width] * first.layers]
        self.convolve = nn.ModuleList(
            GATConvolution(replicas, inputs, width, heads, concat=True) for inputs in widths[:-1]
        )
        if not first.is_deep:
            self.convolve[-1] = GATConvolution(
                replicas, widths[-2], task.output_dim, first.output_heads, concat=False
            )
        self.connect_layers(task, self.convolve, widths)
        self.attention_rate = task.drop_rate("attention_dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        hidden, edges = inputs["attributes"], inputs["edges"]
        columns = self.column_factors(hidden, noise)
        for number, layer in enumerate(self.convolve):
            if number:
                hidden = self._activate(hidden, noise, number)
            output = layer(edges, hidden, columns, self.attention_rate, noise, f"layer.{number}")
            hidden = self.connect(number, output, hidden, columns, noise)
        if self.classifier is None:
            return Output(hidden)
        return Output(self.classifier(self._activate(hidden, noise, len(self.convolve))))

    def _activate(self, hidden: Tensor, noise: Noise | None, number: int) -> Tensor:
        place = f"hidden.{number}"
        if self.classifier is None:
            return dropout(functional.elu(hidden), self.drop_rate, noise, place)
        return relu_dropout(hidden, self.drop_rate, noise, place)


def _inputs(task: TrainingTask) -> dict[str, Any]:
    adjacency = task.statistics.adjacency(task.settings[0].neighbors)
    edges = EdgePattern(add_self_loops(adjacency, 1.0), task.device)
    return attributes_input(task) | {"edges": edges}


def _floats(graph: Graph, settings: GATSettings) -> tuple[int, int]:
    width = settings.hidden_dim
    parameters = width * (graph.num_features + (settings.layers - 1) * width)
    edges = (2 * graph.num_edges + graph.num_nodes) / graph.num_nodes
    attention = (settings.layers - 1) * settings.heads + settings.output_heads
    return parameters, width * (10 * settings.layers + 4) + int(12 * edges * attention)


ENTRY = ModelEntry("gat", GATSettings, single_stage(GAT, _inputs), deep_floats(_floats))
