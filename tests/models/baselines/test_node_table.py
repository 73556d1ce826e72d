"""The table of boosting equals a slow one, and no row depends on the node's own label."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.graph import Graph
from hpgmn.models.baselines.node_table import (
    FOLDS,
    columns,
    edge_modes,
    label_free_rows,
    label_rows,
    make_bases,
    modes_of,
)
from hpgmn.statistics import LocalStatistics
from hpgmn.statistics.diffusion import node_keys


def settings_of(**values):
    return SimpleNamespace(**({"neighbors": "both", "svd_dim": 4, "hops": 2} | values))


def table_of(graph, labels, num_classes=4, **values):
    """Rows and names of the columns of a whole table."""
    settings, statistics = settings_of(**values), LocalStatistics(graph)
    bases = make_bases(statistics, settings)
    rows = np.concatenate(
        [
            label_free_rows(statistics, settings, bases),
            label_rows(statistics, modes_of(bases), labels, num_classes),
        ],
        axis=1,
    )
    names = [str(c) for c in range(num_classes)]
    return rows, [column.name for column in columns(graph, settings, bases, names)]


def train_labels(graph):
    return np.where(graph.split(0).train, graph.y, -1)


def slow_column(graph, name, labels):
    """A column by its name, node by node; None for the columns of an SVD."""
    x = graph.x.toarray() if sp.issparse(graph.x) else np.asarray(graph.x)
    mode = "out" if "out-n" in name else "in" if "in-n" in name else "undirected"
    near = {"out": "out-neighbours", "in": "in-neighbours", "undirected": "neighbours"}[mode]
    adjacency = graph.adjacency(mode).toarray().astype(float)
    folds = node_keys(graph).numpy() % FOLDS
    number = graph.num_nodes

    def mean(values, v):
        total = adjacency[v].sum()
        return sum(adjacency[v, u] * values[u] for u in range(number)) / total if total else 0.0

    def walks(v):  # how likely a walk of two steps ends at each node
        found = np.zeros(number)
        for u in range(number):
            for w in range(number):
                if adjacency[v, u] and adjacency[u, w]:
                    step = adjacency[v, u] / adjacency[v].sum()
                    found[w] += step * adjacency[u, w] / adjacency[u].sum()
        return found

    if "component" in name:
        return None
    if name.startswith(("largest", "smallest")):
        choose, values = max if name[0] == "l" else min, x[:, int(name.split()[-1])]
        near = [[values[u] for u in range(number) if adjacency[v, u]] for v in range(number)]
        return [choose(some) if some else 0.0 for some in near]
    if name.startswith("attribute "):
        return x[:, int(name.split()[1])]
    degrees = (adjacency > 0).sum(axis=1)
    if name == f"number of {near}":
        return degrees
    if name == f"total weight of edges to {near}":
        return adjacency.sum(axis=1)
    if name == f"mean number of {near} of {near}":
        return [mean(degrees, v) for v in range(number)]
    if name.startswith("mean over"):
        values = x[:, int(name.split()[-1])]
        for _ in range(2 if "2 steps" in name else 1):
            values = [mean(values, v) for v in range(number)]
        return values
    is_class = labels == (int(name.split("'")[1]) if "'" in name else -2)
    if "two steps" in name:
        found = []
        for v in range(number):
            weights = walks(v) * (labels >= 0) * (folds != folds[v])
            share = (weights * is_class).sum() / weights.sum() if weights.sum() else 0.0
            found.append(weights.sum() if name.endswith("with a label") else share)
        return found
    counts = [sum(adjacency[v] * is_class) for v in range(number)]
    known = [sum(adjacency[v] * (labels >= 0)) for v in range(number)]
    if name == f"number of {near} with a label":
        return known
    if name.startswith("number of"):
        return counts
    assert name.startswith("share of class")
    return [a / b if b else 0.0 for a, b in zip(counts, known, strict=True)]


@pytest.mark.parametrize("neighbors", ["both", "out", "in", "undirected"])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_column_equals_a_slow_one(wild_graph, neighbors, weighted):
    graph = wild_graph
    if weighted:
        weight = np.random.default_rng(0).uniform(0.5, 2, graph.edge_index.shape[1])
        splits = graph.splits
        graph = Graph(
            *(sp.csr_array(graph.x), graph.edge_index, graph.y),
            edge_weight=weight,
            train_mask=splits.train,
            val_mask=splits.val,
            test_mask=splits.test,
        )
    labels = np.where(train_labels(graph) == 3, -1, train_labels(graph))  # class 3 is missing
    rows, names = table_of(graph, labels, neighbors=neighbors, svd_dim=8)
    assert rows.shape == (23, len(names))
    assert len(set(names)) == len(names)
    compared = 0
    for number, name in enumerate(names):
        expected = slow_column(graph, name, labels)
        if expected is not None:
            np.testing.assert_allclose(
                rows[:, number], expected, rtol=1e-5, atol=1e-6, err_msg=name
            )
            compared += 1
    modes = 2 if neighbors == "both" else 1
    assert compared == 7 + modes * (3 + 2 * 7 + 2 * 7 + 2 * 4 + 1 + 4 + 1)


def test_components_span_the_rows(wild_graph):
    labels = train_labels(wild_graph)
    rows, names = table_of(wild_graph, labels, neighbors="out", svd_dim=23)
    part = rows[:, [number for number, name in enumerate(names) if name.startswith("component")]]
    adjacency = wild_graph.adjacency("out").toarray().astype(float)
    degrees = (adjacency.sum(axis=1), adjacency.sum(axis=0))
    out, into = (np.where(d > 0, 1 / np.sqrt(np.maximum(d, 1)), 0) for d in degrees)
    scaled = out[:, None] * adjacency * into
    np.testing.assert_allclose(part @ part.T, scaled @ scaled.T, atol=3e-3)
    sizes = np.linalg.norm(part, axis=0)
    np.testing.assert_allclose(sizes, np.linalg.svd(scaled)[1], atol=3e-3)
    means = rows[:, [number for number, name in enumerate(names) if ": component" in name]]
    share = np.divide(adjacency, degrees[0][:, None], where=degrees[0][:, None] > 0, out=adjacency)
    np.testing.assert_allclose(means, share @ part, atol=1e-5)


def test_many_attributes_keep_those_that_vary_most_and_components():
    random = np.random.default_rng(0)
    x = (random.random((60, 300)) < np.linspace(0.01, 0.5, 300)).astype(np.float32)
    x[:, 17] = 1  # constant
    graph = Graph(sp.csr_array(x), random.integers(0, 60, (2, 100)), np.arange(60) % 2)
    settings, statistics = settings_of(), LocalStatistics(graph)
    bases = make_bases(statistics, settings)
    variances, kept = x.var(axis=0), bases["attributes_raw"]
    assert kept.size == 64
    assert variances[kept].min() > np.delete(variances, kept).max() - 1e-6
    rows = label_free_rows(statistics, settings, bases)
    components = rows[:, 64:68]
    sizes = np.linalg.svd(x.astype(float))[1][:4]
    np.testing.assert_allclose(np.linalg.norm(components, axis=0), sizes, rtol=2e-2)
    assert rows.shape[1] == 64 + 4 + 2 * (3 + 2 * 4 + 2 * 4)


def test_many_sparse_attributes_stay_sparse():
    x = sp.random_array((2000, 4000), density=0.001, format="csr", dtype=np.float32, rng=0)
    graph = Graph(x, np.arange(4000).reshape(2, 2000) % 2000, np.arange(2000) % 2)
    settings, statistics = settings_of(), LocalStatistics(graph)
    bases = make_bases(statistics, settings)
    tracemalloc.start()
    label_free_rows(statistics, settings, bases)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2000 * 4000 * 4 / 4  # a fourth of the dense attributes


def test_more_components_than_attributes_leave_the_attributes_as_they_are():
    random = np.random.default_rng(0)
    x = random.normal(size=(30, 150)).astype(np.float32)
    graph = Graph(x, random.integers(0, 30, (2, 60)), np.arange(30) % 2)
    rows, names = table_of(graph, np.arange(30) % 2, 2, svd_dim=160)
    assert rows.shape[1] == len(names) == len(set(names))
    np.testing.assert_array_equal(rows[:, :150], x)


@pytest.mark.parametrize("directed", [True, False])
def test_no_row_depends_on_the_label_of_its_node(wild_graph, directed):
    graph = Graph(wild_graph.x, wild_graph.edge_index, wild_graph.y, directed=directed)
    labels = train_labels(wild_graph)
    before, _ = table_of(graph, labels)
    for v in np.flatnonzero(labels >= 0):
        for other in (-1, (labels[v] + 1) % 4):
            after, _ = table_of(graph, np.where(np.arange(23) == v, other, labels))
            assert np.array_equal(before[v], after[v])
            assert not np.array_equal(before, after) or not graph.adjacency("undirected")[[v]].nnz


def test_nodes_behind_one_hub_do_not_tell_their_labels():
    """A count without the node's own label is one lower for the nodes of each class."""
    labels = np.append(-1, np.arange(40) % 2)
    edges = np.stack([np.zeros(40, np.int64), np.arange(1, 41)])
    graph = Graph(np.ones((41, 1)), edges, np.maximum(labels, 0), directed=False)
    rows, _ = table_of(graph, labels, 2)
    folds = node_keys(graph).numpy() % FOLDS
    for fold in range(FOLDS):
        members = np.flatnonzero((folds == fold) & (np.arange(41) > 0))
        assert (rows[members, -3:] == rows[members[:1], -3:]).all()


def test_directions_of_a_symmetric_graph_are_one(wild_graph):
    assert edge_modes(wild_graph, "both") == ("out", "in")
    both_ways = np.concatenate([wild_graph.edge_index, wild_graph.edge_index[::-1]], axis=1)
    assert edge_modes(Graph(wild_graph.x, both_ways, wild_graph.y), "both") == ("undirected",)
    assert edge_modes(wild_graph, "in") == ("in",)


def test_a_graph_without_edges_has_rows():
    graph = Graph(np.ones((5, 2)), np.empty((2, 0), np.int64), np.arange(5) % 2)
    rows, names = table_of(graph, np.array([0, 1, -1, -1, -1]), 2)
    assert rows.shape == (5, len(names))
    assert not rows[:, 2:].any()
