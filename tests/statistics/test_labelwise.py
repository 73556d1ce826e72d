"""Label-wise statistics against loops over nodes and neighbours, and dense products."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.sparse import row_lengths
from hpgmn.graph import Graph
from hpgmn.statistics import labelwise
from hpgmn.statistics.labelwise import (
    FactoredMeans,
    attributes_by_class,
    averaging_matrix,
    class_counts,
    class_mean_rows,
    class_means,
    one_hot,
    scale_counts,
    sparse_class_means,
)

NUM_CLASSES = 4  # labels are below 3: nobody has class 3


class Case(NamedTuple):
    adjacency: sp.csr_array
    x: Any  # dense or CSR, float32
    labels: np.ndarray  # (R, N); -1 is unknown

    @property
    def dense_x(self):
        return self.x.toarray() if sp.issparse(self.x) else self.x


@st.composite
def cases(draw):
    """Graphs with or without edges, repeats, self-loops, directions, weights and labels."""
    num_nodes = draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=14))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    x = random.normal(size=(num_nodes, 3)) * (random.random((num_nodes, 3)) < 0.6)
    graph = Graph(
        sp.csr_array(x) if draw(st.booleans()) else x,
        np.array(edges, np.int64).reshape(-1, 2).T,
        edge_weight=random.uniform(0.2, 3, len(edges)) if draw(st.booleans()) else None,
        directed=draw(st.booleans()),
    )
    adjacency = graph.adjacency(draw(st.sampled_from(["out", "in", "undirected"])))
    labels = draw(
        st.lists(
            st.lists(st.integers(-1, 2), min_size=num_nodes, max_size=num_nodes),
            min_size=1,
            max_size=3,
        )
    )
    return Case(adjacency, graph.x, np.array(labels))


def counts_by_loop(adjacency, labels):
    weight = adjacency.toarray().astype(np.float64)
    counts = np.zeros((len(labels), NUM_CLASSES))
    for center in range(len(labels)):
        for neighbor, label in enumerate(labels):
            if label >= 0:
                counts[center, label] += weight[center, neighbor]
    return counts


def means_by_loop(adjacency, x, labels):
    """(N, C·F): for each node and class the weighted mean over the neighbours of that class."""
    weight = adjacency.toarray().astype(np.float64)
    means = np.zeros((len(labels), NUM_CLASSES, x.shape[1]))
    for center in range(len(labels)):
        for label in range(NUM_CLASSES):
            of_class = [
                u for u in range(len(labels)) if weight[center, u] > 0 and labels[u] == label
            ]
            if of_class:
                means[center, label] = np.average(
                    x[of_class].astype(np.float64), axis=0, weights=weight[center, of_class]
                )
    return means.reshape(len(labels), -1)


def of_unit_length(rows):
    return np.array([row / (math.sqrt(sum(row**2)) or 1) for row in rows])


@given(cases())
def test_class_counts_match_a_loop(case):
    found = class_counts(case.adjacency, case.labels, NUM_CLASSES)
    for replica, labels in enumerate(case.labels):
        expected = counts_by_loop(case.adjacency, labels)
        np.testing.assert_allclose(found[replica], expected, rtol=1e-5)
        alone = class_counts(case.adjacency, labels, NUM_CLASSES)
        np.testing.assert_array_equal(alone, found[replica])


def test_one_hot_of_an_unknown_label_is_zero():
    found = one_hot(np.array([[0, -1], [2, 1]]), 3)
    assert found.tolist() == [[[1, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 1, 0]]]
    assert found.dtype == np.float32


@pytest.mark.parametrize("scaling", ["raw", "log", "fraction", "unit"])
@given(seed=st.integers(0, 2**16), replicas=st.none() | st.integers(1, 3))
def test_scaled_counts_match_a_loop(scaling, seed, replicas):
    random = np.random.default_rng(seed)
    shape = (5, 3) if replicas is None else (replicas, 5, 3)
    counts = (random.integers(0, 4, shape) * random.choice([1, 0.3])).astype(np.float32)
    counts[..., 2, :] = 0  # a node without neighbours
    given_counts = counts.copy()
    found = scale_counts(counts, scaling)
    np.testing.assert_array_equal(counts, given_counts)  # the input is left alone
    assert found.dtype == np.float32
    for place in np.ndindex(shape[:-1]):
        row = [float(count) for count in counts[place]]
        total = {"fraction": sum(row), "unit": math.sqrt(sum(n * n for n in row))}.get(scaling, 1)
        expected = [math.log(1 + n) if scaling == "log" else n / (total or 1) for n in row]
        assert found[place] == pytest.approx(expected, rel=1e-6)


@given(cases())
def test_averaging_weights_match_a_loop(case):
    weight = case.adjacency.toarray().astype(np.float64)
    for labels in case.labels:
        expected = np.zeros_like(weight)
        for center, neighbor in np.argwhere(weight):
            if labels[neighbor] >= 0:
                total = weight[center, labels == labels[neighbor]].sum()
                expected[center, neighbor] = weight[center, neighbor] / total
        found = averaging_matrix(case.adjacency, labels, NUM_CLASSES)
        np.testing.assert_allclose(found.toarray(), expected, rtol=1e-5)


@given(cases())
def test_averaging_does_not_depend_on_the_size_of_blocks(case):
    for labels in case.labels:
        whole = averaging_matrix(case.adjacency, labels, NUM_CLASSES).toarray()
        rows = class_mean_rows(case.adjacency, case.x, labels, NUM_CLASSES)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(labelwise, "_BLOCK", 2)
            found = averaging_matrix(case.adjacency, labels, NUM_CLASSES).toarray()
            np.testing.assert_array_equal(found, whole)
            found = class_mean_rows(case.adjacency, case.x, labels, NUM_CLASSES)
            np.testing.assert_array_equal(found, rows)


@given(cases())
def test_attributes_move_to_the_columns_of_their_class(case):
    num_nodes, width = case.x.shape
    for labels in case.labels:
        expected = np.zeros((num_nodes, NUM_CLASSES * width), np.float32)
        for node, label in enumerate(labels):
            if label >= 0:
                expected[node, label * width : (label + 1) * width] = case.dense_x[node]
        found = attributes_by_class(case.x, labels, NUM_CLASSES)
        np.testing.assert_array_equal(found.toarray(), expected)
        assert found.nnz <= np.count_nonzero(case.dense_x)  # as sparse as x
        assert found.indices.dtype == np.int32


@given(cases())
def test_class_means_match_a_loop(case):
    for labels in case.labels:
        found = class_means(case.adjacency, case.x, labels, NUM_CLASSES)
        expected = means_by_loop(case.adjacency, case.dense_x, labels)
        np.testing.assert_allclose(found.toarray(), expected, rtol=1e-5, atol=1e-6)
        width = case.x.shape[1]
        absent = class_counts(case.adjacency, labels, NUM_CLASSES) == 0
        assert not found.toarray()[absent.repeat(width, axis=1)].any()  # exactly zero


@pytest.mark.parametrize("unit_length", [False, True])
@given(case=cases())
def test_dense_rows_are_the_class_means_in_half_precision(case, unit_length):
    for labels in case.labels:
        expected = means_by_loop(case.adjacency, case.dense_x, labels)
        expected = of_unit_length(expected) if unit_length else expected
        for x in (case.dense_x, sp.csr_array(case.dense_x)):
            found = class_mean_rows(case.adjacency, x, labels, NUM_CLASSES, unit_length=unit_length)
            assert found.dtype == np.float16
            np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("unit_length", [False, True])
@given(case=cases())
def test_factored_means_act_like_dense_class_means(unit_length, assert_acts_like, case):
    expected = [means_by_loop(case.adjacency, case.dense_x, labels) for labels in case.labels]
    if unit_length:
        expected = [of_unit_length(rows) for rows in expected]
    found = FactoredMeans(case.adjacency, case.x, case.labels, NUM_CLASSES, unit_length=unit_length)
    assert_acts_like(found, np.stack(expected))


@pytest.mark.parametrize("unit_length", [False, True])
@given(case=cases())
def test_sparse_rows_act_like_dense_class_means(unit_length, assert_acts_like, case):
    expected = [means_by_loop(case.adjacency, case.dense_x, labels) for labels in case.labels]
    if unit_length:
        expected = [of_unit_length(rows) for rows in expected]
    found = sparse_class_means(
        case.adjacency, case.x, case.labels, NUM_CLASSES, unit_length=unit_length
    )
    assert found.matrix.host.has_sorted_indices
    assert_acts_like(found, np.stack(expected))


@given(cases())
def test_a_replica_alone_has_the_means_it_has_among_others(case):
    generator = torch.Generator().manual_seed(0)
    width = NUM_CLASSES * case.x.shape[1]
    weight = torch.randn(len(case.labels), width, 2, generator=generator)
    together = FactoredMeans(case.adjacency, case.x, case.labels, NUM_CLASSES).times(weight)
    for r in range(len(case.labels)):
        alone = FactoredMeans(case.adjacency, case.x, case.labels[r : r + 1], NUM_CLASSES)
        torch.testing.assert_close(alone.times(weight[r : r + 1])[0], together[r])


@given(cases())
def test_a_lost_replica_does_not_spoil_the_means_of_others(case):
    labels = np.concatenate([case.labels, case.labels[:1]])
    weight = torch.ones(len(labels), NUM_CLASSES * case.x.shape[1], 2)
    weight[-1] = float("nan")
    found = FactoredMeans(case.adjacency, case.x, labels, NUM_CLASSES).times(weight)
    assert found[:-1].isfinite().all()


def test_factored_means_leave_their_inputs_alone():
    graph = Graph([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]], [[0, 0, 1], [1, 2, 2]], [0, 1, 1])
    adjacency = graph.adjacency("out")
    before = adjacency.toarray().copy(), graph.x.copy()
    FactoredMeans(adjacency, graph.x, graph.y[None], 2, unit_length=True)
    np.testing.assert_array_equal(adjacency.toarray(), before[0])
    np.testing.assert_array_equal(graph.x, before[1])


@given(cases())
def test_row_lengths_match_a_loop(case):
    matrix = sp.csr_array(case.x)
    expected = [math.sqrt(sum(float(value) ** 2 for value in row)) for row in matrix.toarray()]
    assert row_lengths(matrix) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_large_attributes_have_rows_of_unit_length(kind):
    edges = sp.csr_array(np.float32([[0, 1, 1], [0, 0, 1], [0, 0, 0]]))
    x: Any = np.float32([[1e6, 2e6], [3e6, -4e6], [1e-3, 2e-3]])
    labels = np.array([0, 1, 0])
    given = sp.csr_array(x) if kind == "sparse" else x
    rows = class_mean_rows(edges, given, labels, 2, unit_length=True)
    expected = class_means(edges, x, labels, 2).toarray()
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected / np.where(lengths > 0, lengths, 1), atol=1e-3)


def test_one_large_node_leaves_the_class_means_of_others_alone():
    random = np.random.default_rng(4)
    x = random.normal(size=(400, 5)).astype(np.float32)
    labels = random.integers(0, 3, 400)
    dense = (random.random((400, 400)) < 0.02).astype(np.float32)
    dense[:2], dense[:, 0] = 0, 0
    dense[:2, 0] = 1  # nodes 0 and 1 alone see node 0
    edges = sp.csr_array(dense)
    large, tiny = x.copy(), x.copy()
    large[0], tiny[0] = 1e25, 1e-25
    expected = class_mean_rows(edges, x, labels, 3, unit_length=True, compiled=False)
    for own in (large, tiny):
        found = class_mean_rows(edges, own, labels, 3, unit_length=True, compiled=False)
        assert found[2:].tobytes() == expected[2:].tobytes()
        assert np.linalg.norm(found[:2].astype(np.float64), axis=1) == pytest.approx(1, rel=1e-2)
