"""The memory of K learned patterns, its penalties, and the classifier on top."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpgmn.base.randomness import DropRate, Noise, dropout, relu_dropout
from hpgmn.base.settings import rate_setting, setting
from hpgmn.base.sparse import at_least_single
from hpgmn.models.layers import MLP, Initialised, Linear, Output, draw_glorot
from hpgmn.statistics.operators import add_nodes, take_nodes

USE_SHARE = 0.1
"""Share of the latest step in the running average of pattern use."""

NODE_PENALTIES = ("kpattern", "entropy")
"""Penalties over nodes: a full-batch step with one of them must read all nodes."""

PENALTIES = (*NODE_PENALTIES, "norm")
"""Every penalty of the memory; each is weighted by the setting ``<name>_weight``."""

NodeReduction: TypeAlias = Callable[[Tensor, str], Tensor]
"""Reduces (R, N, …) over nodes to (R, …), by "mean" or "sum"."""


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Settings of the memory, its penalties and the classifier."""

    memory: bool = setting(True, "use the memory")
    num_patterns: int = setting(50, "K, the number of memory patterns", low=1)
    memory_dim: int | None = setting(
        None, "width the query is mapped to before the memory; none: no map (the paper)", low=1
    )
    classifier_layers: int = setting(
        1, "layers of the classifier; with one, a ReLU comes before it", low=1, high=4
    )
    kpattern_weight: float = rate_setting(1e-3, "weight of the distance to the nearest pattern")
    entropy_weight: float = rate_setting(1e-2, "weight of the negative entropy of pattern use")
    norm_weight: float = rate_setting(1e-5, "weight of the squared norm of the memory")
    kpattern_reduction: str = setting(
        "mean", "mean over nodes, or the paper's sum", choices=("mean", "sum")
    )


def penalty_weights(settings: Sequence[MemorySettings]) -> dict[str, list[float]]:
    """Return the weight of each penalty in each replica; empty without a memory."""
    if not settings[0].memory:
        return {}
    return {
        name: [float(getattr(replica, f"{name}_weight")) for replica in settings]
        for name in PENALTIES
    }


def kpattern_penalty(query: Tensor, patterns: Tensor, reduction: str = "mean") -> Tensor:
    """Distance of the queries from their nearest pattern; Eq. (15).

    L_kpattern = Σ_v min_i ‖q_v - m_i‖ as in the paper, or the mean over nodes, so that one weight
    means the same on every graph.

    Args:
        query: (R, N, D), or (N, D) where there is one replica.
        patterns: (R, K, D).
        reduction: "mean" or "sum" over nodes.
    """
    scores, lengths = query @ patterns.transpose(1, 2), query.square().sum(dim=-1)
    return reduce_nodes(nearest_distance(lengths, patterns, scores), reduction)


def nearest_distance(lengths: Tensor, patterns: Tensor, scores: Tensor) -> Tensor:
    """Distance of each query from its nearest pattern, (R, N), from :meth:`Memory.compare`."""
    nearest = (patterns.square().sum(dim=-1).unsqueeze(1) - 2 * scores).min(dim=-1).values
    return (lengths + nearest).clamp(min=1e-12).sqrt()


def reduce_nodes(values: Tensor, reduction: str = "mean") -> Tensor:
    """Mean or sum of (R, N, …) over nodes; the default :data:`NodeReduction`."""
    total: Tensor = values.mean(dim=1) if reduction == "mean" else values.sum(dim=1)
    return total


def entropy_penalty(attention: Tensor) -> Tensor:
    """Negative entropy of mean pattern use: lowest, -log K, for equal use; Eq. (16).

    Rows of the attention (R, N, K), or (N, K) where there is one replica, sum to 1.

    >>> entropy_penalty(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor([-0.6931])
    """
    return negative_entropy(attention.mean(dim=-2))


def negative_entropy(use: Tensor) -> Tensor:
    """Σ_k p_k·log p_k of the use of each pattern: (R, K) to (R,)."""
    positive = use.clamp(min=1e-30)  # the gradient of p·log p at 0 is infinite
    total: Tensor = -torch.special.entr(positive).sum(dim=-1)
    return total


def norm_penalty(patterns: Tensor) -> Tensor:
    """‖M‖_F², which keeps the patterns small: (R, K, D) to (R,)."""
    return patterns.square().sum(dim=(-2, -1))


