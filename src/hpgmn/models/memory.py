"""The memory: K learned global patterns, read by attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from hpgmn.base.randomness import Noise
from hpgmn.base.sparse import at_least_single
from hpgmn.models.layers import Initialised, draw_glorot
from hpgmn.models.penalties import nearest_distance, negative_entropy, norm_penalty, over_nodes
from hpgmn.statistics.operators import add_nodes, take_nodes

USE_SHARE = 0.1
"""How much of the running average of pattern use comes from the latest step."""


class _Compared(torch.autograd.Function):
    """Products, squared lengths and chosen rows of the queries.

    The queries are the widest array of the model. One function of the three adds their gradients
    up in place, where three functions would make an array each and add them afterwards.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, patterns: Tensor, nodes: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(query, patterns, nodes)
        ctx.set_materialize_grads(False)
        lengths = torch.linalg.vector_norm(query, dim=-1).square()
        chosen = query.new_empty(0) if nodes is None else take_nodes(query, nodes)
        return torch.bmm(query, patterns.transpose(1, 2)), lengths, chosen

    @staticmethod
    def backward(
        ctx: Any, scores: Tensor | None, lengths: Tensor | None, chosen: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None]:
        query, patterns, nodes = ctx.saved_tensors
        if scores is None:
            back, own = torch.zeros_like(query), None
        else:
            back = torch.bmm(scores, patterns)
            own = torch.bmm(scores.transpose(1, 2), query)
        if lengths is not None:
            back.addcmul_(query, lengths.unsqueeze(-1), value=2)
        if chosen is not None and nodes is not None:
            add_nodes(back, nodes, chosen)
        return back, own, None


class Memory(Initialised):
    """Softmax attention over K patterns; Eqs. (9) and (10).

    S = softmax(Q·Mᵀ), V = S·M.

    The entropy penalty speaks about the mean attention of all nodes. Where a step reads only some
    of them, their mean p̂ is mixed into a running average p of the steps before,
    p ← (1 - USE_SHARE)·p + USE_SHARE·p̂, and the penalty is that of p, its gradient taken with
    respect to p̂ as if the whole of p were of this step: a pattern that is rare in one batch but
    not overall is then not pushed, and the strength of the penalty does not depend on the batch.

    Where the nodes of a step are shared out among processes, ``over_nodes`` is replaced by a mean
    over the nodes of all (:mod:`hpgmn.training.ranks`).

    A memory starts with random patterns, as any module of torch does; ``initialise`` replaces them
    by numbers that depend on a key alone.

    Args:
        replicas: R; 1 for a memory in a loop of your own.
        num_patterns: K.
        width: the width of a query, D_q.
        in_batches: whether a step reads only some of the nodes.
    """

    def __init__(
        self, replicas: int, num_patterns: int, width: int, *, in_batches: bool = False
    ) -> None:
        super().__init__()
        self.patterns = nn.Parameter(torch.empty(replicas, num_patterns, width))
        for own in self.patterns.detach():  # equal patterns would stay equal for ever
            nn.init.xavier_uniform_(own)
        self.over_nodes: Callable[[Tensor, str], Tensor] = over_nodes
        self.use: nn.Parameter | None = None
        if in_batches:  # a parameter, so that it is saved and resumed; no gradient reaches it
            self.use = nn.Parameter(torch.full((replicas, num_patterns), 1 / num_patterns))
            self._latest: Tensor | None = None

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Glorot values: small enough for the first attention to be nearly even."""
        draw_glorot(self.patterns, noise, f"{place}.patterns")
        if self.use is not None:
            self.use.fill_(1 / self.use.shape[1])

    def compare(self, query: Tensor, nodes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """What everything else needs of the queries.

        Args:
            query: (R, N, D_q).
            nodes: (R, B) queries that go on to the classifier; None for all.

        Returns:
            The products with every pattern (R, N, K), the squared lengths (R, N), and the queries
            that were asked for (R, B, D_q).
        """
        with torch.autocast(query.device.type, enabled=False):  # distances are differences of these
            query = at_least_single(query)
            scores, lengths, chosen = cast(Any, _Compared).apply(query, self.patterns, nodes)
        return scores, lengths, query if nodes is None else chosen

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """The value read for each query, and the attention.

        Args:
            query: (R, N, D_q), or (N, D_q) where there is one replica.

        Returns:
            (R, N, D_q) and (R, N, K); without R where the query has none.
        """
        if query.dim() == 2:
            value, attention = self(query.unsqueeze(0))
            return value.squeeze(0), attention.squeeze(0)
        attention = self.compare(query)[0].softmax(dim=-1)
        return attention @ self.patterns, attention

    def penalties(
        self, lengths: Tensor, scores: Tensor, attention: Tensor, reduction: str
    ) -> dict[str, Tensor]:
        """The three penalties over all queries, each (R,), from what :meth:`compare` found."""
        return {
            "kpattern": self.over_nodes(
                nearest_distance(lengths, self.patterns, scores), reduction
            ),
            "entropy": negative_entropy(self._mixed_use(self.over_nodes(attention, "mean"))),
            "norm": norm_penalty(self.patterns),
        }

    def _mixed_use(self, use: Tensor) -> Tensor:
        """This step's pattern use (R, K), mixed with that of the steps before."""
        if self.use is None:
            return use
        mixed = use + (1 - USE_SHARE) * (self.use - use).detach()
        self._latest = mixed.detach()
        return mixed

    def keep_use(self) -> None:
        """Let the step's pattern use become the running average; called after the step."""
        if self.use is not None and self._latest is not None:
            self.use.copy_(self._latest)
