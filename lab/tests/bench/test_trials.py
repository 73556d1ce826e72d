"""Trials: selected on validation, test labels read once, cut at the time limit."""

import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import scores
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.models import find_model
from hpgmn_lab.bench import trials
from hpgmn_lab.bench.process import fit_once
from hpgmn_lab.bench.trials import Assignment, Trial, pyg_adjacency, pyg_fit, pyg_module, run_trials

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # of torch's sparse matrices

CANDIDATES = [
    {"epochs": 4, "patience": 0, "hidden_dim": 4, "lr": 1e-9, "dropout": 0.0},
    {"epochs": 4, "patience": 0, "hidden_dim": 4, "lr": 0.1, "dropout": 0.0},
    {"epochs": 4, "patience": 0, "hidden_dim": 4, "lr": 1e-8, "dropout": 0.0},
]


@pytest.fixture
def source(small_graph, tmp_path):
    write_graph(small_graph, tmp_path / "small.npz")
    return str(tmp_path / "small.npz")


def run(source, model, **changes):
    options = {"split": 1, "candidates": CANDIDATES, "seed": 5, "device": "cpu", "limit": None}
    return run_trials(source, model=model, **options | changes)


def test_the_best_by_validation_is_tested(source, small_graph):
    found = run(source, "mlp")
    fits = [
        fit_once(
            small_graph, "mlp", make_settings(find_model("mlp").settings, one), split=1, seed=5
        )
        for one in CANDIDATES
    ]
    expected = [float(one.val_score[0]) for one in fits]
    assert [row["val_accuracy"] for row in found["trials"]] == pytest.approx(expected)
    assert found["chosen"] == expected.index(max(expected)) == 1
    test = scores(fits[1].logits, small_graph.y, [small_graph.split(1).test], "accuracy")
    assert found["test_accuracy"] == pytest.approx(test[0])
    assert found["edges"] == small_graph.num_edges
    assert [row["settings"]["lr"] for row in found["trials"]] == [1e-9, 0.1, 1e-8]
    assert all(row["is_finished"] for row in found["trials"])
    assert len(found["curve"]) == 4
    assert found["curve"][-1][1] == found["trials"][1]["val_accuracy"]


def test_preparation_is_everything_before_the_first_epoch(source):
    """HP-GMN's label estimator and statistics count."""
    few = [{"epochs": 3, "estimator_epochs": 5, "hidden_dim": 4, "patience": 0}]
    found = run(source, "hpgmn", candidates=few)
    [row] = found["trials"]
    first = found["curve"][0][0]
    assert 0 < row["preparation_seconds"] < first
    assert row["epochs_trained"] == 3
    assert row["seconds"] == found["curve"][-1][0]


@pytest.mark.parametrize("model", ["mlp", "pyg-mlp"])
def test_a_model_without_time_is_cut_and_says_so(source, model):
    found = run(source, model, limit=1e-6)
    [row] = found["trials"]
    assert row["epochs_trained"] == 1
    assert not row["is_finished"]
    assert found["test_accuracy"] is None
    assert found["curve"]


def test_a_model_cut_before_its_own_first_epoch_has_no_score(source):
    few = [{"epochs": 3, "estimator_epochs": 5, "hidden_dim": 4, "patience": 0}]
    found = run(source, "hpgmn", candidates=few, limit=1e-6)
    [row] = found["trials"]
    assert row["epochs_trained"] == 0
    assert row["val_accuracy"] is row["preparation_seconds"] is row["epoch_seconds"] is None
    assert found["curve"] == []


def test_an_interrupt_is_no_cut(source, monkeypatch):
    def fit_once(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "fit_once", fit_once)
    with pytest.raises(KeyboardInterrupt):
        run(source, "mlp")


def test_a_finished_trial_goes_before_a_better_one_that_was_cut(source, monkeypatch):
    made = iter(
        [
            Trial([1.0], [(1.0, 0.1)], True, None),  # the warm-up
            Trial([1.0, 1.0], [(2.0, 0.5), (3.0, 0.6)], True, None),
            Trial([1.0], [(2.0, 0.9)], False, None),
            Trial([1.0], [(2.0, 0.95)], False, None),
        ]
    )
    monkeypatch.setattr(trials, "_fit", lambda *_: next(made))
    found = run(source, "mlp")
    assert found["chosen"] == 0
    assert found["trials"][0]["preparation_seconds"] == 1.0
    assert found["trials"][0]["epoch_seconds"] == 1.0


# PyTorch Geometric's models.


