"""MixHop: every layer concatenates powers of the propagation (Abu-El-Haija et al., ICML 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import Noise, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    GraphSettings,
    propagation_inputs,
    single_stage,
)
from hpgmn.models.layers import Linear, NodeModel, Output, TermWeights, product, propagate
from hpgmn.models.stage import ModelEntry, TrainingTask
from hpgmn.statistics.operators import Statistic


@dataclass(frozen=True, kw_only=True)
class MixHopSettings(GraphSettings):
    """Settings of MixHop."""

    hidden_dim: int = setting(64, "width of each power's part of a hidden layer", low=1)
    layers: int = setting(2, "number of layers before the linear classifier", low=1, high=16)
    powers: int = setting(2, "highest power of the propagation matrix", low=1, high=8)


class MixHopConvolution(TermWeights):
    """y = [x·W_0 ‖ P·x·W_1 ‖ … ‖ P^p·x·W_p] + b.

    The weights come first, so that products with P are as wide as the output and not the input;
    the parts of higher powers share the products of the lower ones. ``outputs`` is the width of
    each power's part of y.
    """

    def __init__(self, replicas: int, inputs: int, outputs: int, powers: int) -> None:
        super().__init__(replicas, inputs, outputs, powers + 1, (powers + 1) * outputs)

    def forward(
        self, propagation: SparseMatrix, x: Statistic | Tensor, columns: Tensor | None = None
    ) -> Tensor:
        """A statistic's rows, or (R, N, inputs), to (R, N, (powers + 1)·outputs)."""
        _, _, count, width = self.weight.shape
        rest = product(x, self.weight.flatten(2), columns)
        parts = []
        for waiting in range(count - 1, 0, -1):
            part, rest = rest.split_with_sizes([width, waiting * width], dim=-1)
            parts.append(part)
            rest = propagate(propagation, rest)
        return torch.cat([*parts, rest], dim=-1) + self.bias


class MixHop(Baseline, NodeModel):
    """H⁽ˡ⁾ = ReLU([H⁽ˡ⁻¹⁾·W_l0 ‖ Â·H⁽ˡ⁻¹⁾·W_l1 ‖ …] + b_l), logits = H⁽ᴸ⁾·W + b.

    Â = D̃^-½·(A + I)·D̃^-½. The classifier is linear; the paper's code sums groups of the last
    layer's columns with learned weights instead. Every power has the same width and there is no
    batch normalisation; the paper learns widths with a group lasso.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first, replicas = task.settings[0], len(task.replicas)
        wide = first.hidden_dim * (first.powers + 1)
        self.convolve = nn.ModuleList(
            MixHopConvolution(replicas, inputs, first.hidden_dim, first.powers)
            for inputs in [task.graph.num_features, *[wide] * (first.layers - 1)]
        )
        self.classify = Linear(replicas, wide, task.output_dim)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        hidden, propagation = inputs["attributes"], inputs["propagation"]
        columns = self.column_factors(hidden, noise)
        for number, layer in enumerate(self.convolve, start=1):
            hidden = layer(propagation, hidden, columns)
            hidden = relu_dropout(hidden, self.drop_rate, noise, f"hidden.{number}")
        return Output(self.classify(hidden))


def _floats(graph: Graph, settings: MixHopSettings) -> tuple[int, int]:
    wide = settings.hidden_dim * (settings.powers + 1)
    parameters = graph.num_features * wide + (settings.layers - 1) * wide * wide
    return parameters, wide * (2 * settings.layers + 4)


ENTRY = ModelEntry(
    "mixhop",
    MixHopSettings,
    single_stage(MixHop, partial(propagation_inputs, self_loop=1.0)),
    _floats,
)
