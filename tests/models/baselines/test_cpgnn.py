"""CPGNN against its formulas on dense matrices, written out class by class and node by node."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.cpgnn import Compatibility, CPGNNSettings, doubly_stochastic, fill_gaps
from hpgmn.models.stage import Rates, Replica, load_parameters, logits, make_task
from hpgmn.training.trainer import train

STAGES = MODELS["cpgnn"].stages


def inverse(total):
    return torch.where(total > 0, 1 / total.clamp(min=1e-9), 0.0)


def normalised(adjacency, normalization):
    rows = inverse(adjacency.sum(dim=1))[:, None]
    columns = inverse(adjacency.sum(dim=0))
    return {
        "none": adjacency,
        "row": rows * adjacency,
        "column": adjacency * columns,
        "symmetric": rows.sqrt() * adjacency * columns.sqrt(),
    }[normalization]


def dense_guesses(built, parameter, prior, neighbors):
    """The prior's logits: an MLP, or Chebyshev polynomials of -D^-½·A·D^-½ up to order 2."""
    x = built.x / built.x.abs().sum(dim=1, keepdim=True)
    if prior == "mlp":
        first, second = "encode.first", "encode.rest.layers.0"
        hidden = (x @ parameter(f"{first}.weight") + parameter(f"{first}.bias")).relu()
        return hidden @ parameter(f"{second}.weight") + parameter(f"{second}.bias")
    scaled = -normalised(built.adjacency(neighbors), "symmetric")
    basis = [torch.eye(23), scaled, 2 * scaled @ scaled - torch.eye(23)]
    hidden = x
    for number in range(2):
        weight = parameter(f"network.layers.{number}.weight")
        hidden = hidden.relu() if number else hidden
        hidden = sum(matrix @ hidden @ weight[:, k] for k, matrix in enumerate(basis))
        hidden = hidden + parameter(f"network.layers.{number}.bias")
    return hidden


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rounds": 2},
        {"rounds": 3, "normalization": "row"},
        {"rounds": 2, "normalization": "column", "neighbors": "in"},
        {"normalization": "symmetric", "neighbors": "out"},
        {"prior": "cheby"},
        {"prior": "cheby", "rounds": 2, "neighbors": "out", "normalization": "row"},
    ],
)
def test_it_is_the_formula(build, settings):
    built = build("cpgnn", **settings)
    chosen = built.task.settings[0]
    adjacency = normalised(built.adjacency(chosen.neighbors), chosen.normalization)

    def expected(replica):
        guesses = dense_guesses(
            built,
            lambda name: built.parameter(f"prior.{name}", replica),
            chosen.prior,
            chosen.neighbors,
        )
        start = guesses.softmax(dim=1) - 0.25
        matrix, beliefs = built.parameter("compatibility.matrix", replica), start
        for _ in range(chosen.rounds):
            beliefs = start + adjacency @ beliefs @ matrix
        return beliefs

    built.assert_logits(expected)


def sinkhorn(matrix):
    """Columns, then rows, to sum 1, over and over."""
    for _ in range(2000):
        matrix = matrix / matrix.sum(dim=0, keepdim=True)
        matrix = matrix / matrix.sum(dim=1, keepdim=True)
    return matrix


def dense_compatibility(built, guesses, labels):
    """Ĥ of one replica; the classes without train nodes are gaps."""
    adjacency = built.adjacency()
    beliefs = guesses.softmax(dim=1).double()
    for node in np.flatnonzero(labels >= 0):
        beliefs[node] = torch.eye(4)[labels[node]]
    around = torch.zeros(23, 4, dtype=torch.float64)
    for node in range(23):
        neighbors = adjacency[node].nonzero().flatten()
        if len(neighbors):
            around[node] = beliefs[neighbors].mean(dim=0)
    matrix = torch.full((4, 4), torch.nan, dtype=torch.float64)
    for label in range(4):
        members = np.flatnonzero(labels == label)
        if len(members):
            matrix[label] = around[members].mean(dim=0)
    matrix = torch.where(matrix.isnan(), matrix.T, matrix)
    for label in range(4):
        gaps = matrix[label].isnan()
        if gaps.any():
            matrix[label, gaps] = (1 - matrix[label].nansum()) / gaps.sum()
    matrix = sinkhorn(matrix)
    return ((matrix + matrix.T) / 2 - 0.25).float()


