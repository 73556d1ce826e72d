"""BM-GCN against its formulas on dense matrices, written out class by class and node by node."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.randomness import Noise
from hpgmn.base.sparse import SparseMatrix
from hpgmn.models import MODELS
from hpgmn.models.baselines.bmgcn import block_matrix
from hpgmn.models.hpgmn import estimator_logits
from hpgmn.models.stage import load_parameters

Weights = dict[str, Tensor]


def weights_of(built, replica):
    """One replica's parameters by name, each a leaf that takes a gradient."""
    return {
        name: built.parameter(name, replica).clone().requires_grad_()
        for name, _ in built.stage.model.named_parameters()
    }


def dense_guesses(weights, x):
    first, second = "estimator.encode.first", "estimator.encode.rest.layers.0"
    hidden = (x @ weights[f"{first}.weight"] + weights[f"{first}.bias"]).relu()
    return hidden @ weights[f"{second}.weight"] + weights[f"{second}.bias"]


def dense_blocks(adjacency, labels):
    """H: of the weight that leaves class c, the share that arrives in class d."""
    classes = labels.shape[1]
    rows = []
    for c in range(classes):
        leaving = (labels[:, c, None] * adjacency).sum()
        shares = [
            (labels[:, c, None] * adjacency * labels[:, d]).sum() / leaving for d in range(classes)
        ]
        rows.append(torch.stack(shares))
    return torch.stack(rows)


def dense_attention(adjacency, chances, labels, diagonal):
    """Ã, with zeros in the row of a node without edges."""
    blocks = dense_blocks(adjacency, labels)
    factor = torch.ones_like(blocks).fill_diagonal_(diagonal)
    alike = blocks @ blocks.T * factor
    alike = alike / alike.sum(dim=1, keepdim=True)
    scores = chances @ alike @ chances.T * adjacency
    rows = []
    for node, row in enumerate(scores):
        there = adjacency[node] > 0
        shares = row.masked_fill(~there, -torch.inf).softmax(dim=0) if there.any() else row * 0
        rows.append(shares)
    return torch.stack(rows)


def dense_logits(
    built, weights, *, neighbors="undirected", self_loop=0.0, diagonal_weight=1.0, layers=3
):
    adjacency = built.adjacency(neighbors) + self_loop * torch.eye(23)
    chances = dense_guesses(weights, built.x).softmax(dim=1)
    split, y = built.task.graph.split(0), built.task.graph.y
    labels = torch.stack([torch.eye(4)[y[v]] if split.train[v] else chances[v] for v in range(23)])
    attention = dense_attention(adjacency, chances, labels, diagonal_weight)
    hidden = built.x
    for number in range(layers):
        own, sent, bias = (
            weights[f"convolve.{number}.{part}"] for part in ("own", "neighbors", "bias")
        )
        hidden = hidden.relu() if number else hidden
        hidden = attention @ hidden @ sent + hidden @ own + bias
    return hidden


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layers": 1},
        {"layers": 2, "self_loop": 1.5},
        {"diagonal_weight": 3.0},
        {"diagonal_weight": 0.0, "self_loop": 0.5},
        {"neighbors": "out"},
        {"neighbors": "in", "self_loop": 2.0, "diagonal_weight": 0.8},
    ],
)
def test_it_is_the_formula(build, settings):
    built = build("bmgcn", **settings)
    for replica, found in enumerate(built.logits):
        with torch.no_grad():
            expected = dense_logits(built, weights_of(built, replica), **settings)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("self_loop", [0.0, 1.5])
def test_gradients_flow_through_the_edge_weights_as_in_the_formula(build, self_loop):
    built = build("bmgcn", self_loop=self_loop, diagonal_weight=2.0)
    factor = torch.linspace(-1, 1, 23 * 4).view(23, 4)
    (built.stage.model(built.stage.inputs).logits * factor).sum().backward()
    found = dict(built.stage.model.named_parameters())
    for replica in range(2):
        weights = weights_of(built, replica)
        expected = dense_logits(built, weights, self_loop=self_loop, diagonal_weight=2.0)
        (expected * factor).sum().backward()
        for name, weight in weights.items():
            gradient = found[name].grad
            assert gradient is not None
            assert gradient[replica].any(), name
            torch.testing.assert_close(gradient[replica], weight.grad, rtol=1e-3, atol=1e-4)


