"""The memory: K learned global patterns, read by attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpgmn.models.layers import Initialised, draw_glorot
from hpgmn.models.penalties import nearest_distance, negative_entropy, norm_penalty
from hpgmn.randomness import Noise

USE_SHARE = 0.1
"""How much of the running average of pattern use comes from the latest step."""


class Memory(Initialised):
    """Softmax attention over K patterns; Eqs. (9) and (10).

    S = softmax(Q·Mᵀ), V = S·M.

    The entropy penalty speaks about the mean attention of all nodes. Where a step reads only some
    of them, their mean p̂ is mixed into a running average p of the steps before,
    p ← (1 - USE_SHARE)·p + USE_SHARE·p̂, and the penalty is that of p, its gradient taken with
    respect to p̂ as if the whole of p were of this step: a pattern that is rare in one batch but
    not overall is then not pushed, and the strength of the penalty does not depend on the batch.

    Args:
        replicas: R.
        num_patterns: K.
        width: the width of a query, D_q.
        in_batches: whether a step reads only some of the nodes.
    """

    def __init__(
        self, replicas: int, num_patterns: int, width: int, *, in_batches: bool = False
    ) -> None:
        super().__init__()
        self.patterns = nn.Parameter(torch.zeros(replicas, num_patterns, width))
        self.use: nn.Parameter | None = None
        if in_batches:  # a parameter, so that it is saved and resumed; no gradient reaches it
            self.use = nn.Parameter(torch.zeros(replicas, num_patterns))
            self._latest: Tensor | None = None

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Glorot values: small enough for the first attention to be nearly even."""
        draw_glorot(self.patterns, noise, f"{place}.patterns")
        if self.use is not None:
            self.use.fill_(1 / self.use.shape[1])

    def scores(self, query: Tensor) -> Tensor:
        """(R, N, D_q) to the products with every pattern, (R, N, K)."""
        with torch.autocast(query.device.type, enabled=False):  # distances are differences of these
            return query.float() @ self.patterns.transpose(1, 2)

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """The value read for each query, and the attention.

        Args:
            query: (R, N, D_q).

        Returns:
            (R, N, D_q) and (R, N, K).
        """
        attention = self.scores(query).softmax(dim=-1)
        return attention @ self.patterns, attention

    def penalties(
        self, query: Tensor, scores: Tensor, attention: Tensor, reduction: str
    ) -> dict[str, Tensor]:
        """The three penalties over all queries given, each (R,)."""
        return {
            "kpattern": nearest_distance(query, self.patterns, scores, reduction),
            "entropy": negative_entropy(self._mixed_use(attention.mean(dim=-2))),
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