def main_from(task):
    """The main stage after a prior with random parameters, and these parameters."""
    generator = torch.Generator().manual_seed(8)
    trained = {
        name: torch.randn(value.shape, generator=generator)
        for name, value in STAGES["prior"](task, {}).model.named_parameters()
    }
    return STAGES["main"](task, {"prior": trained}), trained


@pytest.mark.parametrize("prior", ["mlp", "cheby"])
@pytest.mark.parametrize("without", [(), (2,), (0, 3)], ids=["all classes", "but one", "but two"])
def test_compatibilities_start_from_the_neighbourhoods_of_train_nodes(build, prior, without):
    built = build("cpgnn", prior=prior)
    labels = built.task.train_labels.copy()
    labels[np.isin(labels, without)] = -1
    stage, trained = main_from(replace(built.task, train_labels=labels))
    found = stage.initial["compatibility.matrix"]
    assert found.shape == (2, 4, 4)
    torch.testing.assert_close(found, found.transpose(1, 2))
    for replica in range(2):

        def parameter(name, replica=replica):
            return trained[name][replica]

        guesses = dense_guesses(built, parameter, prior, "undirected")
        expected = dense_compatibility(built, guesses, labels[replica])
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)
    assert (found[0] != found[1]).any()


def test_without_train_nodes_or_edges_compatibilities_are_chance(build, wild_graph):
    built = build("cpgnn")
    unknown = replace(built.task, train_labels=np.full((2, 23), -1))
    alone = Graph(
        wild_graph.x,
        np.empty((2, 0), np.int64),
        wild_graph.y,
        train_mask=wild_graph.split(0).train,
        val_mask=wild_graph.split(0).val,
    )
    for task in (unknown, build("cpgnn", alone).task):
        stage, _ = main_from(task)
        assert torch.equal(stage.initial["compatibility.matrix"], torch.zeros(2, 4, 4))


def test_train_nodes_without_neighbours_leave_a_gap():
    means = np.array([[[0.0, 0.0, 0.0], [0.2, 0.5, 0.3], [0.6, 0.0, 0.4]]])
    expected = [[0.2, 0.2, 0.6], [0.2, 0.5, 0.3], [0.6, 0.0, 0.4]]
    np.testing.assert_allclose(fill_gaps(means)[0], expected)


def test_a_gap_that_others_overfill_is_not_negative():
    means = np.array([[[0.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.8, 0.0, 0.2]]])
    expected = [[0.0, 0.9, 0.8], [0.9, 0.1, 0.0], [0.8, 0.0, 0.2]]
    np.testing.assert_allclose(fill_gaps(means)[0], expected)


def test_doubly_stochastic_is_sinkhorn_s_loop_whoever_else_is_there():
    matrices = np.random.default_rng(0).random((3, 5, 5)) ** 3
    found = doubly_stochastic(matrices)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-9)
    np.testing.assert_allclose(found.sum(axis=2), 1, atol=1e-9)
    for matrix, own in zip(matrices, found, strict=True):
        np.testing.assert_allclose(own, sinkhorn(torch.from_numpy(matrix)).numpy(), atol=1e-9)
        assert np.array_equal(doubly_stochastic(matrix[None])[0], own)


