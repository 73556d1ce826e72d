"""The largest entries of S by push, against dense solves and matrix exponentials in float64."""

import time

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import HPGMNError
from hpgmn.base.sparse import transition
from hpgmn.graph import Graph
from hpgmn.statistics import StatisticsSettings, push
from hpgmn.statistics.push import prepare_push, worker_bytes

NORMALIZATIONS = ("column", "row", "symmetric")
kinds = st.sampled_from(
    [("ppr", {"teleport": 0.15}), ("ppr", {"teleport": 0.6}), ("heat", {"heat_time": 3.0})]
)


NAMES = {
    "count": "diffusion_topk",
    "threshold": "diffusion_threshold",
    "self_entry": "diffusion_self_entry",
    "tolerance": "diffusion_tolerance",
}


def largest_entries(matrix, kind="ppr", *, self_entry=True, **options):
    """The largest entries, with some settings as short keywords."""
    values = {"self_entry": self_entry, **options}
    run = {name: values.pop(name) for name in ("threads", "progress", "nodes") if name in values}
    named = {NAMES.get(name, name): value for name, value in values.items()}
    return push.largest_entries(matrix, StatisticsSettings(diffusion=kind, **named), **run)


@st.composite
def transitions(draw, normalization=None):
    """T of graphs with or without edges, isolated nodes, repeats, directions and weights."""
    num_nodes = draw(st.integers(1, 8))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=20))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    graph = Graph(
        np.ones((num_nodes, 1)),
        np.array(edges, np.int64).reshape(-1, 2).T,
        edge_weight=random.uniform(0.2, 3, len(edges)) if draw(st.booleans()) else None,
        directed=draw(st.booleans()),
    )
    kind = normalization or draw(st.sampled_from(NORMALIZATIONS))
    return transition(graph.adjacency("out"), kind, draw(st.sampled_from([0, 1])))


def exact_diffusion(matrix, kind, teleport=0.15, heat_time=3.0):
    dense, identity = matrix.toarray().astype(np.float64), np.eye(matrix.shape[0])
    if kind == "ppr":
        found = teleport * np.linalg.inv(identity - (1 - teleport) * dense)
    else:
        found = scipy.linalg.expm(heat_time * (dense - identity))
    return np.where(abs(found) < 1e-12, 0, found)


def random_transition(num_nodes, normalization="column", degree=4):
    """Directed; every seventh node leads nowhere."""
    random = np.random.default_rng(0)
    source = random.choice([v for v in range(num_nodes) if v % 7], degree * num_nodes)
    target = random.integers(0, num_nodes, degree * num_nodes)
    graph = Graph(np.ones((num_nodes, 1)), np.stack([source, target]))
    return transition(graph.adjacency("out"), normalization)


def assert_same_bits(one, two):
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(one, part), getattr(two, part))


@given(transitions(), kinds)
def test_with_a_small_threshold_the_rows_are_those_of_s(matrix, kind):
    before = matrix.copy()
    found = largest_entries(matrix, kind[0], threshold=1e-10, tolerance=1e-9, **kind[1])
    np.testing.assert_allclose(
        found.toarray(), exact_diffusion(matrix, kind[0], **kind[1]), rtol=1e-5, atol=1e-8
    )
    assert (found.dtype, found.indices.dtype, found.indptr.dtype) == ("float32", "int32", "int32")
    assert_same_bits(matrix, before)


@given(transitions(), st.sampled_from([0.15, 0.6]), st.sampled_from([0.1, 1e-2, 1e-3, 1e-5]))
def test_what_ppr_misses_is_bounded_by_the_threshold(matrix, teleport, threshold):
    exact = exact_diffusion(matrix, "ppr", teleport)
    found = largest_entries(matrix, threshold=threshold, teleport=teleport).toarray()
    missing = exact - found
    assert (missing >= -1e-6 * exact).all()
    own = teleport * np.eye(len(exact))
    assert (missing <= threshold * (exact - own).sum(axis=0) + 1e-6 * exact).all()


