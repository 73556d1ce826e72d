"""Layers with R replicas as the leading dimension of their parameters, and the model interfaces."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import DropRate, Noise, column_factors, relu_dropout
from hpgmn.base.sparse import SparseMatrix, at_least_single
from hpgmn.statistics.operators import Statistic, join_replicas, split_replicas, take_nodes

NORM_EPSILON = 1e-5
"""Added to the variance in batch norm: a constant column becomes zeros."""

NORM_MOMENTUM = 0.1
"""Share of the latest pass in the running averages of :class:`RunningBatchNorm`."""


@dataclass
class Output:
    """What every model returns.

    Attributes:
        logits: (R, B, C).
        penalties: each (R,), by name; weighted by ``TrainingStage.penalty_weights``.
        details: attention, gate and the like, if requested.
    """

    logits: Tensor
    penalties: dict[str, Tensor] = field(default_factory=dict)
    details: dict[str, Tensor] = field(default_factory=dict)


class NodeModel(nn.Module, ABC):
    """A model that computes all nodes together and selects the requested ones from the result."""

    @abstractmethod
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        """Compute the logits (R, N, C) of all nodes, and the penalties if requested."""

    def forward(
        self,
        inputs: Mapping[str, Any],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
    ) -> Output:
        """Compute class logits; see :meth:`hpgmn.models.hpgmn.HPGMN.forward`."""
        output = self.outputs(inputs, noise, penalties=penalties)
        output.logits = take_nodes(take_nodes(output.logits, nodes), classify)
        return output


class RowModel(nn.Module, ABC):
    """A model that reads the rows of the requested nodes alone."""

    @abstractmethod
    def rows(self, inputs: Mapping[str, Any], noise: Noise | None, nodes: Tensor | None) -> Tensor:
        """Compute the logits of some nodes (R, B, C), or of all."""

    def forward(
        self,
        inputs: Mapping[str, Any],
        noise: Noise | None = None,
        nodes: Tensor | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
    ) -> Output:
        """Compute class logits; see :meth:`hpgmn.models.hpgmn.HPGMN.forward`."""
        return Output(take_nodes(self.rows(inputs, noise, nodes), classify))


def draw_glorot(parameter: Tensor, noise: Noise, place: str) -> None:
    """Fill (R, in, out) uniformly within ±√(6 / (in + out)), after Glorot and Bengio."""
    bound = math.sqrt(6 / (parameter.shape[-2] + parameter.shape[-1]))
    uniform = noise.uniform(place, parameter.shape[1:])
    parameter.copy_(uniform.mul_(2 * bound).sub_(bound))


class Initialised(nn.Module):
    """A module that draws its initial values from named random streams."""

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Draw the values of this module's own parameters: Glorot weights, biases of zero."""
        for name, parameter in self.named_parameters(recurse=False):
            if name == "bias":
                parameter.zero_()
            else:
                draw_glorot(parameter, noise, f"{place}.{name}")


def initialise(module: nn.Module, keys: Tensor) -> None:
    """Draw the initial value of every parameter from the replicas' keys (R,), whatever R is."""
    noise = Noise(keys, "initial values")
    with torch.no_grad():
        for place, part in module.named_modules():
            if isinstance(part, Initialised):
                part.reset_parameters(noise, place)


class Affine(Initialised):
    """A weight and a bias per replica: (R, inputs, outputs) and (R, 1, outputs)."""

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        # Not written to before it is drawn or loaded: rows of nodes make it wide.
        self.weight = nn.Parameter(torch.empty(replicas, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))


class Linear(Affine):
    """y = x·W + b, one W and b per replica."""

    def forward(self, x: Tensor) -> Tensor:
        """(R, B, inputs) to (R, B, outputs)."""
        return torch.baddbmm(self.bias, x, self.weight)


