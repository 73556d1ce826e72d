"""Memory, penalties and classifier against plain torch, NumPy and numbers worked out by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from hpgmn.base.randomness import DropRate, Noise, stable_key
from hpgmn.models.layers import initialise
from hpgmn.models.memory import (
    NODE_PENALTIES,
    PENALTIES,
    Memory,
    MemoryHead,
    MemorySettings,
    entropy_penalty,
    kpattern_penalty,
    norm_penalty,
    penalty_weights,
)

REPLICAS, NODES, PATTERNS, WIDTH = 2, 6, 4, 3
HEAD_NODES, HEAD_WIDTH, HIDDEN, CLASSES = 7, 4, 5, 3


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def memory():
    module = Memory(REPLICAS, PATTERNS, WIDTH)
    with torch.no_grad():
        module.patterns.copy_(normal(REPLICAS, PATTERNS, WIDTH))
    return module


def read_by_hand(query, patterns):
    """One replica: the value and the attention of each query, in double precision."""
    attention = np.zeros((len(query), len(patterns)))
    value = np.zeros((len(query), query.shape[1]))
    for v, q in enumerate(query.astype(float)):
        weights = [math.exp(sum(q * m)) for m in patterns.astype(float)]
        for i, m in enumerate(patterns.astype(float)):
            attention[v, i] = weights[i] / sum(weights)
            value[v] += attention[v, i] * m
    return value, attention


def test_value_and_attention_match_an_explicit_softmax(memory):
    query = normal(REPLICAS, NODES, WIDTH, seed=1)
    value, attention = memory(query)
    for r in range(REPLICAS):
        expected = read_by_hand(query[r].numpy(), memory.patterns[r].detach().numpy())
        np.testing.assert_allclose(value[r].detach(), expected[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(attention[r].detach(), expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_attention_rows_sum_to_one_however_long_the_query(memory, scale):
    _, attention = memory(scale * normal(REPLICAS, NODES, WIDTH, seed=1))
    torch.testing.assert_close(attention.sum(dim=-1), torch.ones(REPLICAS, NODES))
    assert (attention >= 0).all()


def test_gradients_reach_every_pattern_by_the_attention_and_by_the_value(memory):
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


def test_first_patterns_are_glorot_values_of_their_replica():
    many, one = Memory(3, PATTERNS, WIDTH), Memory(1, PATTERNS, WIDTH)
    keys = torch.tensor([stable_key(number) for number in range(3)])
    initialise(many, keys)
    initialise(one, keys[1:2])
    assert torch.equal(one.patterns[0], many.patterns[1])
    assert 0 < many.patterns.abs().max() <= math.sqrt(6 / (PATTERNS + WIDTH))
    assert (many.patterns[0] != many.patterns[1]).all()


@pytest.mark.parametrize("which", ["all", "some"])
@pytest.mark.parametrize("used", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)])
def test_what_the_memory_compares_and_its_gradients_are_those_written_out(memory, which, used):
    nodes = None if which == "all" else torch.tensor([[4, 0, 2], [1, 3, 0]])[:REPLICAS]

    def plain(query):
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


def test_in_batches_the_entropy_is_that_of_a_running_average():
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
            memory.update_use()
        torch.testing.assert_close(memory.use.detach(), expected)


def test_with_all_nodes_there_is_no_running_average():
    memory = Memory(1, 3, 4)
    assert memory.use is None
    memory.update_use()
    assert [name for name, _ in memory.named_parameters()] == ["patterns"]


def attention_of(*shape, seed=0):
    return (3 * normal(*shape, seed=seed)).softmax(dim=-1)


@pytest.mark.parametrize("num_patterns", [1, 4, 30])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_kpattern_is_the_distance_to_the_nearest_pattern(reduction, num_patterns):
    query, patterns = normal(3, 11, 5), normal(3, num_patterns, 5, seed=1)
    nearest = torch.cdist(query, patterns).amin(dim=-1)
    expected = nearest.mean(dim=-1) if reduction == "mean" else nearest.sum(dim=-1)
    torch.testing.assert_close(kpattern_penalty(query, patterns, reduction), expected)


def test_kpattern_gradient_is_that_of_the_euclidean_distance():
    query, patterns = normal(2, 9, 4), normal(2, 3, 4, seed=1)
    gradients = []
    for penalty in (
        lambda q, m: kpattern_penalty(q, m, "sum").sum(),
        lambda q, m: torch.cdist(q, m).amin(dim=-1).sum(),
    ):
        q, m = query.clone().requires_grad_(), patterns.clone().requires_grad_()
        gradients.append(torch.autograd.grad(penalty(q, m), (q, m)))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_kpattern_gradient_is_finite_where_a_query_is_a_pattern():
    patterns = normal(1, 3, 4).requires_grad_()
    query = patterns.detach().clone().requires_grad_()
    penalty = kpattern_penalty(query, patterns)
    assert penalty.item() < 2e-3  # the root of float32's rounding
    for gradient in torch.autograd.grad(penalty.sum(), (query, patterns)):
        assert gradient.isfinite().all()


def test_entropy_is_that_of_the_mean_use_of_each_pattern():
    attention = attention_of(3, 11, 5)
    for found, rows in zip(entropy_penalty(attention).tolist(), attention.tolist(), strict=True):
        total = [sum(row[k] for row in rows) for k in range(5)]  # the paper's s'
        shares = [use / sum(total) for use in total]
        assert found == pytest.approx(sum(p * math.log(p) for p in shares), rel=1e-5)


@pytest.mark.parametrize("num_patterns", [1, 2, 7, 500])
def test_entropy_is_lowest_when_all_patterns_are_used_equally(num_patterns):
    each_its_own = torch.eye(num_patterns).unsqueeze(0)
    spread = torch.full((1, 3, num_patterns), 1 / num_patterns)
    lowest = -math.log(num_patterns)
    assert entropy_penalty(each_its_own).item() == pytest.approx(lowest, abs=1e-5)
    assert entropy_penalty(spread).item() == pytest.approx(lowest, abs=1e-5)


@given(seed=st.integers(0, 2**16), num_patterns=st.integers(1, 12), sharpness=st.integers(0, 50))
def test_entropy_lies_between_minus_log_k_and_zero(seed, num_patterns, sharpness):
    attention = (sharpness * normal(1, 5, num_patterns, seed=seed)).softmax(dim=-1)
    assert -math.log(num_patterns) - 1e-5 <= entropy_penalty(attention).item() <= 1e-5


def test_entropy_gradient_is_finite_when_a_pattern_is_never_used():
    attention = attention_of(2, 6, 3)
    unused = torch.cat([attention, torch.zeros(2, 6, 1)], dim=-1).requires_grad_()
    penalty = entropy_penalty(unused)
    torch.testing.assert_close(penalty, entropy_penalty(attention))
    penalty.sum().backward()
    assert unused.grad.isfinite().all()
    assert (unused.grad[..., :3] != 0).any()


def test_entropy_gradient_survives_scores_that_underflow():
    scores = torch.tensor([[[0.0, -200.0], [1.0, -300.0]]], requires_grad=True)
    entropy_penalty(scores.softmax(dim=-1)).sum().backward()
    assert scores.grad.isfinite().all()


def test_norm_is_the_squared_frobenius_norm_of_each_memory():
    patterns = normal(3, 6, 4)
    expected = [np.linalg.norm(memory, "fro") ** 2 for memory in patterns.numpy()]
    assert norm_penalty(patterns).tolist() == pytest.approx(expected, rel=1e-5)


QUERY = normal(REPLICAS, HEAD_NODES, HEAD_WIDTH, seed=99)


def make_head(drop=0.0, **values):
    settings = MemorySettings(**{"num_patterns": 6, **values})
    head = MemoryHead(REPLICAS, HEAD_WIDTH, HIDDEN, CLASSES, settings, DropRate([drop] * REPLICAS))
    with torch.no_grad():
        for seed, parameter in enumerate(head.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed))
    return head


def by_hand(head, query, replica):
    """The logits of one replica from the head's own weights, (N, C)."""
    values = {name: parameter[replica] for name, parameter in head.named_parameters()}
    if "resize.weight" in values:
        query = query @ values["resize.weight"] + values["resize.bias"]
    hidden = query
    if "memory.patterns" in values:
        patterns = values["memory.patterns"]
        weights = (query @ patterns.T).exp()
        attention = weights / weights.sum(dim=1, keepdim=True)
        hidden = torch.cat([query, attention @ patterns], dim=1)
    depth = sum(name.startswith("classify.layers") for name in values) // 2
    if depth == 1:
        hidden = functional.relu(hidden)
    for number in range(depth):
        hidden = functional.relu(hidden) if number else hidden
        weight = values[f"classify.layers.{number}.weight"]
        hidden = hidden @ weight + values[f"classify.layers.{number}.bias"]
    return hidden


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("memory_dim", [None, 3])
@pytest.mark.parametrize("memory", [True, False])
def test_logits_match_the_computation_written_out(memory, memory_dim, layers):
    head = make_head(memory=memory, memory_dim=memory_dim, classifier_layers=layers)
    names = {name for name, _ in head.named_parameters()}
    assert ("memory.patterns" in names) == memory
    assert ("resize.weight" in names) == (memory_dim is not None)
    assert len(head.classify.layers) == layers
    expected = torch.stack([by_hand(head, QUERY[r], r) for r in range(REPLICAS)])
    torch.testing.assert_close(head(QUERY).logits, expected)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("memory_dim", [None, 3])
