"""GraphSAGE against PyTorch Geometric's SAGEConv, and against the formula on a directed graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import SAGEConv

from hpgmn.base.randomness import DropRate, Noise

Build = Callable[..., Any]


def parameters_of(built, number, replica):
    return [
        built.parameter(f"convolve.{number}.{part}", replica)
        for part in ("own", "neighbors", "bias")
    ]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_pygs_graphsage(build, layers):
    built = build("graphsage", layers=layers)
    for replica, found in enumerate(built.logits):
        hidden = built.x
        for number in range(layers):
            own, neighbors, bias = parameters_of(built, number, replica)
            convolution = SAGEConv(*own.shape)
            with torch.no_grad():
                convolution.lin_l.weight.copy_(neighbors.T)
                convolution.lin_l.bias.copy_(bias[0])
                convolution.lin_r.weight.copy_(own.T)
                hidden = convolution(hidden.relu() if number else hidden, built.edge_index)
        torch.testing.assert_close(found, hidden, rtol=1e-4, atol=1e-5)


def mean_over(built, neighbors):
    adjacency: Tensor = built.adjacency(neighbors)
    return adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_it_is_the_formula(build, neighbors):
    built = build("graphsage", layers=1, neighbors=neighbors)
    for replica, found in enumerate(built.logits):
        own, others, bias = parameters_of(built, 0, replica)
        expected = mean_over(built, neighbors) @ built.x @ others + built.x @ own + bias
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_training_drops_columns_and_hidden_entries(build):
    built = build("graphsage", dropout=0.5, attributes_dropout=0.25)
    noise = Noise(built.task.keys("main"), 1)
    found = built.stage.model(built.stage.inputs, noise).logits
    columns = noise.keep("attributes", (7,), DropRate([0.25] * 2)) / 0.75
    entries = noise.keep("hidden.1", (23, 6), DropRate([0.5] * 2)) / 0.5
    mean = mean_over(built, "undirected")
    for replica in range(2):
        hidden = built.x * columns[replica]
        for number in range(2):
            own, neighbors, bias = parameters_of(built, number, replica)
            if number:
                hidden = hidden.relu() * entries[replica]
            hidden = mean @ hidden @ neighbors + hidden @ own + bias
        torch.testing.assert_close(found[replica], hidden, rtol=1e-4, atol=1e-5)
