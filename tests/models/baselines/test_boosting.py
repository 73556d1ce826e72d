"""Boosting trains as LightGBM does, keeps its best round, and is saved as text."""

import json
import subprocess
import sys

import lightgbm
import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import MODELS
from hpgmn.models.baselines.boosting import Boosting, BoostingRounds, _parameters
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.training import replicas as replicas_module
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import SavedModel
from hpgmn.training.trainer import train

ENTRY = MODELS["boosting"]
FEW = {"epochs": 8, "patience": 0, "min_leaf": 2, "svd_dim": 4}


@pytest.fixture(scope="module")
def graph():
    return trading_network(num_nodes=150, seed=1).graph


@pytest.fixture(scope="module")
def two_classes():
    random = np.random.default_rng(2)
    y = (random.random(80) < 0.3).astype(int)
    part = random.permutation(80)
    return Graph(
        random.normal(size=(80, 3)) + y[:, None],
        random.integers(0, 80, (2, 200)),
        y,
        train_mask=part < 40,
        val_mask=(part >= 40) & (part < 60),
        test_mask=part >= 60,
    )


def task_of(graph, seeds=(0,), **values):
    split, settings = graph.split(0), make_settings(ENTRY.settings, FEW | values)
    chosen = [Replica(0, seed, settings) for seed in seeds]
    return make_task(graph, chosen, [(split.train, split.val)] * len(seeds), "cpu")


def fitted_model(graph, path=None, seeds=(0, 1), **values):
    split, settings = graph.split(0), make_settings(ENTRY.settings, FEW | values)
    chosen = [Replica(0, seed, settings) for seed in seeds]
    fitted = fit_replicas(graph, ENTRY, chosen, [(split.train, split.val)] * len(seeds))
    saved = SavedModel.of(ENTRY, fitted, graph, [split.train] * len(seeds))
    if path is not None:
        saved.write(path)
    return fitted, saved


@pytest.mark.parametrize("weights", ["none", "balanced"])
@pytest.mark.parametrize("kind", ["graph", "two_classes"])
def test_it_is_lightgbm_on_the_table(request, kind, weights):
    graph = request.getfixturevalue(kind)
    task = task_of(graph, class_weights=weights)
    state = train(task, ENTRY)
    model = Boosting(task, state.done["main"])
    labels = task.train_labels[0]
    nodes = np.flatnonzero(labels >= 0)
    rows = model.table(0, np.arange(graph.num_nodes))
    counts = np.bincount(labels[nodes], minlength=graph.num_classes)
    weight = nodes.size / (graph.num_classes * np.maximum(counts, 1))[labels[nodes]]
    expected = lightgbm.train(
        _parameters(task, 0, nodes.size, rows.shape[1]),
        lightgbm.Dataset(rows[nodes], labels[nodes], weight=weight if weights != "none" else None),
        num_boost_round=int(state.best_epoch["main"]),
    ).predict(rows, raw_score=True)
    found = logits(task, ENTRY, state.done)[0].double().numpy()
    if graph.num_classes == 2:
        found = found[:, 1] - found[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_contributions_add_up_to_the_raw_scores(graph, two_classes):
    for one in (graph, two_classes):
        task = task_of(one, (0, 1))
        done = train(task, ENTRY).done
        model, nodes = Boosting(task, done["main"]), np.array([3, 0, 17])
        assert len(model.columns) == model.table(1, nodes).shape[1]
        sums = model.contributions(1, nodes).sum(axis=-1)
        found = logits(task, ENTRY, done, torch.from_numpy(nodes))[1].numpy()
        expected = found if one.num_classes > 2 else found[:, 1:] - found[:, :1]
        np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)


