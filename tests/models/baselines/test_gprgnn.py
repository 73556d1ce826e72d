"""GPRGNN against sums of dense powers and their gradients, and initially against PyG's APPNP."""

import numpy as np
import pytest
import torch
from torch_geometric.nn import APPNP

from hpgmn.base.settings import per_replica_names
from hpgmn.base.sparse import SparseMatrix
from hpgmn.models import MODELS
from hpgmn.models.baselines.gprgnn import GPRGNNSettings, Polynomial
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, make_task
from hpgmn.training.trainer import train


@pytest.mark.parametrize(
    ("neighbors", "layers", "rounds"), [("out", 2, 3), ("in", 2, 10), ("undirected", 2, 1)]
)
def test_training_is_the_sum_of_powers_with_dropout(build, neighbors, layers, rounds):
    rates = {"dropout": 0.5, "attributes_dropout": 0.25, "propagation_dropout": 0.4}
    built = build("gprgnn", neighbors=neighbors, layers=layers, rounds=rounds, **rates)
    matrix = built.normalised(neighbors)
    columns = built.dropout("encode.columns", (7,), 0.25)
    entries = built.dropout("encode.hidden", (23, 6), 0.5)
    kept = built.dropout("propagation", (23, 4), 0.4)

    def expected(replica):
        start = built.mlp("encode", built.x * columns[replica], replica, entries[replica])
        coefficients = built.parameter("polynomial.coefficients", replica)
        assert coefficients.shape == (rounds + 1,)
        return sum(
            coefficient * torch.linalg.matrix_power(matrix, power) @ (start * kept[replica])
            for power, coefficient in enumerate(coefficients)
        )

    built.assert_logits(expected, built.training_logits)


@pytest.mark.parametrize("teleport", [0.0, 0.2, 1.0])
def test_initial_coefficients_are_those_of_pygs_appnp(build, teleport):
    built = build("gprgnn", teleport=teleport, rounds=5)
    initialise(built.stage.model, built.task.keys("main"))
    spread = APPNP(K=5, alpha=teleport)
    built.assert_logits(
        lambda replica: spread(built.mlp("encode", built.x, replica), built.edge_index)
    )


def test_replicas_may_start_with_different_teleports():
    assert "teleport" in per_replica_names(GPRGNNSettings)
    polynomial = Polynomial(2, [0.5, 0.0, 1.0])
    initialise(polynomial, torch.arange(3))
    expected = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert torch.equal(polynomial.coefficients.detach(), expected)


def test_gradients_agree_with_finite_differences(build):
    host = build("gprgnn", neighbors="out").stage.inputs["propagation"].host.astype(np.float64)
    polynomial = Polynomial(3, [0.1, 0.4]).double()
    initialise(polynomial, torch.arange(2))
    start = torch.randn(2, 23, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def spread(hidden, coefficients):
        return torch.func.functional_call(
            polynomial, {"coefficients": coefficients}, (SparseMatrix(host), hidden)
        )

    first = polynomial.coefficients.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(spread, (start.requires_grad_(), first))


def test_coefficients_have_their_own_weight_decay(wild_graph):
    """With a decay that outweighs every gradient, Adam's first step goes against the value."""
    split = wild_graph.split(0)
    decays = [0.0] * 5 + [1e6] * 5
    replicas = [
        Replica(
            0,
            position % 5,
            GPRGNNSettings(epochs=1, weight_decay=5.0, polynomial_weight_decay=decay, teleport=0.5),
        )
        for position, decay in enumerate(decays)
    ]
    task = make_task(wild_graph, replicas, [(split.train, split.val)] * 10, "cpu")
    stage = MODELS["gprgnn"].stages["main"](task, {})
    [(prefix, rates)] = stage.own_rates.items()
    assert rates.lr == stage.lr == [0.01] * 10
    assert rates.weight_decay == decays
    names = [name for name, _ in stage.model.named_parameters() if name.startswith(prefix)]
    assert names == ["polynomial.coefficients"]
    coefficients = train(task, MODELS["gprgnn"]).done["main"]["polynomial.coefficients"]
    steps = coefficients - stage.model.polynomial.first.float()
    torch.testing.assert_close(steps[5:], torch.full((5, 11), -0.01), rtol=1e-4, atol=1e-5)
    assert (steps[:5] > 0.009).any()