def test_matrices_that_cannot_become_doubly_stochastic_stay_finite():
    matrices = np.array([[[1.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], np.zeros((2, 2))])
    found = doubly_stochastic(matrices, rounds=50)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0], [[0.0, 1.0], [1.0, 0.0]], atol=0.05)
    np.testing.assert_allclose(found[1], [[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(found[2], 0.0)


def test_penalties_are_the_prior_s_loss_and_the_row_sums(build):
    built = build("cpgnn", prior_weight=0.3, zero_sum_weight=0.2)
    model, inputs = built.stage.model, built.stage.inputs
    assert built.stage.penalty_weights == {"prior": [0.3, 0.3], "zero_sum": [0.2, 0.2]}
    assert model(inputs).penalties == {}
    found = model(inputs, penalties=True).penalties
    assert set(found) == {"prior", "zero_sum"}
    split, y = built.task.graph.split(0), built.task.graph.y
    for replica in range(2):

        def parameter(name, replica=replica):
            return built.parameter(f"prior.{name}", replica)

        guesses = dense_guesses(built, parameter, "mlp", "undirected").log_softmax(dim=1)
        losses = [-guesses[v, y[v]] for v in np.flatnonzero(split.train)]
        torch.testing.assert_close(found["prior"][replica], torch.stack(losses).mean())
        sums = [float(row.sum()) for row in built.parameter("compatibility.matrix", replica)]
        expected = sum(abs(total) for total in sums)
        assert found["zero_sum"][replica].item() == pytest.approx(expected, rel=1e-4)


def test_a_row_sum_of_rounding_alone_has_no_gradient():
    compatibility = Compatibility(2, 3)
    values = torch.tensor([[[0.3, -0.1, -0.2 + 1e-7]] * 3, [[0.3, 0.2, -0.1]] * 3])
    load_parameters(compatibility, {"matrix": values})
    penalty = compatibility.zero_sum_penalty()
    torch.testing.assert_close(penalty, torch.tensor([0.0, 1.2]))
    penalty.sum().backward()
    gradient = compatibility.matrix.grad
    assert gradient is not None
    assert torch.equal(gradient, torch.tensor([0.0, 1.0]).view(2, 1, 1).expand(2, 3, 3))


@pytest.mark.parametrize("prior", ["mlp", "cheby"])
def test_the_main_stage_starts_from_the_trained_prior(build, prior):
    built = build("cpgnn", prior=prior, prior_epochs=7, prior_patience=3)
    before = STAGES["prior"](built.task, {})
    assert (before.name, before.epochs, before.patience) == ("prior", 7, 3)
    stage, trained = main_from(built.task)
    assert (stage.epochs, stage.patience) == (300, 100)
    assert all(value.requires_grad for value in stage.model.parameters())
    load_parameters(stage.model, stage.initial)
    load_parameters(before.model, trained)
    with torch.no_grad():
        found = stage.model.prior(stage.inputs).logits
        assert torch.equal(found, before.model(before.inputs).logits)


def test_compatibilities_have_a_weight_decay_of_their_own(build):
    stage = build("cpgnn", lr=0.02, weight_decay=0.1, compatibility_weight_decay=0.003).stage
    assert stage.own_rates == {"compatibility.": Rates([0.02, 0.02], [0.003, 0.003])}
    assert stage.weight_decay == [0.1, 0.1]
    assert build("cpgnn").stage.own_rates["compatibility."].weight_decay == [0.0, 0.0]


def test_it_learns_from_a_chebnet_and_a_replica_alone_is_the_one_among_others(small_graph):
    values = {"prior": "cheby", "hidden_dim": 8, "prior_epochs": 30, "epochs": 30, "lr": 0.05}
    settings = make_settings(CPGNNSettings, values | {"dropout": 0.0, "rounds": 2})
    split = small_graph.split(0)

    def fitted(seeds):
        replicas = [Replica(0, seed, settings) for seed in seeds]
        task = make_task(small_graph, replicas, [(split.train, split.val)] * len(seeds), "cpu")
        state = train(task, MODELS["cpgnn"])
        return logits(task, MODELS["cpgnn"], state.done)

    together = fitted((0, 1, 2))
    torch.testing.assert_close(fitted((1,))[0], together[1], rtol=1e-4, atol=1e-5)
    hits = together.argmax(dim=-1).numpy() == small_graph.y
    assert hits[:, split.train].all()
