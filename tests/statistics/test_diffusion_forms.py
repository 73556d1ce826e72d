"""Forms of diffusion: the rule of auto, the memory of each, errors before any work."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.sparse import transition
from hpgmn.graph import Graph
from hpgmn.statistics import LocalStatistics, StatisticsSettings, definitions, diffusion_forms
from hpgmn.statistics.diffusion_forms import Diffusion
from hpgmn.statistics.local import fix_sketches
from hpgmn.statistics.settings import FORMS

CPU = torch.device("cpu")
GPU = torch.device("cuda")
PLAIN = StatisticsSettings(statistics=("diffusion",))


def ring(num_nodes):
    """Every node leads to the next: N edges."""
    node = np.arange(num_nodes)
    return Graph(np.ones((num_nodes, 1)), np.stack([node, np.roll(node, -1)]))


def form_of(graph, monkeypatch, free=math.inf, **changes):
    monkeypatch.setattr(diffusion_forms, "free_bytes", lambda device: free)
    settings = replace(PLAIN, **changes)
    matrix = transition(graph.adjacency("out"), "column")
    return Diffusion.choose_form(
        matrix, settings, CPU, sketched=definitions.diffusion_is_sketched(graph, settings)
    )


def test_auto_follows_the_rule(monkeypatch, caplog):
    caplog.set_level("INFO", logger="hpgmn.statistics.definitions")
    graph = ring(100)
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 10_000)
    monkeypatch.setattr(definitions, "DENSE_LIMIT_BYTES", 40_000)
    assert form_of(graph, monkeypatch) == "dense"
    assert form_of(graph, monkeypatch, free=850_000) == "implicit"
    monkeypatch.setattr(definitions, "DENSE_LIMIT_BYTES", 39_999)
    assert form_of(graph, monkeypatch) == "implicit"
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 9_999)
    assert form_of(graph, monkeypatch) == "sketch"
    told = [message.partition("; ")[2] for message in caplog.messages]
    assert told == [
        "a matrix takes at most 0.0 MiB.",
        "a matrix does not fit into 0.8 MiB.",
        "a matrix takes 0.0 MiB.",
        "nodes times edges exceed 9,999.",
    ]
    assert caplog.messages[0].startswith("Diffusion of 100 nodes: dense form, 0.9 MiB; ")


def test_free_memory_never_makes_a_sketch(monkeypatch):
    """The number of columns is the graph's, so that a run can go on where there is less memory."""
    with pytest.raises(HPGMNError, match="The implicit form"):
        form_of(ring(100), monkeypatch, free=200_000)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_fits_is_taken_as_set(monkeypatch, form):
    graph = ring(100)
    needed = Diffusion.form_bytes(form, transition(graph.adjacency("out"), "column"), PLAIN)
    assert form_of(graph, monkeypatch, free=needed, diffusion_form=form) == form
    with pytest.raises(HPGMNError, match=f"The {form} form of diffusion needs"):
        form_of(graph, monkeypatch, free=needed - 1, diffusion_form=form)


def test_a_refusal_names_the_forms_that_fit(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(HPGMNError) as caught:
        form_of(ring(20_000), monkeypatch, free=200 * 2**20, diffusion_form="dense")
    assert "3.1 GiB for 20,000 nodes, and 200.0 MiB are free" in caught.value.message
    remedy = caught.value.remedy
    assert [(choice.setting, choice.value) for choice in (remedy, *remedy.alternatives)] == [
        *(("diffusion_form", form) for form in ("implicit", "topk", "sketch")),
        (None, None),
    ]
    assert "30.3 MiB" in remedy.alternatives[0].action


def test_a_form_that_would_take_hours_is_not_proposed(monkeypatch, caplog):
    caplog.set_level(
        "WARNING", logger="hpgmn.statistics.diffusion_forms"
    )  # others may have asked for more
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 1)
    with pytest.raises(HPGMNError, match="topk") as caught:
        form_of(ring(20_000), monkeypatch, free=200 * 2**20, diffusion_form="dense")
    assert "implicit" not in str(caught.value)
    assert form_of(ring(20), monkeypatch, diffusion_form="implicit") == "implicit"
    assert caplog.messages == [
        "The implicit form is slow on this graph; diffusion_form=sketch is not."
    ]


