"""H2GCN: one-hop and two-hop neighbourhoods, concatenated (Zhu et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.randomness import Noise, dropout
from hpgmn.base.settings import setting
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models.baselines.baseline import Baseline, GraphSettings, attributes_input, single_stage
from hpgmn.models.layers import Linear, NodeModel, Output, StatisticLinear, propagate
from hpgmn.models.stage import ModelEntry, TrainingTask


@dataclass(frozen=True, kw_only=True)
class H2GCNSettings(GraphSettings):
    """Settings of H2GCN."""

    rounds: int = setting(2, "rounds of neighbourhood aggregation", low=1, high=2)


class H2GCN(Baseline, NodeModel):
    """H⁰ = ReLU(X·W), Hᵏ = [Â₁·Hᵏ⁻¹ ‖ Â₂·Hᵏ⁻¹], logits = dropout([H⁰ ‖ … ‖ H^K])·W'.

    Â₁ has the neighbours and Â₂ the nodes exactly two steps away, neither the node itself, each
    normalised as D^-½·A·D^-½. The width doubles with each round. The source has no biases, here
    both linear maps have one.

    Â₂ is large where hubs are: 32 million entries on crocodile, 8 on squirrel, 2.5 on actor, 1 on
    chameleon and pubmed. Without dropout the model is linear after H⁰, so evaluation multiplies by
    W' first and propagates C columns instead of hidden_dim.
    """

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        first, replicas = task.settings[0], len(task.replicas)
        width, self.rounds = first.hidden_dim, first.rounds
        self.encode = StatisticLinear(replicas, task.graph.num_features, width)
        self.classify = Linear(replicas, parts(self.rounds) * width, task.output_dim)

    @override
    def outputs(self, inputs: Mapping[str, Any], noise: Noise | None, *, penalties: bool) -> Output:
        hops: tuple[SparseMatrix, SparseMatrix] = inputs["hops"]
        hidden = torch.relu(self.encode(inputs["attributes"], self.input_rate, noise, "encode"))
        if noise is None or self.drop_rate.is_zero:
            return Output(self._classify_first(hidden, hops))
        rounds = [hidden]
        for _ in range(self.rounds):
            rounds.append(torch.cat([propagate(hop, rounds[-1]) for hop in hops], dim=-1))
        joined = dropout(
            torch.cat(rounds, dim=-1), self.drop_rate, noise, "classify", in_place=True
        )
        return Output(self.classify(joined))

    def _classify_first(self, hidden: Tensor, hops: tuple[SparseMatrix, SparseMatrix]) -> Tensor:
        """H·W₀ + Σ_i Â_i·(H·W_i + Σ_j Â_j·H·W_ij): the same logits, from the inside out."""
        replicas, nodes, width = hidden.shape
        blocks = self.classify.weight.view(replicas, parts(self.rounds), width, -1)
        every = torch.einsum("rnd,rpdc->rnpc", hidden, blocks)  # (R, N, 2^(K+1) - 1, C)
        *outer, inner = torch.split(every, [1 << number for number in range(self.rounds + 1)], 2)
        for level in reversed(outer):
            # The hop next to H is the last index of a block: Â_i·Â_j·H stands at (i, j).
            pairs = inner.reshape(replicas, nodes, level.shape[2], len(hops), -1)
            inner = level
            for number, hop in enumerate(hops):
                spread = propagate(hop, pairs[:, :, :, number].flatten(2))
                inner = inner + spread.reshape(level.shape)
        return inner.squeeze(2) + self.classify.bias


def parts(rounds: int) -> int:
    """Width of the concatenation, in multiples of ``hidden_dim``.

    >>> parts(2)
    7
    """
    return (2 << rounds) - 1


def _inputs(task: TrainingTask) -> dict[str, Any]:
    neighbors = task.settings[0].neighbors
    hops = (task.statistics.propagation(neighbors, "symmetric"), task.statistics.two_hop(neighbors))
    return attributes_input(task) | {"hops": hops}


def _floats(graph: Graph, settings: H2GCNSettings) -> tuple[int, int]:
    width = settings.hidden_dim
    joined = parts(settings.rounds) * width
    parameters = graph.num_features * width + joined * max(graph.num_classes, 2)
    return parameters, 6 * joined + 6 * width


ENTRY = ModelEntry("h2gcn", H2GCNSettings, single_stage(H2GCN, _inputs), _floats)
