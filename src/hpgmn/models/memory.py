"""The memory: K learned global patterns, read by attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpgmn.models.layers import Initialised, draw_glorot
from hpgmn.models.penalties import entropy_penalty, nearest_distance, norm_penalty
from hpgmn.randomness import Noise


class Memory(Initialised):
    """Softmax attention over K patterns; Eqs. (9) and (10).

    S = softmax(Q·Mᵀ), V = S·M.

    Args:
        replicas: R.
        num_patterns: K.
        width: the width of a query, D_q.
    """

    def __init__(self, replicas: int, num_patterns: int, width: int) -> None:
        super().__init__()
        self.patterns = nn.Parameter(torch.zeros(replicas, num_patterns, width))

    def reset_parameters(self, noise: Noise, place: str) -> None:
        """Glorot values: small enough for the first attention to be nearly even."""
        draw_glorot(self.patterns, noise, f"{place}.patterns")

    def scores(self, query: Tensor) -> Tensor:
        """(R, N, D_q) to the products with every pattern, (R, N, K)."""
        return query @ self.patterns.transpose(1, 2)

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
            "entropy": entropy_penalty(attention),
            "norm": norm_penalty(self.patterns),
        }
