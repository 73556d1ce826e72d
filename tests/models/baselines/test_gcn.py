"""GCN against PyTorch Geometric's GCNConv, and against the formula where the graph is directed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.nn import GCNConv

from hpgmn.base.randomness import DropRate, Noise

Build = Callable[..., Any]


def pyg_gcn(built, replica, layers):
    hidden = built.x
    for number in range(layers):
        weight = built.parameter(f"convolve.{number}.weight", replica)
        convolution = GCNConv(*weight.shape)
        with torch.no_grad():
            convolution.lin.weight.copy_(weight.T)
            convolution.bias.copy_(built.parameter(f"convolve.{number}.bias", replica)[0])
            hidden = convolution(hidden.relu() if number else hidden, built.edge_index)
    return hidden


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_pygs_gcn(build, layers):
    built = build("gcn", layers=layers)
    for replica, found in enumerate(built.logits):
        torch.testing.assert_close(found, pyg_gcn(built, replica, layers), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
@pytest.mark.parametrize("self_loop", [0.0, 1.0, 2.5])
def test_it_is_the_formula(build, neighbors, self_loop):
    built = build("gcn", neighbors=neighbors, self_loop=self_loop)
    matrix = built.adjacency(neighbors) + self_loop * torch.eye(23)
    rows, columns = (
        torch.where(total > 0, total.clamp(min=1e-9).rsqrt(), 0.0)
        for total in (matrix.sum(dim=1), matrix.sum(dim=0))
    )
    normal = rows[:, None] * matrix * columns
    for replica, found in enumerate(built.logits):
        first, second, bias, last = (
            built.parameter(f"convolve.{place}", replica)
            for place in ("0.weight", "1.weight", "0.bias", "1.bias")
        )
        hidden = (normal @ (built.x @ first) + bias).relu()
        torch.testing.assert_close(found, normal @ (hidden @ second) + last, rtol=1e-4, atol=1e-5)


def test_training_drops_columns_and_hidden_entries(build):
    built = build("gcn", dropout=0.5, attributes_dropout=0.25)
    noise = Noise(built.task.keys("main"), 1)
    found = built.stage.model(built.stage.inputs, noise).logits
    columns = noise.keep("attributes", (7,), DropRate([0.25] * 2)) / 0.75
    entries = noise.keep("hidden.1", (23, 6), DropRate([0.5] * 2)) / 0.5
    assert 0 < (columns == 0).sum() < 14
    matrix = built.adjacency() + torch.eye(23)
    normal = matrix / torch.outer(matrix.sum(dim=1), matrix.sum(dim=0)).sqrt()
    for replica in range(2):
        first, second, bias, last = (
            built.parameter(f"convolve.{place}", replica)
            for place in ("0.weight", "1.weight", "0.bias", "1.bias")
        )
        hidden = (normal @ (built.x * columns[replica]) @ first + bias).relu() * entries[replica]
        expected = normal @ hidden @ second + last
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)
