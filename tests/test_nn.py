"""The modules in a loop of the user's own."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import hpgmn
from hpgmn import LocalStatistics, nn


def test_every_exported_name_is_there():
    for name in nn.__all__:
        assert getattr(nn, name).__module__.startswith("hpgmn.")
    promised = {"HPGMN", "Memory", "kpattern_penalty", "entropy_penalty"}
    assert promised <= set(nn.__all__)
    assert "nn" in hpgmn.__all__
    assert "nn" in dir(hpgmn)


def test_public_names_of_the_package_are_there():
    for name in hpgmn.__all__:
        assert getattr(hpgmn, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Grph'"):
        _ = hpgmn.Grph


def test_a_loop_of_ones_own_decreases_the_loss(small_graph):
    settings = nn.HPGMNSettings(hidden_dim=8, num_patterns=6, dropout=0.1)
    train = torch.from_numpy(small_graph.split(0).train)
    y = torch.from_numpy(small_graph.y)
    inputs = LocalStatistics(small_graph).build(small_graph.y[None], 3, [settings])
    widths = {name: statistic.width for name, statistic in inputs.items()}
    model = nn.HPGMN(widths, 3, settings)
    keys = torch.tensor([nn.stable_key("mine", 0)])
    nn.initialise(model, keys)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for epoch in range(40):
        optimizer.zero_grad()
        output = model(inputs, nn.Noise(keys, epoch), penalties=True)
        assert isinstance(output, nn.Output)
        loss = functional.cross_entropy(output.logits[0, train], y[train])
        total = loss + 1e-3 * output.penalties["kpattern"] + 1e-2 * output.penalties["entropy"]
        total.sum().backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    with torch.no_grad():
        guesses = model(inputs).logits[0].argmax(dim=-1)
    assert (guesses == y)[train].all()


def test_a_memory_of_ones_own_learns_to_reach_the_queries():
    query = torch.randn(1, 50, 4, generator=torch.Generator().manual_seed(0))
    memory = nn.Memory(1, 8, 4)
    nn.initialise(memory, torch.tensor([nn.stable_key("memory")]))
    optimizer = torch.optim.Adam(memory.parameters(), lr=0.05)
    distances = []
    for _ in range(30):
        optimizer.zero_grad()
        value, attention = memory(query)
        assert value.shape == (1, 50, 4)
        np.testing.assert_allclose(attention.detach().sum(dim=-1), 1, rtol=1e-5)
        distance = nn.kpattern_penalty(query, memory.patterns)
        (distance + 0.1 * nn.entropy_penalty(attention)).sum().backward()
        optimizer.step()
        distances.append(float(distance.detach().sum()))
    assert distances[-1] < 0.8 * distances[0]


def test_one_replica_needs_no_leading_dimension():
    torch.manual_seed(0)
    query, memory = torch.randn(7, 4), nn.Memory(1, 5, 4)
    value, attention = memory(query)
    patterns = memory.patterns[0]
    expected = (query @ patterns.T).softmax(dim=1)
    torch.testing.assert_close(attention, expected)
    torch.testing.assert_close(value, expected @ patterns)
    distance = torch.cdist(query, patterns, compute_mode="donot_use_mm_for_euclid_dist")
    near = nn.kpattern_penalty(query, memory.patterns)
    torch.testing.assert_close(near, distance.min(dim=1).values.mean().reshape(1))
    use = expected.mean(dim=0)
    torch.testing.assert_close(nn.entropy_penalty(attention), (use * use.log()).sum())


def test_a_memory_of_ones_own_starts_with_patterns_of_its_own():
    torch.manual_seed(0)
    memory = nn.Memory(2, 5, 4, in_batches=True)
    rows = memory.patterns.detach().reshape(10, 4)
    assert len(torch.unique(rows, dim=0)) == 10
    assert rows.abs().max() <= (6 / 9) ** 0.5
    assert memory.use is not None
    np.testing.assert_allclose(memory.use.detach(), 1 / 5)


def test_a_head_can_be_built_from_the_exported_names():
    head = nn.MemoryHead(2, 4, 8, 3, nn.MemorySettings(num_patterns=5), nn.DropRate([0.1, 0.2]))
    keys = torch.tensor([1, 2])
    nn.initialise(head, keys)
    output = head(torch.ones(2, 7, 4), nn.Noise(keys, 0), details=True)
    assert output.logits.shape == (2, 7, 3)
    assert output.details["attention"].shape == (2, 7, 5)
