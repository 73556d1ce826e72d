"""GAT against PyTorch Geometric's GATConv, and against dense attention on a directed graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import GATConv

from hpgmn.base.randomness import DropRate, Noise

Build = Callable[..., Any]


def pyg_gat(built, replica, layers, heads, output_heads):
    hidden = built.x
    for number in range(layers):
        is_last = number == layers - 1
        weight, center, neighbor, bias = (
            built.parameter(f"convolve.{number}.{part}", replica)
            for part in ("weight", "center", "neighbor", "bias")
        )
        count = output_heads if is_last else heads
        convolution = GATConv(weight.shape[0], center.shape[1], count, concat=not is_last)
        with torch.no_grad():
            convolution.lin.weight.copy_(weight.T)
            convolution.att_src.copy_(neighbor[None])
            convolution.att_dst.copy_(center[None])
            convolution.bias.copy_(bias[0])
            hidden = convolution(functional.elu(hidden) if number else hidden, built.edge_index)
    return hidden


@pytest.mark.parametrize(("layers", "heads", "output_heads"), [(1, 2, 1), (2, 3, 2), (3, 1, 1)])
def test_it_is_pygs_gat(build, layers, heads, output_heads):
    built = build("gat", layers=layers, heads=heads, output_heads=output_heads)
    for replica, found in enumerate(built.logits):
        expected = pyg_gat(built, replica, layers, heads, output_heads)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def attention_of(built, neighbors, hidden, replica):
    """(N, N) of a single head, from a dense softmax."""
    center, neighbor = (
        built.parameter(f"convolve.0.{part}", replica)[0] for part in ("center", "neighbor")
    )
    scores = functional.leaky_relu(hidden @ center[:, None] + hidden @ neighbor, 0.2)
    reads = (built.adjacency(neighbors) + torch.eye(23)) > 0
    return scores.masked_fill(~reads, -torch.inf).softmax(dim=1)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_a_layer_is_dense_attention_over_the_neighbours_read(build, neighbors):
    built = build("gat", layers=1, heads=1, neighbors=neighbors)
    for replica, found in enumerate(built.logits):
        weight = built.parameter("convolve.0.weight", replica)
        bias = built.parameter("convolve.0.bias", replica)
        hidden = built.x @ weight
        expected = attention_of(built, neighbors, hidden, replica) @ hidden + bias
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_training_drops_columns_and_attention(build):
    built = build("gat", layers=1, heads=1, attention_dropout=0.5, attributes_dropout=0.25)
    noise = Noise(built.task.keys("main"), 1)
    found = built.stage.model(built.stage.inputs, noise).logits
    columns = noise.keep("attributes", (7,), DropRate([0.25] * 2)) / 0.75
    rows, targets = (built.adjacency() + torch.eye(23)).nonzero().T
    kept = noise.keep("layer.0.attention", (1, len(rows)), DropRate([0.5] * 2)) / 0.5
    for replica in range(2):
        weight = built.parameter("convolve.0.weight", replica)
        bias = built.parameter("convolve.0.bias", replica)
        hidden = (built.x * columns[replica]) @ weight
        factors = torch.zeros(23, 23)
        factors[rows, targets] = kept[replica, 0]
        expected = (attention_of(built, "undirected", hidden, replica) * factors) @ hidden + bias
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


def test_heads_share_the_width_rounded_up(build):
    built = build("gat", hidden_dim=6, heads=4)
    assert built.parameter("convolve.0.center", 0).shape == (4, 2)
    assert built.parameter("convolve.1.weight", 0).shape == (8, 4)
