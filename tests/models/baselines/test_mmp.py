"""MMP against the definition with dense matrices, and its penalty by hand."""

import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import GCNConv

from hpgmn.base.randomness import Noise, column_factors, dropout
from hpgmn.models.baselines.mmp import cosine


def normalised(matrix, normalization):
    rows, columns = (
        torch.where(total > 0, 1 / total.clamp(min=1e-9), 0.0)
        for total in (matrix.sum(dim=1), matrix.sum(dim=0))
    )
    if normalization == "row":
        return rows[:, None] * matrix
    return rows.sqrt()[:, None] * matrix * columns.sqrt()


def reference(
    built, replica, normal, *, layers=2, keep_gate=True, x=None, dropped=lambda both, number: both
):
    """Logits, and state and memory after each layer."""

    def affine(name, values):
        return values @ built.parameter(f"{name}.weight", replica) + built.parameter(
            f"{name}.bias", replica
        )

    state = affine("encode", built.x if x is None else x).relu()
    memory, seen = state, []
    for number in range(layers):
        message = affine(f"convolve.{number}", normal @ memory)
        gates = torch.sigmoid(affine("gate", dropped(torch.cat([state, message], 1), number)))
        if keep_gate:
            memory = gates[:, 2:3] * state + gates[:, 3:4] * message
        else:
            memory = gates[:, 2:3] * message
        state = gates[:, 0:1] * state + gates[:, 1:2] * message
        seen.append((state, memory))
    return affine("classify", state), seen


@pytest.mark.parametrize("keep_gate", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_the_definition(build, layers, keep_gate):
    built = build("mmp", layers=layers, keep_gate=keep_gate)
    assert built.parameter("gate.weight", 0).shape == (12, 4 if keep_gate else 3)
    normal = normalised(built.adjacency(), "symmetric")
    for replica, found in enumerate(built.logits):
        expected, _ = reference(built, replica, normal, layers=layers, keep_gate=keep_gate)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
@pytest.mark.parametrize("normalization", ["symmetric", "row"])
@pytest.mark.parametrize("self_loop", [0.0, 1.0, 2.5])
def test_messages_follow_the_edges_as_set(build, neighbors, normalization, self_loop):
    built = build("mmp", neighbors=neighbors, normalization=normalization, self_loop=self_loop)
    normal = normalised(built.adjacency(neighbors) + self_loop * torch.eye(23), normalization)
    for replica, found in enumerate(built.logits):
        expected, _ = reference(built, replica, normal)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("self_loop", [False, True])
def test_messages_are_those_of_pygs_convolution(build, self_loop):
    built = build("mmp", self_loop=float(self_loop))
    memory = torch.randn(2, 23, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = built.stage.model.convolve[1](built.stage.inputs["propagation"], memory)
        for replica in range(2):
            convolution = GCNConv(6, 6, add_self_loops=self_loop)
            convolution.lin.weight.copy_(built.parameter("convolve.1.weight", replica).T)
            convolution.bias.copy_(built.parameter("convolve.1.bias", replica)[0])
            expected = convolution(memory[replica], built.edge_index)
            torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


def test_dropout_is_on_columns_and_on_what_the_gates_read(build):
    built = build("mmp", dropout=0.4, attributes_dropout=0.3)
    model, noise = built.stage.model, Noise(built.task.keys("main"), 2)
    factors = column_factors(7, model.input_rate, noise, "encode.columns")
    assert factors is not None
    masks = [dropout(torch.ones(2, 23, 12), model.drop_rate, noise, f"gate.{i}") for i in range(2)]
    assert not torch.equal(masks[0], masks[1])
    found = model(built.stage.inputs, noise).logits
    normal = normalised(built.adjacency(), "symmetric")
    for replica in range(2):
        own = [mask[replica] for mask in masks]
        expected, _ = reference(
            built,
            replica,
            normal,
            x=built.x * factors[replica],
            dropped=lambda both, number, own=own: both * own[number],
        )
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep_gate", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_penalty_is_the_mean_over_layers_of_the_mean_cosine(build, layers, keep_gate):
    built = build("mmp", layers=layers, keep_gate=keep_gate)
    found = built.stage.model(built.stage.inputs, penalties=True).penalties["cosine"]
    normal = normalised(built.adjacency(), "symmetric")
    for replica in range(2):
        _, seen = reference(built, replica, normal, layers=layers, keep_gate=keep_gate)
        each = [functional.cosine_similarity(*pair, dim=-1).mean().abs() for pair in seen]
        torch.testing.assert_close(found[replica], sum(each) / layers, rtol=1e-4, atol=1e-5)


def test_the_penalty_is_over_all_nodes_whichever_are_requested(build):
    built = build("mmp")
    model, inputs = built.stage.model, built.stage.inputs
    nodes = torch.tensor([[3, 1], [0, 5]])
    some, every = model(inputs, None, nodes, penalties=True), model(inputs, penalties=True)
    assert some.logits.shape == (2, 2, 4)
    assert torch.equal(some.penalties["cosine"], every.penalties["cosine"])
    assert not model(inputs).penalties


def test_the_penalty_weighs_what_the_settings_say(build):
    assert build("mmp", cosine_weight=0.2).stage.penalty_weights == {"cosine": [0.2, 0.2]}
    assert build("mmp").stage.penalty_weights == {"cosine": [0.0, 0.0]}


def test_the_cosine_is_torchs_and_has_its_gradient():
    pairs = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = torch.arange(15.0).view(3, 5)
    gradients = []
    for function in (cosine, lambda one, other: functional.cosine_similarity(one, other, dim=-1)):
        found = function(*pairs)
        gradients.append(torch.autograd.grad((found * weights).sum(), pairs)[0])
        torch.testing.assert_close(found, functional.cosine_similarity(*pairs, dim=-1))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_a_zero_row_has_no_cosine_and_no_gradient():
    one = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    other = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]], requires_grad=True)
    found = cosine(one, other)
    assert not found.any()
    for gradient in torch.autograd.grad(found.sum(), (one, other)):
        assert not gradient.any()


def test_the_penalty_draws_state_and_memory_apart(build):
    built = build("mmp", dropout=0.0, attributes_dropout=0.0)
    model = built.stage.model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    values = []
    for _ in range(60):
        optimizer.zero_grad()
        penalty = model(built.stage.inputs, penalties=True).penalties["cosine"]
        penalty.sum().backward()
        optimizer.step()
        values.append(penalty.detach())
    assert (values[-1] < 0.2 * values[0]).all()
