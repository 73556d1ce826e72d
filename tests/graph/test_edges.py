"""Sorted edges against Python's own sorting, and their adjacency against loops."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.graph import edges as module
from hpgmn.graph.edges import SortedEdges, sorted_csr

Listed = list[tuple[int, int]]


@st.composite
def listings(draw):
    """Nodes and edges in any order, or sorted by source, or by both; loops and repeats too."""
    num_nodes = draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=14))
    order = draw(st.sampled_from(["any", "source", "both"]))
    if order == "source":
        edges.sort(key=lambda edge: edge[0])
    return num_nodes, sorted(edges) if order == "both" else edges


def pairs(edges):
    return np.array(edges, np.int64).reshape(-1, 2).T


def weights_of(edges):
    """Different for every edge, and exact in sums."""
    return 2.0 ** np.arange(len(edges), dtype=np.float32)


@given(listings(), st.booleans(), st.sampled_from([np.int32, np.int64]))
def test_edges_are_sorted_and_remember_how_they_were_listed(case, weighted, dtype):
    num_nodes, listed = case
    given_pairs, weights = pairs(listed).astype(dtype), weights_of(listed) if weighted else None
    before = given_pairs.copy()
    found = SortedEdges.of(given_pairs, num_nodes, weights)
    np.testing.assert_array_equal(given_pairs, before)
    assert (len(found), found.num_nodes) == (len(listed), num_nodes)
    expected = sorted(listed)
    for node in range(num_nodes):
        own = found.targets[found.indptr[node] : found.indptr[node + 1]]
        assert own.tolist() == [target for source, target in expected if source == node]
    assert found.indptr.dtype == found.targets.dtype == np.int32
    assert (found.places is None) == (expected == listed)
    np.testing.assert_array_equal(found.edge_index(), pairs(listed))
    assert found.edge_index().dtype == np.int64
    if weighted:
        np.testing.assert_array_equal(found.edge_weight(), weights)
        sources = np.repeat(np.arange(num_nodes), np.diff(found.indptr)).tolist()
        assert sorted(zip(sources, found.targets, found.weights, strict=True)) == sorted(
            (*edge, weight) for edge, weight in zip(listed, weights, strict=True)
        )
    else:
        assert found.edge_weight() is None


@given(listings(), st.booleans(), st.sampled_from([1, 2, 1 << 14]))
def test_adjacency_matches_a_loop(case, weighted, nodes_at_once):
    num_nodes, listed = case
    expected = np.zeros((num_nodes, num_nodes))
    for (source, target), weight in zip(listed, weights_of(listed), strict=True):
        if source != target:
            expected[source, target] = expected[source, target] + weight if weighted else 1
    weights = weights_of(listed) if weighted else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_NODES", nodes_at_once)
        found = SortedEdges.of(pairs(listed), num_nodes, weights, listed=False).adjacency()
    np.testing.assert_array_equal(found.toarray(), expected)
    assert found.nnz == np.count_nonzero(expected)
    assert found.has_sorted_indices
    assert (found.dtype, found.indices.dtype, found.indptr.dtype) == ("float32", "int32", "int32")


def test_edges_without_loops_and_repeats_are_not_copied():
    edges = SortedEdges.of(pairs([(0, 1), (0, 2), (2, 0)]), 3, np.float32([1, 2, 3]))
    found = edges.adjacency()
    for shared, own in (
        (found.indices, edges.targets),
        (found.indptr, edges.indptr),
        (found.data, edges.weights),
    ):
        assert np.shares_memory(shared, own)


@given(listings(), st.data())
def test_types_follow_their_edges(case, data):
    num_nodes, listed = case
    types = data.draw(st.lists(st.integers(0, 2), min_size=len(listed), max_size=len(listed)))
    edges = SortedEdges.of(pairs(listed), num_nodes, weights_of(listed), np.array(types, np.uint8))
    assert edges.edge_type().tolist() == types
    some = edges.of_types([0, 2])
    expected = sorted(
        (*edge, weight)
        for edge, weight, kind in zip(listed, weights_of(listed), types, strict=True)
        if kind != 1
    )
    sources = np.repeat(np.arange(num_nodes), np.diff(some.indptr)).tolist()
    assert sorted(zip(sources, some.targets, some.weights, strict=True)) == expected


@given(listings(), st.integers(1, 20))
def test_edges_are_listed_in_blocks(case, block):
    num_nodes, listed = case
    parts = list(SortedEdges.of(pairs(listed), num_nodes).listed(block))
    assert all(part.size <= block and part.dtype == np.int64 for part in parts)
    joined = np.concatenate([np.empty(0, np.int64), *parts])
    np.testing.assert_array_equal(joined, pairs(listed).reshape(-1))


def test_unsorted_matrices_are_sorted_with_short_indices():
    parts = (np.float32([1, 2, 3]), np.int64([2, 0, 1]), np.int64([0, 2, 3]))
    matrix = sp.csr_array(parts, shape=(2, 3))
    found = sorted_csr(matrix)
    assert found.indices.tolist() == [0, 2, 1]
    assert found.data.tolist() == [2, 1, 3]
    assert found.indices.dtype == found.indptr.dtype == np.int32
