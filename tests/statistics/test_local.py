"""LocalStatistics: every statistic, scaling and neighbour mode against obvious dense algebra."""

import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import GraphError
from hpgmn.base.randomness import signs, text_keys
from hpgmn.base.sparse import scale_attributes
from hpgmn.graph import NEIGHBORS, Graph
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.statistics import (
    STATISTICS,
    LocalStatistics,
    StatisticsSettings,
    base_name,
    definitions,
    local,
    statistic_names,
)
from hpgmn.statistics.diffusion import DenseDiffusion, ImplicitDiffusion
from hpgmn.statistics.labelwise import FactoredMeans
from hpgmn.statistics.operators import (
    DenseRows,
    Grouped,
    NeighborMean,
    Reindexed,
    ReplicaRows,
    SparseReplicaRows,
    SparseRows,
)
from hpgmn.statistics.settings import MEANS_FORMS

SOURCE = Path(__file__).parents[2] / "src"
NUM_CLASSES = 4  # labels are below 3: nobody has class 3
PLAIN = StatisticsSettings(  # whatever the defaults are
    statistics=STATISTICS,
    neighbors="undirected",
    class_means_form="auto",
    diffusion="ppr",
    teleport=0.15,
    normalization="column",
    diffusion_self_loop=0,
    diffusion_form="auto",
    diffusion_scaling="raw",
    diffusion_self_entry=True,
    adjacency_scaling="raw",
)
Edges = list[tuple[int, int, float]]


class Case(NamedTuple):
    x: np.ndarray
    edges: Edges
    weighted: bool
    directed: bool
    sparse: bool
    labels: np.ndarray  # (R, N)

    def graph(self):
        return Graph(
            sp.csr_array(self.x) if self.sparse else self.x,
            np.array([edge[:2] for edge in self.edges], np.int64).reshape(-1, 2).T,
            edge_weight=[edge[2] for edge in self.edges] if self.weighted else None,
            directed=self.directed,
        )


@st.composite
def cases(draw, replicas=2, sparse=None):
    """Graphs with or without edges, repeats, self-loops, directions, weights and labels."""
    num_nodes = draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    weight = st.sampled_from([0.5, 1.0, 3.0])
    edges = draw(st.lists(st.tuples(node, node, weight), max_size=14))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    x = random.normal(size=(num_nodes, 3)) * (random.random((num_nodes, 3)) < 0.6)
    label = st.integers(-1, 2)
    labels = [
        draw(st.lists(label, min_size=num_nodes, max_size=num_nodes)) for _ in range(replicas)
    ]
    return Case(
        x.astype(np.float32),
        edges,
        weighted=draw(st.booleans()),
        directed=draw(st.booleans()),
        sparse=draw(st.booleans()) if sparse is None else sparse,
        labels=np.array(labels),
    )


def choices(name):
    field = StatisticsSettings.__dataclass_fields__[name]
    found: tuple[str, ...] = field.metadata["choices"]
    return found


settings_of = st.builds(
    StatisticsSettings,
    statistics=st.just(STATISTICS),
    neighbors=st.sampled_from(NEIGHBORS),
    diffusion_self_entry=st.booleans(),
    diffusion_self_loop=st.integers(0, 1),
    teleport=st.sampled_from([0.15, 0.6]),
    heat_time=st.sampled_from([0.5, 3.0]),
    diffusion_tolerance=st.just(1e-7),
    diffusion_threshold=st.just(1e-9),
    diffusion_dim=st.just(32),
    # Half precision has its own test: it holds to three digits only.
    class_means_form=st.sampled_from(["auto", "dense", "sparse", "factored"]),
    **{
        name: st.sampled_from(choices(name))
        for name in (
            "attributes_scaling",
            "class_counts_scaling",
            "class_means_scaling",
            "adjacency_scaling",
            "diffusion",
            "normalization",
            "diffusion_form",
            "diffusion_scaling",
        )
    },
)


def scaled(rows, scaling):
    """Each row by itself; a row of zeros stays so."""
    result = np.array(rows, np.float64)
    for place, row in enumerate(result):
        if scaling == "log":
            result[place] = np.log(1 + row)
        elif scaling == "fraction":
            result[place] = row / (sum(abs(row)) or 1)
        elif scaling == "unit":
            result[place] = row / (math.sqrt(sum(row**2)) or 1)
    return result


