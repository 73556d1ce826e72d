"""The same bits from a GPU each time, where they are asked for. Needs no other file of the tests:

PYTHONPATH=src python -m pytest --noconftest tests/cuda/test_same_bits.py
"""

import os
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base import randomness
from hpgmn.base.settings import make_settings
from hpgmn.base.sparse import SparseMatrix, ordered_matmul
from hpgmn.graph import Graph
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS
from hpgmn.models.stage import Replica
from hpgmn.statistics import LocalStatistics, StatisticsSettings
from hpgmn.statistics.settings import FORMS, MEANS_FORMS
from hpgmn.training import replay
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.trainer import deterministic_algorithms

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS is first used

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

WIDTHS = {"hidden_dim": 16, "query_dim": 16, "estimator_hidden": 16, "num_patterns": 8}


@pytest.fixture(scope="module")
def graph():
    return trading_network(num_nodes=1000, seed=3).graph


def fitted(graph, name, **values):
    cls = MODELS[name].settings
    known = {info.name for info in fields(cls)}
    chosen = WIDTHS | {one: 12 for one in known if one.endswith("epochs")} | values
    settings = make_settings(cls, {key: value for key, value in chosen.items() if key in known})
    replicas = [Replica(number, 5, settings) for number in (0, 1, 2)]
    masks = [(graph.split(one.split).train, graph.split(one.split).val) for one in replicas]
    with deterministic_algorithms(True, "cuda"):
        return fit_replicas(graph, MODELS[name], replicas, masks, device="cuda")


def assert_same_bits(one, other):
    assert torch.equal(one.logits, other.logits)
    for stage, parameters in one.done.items():
        for key, value in parameters.items():
            assert torch.equal(value, other.done[stage][key]), (stage, key)
    for stage, history in one.history.items():
        for key, rows in history.items():
            assert torch.equal(rows.nan_to_num(-1), other.history[stage][key].nan_to_num(-1))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "boosting"])
def test_every_model_gives_the_same_bits_again(graph, name, monkeypatch):
    made: list[Any] = []
    real = replay.attempt

    def watched(make):
        made.append(real(make))
        return made[-1]

    monkeypatch.setattr(replay, "attempt", watched)
    assert_same_bits(fitted(graph, name), fitted(graph, name))
    assert made
    assert all(made), "an epoch could not be recorded"


@pytest.mark.parametrize("form", ["half", "sparse"])
def test_batches_give_the_same_bits_again(graph, form):
    kinds = ("attributes", "class_counts", "class_means")
    values = {"batch_size": 100, "statistics": kinds, "class_means_form": form}
    assert_same_bits(fitted(graph, "hpgmn", **values), fitted(graph, "hpgmn", **values))


@pytest.mark.parametrize(
    ("name", "form"),
    [*(("class_means", form) for form in MEANS_FORMS), *(("diffusion", form) for form in FORMS)],
)
def test_statistics_are_the_same_bits_each_time(name, form, monkeypatch):
    """A hub that all others trade with: cuSPARSE adds a long row up in no order."""
    monkeypatch.setenv("HPGMN_CACHE", "off")
    drawn = np.random.default_rng(1)
    num = 2000
    edges = drawn.integers(0, num, (2, 6 * num))
    hubs = np.stack([np.arange(num).repeat(3), np.tile([0, 1, 2], num)])
    x = drawn.normal(size=(num, 8)).astype(np.float32)
    hub = Graph(x, np.concatenate([edges, hubs, hubs[::-1]], axis=1), drawn.integers(0, 4, num))
    chosen = {"statistics": (name,), f"{name}_form": form, "neighbors": "undirected"}
    settings = make_settings(StatisticsSettings, chosen)

    def built():
        return LocalStatistics(hub, "cuda").build(hub.y[None], 4, [settings])[name]

    with deterministic_algorithms(True, "cuda"):
        first = built()
        weight = torch.randn(1, first.width, 3, device="cuda")
        expected = first.times(weight)
        for _ in range(5):
            assert torch.equal(built().times(weight), expected)


@pytest.mark.parametrize("width", [1, 40, 128, 300])
def test_products_by_kernel_are_those_of_cusparse(width, monkeypatch):
    """Also with empty rows and one that is far longer than the others."""
    random = np.random.default_rng(0)
    dense = random.normal(size=(200, 500)) * (random.random((200, 500)) < 0.02)
    dense[3], dense[4] = random.normal(size=500), 0
    host = sp.csr_array(dense.astype(np.float32))
    matrix = SparseMatrix(host, "cuda")
    weight = torch.randn(500, width, device="cuda")
    usual = matrix.product(weight)
    with deterministic_algorithms(True, "cuda"):
        ordered = matrix.product(weight)
        assert torch.equal(ordered, matrix.product(weight))
        monkeypatch.setattr("hpgmn.base.sparse.load_kernels", lambda: None)
        alone = matrix.product(weight)
        assert torch.equal(alone, matrix.product(weight))
    assert randomness.load_kernels() is not None
    torch.testing.assert_close(ordered, usual, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(alone, usual, rtol=1e-4, atol=1e-4)
    parts = (torch.from_numpy(part) for part in (host.indptr, host.indices, host.data))
    torch.testing.assert_close(
        ordered_matmul(*parts, weight.cpu()), usual.cpu(), rtol=1e-4, atol=1e-4
    )
