"""MixHop against PyTorch Geometric's MixHopConv, and dense powers with dropout."""

import pytest
import torch
from torch_geometric.nn import MixHopConv

from hpgmn.models.baselines.mixhop import MixHopConvolution
from hpgmn.models.layers import initialise


def parameters_of(built, number, replica):
    """(powers + 1, inputs, outputs) and ((powers + 1)·outputs,) of a layer."""
    weight = built.parameter(f"convolve.{number}.weight", replica)
    return weight.transpose(0, 1), built.parameter(f"convolve.{number}.bias", replica)[0]


@pytest.mark.parametrize(("layers", "powers"), [(1, 2), (2, 1), (3, 4)])
def test_it_is_pygs_mixhop(build, layers, powers):
    built = build("mixhop", layers=layers, powers=powers)

    def expected(replica):
        hidden = built.x
        for number in range(layers):
            weight, bias = parameters_of(built, number, replica)
            convolution = MixHopConv(weight.shape[1], weight.shape[2], list(range(powers + 1)))
            with torch.no_grad():
                for linear, power_weight in zip(convolution.lins, weight, strict=True):
                    linear.weight.copy_(power_weight.T)
                convolution.bias.copy_(bias)
                hidden = convolution(hidden, built.edge_index).relu()
        return built.affine("classify", hidden, replica)

    built.assert_logits(expected)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_training_is_the_formula_with_dropout(build, neighbors):
    built = build("mixhop", neighbors=neighbors, dropout=0.5, attributes_dropout=0.25)
    matrix = built.normalised(neighbors)
    columns = built.dropout("attributes", (7,), 0.25)
    entries = [built.dropout(f"hidden.{number}", (23, 18), 0.5) for number in (1, 2)]

    def expected(replica):
        hidden = built.x * columns[replica]
        for number in range(2):
            weight, bias = parameters_of(built, number, replica)
            parts = [
                torch.linalg.matrix_power(matrix, power) @ hidden @ power_weight
                for power, power_weight in enumerate(weight)
            ]
            hidden = (torch.cat(parts, dim=-1) + bias).relu() * entries[number][replica]
        return built.affine("classify", hidden, replica)

    built.assert_logits(expected, built.training_logits)


def test_initial_values_are_glorots_for_each_power():
    layer = MixHopConvolution(1, 50, 30, 2)
    initialise(layer, torch.tensor([5]))
    bound = (6 / 80) ** 0.5
    for power in range(3):
        assert 0.95 * bound < layer.weight[:, :, power].abs().max() <= bound
    assert not torch.equal(layer.weight[:, :, 0], layer.weight[:, :, 1])
    assert not layer.bias.any()
