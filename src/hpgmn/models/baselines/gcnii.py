"""GCNII: deep convolutions with initial residual and identity mapping (Chen et al., ICML 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import DropRate, Noise, relu_dropout
from hpgmn.base.settings import rate_setting, setting, share_setting
from hpgmn.base.sparse import SparseMatrix, transition
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import Baseline, GraphSettings, attributes_input, single_stage
from hpgmn.models.layers import Initialised, Linear, NodeModel, Output, StatisticLinear
from hpgmn.models.stage import ModelEntry, TrainingTask
from hpgmn.statistics.operators import join_replicas, split_replicas


@dataclass(frozen=True, kw_only=True)
class GCNIISettings(GraphSettings):
    """Settings of GCNII."""

    layers: int = setting(8, "number of convolutions", low=1, high=64)
    initial_share: float = share_setting(
        0.1, "share of the first layer's state in every convolution"
    )
    identity_strength: float = rate_setting(
        0.5, "decay of the weights towards the identity: layer l has log(1 + strength / l) of them"
    )
    shared_weights: bool = setting(
        True, "one matrix for neighbours and first layer; false: one each, as GCNII*"
    )
    convolution_weight_decay: float = rate_setting(0.01, "weight decay of the convolutions")


class _ScaledReLU(torch.autograd.Function):
    """max(x, 0) · mask · scale, storing one byte per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None, scale: Tensor) -> Tensor:
        result = torch.relu(x)
        if mask is not None:
            result.mul_(mask)
        ctx.save_for_backward(result > 0, scale)
        return result.mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        passed, scale = ctx.saved_tensors
        return (gradient * passed).mul_(scale), None, None


class DeepConvolutions(Initialised):
    """H⁽ˡ⁾ = ReLU(((1-α)·P·H⁽ˡ⁻¹⁾ + α·H⁽⁰⁾)·((1-β_l)·I + β_l·W_l)), β_l = log(1 + θ / l).

    α is ``initial_share``, θ ``identity_strength``. Without shared weights H⁽⁰⁾ has matrices of
    its own, as in PyG's GCN2Conv. A layer stores its input to the weights and
    one byte per element for the backward pass: ReLU, dropout and (1-α) are applied before P.
    """

    def __init__(self, settings: list[GCNIISettings], device: torch.device) -> None:
        super().__init__()
        first = settings[0]
        shape = (len(settings), first.layers, first.hidden_dim, first.hidden_dim)
        self.weight = nn.Parameter(torch.zeros(shape))
        self.initial_weight = None if first.shared_weights else nn.Parameter(torch.zeros(shape))
        self.drop_rate = DropRate([replica.dropout for replica in settings], device)
        share = torch.tensor([replica.initial_share for replica in settings], device=device)
        self.share = share.view(-1, 1, 1)
        theta = torch.tensor([replica.identity_strength for replica in settings], device=device)
        depth = torch.arange(1, first.layers + 1, device=device)
        self.strength = torch.log1p(theta.unsqueeze(1) / depth)[..., None, None]
        self.identity = torch.eye(first.hidden_dim, device=device)

    def forward(
        self, propagation: SparseMatrix, initial: Tensor, noise: Noise | None, place: str
    ) -> Tensor:
        """H⁽⁰⁾, (R, N, D), to the last layer before its ReLU."""
        replicas = initial.shape[0]
        matrices = torch.lerp(self.identity, self.weight, self.strength).unbind(dim=1)
        start = join_replicas(initial * self.share)
        hidden = initial
        if self.initial_weight is None:
            for number, matrix in enumerate(matrices):
                hidden = self._activate(hidden, noise, f"{place}.{number}")
                support = (propagation @ join_replicas(hidden)).add_(start)
                hidden = torch.bmm(split_replicas(support, replicas), matrix)
            return hidden
        initial_matrices = torch.lerp(self.identity, self.initial_weight, self.strength).unbind(1)
        residual = split_replicas(start, replicas)
        pairs = zip(matrices, initial_matrices, strict=True)
        for number, (matrix, initial_matrix) in enumerate(pairs):
            hidden = self._activate(hidden, noise, f"{place}.{number}")
            hidden = split_replicas(propagation @ join_replicas(hidden), replicas)
            hidden = torch.baddbmm(torch.bmm(residual, initial_matrix), hidden, matrix)
        return hidden

    def _activate(self, hidden: Tensor, noise: Noise | None, place: str) -> Tensor:
        """(1-α)·dropout(ReLU(H)); ReLU leaves H⁽⁰⁾ as it is."""
        rate, scale, mask = self.drop_rate, 1 - self.share, None
        if noise is not None and not rate.is_zero:
            mask = noise.keep(place, hidden.shape[1:], rate)
            scale = scale * rate.scale.view(-1, 1, 1)
        result: Tensor = cast(Any, _ScaledReLU).apply(hidden, mask, scale)
        return result


class GCNII(Baseline, NodeModel):
    """H⁽⁰⁾ = ReLU(X·W + b), :class:`DeepConvolutions`, logits = H⁽ᴸ⁾·W' + b'; P = D̃^-½·(A+I)·D̃^-½.

    Differs from the authors' code in the input's dropout, which drops whole columns, in Glorot's
    first values, and in GCNII*, where their code applies the weights without the factors 1-α and
    α. Like here, their code reads the edges of WebKB and the Wikipedia graphs in one direction
    (``neighbors`` "out") and normalises rows and columns by the degrees of the edges read.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        settings: list[GCNIISettings] = task.settings
        width = settings[0].hidden_dim
        self.encode = StatisticLinear(len(settings), task.graph.num_features, width)
        self.convolve = DeepConvolutions(settings, task.device)
        self.classify = Linear(len(settings), width, task.output_dim)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        initial = self.encode(inputs["attributes"], self.input_rate, noise, "encode").relu_()
        hidden = self.convolve(inputs["propagation"], initial, noise, "convolve")
        hidden = relu_dropout(hidden, self.drop_rate, noise, "classify")
        return Output(self.classify(hidden))


def _inputs(task: TrainingTask) -> dict[str, Any]:
    """The attributes, and P with rows and columns normalised by the degree of the edges read."""
    adjacency = task.statistics.adjacency(task.settings[0].neighbors)
    matrix = transition(adjacency, "row", 1.0)
    roots = np.sqrt(1 + np.asarray(adjacency.sum(axis=1), dtype=np.float32).reshape(-1))
    matrix.data *= np.repeat(roots, np.diff(matrix.indptr)) / roots[matrix.indices]
    return attributes_input(task) | {"propagation": SparseMatrix(matrix, task.device)}


def _floats(graph: Graph, settings: GCNIISettings) -> tuple[int, int]:
    width, layers = settings.hidden_dim, settings.layers
    matrices = layers * width * width * (1 if settings.shared_weights else 2)
    return graph.num_features * width + matrices, width * (layers * 5 // 4 + 12)


_STAGES = single_stage(GCNII, _inputs, own_rates={"convolve.": ("lr", "convolution_weight_decay")})
ENTRY = ModelEntry("gcnii", GCNIISettings, _STAGES, _floats)
