"""MMP against the definition with dense matrices, and its penalty by hand."""

import pytest
import torch
from torch.nn import functional

from hpgmn.models.baselines.mmp import cosine


def normalised(matrix, normalization):
    rows, columns = (
        torch.where(total > 0, 1 / total.clamp(min=1e-9), 0.0)
        for total in (matrix.sum(dim=1), matrix.sum(dim=0))
    )
    if normalization == "row":
        return rows[:, None] * matrix
    return rows.sqrt()[:, None] * matrix * columns.sqrt()


def reference(built, replica, normal, *, layers=2, keep_gate=True, columns=1.0, kept=None):
    """Logits, and state and memory after each layer."""
    state = built.affine("encode", built.x * columns, replica).relu()
    memory, seen = state, []
    for number in range(layers):
        message = built.affine(f"convolve.{number}", normal @ memory, replica)
        both = torch.cat([state, message], dim=1) * (1.0 if kept is None else kept[number])
        gates = torch.sigmoid(built.affine("gate", both, replica))
        if keep_gate:
            memory = gates[:, 2:3] * state + gates[:, 3:4] * message
        else:
            memory = gates[:, 2:3] * message
        state = gates[:, 0:1] * state + gates[:, 1:2] * message
        seen.append((state, memory))
    return built.affine("classify", state, replica), seen


@pytest.mark.parametrize(
    ("layers", "keep_gate", "neighbors", "normalization", "self_loop"),
    [
        (1, True, "undirected", "symmetric", 0.0),
        (2, False, "out", "row", 0.0),
        (3, True, "in", "symmetric", 2.5),
        (2, True, "undirected", "row", 1.0),
    ],
)
def test_training_is_the_definition_with_dropout(
    build, layers, keep_gate, neighbors, normalization, self_loop
):
    edges = {"neighbors": neighbors, "normalization": normalization, "self_loop": self_loop}
    rates = {"dropout": 0.4, "attributes_dropout": 0.3}
    built = build("mmp", layers=layers, keep_gate=keep_gate, **edges, **rates)
    assert built.parameter("gate.weight", 0).shape == (12, 4 if keep_gate else 3)
    matrix = normalised(built.adjacency(neighbors) + self_loop * torch.eye(23), normalization)
    columns = built.dropout("encode.columns", (7,), 0.3)
    kept = torch.stack([built.dropout(f"gate.{n}", (23, 12), 0.4) for n in range(layers)], dim=1)
    shape = {"layers": layers, "keep_gate": keep_gate}
    built.assert_logits(lambda replica: reference(built, replica, matrix, **shape)[0])
    built.assert_logits(
        lambda replica: reference(
            built, replica, matrix, columns=columns[replica], kept=kept[replica], **shape
        )[0],
        built.training_logits,
    )


@pytest.mark.parametrize("keep_gate", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_penalty_is_the_mean_over_layers_of_the_mean_cosine(build, layers, keep_gate):
    built = build("mmp", layers=layers, keep_gate=keep_gate, cosine_weight=0.2)
    assert built.stage.penalty_weights == {"cosine": [0.2, 0.2]}
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
