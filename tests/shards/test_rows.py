"""Blocks of rows: they keep to the memory, cover a range, and hold its neighbours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import HPGMNError
from hpgmn.shards import shard
from hpgmn.shards.cutting import EdgeRows, edges_folder, read_edges
from hpgmn.shards.plan import EDGE_BYTES, Plan
from hpgmn.shards.rows import blocks, spans
from hpgmn.statistics import StatisticsSettings
from hpgmn.statistics.labelwise import class_mean_rows


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(65, 400))
def test_spans_cover_all_rows_and_keep_to_the_memory(lengths, memory):
    indptr = np.append(0, np.cumsum(lengths))
    found = list(spans(indptr, memory, 10, 5, "Rows"))
    assert [row for first, last in found for row in range(first, last)] == list(range(len(lengths)))
    costs = [10 * (indptr[last] - indptr[first]) + 5 * (last - first) for first, last in found]
    assert max(costs) <= memory
    for (_, last), cost in zip(found[:-1], costs[:-1], strict=True):
        assert cost + 10 * lengths[last] + 5 > memory  # no row more would fit


def test_a_row_beyond_the_memory_is_refused():
    with pytest.raises(HPGMNError, match="Rows of the node with most neighbours take"):
        list(spans(np.array([0, 1, 9]), 84, 10, 5, "Rows"))


def test_blocks_are_the_range(tmp_path, make_graph):
    graph = make_graph()
    settings = StatisticsSettings(statistics=("class_counts",), neighbors="out")
    shard(graph, tmp_path, graph.y, settings, ranges=2, keep=True)
    plan = Plan.read(tmp_path / "plan.json")
    whole = read_edges(tmp_path, plan, "out", 1).toarray()
    edges = EdgeRows(edges_folder(tmp_path, "out", 1), plan)
    found = np.zeros_like(whole)
    count = 0
    for block in blocks(edges, 25 * EDGE_BYTES, 0, 1, "Rows"):
        assert (np.diff(block.nodes) > 0).all()
        found[block.first : block.last, block.nodes] = block.adjacency.toarray()
        count += 1
    np.testing.assert_array_equal(found, whole)
    assert count > 3
    assert not list(tmp_path.glob("work/buckets-*"))  # nobody asks which edges enter a range


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected", "both"])
@pytest.mark.parametrize("distance", [0, 1])
def test_means_are_compiled_where_those_of_one_process_are(
    tmp_path, make_graph, monkeypatch, neighbors, distance
):
    """By the merged edges of the mode: repeats count once, undirected edges twice."""
    graph = make_graph(width=8)
    mode = "out" if neighbors == "both" else neighbors
    merged = graph.adjacency(mode).nnz
    assert merged != graph.num_listed_edges
    monkeypatch.setattr("hpgmn.statistics.labelwise.COMPILED_FROM", 8 * (merged + distance))
    asked: list[bool] = []

    def spied(*arguments, compiled, **options):
        asked.append(compiled)
        return class_mean_rows(*arguments, compiled=compiled, **options)

    monkeypatch.setattr("hpgmn.shards.rows.class_mean_rows", spied)
    settings = StatisticsSettings(
        statistics=("class_means",), neighbors=neighbors, class_means_form="half"
    )
    shard(graph, tmp_path, graph.y, settings, ranges=3)
    assert set(asked) == {distance == 0}


def test_attributes_beyond_half_precision_are_refused(tmp_path, make_graph):
    graph = make_graph()
    graph.x[:] = 1e6
    settings = StatisticsSettings(
        statistics=("class_means",), neighbors="out", class_means_form="half"
    )
    with pytest.raises(HPGMNError, match="beyond half precision"):
        shard(graph, tmp_path, graph.y, settings, ranges=2)


def test_a_push_beyond_the_memory_is_refused(tmp_path, make_graph):
    graph = make_graph()
    settings = StatisticsSettings(statistics=("diffusion",), neighbors="out", diffusion_form="topk")
    with pytest.raises(HPGMNError, match='diffusion_form="sketch"'):
        shard(graph, tmp_path, graph.y, settings, ranges=8, memory=10_000)
    assert not (tmp_path / "work").exists()  # known before the edges are cut
