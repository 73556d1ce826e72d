"""APPNP against PyTorch Geometric's, and against the formula where the graph is directed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.nn import APPNP

from hpgmn.base.randomness import Noise, column_factors, dropout

Build = Callable[..., Any]


def mlp(built, replica, x, layers):
    hidden = x
    for number in range(layers):
        prefix = f"encode.rest.layers.{number - 1}" if number else "encode.first"
        weight, bias = (built.parameter(f"{prefix}.{part}", replica) for part in ("weight", "bias"))
        hidden = (hidden.relu() if number else hidden) @ weight + bias
    return hidden


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("rounds", "teleport"), [(1, 0.1), (10, 0.1), (4, 0.0), (3, 1.0)])
def test_it_is_pygs_appnp(build, layers, rounds, teleport):
    built = build("appnp", layers=layers, rounds=rounds, teleport=teleport)
    spread = APPNP(K=rounds, alpha=teleport)
    for replica, found in enumerate(built.logits):
        expected = spread(mlp(built, replica, built.x, layers), built.edge_index)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_it_is_the_formula(build, neighbors):
    built = build("appnp", neighbors=neighbors, teleport=0.3, rounds=3)
    matrix = built.adjacency(neighbors) + torch.eye(23)
    normal = matrix / (matrix.sum(dim=1)[:, None] * matrix.sum(dim=0)).sqrt()
    for replica, found in enumerate(built.logits):
        start = mlp(built, replica, built.x, 2)
        hidden = start
        for _ in range(3):
            hidden = 0.7 * normal @ hidden + 0.3 * start
        torch.testing.assert_close(found, hidden, rtol=1e-4, atol=1e-5)


def test_dropout_of_columns_is_dropout_of_columns(build):
    built = build("appnp", dropout=0.0, attributes_dropout=0.5)
    noise = Noise(built.task.keys("main"), 4)
    rate = built.stage.model.input_rate
    factors = column_factors(7, rate, noise, "encode.columns")
    assert factors is not None
    found = built.stage.model(built.stage.inputs, noise).logits
    spread = APPNP(K=10, alpha=0.1)
    for replica in range(2):
        start = mlp(built, replica, built.x * factors[replica], 2)
        expected = spread(start, built.edge_index)
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


def test_dropout_of_hidden_entries_is_inside_the_mlp(build):
    built = build("appnp", dropout=0.5)
    model, noise = built.stage.model, Noise(built.task.keys("main"), 4)
    kept = dropout(torch.ones(2, 23, 6), model.drop_rate, noise, "encode.hidden")
    found = model(built.stage.inputs, noise).logits
    spread = APPNP(K=10, alpha=0.1)
    for replica in range(2):
        first, bias, second, last = (
            built.parameter(f"encode.{place}", replica)
            for place in (
                "first.weight",
                "first.bias",
                "rest.layers.0.weight",
                "rest.layers.0.bias",
            )
        )
        hidden = (built.x @ first + bias).relu() * kept[replica]
        expected = spread(hidden @ second + last, built.edge_index)
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_is_that_of_the_rounds(build):
    built = build("appnp", rounds=4, teleport=0.2)
    target = torch.randn(2, 23, 4, generator=torch.Generator().manual_seed(0))
    (built.stage.model(built.stage.inputs).logits * target).sum().backward()
    spread = APPNP(K=4, alpha=0.2)
    for replica in range(2):
        weight = built.parameter("encode.first.weight", replica).clone().requires_grad_()
        hidden = (built.x @ weight + built.parameter("encode.first.bias", replica)).relu()
        last = built.parameter("encode.rest.layers.0.weight", replica)
        bias = built.parameter("encode.rest.layers.0.bias", replica)
        logits = spread(hidden @ last + bias, built.edge_index)
        (logits * target[replica]).sum().backward()
        found = built.stage.model.encode.first.weight.grad[replica]
        torch.testing.assert_close(found, weight.grad, rtol=1e-4, atol=1e-5)
