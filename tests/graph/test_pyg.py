"""Graphs as objects of PyTorch Geometric, and back."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph, Splits
from hpgmn.graph.edges import SortedEdges

X = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]
EDGES = [[0, 1, 1, 2], [1, 2, 2, 2]]  # 1 → 2 twice, and a self-loop at 2
MASKS = np.eye(3, dtype=bool)


@pytest.fixture
def pyg_is_loaded() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG uses what torch has deprecated
        pytest.importorskip("torch_geometric")


@pytest.mark.usefixtures("pyg_is_loaded")
@pytest.mark.parametrize("is_sparse", [False, True])
def test_pyg_object_and_back_is_the_same_graph(is_sparse: bool) -> None:
    x: Any = sp.csr_array(X) if is_sparse else np.array(X, np.float32)
    if not is_sparse:
        x.flags.writeable = False
    splits = Splits(MASKS, MASKS[[1, 2, 0]], MASKS[[2, 0, 1]])
    graph = Graph(x, EDGES, [0, 1, 0], edge_weight=[1, 2, 3, 4]).with_splits(splits)
    back = Graph.from_pyg(graph.to_pyg(), name="graph")
    assert back.fingerprint == graph.fingerprint
    assert back.y.tolist() == [0, 1, 0]
    assert back.splits is not None
    np.testing.assert_array_equal(back.splits.val, splits.val)


@pytest.mark.usefixtures("pyg_is_loaded")
def test_pyg_object_lists_undirected_edges_both_ways() -> None:
    data = Graph(X, [[0, 1], [1, 2]], directed=False).to_pyg()
    assert sorted(zip(*data.edge_index.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2), (2, 1)]


@pytest.mark.usefixtures("pyg_is_loaded")
def test_pyg_object_without_attributes_is_refused() -> None:
    from torch_geometric.data import Data

    with pytest.raises(GraphError, match="has no attributes x; add a column"):
        Graph.from_pyg(Data())


@pytest.mark.usefixtures("pyg_is_loaded")
def test_pyg_object_lists_sorted_edges_as_they_were_listed() -> None:
    edges = SortedEdges.of(np.array([[2, 0, 1], [1, 2, 0]]), 3, np.float32([1, 2, 3]))
    data = Graph(X, edges).to_pyg()
    assert data.edge_index.tolist() == [[2, 0, 1], [1, 2, 0]]
    assert data.edge_weight.tolist() == [1, 2, 3]
