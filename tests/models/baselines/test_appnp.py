"""APPNP against PyTorch Geometric's, its formula with dropout, and its gradients."""

import pytest
import torch
from torch_geometric.nn import APPNP


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("rounds", "teleport"), [(1, 0.1), (10, 0.1), (4, 0.0), (3, 1.0)])
def test_it_is_pygs_appnp(build, layers, rounds, teleport):
    built = build("appnp", layers=layers, rounds=rounds, teleport=teleport)
    spread = APPNP(K=rounds, alpha=teleport)
    built.assert_logits(
        lambda replica: spread(built.mlp("encode", built.x, replica), built.edge_index)
    )


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_training_is_the_formula_with_dropout(build, neighbors):
    settings = {"teleport": 0.3, "rounds": 3, "dropout": 0.5, "attributes_dropout": 0.5}
    built = build("appnp", neighbors=neighbors, **settings)
    matrix = built.normalised(neighbors)
    columns = built.dropout("encode.columns", (7,), 0.5)
    entries = built.dropout("encode.hidden", (23, 6), 0.5)

    def expected(replica):
        start = built.mlp("encode", built.x * columns[replica], replica, entries[replica])
        hidden = start
        for _ in range(3):
            hidden = 0.7 * matrix @ hidden + 0.3 * start
        return hidden

    built.assert_logits(expected, built.training_logits)


def test_the_gradient_is_that_of_the_rounds(build):
    built = build("appnp", rounds=4, teleport=0.2)
    target = torch.randn(2, 23, 4, generator=torch.Generator().manual_seed(0))
    (built.stage.model(built.stage.inputs).logits * target).sum().backward()
    spread = APPNP(K=4, alpha=0.2)
    for replica in range(2):
        weight = built.parameter("encode.first.weight", replica).clone().requires_grad_()
        hidden = (built.x @ weight + built.parameter("encode.first.bias", replica)).relu()
        logits = built.affine("encode.rest.layers.0", hidden, replica)
        (spread(logits, built.edge_index) * target[replica]).sum().backward()
        found = built.stage.model.encode.first.weight.grad[replica]
        torch.testing.assert_close(found, weight.grad, rtol=1e-4, atol=1e-5)
