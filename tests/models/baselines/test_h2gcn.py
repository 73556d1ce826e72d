"""H2GCN against the definition with dense matrices, dropout on and off, and its gradients."""

import numpy as np
import pytest
import torch
from torch_geometric.utils import to_dense_adj

from hpgmn.base.randomness import dropout
from hpgmn.graph import Graph
from hpgmn.models import MODELS


def hop_matrices(matrix):
    """One-hop and strict two-hop neighbours, each D^-½·A·D^-½."""
    num_nodes = matrix.shape[0]
    two = torch.zeros_like(matrix)
    for center in range(num_nodes):
        near = set(matrix[center].nonzero().flatten().tolist())
        far = {node for middle in near for node in matrix[middle].nonzero().flatten().tolist()}
        for node in far - near - {center}:
            two[center, node] = 1
    return [normalise(matrix), normalise(two)]


def normalise(matrix):
    rows, columns = (
        torch.where(total > 0, total.clamp(min=1e-9).rsqrt(), 0.0)
        for total in (matrix.sum(dim=1), matrix.sum(dim=0))
    )
    return rows[:, None] * matrix * columns


def joined(hidden, hops, rounds):
    states = [hidden]
    for _ in range(rounds):
        states.append(torch.cat([hop @ states[-1] for hop in hops], dim=-1))
    return torch.cat(states, dim=-1)


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize(("neighbors", "rounds"), [("out", 1), ("in", 2), ("undirected", 2)])
def test_logits_and_gradients_are_those_of_the_definition(build, neighbors, rounds, rate):
    built = build("h2gcn", neighbors=neighbors, rounds=rounds, dropout=rate, attributes_dropout=0.3)
    model = built.stage.model
    hops = hop_matrices(built.adjacency(neighbors))
    assert hops[1].any()
    own = {
        name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()
    }

    def logits(columns, noise):
        hidden = (built.x * columns) @ own["encode.weight"] + own["encode.bias"]
        states = joined(hidden.relu(), hops, rounds)
        assert states.shape == (2, 23, {1: 18, 2: 42}[rounds])
        states = dropout(states, model.drop_rate, noise, "classify")
        return states @ own["classify.weight"] + own["classify.bias"]

    torch.testing.assert_close(built.logits, logits(1.0, None).detach(), rtol=1e-4, atol=1e-5)
    found = built.training_logits
    columns = built.dropout("encode.columns", (7,), 0.3)[:, None]
    expected = logits(columns, built.noise)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    target = torch.randn(2, 23, 4, generator=torch.Generator().manual_seed(0))
    (found * target).sum().backward()
    (expected * target).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, own[name].grad, rtol=1e-4, atol=1e-5)


def test_the_hops_of_an_undirected_path_are_known(build):
    """0 - 1 - 2 - 3: only 0 and 2, and 1 and 3, are two steps apart."""
    mask = np.eye(4, dtype=bool)
    graph = Graph(
        np.eye(4),
        [[0, 1, 2], [1, 2, 3]],
        [0, 1, 0, 1],
        directed=False,
        train_mask=mask[0] | mask[1],
        val_mask=mask[2],
        test_mask=mask[3],
    )
    one, two = build("h2gcn", graph).stage.inputs["hops"]
    half = 0.5**0.5
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    weights = torch.tensor([half, half, 0.5, 0.5, half, half])
    torch.testing.assert_close(one.csr.to_dense(), to_dense_adj(edges, edge_attr=weights)[0])
    pairs = torch.tensor([[0, 2, 1, 3], [2, 0, 3, 1]])
    assert torch.equal(two.csr.to_dense(), to_dense_adj(pairs)[0])


def test_the_hops_are_built_once(build):
    task = build("h2gcn").task
    stages = [MODELS["h2gcn"].stages["main"](part, {}) for part in (task, task.subset([1]))]
    for one, other in zip(*(stage.inputs["hops"] for stage in stages), strict=True):
        assert one is other
