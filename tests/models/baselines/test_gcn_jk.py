"""GCN with jumping knowledge against PyTorch Geometric's, and against the formula."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GCN, GCNConv, JumpingKnowledge

from hpgmn.base.randomness import DropRate, Noise

Build = Callable[..., Any]


def classified(built, hidden, replica):
    weight, bias = (built.parameter(f"classify.{name}", replica) for name in ("weight", "bias"))
    logits: Tensor = hidden @ weight + bias
    return logits


def pyg_states(built, replica, layers):
    states = [built.x]
    for number in range(layers):
        weight = built.parameter(f"convolve.{number}.weight", replica)
        convolution = GCNConv(*weight.shape)
        with torch.no_grad():
            convolution.lin.weight.copy_(weight.T)
            convolution.bias.copy_(built.parameter(f"convolve.{number}.bias", replica)[0])
            states.append(convolution(states[-1], built.edge_index).relu())
    return states[1:]


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize(("jump", "mode"), [("concat", "cat"), ("max", "max")])
def test_it_is_pygs_layers_and_jump(build, layers, jump, mode):
    built = build("gcn-jk", layers=layers, jump=jump)
    for replica, found in enumerate(built.logits):
        seen = JumpingKnowledge(mode)(pyg_states(built, replica, layers))
        expected = classified(built, seen, replica)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("jump", "mode"), [("concat", "cat"), ("max", "max")])
def test_it_is_pygs_whole_model(build, jump, mode):
    built = build("gcn-jk", layers=3, jump=jump)
    for replica, found in enumerate(built.logits):
        reference = GCN(7, 6, 3, out_channels=4, jk=mode).eval()
        with torch.no_grad():
            for number, convolution in enumerate(reference.convs):
                weight = built.parameter(f"convolve.{number}.weight", replica)
                convolution.lin.weight.copy_(weight.T)
                convolution.bias.copy_(built.parameter(f"convolve.{number}.bias", replica)[0])
            reference.lin.weight.copy_(built.parameter("classify.weight", replica).T)
            reference.lin.bias.copy_(built.parameter("classify.bias", replica)[0])
            expected = reference(built.x, built.edge_index)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def normal_matrix(built, neighbors, self_loop):
    matrix = built.adjacency(neighbors) + self_loop * torch.eye(23)
    rows, columns = (
        torch.where(total > 0, total.clamp(min=1e-9).rsqrt(), 0.0)
        for total in (matrix.sum(dim=1), matrix.sum(dim=0))
    )
    normal: Tensor = rows[:, None] * matrix * columns
    return normal


def convolved(built, matrix, hidden, number, replica):
    weight, bias = (
        built.parameter(f"convolve.{number}.{name}", replica) for name in ("weight", "bias")
    )
    return (matrix @ (hidden @ weight) + bias).relu()


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
@pytest.mark.parametrize("self_loop", [0.0, 2.5])
def test_it_is_the_formula(build, neighbors, self_loop):
    built = build("gcn-jk", neighbors=neighbors, self_loop=self_loop)
    matrix = normal_matrix(built, neighbors, self_loop)
    for replica, found in enumerate(built.logits):
        first = convolved(built, matrix, built.x, 0, replica)
        second = convolved(built, matrix, first, 1, replica)
        expected = classified(built, torch.cat([first, second], dim=-1), replica)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jump", ["concat", "max"])
def test_training_drops_columns_and_hidden_entries(build, jump):
    built = build("gcn-jk", jump=jump, dropout=0.5, attributes_dropout=0.25)
    keys = built.task.keys("main")
    found = built.stage.model(built.stage.inputs, Noise(keys, 1)).logits
    noise = Noise(keys, 1)
    columns = noise.keep("attributes", (7,), DropRate([0.25] * 2)) / 0.75
    entries = [noise.keep(f"hidden.{n}", (23, 6), DropRate([0.5] * 2)) / 0.5 for n in (1, 2)]
    assert 0 < (columns == 0).sum() < 14
    matrix = normal_matrix(built, "undirected", 1.0)
    for replica in range(2):
        first = convolved(built, matrix, built.x * columns[replica], 0, replica)
        first = first * entries[0][replica]
        second = convolved(built, matrix, first, 1, replica) * entries[1][replica]
        seen = torch.cat([first, second], dim=-1) if jump == "concat" else first.maximum(second)
        expected = classified(built, seen, replica)
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)
