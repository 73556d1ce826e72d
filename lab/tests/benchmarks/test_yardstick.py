"""The yardstick is itself measured: statistics against loops, and a step that trains everything."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "yardstick.py"
N, F, C = 12, 6, 3


@pytest.fixture(scope="module")
def yardstick():
    spec = importlib.util.spec_from_file_location("yardstick", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    edge_index = rng.integers(0, N - 2, size=(2, 30)).astype(np.int32)  # the last two are isolated
    edge_index = np.concatenate([edge_index, edge_index[:, :4], [[3], [3]]], axis=1)
    part = rng.permutation(N)
    masks = {
        name: np.isin(np.arange(N), part[places])[:, None]
        for name, places in [
            ("train_mask", slice(0, 6)),
            ("val_mask", slice(6, 9)),
            ("test_mask", slice(9, N)),
        ]
    }
    x = rng.random((N, F)).astype(np.float32)
    return {"x": x, "edge_index": edge_index, "y": np.arange(N) % C, "directed": True, **masks}


@pytest.fixture
def graph_file(arrays, tmp_path):
    path = tmp_path / "tiny.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture
def settings(yardstick):
    return yardstick.Settings(hidden=8, patterns=4, epochs=3)


def neighbor_sets(arrays, undirected):
    neighbors = {v: set() for v in range(N)}
    for source, target in arrays["edge_index"].T.tolist():
        if source != target:
            neighbors[source].add(target)
            if undirected:
                neighbors[target].add(source)
    return neighbors


@pytest.mark.parametrize("mode", ["out", "undirected"])
def test_counts_and_means_match_loops(yardstick, settings, arrays, graph_file, mode):
    shared = yardstick.shared_inputs(
        graph_file, replace(settings, neighbors=mode), torch.device("cpu")
    )
    labels = np.random.default_rng(1).integers(0, C - 1, N)  # the last class is empty
    counts, means = np.zeros((N, C)), np.zeros((N, C, F))
    for v, members in neighbor_sets(arrays, mode == "undirected").items():
        for c in range(C):
            chosen = [u for u in members if labels[u] == c]
            counts[v, c] = len(chosen)
            if chosen:
                means[v, c] = sum(arrays["x"][u] for u in chosen) / len(chosen)
    given = torch.from_numpy(labels)
    r2 = yardstick.class_counts(shared.edge_index, given, C)
    r3 = yardstick.class_means(shared.x, shared.edge_index, given, r2)
    np.testing.assert_array_equal(r2.numpy(), counts)
    np.testing.assert_allclose(r3.numpy(), means.reshape(N, C * F), rtol=1e-5)


@pytest.mark.parametrize("mode", ["out", "undirected"])
@pytest.mark.parametrize("adjacency_rows", [False, True])
def test_structure_matches_loops(yardstick, settings, arrays, graph_file, mode, adjacency_rows):
    chosen = replace(settings, neighbors=mode, adjacency_rows=adjacency_rows)
    shared = yardstick.shared_inputs(graph_file, chosen, torch.device("cpu"))
    neighbors = neighbor_sets(arrays, mode == "undirected")
    adjacency = np.array([[float(u in neighbors[v]) for u in range(N)] for v in range(N)])
    expected = adjacency
    if not adjacency_rows:
        transition = np.zeros((N, N))
        for u in range(N):
            if adjacency[:, u].any():
                transition[:, u] = adjacency[:, u] / adjacency[:, u].sum()
        expected, power = np.zeros((N, N)), np.eye(N)
        for k in range(200):  # the paper's sum, not the inverse
            expected += chosen.teleport * (1 - chosen.teleport) ** k * power
            power = power @ transition
    np.testing.assert_allclose(shared.structure.numpy(), expected, atol=1e-6)


def test_sparse_attributes_read_as_dense(yardstick, arrays, tmp_path):
    x = arrays.pop("x") > 0.5
    indices = np.concatenate([np.flatnonzero(row) for row in x])
    np.savez(
        tmp_path / "sparse.npz",
        x_indptr=np.concatenate([[0], x.sum(axis=1).cumsum()]).astype(np.int32),
        x_indices=indices.astype(np.uint16),
        x_data=np.ones(len(indices), dtype=np.uint8),
        x_shape=np.array(x.shape),
        **arrays,
    )
    read = yardstick.graph_arrays(tmp_path / "sparse.npz")["x"]
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, x)


def test_penalties_match_loops(yardstick):
    generator = torch.Generator().manual_seed(0)
    query, memory = (torch.randn(n, 5, generator=generator) for n in (7, 3))
    nearest = sum(min((q - m).pow(2).sum().sqrt() for m in memory) for q in query)
    torch.testing.assert_close(yardstick.kpattern_penalty(query, memory), nearest)
    attention = torch.softmax(query @ memory.T, dim=1)
    use = [float(sum(row[k] for row in attention)) / 7 for k in range(3)]
    expected = torch.tensor(sum(p * np.log(p) for p in use))
    torch.testing.assert_close(yardstick.entropy_penalty(attention), expected, check_dtype=False)


def test_one_step_of_classification_alone_moves_every_parameter(yardstick, settings, graph_file):
    alone = replace(
        settings,
        weight_decay=0.0,
        dropout=0.0,
        kpattern_weight=0.0,
        entropy_weight=0.0,
        norm_weight=0.0,
    )
    torch.manual_seed(0)
    shared = yardstick.shared_inputs(graph_file, alone, torch.device("cpu"))
    counts = yardstick.class_counts(shared.edge_index, shared.y, C)
    means = yardstick.class_means(shared.x, shared.edge_index, shared.y, counts)
    inputs = [shared.x, counts, means, shared.structure]
    model = yardstick.HPGMN([r.size(1) for r in inputs], C, alone)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    yardstick.train_step(model, optimizer, inputs, shared.y, shared.masks["train"][:, 0], alone)
    assert "memory" in before
    still = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert still == []


def test_changing_test_labels_changes_only_the_test_score(
    yardstick, settings, arrays, graph_file, tmp_path
):
    other = tmp_path / "other.npz"
    test = arrays["test_mask"][:, 0]
    np.savez(other, **{**arrays, "y": np.where(test, (arrays["y"] + 1) % C, arrays["y"])})
    one, two = (yardstick.train_split(path, 0, settings) for path in (graph_file, other))
    for name in ("val_accuracy", "best_epoch"):
        assert one[name] == two[name]


def test_training_does_not_see_test_labels(yardstick, settings, graph_file):
    cpu = torch.device("cpu")
    shared = yardstick.shared_inputs(graph_file, settings, cpu)
    train, val, test = (shared.masks[part][:, 0] for part in ("train", "val", "test"))
    hidden = replace(shared, y=torch.where(test, (shared.y + 1) % C, shared.y))
    guesses = []
    for seen in (shared, hidden):
        torch.manual_seed(0)
        guesses.append(yardstick.pseudo_labels(seen, train, val, settings, 3)[0])
    assert torch.equal(*guesses)
    assert torch.equal(guesses[0][train], shared.y[train])


def test_timed_epochs_scale_the_time_and_give_no_score(yardstick, graph_file, tmp_path):
    file = tmp_path / "record.json"
    arguments = [str(graph_file), "--hidden", "8", "--patterns", "4", "--epochs", "100"]
    record = yardstick.main([*arguments, "--timed-epochs", "2", "--json", str(file)])
    (run,) = record["runs"]
    assert run["accuracy"] is None
    assert run["epochs_trained"] == 2
    assert run["seconds_epochs"] == pytest.approx(100 * run["seconds_per_epoch"])
    parts = ("seconds_estimator", "seconds_statistics", "seconds_epochs")
    assert run["seconds_total"] == pytest.approx(sum(run[part] for part in parts))
    assert file.is_file()
