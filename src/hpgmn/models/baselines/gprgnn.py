"""GPRGNN: an MLP, then a learned polynomial of the adjacency (Chien et al., ICLR 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import Noise, dropout
from hpgmn.base.settings import dropout_setting, rate_setting, setting, share_setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import (
    Baseline,
    GraphSettings,
    layer_widths,
    propagation_inputs,
    single_stage,
)
from hpgmn.models.layers import Initialised, NodeModel, Output, StatisticMLP
from hpgmn.models.propagated import appnp_weights
from hpgmn.models.stage import ModelEntry, TrainingTask, default_floats
from hpgmn.statistics.operators import join_replicas, split_replicas


@dataclass(frozen=True, kw_only=True)
class GPRGNNSettings(GraphSettings):
    """Settings of GPRGNN."""

    layers: int = setting(2, "layers of the MLP", low=1, high=8)
    rounds: int = setting(10, "the highest power of the adjacency", low=1, high=200)
    teleport: float = share_setting(
        0.1, "the coefficients start as those of personalised PageRank with this teleport"
    )
    propagation_dropout: float = dropout_setting(
        0.5, "dropout of the MLP's logits before propagation"
    )
    polynomial_weight_decay: float = rate_setting(
        0.0, "weight decay of the polynomial's coefficients"
    )


class Polynomial(Initialised):
    """Σ_k γ_k·P^k·H for k = 0 … rounds, one γ per replica, initially teleport·(1-teleport)^k."""

    def __init__(self, rounds: int, teleports: Sequence[float]) -> None:
        super().__init__()
        self.first = torch.from_numpy(
            np.stack([appnp_weights(rounds, teleport) for teleport in teleports])
        )
        self.coefficients = nn.Parameter(torch.zeros(len(teleports), rounds + 1))

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        self.coefficients.copy_(self.first)

    def forward(self, propagation: SparseMatrix, hidden: Tensor) -> Tensor:
        """(R, N, D) to (R, N, D)."""
        wide = join_replicas(hidden)
        spread: Tensor = cast(Any, _Series).apply(wide, self.coefficients, propagation)
        return split_replicas(spread, hidden.shape[0])


class _Series(torch.autograd.Function):
    """Σ_k γ_k·P^k·H by Horner's rule, storing H alone for the backward pass.

    With B_k = (Pᵀ)^k·G for the gradient G of the result, that of γ_k is ⟨B_k, H⟩, since
    ⟨G, P^k·H⟩ = ⟨B_k, H⟩, and that of H is Σ_k γ_k·B_k: no power of P times H is stored.
    """

    @staticmethod
    def forward(ctx: Any, wide: Tensor, coefficients: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.save_for_backward(wide, coefficients)
        ctx.matrix = matrix
        *lower, highest = _over_columns(coefficients, wide)
        result = wide * highest
        for weight in reversed(lower):
            result = (matrix @ result).addcmul_(wide, weight)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        wide, coefficients = ctx.saved_tensors
        replicas = coefficients.shape[0]
        back = gradient.contiguous()
        total = torch.zeros_like(back)
        slopes = []
        for power, weight in enumerate(_over_columns(coefficients, wide)):
            if power:
                back = ctx.matrix.transpose @ back
            total.addcmul_(back, weight)
            slopes.append((back * wide).view(wide.shape[0], replicas, -1).sum(dim=(0, 2)))
        return total, torch.stack(slopes, dim=1), None


def _over_columns(coefficients: Tensor, wide: Tensor) -> list[Tensor]:
    """For each power a row with the coefficient of each column's replica."""
    repeats = wide.shape[1] // coefficients.shape[0]
    return list(coefficients.T.repeat_interleave(repeats, dim=1))


class GPRGNN(Baseline, NodeModel):
    """Logits = Σ_k γ_k·Â^k·MLP(X), γ learned; Â = D̃^-½·(A + I)·D̃^-½.

    The input dropout of the source is of single entries, here of whole columns. The source, too,
    leaves the coefficients γ without weight decay.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        self.encode = StatisticMLP(len(task.replicas), layer_widths(task))
        self.polynomial = Polynomial(task.settings[0].rounds, task.values("teleport"))
        self.propagation_rate = task.drop_rate("propagation_dropout")

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        start: Tensor = self.encode(
            inputs["attributes"], self.input_rate, self.drop_rate, noise, "encode"
        )
        start = dropout(start, self.propagation_rate, noise, "propagation")
        return Output(self.polynomial(inputs["propagation"], start))


def _floats(graph: Graph, settings: GPRGNNSettings) -> tuple[int, int]:
    parameters, per_node = default_floats(graph, settings)
    return parameters, per_node + 10 * max(graph.num_classes, 2)


_STAGES = single_stage(
    GPRGNN,
    partial(propagation_inputs, self_loop=1.0),
    own_rates={"polynomial.": ("lr", "polynomial_weight_decay")},
)
ENTRY = ModelEntry("gprgnn", GPRGNNSettings, _STAGES, _floats)
