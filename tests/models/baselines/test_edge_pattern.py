"""Learned edge weights against dense matrices, and their gradients against differences."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.sparse import SparseMatrix
from hpgmn.models.baselines.edge_pattern import EdgePattern

REPLICAS, NODES, EDGES, WIDTH = 3, 9, 24, 4


def matrix(*, empty=False):
    """9 nodes; row 2 and column 5 are empty, node 7 has a loop, most edges are one-way."""
    random = np.random.default_rng(2)
    dense = random.random((NODES, NODES)) * (random.random((NODES, NODES)) < 0.35)
    dense[7, 7] = 0.5
    dense[2] = 0
    dense[:, 5] = 0
    result = sp.csr_array((np.zeros_like(dense) if empty else dense).astype(np.float32))
    assert result.nnz == (0 if empty else EDGES)
    return result


def dense_of(values):
    """(R, E) values at their places: (R, N, N)."""
    rows, columns = torch.from_numpy(matrix().toarray()).nonzero().T
    return values.new_zeros(values.shape[0], NODES, NODES).index_put(
        (torch.arange(values.shape[0])[:, None], rows, columns), values
    )


def at_places(dense):
    """(R, N, N) read at the edges: (R, E)."""
    rows, columns = torch.from_numpy(matrix().toarray()).nonzero().T
    return dense[:, rows, columns]


def drawn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


@pytest.fixture(params=[2**26, 2 * EDGES, 1], ids=["together", "two and one", "one by one"])
def edges(request):
    """The edges, with the replicas taken together in several ways."""
    return EdgePattern(matrix(), most_entries=request.param)


def test_weights_are_the_matrix_s_own(edges):
    assert torch.equal(dense_of(edges.weights[None])[0], torch.from_numpy(matrix().toarray()))


def test_softmax_is_the_dense_softmax_of_each_row(edges):
    scores = drawn(REPLICAS, EDGES) * 5
    scores[1] += 500  # far outside what exp can take
    scores[2, :4] -= 500
    found = edges.softmax(scores)
    outside = dense_of(torch.ones_like(scores)) == 0
    expected = dense_of(scores).masked_fill(outside, -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(found, at_places(expected))
    sums = dense_of(found).sum(dim=-1)
    assert (sums[:, 2] == 0).all()
    torch.testing.assert_close(sums[:, [0, 1, *range(3, 9)]], torch.ones(REPLICAS, 8))


def test_propagation_is_the_dense_product(edges):
    values, hidden = drawn(REPLICAS, EDGES), drawn(REPLICAS, NODES, WIDTH)
    found = edges.propagate(values, hidden)
    torch.testing.assert_close(found, dense_of(values) @ hidden)
    assert (found[:, 2] == 0).all()


def test_products_are_those_of_the_dense_matrix(edges):
    left, right = drawn(REPLICAS, NODES, WIDTH), drawn(REPLICAS, NODES, WIDTH) * 2 + 1
    torch.testing.assert_close(edges.products(left, right), at_places(left @ right.transpose(1, 2)))


def test_gradients_are_those_of_differences(edges):
    double = torch.float64
    values = drawn(REPLICAS, EDGES, dtype=double).requires_grad_()
    hidden = drawn(REPLICAS, NODES, 2, dtype=double).requires_grad_()
    other = drawn(REPLICAS, NODES, 2, dtype=double).mul(2).detach().requires_grad_()
    assert torch.autograd.gradcheck(edges.softmax, (values,))
    assert torch.autograd.gradcheck(edges.propagate, (values, hidden))
    assert torch.autograd.gradcheck(edges.products, (hidden, other))


def test_gradients_are_those_of_the_dense_attention(edges):
    queries, keys, hidden = (
        (drawn(REPLICAS, NODES, WIDTH) * scale).requires_grad_() for scale in (1.0, 0.5, 2.0)
    )
    wanted = drawn(REPLICAS, NODES, WIDTH)

    weights = edges.softmax(edges.products(queries, keys) * edges.weights)
    loss = (edges.propagate(weights, hidden) * wanted).sum()
    found = torch.autograd.grad(loss, (queries, keys, hidden))

    weight = torch.from_numpy(matrix().toarray())
    scores = (queries @ keys.transpose(1, 2) * weight).masked_fill(weight == 0, -torch.inf)
    scores = scores.index_fill(1, torch.tensor([2]), 0.0)
    attention = scores.softmax(dim=-1).index_fill(1, torch.tensor([2]), 0.0)
    dense_loss = (attention @ hidden * wanted).sum()
    expected = torch.autograd.grad(dense_loss, (queries, keys, hidden))
    torch.testing.assert_close(loss, dense_loss)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trained", [0, 1])
def test_only_what_is_trained_gets_a_gradient(edges, trained):
    for function, given in (
        (edges.propagate, [drawn(REPLICAS, EDGES), drawn(REPLICAS, NODES, WIDTH)]),
        (edges.products, [drawn(REPLICAS, NODES, WIDTH), drawn(REPLICAS, NODES, WIDTH)]),
    ):
        both = [tensor.clone().requires_grad_() for tensor in given]
        expected = torch.autograd.grad(function(*both).square().sum(), both)
        given[trained].requires_grad_()
        function(*given).square().sum().backward()
        torch.testing.assert_close(given[trained].grad, expected[trained])
        assert given[1 - trained].grad is None


def test_arrays_that_are_views_are_read_right(edges):
    values = drawn(EDGES, REPLICAS).T
    hidden = drawn(NODES, REPLICAS, WIDTH).transpose(0, 1).requires_grad_()
    found = edges.propagate(values, hidden)
    torch.testing.assert_close(found, dense_of(values) @ hidden)
    (gradient,) = torch.autograd.grad(found.sum(), hidden)  # an expanded gradient
    ones = torch.ones(REPLICAS, NODES, WIDTH)
    torch.testing.assert_close(gradient, dense_of(values).transpose(1, 2) @ ones)
    products = edges.products(hidden, hidden)
    torch.testing.assert_close(products, at_places(hidden @ hidden.transpose(1, 2)))
    torch.testing.assert_close(edges.softmax(values), edges.softmax(values.contiguous()))


def test_a_replica_alone_is_the_one_among_others():
    edges = EdgePattern(matrix())
    values, hidden = drawn(REPLICAS, EDGES), drawn(REPLICAS, NODES, WIDTH)
    for replica in range(REPLICAS):
        own, x = values[replica, None], hidden[replica, None]
        assert torch.equal(edges.softmax(own)[0], edges.softmax(values)[replica])
        assert torch.equal(edges.propagate(own, x)[0], edges.propagate(values, hidden)[replica])
        assert torch.equal(edges.products(x, x)[0], edges.products(hidden, hidden)[replica])


def test_equal_values_are_one_sparse_matrix():
    edges, hidden = EdgePattern(matrix()), drawn(REPLICAS, NODES, WIDTH)
    whole = SparseMatrix(matrix())
    found = edges.propagate(edges.weights.expand(REPLICAS, -1), hidden)
    for one, x in zip(found, hidden, strict=True):
        torch.testing.assert_close(one, whole @ x)


def test_no_edges_at_all_give_zeros_and_zero_gradients():
    edges = EdgePattern(matrix(empty=True))
    hidden = drawn(REPLICAS, NODES, WIDTH).requires_grad_()
    scores = edges.products(hidden, hidden)
    assert scores.shape == (REPLICAS, 0)
    found = edges.propagate(edges.softmax(scores), hidden)
    assert torch.equal(found, torch.zeros(REPLICAS, NODES, WIDTH))
    (gradient,) = torch.autograd.grad(found.sum(), hidden)
    assert torch.equal(gradient, torch.zeros(REPLICAS, NODES, WIDTH))
