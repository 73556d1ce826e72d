"""Memory and classifier against the same computation written out with plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hpgmn.base.randomness import DropRate, Noise, stable_key
from hpgmn.models.head import MemoryHead, MemorySettings, penalty_weights

REPLICAS, NODES, WIDTH, HIDDEN, CLASSES = 2, 7, 4, 5, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


QUERY = normal(REPLICAS, NODES, WIDTH, seed=99)


def make_head(drop: float = 0.0, **values: object) -> MemoryHead:
    settings = MemorySettings(**{"num_patterns": 6, **values})
    head = MemoryHead(REPLICAS, WIDTH, HIDDEN, CLASSES, settings, DropRate([drop] * REPLICAS))
    with torch.no_grad():
        for seed, parameter in enumerate(head.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed))
    return head


def by_hand(head: MemoryHead, query: Tensor, replica: int) -> Tensor:
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
def test_logits_match_the_computation_written_out(
    memory: bool, memory_dim: int | None, layers: int
) -> None:
    head = make_head(memory=memory, memory_dim=memory_dim, classifier_layers=layers)
    names = {name for name, _ in head.named_parameters()}
    assert ("memory.patterns" in names) == memory
    assert ("resize.weight" in names) == (memory_dim is not None)
    assert len(head.classify.layers) == layers
    expected = torch.stack([by_hand(head, QUERY[r], r) for r in range(REPLICAS)])
    torch.testing.assert_close(head(QUERY).logits, expected)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("memory_dim", [None, 3])
def test_gradients_match_those_of_the_computation_written_out(
    memory_dim: int | None, layers: int
) -> None:
    head = make_head(memory_dim=memory_dim, classifier_layers=layers)
    names, values = zip(*head.named_parameters(), strict=True)
    weights = normal(REPLICAS, NODES, CLASSES, seed=50)  # some loss that tells all logits apart
    by_hand_logits = torch.stack([by_hand(head, QUERY[r], r) for r in range(REPLICAS)])
    expected = torch.autograd.grad((by_hand_logits * weights).sum(), values)
    found = torch.autograd.grad((head(QUERY).logits * weights).sum(), values)
    for name, one, other in zip(names, found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=name)


def test_the_memory_lives_in_the_width_the_query_is_mapped_to() -> None:
    assert make_head().memory.patterns.shape == (REPLICAS, 6, WIDTH)
    assert make_head(memory_dim=3).memory.patterns.shape == (REPLICAS, 6, 3)


@pytest.mark.parametrize("memory", [True, False])
def test_classifying_some_nodes_gives_those_rows_of_all(memory: bool) -> None:
    head = make_head(memory=memory)
    chosen = torch.tensor([[4, 0, 6], [1, 1, 2]])
    everything, some = head(QUERY).logits, head(QUERY, classify=chosen).logits
    for r in range(REPLICAS):
        torch.testing.assert_close(some[r], everything[r][chosen[r]])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_penalties_count_all_nodes_whichever_are_classified(reduction: str) -> None:
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


def test_penalties_are_of_the_query_after_its_map() -> None:
    head = make_head(memory_dim=3)
    mapped = QUERY @ head.resize.weight + head.resize.bias
    nearest = torch.cdist(mapped, head.memory.patterns).amin(dim=-1).mean(dim=1)
    found = head(QUERY, penalties=True).penalties["kpattern"]
    torch.testing.assert_close(found, nearest)


def test_details_and_penalties_are_given_only_when_asked_for() -> None:
    head = make_head()
    plain, full = head(QUERY), head(QUERY, details=True)
    assert plain.details == {}
    assert plain.penalties == {}
    attention = (QUERY @ head.memory.patterns.mT).softmax(dim=-1)
    torch.testing.assert_close(full.details, {"attention": attention, "query": QUERY})
    without = make_head(memory=False)(QUERY, details=True, penalties=True)
    assert set(without.details) == {"query"}
    assert without.penalties == {}


def test_dropout_falls_on_the_only_layers_input() -> None:
    head = make_head(drop=0.5, classifier_layers=1)
    keys = torch.tensor([stable_key(number) for number in range(REPLICAS)])
    noise = Noise(keys, 3)
    kept = noise.keep("classify.input", (NODES, 2 * WIDTH), head.drop_rate)
    attention = (QUERY @ head.memory.patterns.mT).softmax(dim=-1)
    hidden = torch.cat([QUERY, attention @ head.memory.patterns], dim=-1).relu()
    (only,) = head.classify.layers
    expected = (hidden * kept * 2) @ only.weight + only.bias
    torch.testing.assert_close(head(QUERY, noise).logits, expected)


def test_dropout_falls_on_the_classifiers_input_and_on_its_hidden_layer() -> None:
    head = make_head(drop=0.5, classifier_layers=2)
    keys = torch.tensor([stable_key(number) for number in range(REPLICAS)])
    noise = Noise(keys, 3)
    first = noise.keep("classify.input", (NODES, 2 * WIDTH), head.drop_rate)
    second = noise.keep("classify.1", (NODES, HIDDEN), head.drop_rate)
    attention = (QUERY @ head.memory.patterns.mT).softmax(dim=-1)
    hidden = torch.cat([QUERY, attention @ head.memory.patterns], dim=-1)
    one, two = head.classify.layers
    hidden = (hidden * first * 2) @ one.weight + one.bias
    expected = (hidden.relu() * second * 2) @ two.weight + two.bias
    torch.testing.assert_close(head(QUERY, noise).logits, expected)


def test_penalty_weights_are_listed_per_replica() -> None:
    settings = [
        MemorySettings(kpattern_weight=1.0, entropy_weight=2.0, norm_weight=3.0),
        MemorySettings(kpattern_weight=4.0, entropy_weight=5.0, norm_weight=6.0),
    ]
    expected = {"kpattern": [1.0, 4.0], "entropy": [2.0, 5.0], "norm": [3.0, 6.0]}
    assert penalty_weights(settings) == expected


def test_without_a_memory_there_is_nothing_to_penalise() -> None:
    assert penalty_weights([MemorySettings(memory=False)]) == {}
