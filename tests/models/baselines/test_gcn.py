"""GCN, also with jumping knowledge, against PyTorch Geometric, and its formula with dropout."""

import pytest
import torch
from torch_geometric.nn import GCN, GCNConv


def copy_convolution(built, convolution, number, replica):
    with torch.no_grad():
        convolution.lin.weight.copy_(built.parameter(f"convolve.{number}.weight", replica).T)
        convolution.bias.copy_(built.parameter(f"convolve.{number}.bias", replica)[0])
    return convolution


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_gcn_is_pygs(build, layers):
    built = build("gcn", layers=layers)
    widths = [7, *[6] * (layers - 1), 4]

    def expected(replica):
        hidden = built.x
        for number in range(layers):
            convolution = GCNConv(widths[number], widths[number + 1])
            copy_convolution(built, convolution, number, replica)
            hidden = convolution(hidden.relu() if number else hidden, built.edge_index).detach()
        return hidden

    built.assert_logits(expected)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("jump", "mode"), [("concat", "cat"), ("max", "max")])
def test_jumping_knowledge_is_pygs(build, layers, jump, mode):
    built = build("gcn-jk", layers=layers, jump=jump)

    def expected(replica):
        reference = GCN(7, 6, layers, out_channels=4, jk=mode).eval()
        for number, convolution in enumerate(reference.convs):
            copy_convolution(built, convolution, number, replica)
        with torch.no_grad():
            reference.lin.weight.copy_(built.parameter("classify.weight", replica).T)
            reference.lin.bias.copy_(built.parameter("classify.bias", replica)[0])
            return reference(built.x, built.edge_index)

    built.assert_logits(expected)


@pytest.mark.parametrize(
    ("neighbors", "self_loop"), [("out", 0.0), ("in", 2.5), ("undirected", 1.0)]
)
@pytest.mark.parametrize("name", ["gcn", "gcn-jk"])
def test_training_is_the_formula_with_dropout(build, name, neighbors, self_loop):
    rates = {"dropout": 0.5, "attributes_dropout": 0.25}
    built = build(name, neighbors=neighbors, self_loop=self_loop, **rates)
    matrix = built.normalised(neighbors, self_loop)
    columns = built.dropout("attributes", (7,), 0.25)
    entries = [built.dropout(f"hidden.{number}", (23, 6), 0.5) for number in (1, 2)]

    def layer(number, hidden, replica):
        weight, bias = (
            built.parameter(f"convolve.{number}.{part}", replica) for part in ("weight", "bias")
        )
        return matrix @ hidden @ weight + bias

    def expected(replica):
        first = layer(0, built.x * columns[replica], replica).relu() * entries[0][replica]
        second = layer(1, first, replica)
        if name == "gcn":
            return second
        states = torch.cat([first, second.relu() * entries[1][replica]], dim=1)
        return built.affine("classify", states, replica)

    built.assert_logits(expected, built.training_logits)
