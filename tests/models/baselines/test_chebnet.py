"""ChebNet against PyTorch Geometric's ChebConv, the recurrence with dropout, and its gradients."""

import pytest
import torch
from torch_geometric.nn import ChebConv


def parameters_of(built, number, replica):
    """(order + 1, inputs, outputs) and (outputs,) of a layer."""
    weight = built.parameter(f"network.layers.{number}.weight", replica)
    return weight.transpose(0, 1), built.parameter(f"network.layers.{number}.bias", replica)[0]


@pytest.mark.parametrize(("layers", "order"), [(1, 4), (2, 0), (2, 1), (3, 2)])
def test_it_is_pygs_chebnet(build, layers, order):
    built = build("chebnet", layers=layers, order=order)

    def expected(replica):
        hidden = built.x
        for number in range(layers):
            weight, bias = parameters_of(built, number, replica)
            convolution = ChebConv(weight.shape[1], weight.shape[2], order + 1)
            with torch.no_grad():
                for linear, term in zip(convolution.lins, weight, strict=True):
                    linear.weight.copy_(term.T)
                convolution.bias.copy_(bias)
                hidden = convolution(hidden.relu() if number else hidden, built.edge_index)
        return hidden

    built.assert_logits(expected)


def polynomials(matrix, order):
    terms = [torch.eye(matrix.shape[0]), matrix]
    while len(terms) <= order:
        terms.append(2 * matrix @ terms[-1] - terms[-2])
    return terms


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_training_is_the_recurrence_with_dropout(build, neighbors):
    rates = {"dropout": 0.5, "attributes_dropout": 0.25}
    built = build("chebnet", neighbors=neighbors, order=3, **rates)
    terms = torch.stack(polynomials(-built.normalised(neighbors, 0.0), 3))
    columns = built.dropout("network.columns", (7,), 0.25)
    entries = built.dropout("network.1", (23, 6), 0.5)

    def layer(number, hidden, replica):
        weight, bias = parameters_of(built, number, replica)
        return (terms @ hidden @ weight).sum(dim=0) + bias

    def expected(replica):
        hidden = layer(0, built.x * columns[replica], replica)
        return layer(1, hidden.relu() * entries[replica], replica)

    built.assert_logits(expected, built.training_logits)


def test_gradients_are_those_of_the_recurrence(build):
    built = build("chebnet", layers=1, order=3)
    output = built.stage.model(built.stage.inputs).logits
    factors = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    (output * factors).sum().backward()
    [layer] = built.stage.model.network["layers"]
    for replica in range(2):
        for order, term in enumerate(polynomials(-built.normalised(self_loop=0.0), 3)):
            expected = (term @ built.x).T @ factors[replica]
            found = layer.weight.grad[replica, :, order]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