class StatisticLinear(Affine):
    """The first layer over a statistic, computed from its products alone.

    Input dropout drops whole columns: exact in every form of the statistic, since
    ``r·diag(m)·W = r·(diag(m)·W)``.
    """

    def forward(
        self,
        statistic: Statistic,
        rate: DropRate,
        noise: Noise | None,
        place: str,
        nodes: Tensor | None = None,
        *,
        add_bias: bool = True,
    ) -> Tensor:
        """Map the statistic's rows to (R, N or B, outputs)."""
        factors = column_factors(self.weight.shape[1], rate, noise, f"{place}.columns")
        product = statistic.times(self.weight, nodes, factors)
        return product.add_(self.bias) if add_bias else product


class BatchNorm(Initialised):
    """Scale every column to mean 0 and variance 1 over all nodes, times a learned factor.

    There is no shift: the bias of a layer is one. Mean and variance are those of the current pass,
    in evaluation too, since the model always reads all nodes: no running averages. On another graph
    they are that graph's.
    """

    def __init__(self, replicas: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(replicas, 1, width))

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        self.scale.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        """(R, N, width) to the same shape."""
        x = at_least_single(x)  # the variance is a mean of small differences
        centred = x - x.mean(dim=1, keepdim=True)
        variance = centred.square().mean(dim=1, keepdim=True)
        return centred * (self.scale * torch.rsqrt(variance + NORM_EPSILON))


class RunningBatchNorm(Initialised):
    """Batch norm per replica, as torch.nn.BatchNorm1d: training with the statistics of the pass.

    Evaluation uses their running averages, which are parameters without a gradient, so that they
    are saved, resumed and kept with the best epoch. Each training pass updates them.
    """

    def __init__(self, replicas: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(replicas, 1, width))
        self.shift = nn.Parameter(torch.zeros(replicas, 1, width))
        self.mean = nn.Parameter(torch.zeros(replicas, 1, width), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(replicas, 1, width), requires_grad=False)

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        for parameter, value in ((self.scale, 1), (self.shift, 0), (self.mean, 0)):
            parameter.fill_(value)
        self.variance.fill_(1)

    def forward(self, x: Tensor, noise: Noise | None) -> Tensor:
        """(R, N, width) to the same shape; None for ``noise`` means evaluation."""
        x = at_least_single(x)  # the variance is a mean of small differences
        if noise is None:
            factor = self.scale * torch.rsqrt(self.variance + NORM_EPSILON)
            return torch.addcmul(self.shift - self.mean * factor, x, factor)
        scale, shift, mean, variance = (
            parameter.view(-1) for parameter in (self.scale, self.shift, self.mean, self.variance)
        )
        columns = join_replicas(x)  # (N, R·width): batch norm of independent columns
        normed = torch.batch_norm(
            columns, scale, shift, mean, variance, True, NORM_MOMENTUM, NORM_EPSILON, False
        )
        return split_replicas(normed, x.shape[0])


class Gate(Initialised):
    """A learned softmax over choices, scaled so that a uniform gate changes nothing.

    Args:
        start: initial value of all logits.
    """

    def __init__(self, replicas: int, choices: int, start: float = 0.0) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full((replicas, choices), start))
        self._start = start

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        self.logits.fill_(self._start)

    def forward(self) -> Tensor:
        """(R, choices), mean 1."""
        return self.logits.softmax(dim=-1) * self.logits.shape[1]


class TermWeights(Initialised):
    """One weight per term of a polynomial, (R, inputs, terms, outputs), and a bias.

    Args:
        width: the width of the bias.
    """

    def __init__(self, replicas: int, inputs: int, outputs: int, terms: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, terms, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, width))

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        draw_glorot(self.weight.transpose(1, 2), noise, f"{place}.weight")
        self.bias.zero_()


def propagate(propagation: SparseMatrix, hidden: Tensor) -> Tensor:
    """P·H for every replica: (R, N, D) to (R, N, D)."""
    return split_replicas(propagation @ join_replicas(hidden), hidden.shape[0])


