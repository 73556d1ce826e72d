"""Dir-GCN: separate weights for out-edges and in-edges (Rossi et al., LoG 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from hpgmn.base.randomness import Noise, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    DeepSettings,
    attributes_input,
    deep_floats,
    single_stage,
    stack_layers,
)
from hpgmn.models.layers import Convolution, Linear, NodeModel, Output, jump
from hpgmn.models.stage import ModelEntry, TrainingTask
from hpgmn.statistics import Statistic


@dataclass(frozen=True, kw_only=True)
class DirGCNSettings(DeepSettings):
    """Settings of Dir-GCN."""

    layers: int = setting(3, "number of layers", low=1, high=16)
    out_share: float = setting(
        0.5, "share of the out-edges in each layer, the in-edges have the rest", low=0.0, high=1.0
    )
    jump: str = setting(
        "max",
        "the classifier sees the largest entry among the layers, the layers side by side, or "
        "there is none and the last layer gives the classes",
        choices=("max", "concat", "none"),
    )
    unit_layers: bool = setting(False, "scale the output of each hidden layer to unit length")
    self_loop: float = setting(0.0, "weight of the self-loop added to every node", low=0.0)


class _BothWays(nn.Module):
    """y = share·(Â·x·W₁ + b₁) + (1-share)·(Âᵀ·x·W₂ + b₂); a side of share 0 has no weights."""

    def __init__(self, replicas: int, inputs: int, outputs: int, out_share: float) -> None:
        super().__init__()
        self.out_share = out_share
        if out_share > 0:
            self.outward = Convolution(replicas, inputs, outputs)
        if out_share < 1:
            self.inward = Convolution(replicas, inputs, outputs)

    def forward(
        self, propagation: SparseMatrix, x: Statistic | Tensor, columns: Tensor | None = None
    ) -> Tensor:
        """A statistic's rows, or (R, N, inputs), to (R, N, outputs)."""
        if self.out_share == 0:
            inward: Tensor = self.inward(propagation.transpose, x, columns)
            return inward
        outward: Tensor = self.outward(propagation, x, columns)
        if self.out_share == 1:
            return outward
        inward = self.inward(propagation.transpose, x, columns)
        return outward.mul_(self.out_share).add_(inward, alpha=1 - self.out_share)


class DirGCN(Baseline, NodeModel):
    """H⁽ˡ⁾ = a·(Â·H⁽ˡ⁻¹⁾·W₁ + b₁) + (1-a)·(Âᵀ·H⁽ˡ⁻¹⁾·W₂ + b₂), Â = D_out^-½·A·D_in^-½.

    After each layer ReLU, dropout and, with ``unit_layers``, scaling of the node's row to unit
    length; logits = W·max(H⁽¹⁾, …, H⁽ᴸ⁾) + b, or of their concatenation. With ``jump`` "none"
    the last layer gives the logits. This is the authors' code, but for dropout of input columns,
    which is added and off by default. Without ``self_loop``, as there, a node's own attributes
    reach it along edges only. ``residual`` and ``norm``: :meth:`Baseline.connect_layers`.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first, replicas = task.settings[0], len(task.replicas)
        self.jump, self.unit_layers = first.jump, first.unit_layers
        widths = [task.graph.num_features, *[first.hidden_dim] * first.layers]
        self.classify: Linear | None = None
        if first.jump != "none" or first.is_deep:
            joined = first.hidden_dim * (first.layers if first.jump == "concat" else 1)
            self.classify = Linear(replicas, joined, task.output_dim)
        else:
            widths[-1] = task.output_dim
        layer = partial(_BothWays, out_share=first.out_share)
        self.convolve = stack_layers(layer, replicas, widths)
        self.connect_layers(task, self.convolve, widths, has_classifier=False)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        hidden, propagation = inputs["attributes"], inputs["propagation"]
        columns = self.column_factors(hidden, noise)
        states: list[Tensor] = []
        for number, layer in enumerate(self.convolve):
            if number:
                hidden = self._activate(hidden, noise, number)
                states.append(hidden)
            output = layer(propagation, hidden, columns)
            hidden = self.connect(number, output, hidden, columns, noise)
        if self.classify is None:
            return Output(hidden)
        hidden = self._activate(hidden, noise, len(self.convolve))
        joined = hidden if self.jump == "none" else jump([*states, hidden], self.jump)
        return Output(self.classify(joined))

    def _activate(self, hidden: Tensor, noise: Noise | None, number: int) -> Tensor:
        hidden = relu_dropout(hidden, self.drop_rate, noise, f"hidden.{number}")
        return functional.normalize(hidden, dim=-1) if self.unit_layers else hidden


def _inputs(task: TrainingTask) -> dict[str, Any]:
    propagation = task.statistics.propagation("out", "symmetric", task.settings[0].self_loop)
    return attributes_input(task) | {"propagation": propagation}


def _floats(graph: Graph, settings: DirGCNSettings) -> tuple[int, int]:
    ways = 1 if settings.out_share in (0, 1) else 2
    width = settings.hidden_dim
    parameters = width * (graph.num_features + (settings.layers - 1) * width) * ways
    return parameters, width * settings.layers * (2 * ways + 6)


ENTRY = ModelEntry("dirgcn", DirGCNSettings, single_stage(DirGCN, _inputs), deep_floats(_floats))
