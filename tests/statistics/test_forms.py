"""The form of the diffusion: the rule of auto, what each form needs, what is refused and how."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.statistics import LocalStatistics, StatisticsSettings, forms
from hpgmn.statistics.diffusion import transition
from hpgmn.statistics.forms import FORMS, chosen_form, form_bytes, free_bytes, is_sketched, settled

CPU = torch.device("cpu")
PLAIN = StatisticsSettings(statistics=("diffusion",))


def ring(num_nodes: int) -> Graph:
    """Every node leads to the next: N edges."""
    node = np.arange(num_nodes)
    return Graph(np.ones((num_nodes, 1)), np.stack([node, np.roll(node, -1)]))


def form_of(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, free: float = math.inf, **changes: Any
) -> str:
    monkeypatch.setattr(forms, "free_bytes", lambda device: free)
    settings = replace(PLAIN, **changes)
    matrix = transition(graph.adjacency("out"), "column")
    return chosen_form(matrix, settings, CPU, sketched=is_sketched(graph, settings))


def test_auto_follows_the_rule(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="hpgmn.statistics.forms")
    graph = ring(100)
    monkeypatch.setattr(forms, "IMPLICIT_LIMIT", 10_000)
    monkeypatch.setattr(forms, "DENSE_LIMIT_BYTES", 40_000)
    assert form_of(graph, monkeypatch) == "dense"
    assert form_of(graph, monkeypatch, free=850_000) == "implicit"
    monkeypatch.setattr(forms, "DENSE_LIMIT_BYTES", 39_999)
    assert form_of(graph, monkeypatch) == "implicit"
    monkeypatch.setattr(forms, "IMPLICIT_LIMIT", 9_999)
    assert form_of(graph, monkeypatch) == "sketch"
    told = [message.partition("; ")[2] for message in caplog.messages]
    assert told == [
        "a matrix takes at most 0.0 MiB.",
        "a matrix does not fit into 0.8 MiB.",
        "a matrix takes 0.0 MiB.",
        "nodes times edges exceed 9,999.",
    ]
    assert caplog.messages[0].startswith("Diffusion of 100 nodes: dense form, 0.9 MiB; ")


def test_free_memory_never_makes_a_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of columns is the graph's, so that a run can go on where there is less memory."""
    with pytest.raises(HPGMNError, match="The implicit form"):
        form_of(ring(100), monkeypatch, free=200_000)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_fits_is_taken_as_set(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    graph = ring(100)
    needed = form_bytes(form, transition(graph.adjacency("out"), "column"), PLAIN)
    assert form_of(graph, monkeypatch, free=needed, diffusion_form=form) == form
    with pytest.raises(HPGMNError, match=f"The {form} form of diffusion would take"):
        form_of(graph, monkeypatch, free=needed - 1, diffusion_form=form)


def test_a_refusal_names_the_forms_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(HPGMNError) as caught:
        form_of(ring(20_000), monkeypatch, free=200 * 2**20, diffusion_form="dense")
    assert str(caught.value) == (
        "The dense form of diffusion would take 3.1 GiB for 20,000 nodes, and 200.0 MiB are free. "
        "Set diffusion_form=implicit (156.4 MiB) or diffusion_form=topk (30.3 MiB) or "
        "diffusion_form=sketch (18.6 MiB), or leave diffusion out of statistics."
    )


def test_a_form_that_would_take_hours_is_not_proposed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forms, "IMPLICIT_LIMIT", 1)
    with pytest.raises(HPGMNError, match="Set diffusion_form=topk") as caught:
        form_of(ring(20_000), monkeypatch, free=200 * 2**20, diffusion_form="dense")
    assert "implicit" not in str(caught.value)
    assert form_of(ring(20), monkeypatch, diffusion_form="implicit") == "implicit"
    assert caplog.messages == [
        "The implicit form is slow on this graph; diffusion_form=sketch is not."
    ]


