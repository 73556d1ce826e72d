"""Diffusion against dense solves, matrix exponentials and loops in float64."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.randomness import signs
from hpgmn.base.sparse import SparseMatrix, transition
from hpgmn.graph import Graph
from hpgmn.statistics import StatisticsSettings, diffusion
from hpgmn.statistics.diffusion import (
    DenseDiffusion,
    ImplicitDiffusion,
    coefficients,
    dense_arrays,
    node_keys,
    series,
    sketch,
    sketch_attributes,
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


def settings_of(kind="ppr", *, self_entry=True, unit_length=False, **parameters):
    names = {"tolerance": "diffusion_tolerance", "dim": "diffusion_dim"}
    return StatisticsSettings(
        diffusion=kind,
        diffusion_self_entry=self_entry,
        diffusion_scaling="unit" if unit_length else "raw",
        **{names.get(name, name): value for name, value in parameters.items()},
    )


def dense_diffusion(matrix, kind, **choices):
    """The dense form as a whole matrix."""
    statistic = DenseDiffusion(dense_arrays(matrix, settings_of(kind, **choices)))
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


@given(st.floats(0.01, 0.99), st.sampled_from([0.1, 1e-3, 1e-6, 1e-12]))
def test_ppr_coefficients_are_the_formula_cut_at_the_tolerance(teleport, tolerance):
    theta = coefficients(settings_of("ppr", teleport=teleport, tolerance=tolerance))
    assert theta == pytest.approx([teleport * (1 - teleport) ** k for k in range(len(theta))])
    rest = (1 - teleport) ** len(theta)
    assert rest <= tolerance * (1 + 1e-9)
    assert sum(theta) == pytest.approx(1 - rest, abs=1e-12)
    if len(theta) > 1:  # and no term more than needed
        assert (1 - teleport) ** (len(theta) - 1) > tolerance * (1 - 1e-9)


@given(st.floats(0.01, 50), st.sampled_from([0.1, 1e-3, 1e-6, 1e-12]))
def test_heat_coefficients_are_the_formula_cut_at_the_tolerance(heat_time, tolerance):
    theta = coefficients(settings_of("heat", heat_time=heat_time, tolerance=tolerance))
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
    theta = coefficients(settings_of(kind[0], **kind[1], tolerance=tolerance))
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
    weight = torch.eye(60).unsqueeze(0)
    implicit = ImplicitDiffusion(matrix, settings_of(kind, **parameters)).times(weight)[0].numpy()
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
        settings_of(
            kind[0], **kind[1], tolerance=1e-7, self_entry=self_entry, unit_length=unit_length
        ),
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
        settings_of(kind[0], self_entry=self_entry, unit_length=unit_length, **kind[1]),
    )
    found = DenseDiffusion(arrays)
    matrix = transition_by_loop(adjacency, normalization, self_loop)
    expected = shaped(exact_diffusion(matrix, kind[0], **kind[1]), self_entry, unit_length)
    assert_acts_like(found, np.stack([expected] * 2), rtol=1e-4, atol=1e-5)


def test_columns_of_nodes_that_nothing_leads_to_are_not_stored():
    star = sp.csr_array(np.array([[0, 0, 0], [1, 0, 0], [1, 0, 0]], dtype=np.float32))
    found = DenseDiffusion(dense_arrays(transition(star, "row"), settings_of(teleport=0.5)))
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
    found = ImplicitDiffusion(matrix, settings_of(self_entry=False, unit_length=True))
    assert not found.times(torch.eye(60).unsqueeze(0))[0, ::7].any()
    assert not found.rows(torch.arange(0, 60, 7)).any()
    assert found.rows(torch.arange(1, 60, 7)).any(dim=1).all()


def test_small_entries_survive_beside_a_large_self_entry():
    """Node 0's only neighbour belongs almost wholly to node 1; at unit length it is all of it."""
    graph = Graph(np.ones((3, 1)), [[0, 1], [2, 2]], edge_weight=[1.0, 1e5])
    found = ImplicitDiffusion(
        transition(graph.adjacency("out"), "column"),
        settings_of(self_entry=False, unit_length=True),
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
    implicit = ImplicitDiffusion(matrix, settings_of("heat", self_entry=False, unit_length=True))
    found = implicit.times(torch.eye(10).unsqueeze(0))[0]
    np.testing.assert_allclose(found, shaped(exact, False, True), rtol=1e-4, atol=1e-5)


def test_a_lost_replica_does_not_spoil_the_diffusion_of_others():
    for matrix in (random_adjacency(10), sp.csr_array((10, 10), dtype=np.float32)):
        implicit = ImplicitDiffusion(transition(matrix, "column"), settings_of())
        weight = torch.ones(2, 10, 3)
        weight[1] = float("nan")
        assert implicit.times(weight)[0].isfinite().all()


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


def exact_series(matrix, theta):
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
    theta, omega = coefficients(settings_of(kind)), directions(graph, dim)
    expected = exact_series(matrix, theta)
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
        node_keys(graph),
        settings_of(kind, dim=dim, self_entry=self_entry, unit_length=unit_length),
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
        matrix, node_keys(graph), settings_of(dim=32, self_entry=False, unit_length=True)
    )
    assert not found[::7].any()
    lengths = torch.linalg.vector_norm(found[1::7], dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("self_entry", [False, True])
@pytest.mark.parametrize("block", [1, 7, 64, 100])
def test_blocks_do_not_change_a_sketch(monkeypatch, block, self_entry):
    graph = random_graph(50)
    matrix = SparseMatrix(transition(graph.adjacency("out"), "column"))
    arguments = (matrix, node_keys(graph), settings_of(dim=90, self_entry=self_entry))
    whole = sketch(*arguments)
    monkeypatch.setattr(diffusion, "SKETCH_BLOCK", block)
    torch.testing.assert_close(sketch(*arguments), whole)


def test_inner_products_come_nearer_with_the_columns():
    """The error of one inner product is that of a mean over d columns: it halves with four d."""
    graph = random_graph(400)
    matrix = transition(graph.adjacency("out"), "column")
    theta = coefficients(settings_of("ppr"))
    exact = exact_series(matrix, theta)
    gram = exact @ exact.T
    errors = []
    for dim in (32, 128, 512):
        found = sketch(SparseMatrix(matrix), node_keys(graph), settings_of(dim=dim)).numpy()
        errors.append(np.linalg.norm(found @ found.T - gram) / np.linalg.norm(gram))
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.2)
    assert errors[2] == pytest.approx(errors[1] / 2, rel=0.2)


def test_without_self_entries_inner_products_are_those_of_the_rest():
    graph = random_graph(400)
    matrix = transition(graph.adjacency("out"), "column")
    theta = coefficients(settings_of("ppr"))
    rest = exact_series(matrix, theta)
    np.fill_diagonal(rest, 0)
    gram = rest @ rest.T
    exact = rest @ directions(graph, 256)
    settings = settings_of(dim=256, self_entry=False)
    found = sketch(SparseMatrix(matrix), node_keys(graph), settings).numpy()
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
