"""Memory and classifier on top of a query: the part all HP-GMN variants share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpgmn.base.randomness import DropRate, Noise, dropout, relu_dropout
from hpgmn.base.settings import setting
from hpgmn.models.layers import MLP, Linear
from hpgmn.models.memory import Memory
from hpgmn.models.output import Output
from hpgmn.statistics.operators import take_nodes


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """The memory, its penalties and the classifier."""

    memory: bool = setting(True, "whether there is a memory at all")
    num_patterns: int = setting(50, "K, the number of memory patterns", low=1)
    memory_dim: int | None = setting(
        None, "width the query is mapped to before the memory; none: no map (the paper)", low=1
    )
    classifier_layers: int = setting(
        1, "layers of the classifier; with one, a ReLU comes before it", low=1, high=4
    )
    kpattern_weight: float = setting(
        1e-3, "weight of the distance to the nearest pattern", low=0.0, per_replica=True
    )
    entropy_weight: float = setting(
        1e-2, "weight of the negative entropy of pattern use", low=0.0, per_replica=True
    )
    norm_weight: float = setting(
        1e-5, "weight of the squared norm of the memory", low=0.0, per_replica=True
    )
    kpattern_reduction: str = setting(
        "mean", "mean over nodes, or the paper's sum", choices=("mean", "sum")
    )


PENALTIES = ("kpattern", "entropy", "norm")


class MemoryHead(nn.Module):
    """Query → memory → classifier on [q ‖ v]; Eqs. (9) to (12).

    Args:
        replicas: R.
        width: the width of the query.
        hidden_dim: the width of the classifier's hidden layers.
        num_classes: C.
        settings: memory and classifier; equal in every replica but for the penalties' weights.
        drop_rate: dropout before and between the classifier's layers.
        in_batches: whether a step reads only some of the nodes.
    """

    def __init__(
        self,
        replicas: int,
        width: int,
        hidden_dim: int,
        num_classes: int,
        settings: MemorySettings,
        drop_rate: DropRate,
        *,
        in_batches: bool = False,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.drop_rate = drop_rate
        self.resize = Linear(replicas, width, settings.memory_dim) if settings.memory_dim else None
        width = settings.memory_dim or width
        self.memory: Memory | None = None
        if settings.memory:
            self.memory = Memory(replicas, settings.num_patterns, width, in_batches=in_batches)
        inputs = 2 * width if settings.memory else width
        hidden = [hidden_dim] * (settings.classifier_layers - 1)
        self.classify = MLP(replicas, [inputs, *hidden, num_classes])

    def forward(
        self,
        query: Tensor,
        noise: Noise | None = None,
        classify: Tensor | None = None,
        *,
        penalties: bool = False,
        details: bool = False,
    ) -> Output:
        """Class logits of some nodes, penalties over all.

        Args:
            query: (R, N, D_q).
            noise: the step's random numbers; None in evaluation.
            classify: (R, B) positions among the N to classify; None for all.
            penalties: whether to compute the memory's penalties.
            details: whether to return query and attention.
        """
        if self.resize is not None:
            query = self.resize(query)
        output = Output(query)
        if self.memory is None:
            representation = take_nodes(query, classify)
        else:
            scores, lengths, representation = self.memory.compare(query, classify)
            attention = scores.softmax(dim=-1)  # (R, N, K)
            if penalties:
                output.penalties = self.memory.penalties(
                    lengths, scores, attention, self.settings.kpattern_reduction
                )
            value = take_nodes(attention, classify) @ self.memory.patterns
            representation = torch.cat([representation, value], dim=-1)
            if details:
                output.details["attention"] = attention
        if details:
            output.details["query"] = query
        if self.settings.classifier_layers == 1:
            representation = relu_dropout(representation, self.drop_rate, noise, "classify.input")
        else:
            joined = self.memory is not None  # then the concatenation is nobody else's
            representation = dropout(
                representation, self.drop_rate, noise, "classify.input", in_place=joined
            )
        output.logits = self.classify(representation, self.drop_rate, noise, "classify")
        return output


def penalty_weights(settings: Sequence[MemorySettings]) -> dict[str, list[float]]:
    """The weight of each penalty in each replica; empty where there is no memory."""
    if not settings[0].memory:
        return {}
    return {name: [float(getattr(one, f"{name}_weight")) for one in settings] for name in PENALTIES}
