"""The sketch S·Ω against dense products, and Ω as a function of names."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.randomness import signs
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.statistics import sketch as module
from hpgmn.statistics.diffusion import coefficients, series, transition
from hpgmn.statistics.sketch import node_keys, sketch, sketch_attributes

NORMALIZATIONS = ("column", "row", "symmetric")


@st.composite
def graphs(draw):
    """Graphs with or without edges, repeats, self-loops, directions, weights and names."""
    num_nodes = draw(st.integers(1, 8))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=16))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    return Graph(
        np.ones((num_nodes, 1)),
        np.array(edges, np.int64).reshape(-1, 2).T,
        edge_weight=random.uniform(0.2, 3, len(edges)) if draw(st.booleans()) else None,
        directed=draw(st.booleans()),
        node_ids=[f"node {v}" for v in range(num_nodes)] if draw(st.booleans()) else None,
    )


def random_graph(num_nodes, **more):
    """Directed; every seventh node leads nowhere."""
    random = np.random.default_rng(0)
    source = random.choice([v for v in range(num_nodes) if v % 7], 4 * num_nodes)
    target = random.integers(0, num_nodes, 4 * num_nodes)
    return Graph(np.ones((num_nodes, 1)), np.stack([source, target]), **more)


def directions(graph, dim):
    """Ω in float64."""
    return signs(node_keys(graph), 0, dim).numpy().astype(np.float64) / np.sqrt(dim)


def dense_diffusion(matrix, theta):
    found: np.ndarray = series(matrix.toarray().astype(np.float64), np.eye(matrix.shape[0]), theta)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("unit_length", [False, True])
@pytest.mark.parametrize("self_entry", [False, True])
@given(
    graph=graphs(),
    normalization=st.sampled_from(NORMALIZATIONS),
    kind=st.sampled_from(["ppr", "heat"]),
    self_loop=st.integers(0, 1),
    dim=st.sampled_from([16, 40, 100]),
)
def test_the_sketch_is_the_product_with_the_directions(
    self_entry, unit_length, graph, normalization, kind, self_loop, dim
):
    matrix = transition(graph.adjacency("out"), normalization, self_loop)
    theta, omega = coefficients(kind), directions(graph, dim)
    expected = dense_diffusion(matrix, theta)
    if not self_entry:
        np.fill_diagonal(expected, 0)
    expected = expected @ omega
    if not self_entry:
        for node, row in enumerate(expected):
            row -= omega[node] * (omega[node] @ row)
    if unit_length:
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        expected = np.divide(expected, lengths, out=np.zeros_like(expected), where=lengths > 1e-12)
    found = sketch(
        SparseMatrix(matrix),
        theta,
        node_keys(graph),
        dim,
        self_entry=self_entry,
        unit_length=unit_length,
    )
    assert (found.dtype, found.shape) == (torch.float32, (graph.num_nodes, dim))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("self_loop", [0, 1])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_node_that_leads_nowhere_has_a_zero_row_without_its_self_entry(normalization, self_loop):
    """Exactly zero: scaled to unit length, the smallest rounding would become a row of noise."""
    graph = random_graph(60)
    matrix = SparseMatrix(transition(graph.adjacency("out"), normalization, self_loop))
    found = sketch(
        matrix, coefficients("ppr"), node_keys(graph), 32, self_entry=False, unit_length=True
    )
    assert not found[::7].any()
    lengths = torch.linalg.vector_norm(found[1::7], dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("self_entry", [False, True])
@pytest.mark.parametrize("block", [1, 7, 64, 100])
def test_the_size_of_blocks_does_not_matter(monkeypatch, block, self_entry):
    graph = random_graph(50)
    matrix = SparseMatrix(transition(graph.adjacency("out"), "column"))
    arguments = (matrix, coefficients("ppr"), node_keys(graph), 90)
    whole = sketch(*arguments, self_entry=self_entry)
    monkeypatch.setattr(module, "BLOCK", block)
    torch.testing.assert_close(sketch(*arguments, self_entry=self_entry), whole)


def test_inner_products_come_nearer_with_the_columns():
    """The error of one inner product is that of a mean over d columns: it halves with four d."""
    graph = random_graph(400)
    matrix = transition(graph.adjacency("out"), "column")
    theta = coefficients("ppr")
    exact = dense_diffusion(matrix, theta)
    gram = exact @ exact.T
    errors = []
    for dim in (32, 128, 512):
        found = sketch(SparseMatrix(matrix), theta, node_keys(graph), dim).numpy()
        errors.append(np.linalg.norm(found @ found.T - gram) / np.linalg.norm(gram))
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.2)
    assert errors[2] == pytest.approx(errors[1] / 2, rel=0.2)


def test_without_self_entries_inner_products_are_those_of_the_rest():
    graph = random_graph(400)
    matrix = transition(graph.adjacency("out"), "column")
    theta = coefficients("ppr")
    rest = dense_diffusion(matrix, theta)
    np.fill_diagonal(rest, 0)
    gram = rest @ rest.T
    exact = rest @ directions(graph, 256)
    found = sketch(SparseMatrix(matrix), theta, node_keys(graph), 256, self_entry=False).numpy()
    errors = [
        np.linalg.norm(each @ each.T - gram) / np.linalg.norm(gram) for each in (exact, found)
    ]
    assert errors[1] < 1.1 * errors[0]


# Directions belong to names.


def test_nodes_of_one_name_have_one_direction_in_every_graph():
    names = ["b", "a", "a long name", "c"]
    small = Graph(np.ones((2, 1)), np.empty((2, 0)), node_ids=["a", "b"])
    large = Graph(np.ones((4, 1)), np.empty((2, 0)), node_ids=names)
    known, every = (signs(node_keys(graph), 0, 100) for graph in (small, large))
    assert torch.equal(known[0], every[1])
    assert torch.equal(known[1], every[0])
    assert len({tuple(row.tolist()) for row in every}) == 4


def test_a_nameless_node_is_named_by_its_position():
    bare = Graph(np.ones((12, 1)), np.empty((2, 0)))
    named = Graph(np.ones((12, 1)), np.empty((2, 0)), node_ids=list(range(12)))
    assert torch.equal(node_keys(bare), node_keys(named))


def test_added_nodes_leave_the_sketch_of_what_cannot_reach_them():
    graph = random_graph(50, node_ids=[f"n{v}" for v in range(50)])
    edges = np.concatenate([graph.edge_index, [[50, 51, 51], [3, 4, 50]]], axis=1)
    ids = [f"n{v}" for v in range(50)] + ["a new node", "another"]
    larger = Graph(np.ones((52, 1)), edges, node_ids=ids)
    old, new = (
        sketch(
            SparseMatrix(transition(each.adjacency("out"), "row")),
            coefficients("ppr"),
            node_keys(each),
            64,
        )
        for each in (graph, larger)
    )
    torch.testing.assert_close(new[:50], old)
    assert new[50:].any(dim=1).all()


def test_sketched_attributes_are_sums_of_signs():
    x = np.array([[1.0, 0.0, -2.0], [0.0, 0.0, 0.0], [0.5, 3.0, 0.0]], np.float32)
    found = sketch_attributes(x, 70)
    assert found.dtype == np.float32
    unit = sketch_attributes(np.eye(3, dtype=np.float32), 70)
    np.testing.assert_allclose(np.abs(unit), 1 / np.sqrt(70), rtol=1e-6)
    assert len({tuple(row) for row in np.sign(unit)}) == 3
    np.testing.assert_allclose(found, x @ unit, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(sketch_attributes(sp.csr_array(x), 70), found, rtol=1e-6)


def test_an_attribute_keeps_its_signs_among_others():
    """Models are used on other graphs: neither their nodes nor their number may matter."""
    alone, among = (sketch_attributes(np.eye(size, dtype=np.float32), 16) for size in (2, 30))
    np.testing.assert_array_equal(among[:2], alone)
    lengths = np.linalg.norm(sketch_attributes(np.eye(30, dtype=np.float32), 2000), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    inner = sketch_attributes(np.eye(30, dtype=np.float32), 2000)
    np.testing.assert_allclose(inner @ inner.T, np.eye(30), atol=0.1)
