"""MMP: message passing through a gated memory beside each node's state (Chen et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import Noise, dropout
from hpgmn.base.settings import inherited_setting, rate_setting, setting
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    GraphSettings,
    propagation_inputs,
    single_stage,
)
from hpgmn.models.layers import Convolution, Linear, NodeModel, Output, StatisticLinear
from hpgmn.models.stage import ModelEntry, TrainingTask


@dataclass(frozen=True, kw_only=True)
class MMPSettings(GraphSettings):
    """Settings of MMP."""

    lr: float = inherited_setting(GraphSettings, "lr", 0.05)
    attributes_dropout: float = inherited_setting(GraphSettings, "attributes_dropout", 0.5)
    layers: int = setting(2, "rounds of message passing", low=1, high=16)
    normalization: str = setting(
        "symmetric",
        "how the adjacency is normalised; row is the released code's mean over neighbours",
        choices=("symmetric", "row"),
    )
    self_loop: float = setting(0.0, "weight of the self-loop added to every node", low=0.0)
    keep_gate: bool = setting(
        True, "whether the memory takes up a share of the node's state; false: the released code"
    )
    cosine_weight: float = rate_setting(0.0, "weight of the similarity of state and memory")


class MMP(Baseline, NodeModel):
    """h = m = ReLU(X·W); each layer c = Â·m·W_l + b_l, h ← a₁·h + a₂·c, m ← a₃·h + a₄·c.

    The gates (a₁ … a₄) = sigmoid(dropout([h ‖ c])·W_g + b_g) are four numbers per node, and both
    updates read the h before them. Logits = h·W'. The penalty ``cosine`` is the mean over layers of
    |mean over nodes of cos(h, m)|. As in the released code, all layers share W_g. That code leaves
    a₃ out (``keep_gate=False``), averages over neighbours (``normalization="row"``) and divides the
    penalty by one layer less. Input dropout is of whole columns, in the source of single entries.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first, replicas = task.settings[0], len(task.replicas)
        width = first.hidden_dim
        self.encode = StatisticLinear(replicas, task.graph.num_features, width)
        self.convolve = nn.ModuleList(
            Convolution(replicas, width, width) for _ in range(first.layers)
        )
        self.gate = Linear(replicas, 2 * width, 4 if first.keep_gate else 3)
        self.classify = Linear(replicas, width, task.output_dim)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        state = torch.relu(self.encode(inputs["attributes"], self.input_rate, noise, "encode"))
        memory = state
        similarity = []
        for number, layer in enumerate(self.convolve):
            message = layer(inputs["propagation"], memory)
            both = torch.cat([state, message], dim=-1)
            both = dropout(both, self.drop_rate, noise, f"gate.{number}", in_place=True)
            stay, take, *keep, give = self.gate(both).sigmoid().split(1, dim=-1)  # (R, N, 1) each
            memory = give * message
            for share in keep:
                memory = memory + share * state
            state = stay * state + take * message
            if penalties:
                similarity.append(cosine(state, memory).mean(dim=-1).abs())
        output = Output(self.classify(state))
        if penalties:
            output.penalties["cosine"] = torch.stack(similarity).mean(dim=0)
        return output


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """The cosine of the angle between rows; with a zero row it is 0, and so is its gradient.

    >>> cosine(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([0.6000, 0.0000])
    """
    squares = left.square().sum(dim=-1) * right.square().sum(dim=-1)
    known = squares > 0
    # An isolated node's message is the bias, initially zero: an epsilon in the denominator would
    # make its gradient many orders of magnitude larger than the others.
    lengths = torch.where(known, squares, 1.0).sqrt()
    return torch.where(known, (left * right).sum(dim=-1) / lengths, 0.0)


def _inputs(task: TrainingTask) -> dict[str, Any]:
    first: MMPSettings = task.settings[0]
    return propagation_inputs(task, first.self_loop, first.normalization)


def _floats(graph: Graph, settings: MMPSettings) -> tuple[int, int]:
    width = settings.hidden_dim
    parameters = (graph.num_features + settings.layers * width) * width
    return parameters, width * (20 * settings.layers + 12)


ENTRY = ModelEntry("mmp", MMPSettings, single_stage(MMP, _inputs, penalties=["cosine"]), _floats)
