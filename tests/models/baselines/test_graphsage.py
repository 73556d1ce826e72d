"""GraphSAGE against PyTorch Geometric's SAGEConv, and its formula with dropout."""

import pytest
import torch
from torch_geometric.nn import SAGEConv


def parameters_of(built, number, replica):
    return [
        built.parameter(f"convolve.{number}.{part}", replica)
        for part in ("own", "neighbors", "bias")
    ]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_pygs_graphsage(build, layers):
    built = build("graphsage", layers=layers)

    def expected(replica):
        hidden = built.x
        for number in range(layers):
            own, neighbors, bias = parameters_of(built, number, replica)
            convolution = SAGEConv(*own.shape)
            with torch.no_grad():
                convolution.lin_l.weight.copy_(neighbors.T)
                convolution.lin_l.bias.copy_(bias[0])
                convolution.lin_r.weight.copy_(own.T)
                hidden = convolution(hidden.relu() if number else hidden, built.edge_index)
        return hidden

    built.assert_logits(expected)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_training_is_the_formula_with_dropout(build, neighbors):
    built = build("graphsage", neighbors=neighbors, dropout=0.5, attributes_dropout=0.25)
    adjacency = built.adjacency(neighbors)
    mean = adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1)
    columns = built.dropout("attributes", (7,), 0.25)
    entries = built.dropout("hidden.1", (23, 6), 0.5)

    def layer(number, hidden, replica):
        own, others, bias = parameters_of(built, number, replica)
        return mean @ hidden @ others + hidden @ own + bias

    def expected(replica):
        hidden = layer(0, built.x * columns[replica], replica)
        return layer(1, hidden.relu() * entries[replica], replica)

    built.assert_logits(expected, built.training_logits)
