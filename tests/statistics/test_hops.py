"""Means over several hops against walks, one edge at a time."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.statistics import LocalStatistics, StatisticsSettings
from hpgmn.statistics import hops as module
from hpgmn.statistics.diffusion import sketch_attributes
from hpgmn.statistics.hops import hop_row

PLAIN = StatisticsSettings(statistics=("hops",), neighbors="out", hops=3)


@pytest.fixture
def graph():
    """Weighted edges, among them a repeated one and a self-loop; node 8 has none, 7 only in."""
    random = np.random.default_rng(0)
    edges = np.array([[0, 1, 2, 3, 4, 5, 6, 0, 0, 2, 3], [1, 2, 0, 4, 3, 6, 7, 5, 5, 2, 1]])
    weight = random.uniform(0.5, 3, edges.shape[1])
    return Graph(random.normal(size=(9, 4)), edges, edge_weight=weight)


def walked(graph, x, mode, hops):
    """(N, hops·F): a node's mean over the first step of its neighbours' means one hop shorter."""
    adjacency = graph.adjacency(mode).toarray().astype(float)
    parts, last = [], np.asarray(x, float)
    for _ in range(hops):
        new = np.zeros_like(last)
        for v, weights in enumerate(adjacency):
            if weights.any():
                new[v] = np.average(last, axis=0, weights=weights)
        parts.append(new)
        last = new
    return np.concatenate(parts, axis=1)


def rows_of(graph, settings):
    built = LocalStatistics(graph).build(np.full((1, graph.num_nodes), -1), 2, [settings])
    return {name: one.rows(torch.arange(graph.num_nodes)).numpy() for name, one in built.items()}


@pytest.mark.parametrize("mode", ["out", "in", "undirected"])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_means_over_walks(graph, mode, sparse):
    x = graph.x
    if sparse:
        graph = Graph(sp.csr_array(x), graph.edge_index, edge_weight=graph.edge_weight)
    found = rows_of(graph, replace(PLAIN, neighbors=mode))["hops"]
    np.testing.assert_allclose(found, walked(graph, x, mode, 3), rtol=1e-5, atol=1e-6)
    row = hop_row(graph.adjacency(mode), graph.x, 3, 3)
    np.testing.assert_allclose(row, found[3], rtol=1e-5, atol=1e-6)


def test_both_directions_have_rows_of_their_own(graph):
    found = rows_of(graph, replace(PLAIN, neighbors="both"))
    for mode in ("out", "in"):
        expected = walked(graph, graph.x, mode, 3)
        np.testing.assert_allclose(found[f"hops_{mode}"], expected, rtol=1e-5, atol=1e-6)


def test_a_sketch_is_the_sketch_of_the_rows(graph):
    found = rows_of(graph, replace(PLAIN, hops_dim=2))["hops"]
    expected = walked(graph, sketch_attributes(graph.x, 2), "out", 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_too_many_numbers_are_refused_before_any_work(graph, monkeypatch):
    monkeypatch.setattr(module, "ROWS_LIMIT_BYTES", 4 * 9 * 12 - 1)
    with pytest.raises(HPGMNError) as error:
        rows_of(graph, PLAIN)
    assert error.value.remedy.setting == "hops_dim"
    assert rows_of(graph, replace(PLAIN, hops_dim=3))["hops"].shape == (9, 9)
