"""PyTorch Geometric's models in a plain loop read the right neighbours and keep the best epoch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.training.replicas import Progress
from hpgmn_lab.bench import pyg
from hpgmn_lab.bench.pyg import fitting, module_of, neighbours_of

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # what torch says of its sparse matrices

NEVER = float("inf")


def settings_of(name: str, **changes: Any) -> Any:
    values = {"hidden_dim": 8, "epochs": 6, "lr": 0.05, "dropout": 0.0} | changes
    return make_settings(find_model(name).settings, values)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_a_node_reads_its_neighbours_in_either_form(small_graph: Graph, neighbors: str) -> None:
    expected = small_graph.adjacency(neighbors).toarray()
    matrix = neighbours_of(small_graph, neighbors, as_matrix=True, device="cpu")
    np.testing.assert_array_equal(matrix.to_dense().numpy(), expected)
    edges = neighbours_of(small_graph, neighbors, as_matrix=False, device="cpu")
    neighbor, center = edges.numpy()  # PyTorch Geometric sends from row 0 to row 1
    found = np.zeros_like(expected)
    found[center, neighbor] = 1
    np.testing.assert_array_equal(found, expected)


def test_gcn_is_the_formula_on_the_neighbours(small_graph: Graph) -> None:
    """Ã = A + I, D̃ its row sums: D̃^-½·Ã·D̃^-½·(X·Wᵀ) + b, twice."""
    model = module_of("gcn", small_graph, settings_of("gcn")).eval()
    looped = small_graph.adjacency("out").toarray() + np.eye(18)
    scale = 1 / np.sqrt(looped.sum(axis=1))
    spread = torch.from_numpy(scale[:, None] * looped * scale).float()
    hidden = torch.from_numpy(small_graph.x)
    for number, layer in enumerate(model.convs):  # type: ignore[arg-type]
        hidden = spread @ hidden @ layer.lin.weight.T + layer.bias
        hidden = hidden.relu() if number == 0 else hidden
    adjacency = neighbours_of(small_graph, "out", as_matrix=True, device="cpu")
    found = model(torch.from_numpy(small_graph.x), adjacency)
    torch.testing.assert_close(found, hidden)


@pytest.mark.parametrize("name", ["gcn", "linkx", "appnp", "mlp"])
def test_the_best_epoch_is_kept(small_graph: Graph, name: str) -> None:
    told: list[Progress] = []
    trial = fitting(name)(small_graph, settings_of(name), 0, 3, "cpu", NEVER, told.append)
    split = small_graph.split(0)
    assert trial.is_finished
    assert len(trial.epochs) == len(trial.curve) == len(told) == 6
    assert trial.logits is not None
    hits = trial.logits.argmax(dim=1).numpy() == small_graph.y
    assert trial.best == pytest.approx(hits[split.val].mean())
    assert [best for _, best in trial.curve] == sorted(best for _, best in trial.curve)
    moments = [moment for moment, _ in trial.curve]
    assert np.diff(moments) == pytest.approx(trial.epochs[1:])
    assert told[-1].epoch == 6
    again = fitting(name)(small_graph, settings_of(name), 0, 3, "cpu", NEVER, None)
    assert again.logits is not None
    torch.testing.assert_close(again.logits, trial.logits)


def test_it_learns(small_graph: Graph) -> None:
    trial = fitting("mlp")(small_graph, settings_of("mlp", epochs=40), 0, 0, "cpu", NEVER, None)
    assert trial.best == 1.0


def test_sparse_attributes_are_read(small_graph: Graph) -> None:
    import scipy.sparse as sp

    masks = {f"{part}_mask": getattr(small_graph.splits, part) for part in ("train", "val", "test")}
    sparse = Graph(sp.csr_array(small_graph.x), small_graph.edge_index, small_graph.y, **masks)
    one, other = (
        fitting("mlp")(graph, settings_of("mlp"), 0, 0, "cpu", NEVER, None)
        for graph in (small_graph, sparse)
    )
    assert one.logits is not None
    torch.testing.assert_close(one.logits, other.logits)


def test_a_training_is_cut_at_its_deadline(small_graph: Graph) -> None:
    trial = fitting("mlp")(small_graph, settings_of("mlp"), 0, 0, "cpu", time.perf_counter(), None)
    assert len(trial.epochs) == 1
    assert not trial.is_finished
    assert trial.logits is None


def test_where_a_matrix_does_not_work_edges_are_listed(
    small_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def only_edges(*arguments: Any, as_matrix: bool, device: str) -> Any:
        asked.append(as_matrix)
        if as_matrix:
            raise NotImplementedError("no backward of a sparse product here")
        return neighbours_of(*arguments, as_matrix=False, device=device)

    expected = fitting("gcn")(small_graph, settings_of("gcn"), 0, 0, "cpu", NEVER, None)
    monkeypatch.setattr(pyg, "neighbours_of", only_edges)
    fit = fitting("gcn")
    found = fit(small_graph, settings_of("gcn"), 0, 0, "cpu", NEVER, None)
    fit(small_graph, settings_of("gcn"), 0, 0, "cpu", NEVER, None)
    assert asked == [True, False, False]
    assert found.logits is not None
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")],
)
def test_running_out_of_memory_is_told(
    small_graph: Graph, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def module_of(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(pyg, "module_of", module_of)
    with pytest.raises(HPGMNError, match="Out of memory while training PyG's gcn"):
        fitting("gcn")(small_graph, settings_of("gcn"), 0, 0, "cpu", NEVER, None)


def test_any_other_fault_passes(small_graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def module_of(*_: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(pyg, "module_of", module_of)
    with pytest.raises(RuntimeError, match="a bug"):
        fitting("gcn")(small_graph, settings_of("gcn"), 0, 0, "cpu", NEVER, None)
