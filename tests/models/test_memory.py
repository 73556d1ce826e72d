"""The memory against an explicit softmax, pattern by pattern."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from hpgmn.base.randomness import stable_key
from hpgmn.models.layers import initialise
from hpgmn.models.memory import Memory

REPLICAS, NODES, PATTERNS, WIDTH = 2, 6, 4, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def memory() -> Memory:
    module = Memory(REPLICAS, PATTERNS, WIDTH)
    with torch.no_grad():
        module.patterns.copy_(normal(REPLICAS, PATTERNS, WIDTH))
    return module


def read_by_hand(query: np.ndarray, patterns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One replica: the value and the attention of each query, in double precision."""
    attention = np.zeros((len(query), len(patterns)))
    value = np.zeros((len(query), query.shape[1]))
    for v, q in enumerate(query.astype(float)):
        weights = [math.exp(sum(q * m)) for m in patterns.astype(float)]
        for i, m in enumerate(patterns.astype(float)):
            attention[v, i] = weights[i] / sum(weights)
            value[v] += attention[v, i] * m
    return value, attention


def test_value_and_attention_match_an_explicit_softmax(memory: Memory) -> None:
    query = normal(REPLICAS, NODES, WIDTH, seed=1)
    value, attention = memory(query)
    for r in range(REPLICAS):
        expected = read_by_hand(query[r].numpy(), memory.patterns[r].detach().numpy())
        np.testing.assert_allclose(value[r].detach(), expected[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(attention[r].detach(), expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_attention_rows_sum_to_one_however_long_the_query(memory: Memory, scale: float) -> None:
    _, attention = memory(scale * normal(REPLICAS, NODES, WIDTH, seed=1))
    torch.testing.assert_close(attention.sum(dim=-1), torch.ones(REPLICAS, NODES))
    assert (attention >= 0).all()


def test_a_query_of_zeros_reads_the_mean_pattern(memory: Memory) -> None:
    value, _ = memory(torch.zeros(REPLICAS, 1, WIDTH))
    torch.testing.assert_close(value, memory.patterns.mean(dim=1, keepdim=True))


def test_gradients_reach_every_pattern_by_the_attention_and_by_the_value(memory: Memory) -> None:
    query = normal(REPLICAS, NODES, WIDTH, seed=1).requires_grad_()
    value, attention = memory(query)
    found = torch.autograd.grad(value.square().sum(), (memory.patterns, query), retain_graph=True)
    weights = torch.einsum("rnd,rkd->rnk", query, memory.patterns).exp()
    by_hand = torch.einsum("rnk,rkd->rnd", weights / weights.sum(-1, True), memory.patterns)
    expected = torch.autograd.grad(by_hand.square().sum(), (memory.patterns, query))
    torch.testing.assert_close(found, expected)
    assert found[0].abs().sum(dim=-1).min() > 0
    (through,) = torch.autograd.grad(attention.square().sum(), memory.patterns)
    assert through.abs().sum(dim=-1).min() > 0


def test_patterns_are_a_parameter_that_is_saved(memory: Memory) -> None:
    assert [name for name, _ in memory.named_parameters()] == ["patterns"]
    assert torch.equal(memory.state_dict()["patterns"], memory.patterns)


def test_first_patterns_are_glorot_values_of_their_replica() -> None:
    many, one = Memory(3, PATTERNS, WIDTH), Memory(1, PATTERNS, WIDTH)
    keys = torch.tensor([stable_key(number) for number in range(3)])
    initialise(many, keys)
    initialise(one, keys[1:2])
    assert torch.equal(one.patterns[0], many.patterns[1])
    assert 0 < many.patterns.abs().max() <= math.sqrt(6 / (PATTERNS + WIDTH))
    assert (many.patterns[0] != many.patterns[1]).all()


def test_penalties_are_those_of_the_queries_and_of_the_memory(memory: Memory) -> None:
    query = normal(REPLICAS, NODES, WIDTH, seed=1)
    scores, lengths, _ = memory.compare(query)
    attention = scores.softmax(dim=-1)
    found = memory.penalties(lengths, scores, attention, "sum")
    nearest = torch.cdist(query, memory.patterns).amin(dim=-1)
    use = attention.sum(dim=1) / NODES
    torch.testing.assert_close(found["kpattern"], nearest.sum(dim=-1))
    torch.testing.assert_close(found["entropy"], (use * use.log()).sum(dim=-1))
    torch.testing.assert_close(found["norm"], (memory.patterns**2).sum(dim=(1, 2)))


@pytest.mark.parametrize("which", ["all", "some"])
@pytest.mark.parametrize("used", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)])
def test_what_the_memory_compares_and_its_gradients_are_those_written_out(
    memory: Memory, which: str, used: tuple[int, int, int]
) -> None:
    nodes = None if which == "all" else torch.tensor([[4, 0, 2], [1, 3, 0]])[:REPLICAS]

    def plain(query: Tensor) -> list[Tensor]:
        rows = (
            query
            if nodes is None
            else torch.stack([q[n] for q, n in zip(query, nodes, strict=True)])
        )
        products = torch.einsum("rnd,rkd->rnk", query, memory.patterns)
        return [products, (query**2).sum(dim=-1), rows]

    gradients = []
    for function in (plain, lambda query: memory.compare(query, nodes)):
        query = normal(REPLICAS, NODES, WIDTH, seed=1).requires_grad_()
        found = function(query)
        weights = [normal(*one.shape, seed=5 + place) for place, one in enumerate(found)]
        total = sum(
            (one * weight).sum()
            for one, weight, use in zip(found, weights, used, strict=True)
            if use
        )
        own = torch.autograd.grad(total, [query, memory.patterns], allow_unused=True)
        gradients.append([*(one.detach() for one in found), *own])
    for one, other in zip(*gradients, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            torch.testing.assert_close(other, one)


def test_in_batches_the_entropy_is_that_of_a_running_average() -> None:
    memory = Memory(2, 3, 4, in_batches=True)
    initialise(memory, torch.tensor([1, 2]))
    generator = torch.Generator().manual_seed(0)
    expected = torch.full((2, 3), 1 / 3)
    for _ in range(4):
        query = torch.randn(2, 5, 4, generator=generator) * 3
        scores, lengths, _ = memory.compare(query)
        attention = scores.softmax(dim=-1).detach().requires_grad_()
        found = memory.penalties(lengths, scores, attention, "mean")["entropy"]
        own = attention.mean(dim=1)
        expected = 0.9 * expected + 0.1 * own.detach()
        torch.testing.assert_close(found, (expected * expected.log()).sum(dim=1))
        (gradient,) = torch.autograd.grad(found.sum(), attention)
        slope = (expected.log() + 1) / 5  # d/dp Σ p·log p, shared by the 5 nodes
        torch.testing.assert_close(gradient, slope[:, None].expand(-1, 5, -1))
        with torch.no_grad():
            memory.keep_use()
        torch.testing.assert_close(memory.use.detach(), expected)


def test_with_all_nodes_there_is_no_running_average() -> None:
    memory = Memory(1, 3, 4)
    assert memory.use is None
    memory.keep_use()
    assert [name for name, _ in memory.named_parameters()] == ["patterns"]
