"""The penalties against torch.cdist, NumPy and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpgmn.models.penalties import (
    entropy_penalty,
    kpattern_penalty,
    nearest_distance,
    norm_penalty,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention_of(*shape: int, seed: int = 0) -> Tensor:
    return (3 * normal(*shape, seed=seed)).softmax(dim=-1)


@pytest.mark.parametrize("num_patterns", [1, 4, 30])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_kpattern_is_the_distance_to_the_nearest_pattern(reduction: str, num_patterns: int) -> None:
    query, patterns = normal(3, 11, 5), normal(3, num_patterns, 5, seed=1)
    nearest = torch.cdist(query, patterns).amin(dim=-1)
    expected = nearest.mean(dim=-1) if reduction == "mean" else nearest.sum(dim=-1)
    torch.testing.assert_close(kpattern_penalty(query, patterns, reduction), expected)


def test_kpattern_looks_for_the_nearest_pattern_of_a_node_not_the_nearest_node_of_a_pattern() -> (
    None
):
    query = torch.tensor([[[0.0, 3.0], [10.0, 0.0]]])
    patterns = torch.tensor([[[0.0, 0.0], [0.0, 1.0], [2.0, 0.0]]])
    assert kpattern_penalty(query, patterns, "sum").tolist() == pytest.approx([2 + 8])
    assert kpattern_penalty(query, patterns, "mean").tolist() == pytest.approx([(2 + 8) / 2])


def test_nearest_distance_with_known_products_is_the_same_penalty() -> None:
    query, patterns = normal(2, 9, 4), normal(2, 3, 4, seed=1)
    products = torch.einsum("rnd,rkd->rnk", query, patterns)
    torch.testing.assert_close(
        nearest_distance((query**2).sum(dim=-1), patterns, products).mean(dim=1),
        kpattern_penalty(query, patterns),
    )


def test_kpattern_gradient_is_that_of_the_euclidean_distance() -> None:
    query, patterns = normal(2, 9, 4), normal(2, 3, 4, seed=1)
    gradients = []
    for penalty in (
        lambda q, m: kpattern_penalty(q, m, "sum").sum(),
        lambda q, m: torch.cdist(q, m).amin(dim=-1).sum(),
    ):
        q, m = query.clone().requires_grad_(), patterns.clone().requires_grad_()
        gradients.append(torch.autograd.grad(penalty(q, m), (q, m)))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_kpattern_gradient_is_finite_where_a_query_is_a_pattern() -> None:
    patterns = normal(1, 3, 4).requires_grad_()
    query = patterns.detach().clone().requires_grad_()
    penalty = kpattern_penalty(query, patterns)
    assert penalty.item() < 2e-3  # the root of float32's rounding
    for gradient in torch.autograd.grad(penalty.sum(), (query, patterns)):
        assert gradient.isfinite().all()


def test_entropy_is_that_of_the_mean_use_of_each_pattern() -> None:
    attention = attention_of(3, 11, 5)
    for found, rows in zip(entropy_penalty(attention).tolist(), attention.tolist(), strict=True):
        total = [sum(row[k] for row in rows) for k in range(5)]  # the paper's s'
        shares = [use / sum(total) for use in total]
        assert found == pytest.approx(sum(p * math.log(p) for p in shares), rel=1e-5)


@pytest.mark.parametrize("num_patterns", [1, 2, 7, 500])
def test_entropy_is_lowest_when_all_patterns_are_used_alike(num_patterns: int) -> None:
    each_its_own = torch.eye(num_patterns).unsqueeze(0)
    spread = torch.full((1, 3, num_patterns), 1 / num_patterns)
    lowest = -math.log(num_patterns)
    assert entropy_penalty(each_its_own).item() == pytest.approx(lowest, abs=1e-5)
    assert entropy_penalty(spread).item() == pytest.approx(lowest, abs=1e-5)


def test_entropy_is_zero_when_one_pattern_does_all() -> None:
    attention = torch.zeros(1, 6, 4)
    attention[..., 2] = 1
    assert entropy_penalty(attention).item() == pytest.approx(0, abs=1e-6)


@given(seed=st.integers(0, 2**16), num_patterns=st.integers(1, 12), sharpness=st.integers(0, 50))
def test_entropy_lies_between_minus_log_k_and_zero(
    seed: int, num_patterns: int, sharpness: int
) -> None:
    attention = (sharpness * normal(1, 5, num_patterns, seed=seed)).softmax(dim=-1)
    assert -math.log(num_patterns) - 1e-5 <= entropy_penalty(attention).item() <= 1e-5


def test_entropy_gradient_is_finite_when_a_pattern_is_never_used() -> None:
    attention = attention_of(2, 6, 3)
    unused = torch.cat([attention, torch.zeros(2, 6, 1)], dim=-1).requires_grad_()
    penalty = entropy_penalty(unused)
    torch.testing.assert_close(penalty, entropy_penalty(attention))
    penalty.sum().backward()
    assert unused.grad.isfinite().all()
    assert (unused.grad[..., :3] != 0).any()


def test_entropy_gradient_survives_scores_that_underflow() -> None:
    scores = torch.tensor([[[0.0, -200.0], [1.0, -300.0]]], requires_grad=True)
    entropy_penalty(scores.softmax(dim=-1)).sum().backward()
    assert scores.grad.isfinite().all()


def test_norm_is_the_squared_frobenius_norm_of_each_memory() -> None:
    patterns = normal(3, 6, 4)
    expected = [np.linalg.norm(memory, "fro") ** 2 for memory in patterns.numpy()]
    assert norm_penalty(patterns).tolist() == pytest.approx(expected, rel=1e-5)
