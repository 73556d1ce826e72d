"""FSGNN against its formula on dense matrices, in both forms of the hops' attributes."""

import gc

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from hpgmn.base.randomness import DropRate, Noise, column_factors
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines import fsgnn
from hpgmn.models.baselines.fsgnn import (
    FSGNNSettings,
    hop_attributes,
    normalise_adjacency,
    should_densify,
)
from hpgmn.models.layers import initialise
from hpgmn.statistics import LocalStatistics
from hpgmn.statistics.operators import DenseRows, NeighborMean
from hpgmn.training.trainer import train

FORMS = ["dense", "propagated"]


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Each form of the hops' attributes in turn."""
    if request.param == "propagated":
        monkeypatch.setattr(fsgnn, "DENSE_LIMIT_BYTES", 0)
    return str(request.param)


def spread(adjacency):
    """D^-½·A·D^-½, entry by entry."""
    result = torch.zeros_like(adjacency)
    degree = [float(row.sum()) or 1.0 for row in adjacency]
    for center, neighbor in adjacency.nonzero().tolist():
        scale = (degree[center] * degree[neighbor]) ** 0.5
        result[center, neighbor] = adjacency[center, neighbor] / scale
    return result


def hops_of(adjacency, x, hops, self_loops):
    """X, ÂX, ÃX, Â²X, Ã²X, …, dense."""
    plain, looped = spread(adjacency), spread(adjacency + torch.eye(len(adjacency)))
    found = [x]
    for power in range(1, hops + 1):
        if self_loops != "with":
            found.append(torch.linalg.matrix_power(plain, power) @ x)
        if self_loops != "without":
            found.append(torch.linalg.matrix_power(looped, power) @ x)
    return found


def expected_logits(built, replica, hops):
    weights = built.parameter("weigh.logits", replica).softmax(dim=0)
    parts = []
    for number, (hop, weight) in enumerate(zip(hops, weights, strict=True)):
        part = hop @ built.parameter(f"encode.{number}.weight", replica)
        part = part + built.parameter(f"encode.{number}.bias", replica)
        if built.task.settings[0].unit_hops:
            part = part / part.norm(dim=1, keepdim=True)
        parts.append(weight * part)
    return built.affine("classify", torch.cat(parts, dim=1).relu(), replica)


@pytest.mark.parametrize(
    ("neighbors", "self_loops", "unit_hops"),
    [("out", "both", True), ("in", "without", False), ("undirected", "with", True)],
)
def test_it_is_the_formula(build, form, neighbors, self_loops, unit_hops):
    built = build("fsgnn", neighbors=neighbors, self_loops=self_loops, unit_hops=unit_hops)
    kinds = {type(hop).__name__ for hop in built.stage.inputs["hops"][1:]}
    assert kinds == {"DenseRows" if form == "dense" else "NeighborMean"}
    hops = hops_of(built.adjacency(neighbors), built.x, 3, self_loops)
    for replica, found in enumerate(built.logits):
        expected = expected_logits(built, replica, hops)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("hops", "scaling"), [(1, "raw"), (2, "unit"), (5, "fraction")])
def test_hops_begin_with_the_scaled_attributes(build, form, hops, scaling):
    built = build("fsgnn", hops=hops, attributes_scaling=scaling)
    x = built.x
    if scaling != "raw":
        x = x / x.norm(p=1 if scaling == "fraction" else 2, dim=1, keepdim=True)
    expected = hops_of(built.adjacency("out"), x, hops, "both")
    everything = torch.arange(23)
    for hop, own in zip(built.stage.inputs["hops"], expected, strict=True):
        torch.testing.assert_close(hop.rows(everything), own, rtol=1e-4, atol=1e-5)
        some = torch.tensor([4, 0, 4])
        torch.testing.assert_close(hop.rows(some), own[some], rtol=1e-4, atol=1e-5)
    for replica, found in enumerate(built.logits):
        logits = expected_logits(built, replica, expected)
        torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)


