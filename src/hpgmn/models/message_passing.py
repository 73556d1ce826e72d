"""Message passing as a local statistic: the last state of a residual network on the graph.

The settings follow Luo, Shi and Wu, Classic GNNs are Strong Baselines, NeurIPS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hpgmn.base.randomness import DropRate, Noise, column_factors, relu_dropout
from hpgmn.base.settings import dropout_setting, setting
from hpgmn.models.layers import Initialised, Linear, RunningBatchNorm, jump, product
from hpgmn.statistics.operators import Statistic, propagate_linked, take_nodes


@dataclass(frozen=True, kw_only=True)
class MessagePassingSettings:
    """Settings of the network; those of its matrix are among the statistics' settings."""

    mp_layers: int = setting(4, "message passing: number of layers", low=1, high=16)
    mp_norm: str = setting(
        "batch",
        "message passing: normalise each layer over all nodes, or not",
        choices=("batch", "none"),
    )
    mp_jump: str = setting(
        "none",
        "message passing: the encoding is the last layer, the largest entry among the layers, or "
        "a linear layer on all of them",
        choices=("none", "max", "concat"),
    )
    message_passing_dropout: float = dropout_setting(
        0.0, "dropout of whole columns of the attributes that message passing reads"
    )


class MessageLayer(Initialised):
    """y = Â·x·W_near + x·W_self, without the second term if not ``residual``.

    Of several edge types each has its Â and W_near, and what they give is added.

    Args:
        num_types: the number of edge types.
        with_bias: whether the layer has a bias, which the caller adds.
    """

    def __init__(
        self,
        replicas: int,
        inputs: int,
        outputs: int,
        num_types: int,
        *,
        residual: bool,
        with_bias: bool,
    ) -> None:
        super().__init__()
        self.near = nn.Parameter(torch.zeros(replicas, inputs, num_types * outputs))
        self.own = nn.Parameter(torch.zeros(replicas, inputs, outputs)) if residual else None
        self.bias = nn.Parameter(torch.zeros(replicas, 1, outputs)) if with_bias else None

    def forward(
        self, links: Statistic, x: Statistic | Tensor, columns: Tensor | None = None
    ) -> Tensor:
        """A statistic's rows, or (R, N, inputs), to (R, N, outputs)."""
        received = propagate_linked(links, product(x, self.near, columns))
        return received if self.own is None else received + product(x, self.own, columns)


class MessagePassing(nn.Module):
    """H⁽ˡ⁾ = dropout(ReLU(norm(Â·H⁽ˡ⁻¹⁾·W_near + H⁽ˡ⁻¹⁾·W_self))), H⁽⁰⁾ = X.

    Â is the adjacency of the neighbours that ``neighbors`` selects, normalised by
    ``mp_normalization``; without ``mp_residual`` there is no W_self, and Â has self-loops. Without
    ``mp_norm`` a bias takes the place of the norm. One sparse product serves all replicas.

    Args:
        width: the number of attributes.
        settings: of HP-GMN.
        num_types: the number of edge types.
    """

    def __init__(self, replicas: int, width: int, settings: Any, num_types: int = 1) -> None:
        super().__init__()
        dim, count = settings.hidden_dim, settings.mp_layers
        is_normed = settings.mp_norm == "batch"
        self.layers = nn.ModuleList(
            MessageLayer(
                *(replicas, dim if number else width, dim, num_types),
                residual=settings.mp_residual,
                with_bias=not is_normed,
            )
            for number in range(count)
        )
        self.norms = nn.ModuleList(
            RunningBatchNorm(replicas, dim) for _ in range(count * is_normed)
        )
        self.jump = settings.mp_jump
        self.resize = Linear(replicas, count * dim, dim) if self.jump == "concat" else None

    def forward(
        self,
        statistic: Statistic,
        input_rate: DropRate,
        rate: DropRate,
        noise: Noise | None,
        place: str,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Encode all nodes together and return some: (R, N or B, hidden_dim)."""
        columns = column_factors(statistic.width, input_rate, noise, f"{place}.columns")
        hidden: Tensor = self.layers[0](statistic, statistic, columns)
        states: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, MessageLayer)
            if number:
                hidden = layer(statistic, states[-1])
            if self.norms:
                hidden = self.norms[number](hidden, noise)
            states.append(relu_dropout(hidden, rate, noise, f"{place}.{number}", layer.bias))
        encoding = states[-1] if self.jump == "none" else jump(states, self.jump)
        encoding = take_nodes(encoding, nodes)
        return encoding if self.resize is None else self.resize(encoding)
