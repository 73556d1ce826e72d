"""MixHop against PyTorch Geometric's MixHopConv, and against dense powers on directed graphs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import MixHopConv

from hpgmn.base.randomness import DropRate, Noise
from hpgmn.models.baselines.mixhop import MixHopConvolution
from hpgmn.models.layers import initialise

Build = Callable[..., Any]


def weights(built, number, replica):
    """(powers + 1, inputs, outputs) and ((powers + 1)·outputs,) of a layer."""
    weight = built.parameter(f"convolve.{number}.weight", replica)
    return weight.transpose(0, 1), built.parameter(f"convolve.{number}.bias", replica)[0]


def classified(built, hidden, replica):
    weight, bias = (built.parameter(f"classify.{name}", replica) for name in ("weight", "bias"))
    logits: Tensor = hidden @ weight + bias
    return logits


def pyg_mixhop(built, replica, layers):
    hidden = built.x
    for number in range(layers):
        weight, bias = weights(built, number, replica)
        convolution = MixHopConv(weight.shape[1], weight.shape[2], list(range(weight.shape[0])))
        with torch.no_grad():
            for linear, own in zip(convolution.lins, weight, strict=True):
                linear.weight.copy_(own.T)
            convolution.bias.copy_(bias)
            hidden = convolution(hidden, built.edge_index).relu()
    return classified(built, hidden, replica)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("powers", [1, 2, 4])
def test_it_is_pygs_mixhop(build, layers, powers):
    built = build("mixhop", layers=layers, powers=powers)
    for replica, found in enumerate(built.logits):
        torch.testing.assert_close(found, pyg_mixhop(built, replica, layers), rtol=1e-4, atol=1e-5)


def propagation(adjacency):
    matrix = adjacency + torch.eye(adjacency.shape[0])
    return matrix / torch.outer(matrix.sum(dim=1), matrix.sum(dim=0)).sqrt()


def mixed(matrix, x, weight, bias):
    parts = [torch.linalg.matrix_power(matrix, power) @ x @ w for power, w in enumerate(weight)]
    return torch.cat(parts, dim=-1) + bias


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_it_is_the_formula(build, neighbors):
    built = build("mixhop", neighbors=neighbors)
    matrix = propagation(built.adjacency(neighbors))
    for replica, found in enumerate(built.logits):
        hidden = mixed(matrix, built.x, *weights(built, 0, replica)).relu()
        hidden = mixed(matrix, hidden, *weights(built, 1, replica)).relu()
        expected = classified(built, hidden, replica)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_training_drops_columns_and_hidden_entries(build):
    built = build("mixhop", dropout=0.5, attributes_dropout=0.25)
    keys = built.task.keys("main")
    found = built.stage.model(built.stage.inputs, Noise(keys, 1)).logits
    noise = Noise(keys, 1)
    columns = noise.keep("attributes", (7,), DropRate([0.25] * 2)) / 0.75
    entries = [noise.keep(f"hidden.{n}", (23, 18), DropRate([0.5] * 2)) / 0.5 for n in (1, 2)]
    assert 0 < (columns == 0).sum() < 14
    matrix = propagation(built.adjacency())
    for replica in range(2):
        x = built.x * columns[replica]
        hidden = mixed(matrix, x, *weights(built, 0, replica)).relu() * entries[0][replica]
        hidden = mixed(matrix, hidden, *weights(built, 1, replica)).relu() * entries[1][replica]
        expected = classified(built, hidden, replica)
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


def test_first_values_are_glorots_for_each_power():
    layer = MixHopConvolution(1, 50, 30, 2)
    initialise(layer, torch.tensor([5]))
    bound = (6 / 80) ** 0.5
    for power in range(3):
        assert 0.95 * bound < layer.weight[:, :, power].abs().max() <= bound
    assert not torch.equal(layer.weight[:, :, 0], layer.weight[:, :, 1])
    assert not layer.bias.any()