@pytest.mark.parametrize(
    ("form", "remedy"),
    [
        ("dense", "diffusion_form=sketch and a smaller diffusion_dim"),
        ("implicit", "diffusion_form=sketch and a smaller diffusion_dim"),
        ("topk", "a smaller diffusion_topk"),
        ("sketch", "diffusion_form=sketch and a smaller diffusion_dim"),
    ],
)
def test_where_nothing_fits_less_is_proposed(
    monkeypatch: pytest.MonkeyPatch, form: str, remedy: str
) -> None:
    with pytest.raises(HPGMNError, match=f"Set {remedy}, or leave diffusion out"):
        form_of(ring(1000), monkeypatch, free=2**10, diffusion_form=form)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_built_before_it_is_known_to_fit(
    monkeypatch: pytest.MonkeyPatch, small_graph: Graph, form: str
) -> None:
    monkeypatch.setattr(forms, "free_bytes", lambda device: 1000)
    settings = replace(PLAIN, diffusion_form=form)
    with pytest.raises(HPGMNError, match=r"for 18 nodes, and 0\.0 MiB are free"):
        LocalStatistics(small_graph).build(small_graph.y[None], 3, [settings])


def test_what_a_form_needs_grows_with_what_is_asked() -> None:
    matrix = transition(ring(1000).adjacency("out"), "column")
    for form, name in (("topk", "diffusion_topk"), ("sketch", "diffusion_dim")):
        sizes = [form_bytes(form, matrix, replace(PLAIN, **{name: n})) for n in (16, 32, 2000)]
        assert sizes == sorted(set(sizes))
    star = sp.csr_array((np.ones(999, np.float32), (np.arange(1, 1000), np.zeros(999, int))))
    star.resize((1000, 1000))
    assert form_bytes("dense", star, PLAIN) < form_bytes("dense", matrix, PLAIN) / 1.5


# The sketch is settled by the graph of the training.


def test_settings_name_the_sketch_that_auto_took(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ring(100)
    assert settled(graph, PLAIN) is PLAIN
    monkeypatch.setattr(forms, "DENSE_LIMIT_BYTES", 0)
    monkeypatch.setattr(forms, "IMPLICIT_LIMIT", 0)
    assert settled(graph, PLAIN) == replace(PLAIN, diffusion_form="sketch")
    for other in (
        replace(PLAIN, diffusion_form="implicit"),
        replace(PLAIN, statistics=("attributes",)),
        object(),
    ):
        assert settled(graph, other) is other


def test_whether_it_is_a_sketch_does_not_depend_on_the_neighbour_mode(
    monkeypatch: pytest.MonkeyPatch, small_graph: Graph
) -> None:
    """Replicas of one batch may read different neighbours, but their widths must agree."""
    edges = small_graph.adjacency("out").nnz
    assert small_graph.adjacency("undirected").nnz > edges
    monkeypatch.setattr(forms, "DENSE_LIMIT_BYTES", 0)
    monkeypatch.setattr(forms, "IMPLICIT_LIMIT", 18 * edges)
    each = [replace(PLAIN, neighbors=mode) for mode in ("out", "undirected")]
    labels = np.stack([small_graph.y] * 2)
    built = LocalStatistics(small_graph).build(labels, 3, each)
    assert built["diffusion"].width == 18
    monkeypatch.setattr(forms, "IMPLICIT_LIMIT", 18 * edges - 1)
    built = LocalStatistics(small_graph).build(labels, 3, each)
    assert built["diffusion"].width == 128


def test_a_trained_model_keeps_its_number_of_columns(
    monkeypatch: pytest.MonkeyPatch, small_graph: Graph
) -> None:
    monkeypatch.setattr(forms, "DENSE_LIMIT_BYTES", 0)
    monkeypatch.setattr(forms, "IMPLICIT_LIMIT", 0)
    statistics = LocalStatistics(small_graph, columns=np.arange(18), width=20)
    assert statistics.build(small_graph.y[None], 3, [PLAIN])["diffusion_out"].width == 20


# What is free.


def test_free_memory_is_the_least_that_anyone_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory, group = tmp_path / "meminfo", tmp_path / "group"
    (group / "memory").mkdir(parents=True)
    monkeypatch.setattr(forms, "_MEMORY", memory)
    monkeypatch.setattr(forms, "_GROUPS", group)
    assert free_bytes(CPU) == math.inf
    memory.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:   5000 kB\n")
    assert free_bytes(CPU) == 5000 * 1024
    (group / "memory.current").write_text("3000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    (group / "memory.max").write_text("max\n")
    assert free_bytes(CPU) == 5000 * 1024
    (group / "memory.max").write_text("4000\n")
    assert free_bytes(CPU) == 1200
    for name, value in (("limit_in_bytes", "700"), ("usage_in_bytes", "600"), ("stat", "")):
        (group / "memory" / f"memory.{name}").write_text(value)
    assert free_bytes(CPU) == 100


def test_this_machine_says_what_is_free() -> None:
    assert 2**20 < free_bytes(CPU) < 2**50
