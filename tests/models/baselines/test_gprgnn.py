"""GPRGNN against sums of dense powers, their gradients, and PyTorch Geometric's APPNP at first."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import APPNP

from hpgmn.base.randomness import Noise, dropout
from hpgmn.base.settings import per_replica_names
from hpgmn.base.sparse import SparseMatrix
from hpgmn.models import MODELS
from hpgmn.models.baselines.gprgnn import GPRGNNSettings, Polynomial
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, make_task
from hpgmn.training.trainer import train

Build = Callable[..., Any]


def mlp(built, replica, layers):
    hidden = built.x
    for number in range(layers):
        prefix = f"encode.rest.layers.{number - 1}" if number else "encode.first"
        weight, bias = (built.parameter(f"{prefix}.{part}", replica) for part in ("weight", "bias"))
        hidden = (hidden.relu() if number else hidden) @ weight + bias
    return hidden


def normalised(matrix):
    looped = matrix + torch.eye(matrix.shape[0])
    return looped / (looped.sum(dim=1)[:, None] * looped.sum(dim=0)).sqrt()


def sum_of_powers(normal, start, coefficients):
    powers = [torch.linalg.matrix_power(normal, k) @ start for k in range(coefficients.shape[0])]
    return (coefficients[:, None, None] * torch.stack(powers)).sum(dim=0)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
@pytest.mark.parametrize(("layers", "rounds"), [(1, 1), (2, 3), (3, 10)])
def test_it_is_the_sum_of_powers(build, neighbors, layers, rounds):
    built = build("gprgnn", neighbors=neighbors, layers=layers, rounds=rounds)
    normal = normalised(built.adjacency(neighbors))
    for replica, found in enumerate(built.logits):
        coefficients = built.parameter("polynomial.coefficients", replica)
        assert coefficients.shape == (rounds + 1,)
        expected = sum_of_powers(normal, mlp(built, replica, layers), coefficients)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("teleport", [0.0, 0.2, 1.0])
def test_the_first_coefficients_are_those_of_pygs_appnp(build, teleport):
    built = build("gprgnn", teleport=teleport, rounds=5)
    initialise(built.stage.model, built.task.keys("main"))
    spread = APPNP(K=5, alpha=teleport)
    for replica, found in enumerate(built.logits):
        expected = spread(mlp(built, replica, 2), built.edge_index)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_replicas_may_start_with_different_teleports():
    assert "teleport" in per_replica_names(GPRGNNSettings)
    polynomial = Polynomial(2, [0.5, 0.0, 1.0])
    initialise(polynomial, torch.arange(3))
    expected = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert torch.equal(polynomial.coefficients.detach(), expected)


@pytest.mark.parametrize("neighbors", ["out", "undirected"])
def test_gradients_are_those_of_the_sum_of_powers(build, neighbors):
    built = build("gprgnn", rounds=4, neighbors=neighbors)
    generator = torch.Generator().manual_seed(0)
    start, target = (torch.randn(2, 23, 4, generator=generator) for _ in range(2))
    start.requires_grad_()
    polynomial = built.stage.model.polynomial
    (polynomial(built.stage.inputs["propagation"], start) * target).sum().backward()
    normal = normalised(built.adjacency(neighbors))
    for replica in range(2):
        own = start[replica].detach().clone().requires_grad_()
        coefficients = built.parameter("polynomial.coefficients", replica).requires_grad_()
        (sum_of_powers(normal, own, coefficients) * target[replica]).sum().backward()
        torch.testing.assert_close(start.grad[replica], own.grad, rtol=1e-4, atol=1e-5)
        found = polynomial.coefficients.grad[replica]
        torch.testing.assert_close(found, coefficients.grad, rtol=1e-4, atol=1e-5)


def test_gradients_agree_with_finite_differences(build):
    host = build("gprgnn").stage.inputs["propagation"].host.astype(np.float64)
    polynomial = Polynomial(3, [0.1, 0.4]).double()
    initialise(polynomial, torch.arange(2))
    start = torch.randn(2, 23, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def spread(hidden, coefficients):
        with torch.no_grad():
            polynomial.coefficients.copy_(coefficients)
        return torch.func.functional_call(
            polynomial, {"coefficients": coefficients}, (SparseMatrix(host), hidden)
        )

    first = polynomial.coefficients.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(spread, (start.requires_grad_(), first))


def test_logits_are_dropped_before_propagation(build):
    built = build("gprgnn", dropout=0.0, propagation_dropout=0.5, rounds=3)
    noise = Noise(built.task.keys("main"), 2)
    starts = torch.stack([mlp(built, replica, 2) for replica in range(2)])
    dropped = dropout(starts, built.stage.model.propagation_rate, noise, "propagation")
    assert (dropped == 0).any()
    found = built.stage.model(built.stage.inputs, noise).logits
    normal = normalised(built.adjacency())
    for replica in range(2):
        coefficients = built.parameter("polynomial.coefficients", replica)
        expected = sum_of_powers(normal, dropped[replica], coefficients)
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dropout", "attributes_dropout"])
def test_training_drops_columns_and_hidden_entries(build, name):
    off = {"dropout": 0.0, "attributes_dropout": 0.0, "propagation_dropout": 0.0}
    built = build("gprgnn", **(off | {name: 0.5}))
    noise = Noise(built.task.keys("main"), 1)
    assert (built.stage.model(built.stage.inputs, noise).logits != built.logits).any(dim=-1).all()


def test_coefficients_have_their_own_weight_decay(wild_graph):
    """With a decay that outweighs every gradient, Adam's first step goes against the value."""
    split = wild_graph.split(0)
    decays = [0.0] * 5 + [1e6] * 5
    replicas = [
        Replica(
            0,
            place % 5,
            GPRGNNSettings(epochs=1, weight_decay=5.0, polynomial_weight_decay=decay, teleport=0.5),
        )
        for place, decay in enumerate(decays)
    ]
    task = make_task(wild_graph, replicas, [(split.train, split.val)] * 10, "cpu")
    stage = MODELS["gprgnn"].stages["main"](task, {})
    [(prefix, rates)] = stage.own_rates.items()
    assert rates.lr == stage.lr == [0.01] * 10
    assert rates.weight_decay == decays
    names = [name for name, _ in stage.model.named_parameters() if name.startswith(prefix)]
    assert names == ["polynomial.coefficients"]
    found = train(task, MODELS["gprgnn"]).done["main"]["polynomial.coefficients"]
    steps = found - stage.model.polynomial.first.float()
    torch.testing.assert_close(steps[5:], torch.full((5, 11), -0.01), rtol=1e-4, atol=1e-5)
    assert (steps[:5] > 0.009).any()