@pytest.mark.parametrize(
    ("form", "setting"),
    [
        ("dense", "diffusion_dim"),
        ("implicit", "diffusion_dim"),
        ("topk", "diffusion_topk"),
        ("sketch", "diffusion_dim"),
    ],
)
def test_where_nothing_fits_less_is_proposed(monkeypatch, form, setting):
    with pytest.raises(HPGMNError, match=rf"{setting}=.*, or leave diffusion out"):
        form_of(ring(1000), monkeypatch, free=2**10, diffusion_form=form)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_built_before_it_is_known_to_fit(monkeypatch, small_graph, form):
    monkeypatch.setattr(diffusion_forms, "free_bytes", lambda device: 1000)
    settings = replace(PLAIN, diffusion_form=form)
    with pytest.raises(HPGMNError, match=r"for 18 nodes, and 0\.0 MiB are free"):
        LocalStatistics(small_graph).build(small_graph.y[None], 3, [settings])


def test_what_a_form_needs_grows_with_what_is_asked():
    matrix = transition(ring(1000).adjacency("out"), "column")
    for form, name in (("topk", "diffusion_topk"), ("sketch", "diffusion_dim")):
        sizes = [
            Diffusion.form_bytes(form, matrix, replace(PLAIN, **{name: n})) for n in (16, 32, 2000)
        ]
        assert sizes == sorted(set(sizes))
    star = sp.csr_array((np.ones(999, np.float32), (np.arange(1, 1000), np.zeros(999, int))))
    star.resize((1000, 1000))
    assert (
        Diffusion.form_bytes("dense", star, PLAIN)
        < Diffusion.form_bytes("dense", matrix, PLAIN) / 1.5
    )


# The sketch is settled by the graph of the training.


def test_settings_name_the_sketch_that_auto_took(monkeypatch):
    graph = ring(100)
    assert fix_sketches(graph, PLAIN) is PLAIN
    monkeypatch.setattr(definitions, "DENSE_LIMIT_BYTES", 0)
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 0)
    assert fix_sketches(graph, PLAIN) == replace(PLAIN, diffusion_form="sketch")
    for other in (
        replace(PLAIN, diffusion_form="implicit"),
        replace(PLAIN, statistics=("attributes",)),
        object(),
    ):
        assert fix_sketches(graph, other) is other


def test_whether_it_is_a_sketch_does_not_depend_on_the_neighbour_mode(monkeypatch, small_graph):
    """Replicas of one batch may read different neighbours, but their widths must agree."""
    edges = small_graph.adjacency("out").nnz
    assert small_graph.adjacency("undirected").nnz > edges
    monkeypatch.setattr(definitions, "DENSE_LIMIT_BYTES", 0)
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 18 * edges)
    each = [replace(PLAIN, neighbors=mode) for mode in ("out", "undirected")]
    labels = np.stack([small_graph.y] * 2)
    built = LocalStatistics(small_graph).build(labels, 3, each)
    assert built["diffusion"].width == 18
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 18 * edges - 1)
    built = LocalStatistics(small_graph).build(labels, 3, each)
    assert built["diffusion"].width == 256


def test_a_trained_model_keeps_its_number_of_columns(monkeypatch, small_graph):
    monkeypatch.setattr(definitions, "DENSE_LIMIT_BYTES", 0)
    monkeypatch.setattr(definitions, "IMPLICIT_LIMIT", 0)
    statistics = LocalStatistics(small_graph, columns=np.arange(18), width=20)
    assert statistics.build(small_graph.y[None], 3, [PLAIN])["diffusion_out"].width == 20