def test_an_empty_row_counts_as_one_and_weights_are_summed():
    matrix = np.array([[0, 2, 7], [1, 0, 0], [0, 0, 0]], np.float32)
    found = normalise_adjacency(sp.csr_array(matrix), 0.0).toarray()
    expected = [[0, 2 / 9**0.5, 7 / 9**0.5], [1 / 9**0.5, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(found, np.array(expected, np.float32), rtol=1e-6)
    looped = normalise_adjacency(sp.csr_array(matrix), 2.0).toarray()
    assert looped[2, 2] == pytest.approx(1.0)
    assert looped[0, 1] == pytest.approx(2 / (11 * 3) ** 0.5)


def test_input_dropout_drops_columns_of_each_hop(build, form):
    built = build("fsgnn", dropout=0.0, attributes_dropout=0.5)
    assert isinstance(built.stage.inputs["hops"][-1], DenseRows) == (form == "dense")
    noise = Noise(built.task.keys("main"), 3)
    found = built.stage.model(built.stage.inputs, noise).logits
    hops = hops_of(built.adjacency("out"), built.x, 3, "both")
    factors = [
        column_factors(7, DropRate([0.5, 0.5]), noise, f"hop.{number}.columns")
        for number in range(7)
    ]
    for replica in range(2):
        dropped = [hop * own[replica] for hop, own in zip(hops, factors, strict=True)]
        expected = expected_logits(built, replica, dropped)
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)
        assert not torch.equal(found[replica], built.logits[replica])


def test_dropout_follows_the_joined_hops(build):
    built = build("fsgnn", dropout=0.5)
    seen: list[Tensor] = []
    built.stage.model.classify.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for noise in (None, Noise(built.task.keys("main"), 1)):
        built.stage.model(built.stage.inputs, noise)
    whole, noisy = seen
    kept = noisy != 0
    torch.testing.assert_close(noisy[kept], 2 * whole[kept])
    share = kept.sum() / (whole != 0).sum()
    assert 0.4 < share < 0.6


def test_the_weights_of_the_hops_are_even_at_first(build):
    built = build("fsgnn")
    initialise(built.stage.model, built.task.keys("main"))
    assert torch.equal(built.stage.model.weigh.logits, torch.ones(2, 7))


def test_the_parts_have_rates_of_their_own(build):
    built = build(
        "fsgnn",
        lr=0.1,
        weight_decay=0.2,
        classifier_weight_decay=0.3,
        hop_lr=0.4,
        hop_weight_decay=0.5,
    )
    stage = built.stage
    assert (stage.lr, stage.weight_decay) == ([0.1, 0.1], [0.2, 0.2])
    rates = {place: (one.lr, one.weight_decay) for place, one in stage.own_rates.items()}
    assert rates == {"weigh.": ([0.4, 0.4], [0.5, 0.5]), "classify.": ([0.1, 0.1], [0.3, 0.3])}
    beginnings = {name.split(".")[0] + "." for name, _ in stage.model.named_parameters()}
    assert beginnings == {"encode.", *rates}


@pytest.mark.parametrize("moved", ["lr", "hop_lr"])
def test_a_part_with_learning_rate_zero_stays(build, moved):
    rates = {"lr": 0.0, "hop_lr": 0.0} | {moved: 0.1}
    built = build("fsgnn", epochs=1, **rates)
    before = MODELS["fsgnn"].stages["main"](built.task, {}).model
    initialise(before, built.task.keys("main"))
    after = train(built.task, MODELS["fsgnn"]).done["main"]
    for name, value in before.named_parameters():
        is_weight = name.startswith("weigh.")
        assert torch.equal(value, after[name]) == (is_weight != (moved == "hop_lr")), name


def test_both_forms_train_equally(build, monkeypatch):
    dense = train(build("fsgnn", epochs=8).task, MODELS["fsgnn"]).history["main"]["loss"]
    monkeypatch.setattr(fsgnn, "DENSE_LIMIT_BYTES", 0)
    built = build("fsgnn", epochs=8)
    assert isinstance(built.stage.inputs["hops"][-1], NeighborMean)
    propagated = train(built.task, MODELS["fsgnn"]).history["main"]["loss"]
    assert dense.shape == (8, 2)
    torch.testing.assert_close(propagated, dense, rtol=1e-4, atol=1e-5)


def test_hops_are_made_once_for_a_graph_and_its_settings(wild_graph):
    statistics = LocalStatistics(wild_graph)
    first = hop_attributes(statistics, FSGNNSettings())
    assert hop_attributes(statistics, FSGNNSettings(lr=0.5)) is first
    for other in (
        FSGNNSettings(hops=2),
        FSGNNSettings(neighbors="in"),
        FSGNNSettings(self_loops="with"),
        FSGNNSettings(attributes_scaling="unit"),
    ):
        assert hop_attributes(statistics, other) is not first
    assert hop_attributes(statistics, FSGNNSettings()) is not first  # the last ones are kept


def test_hops_vanish_with_the_statistics(wild_graph):
    statistics = LocalStatistics(wild_graph)
    hop_attributes(statistics, FSGNNSettings())
    assert statistics in fsgnn._cache
    known = len(fsgnn._cache)
    del statistics
    gc.collect()
    assert len(fsgnn._cache) < known


def test_dense_hops_must_fit_and_pay(monkeypatch):
    edges = np.zeros((2, 0), np.int64)
    full = Graph(np.ones((10, 100)), edges)
    thin = Graph(sp.csr_array(np.eye(10, 100)), edges)  # 10 entries in a thousand places
    assert should_densify(full, 0, 3, 2)
    assert not should_densify(thin, 13, 3, 2)  # 1000 > 20 · (10 + 3 · 13)
    assert should_densify(thin, 14, 3, 2)
    monkeypatch.setattr(fsgnn, "DENSE_LIMIT_BYTES", 4 * 1000 * 6)
    assert should_densify(full, 0, 3, 2)
    assert not should_densify(full, 0, 4, 2)
    assert should_densify(full, 0, 4, 1)
