"""Diffusion against dense solves, matrix exponentials and loops in float64."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.graph import Graph
from hpgmn.statistics import diffusion
from hpgmn.statistics.diffusion import (
    DenseDiffusion,
    ImplicitDiffusion,
    coefficients,
    dense_arrays,
    series,
    transition,
)

NORMALIZATIONS = ("column", "row", "symmetric")
normalizations = st.sampled_from(NORMALIZATIONS)
kinds = st.sampled_from(
    [("ppr", {"teleport": 0.15}), ("ppr", {"teleport": 0.5}), ("heat", {"heat_time": 3.0})]
)


@st.composite
def adjacencies(draw):
    """Graphs with or without edges, repeats, self-loops, directions and weights."""
    num_nodes = draw(st.integers(1, 7))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=16))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    graph = Graph(
        np.ones((num_nodes, 1)),
        np.array(edges, np.int64).reshape(-1, 2).T,
        edge_weight=random.uniform(0.2, 3, len(edges)) if draw(st.booleans()) else None,
        directed=draw(st.booleans()),
    )
    return graph.adjacency(draw(st.sampled_from(["out", "in", "undirected"])))


def transition_by_loop(adjacency, normalization, self_loop=0.0):
    weight = adjacency.toarray().astype(np.float64)
    num_nodes = len(weight)
    for node in range(num_nodes):
        weight[node, node] += self_loop
    found = np.zeros_like(weight)
    for row in range(num_nodes):
        for column in range(num_nodes):
            if weight[row, column]:
                row_sum, column_sum = sum(weight[row]), sum(weight[:, column])
                by = {
                    "row": row_sum,
                    "column": column_sum,
                    "symmetric": math.sqrt(row_sum) * math.sqrt(column_sum),
                }[normalization]
                found[row, column] = weight[row, column] / by
    return found


def exact_diffusion(matrix, kind, teleport=0.15, heat_time=3.0):
    identity = np.eye(len(matrix))
    if kind == "ppr":
        found = teleport * np.linalg.inv(identity - (1 - teleport) * matrix)
    else:
        found = scipy.linalg.expm(-heat_time * (identity - matrix))
    return np.where(abs(found) < 1e-12, 0, found)  # what is unreachable is exactly zero


def shaped(rows, self_entry, unit_length):
    rows = rows.copy()
    for node, row in enumerate(rows):
        if not self_entry:
            row[node] = 0
        if unit_length and row.any():
            row /= math.sqrt(sum(row**2))
    return rows


def dense_diffusion(matrix, kind, **choices):
    """The dense form as a whole matrix."""
    statistic = DenseDiffusion(dense_arrays(matrix, kind, **choices))
    return statistic.rows(torch.arange(matrix.shape[0])).numpy()


@given(adjacencies(), normalizations, st.sampled_from([0, 1, 0.5]))
def test_transition_matches_a_loop(adjacency, normalization, self_loop):
    before = adjacency.toarray().copy()
    found = transition(adjacency, normalization, self_loop)
    expected = transition_by_loop(adjacency, normalization, self_loop)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-5)
    np.testing.assert_array_equal(adjacency.toarray(), before)
    assert (found.dtype, found.indices.dtype, found.indptr.dtype) == ("float32", "int32", "int32")
    assert found.has_sorted_indices


@given(adjacencies(), st.sampled_from([0, 1]))
def test_transition_is_stochastic_where_there_is_anything(adjacency, self_loop):
    with_loops = adjacency.toarray() + self_loop * np.eye(adjacency.shape[0])
    columns = transition(adjacency, "column", self_loop).toarray().sum(axis=0)
    np.testing.assert_allclose(columns, with_loops.any(axis=0), rtol=1e-5)
    rows = transition(adjacency, "row", self_loop).toarray().sum(axis=1)
    np.testing.assert_allclose(rows, with_loops.any(axis=1), rtol=1e-5)


@given(adjacencies(), st.sampled_from([0, 1]))
def test_symmetric_transition_does_not_grow(adjacency, self_loop):
    matrix = transition(adjacency, "symmetric", self_loop).toarray().astype(np.float64)
    assert np.linalg.norm(matrix, 2) <= 1 + 1e-6


@given(st.floats(0.01, 0.99), st.sampled_from([0.1, 1e-3, 1e-6, 1e-12]))
def test_ppr_coefficients_are_the_formula_cut_at_the_tolerance(teleport, tolerance):
    theta = coefficients("ppr", teleport=teleport, tolerance=tolerance)
    assert theta == pytest.approx([teleport * (1 - teleport) ** k for k in range(len(theta))])
    rest = (1 - teleport) ** len(theta)
    assert rest <= tolerance * (1 + 1e-9)
    assert sum(theta) == pytest.approx(1 - rest, abs=1e-12)
    if len(theta) > 1:  # and no term more than needed
        assert (1 - teleport) ** (len(theta) - 1) > tolerance * (1 - 1e-9)


@given(st.floats(0.01, 50), st.sampled_from([0.1, 1e-3, 1e-6, 1e-12]))
def test_heat_coefficients_are_the_formula_cut_at_the_tolerance(heat_time, tolerance):
    theta = coefficients("heat", heat_time=heat_time, tolerance=tolerance)
    expected = [
        math.exp(k * math.log(heat_time) - heat_time - math.lgamma(k + 1))
        for k in range(len(theta))
    ]
    assert theta == pytest.approx(expected, rel=1e-9)
    assert 1 - math.fsum(theta) <= tolerance + 1e-14
    if len(theta) > 1:
        assert 1 - math.fsum(theta[:-1]) > tolerance - 1e-14


@given(adjacencies(), normalizations, kinds, st.sampled_from([0.1, 1e-2, 1e-4]))
def test_what_the_series_leaves_out_is_below_the_tolerance(
    adjacency, normalization, kind, tolerance
):
    matrix = transition_by_loop(adjacency, normalization)
    theta = coefficients(kind[0], **kind[1], tolerance=tolerance)
    error = series(matrix, np.eye(len(matrix)), theta) - exact_diffusion(matrix, kind[0], **kind[1])
    norm = {"column": 1, "row": np.inf, "symmetric": 2}[normalization]
    assert np.linalg.norm(error, norm) <= tolerance * (1 + 1e-9)


@given(st.integers(1, 6), st.integers(0, 2**16))
def test_series_is_the_sum_of_powers(terms, seed):
    random = np.random.default_rng(seed)
    matrix, start, theta = random.random((4, 4)), random.random((4, 2)), random.random(terms)
    before = start.copy()
    expected = sum(
        theta[power] * np.linalg.matrix_power(matrix, power) @ start for power in range(terms)
    )
    np.testing.assert_allclose(series(matrix, start, theta), expected)
    np.testing.assert_array_equal(start, before)


@given(adjacencies(), normalizations, kinds, st.sampled_from([0, 1]))
def test_dense_diffusion_matches_the_exact_answer(adjacency, normalization, kind, self_loop):
    found = dense_diffusion(transition(adjacency, normalization, self_loop), kind[0], **kind[1])
    matrix = transition_by_loop(adjacency, normalization, self_loop)
    expected = exact_diffusion(matrix, kind[0], **kind[1])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-6)


def random_adjacency(num_nodes, seed=0):
    """Directed, with nodes that lead nowhere (every seventh)."""
    random = np.random.default_rng(seed)
    source = random.choice([v for v in range(num_nodes) if v % 7], 3 * num_nodes)
    target = random.integers(0, num_nodes, 3 * num_nodes)
    return Graph(np.ones((num_nodes, 1)), np.stack([source, target])).adjacency("out")


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("ppr", {"teleport": 0.01}),
        ("ppr", {"teleport": 0.15}),
        ("ppr", {"teleport": 0.99}),
        ("heat", {"heat_time": 0.1}),
        ("heat", {"heat_time": 20.0}),
    ],
)
def test_both_forms_match_the_exact_answer_on_a_larger_graph(normalization, kind, parameters):
    adjacency = random_adjacency(60)
    matrix = transition(adjacency, normalization)
    exact = exact_diffusion(transition_by_loop(adjacency, normalization), kind, **parameters)
    dense = dense_diffusion(matrix, kind, **parameters)
    np.testing.assert_allclose(dense, exact, atol=5e-6)
    theta = coefficients(kind, **parameters)
    weight = torch.eye(60).unsqueeze(0)
    implicit = ImplicitDiffusion(matrix, theta).times(weight)[0].numpy()
    np.testing.assert_allclose(implicit, exact, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("self_entry", [True, False])
@pytest.mark.parametrize("unit_length", [True, False])
@given(
    adjacency=adjacencies(), normalization=normalizations, kind=kinds, self_loop=st.integers(0, 1)
)
def test_implicit_diffusion_acts_like_the_exact_matrix(
    assert_acts_like, self_entry, unit_length, adjacency, normalization, kind, self_loop
):
    found = ImplicitDiffusion(
        transition(adjacency, normalization, self_loop),
        coefficients(kind[0], **kind[1], tolerance=1e-7),
        self_entry=self_entry,
        unit_length=unit_length,
    )
    matrix = transition_by_loop(adjacency, normalization, self_loop)
    expected = shaped(exact_diffusion(matrix, kind[0], **kind[1]), self_entry, unit_length)
    assert_acts_like(found, np.stack([expected] * 2), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("self_entry", [True, False])
@pytest.mark.parametrize("unit_length", [True, False])
@given(
    adjacency=adjacencies(), normalization=normalizations, kind=kinds, self_loop=st.integers(0, 1)
)
def test_dense_diffusion_acts_like_the_exact_matrix(
    assert_acts_like, self_entry, unit_length, adjacency, normalization, kind, self_loop
):
    arrays = dense_arrays(
        transition(adjacency, normalization, self_loop),
        kind[0],
        self_entry=self_entry,
        unit_length=unit_length,
        **kind[1],
    )
    found = DenseDiffusion(arrays)
    matrix = transition_by_loop(adjacency, normalization, self_loop)
    expected = shaped(exact_diffusion(matrix, kind[0], **kind[1]), self_entry, unit_length)
    assert_acts_like(found, np.stack([expected] * 2), rtol=1e-4, atol=1e-5)


def test_columns_of_nodes_that_nothing_leads_to_are_not_stored():
    star = sp.csr_array(np.array([[0, 0, 0], [1, 0, 0], [1, 0, 0]], dtype=np.float32))
    found = DenseDiffusion(dense_arrays(transition(star, "row"), "ppr", teleport=0.5))
    assert found.inner.tolist() == [0]
    assert found.dense.matrix.shape == (3, 1)
    expected = [[0.5, 0, 0], [0.25, 0.5, 0], [0.25, 0, 0.5]]
    np.testing.assert_allclose(found.rows(torch.arange(3)).numpy(), expected)


@pytest.mark.parametrize(
    ("normalization", "self_loop"),
    [("column", 0), ("column", 1), ("row", 0), ("row", 1), ("symmetric", 0), ("symmetric", 1)],
)
def test_a_node_that_leads_nowhere_has_a_zero_dense_row_without_its_self_entry(
    normalization, self_loop
):
    """Exactly zero: scaled to unit length, the smallest rounding would become a row of noise."""
    adjacency = random_adjacency(60)
    matrix = transition(adjacency, normalization, self_loop)
    found = dense_diffusion(matrix, "ppr", self_entry=False, unit_length=True)
    assert not found[::7].any()
    assert found[1::7].any(axis=1).all()


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_loop", [0, 1])
def test_a_node_that_leads_nowhere_has_a_zero_implicit_row_without_its_self_entry(
    normalization, self_loop
):
    matrix = transition(random_adjacency(60), normalization, self_loop)
    found = ImplicitDiffusion(matrix, coefficients("ppr"), self_entry=False, unit_length=True)
    assert not found.times(torch.eye(60).unsqueeze(0))[0, ::7].any()
    assert not found.rows(torch.arange(0, 60, 7)).any()
    assert found.rows(torch.arange(1, 60, 7)).any(dim=1).all()


def test_small_entries_survive_beside_a_large_self_entry():
    """Node 0's only neighbour belongs almost wholly to node 1; at unit length it is all of it."""
    graph = Graph(np.ones((3, 1)), [[0, 1], [2, 2]], edge_weight=[1.0, 1e5])
    found = ImplicitDiffusion(
        transition(graph.adjacency("out"), "column"),
        coefficients("ppr"),
        self_entry=False,
        unit_length=True,
    )
    weight = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.times(weight)[0, 0], weight[0, 2], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.rows(torch.tensor([0])), torch.tensor([[0.0, 0.0, 1.0]]))


