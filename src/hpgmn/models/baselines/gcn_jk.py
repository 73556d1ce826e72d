"""GCN with jumping knowledge: the classifier reads all layers (Xu et al., ICML 2018)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import Noise, column_factors, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import single_stage
from hpgmn.models.baselines.gcn import GCNSettings, gcn_inputs
from hpgmn.models.layers import Convolution, Linear, NodeModel, Output, jump
from hpgmn.models.stage import ModelEntry, TrainingTask


@dataclass(frozen=True, kw_only=True)
class GCNJKSettings(GCNSettings):
    """Settings of GCN with jumping knowledge."""

    layers: int = setting(2, "number of layers before the linear classifier", low=1, high=16)
    jump: str = setting(
        "concat",
        "the classifier sees the layers side by side, or the largest entry among them",
        choices=("concat", "max"),
    )


class GCNJK(NodeModel):
    """H⁽ˡ⁾ = ReLU(Â·H⁽ˡ⁻¹⁾·W_l + b_l); logits = [H⁽¹⁾ ‖ … ‖ H⁽ᴸ⁾]·W + b, or max instead of ‖.

    Â = D̃^-½·(A + I)·D̃^-½. Every layer, the last one too, has ReLU and dropout, as in PyG's GCN
    with ``jk``. The paper's third aggregator, attention by an LSTM, is left out.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        first, replicas = task.settings[0], len(task.replicas)
        self.jump = first.jump
        widths = [task.graph.num_features, *[first.hidden_dim] * first.layers]
        self.convolve = nn.ModuleList(
            Convolution(replicas, inputs, outputs) for inputs, outputs in itertools.pairwise(widths)
        )
        joined = first.hidden_dim * (first.layers if first.jump == "concat" else 1)
        self.classify = Linear(replicas, joined, task.num_classes)
        self.input_rate = task.drop_rate("attributes_dropout")
        self.drop_rate = task.drop_rate("dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        hidden, propagation = inputs["attributes"], inputs["propagation"]
        columns = column_factors(hidden.width, self.input_rate, noise, "attributes")
        states: list[Tensor] = []
        for number, layer in enumerate(self.convolve, start=1):
            hidden = layer(propagation, hidden, columns)
            hidden = relu_dropout(hidden, self.drop_rate, noise, f"hidden.{number}")
            states.append(hidden)
        return Output(self.classify(jump(states, self.jump)))


def _floats(graph: Graph, settings: GCNJKSettings) -> tuple[int, int]:
    parameters = graph.num_features * settings.hidden_dim
    return parameters, settings.hidden_dim * (4 * settings.layers + 8)


ENTRY = ModelEntry("gcn-jk", GCNJKSettings, single_stage(GCNJK, gcn_inputs), _floats)