@given(transitions("column"), kinds, st.sampled_from([0.1, 1e-2, 1e-3, 1e-5]))
def test_with_column_normalisation_every_entry_keeps_the_bound(matrix, kind, threshold):
    exact = exact_diffusion(matrix, kind[0], **kind[1])
    found = largest_entries(matrix, kind[0], threshold=threshold, tolerance=1e-9, **kind[1])
    bound = threshold * (1 - kind[1]["teleport"] if kind[0] == "ppr" else kind[1]["heat_time"])
    assert (exact - found.toarray() <= bound + 1e-6 * exact + 1e-9).all()


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_the_error_falls_with_the_threshold(normalization, kind):
    matrix = random_transition(300, normalization)
    exact = exact_diffusion(matrix, kind)
    errors = [
        np.linalg.norm(largest_entries(matrix, kind, count=300, threshold=each).toarray() - exact)
        for each in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 * np.linalg.norm(exact)
    assert errors[0] > 1e-2 * np.linalg.norm(exact)


@given(transitions(), kinds, st.integers(1, 9), st.booleans())
def test_the_largest_entries_are_kept_the_smaller_column_first(matrix, kind, count, self_entry):
    every = largest_entries(matrix, kind[0], count=99, **kind[1]).toarray()
    found = largest_entries(matrix, kind[0], count=count, self_entry=self_entry, **kind[1])
    assert found.has_sorted_indices
    assert (np.diff(found.indptr) <= count).all()
    expected = np.zeros_like(every)
    for node, row in enumerate(every):
        wanted = [u for u in np.argsort(-row, kind="stable") if row[u] > 0]
        wanted = [u for u in wanted if self_entry or u != node][:count]
        expected[node, wanted] = row[wanted]
    np.testing.assert_array_equal(found.toarray(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_neither_threads_nor_chunks_change_a_bit(monkeypatch, kind):
    matrix = random_transition(2000)
    one = largest_entries(matrix, kind, count=16, threads=1)
    assert one.nnz > 20_000
    assert_same_bits(one, largest_entries(matrix, kind, count=16, threads=2))
    monkeypatch.setattr(push, "_CHUNK", 37)
    assert_same_bits(one, largest_entries(matrix, kind, count=16, threads=5))


@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_machine_code_does_what_the_python_says(monkeypatch, kind):
    matrix = random_transition(60)
    compiled = largest_entries(matrix, kind, count=8, self_entry=False)
    monkeypatch.setattr(
        push, "_compile_kernel", lambda kind: push._kernel(kind, lambda plain: plain)
    )
    assert_same_bits(largest_entries(matrix, kind, count=8, self_entry=False), compiled)


@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_a_graph_without_edges_has_self_entries_alone(kind):
    empty = sp.csr_array((3, 3), dtype=np.float32)
    own = {"ppr": 0.15, "heat": np.exp(-3)}[kind]
    np.testing.assert_allclose(largest_entries(empty, kind).toarray(), own * np.eye(3), rtol=1e-6)
    without = largest_entries(empty, kind, self_entry=False)
    assert without.nnz == 0
    assert without.indptr.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_an_edge_that_carries_nothing_leads_nowhere(kind):
    dense = np.zeros((3, 3), np.float32)
    dense[0, 1:] = [0.5, 1]
    matrix = sp.csr_array(dense)
    matrix.data[0] = 0
    assert largest_entries(matrix, kind).toarray()[0].nonzero()[0].tolist() == [0, 2]
    assert matrix.nnz == 2


@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_a_prepared_push_compiles_no_more(kind):
    push._compile_kernel.cache_clear()
    prepare_push(kind)
    kernel = push._compile_kernel(kind)
    assert len(kernel.signatures) == 1
    largest_entries(random_transition(20), kind)
    assert len(kernel.signatures) == 1


def test_progress_counts_the_rows(monkeypatch):
    monkeypatch.setattr(push, "_CHUNK", 8)
    told: list[tuple[int, int]] = []
    largest_entries(
        random_transition(20), threads=2, progress=lambda done, total: told.append((done, total))
    )
    assert told == [(8, 20), (16, 20), (20, 20)]


def test_a_stop_in_progress_stops_the_work(monkeypatch):
    monkeypatch.setattr(push, "_CHUNK", 1)
    started = []
    whole = push._compile_kernel("ppr")

    def counted(first, *others):
        started.append(first)
        time.sleep(0.005)  # time enough to be told
        whole(first, *others)

    monkeypatch.setattr(push, "_compile_kernel", lambda kind: counted)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        largest_entries(random_transition(400), threads=1, progress=stop)
    assert len(started) < 400


def test_too_many_entries_are_refused():
    matrix = sp.csr_array((50_000, 50_000), dtype=np.float32)
    with pytest.raises(HPGMNError, match=r"50000 entries .* exceed 32-bit indices") as caught:
        largest_entries(matrix, count=50_000)
    fewer, other = caught.value.remedy, caught.value.remedy.alternatives[0]
    assert (fewer.setting, fewer.value) == ("diffusion_topk", 2**30 // 50_000)
    assert (other.setting, other.value) == ("diffusion_form", "sketch")


@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_a_worker_holds_what_is_said(kind):
    for num_nodes in (1, 7, 8, 1000):
        arrays = push._work_arrays(num_nodes, kind)
        assert worker_bytes(num_nodes, kind) == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("wanted", [[], [3], [0, 1, 2, 7], [5, 6, 38, 39]])
def test_some_rows_are_those_of_all_and_others_are_empty(wanted, monkeypatch):
    monkeypatch.setattr(push, "_CHUNK", 2)
    random = np.random.default_rng(0)
    graph = Graph(np.ones((40, 1)), random.integers(0, 40, (2, 200)))
    matrix = transition(graph.adjacency("out"), "column")
    every = largest_entries(matrix, count=5, teleport=0.3).toarray()
    told: list[tuple[int, int]] = []
    some = largest_entries(
        matrix,
        count=5,
        teleport=0.3,
        nodes=np.array(wanted, np.int64),
        progress=lambda done, total: told.append((done, total)),
    ).toarray()
    expected = np.zeros_like(every)
    expected[wanted] = every[wanted]
    np.testing.assert_array_equal(some, expected)
    assert [pair for pair in told if pair[0] == len(wanted)] == [(len(wanted),) * 2][: len(wanted)]