def test_blocks_of_hard_labels_count_edges_and_an_empty_class_has_zeros():
    edges = [(0, 1), (0, 2), (1, 2), (2, 3)]
    dense = torch.zeros(5, 5)
    for center, neighbor in edges:
        dense[center, neighbor] = 1.0
    labels = torch.eye(4)[torch.tensor([[0, 0, 1, 1, 2], [0, 1, 2, 3, 3]])]
    adjacency = SparseMatrix(sp.csr_array(dense.numpy()))
    found = block_matrix(adjacency, dense.sum(dim=1, keepdim=True), labels)
    expected = torch.zeros(2, 4, 4)
    expected[0, 0, 0] = 1 / 3
    expected[0, 0, 1] = 2 / 3
    expected[0, 1, 1] = 1.0
    expected[1, 0, 1] = expected[1, 0, 2] = 0.5
    expected[1, 1, 2] = expected[1, 2, 3] = 1.0
    torch.testing.assert_close(found, expected)


def test_a_node_without_edges_hears_from_itself_alone(build):
    built = build("bmgcn", layers=1)
    alone = built.task.graph.isolated_nodes
    assert len(alone) >= 3
    for replica, found in enumerate(built.logits):
        own, bias = (built.parameter(f"convolve.0.{part}", replica) for part in ("own", "bias"))
        torch.testing.assert_close(found[alone], built.x[alone] @ own + bias)


def test_the_penalty_is_the_estimator_s_own_loss_on_train_nodes(build):
    built = build("bmgcn", estimator_weight=0.3)
    model, inputs = built.stage.model, built.stage.inputs
    assert built.stage.penalty_weights == {"estimator": [0.3, 0.3]}
    assert model(inputs).penalties == {}
    found = model(inputs, penalties=True).penalties["estimator"]
    split, y = built.task.graph.split(0), built.task.graph.y
    for replica in range(2):
        guesses = dense_guesses(weights_of(built, replica), built.x).log_softmax(dim=1)
        losses = [-guesses[v, y[v]] for v in np.flatnonzero(split.train)]
        torch.testing.assert_close(found[replica], torch.stack(losses).mean())


def test_the_main_stage_starts_from_the_trained_estimator(build):
    built = build("bmgcn")
    before = MODELS["bmgcn"].stages["estimator"](built.task, {})
    assert before.name == "estimator"
    trained = {
        name: torch.full_like(value, 0.1).cumsum(dim=-1)
        for name, value in before.model.named_parameters()
    }
    stage = MODELS["bmgcn"].stages["main"](built.task, {"estimator": trained})
    assert all(value.requires_grad for value in stage.model.parameters())
    load_parameters(stage.model, stage.initial)
    with torch.no_grad():
        found = stage.model.estimator(stage.inputs).logits
    assert torch.equal(found, estimator_logits(built.task, trained))


@pytest.mark.parametrize("name", ["dropout", "attributes_dropout", "estimator_dropout"])
def test_training_drops_columns_and_entries(build, name):
    off = {"dropout": 0.0, "attributes_dropout": 0.0, "estimator_dropout": 0.0}
    whole = build("bmgcn", **off)
    noise = Noise(whole.task.keys("main"), 1)
    assert torch.equal(whole.stage.model(whole.stage.inputs, noise).logits, whole.logits)
    built = build("bmgcn", **(off | {name: 0.5}))
    noisy = built.stage.model(built.stage.inputs, noise).logits
    linked = np.setdiff1d(np.arange(23), built.task.graph.isolated_nodes)
    assert (noisy != whole.logits).any(dim=-1)[:, linked].all()
    assert torch.equal(built.logits, whole.logits)


def test_a_graph_without_train_labels_is_predicted_too(build):
    built = build("bmgcn")
    unknown = replace(built.task, train_labels=np.full((2, 23), -1))
    stage = MODELS["bmgcn"].stages["main"](unknown, {"estimator": {}})
    load_parameters(stage.model, dict(built.stage.model.named_parameters()))
    with torch.no_grad():
        found = stage.model(stage.inputs).logits
    assert found.isfinite().all()
    assert not torch.equal(found, built.logits)