@pytest.mark.parametrize("block", [1, 4, 10, 11])
def test_the_size_of_blocks_does_not_matter(monkeypatch, block):
    monkeypatch.setattr(diffusion, "_BLOCK", block)
    adjacency = random_adjacency(10)
    matrix = transition(adjacency, "row")
    exact = exact_diffusion(transition_by_loop(adjacency, "row"), "heat")
    np.testing.assert_allclose(dense_diffusion(matrix, "heat"), exact, atol=5e-6)
    implicit = ImplicitDiffusion(matrix, coefficients("heat"), self_entry=False, unit_length=True)
    found = implicit.times(torch.eye(10).unsqueeze(0))[0]
    np.testing.assert_allclose(found, shaped(exact, False, True), rtol=1e-4, atol=1e-5)


def test_ppr_of_a_known_graph_has_known_values():
    """Two nodes that point at each other: S = t/(1-(1-t)²) · [[1, 1-t], [1-t, 1]]."""
    pair = sp.csr_array(np.array([[0, 1], [1, 0]], np.float32))
    found = dense_diffusion(transition(pair, "column"), "ppr", teleport=0.5)
    np.testing.assert_allclose(found, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]], rtol=1e-6)


def test_a_lost_replica_does_not_spoil_the_diffusion_of_others():
    for matrix in (random_adjacency(10), sp.csr_array((10, 10), dtype=np.float32)):
        implicit = ImplicitDiffusion(transition(matrix, "column"), coefficients("ppr"))
        weight = torch.ones(2, 10, 3)
        weight[1] = float("nan")
        assert implicit.times(weight)[0].isfinite().all()