def dense_adjacency(case, mode):
    out = np.zeros((len(case.x), len(case.x)))
    for source, target, weight in case.edges:
        if source != target:
            out[source, target] = out[source, target] + weight if case.weighted else 1.0
    if not case.directed:
        return np.maximum(out, out.T)
    both = out + out.T if case.weighted else np.maximum(out, out.T)
    return {"out": out, "in": out.T, "undirected": both}[mode]


def dense_diffusion(weight, settings):
    identity = np.eye(len(weight))
    weight = weight + settings.diffusion_self_loop * identity
    rows, columns = weight.sum(axis=1), weight.sum(axis=0)
    rows, columns = np.where(rows == 0, 1, rows), np.where(columns == 0, 1, columns)
    matrix = {
        "row": weight / rows[:, None],
        "column": weight / columns,
        "symmetric": weight / np.sqrt(np.outer(rows, columns)),
    }[settings.normalization]
    if settings.diffusion == "ppr":
        keep = 1 - settings.teleport
        found = settings.teleport * np.linalg.inv(identity - keep * matrix)
    else:
        found = scipy.linalg.expm(settings.heat_time * (matrix - identity))
    found[abs(found) < 1e-12] = 0  # what is unreachable is exactly zero
    if not settings.diffusion_self_entry:
        np.fill_diagonal(found, 0)
    if settings.diffusion_form == "sketch":
        found = sketched(found, settings)
    return scaled(found, settings.diffusion_scaling)


def sketched(rows, settings):
    """Random directions weighted by rows of S; the own one is left out with the self entry."""
    names = np.arange(len(rows)).astype(np.str_)
    dim = settings.diffusion_dim
    omega = signs(text_keys(names), 0, dim).double().numpy() / math.sqrt(dim)
    found: np.ndarray = rows @ omega
    if not settings.diffusion_self_entry:
        for own, row in zip(omega, found, strict=True):
            row -= own * (own @ row)
    return found


def expected(case, name, mode, settings):
    """(R, N, width) in float64, in the most obvious way."""
    replicas, num_nodes = case.labels.shape
    weight = dense_adjacency(case, mode)
    if name.startswith("neighbor_"):
        own = expected(case, name.removeprefix("neighbor_"), mode, settings)
        mean = np.zeros_like(own)
        for center in np.flatnonzero(weight.any(axis=1)):
            mean[:, center] = np.average(own, axis=1, weights=weight[center])
        return mean
    if name == "hops":
        once = np.zeros((num_nodes, num_nodes))
        for center in np.flatnonzero(weight.any(axis=1)):
            once[center] = weight[center] / weight[center].sum()
        x = scaled(case.x, settings.attributes_scaling)
        parts = [np.linalg.matrix_power(once, k) @ x for k in range(1, settings.hops + 1)]
        return np.stack([np.concatenate(parts, axis=1)] * replicas)
    if name in ("attributes", "message_passing"):
        return np.stack([scaled(case.x, settings.attributes_scaling)] * replicas)
    if name == "adjacency":
        return np.stack([scaled(weight, settings.adjacency_scaling)] * replicas)
    if name == "diffusion":
        return np.stack([dense_diffusion(weight, settings)] * replicas)
    counts = np.zeros((replicas, num_nodes, NUM_CLASSES))
    means = np.zeros((replicas, num_nodes, NUM_CLASSES, case.x.shape[1]))
    for replica, labels in enumerate(case.labels):
        for center in range(num_nodes):
            for label in range(NUM_CLASSES):
                own = weight[center] * (labels == label)
                counts[replica, center, label] = own.sum()
                if own.any():
                    means[replica, center, label] = own @ case.x.astype(np.float64) / own.sum()
    if name == "class_counts":
        return np.stack([scaled(rows, settings.class_counts_scaling) for rows in counts])
    rows = means.reshape(replicas, num_nodes, -1)
    return np.stack([scaled(one, settings.class_means_scaling) for one in rows])


def build(case, *settings):
    each = list(settings) * (len(case.labels) if len(settings) == 1 else 1)
    return LocalStatistics(case.graph()).build(case.labels, NUM_CLASSES, each)