def product(x: Statistic | Tensor, weight: Tensor, columns: Tensor | None = None) -> Tensor:
    """x·W: a statistic's rows, or (R, N, inputs), to (R, N, outputs).

    Args:
        weight: (R, inputs, outputs).
        columns: (R, inputs) factors of a statistic's columns, from ``column_factors``.
    """
    if isinstance(x, Statistic):
        return x.times(weight, None, columns)
    return torch.bmm(x, weight)


def jump(states: Sequence[Tensor], mode: str) -> Tensor:
    """Combine the states of all layers: concatenated ("concat"), or element-wise maximum ("max").

    >>> jump([torch.tensor([[1.0, 4.0]]), torch.tensor([[3.0, 2.0]])], "max")
    tensor([[3., 4.]])
    """
    return torch.cat(list(states), dim=-1) if mode == "concat" else reduce(torch.maximum, states)


class Convolution(Affine):
    """y = P·(x·W) + b: the layer of GCN, the bias added after propagation."""

    def forward(
        self, propagation: SparseMatrix, x: Statistic | Tensor, columns: Tensor | None = None
    ) -> Tensor:
        """Map a statistic's rows, or (R, N, inputs), to (R, N, outputs)."""
        return propagate(propagation, product(x, self.weight, columns)) + self.bias


class Skip(Initialised):
    """y = output + x·V: the residual connection past a layer from x to its output."""

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(replicas, inputs, outputs))

    def forward(
        self, output: Tensor, x: Statistic | Tensor, columns: Tensor | None = None
    ) -> Tensor:
        """Add a statistic's rows, or (R, N, inputs), to (R, N, outputs)."""
        if isinstance(x, Statistic):
            return output + x.times(self.weight, None, columns)
        return torch.baddbmm(output, x, self.weight)


class AggregationLinear(Initialised):
    """y = aggregate(x·W₂) + x·W₁ + b: separate weights for a node and for its neighbours."""

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.neighbors = nn.Parameter(torch.zeros(replicas, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs))

    def forward(
        self,
        aggregate: Callable[[Tensor], Tensor],
        x: Statistic | Tensor,
        columns: Tensor | None = None,
    ) -> Tensor:
        """A statistic's rows, or (R, N, inputs), to (R, N, outputs)."""
        own, messages = (product(x, weight, columns) for weight in (self.own, self.neighbors))
        return aggregate(messages) + own + self.bias


class MLP(nn.Module):
    """Linear layers with ReLU and dropout between them.

    Args:
        widths: the width of the input, of each hidden layer, and of the output.
    """

    def __init__(self, replicas: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Linear(replicas, inputs, outputs) for inputs, outputs in itertools.pairwise(widths)
        )

    def forward(self, x: Tensor, rate: DropRate, noise: Noise | None, place: str) -> Tensor:
        """(R, B, widths[0]) to (R, B, widths[-1])."""
        for number, layer in enumerate(self.layers):
            if number:
                x = relu_dropout(x, rate, noise, f"{place}.{number}")
            x = layer(x)
        return x


class StatisticMLP(nn.Module):
    """Linear layers on a statistic, with ReLU and dropout between them.

    Args:
        widths: the statistic's width, each hidden layer's, and the output's.
    """

    def __init__(self, replicas: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.first = StatisticLinear(replicas, widths[0], widths[1])
        self.rest = MLP(replicas, widths[1:])

    def forward(
        self,
        statistic: Statistic,
        input_rate: DropRate,
        rate: DropRate,
        noise: Noise | None,
        place: str,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Map the statistic's rows to (R, N or B, widths[-1])."""
        if not self.rest.layers:
            output: Tensor = self.first(statistic, input_rate, noise, place, nodes)
            return output
        hidden = self.first(statistic, input_rate, noise, place, nodes, add_bias=False)
        hidden = relu_dropout(hidden, rate, noise, f"{place}.hidden", self.first.bias)
        result: Tensor = self.rest(hidden, rate, noise, place)
        return result
