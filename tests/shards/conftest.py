"""Graphs with everything that a cut may get wrong, and the rows that shards should have."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
import scipy.sparse as sp

if TYPE_CHECKING:
    from hpgmn.graph import Graph

MakeGraph = Callable[..., "Graph"]


@pytest.fixture(scope="session")
def make_graph():
    """A function that makes a random graph with self-loops, repeats, a hub and isolated nodes."""
    from hpgmn.graph import Graph

    def make(
        num_nodes=60,
        num_edges=300,
        *,
        width=5,
        directed=True,
        weighted=False,
        sparse=False,
        named=False,
    ):
        random = np.random.default_rng(0)
        edges = random.integers(0, num_nodes - 5, (2, num_edges))  # the last five have no edge
        edges[0, :20] = 7
        edges = np.concatenate([edges, edges[:, :15], [[3, 4], [3, 4]]], axis=1)
        x = random.normal(size=(num_nodes, width)) * (random.random((num_nodes, width)) < 0.5)
        y = random.integers(0, 3, num_nodes)
        role = random.integers(0, 3, (num_nodes, 2))
        return Graph(
            sp.csr_array(x) if sparse else x,
            edges,
            y,
            directed=directed,
            edge_weight=random.uniform(0.2, 3, edges.shape[1]) if weighted else None,
            train_mask=role == 0,
            val_mask=role == 1,
            test_mask=role == 2,
            node_ids=[f"node {v}" for v in range(num_nodes)] if named else None,
            class_names=["a", "b", "c"],
            name="made",
        )

    return make


@pytest.fixture(scope="session")
def check_rows():
    """A function that compares all rows of shards with those of one process."""
    import torch

    from hpgmn.statistics import LocalStatistics, statistic_names

    def check(shards, graph, labels, settings):
        expected = LocalStatistics(graph).build(labels[None], graph.num_classes, [settings])
        assert list(shards.statistics) == statistic_names(settings)
        for name, about in shards.statistics.items():
            parts = [shards.statistic(name, part) for part in range(len(shards))]
            assert all(sp.issparse(part) == about["is_sparse"] for part in parts)
            dense = [part.toarray() if about["is_sparse"] else part for part in parts]
            assert {part.dtype.name for part in dense} == {about["dtype"]}
            found = np.concatenate(dense)
            rows = expected[name].rows(torch.arange(graph.num_nodes)).numpy()
            assert found.shape == rows.shape == (graph.num_nodes, about["width"])
            if name.startswith("diffusion") and settings.diffusion_form == "sketch":
                np.testing.assert_allclose(found, rows, rtol=0, atol=1e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(found, rows, err_msg=name)

    return check