@given(case=cases(), settings=settings_of)
def test_every_statistic_matches_the_obvious_matrix(assert_acts_like, case, settings):
    built = build(case, settings)
    assert list(built) == statistic_names(settings)
    for name, statistic in built.items():
        mode = settings.neighbors
        if mode == "both":
            mode = "in" if name.endswith("_in") else "out"
        matrices = expected(case, base_name(name), mode, settings)
        assert_acts_like(statistic, matrices, rtol=1e-4, atol=2e-5)


@given(case=cases(), settings=settings_of)
def test_both_directions_are_the_two_single_modes(case, settings):
    both = build(case, replace(settings, neighbors="both"))
    nodes = torch.arange(len(case.x))
    assert set(both) == {
        "attributes",
        *(f"{name}_{mode}" for name in STATISTICS[1:] for mode in ("out", "in")),
    }
    for mode in ("out", "in"):
        for name, statistic in build(case, replace(settings, neighbors=mode)).items():
            twin = both[name if name == "attributes" else f"{name}_{mode}"]
            for replica in range(2):
                assert torch.equal(statistic.rows(nodes, replica), twin.rows(nodes, replica))


@pytest.mark.slow
@given(case=cases(replicas=4), settings=settings_of, data=st.data())
def test_replicas_with_different_neighbours_equal_separate_builds(case, settings, data):
    modes = data.draw(st.lists(st.sampled_from(NEIGHBORS[:3]), min_size=4, max_size=4))
    each = [replace(settings, neighbors=mode) for mode in modes]
    nodes = torch.arange(len(case.x)).flip(0)
    together = build(case, *each)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(4, statistic.width, 2, generator=generator)
        for name, statistic in together.items()
    }
    for replica in range(4):
        alone = build(case._replace(labels=case.labels[[replica]]), each[replica])
        for name, statistic in alone.items():
            own = weights[name][replica : replica + 1]
            among = together[name].times(weights[name])[replica]
            torch.testing.assert_close(among, statistic.times(own)[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(together[name].rows(nodes, replica), statistic.rows(nodes))


def test_only_what_differs_between_replicas_is_grouped(small_graph):
    settings = PLAIN
    each = [replace(settings, neighbors=mode) for mode in ("out", "in", "out")]
    labels = np.stack([small_graph.y] * 3)
    built = LocalStatistics(small_graph).build(labels, 3, each)
    assert isinstance(built["attributes"], DenseRows)
    for name in STATISTICS[1:]:
        grouped = built[name]
        assert isinstance(grouped, Grouped)
        assert [replicas for _, replicas in grouped.members] == [[0, 2], [1]]


@pytest.mark.slow
@given(case=cases(), settings=settings_of, old=st.integers(1, 7), data=st.data())
def test_another_graphs_columns_are_those_of_the_training_graph(
    assert_acts_like, case, settings, old, data
):
    new = len(case.x)
    places = data.draw(st.permutations(range(max(old, new))))[:new]
    columns = np.array([place if place < old else -1 for place in places])
    settings = replace(settings, neighbors="undirected")
    statistics = LocalStatistics(case.graph(), columns=columns, width=old)
    built = statistics.build(case.labels, NUM_CLASSES, [settings] * 2)
    for name, statistic in built.items():
        matrices = expected(case, name, "undirected", settings)
        if name == "diffusion" and settings.diffusion_form == "sketch":
            assert isinstance(statistic, DenseRows)
        elif name in ("diffusion", "adjacency", "neighbor_adjacency"):
            assert isinstance(statistic, Reindexed | SparseRows | NeighborMean)
            inner, matrices = matrices, np.zeros((2, new, old))
            for node, column in enumerate(columns):
                if column >= 0:
                    matrices[:, :, column] = inner[:, :, node]
        assert_acts_like(statistic, matrices, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_class_means_take_the_form_they_are_told(small_graph, sparse):
    graph = small_graph
    if sparse:
        graph = Graph(sp.csr_array(graph.x), graph.edge_index, graph.y)
    kinds = {
        "dense": ReplicaRows,
        "half": ReplicaRows,
        "sparse": SparseReplicaRows,
        "sketch": ReplicaRows,
        "factored": FactoredMeans,
    }
    assert tuple(kinds) == MEANS_FORMS
    for form, kind in kinds.items():
        settings = replace(PLAIN, statistics=("class_means",), class_means_form=form)
        built = LocalStatistics(graph).build(graph.y[None], 3, [settings])
        assert isinstance(built["class_means"], kind)


def test_diffusion_takes_the_form_it_is_told(small_graph):
    for form, kind in (
        ("dense", DenseDiffusion),
        ("implicit", ImplicitDiffusion),
        ("topk", SparseRows),
        ("sketch", DenseRows),
    ):
        settings = replace(PLAIN, statistics=("diffusion",), diffusion_form=form)
        built = LocalStatistics(small_graph).build(small_graph.y[None], 3, [settings])
        assert isinstance(built["diffusion"], kind)


def test_sparse_attributes_stay_sparse(small_graph):
    sparse = Graph(sp.csr_array(small_graph.x), small_graph.edge_index)
    for scaling in choices("attributes_scaling"):
        assert isinstance(LocalStatistics(sparse).attributes(scaling), SparseRows)
        assert isinstance(LocalStatistics(small_graph).attributes(scaling), DenseRows)


def test_what_does_not_depend_on_labels_is_built_once(small_graph):
    statistics = LocalStatistics(small_graph)
    settings = PLAIN
    first = statistics.build(small_graph.y[None], 3, [settings])
    second = statistics.build(np.roll(small_graph.y, 1)[None], 3, [settings])
    for name in ("attributes", "diffusion", "adjacency"):
        assert first[name] is second[name]
    nodes = torch.arange(18)
    for name in ("class_counts", "class_means"):
        assert not torch.equal(first[name].rows(nodes), second[name].rows(nodes))


@pytest.mark.parametrize("change", [{"neighbors": "in"}, {"teleport": 0.3}])
def test_other_settings_of_diffusion_are_not_mistaken_for_the_kept_one(small_graph, change):
    statistics, nodes = LocalStatistics(small_graph), torch.arange(18)
    settings = replace(PLAIN, statistics=("diffusion",))
    changed = replace(settings, **change)
    kept = statistics.build(small_graph.y[None], 3, [settings])["diffusion"].rows(nodes)
    found = statistics.build(small_graph.y[None], 3, [changed])["diffusion"].rows(nodes)
    fresh = LocalStatistics(small_graph).build(small_graph.y[None], 3, [changed])["diffusion"]
    assert torch.equal(found, fresh.rows(nodes))
    assert not torch.allclose(found, kept, atol=1e-3)


def test_the_largest_entries_have_unit_length_among_themselves(small_graph):
    settings = replace(
        PLAIN,
        statistics=("diffusion",),
        diffusion_form="topk",
        diffusion_topk=3,
        diffusion_scaling="unit",
        diffusion_self_entry=False,
    )
    built = LocalStatistics(small_graph).build(small_graph.y[None], 3, [settings])
    rows = built["diffusion"].rows(torch.arange(18)).numpy()
    assert not rows.diagonal().any()
    np.testing.assert_array_equal((rows > 0).sum(axis=1), [3] * 17 + [0])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [1] * 17 + [0], rtol=1e-6)


def test_a_sketch_serves_nodes_that_were_added_later(small_graph):
    """Rows of named nodes that reach none of the new ones are those of the graph before."""
    settings = replace(
        PLAIN,
        statistics=("diffusion",),
        neighbors="out",
        normalization="row",
        diffusion_form="sketch",
    )
    names = [f"n{node}" for node in range(18)]
    edges = np.concatenate([small_graph.edge_index, [[18, 18], [0, 3]]], axis=1)
    old = Graph(small_graph.x, small_graph.edge_index, node_ids=names)
    new = Graph(np.ones((19, 5)), edges, node_ids=[*names, "new"])
    columns = np.append(np.arange(18), -1)
    before = LocalStatistics(old).build(np.zeros((1, 18), int), 3, [settings])["diffusion"]
    after = LocalStatistics(new, columns=columns, width=18).build(
        np.zeros((1, 19), int), 3, [settings]
    )["diffusion"]
    assert after.width == before.width == 256
    nodes = torch.arange(18)
    torch.testing.assert_close(after.rows(nodes), before.rows(nodes))
    assert after.rows(torch.tensor([18])).any()


def test_statistics_leave_the_graph_alone(small_graph):
    x = small_graph.x.copy()
    before = {mode: small_graph.adjacency(mode).toarray().copy() for mode in NEIGHBORS[:3]}
    settings = replace(
        PLAIN,
        attributes_scaling="unit",
        class_means_scaling="unit",
        adjacency_scaling="unit",
        diffusion_scaling="unit",
        diffusion_self_entry=False,
    )
    for neighbors in NEIGHBORS:
        for form, diffusion in (
            ("dense", "dense"),
            ("factored", "implicit"),
            ("dense", "topk"),
            ("factored", "sketch"),
        ):
            each = replace(
                settings, neighbors=neighbors, class_means_form=form, diffusion_form=diffusion
            )
            LocalStatistics(small_graph).build(small_graph.y[None], 3, [each])
    np.testing.assert_array_equal(small_graph.x, x)
    for mode, matrix in before.items():
        np.testing.assert_array_equal(small_graph.adjacency(mode).toarray(), matrix)


def test_read_only_attributes_give_no_warning(small_graph):
    """Memory-mapped files and pandas give such arrays; torch would warn."""
    x = small_graph.x.copy()
    x.flags.writeable = False
    found = LocalStatistics(Graph(x, small_graph.edge_index)).attributes("raw")
    np.testing.assert_array_equal(found.rows(torch.arange(18)).numpy(), x)


@pytest.mark.parametrize("scaling", ["raw", "fraction", "unit"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_scaled_attributes_match_a_loop(scaling, form):
    """A fraction is of the sum of sizes, so that negative attributes cannot blow a row up."""
    x = np.array([[3, -4, 0], [0, 0, 0], [0.5, 0, 0.25]], np.float32)
    found = scale_attributes(form(x), scaling)
    assert sp.issparse(found) == (form is sp.csr_array)
    assert found.dtype == np.float32
    rows = found.toarray() if sp.issparse(found) else found
    np.testing.assert_allclose(rows, scaled(x, scaling), rtol=1e-6)


@pytest.mark.parametrize("scaling", ["fraction", "unit"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_attributes_scaled_in_blocks_have_the_bits_of_the_whole(scaling, form):
    """Shards scale so, and an empty or odd row is not in every block."""
    x = np.random.default_rng(5).normal(size=(900, 6)).astype(np.float32)
    x[17], x[400], x[401] = 0, 1e30, 1e-30
    whole = scale_attributes(form(x), scaling)
    parts = [scale_attributes(form(x[at : at + 100]), scaling) for at in range(0, 900, 100)]
    joined = sp.vstack(parts).toarray() if sp.issparse(whole) else np.concatenate(parts)
    dense = whole.toarray() if sp.issparse(whole) else whole
    assert joined.tobytes() == dense.tobytes()
    np.testing.assert_allclose(dense, scaled(x.astype(np.float64), scaling), rtol=1e-6)


def test_a_graph_without_edges_has_zero_statistics_but_for_itself():
    graph = Graph([[1.0, 2.0], [3.0, 4.0]], np.empty((2, 0)), [0, 1])
    settings = replace(PLAIN, teleport=0.2)
    for form in ("dense", "implicit", "topk", "sketch"):
        each = replace(settings, diffusion_form=form)
        built = LocalStatistics(graph).build(graph.y[None], 2, [each])
        nodes = torch.arange(2)
        rows = {name: statistic.rows(nodes).numpy() for name, statistic in built.items()}
        np.testing.assert_array_equal(rows["attributes"], graph.x)
        own = 0.2 * np.eye(2)
        if form == "sketch":
            own = sketched(own, each)
        np.testing.assert_allclose(rows["diffusion"], own, rtol=1e-6)
        np.testing.assert_array_equal(rows["message_passing"], graph.x)
        for name in ("class_counts", "class_means", *STATISTICS[4:-1]):
            assert not rows[name].any()


def test_soft_counts_add_up_the_neighbours_probabilities(small_graph):
    """Of every neighbour and class, one after the other; without probabilities labels count."""
    settings = replace(
        PLAIN, statistics=("class_counts", "neighbor_class_counts"), soft_counts=True
    )
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(3), size=(2, small_graph.num_nodes)).astype(np.float32)
    labels = np.stack([small_graph.y] * 2)
    builder = LocalStatistics(small_graph)
    built = builder.build(labels, 3, [settings] * 2, shares)
    adjacency = small_graph.adjacency(settings.neighbors).toarray()
    nodes = torch.arange(small_graph.num_nodes)
    for replica in range(2):
        counts = np.zeros((small_graph.num_nodes, 3))
        for center, neighbor in zip(*np.nonzero(adjacency), strict=True):
            counts[center] += shares[replica, neighbor]
        wanted = scaled(counts, settings.class_counts_scaling)
        found = built["class_counts"].rows(nodes, replica).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert builder.build(labels, 3, [settings] * 2, shares) is built
    other = builder.build(labels, 3, [settings] * 2, shares[::-1])
    assert other is not built
    hard = LocalStatistics(small_graph).build(labels, 3, [settings] * 2)
    plain = LocalStatistics(small_graph).build(
        labels, 3, [replace(settings, soft_counts=False)] * 2, shares
    )
    for name in hard:
        assert torch.equal(hard[name].rows(nodes), plain[name].rows(nodes))
        assert not torch.equal(hard[name].rows(nodes), other[name].rows(nodes))


@pytest.mark.parametrize("neighbors", [("both", "both"), ("out", "in"), ("in", "in")])
def test_a_statistic_and_its_mean_over_neighbours_are_built_once(
    small_graph, neighbors, monkeypatch
):
    kinds = ("neighbor_class_means", "class_means", "class_counts", "neighbor_class_counts")
    built: list[str] = []

    def noted(name, own):
        def build(*given):
            built.append(f"{name} {given[1].mode}")
            return own(*given)

        return build

    for definition in (definitions.ClassMeans, definitions.ClassCounts):
        name = definition.__name__
        monkeypatch.setattr(definition, "build", noted(name, definition.build))
    labels = np.stack([small_graph.y, np.roll(small_graph.y, 1)])
    settings = [replace(PLAIN, statistics=kinds, neighbors=one) for one in neighbors]
    found = LocalStatistics(small_graph).build(labels, 3, settings)
    modes = {mode for one in neighbors for mode in (("out", "in") if one == "both" else (one,))}
    wanted = [f"{name} {mode}" for name in ("ClassCounts", "ClassMeans") for mode in modes]
    assert sorted(built) == sorted(wanted)
    nodes = torch.arange(small_graph.num_nodes)
    for kind in kinds:  # the same as each built alone
        alone = [replace(one, statistics=(kind,)) for one in settings]
        for name, statistic in LocalStatistics(small_graph).build(labels, 3, alone).items():
            for replica in range(2):
                expected = statistic.rows(nodes, replica)
                assert torch.equal(found[name].rows(nodes, replica), expected)


@given(case=cases(), mode=st.sampled_from(NEIGHBORS[:3]))
def test_two_hops_are_the_nodes_two_edges_away_and_no_fewer(case, mode):
    matrix = case.graph().adjacency(mode).toarray()
    num_nodes = len(matrix)
    far = np.zeros((num_nodes, num_nodes))
    for center, middle, end in itertools.product(range(num_nodes), repeat=3):
        if matrix[center, middle] and matrix[middle, end] and not matrix[center, end]:
            far[center, end] = center != end
    rows, columns = (
        np.where(total > 0, 1 / np.sqrt(np.maximum(total, 1)), 0)
        for total in (far.sum(axis=1), far.sum(axis=0))
    )
    expected = torch.from_numpy(rows[:, None] * far * columns).float()
    found = LocalStatistics(case.graph()).two_hop(mode)
    dense = torch.randn(num_nodes, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    product = found @ dense
    torch.testing.assert_close(product, expected @ dense, rtol=1e-5, atol=1e-6)
    [gradient] = torch.autograd.grad(product.square().sum(), dense)
    torch.testing.assert_close(gradient, 2 * expected.T @ expected @ dense, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.transpose.host.toarray(), expected.T.numpy())
    assert found.host.indices.dtype == found.host.indptr.dtype == np.int32
    assert found.host.has_sorted_indices


def test_two_hops_do_not_depend_on_the_size_of_blocks(monkeypatch, small_graph):
    whole = LocalStatistics(small_graph).two_hop("out").host.toarray()
    assert whole.any()
    monkeypatch.setattr(local, "_BLOCK", 5)
    np.testing.assert_array_equal(LocalStatistics(small_graph).two_hop("out").host.toarray(), whole)


def test_two_hops_are_kept_for_each_mode(small_graph):
    statistics = LocalStatistics(small_graph)
    kept = {mode: statistics.two_hop(mode) for mode in NEIGHBORS[:3]}
    for mode, matrix in kept.items():
        assert statistics.two_hop(mode) is matrix
    assert len({id(matrix) for matrix in kept.values()}) == 3


def test_too_many_two_hops_are_refused(monkeypatch, small_graph):
    entries = LocalStatistics(small_graph).two_hop("undirected").host.nnz
    monkeypatch.setattr(local, "TWO_HOP_LIMIT", entries)
    assert LocalStatistics(small_graph).two_hop("undirected").host.nnz == entries
    monkeypatch.setattr(local, "TWO_HOP_LIMIT", entries - 1)
    with pytest.raises(GraphError, match=f"more than {entries - 1} entries. Choose a model"):
        LocalStatistics(small_graph).two_hop("undirected")


@pytest.mark.parametrize("scaling", ["raw", "unit"])
def test_class_means_of_half_precision_are_those_of_the_dense_form(
    small_graph, assert_acts_like, scaling
):
    labels = np.stack([small_graph.y, (small_graph.y + 1) % 3])
    chosen = replace(PLAIN, statistics=("class_means",), class_means_scaling=scaling)
    builder = LocalStatistics(small_graph)
    dense, half = (
        builder.build(labels, 3, [replace(chosen, class_means_form=form)] * 2)["class_means"]
        for form in ("dense", "half")
    )
    assert isinstance(dense, ReplicaRows)
    assert isinstance(half, ReplicaRows)
    assert half.matrices.dtype == torch.float16
    assert_acts_like(half, dense.matrices.numpy(), rtol=3e-3, atol=6e-3)


def test_the_statistics_built_last_are_kept_and_no_others(small_graph):
    local = LocalStatistics(small_graph)
    settings = [StatisticsSettings()] * 2
    labels = np.stack([small_graph.y, np.roll(small_graph.y, 1)])
    first = local.build(labels, 3, settings)
    assert local.build(labels.copy(), 3, settings) is first
    for other in (
        local.build(labels[::-1], 3, settings),
        local.build(labels[::-1], 4, settings),
        local.build(labels[::-1], 4, [StatisticsSettings(class_counts_scaling="raw")] * 2),
    ):
        assert other is not first
    again = local.build(labels, 3, settings)
    assert again is not first
    nodes = torch.arange(small_graph.num_nodes)
    for name, statistic in first.items():
        assert torch.equal(again[name].rows(nodes, 1), statistic.rows(nodes, 1))


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["raw", "unit"])
@given(case=cases())
def test_a_sketch_of_class_means_is_the_class_means_times_signs(assert_acts_like, scaling, case):
    dim = 8
    settings = replace(PLAIN, statistics=("class_means",), class_means_scaling="raw")
    means = expected(case, "class_means", "undirected", settings)
    names = np.array([f"attribute {number}" for number in range(case.x.shape[1])])
    omega = signs(text_keys(names), 0, dim).double().numpy() / math.sqrt(dim)
    rows = means @ np.kron(np.eye(NUM_CLASSES), omega)
    sketch = replace(
        settings, class_means_form="sketch", class_means_dim=dim, class_means_scaling=scaling
    )
    found = build(case, sketch)["class_means"]
    assert isinstance(found, ReplicaRows)
    assert found.matrices.dtype == torch.float16
    stacked = np.stack([scaled(one, scaling) for one in rows])
    lost = np.abs(rows).max(axis=-1, keepdims=True) < 1e-6  # signs may cancel: rounding is left
    if scaling == "raw" or not (lost & rows.any(axis=-1, keepdims=True)).any():
        assert_acts_like(found, stacked, rtol=3e-3, atol=6e-3)


def test_batches_take_sparse_class_means_where_they_are_shorter(small_graph):
    """A one in each of 200 columns, or ten in each of 20: 3 neighbours, 3 classes."""
    chosen = HPGMNSettings(statistics=("class_means",), neighbors="out", batch_size=2)
    for width, filled, kind in ((200, 1, SparseReplicaRows), (20, 10, ReplicaRows)):
        x = np.zeros((18, width))
        x[:, :filled] = 1
        graph = Graph(sp.csr_array(x), small_graph.edge_index, small_graph.y)
        found = LocalStatistics(graph).build(graph.y[None], 3, [chosen])["class_means"]
        assert isinstance(found, kind)
        assert found.width == 3 * width


def test_the_builder_for_other_edges_keeps_the_columns(small_graph):
    columns = np.append(np.arange(17) + 1, -1)
    fewer = Graph(small_graph.x, small_graph.edge_index[:, :20])
    builder = LocalStatistics(small_graph, columns=columns, width=20).on(fewer)
    rows = builder.adjacency_rows("out", "raw").rows(torch.arange(18)).numpy()
    expected = np.zeros((18, 20))
    expected[:, 1:18] = fewer.adjacency("out").toarray()[:, :17]
    np.testing.assert_array_equal(rows, expected)
    alone = LocalStatistics(small_graph).on(fewer)
    np.testing.assert_array_equal(
        alone.adjacency_rows("out", "raw").rows(torch.arange(18)).numpy(),
        fewer.adjacency("out").toarray(),
    )


def test_default_statistics_load_neither_diffusion_nor_cache_tables_or_numba():
    """Everyday commands stay short: rare forms are imported on use."""
    program = """
import sys, numpy as np
from hpgmn.graph import Graph
from hpgmn.statistics import LocalStatistics, StatisticsSettings
random = np.random.default_rng(0)
graph = Graph(np.ones((9, 2)), random.integers(0, 9, (2, 20)), random.integers(0, 2, 9))
assert len(LocalStatistics(graph).build(graph.y[None], 2, [StatisticsSettings()])) == 7
rare = ("hpgmn.statistics.", "hpgmn.tables", "pyarrow", "numba.")
print(sorted(name for name in sys.modules if name.startswith(rare)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = ("definitions", "labelwise", "local", "operators", "settings", "source", "targets")
    assert done.stdout.strip() == str([f"hpgmn.statistics.{name}" for name in modules])


@hypothesis.settings(max_examples=20)
@given(case=cases(), settings=settings_of, data=st.data())
def test_statistics_by_type_are_those_of_the_types_edges(assert_acts_like, case, settings, data):
    count = len(case.edges)
    types = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    plain = case.graph()
    graph = Graph(
        plain.x,
        plain.edge_index,
        edge_weight=plain.edge_weight,
        edge_type=types,
        edge_type_names=["card", "cash", "wire"],
        directed=case.directed,
    )
    settings = replace(settings, statistics=("attributes", "class_counts", "class_means", "hops"))
    built = LocalStatistics(graph).build(case.labels, NUM_CLASSES, [settings] * 2)
    assert list(built) == statistic_names(settings, 3)
    assert len(built) == 1 + (2 if settings.neighbors == "both" else 1) * 7
    for name, statistic in built.items():
        mode = settings.neighbors
        if mode == "both":
            mode = "in" if "_in" in name else "out"
        edges = case.edges
        if "_type" in name:
            pairs = zip(case.edges, types, strict=True)
            edges = [edge for edge, kind in pairs if name.endswith(f"_type{kind}")]
        matrices = expected(case._replace(edges=edges), base_name(name), mode, settings)
        assert_acts_like(statistic, matrices, rtol=1e-4, atol=2e-5)
    merged = LocalStatistics(graph).build(
        case.labels, NUM_CLASSES, [replace(settings, edge_types="merged")] * 2
    )
    assert list(merged) == statistic_names(settings)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_counts_of_the_types_add_up_to_those_of_all_edges(small_graph, neighbors):
    pairs = [tuple(sorted(edge)) for edge in small_graph.edge_index.T.tolist()]
    types = [first % 2 for first, _ in pairs]  # one for each pair of nodes
    typed = Graph(small_graph.x, small_graph.edge_index, small_graph.y, edge_type=types)
    settings = replace(
        PLAIN, statistics=("class_counts",), neighbors=neighbors, class_counts_scaling="raw"
    )
    labels, nodes = small_graph.y[None], torch.arange(18)
    by_type = LocalStatistics(typed).build(labels, 3, [settings])
    merged = LocalStatistics(small_graph).build(labels, 3, [settings])["class_counts"]
    total = sum(statistic.rows(nodes) for statistic in by_type.values())
    assert len(by_type) == 2
    torch.testing.assert_close(total, merged.rows(nodes))