def test_gradients_match_those_of_the_computation_written_out(memory_dim, layers):
    head = make_head(memory_dim=memory_dim, classifier_layers=layers)
    names, values = zip(*head.named_parameters(), strict=True)
    weights = normal(REPLICAS, HEAD_NODES, CLASSES, seed=50)  # separates all logits
    by_hand_logits = torch.stack([by_hand(head, QUERY[r], r) for r in range(REPLICAS)])
    expected = torch.autograd.grad((by_hand_logits * weights).sum(), values)
    found = torch.autograd.grad((head(QUERY).logits * weights).sum(), values)
    for name, one, other in zip(names, found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("memory", [True, False])
def test_classifying_some_nodes_gives_those_rows_of_all(memory):
    head = make_head(memory=memory)
    chosen = torch.tensor([[4, 0, 6], [1, 1, 2]])
    everything, some = head(QUERY).logits, head(QUERY, classify=chosen).logits
    for r in range(REPLICAS):
        torch.testing.assert_close(some[r], everything[r][chosen[r]])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_penalties_count_all_nodes_whichever_are_classified(reduction):
    head = make_head(kpattern_reduction=reduction)
    chosen = torch.tensor([[4, 0], [1, 2]])
    found = head(QUERY, classify=chosen, penalties=True).penalties
    patterns = head.memory.patterns
    nearest = torch.cdist(QUERY, patterns).amin(dim=-1)
    use = (QUERY @ patterns.mT).softmax(dim=-1).mean(dim=1)
    expected = {
        "kpattern": nearest.mean(dim=1) if reduction == "mean" else nearest.sum(dim=1),
        "entropy": (use * use.log()).sum(dim=1),
        "norm": patterns.square().sum(dim=(1, 2)),
    }
    torch.testing.assert_close(found, expected)


def test_penalties_are_of_the_query_after_its_map():
    head = make_head(memory_dim=3)
    mapped = QUERY @ head.resize.weight + head.resize.bias
    nearest = torch.cdist(mapped, head.memory.patterns).amin(dim=-1).mean(dim=1)
    found = head(QUERY, penalties=True).penalties["kpattern"]
    torch.testing.assert_close(found, nearest)


def test_details_and_penalties_are_returned_only_on_request():
    head = make_head()
    plain, full = head(QUERY), head(QUERY, details=True)
    assert plain.details == {}
    assert plain.penalties == {}
    attention = (QUERY @ head.memory.patterns.mT).softmax(dim=-1)
    torch.testing.assert_close(full.details, {"attention": attention, "query": QUERY})
    without = make_head(memory=False)(QUERY, details=True, penalties=True)
    assert set(without.details) == {"query"}
    assert without.penalties == {}


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_falls_on_the_input_and_the_hidden_layer_of_the_classifier(layers):
    head = make_head(drop=0.5, classifier_layers=layers)
    keys = torch.tensor([stable_key(number) for number in range(REPLICAS)])
    noise = Noise(keys, 3)
    first = noise.keep("classify.input", (HEAD_NODES, 2 * HEAD_WIDTH), head.drop_rate)
    second = noise.keep("classify.1", (HEAD_NODES, HIDDEN), head.drop_rate)
    attention = (QUERY @ head.memory.patterns.mT).softmax(dim=-1)
    hidden = torch.cat([QUERY, attention @ head.memory.patterns], dim=-1)
    hidden = (hidden.relu() if layers == 1 else hidden) * first * 2
    for number, layer in enumerate(head.classify.layers):
        hidden = hidden.relu() * second * 2 if number else hidden
        hidden = hidden @ layer.weight + layer.bias
    torch.testing.assert_close(head(QUERY, noise).logits, hidden)


def test_penalty_weights_are_listed_per_replica():
    settings = [
        MemorySettings(kpattern_weight=1.0, entropy_weight=2.0, norm_weight=3.0),
        MemorySettings(kpattern_weight=4.0, entropy_weight=5.0, norm_weight=6.0),
    ]
    expected = {"kpattern": [1.0, 4.0], "entropy": [2.0, 5.0], "norm": [3.0, 6.0]}
    assert penalty_weights(settings) == expected
    assert penalty_weights([MemorySettings(memory=False)]) == {}


def test_every_penalty_is_computed_and_has_a_weight_setting():
    output = make_head()(QUERY, penalties=True)
    assert tuple(output.penalties) == PENALTIES
    assert set(NODE_PENALTIES) <= set(PENALTIES)
    fields = {info.name for info in dataclasses.fields(MemorySettings)}
    assert {f"{name}_weight" for name in PENALTIES} <= fields
    assert tuple(penalty_weights([MemorySettings()])) == PENALTIES


def test_a_node_reduction_replaces_the_mean_over_nodes():
    """As where the nodes of a step are distributed over processes."""

    def over_twice_as_many(values, reduction):
        assert reduction in ("mean", "sum")
        return values.sum(dim=1) / (2 * values.shape[1])

    query = normal(REPLICAS, NODES, WIDTH)
    memory = Memory(REPLICAS, PATTERNS, WIDTH, node_reduction=over_twice_as_many)
    scores, lengths, _ = memory.compare(query)
    penalties = memory.penalties(lengths, scores, scores.softmax(dim=-1), "mean")
    expected = kpattern_penalty(query, memory.patterns) / 2
    torch.testing.assert_close(penalties["kpattern"], expected)
    torch.testing.assert_close(penalties["norm"], norm_penalty(memory.patterns))
