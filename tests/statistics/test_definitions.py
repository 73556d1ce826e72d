"""Forms of class means, and the keys of every statistic."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.statistics import LocalStatistics, StatisticsSettings, cache, definitions
from hpgmn.statistics.definitions import ClassMeans, require_half_range, select
from hpgmn.statistics.diffusion_forms import Diffusion
from hpgmn.statistics.local import DEFINITIONS, definition, fix_sketches
from hpgmn.statistics.settings import MEANS_FORMS

CPU = torch.device("cpu")
GPU = torch.device("cuda")
PLAIN = StatisticsSettings(statistics=("diffusion",))


# Class means.

BATCHES = HPGMNSettings(statistics=("class_means",), batch_size=2)


def wheel(num_nodes, width, *, entries=0):
    """Every node leads to the next two; two classes; dense attributes, or so many in a row."""
    node = np.arange(num_nodes)
    edges = [np.stack([node, np.roll(node, -step)]) for step in (1, 2)]
    x: Any = np.ones((num_nodes, width), np.float32)
    if entries:
        x[:, entries:] = 0
        x = sp.csr_array(x)
    return Graph(x, np.concatenate(edges, axis=1), node % 2)


def means_form_of(graph, monkeypatch, free=math.inf, device=CPU, **changes):
    monkeypatch.setattr(definitions, "free_bytes", lambda device: free)
    settings = replace(BATCHES, **changes)
    return ClassMeans.choose_form(
        graph.adjacency("out"),
        graph.x,
        1,
        2,
        settings,
        device,
        sketched=ClassMeans.is_sketched(graph, settings, graph.num_classes),
    )


def test_auto_follows_the_rule_of_class_means(monkeypatch, caplog):
    """100 nodes, 2·200 columns: 80,000 bytes of half precision; 2 neighbours of 5 entries each."""
    caplog.set_level("INFO", logger="hpgmn.statistics.definitions")
    dense, sparse = wheel(100, 200), wheel(100, 200, entries=5)
    monkeypatch.setattr(definitions, "ROWS_LIMIT_BYTES", 80_000)
    assert means_form_of(dense, monkeypatch) == "half"
    assert means_form_of(sparse, monkeypatch) == "sparse"
    assert means_form_of(wheel(100, 200, entries=60), monkeypatch) == "half"
    monkeypatch.setattr(definitions, "ROWS_LIMIT_BYTES", 79_999)
    assert means_form_of(dense, monkeypatch) == "sketch"
    assert means_form_of(sparse, monkeypatch) == "sparse"
    monkeypatch.setattr(definitions, "ROWS_LIMIT_BYTES", 8 * 100 * 10)
    assert means_form_of(sparse, monkeypatch) == "sparse"
    monkeypatch.setattr(definitions, "ROWS_LIMIT_BYTES", 8 * 100 * 10 - 1)
    assert means_form_of(sparse, monkeypatch) == "sketch"
    assert means_form_of(dense, monkeypatch, batch_size=0) == "dense"
    assert means_form_of(sparse, monkeypatch, batch_size=0) == "factored"
    monkeypatch.setattr(definitions, "MEANS_LIMIT_BYTES", 4 * 100 * 400 - 1)
    assert means_form_of(dense, monkeypatch, batch_size=0) == "factored"
    much = 4 * 100 * 400 / definitions.MEANS_GPU_SHARE
    assert means_form_of(dense, monkeypatch, free=much, device=GPU, batch_size=0) == "dense"
    assert means_form_of(dense, monkeypatch, free=much - 9, device=GPU, batch_size=0) == "factored"
    told = [message.partition("; ")[2] for message in caplog.messages]
    assert told == [
        "batches read single rows.",
        "attributes are sparse.",
        "batches read single rows.",
        "rows take more than 0.1 MiB.",
        "attributes are sparse.",
        "attributes are sparse.",
        "rows take more than 0.0 MiB.",
        "rows take at most 512.0 MiB.",
        "attributes are sparse.",
        "rows take 0.2 MiB.",
        "rows take at most 0.2 MiB.",
        "rows take 0.2 MiB.",
    ]
    assert caplog.messages[0] == (
        "Class means of 100 nodes: half form, 0.1 MiB; batches read single rows."
    )


def test_a_sketch_that_would_be_no_shorter_is_not_taken(monkeypatch):
    monkeypatch.setattr(definitions, "ROWS_LIMIT_BYTES", 0)
    assert means_form_of(wheel(10, 65), monkeypatch) == "sketch"
    assert means_form_of(wheel(10, 64), monkeypatch) == "half"
    assert means_form_of(wheel(10, 64), monkeypatch, class_means_dim=63) == "sketch"


def test_entries_of_class_means_are_at_most_those_of_neighbours():
    random = np.random.default_rng(0)
    x = sp.csr_array((random.random((40, 30)) < 0.2).astype(np.float32))
    weight = (random.random((40, 40)) < 0.1) * random.uniform(0.1, 5, (40, 40))
    adjacency = sp.csr_array(weight.astype(np.float32))
    counts = np.diff(x.indptr)
    reached = [sum(counts[u] for u in np.flatnonzero(row)) for row in weight]
    assert ClassMeans.most_entries(adjacency, x, 10**6) == sum(reached)
    assert ClassMeans.most_entries(adjacency, x, 15) == sum(min(number, 15) for number in reached)
    turned = [sum(counts[u] for u in np.flatnonzero(row)) for row in weight.T]
    assert ClassMeans.most_entries(adjacency.T, x, 10**6) == sum(turned)
    np.testing.assert_array_equal(adjacency.toarray(), weight.astype(np.float32))  # left alone


def test_free_memory_never_makes_a_sketch_of_class_means(monkeypatch):
    assert means_form_of(wheel(100, 200), monkeypatch, free=50_000) == "half"  # in a file
    with pytest.raises(HPGMNError, match="The half form of class_means needs"):
        means_form_of(wheel(100, 200), monkeypatch, free=50_000, device=GPU)


@pytest.mark.parametrize("form", MEANS_FORMS)
def test_class_means_that_fit_are_taken_as_set(monkeypatch, form):
    graph = wheel(100, 200, entries=5)
    needed = ClassMeans.form_bytes(graph.adjacency("out"), graph.x, 1, 2, 64)[form]
    assert means_form_of(graph, monkeypatch, free=needed, class_means_form=form) == form
    with pytest.raises(HPGMNError, match=f"The {form} form of class_means needs"):
        means_form_of(graph, monkeypatch, free=needed - 1, device=GPU, class_means_form=form)


def test_a_refusal_names_the_forms_of_class_means_that_fit(monkeypatch):
    graph = wheel(20_000, 500, entries=10)
    with pytest.raises(HPGMNError) as caught:
        means_form_of(graph, monkeypatch, free=20 * 2**20, device=GPU, class_means_form="half")
    assert "38.8 MiB for 20,000 nodes, and 20.0 MiB are free" in caught.value.message
    remedy = caught.value.remedy
    assert (remedy.value, remedy.alternatives[0].value) == ("sparse", "sketch")
    assert "5.2 MiB" in remedy.action
    with pytest.raises(HPGMNError, match=r'class_means_form="sketch".*class_means_dim='):
        means_form_of(graph, monkeypatch, free=2**20, device=GPU, class_means_form="half")
    with pytest.raises(HPGMNError, match='class_means_form="factored"'):
        means_form_of(graph, monkeypatch, free=2**24, class_means_form="dense", batch_size=0)


def test_class_means_are_not_built_before_they_are_known_to_fit(monkeypatch, small_graph):
    monkeypatch.setattr(definitions, "free_bytes", lambda device: 100)
    chosen = replace(BATCHES, class_means_form="sparse")
    with pytest.raises(HPGMNError, match=r"for 18 nodes, and 0\.0 MiB are free"):
        LocalStatistics(small_graph).build(small_graph.y[None], 3, [chosen])


def test_what_class_means_need_is_at_least_what_they_keep(small_graph):
    adjacency = small_graph.adjacency("out")
    x = sp.csr_array(small_graph.x)
    for replicas in (1, 3):
        needed = ClassMeans.form_bytes(adjacency, x, replicas, 3, 4)
        assert needed["dense"] >= replicas * 18 * 15 * 4
        assert needed["half"] >= replicas * 18 * 15 * 2
        assert needed["sketch"] >= replicas * 18 * 12 * 2
        assert needed["sparse"] >= replicas * 8 * adjacency.nnz * 5
        assert needed["factored"] >= replicas * 8 * (adjacency.nnz + x.nnz)


def test_settings_name_the_sketch_of_class_means_that_auto_took(monkeypatch):
    graph = wheel(100, 200)
    assert fix_sketches(graph, BATCHES) is BATCHES
    monkeypatch.setattr(definitions, "ROWS_LIMIT_BYTES", 0)
    named = fix_sketches(graph, BATCHES)
    assert named == replace(BATCHES, class_means_form="sketch")
    assert fix_sketches(graph, named) is named
    for other in (
        replace(BATCHES, class_means_form="half"),
        replace(BATCHES, batch_size=0),
        replace(BATCHES, statistics=("attributes",)),
    ):
        assert fix_sketches(graph, other) is other
    monkeypatch.setattr(definitions, "DENSE_LIMIT_BYTES", 0)
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 0)
    both = replace(BATCHES, statistics=("class_means", "diffusion"))
    assert fix_sketches(graph, both) == replace(
        both, class_means_form="sketch", diffusion_form="sketch"
    )


def test_a_trained_model_keeps_its_columns_of_class_means(monkeypatch):
    graph = wheel(20, 70)
    monkeypatch.setattr(definitions, "ROWS_LIMIT_BYTES", 0)
    each = [replace(BATCHES, neighbors="out")]
    trained = LocalStatistics(graph).build(graph.y[None], 2, each)["class_means"]
    assert trained.width == 2 * 64
    used = LocalStatistics(graph, width=20)
    assert used.build(graph.y[None], 2, each)["class_means"].width == 2 * 70
    named = [fix_sketches(graph, each[0])]
    assert used.build(graph.y[None], 2, named)["class_means"].width == 2 * 64


# What is free.


@pytest.mark.parametrize("sparse", [False, True])
def test_attributes_beyond_half_precision_are_refused(sparse):
    x: Any = np.float32([[0, 65504], [-65504, 3]])
    require_half_range(sp.csr_array(x) if sparse else x)
    x[1, 0] = -70000
    with pytest.raises(HPGMNError, match=r'as large as 70000 .*class_means_scaling="unit"'):
        require_half_range(sp.csr_array(x) if sparse else x)
    graph = Graph(x, [[0], [1]], [0, 1])
    settings = replace(BATCHES, statistics=("class_means",), class_means_form="half")
    with pytest.raises(HPGMNError, match="beyond half precision"):
        LocalStatistics(graph).build(graph.y[None], 2, [settings])
    fine = replace(settings, class_means_scaling="unit")
    LocalStatistics(graph).build(graph.y[None], 2, [fine])


# Keys.

CHANGED: dict[str, Any] = {
    "attributes_scaling": "unit",
    "class_counts_scaling": "raw",
    "soft_counts": True,
    "class_means_scaling": "unit",
    "class_means_form": "half",
    "class_means_dim": 8,
    "diffusion": "heat",
    "teleport": 0.3,
    "heat_time": 1.0,
    "normalization": "row",
    "diffusion_self_loop": 1,
    "diffusion_form": "topk",
    "diffusion_tolerance": 1e-5,
    "diffusion_topk": 3,
    "diffusion_threshold": 1e-3,
    "diffusion_dim": 16,
    "diffusion_scaling": "raw",
    "diffusion_self_entry": True,
    "adjacency_scaling": "raw",
    "hops": 5,
    "hops_dim": 3,
}


def test_every_setting_changes_a_key():
    """A new setting must be added here and declared by the statistic that reads it."""
    structural = {"statistics", "neighbors", "edge_types"}  # which statistics, the modes in keys
    structural |= {"mp_normalization", "mp_residual"}  # in the key of the propagation
    assert {info.name for info in fields(StatisticsSettings)} - structural == set(CHANGED)
    plain = StatisticsSettings()
    for name, value in CHANGED.items():
        assert getattr(plain, name) != value
        other = replace(plain, **{name: value})
        readers = [
            one
            for one in (*DEFINITIONS.values(), definition("diffusion"), definition("hops"))
            if one.key("in", plain) != one.key("in", other)
        ]
        assert len(readers) == (2 if name == "attributes_scaling" else 1), name
    assert Diffusion.key("in", plain) != Diffusion.key("out", plain)


@pytest.mark.parametrize("definition", [ClassMeans, Diffusion])
def test_stored_forms_depend_on_declared_settings(definition):
    """What a definition reads, other than to choose its form, is in the key of a form."""
    stored = {name for names in definition.stored.values() for name in names}
    chooses = {"class_means_form", "diffusion_form", "batch_size"}
    assert stored == set(definition.settings) - chooses


def test_an_undeclared_setting_cannot_be_read():
    chosen = select(StatisticsSettings(), ("teleport",))
    assert (chosen.teleport, chosen.as_dict()) == (0.15, {"teleport": 0.15})
    with pytest.raises(AttributeError, match="'heat_time' is not declared"):
        _ = chosen.heat_time
    assert select(StatisticsSettings(), ("batch_size",)).batch_size == 0


def test_every_setting_of_a_stored_form_changes_its_entry(small_graph, tmp_path, monkeypatch):
    monkeypatch.setenv("HPGMN_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "MIN_SECONDS", -1.0)
    for name, kind in (("diffusion", Diffusion), ("class_means", ClassMeans)):
        for form, names in kind.stored.items():
            if form == "implicit":
                continue  # nothing is stored
            plain = StatisticsSettings(
                statistics=(name,), neighbors="out", **{f"{name}_form": form}
            )
            kinds = [plain, *(replace(plain, **{key: CHANGED[key]}) for key in names)]
            before = len(list(tmp_path.iterdir()))
            for settings in kinds:
                LocalStatistics(small_graph).build(small_graph.y[None], 3, [settings])
            assert len(list(tmp_path.iterdir())) - before == len(kinds), form
