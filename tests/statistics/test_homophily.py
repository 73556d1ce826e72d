"""Node homophily against a loop, and against the published values of real graphs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.datasets import DATASETS, read_graph
from hpgmn.graph import Graph
from hpgmn.statistics.homophily import node_homophily


def homophily_by_loop(num_nodes: int, edges: list[tuple[int, int]], y: list[int]) -> float:
    shares = []
    for node in range(num_nodes):
        neighbors = {b for a, b in edges if a == node} | {a for a, b in edges if b == node}
        known = [other for other in neighbors - {node} if y[other] >= 0]
        if y[node] >= 0 and known:
            shares.append(sum(y[other] == y[node] for other in known) / len(known))
    return sum(shares) / len(shares) if shares else math.nan


@given(
    y=st.lists(st.integers(-1, 2), min_size=5, max_size=5),
    edges=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12),
    directed=st.booleans(),
    weighted=st.booleans(),
)
def test_node_homophily_matches_a_loop(
    y: list[int], edges: list[tuple[int, int]], directed: bool, weighted: bool
) -> None:
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    weight = np.linspace(1, 2, len(edges)) if weighted else None
    graph = Graph(np.ones((5, 1)), ends, y, edge_weight=weight, directed=directed)
    assert node_homophily(graph) == pytest.approx(homophily_by_loop(5, edges, y), nan_ok=True)


def test_without_labelled_neighbours_there_is_no_homophily() -> None:
    assert math.isnan(node_homophily(Graph([[1.0], [1.0]], [[0], [1]], [0, -1])))


@pytest.mark.parametrize("name", [name for name, known in DATASETS.items() if known.homophily])
def test_real_graphs_have_the_known_homophily(data_dir: Path, name: str) -> None:
    path = data_dir / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{name}.npz is not in the folder of graph files")
    assert node_homophily(read_graph(path)) == pytest.approx(DATASETS[name].homophily, abs=6e-4)
