"""GCN with jumping knowledge: the classifier sees the states of all layers."""

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
from hpgmn.models.baselines.baseline import NodeModel, attributes_input
from hpgmn.models.baselines.gcn import GCNSettings
from hpgmn.models.layers import Convolution, Linear, Output, jump
from hpgmn.models.stage import ModelEntry, Parameters, TrainingStage, TrainingTask, main_stage


@dataclass(frozen=True, kw_only=True)
class GCNJKSettings(GCNSettings):
    """Everything that can be set about GCN with jumping knowledge."""

    layers: int = setting(2, "number of layers before the linear classifier", low=1, high=16)
    jump: str = setting(
        "concat",
        "the classifier sees the layers side by side, or the largest entry among them",
        choices=("concat", "max"),
    )


class GCNJK(NodeModel):
    """H⁽ˡ⁾ = ReLU(Â·H⁽ˡ⁻¹⁾·W_l + b_l); logits = [H⁽¹⁾ ‖ … ‖ H⁽ᴸ⁾]·W + b, or max instead of ‖.

    Â = D̃^-½·(A + I)·D̃^-½. Every layer, the last one too, has ReLU and dropout, as in PyG's GCN
    with ``jk``. The paper's third way, attention by an LSTM, is left out.

    Args:
        task: gives widths, classes and the settings of the R replicas.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        settings: list[GCNJKSettings] = task.settings
        first = settings[0]
        widths = [task.graph.num_features, *[first.hidden_dim] * first.layers]
        self.jump = first.jump
        self.convolve = nn.ModuleList(
            Convolution(len(settings), inputs, outputs)
            for inputs, outputs in itertools.pairwise(widths)
        )
        seen = first.hidden_dim * (first.layers if first.jump == "concat" else 1)
        self.classify = Linear(len(settings), seen, task.num_classes)
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


def _main(task: TrainingTask, done: Mapping[str, Parameters]) -> TrainingStage:
    first: GCNJKSettings = task.settings[0]
    propagation = task.statistics.propagation(first.neighbors, "symmetric", first.self_loop)
    return main_stage(task, GCNJK(task), attributes_input(task) | {"propagation": propagation})


def _floats(graph: Graph, settings: GCNJKSettings) -> tuple[int, int]:
    parameters = graph.num_features * settings.hidden_dim
    return parameters, settings.hidden_dim * (4 * settings.layers + 8)


ENTRY = ModelEntry(
    "gcn-jk",
    "graph convolutional network with jumping knowledge",
    "Keyulu Xu, Chengtao Li, Yonglong Tian, Tomohiro Sonobe, Ken-ichi Kawarabayashi, Stefanie "
    "Jegelka. Representation Learning on Graphs with Jumping Knowledge Networks. ICML 2018.",
    GCNJKSettings,
    {"main": _main},
    _floats,
)
