"""ChebNet against PyTorch Geometric's ChebConv, and against the recurrence on directed graphs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.nn import ChebConv

from hpgmn.base.randomness import DropRate, Noise
from hpgmn.models.baselines.chebnet import ChebyshevNetwork
from hpgmn.models.layers import initialise

Build = Callable[..., Any]


def weights(built, number, replica):
    """(order + 1, inputs, outputs) and (outputs,) of a layer."""
    weight = built.parameter(f"network.layers.{number}.weight", replica)
    return weight.transpose(0, 1), built.parameter(f"network.layers.{number}.bias", replica)[0]


def pyg_chebnet(built, replica, layers):
    hidden = built.x
    for number in range(layers):
        weight, bias = weights(built, number, replica)
        convolution = ChebConv(weight.shape[1], weight.shape[2], weight.shape[0])
        with torch.no_grad():
            for linear, own in zip(convolution.lins, weight, strict=True):
                linear.weight.copy_(own.T)
            convolution.bias.copy_(bias)
            hidden = convolution(hidden.relu() if number else hidden, built.edge_index)
    return hidden


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("order", [0, 1, 2, 4])
def test_it_is_pygs_chebnet(build, layers, order):
    built = build("chebnet", layers=layers, order=order)
    for replica, found in enumerate(built.logits):
        torch.testing.assert_close(found, pyg_chebnet(built, replica, layers), rtol=1e-4, atol=1e-5)


def laplacian(adjacency):
    rows, columns = (
        torch.where(total > 0, total.clamp(min=1e-9).rsqrt(), 0.0)
        for total in (adjacency.sum(dim=1), adjacency.sum(dim=0))
    )
    return -rows[:, None] * adjacency * columns


def polynomials(matrix, order):
    found = [torch.eye(matrix.shape[0]), matrix]
    while len(found) <= order:
        found.append(2 * matrix @ found[-1] - found[-2])
    return found[: order + 1]


def filtered(matrix, x, weight, bias):
    powers = polynomials(matrix, weight.shape[0] - 1)
    return torch.stack([p @ x @ w for p, w in zip(powers, weight, strict=True)]).sum(dim=0) + bias


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_it_is_the_recurrence(build, neighbors):
    built = build("chebnet", neighbors=neighbors, order=3)
    matrix = laplacian(built.adjacency(neighbors))
    for replica, found in enumerate(built.logits):
        hidden = filtered(matrix, built.x, *weights(built, 0, replica)).relu()
        expected = filtered(matrix, hidden, *weights(built, 1, replica))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_training_drops_columns_and_hidden_entries(build):
    built = build("chebnet", dropout=0.5, attributes_dropout=0.25)
    keys = built.task.keys("main")
    found = built.stage.model(built.stage.inputs, Noise(keys, 1)).logits
    noise = Noise(keys, 1)
    columns = noise.keep("network.columns", (7,), DropRate([0.25] * 2)) / 0.75
    entries = noise.keep("network.1", (23, 6), DropRate([0.5] * 2)) / 0.5
    assert 0 < (columns == 0).sum() < 14
    matrix = laplacian(built.adjacency())
    for replica in range(2):
        x = built.x * columns[replica]
        hidden = filtered(matrix, x, *weights(built, 0, replica)).relu() * entries[replica]
        expected = filtered(matrix, hidden, *weights(built, 1, replica))
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_recurrence(build):
    built = build("chebnet", layers=1, order=3)
    output = built.stage.model(built.stage.inputs).logits
    factors = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    (output * factors).sum().backward()
    [layer] = built.stage.model.network.layers
    powers = polynomials(laplacian(built.adjacency()), 3)
    for replica in range(2):
        for order, power in enumerate(powers):
            expected = (power @ built.x).T @ factors[replica]
            found = layer.weight.grad[replica, :, order]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_first_values_are_glorots_for_each_order():
    network = ChebyshevNetwork(1, [50, 30], 2)
    initialise(network, torch.tensor([5]))
    [layer] = network.layers
    bound = (6 / 80) ** 0.5
    for order in range(3):
        weight = layer.weight[:, :, order]
        assert 0.95 * bound < weight.abs().max() <= bound
    assert not torch.equal(layer.weight[:, :, 0], layer.weight[:, :, 1])
    assert not layer.bias.any()
