"""The penalties that keep the memory representative and diverse: pure functions."""

from __future__ import annotations

import torch
from torch import Tensor


def kpattern_penalty(query: Tensor, patterns: Tensor, reduction: str = "mean") -> Tensor:
    """How far the queries are from their nearest pattern; Eq. (15).

    L_kpattern = Σ_v min_i ‖q_v - m_i‖, or the mean over nodes, so that one weight means the same
    on every graph (the paper has the sum).

    Args:
        query: (R, N, D), or (N, D) where there is one replica.
        patterns: (R, K, D).
        reduction: "mean" or "sum" over nodes.

    Returns:
        (R,)
    """
    scores, lengths = query @ patterns.transpose(1, 2), query.square().sum(dim=-1)
    return over_nodes(nearest_distance(lengths, patterns, scores), reduction)


def nearest_distance(lengths: Tensor, patterns: Tensor, scores: Tensor) -> Tensor:
    """How far each query is from its nearest pattern, where two products are known already.

    Args:
        lengths: (R, N) the squared length of each query.
        patterns: (R, K, D).
        scores: (R, N, K) the queries' products with the patterns.

    Returns:
        (R, N)
    """
    nearest = (patterns.square().sum(dim=-1).unsqueeze(1) - 2 * scores).min(dim=-1).values
    return (lengths + nearest).clamp(min=1e-12).sqrt()


def over_nodes(values: Tensor, reduction: str = "mean") -> Tensor:
    """The mean or the sum of (R, N, …) over nodes."""
    total: Tensor = values.mean(dim=1) if reduction == "mean" else values.sum(dim=1)
    return total


def entropy_penalty(attention: Tensor) -> Tensor:
    """Negative entropy of mean pattern use: lowest, -log K, when all K are used alike; Eq. (16).

    Args:
        attention: (R, N, K), or (N, K) where there is one replica; rows sum to 1.

    Returns:
        (R,), or a single number.

    >>> entropy_penalty(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor([-0.6931])
    """
    return negative_entropy(attention.mean(dim=-2))


def negative_entropy(use: Tensor) -> Tensor:
    """Σ_k p_k·log p_k of how much each pattern is used: (R, K) to (R,)."""
    positive = use.clamp(min=1e-30)  # the slope of p·log p at 0 is infinite
    total: Tensor = -torch.special.entr(positive).sum(dim=-1)
    return total


def norm_penalty(patterns: Tensor) -> Tensor:
    """‖M‖_F², which keeps the patterns small.

    Args:
        patterns: (R, K, D).

    Returns:
        (R,)
    """
    return patterns.square().sum(dim=(-2, -1))
