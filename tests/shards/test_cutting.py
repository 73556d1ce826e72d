"""Edges in ranges against the adjacency of the whole graph, and T against its own."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.base.sparse import transition
from hpgmn.shards import shard
from hpgmn.shards.cutting import read_edges, transition_folder
from hpgmn.shards.plan import Plan
from hpgmn.statistics import StatisticsSettings

SETTINGS = StatisticsSettings(
    statistics=("class_counts", "diffusion"),
    neighbors="undirected",
    diffusion_form="topk",
    diffusion_topk=4,
)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_ranges_together_are_the_adjacency(tmp_path, make_graph, directed, weighted):
    graph = make_graph(directed=directed, weighted=weighted)
    shard(graph, tmp_path, graph.y, SETTINGS, ranges=5, keep=True)
    plan = Plan.read(tmp_path / "plan.json")
    modes = ("out", "in", "undirected") if directed else ("undirected",)
    for mode in modes:
        parts = [read_edges(tmp_path, plan, mode, part) for part in range(5)]
        found, expected = sp.csr_array(sp.vstack(parts)), graph.adjacency(mode)
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(found.data, expected.data)


@pytest.mark.parametrize("normalization", ["column", "row", "symmetric"])
@pytest.mark.parametrize("loop", [0, 1])
def test_the_joined_matrix_is_that_of_one_process(tmp_path, make_graph, normalization, loop):
    graph = make_graph()
    settings = dataclasses.replace(
        SETTINGS, neighbors="in", normalization=normalization, diffusion_self_loop=loop
    )
    shard(graph, tmp_path, graph.y, settings, ranges=5, keep=True)
    expected = transition(graph.adjacency("in"), normalization, loop)
    for name in ("indptr", "indices", "data"):
        found = np.load(transition_folder(tmp_path, "in") / f"{name}.npy")
        np.testing.assert_array_equal(found, getattr(expected, name))