def settings_of(name, **changes):
    values = {"hidden_dim": 8, "epochs": 6, "lr": 0.05, "dropout": 0.0} | changes
    return make_settings(find_model(name).settings, values)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_a_node_reads_its_neighbours_in_either_form(small_graph, neighbors):
    expected = small_graph.adjacency(neighbors).toarray()
    matrix = pyg_adjacency(small_graph, neighbors, as_matrix=True, device="cpu")
    np.testing.assert_array_equal(matrix.to_dense().numpy(), expected)
    edges = pyg_adjacency(small_graph, neighbors, as_matrix=False, device="cpu")
    neighbor, center = edges.numpy()  # PyTorch Geometric sends from row 0 to row 1
    found = np.zeros_like(expected)
    found[center, neighbor] = 1
    np.testing.assert_array_equal(found, expected)


def test_gcn_is_the_formula_on_the_neighbours(small_graph):
    """Ã = A + I, D̃ its row sums: D̃^-½·Ã·D̃^-½·(X·Wᵀ) + b, twice."""
    model = pyg_module("gcn", small_graph, settings_of("gcn")).eval()
    looped = small_graph.adjacency("out").toarray() + np.eye(18)
    scale = 1 / np.sqrt(looped.sum(axis=1))
    spread = torch.from_numpy(scale[:, None] * looped * scale).float()
    hidden = torch.from_numpy(small_graph.x)
    for number, layer in enumerate(model.convs):
        hidden = spread @ hidden @ layer.lin.weight.T + layer.bias
        hidden = hidden.relu() if number == 0 else hidden
    adjacency = pyg_adjacency(small_graph, "out", as_matrix=True, device="cpu")
    found = model(torch.from_numpy(small_graph.x), adjacency)
    torch.testing.assert_close(found, hidden)


@pytest.mark.parametrize("name", ["gcn", "linkx", "appnp", "mlp"])
def test_the_best_epoch_is_kept(small_graph, name):
    reports = []
    trial = pyg_fit(name)(
        settings_of(name), Assignment(small_graph, 0, 3, "cpu", report=reports.append)
    )
    split = small_graph.split(0)
    assert trial.is_finished
    assert len(trial.epochs) == len(trial.curve) == len(reports) == 6
    hits = trial.logits.argmax(dim=1).numpy() == small_graph.y
    assert trial.best == pytest.approx(hits[split.val].mean())
    assert [best for _, best in trial.curve] == sorted(best for _, best in trial.curve)
    moments = [moment for moment, _ in trial.curve]
    assert np.diff(moments) == pytest.approx(trial.epochs[1:])
    assert reports[-1].epoch == 6
    again = pyg_fit(name)(settings_of(name), Assignment(small_graph, 0, 3, "cpu"))
    torch.testing.assert_close(again.logits, trial.logits)


def test_it_learns(small_graph):
    trial = pyg_fit("mlp")(settings_of("mlp", epochs=40), Assignment(small_graph, 0, 0, "cpu"))
    assert trial.best == 1.0


def test_sparse_attributes_are_read(small_graph):
    import scipy.sparse as sp

    masks = {f"{part}_mask": getattr(small_graph.splits, part) for part in ("train", "val", "test")}
    sparse = Graph(sp.csr_array(small_graph.x), small_graph.edge_index, small_graph.y, **masks)
    one, other = (
        pyg_fit("mlp")(settings_of("mlp"), Assignment(graph, 0, 0, "cpu"))
        for graph in (small_graph, sparse)
    )
    torch.testing.assert_close(one.logits, other.logits)


def test_where_a_matrix_does_not_work_edges_are_listed(small_graph, monkeypatch):
    formats = []

    def only_edges(*arguments, as_matrix, device):
        formats.append(as_matrix)
        if as_matrix:
            raise NotImplementedError("no backward of a sparse product here")
        return pyg_adjacency(*arguments, as_matrix=False, device=device)

    expected = pyg_fit("gcn")(settings_of("gcn"), Assignment(small_graph, 0, 0, "cpu"))
    monkeypatch.setattr(trials, "pyg_adjacency", only_edges)
    fit = pyg_fit("gcn")
    found = fit(settings_of("gcn"), Assignment(small_graph, 0, 0, "cpu"))
    fit(settings_of("gcn"), Assignment(small_graph, 0, 0, "cpu"))
    assert formats == [True, False, False]
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")],
)
def test_running_out_of_memory_is_an_error(small_graph, monkeypatch, error):
    def pyg_module(*_):
        raise error

    monkeypatch.setattr(trials, "pyg_module", pyg_module)
    with pytest.raises(HPGMNError, match="Out of memory while training PyG's gcn"):
        pyg_fit("gcn")(settings_of("gcn"), Assignment(small_graph, 0, 0, "cpu"))