class _Compared(torch.autograd.Function):
    """Products with the patterns, squared lengths and selected rows of the queries.

    The queries are the widest array of the model: one function for all three accumulates their
    gradients in place instead of allocating an array for each.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, patterns: Tensor, nodes: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(query, patterns, nodes)
        ctx.set_materialize_grads(False)
        lengths = torch.linalg.vector_norm(query, dim=-1).square()
        selected = query.new_empty(0) if nodes is None else take_nodes(query, nodes)
        return torch.bmm(query, patterns.transpose(1, 2)), lengths, selected

    @staticmethod
    def backward(
        ctx: Any, scores: Tensor | None, lengths: Tensor | None, selected: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None]:
        query, patterns, nodes = ctx.saved_tensors
        if scores is None:
            query_gradient, pattern_gradient = torch.zeros_like(query), None
        else:
            query_gradient = torch.bmm(scores, patterns)
            pattern_gradient = torch.bmm(scores.transpose(1, 2), query)
        if lengths is not None:
            query_gradient.addcmul_(query, lengths.unsqueeze(-1), value=2)
        if selected is not None and nodes is not None:
            add_nodes(query_gradient, nodes, selected)
        return query_gradient, pattern_gradient, None


class Memory(Initialised):
    """Softmax attention over K patterns; Eqs. (9) and (10).

    S = softmax(Q·Mᵀ), V = S·M.

    With ``in_batches`` the entropy penalty uses a running average p of pattern use,
    p ← (1 - USE_SHARE)·p + USE_SHARE·p̂ with p̂ the mean attention of the batch, and the gradient of
    p with respect to p̂ is taken as 1: the penalty's size does not depend on the batch size.

    The patterns start random, as in any torch module; ``initialise`` replaces them by values that
    are a function of a key.

    Args:
        replicas: R; 1 for a memory in your own training loop.
        num_patterns: K.
        width: the width of a query, D_q.
        in_batches: whether a step reads only some of the nodes.
        node_reduction: how penalties are reduced over nodes; another one where the nodes of a step
            are distributed over processes.
    """

    def __init__(
        self,
        replicas: int,
        num_patterns: int,
        width: int,
        *,
        in_batches: bool = False,
        node_reduction: NodeReduction = reduce_nodes,
    ) -> None:
        super().__init__()
        self.patterns = nn.Parameter(torch.empty(replicas, num_patterns, width))
        for replica_patterns in self.patterns.detach():  # equal patterns would stay equal
            nn.init.xavier_uniform_(replica_patterns)
        self.node_reduction = node_reduction
        self.use: nn.Parameter | None = None
        if in_batches:  # a parameter, so that it is saved and resumed; it gets no gradient
            shares = torch.full((replicas, num_patterns), 1 / num_patterns)
            self.use = nn.Parameter(shares, requires_grad=False)
            self._latest_use: Tensor | None = None

    @override
    def reset_parameters(self, noise: Noise, place: str) -> None:
        # Small enough for the first attention to be nearly uniform.
        draw_glorot(self.patterns, noise, f"{place}.patterns")
        if self.use is not None:
            self.use.fill_(1 / self.use.shape[1])

    def compare(self, query: Tensor, nodes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute everything that later steps need of the queries (R, N, D_q).

        Returns:
            The products with every pattern (R, N, K), the squared lengths (R, N), and the queries
            to classify (R, B, D_q), those of ``nodes`` (R, B) or all.
        """
        with torch.autocast(query.device.type, enabled=False):  # distances are differences of these
            query = at_least_single(query)
            scores, lengths, selected = cast(Any, _Compared).apply(query, self.patterns, nodes)
        return scores, lengths, query if nodes is None else selected

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value (R, N, D_q) read for each query, and the attention (R, N, K).

        A query of one replica may lack the leading dimension; so do value and attention then.
        """
        if query.dim() == 2:
            value, attention = self(query.unsqueeze(0))
            return value.squeeze(0), attention.squeeze(0)
        attention = self.compare(query)[0].softmax(dim=-1)
        return attention @ self.patterns, attention

    def penalties(
        self, lengths: Tensor, scores: Tensor, attention: Tensor, reduction: str
    ) -> dict[str, Tensor]:
        """Compute :data:`PENALTIES` from the results of :meth:`compare`, each (R,)."""
        distances = nearest_distance(lengths, self.patterns, scores)
        return {
            "kpattern": self.node_reduction(distances, reduction),
            "entropy": negative_entropy(self._running_use(self.node_reduction(attention, "mean"))),
            "norm": norm_penalty(self.patterns),
        }

    def _running_use(self, use: Tensor) -> Tensor:
        """Mix the pattern use of this step (R, K) into the running average."""
        if self.use is None:
            return use
        mixed = use + (1 - USE_SHARE) * (self.use - use).detach()
        self._latest_use = mixed.detach()
        return mixed

    def update_use(self) -> None:
        """Store the running average of pattern use; called after the optimiser's step."""
        if self.use is not None and self._latest_use is not None:
            self.use.copy_(self._latest_use)


class MemoryHead(nn.Module):
    """Query → memory → classifier on [q ‖ v]; Eqs. (9) to (12). All HP-GMN variants share it.

    Args:
        width: the width of the query.
        hidden_dim: the width of the classifier's hidden layers.
        settings: equal in every replica but for the penalties' weights.
        drop_rate: dropout before and between the classifier's layers.
        in_batches: whether a step reads only some of the nodes.
        node_reduction: see :class:`Memory`.
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
        node_reduction: NodeReduction = reduce_nodes,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.drop_rate = drop_rate
        self.resize = Linear(replicas, width, settings.memory_dim) if settings.memory_dim else None
        width = settings.memory_dim or width
        self.memory: Memory | None = None
        if settings.memory:
            self.memory = Memory(
                replicas,
                settings.num_patterns,
                width,
                in_batches=in_batches,
                node_reduction=node_reduction,
            )
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
        """Compute class logits of some nodes and penalties over all of a query (R, N, D_q).

        Args:
            noise: the step's random numbers; None in evaluation.
            classify: (R, B) positions among the N to classify; None for all.
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
            is_new_array = self.memory is not None  # the concatenation has no other reader
            representation = dropout(
                representation, self.drop_rate, noise, "classify.input", in_place=is_new_array
            )
        output.logits = self.classify(representation, self.drop_rate, noise, "classify")
        return output


class MemoryModel(nn.Module):
    """A model that classifies by a memory; explanations call ``forward`` with ``details=True``.

    Attributes:
        head: memory and classifier; None in a stage without them.
    """

    head: MemoryHead | None
