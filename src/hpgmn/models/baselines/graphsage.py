"""GraphSAGE: separate weights for a node and the mean of its neighbours (Hamilton et al., 2017)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from typing_extensions import override

from hpgmn.base.randomness import Noise, column_factors
from hpgmn.base.settings import setting
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    GraphSettings,
    layer_widths,
    propagation_inputs,
    single_stage,
)
from hpgmn.models.layers import AggregationLinear, NodeModel, Output, convolve_layers, propagate
from hpgmn.models.stage import ModelEntry, TrainingTask


@dataclass(frozen=True, kw_only=True)
class GraphSAGESettings(GraphSettings):
    """Settings of GraphSAGE."""

    layers: int = setting(2, "number of layers", low=1, high=16)


class GraphSAGE(NodeModel):
    """h_v ← ReLU(W₁·h_v + W₂·mean of h_u over neighbours u + b), the last one without ReLU.

    The mean reads all neighbours; the paper samples some of them, and offers LSTM and pooling
    instead of the mean. As in PyG's SAGEConv by default, states are not scaled to unit length. A
    node without neighbours has a mean of zeros.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        self.convolve = nn.ModuleList(
            AggregationLinear(len(task.replicas), inputs, outputs)
            for inputs, outputs in itertools.pairwise(layer_widths(task))
        )
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        attributes, mean = inputs["attributes"], partial(propagate, inputs["propagation"])
        columns = column_factors(attributes.width, self.input_rate, noise, "attributes")
        logits = convolve_layers(
            self.convolve, mean, attributes, columns, self.drop_rate, noise, "hidden"
        )
        return Output(logits)


def _floats(graph: Graph, settings: GraphSAGESettings) -> tuple[int, int]:
    width = settings.hidden_dim
    parameters = 2 * width * (graph.num_features + (settings.layers - 1) * width)
    return parameters, width * (8 * settings.layers + 4)


ENTRY = ModelEntry(
    "graphsage",
    GraphSAGESettings,
    single_stage(GraphSAGE, partial(propagation_inputs, normalization="row")),
    _floats,
)