def test_a_saved_model_predicts_the_same_bits_in_another_process(graph, tmp_path):
    from hpgmn.graph.files import write_graph

    fitted, _ = fitted_model(graph, tmp_path / "model.safetensors")
    write_graph(graph, tmp_path / "graph.npz")
    code = (
        "import sys, json; from pathlib import Path; from hpgmn.graph.files import read_graph\n"
        "from hpgmn.training.saved import SavedModel\n"
        "folder = Path(sys.argv[1]); model = SavedModel.read(folder / 'model.safetensors')\n"
        "print(json.dumps(model.logits(read_graph(folder / 'graph.npz')).tolist()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == fitted.logits.tolist()


def test_a_class_without_train_nodes_is_hardly_predicted(graph):
    mask = graph.split(0).train & (graph.y != 1)
    settings = make_settings(ENTRY.settings, FEW)
    task = make_task(graph, [Replica(0, 0, settings)], [(mask, graph.split(0).val)], "cpu")
    found = logits(task, ENTRY, train(task, ENTRY).done)
    assert found.isfinite().all()
    assert not (found.argmax(dim=-1) == 1).any()


def test_groups_of_replicas_are_joined(graph, monkeypatch):
    whole, _ = fitted_model(graph, seeds=(0, 1, 2))
    monkeypatch.setattr(replicas_module, "replicas_at_once", lambda *_: 1)
    parts, saved = fitted_model(graph, seeds=(0, 1, 2))
    assert torch.equal(whole.logits, parts.logits)
    assert torch.equal(saved.choose([2]).logits(graph)[0], whole.logits[2])


def test_new_nodes_are_read_by_the_columns_trained_on(graph, tmp_path):
    names = np.array([f"v{number}" for number in range(graph.num_nodes)])
    named = Graph(
        graph.x,
        graph.edge_index,
        graph.y,
        node_ids=names,
        **{f"{part}_mask": getattr(graph.split(0), part) for part in ("train", "val", "test")},
    )
    _, saved = fitted_model(named)
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    place = np.argsort(order)
    x = np.concatenate([np.asarray(graph.x)[order], np.asarray(graph.x)[:2]])
    new = graph.num_nodes
    edges = np.concatenate([place[graph.edge_index], np.array([[new], [0]])], axis=1)
    other = Graph(x, edges, node_ids=np.append(names[order], ["new", "alone"]))
    found, before = saved.logits(other), saved.logits(named)
    unchanged = np.flatnonzero(
        [v not in {new, 0, *edges[0, edges[1] == 0], *edges[1, edges[0] == 0]} for v in range(new)]
    )
    near = other.adjacency("undirected")
    reached = (near @ near @ near)[[new]].indices  # whose rows may have changed
    unchanged = np.setdiff1d(unchanged, reached)
    assert unchanged.size
    np.testing.assert_allclose(found[:, unchanged], before[:, order[unchanged]], atol=1e-5)
    assert found.shape[1] == new + 2
    with pytest.raises(HPGMNError, match="node_ids"):
        saved.logits(Graph(x, edges))


def test_a_damaged_booster_is_refused(graph):
    _, saved = fitted_model(graph, seeds=(0,))
    stored = saved.done["main"]["booster"]
    for change in (stored[:, : stored.shape[1] // 2], stored.flip(1), stored[:, :0]):
        saved.done["main"]["booster"] = change
        saved._latest = None
        with pytest.raises(HPGMNError, match="damaged"):
            saved.logits(graph)


def test_a_missing_lightgbm_is_named(graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(HPGMNError) as caught:
        train(task_of(graph), ENTRY)
    assert "pip install lightgbm" in str(caught.value.remedy)


def test_the_rounds_see_no_validation_label(graph):
    task = task_of(graph)
    first = BoostingRounds(task)
    other = BoostingRounds(
        make_task(graph, task.replicas, [(graph.split(0).train, graph.split(0).test)], "cpu")
    )
    for _ in range(3):
        assert torch.equal(first.update(0)[0], other.update(0)[0])


def test_the_number_of_threads_changes_no_bit(graph, monkeypatch):
    before = torch.get_num_threads()
    one = train(task_of(graph), ENTRY).done["main"]
    monkeypatch.setattr("hpgmn.models.baselines.boosting._FEW_NUMBERS", 0)
    try:
        torch.set_num_threads(2)
        two = train(task_of(graph), ENTRY).done["main"]
    finally:
        torch.set_num_threads(before)
    for name, value in one.items():
        assert torch.equal(value, two[name]), name
