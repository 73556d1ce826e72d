"""GCN (Kipf and Welling, ICLR 2017), and with jumping knowledge (Xu et al., ICML 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import Noise, relu_dropout
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
from hpgmn.models.layers import Convolution, Linear, NodeModel, Output, jump
from hpgmn.models.stage import ModelEntry, TrainingTask, default_floats


@dataclass(frozen=True, kw_only=True)
class GCNSettings(DeepSettings, GraphSettings):
    """Settings of GCN."""

    layers: int = setting(2, "number of layers", low=1, high=16)
    self_loop: float = setting(1.0, "weight of the self-loop added to every node", low=0.0)


@dataclass(frozen=True, kw_only=True)
class GCNJKSettings(GCNSettings):
    """Settings of GCN with jumping knowledge."""

    layers: int = setting(2, "number of layers before the linear classifier", low=1, high=16)
    jump: str = setting(
        "concat",
        "the classifier sees the layers side by side, or the largest entry among them",
        choices=("concat", "max"),
    )


class GCN(Baseline, NodeModel):
    """H⁽ˡ⁾ = ReLU(Â·H⁽ˡ⁻¹⁾·W_l + b_l), the last one without ReLU; Â = D̃^-½·(A + I)·D̃^-½.

    With ``neighbors`` other than "undirected", rows are normalised by the degrees of the edges
    read and columns by those of the edges that lead there; PyG takes one degree for both.
    ``residual`` and ``norm``: :meth:`Baseline.connect_layers`.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        widths = layer_widths(task)
        self.convolve = stack_layers(Convolution, len(task.replicas), widths)
        self.connect_layers(task, self.convolve, widths)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        attributes, propagation = inputs["attributes"], inputs["propagation"]
        return Output(self.apply_layers(self.convolve, propagation, attributes, noise))


class GCNJK(Baseline, NodeModel):
    """H⁽ˡ⁾ = ReLU(Â·H⁽ˡ⁻¹⁾·W_l + b_l); logits = [H⁽¹⁾ ‖ … ‖ H⁽ᴸ⁾]·W + b, or max instead of ‖.

    Every layer, the last one too, has ReLU and dropout, as in PyG's GCN with ``jk``. The paper's
    third aggregator, attention by an LSTM, is left out.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first, replicas = task.settings[0], len(task.replicas)
        self.jump = first.jump
        widths = [task.graph.num_features, *[first.hidden_dim] * first.layers]
        self.convolve = stack_layers(Convolution, replicas, widths)
        self.connect_layers(task, self.convolve, widths, has_classifier=False)
        joined = first.hidden_dim * (first.layers if first.jump == "concat" else 1)
        self.classify = Linear(replicas, joined, task.output_dim)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        hidden, propagation = inputs["attributes"], inputs["propagation"]
        columns = self.column_factors(hidden, noise)
        states: list[Tensor] = []
        for number, layer in enumerate(self.convolve):
            output = layer(propagation, hidden, columns)
            output = self.connect(number, output, hidden, columns, noise)
            hidden = relu_dropout(output, self.drop_rate, noise, f"hidden.{number + 1}")
            states.append(hidden)
        return Output(self.classify(jump(states, self.jump)))


def _inputs(task: TrainingTask) -> dict[str, Any]:
    return propagation_inputs(task, task.settings[0].self_loop)


def _jk_floats(graph: Graph, settings: GCNJKSettings) -> tuple[int, int]:
    parameters = graph.num_features * settings.hidden_dim
    return parameters, settings.hidden_dim * (4 * settings.layers + 8)


ENTRY = ModelEntry("gcn", GCNSettings, single_stage(GCN, _inputs), deep_floats(default_floats))
JK_ENTRY = ModelEntry(
    "gcn-jk", GCNJKSettings, single_stage(GCNJK, _inputs), deep_floats(_jk_floats)
)
