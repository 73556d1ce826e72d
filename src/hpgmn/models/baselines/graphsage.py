"""GraphSAGE: separate weights for a node and the mean of its neighbours (Hamilton et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from typing_extensions import override

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import setting
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    DeepSettings,
    GraphSettings,
    deep_floats,
    layer_widths,
    propagation_inputs,
    single_stage,
    stack_layers,
)
from hpgmn.models.layers import AggregationLinear, NodeModel, Output, propagate
from hpgmn.models.stage import ModelEntry, TrainingTask


@dataclass(frozen=True, kw_only=True)
class GraphSAGESettings(DeepSettings, GraphSettings):
    """Settings of GraphSAGE."""

    layers: int = setting(2, "number of layers", low=1, high=16)


class GraphSAGE(Baseline, NodeModel):
    """h_v ← ReLU(W₁·h_v + W₂·mean of h_u over neighbours u + b), the last one without ReLU.

    The mean reads all neighbours; the paper samples some of them, and offers LSTM and pooling
    instead of the mean. As in PyG's SAGEConv by default, states are not scaled to unit length. A
    node without neighbours has a mean of zeros. ``residual`` and ``norm``:
    :meth:`Baseline.connect_layers`.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        widths = layer_widths(task)
        self.convolve = stack_layers(AggregationLinear, len(task.replicas), widths)
        self.connect_layers(task, self.convolve, widths)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        attributes, mean = inputs["attributes"], partial(propagate, inputs["propagation"])
        return Output(self.apply_layers(self.convolve, mean, attributes, noise))


def _floats(graph: Graph, settings: GraphSAGESettings) -> tuple[int, int]:
    width = settings.hidden_dim
    parameters = 2 * width * (graph.num_features + (settings.layers - 1) * width)
    return parameters, width * (8 * settings.layers + 4)


ENTRY = ModelEntry(
    "graphsage",
    GraphSAGESettings,
    single_stage(GraphSAGE, partial(propagation_inputs, normalization="row")),
    deep_floats(_floats),
)
