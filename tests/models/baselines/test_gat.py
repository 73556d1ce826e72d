"""GAT against PyTorch Geometric's GATConv, and dense attention with dropout."""

import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import GATConv


def parameters_of(built, number, replica):
    return [
        built.parameter(f"convolve.{number}.{part}", replica)
        for part in ("weight", "center", "neighbor", "bias")
    ]


@pytest.mark.parametrize(("layers", "heads", "output_heads"), [(1, 2, 1), (2, 3, 2), (3, 1, 1)])
def test_it_is_pygs_gat(build, layers, heads, output_heads):
    built = build("gat", layers=layers, heads=heads, output_heads=output_heads)

    def expected(replica):
        hidden = built.x
        for number in range(layers):
            is_last = number == layers - 1
            weight, center, neighbor, bias = parameters_of(built, number, replica)
            count = output_heads if is_last else heads
            convolution = GATConv(weight.shape[0], center.shape[1], count, concat=not is_last)
            with torch.no_grad():
                convolution.lin.weight.copy_(weight.T)
                convolution.att_src.copy_(neighbor[None])
                convolution.att_dst.copy_(center[None])
                convolution.bias.copy_(bias[0])
                hidden = convolution(functional.elu(hidden) if number else hidden, built.edge_index)
        return hidden

    built.assert_logits(expected)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_training_is_dense_attention_with_dropout(build, neighbors):
    rates = {"attention_dropout": 0.5, "attributes_dropout": 0.25}
    built = build("gat", layers=1, heads=1, neighbors=neighbors, **rates)
    reads = (built.adjacency(neighbors) + torch.eye(23)) > 0
    columns = built.dropout("attributes", (7,), 0.25)
    kept = built.dropout("layer.0.attention", (1, int(reads.sum())), 0.5)

    def expected(replica):
        weight, [center], [neighbor], bias = parameters_of(built, 0, replica)
        hidden = (built.x * columns[replica]) @ weight
        scores = functional.leaky_relu(hidden @ center[:, None] + hidden @ neighbor, 0.2)
        attention = scores.masked_fill(~reads, -torch.inf).softmax(dim=1)
        attention[reads] *= kept[replica, 0]
        return attention @ hidden + bias

    built.assert_logits(expected, built.training_logits)


def test_heads_share_the_width_rounded_up(build):
    built = build("gat", hidden_dim=6, heads=4)
    assert built.parameter("convolve.0.center", 0).shape == (4, 2)
    assert built.parameter("convolve.1.weight", 0).shape == (8, 4)
