"""Class means by the kernel: against loops over nodes and neighbours, and against SciPy."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.graph import Graph
from hpgmn.statistics import labelwise
from hpgmn.statistics.labelwise import class_mean_rows, fill_class_means

NUM_CLASSES = 4  # labels are below 3: nobody has class 3


def random_graph(num_nodes=300, width=7, *, weighted=False):
    """Directed; every seventh node leads nowhere, and node 1 to one neighbour only."""
    random = np.random.default_rng(0)
    source = random.choice([v for v in range(2, num_nodes) if v % 7], 5 * num_nodes)
    target = random.integers(0, num_nodes, 5 * num_nodes)
    edges = np.stack([np.append(source, 1), np.append(target, 2)])
    weight = random.uniform(0.2, 3, edges.shape[1]) if weighted else None
    return Graph(random.normal(size=(num_nodes, width)), edges, edge_weight=weight)


def random_labels(num_nodes):
    return np.random.default_rng(1).integers(-1, 3, num_nodes)


def means_by_loop(graph, labels, *, unit_length):
    weight = graph.adjacency("out").toarray().astype(np.float64)
    rows = np.zeros((len(labels), NUM_CLASSES, graph.num_features))
    for center in range(len(labels)):
        for label in range(NUM_CLASSES):
            chosen = [u for u in np.flatnonzero(weight[center]) if labels[u] == label]
            if chosen:
                own = weight[center, chosen]
                rows[center, label] = own @ graph.x[chosen].astype(np.float64) / own.sum()
        if unit_length:
            rows[center] /= math.sqrt((rows[center] ** 2).sum()) or 1
    return rows.reshape(len(labels), -1)


@pytest.mark.parametrize("unit_length", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-5), (np.float16, 1e-3)])
def test_rows_match_a_loop(unit_length, weighted, dtype, error):
    graph = random_graph(weighted=weighted)
    labels = random_labels(graph.num_nodes)
    found = np.full((graph.num_nodes, NUM_CLASSES * 7), np.nan, dtype)
    fill_class_means(
        graph.adjacency("out"), graph.x, labels, NUM_CLASSES, found, unit_length=unit_length
    )
    expected = means_by_loop(graph, labels, unit_length=unit_length)
    np.testing.assert_allclose(found, expected, rtol=error, atol=error)
    assert not found[expected == 0].any()  # exactly zero where there is no such neighbour


@pytest.mark.parametrize("unit_length", [False, True])
def test_the_plain_kernel_is_the_compiled_one(monkeypatch, unit_length):
    """The same source as Python: what numba makes of it differs by rounding alone."""
    graph = random_graph(40)
    labels = random_labels(40)
    found = [np.empty((40, NUM_CLASSES * 7), np.float32) for _ in range(2)]
    for out in found:
        fill_class_means(
            graph.adjacency("out"), graph.x, labels, NUM_CLASSES, out, unit_length=unit_length
        )
        plain = labelwise._kernel(lambda function: function, labelwise._squares)
        monkeypatch.setattr(labelwise, "_compile_kernel", lambda plain=plain: plain)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_neither_threads_nor_blocks_change_a_bit(monkeypatch, dtype):
    graph = random_graph()
    labels = random_labels(graph.num_nodes)
    rows = []
    for threads, buffer, piece in ((1, 1 << 17, 1 << 15), (3, 100, 1 << 15), (2, 1000, 7)):
        monkeypatch.setattr(labelwise, "_BUFFER", buffer)
        monkeypatch.setattr(labelwise, "_PIECE", piece)
        rows.append(np.empty((graph.num_nodes, NUM_CLASSES * 7), dtype))
        fill_class_means(
            graph.adjacency("out"), graph.x, labels, NUM_CLASSES, rows[-1], threads=threads
        )
    assert rows[0].any()
    np.testing.assert_array_equal(rows[1], rows[0])
    np.testing.assert_array_equal(rows[2], rows[0])


def test_read_only_and_mapped_arrays_need_no_second_kernel(tmp_path):
    graph = random_graph()
    labels = random_labels(graph.num_nodes)
    expected = np.empty((graph.num_nodes, NUM_CLASSES * 7), np.float16)
    fill_class_means(graph.adjacency("out"), graph.x, labels, NUM_CLASSES, expected)
    np.save(tmp_path / "x.npy", graph.x)
    x = np.load(tmp_path / "x.npy", mmap_mode="r", allow_pickle=False)
    adjacency = graph.adjacency("out").copy()
    for part in (adjacency.indptr, adjacency.indices, adjacency.data):
        part.flags.writeable = False
    out = np.lib.format.open_memmap(
        tmp_path / "rows.npy", mode="w+", dtype=np.float16, shape=expected.shape
    )
    fill_class_means(adjacency, x, labels, NUM_CLASSES, out)
    np.testing.assert_array_equal(out, expected)
    assert len(labelwise._compile_kernel().signatures) == 1


def test_many_dense_attributes_take_the_kernel(monkeypatch):
    graph = random_graph()
    adjacency, labels = graph.adjacency("out"), random_labels(graph.num_nodes)
    by_scipy = class_mean_rows(adjacency, graph.x, labels, NUM_CLASSES)
    asked = []

    def watched(*arguments, **options):
        asked.append(arguments)
        fill_class_means(*arguments, **options)

    monkeypatch.setattr(labelwise, "fill_class_means", watched)
    for limit, times in ((adjacency.nnz * 7 + 1, 0), (adjacency.nnz * 7, 1)):
        monkeypatch.setattr(labelwise, "COMPILED_FROM", limit)
        found = class_mean_rows(adjacency, graph.x, labels, NUM_CLASSES)
        assert len(asked) == times
        np.testing.assert_allclose(found, by_scipy, rtol=2e-3, atol=2e-3)
    class_mean_rows(adjacency, sp.csr_array(graph.x), labels, NUM_CLASSES)
    assert len(asked) == 1  # sparse attributes never do


def test_a_failure_in_a_thread_is_told():
    graph = random_graph(20)
    too_narrow = np.empty((20, 3), np.float16)
    with pytest.raises(RuntimeError, match="size"):
        fill_class_means(
            graph.adjacency("out"), graph.x, random_labels(20), NUM_CLASSES, too_narrow
        )
