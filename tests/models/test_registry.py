"""Every model of the registry learns, does not leak, and takes every kind of graph."""

import subprocess
import sys
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS, find_model
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import SavedModel
from hpgmn.training.state import read_state, write_state
from hpgmn.training.trainer import train

REPRESENTATIVES = ("hpgmn", "hpgmn-appnp", "gcn", "bmgcn")  # the fast suite's, of every structure
every_model = pytest.mark.parametrize("name", list(MODELS))
some_models = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in REPRESENTATIVES else pytest.mark.slow)
        for name in MODELS
    ],
)
READS_EDGES_ALONE = {"dirgcn"}  # as its authors' code: without edges it reads no attributes
WITHOUT_GRADIENTS = {"boosting"}
SAMPLED = ("column_share", "row_share")  # boosting's counterpart of dropout
WIDTHS = {"hidden_dim": 8, "query_dim": 8, "estimator_hidden": 8, "num_patterns": 6, "min_leaf": 1}


def settings_of(name, length=6, *, drop=True, **values):
    """Small settings: so many epochs in every stage, no patience, dropouts off where asked."""
    cls = MODELS[name].settings
    chosen: dict[str, Any] = {}
    known = {info.name for info in fields(cls)}
    values = {key: value for key, value in values.items() if key in known}
    for info in fields(cls):
        if info.name in WIDTHS:
            chosen[info.name] = WIDTHS[info.name]
        if info.name.endswith("epochs"):
            chosen[info.name] = length
        if info.name.endswith("patience"):
            chosen[info.name] = 0
        if info.name.endswith("dropout") and not drop:
            chosen[info.name] = 0.0
        if info.name in SAMPLED and not drop:
            chosen[info.name] = 1.0
    return make_settings(cls, chosen | values)


def task_of(graph, settings, seeds=(0,)):
    split = graph.split(0)
    replicas = [Replica(0, seed, settings) for seed in seeds]
    return make_task(graph, replicas, [(split.train, split.val)] * len(seeds), "cpu")


def changed(graph, **values):
    """The same graph but for some of its arguments."""
    splits = graph.splits
    given = {
        "x": graph.x,
        "edge_index": graph.edge_index,
        "y": graph.y,
        "train_mask": splits.train,
        "val_mask": splits.val,
        "test_mask": splits.test,
    }
    return Graph(**(given | values))


def fit(name, task):
    state = train(task, MODELS[name])
    return state, logits(task, MODELS[name], state.done)


def random_graph():
    """40 nodes of 4 classes in a random order, 20 of them for training."""
    random = np.random.default_rng(1)
    y = random.permutation(np.arange(40) % 4)
    part = np.arange(40)
    return Graph(
        random.normal(size=(40, 12)),
        random.integers(0, 40, (2, 90)),
        y,
        train_mask=part < 20,
        val_mask=(part >= 20) & (part < 30),
        test_mask=part >= 30,
    )


def assert_same_bits(one, other):
    for stage, parameters in one.done.items():
        for name, value in parameters.items():
            assert torch.equal(value, other.done[stage][name]), (stage, name)
        assert torch.equal(one.best_epoch[stage], other.best_epoch[stage])
        assert torch.equal(one.best_score[stage], other.best_score[stage])
        for key, rows in one.history[stage].items():
            torch.testing.assert_close(
                rows, other.history[stage][key], rtol=0, atol=0, equal_nan=True
            )


@some_models
def test_logits_are_finite_and_tell_nodes_apart(name, small_graph):
    _, found = fit(name, task_of(small_graph, settings_of(name)))
    assert found.shape == (1, 18, 3)
    assert found.isfinite().all()
    assert len({tuple(row) for row in found[0].tolist()}) > 9


@some_models
def test_a_gradient_reaches_every_trained_parameter(name, small_graph):
    if name in WITHOUT_GRADIENTS:
        return
    seen = set()

    def watch(state, stage):
        for place, parameter in stage.model.named_parameters():
            if not parameter.requires_grad:
                assert parameter.grad is None
                continue
            assert parameter.grad is not None, (stage.name, place)
            assert parameter.grad.isfinite().all(), (stage.name, place)
            assert parameter.grad.flatten(1).any(dim=1).all(), (stage.name, place)
            seen.add(stage.name)

    settings = settings_of(name, 1, weight_decay=0.0)
    state = train(task_of(small_graph, settings, (0, 1)), MODELS[name], watch=watch)
    # A stage that the settings leave out has no epoch.
    assert seen == {stage for stage, history in state.history.items() if len(history["loss"])}
    assert "main" in seen


@pytest.mark.slow
@some_models
def test_it_overfits_twenty_nodes(name):
    graph = random_graph()  # labels that neither attributes nor edges explain
    settings = settings_of(name, 150, drop=False, lr=0.03, weight_decay=0.0, hidden_dim=32)
    mask = graph.split(0).train
    task = make_task(graph, [Replica(0, 0, settings)], [(mask, mask)], "cpu")
    _, found = fit(name, task)
    assert np.array_equal(found[0].argmax(dim=-1).numpy()[mask], graph.y[mask])


@every_model
def test_test_labels_change_no_bit(name, small_graph):
    test = small_graph.split(0).test
    other = changed(small_graph, y=np.where(test, (small_graph.y + 1) % 3, small_graph.y))
    assert not np.array_equal(small_graph.y, other.y)
    settings = settings_of(name)
    one, first = fit(name, task_of(small_graph, settings))
    two, second = fit(name, task_of(other, settings))
    assert torch.equal(first, second)
    assert_same_bits(one, two)


def trajectory(name, graph, settings):
    """Everything training computes before selection: (stage, epoch, loss, parameters)."""
    seen: list[Any] = []

    def watch(state, stage):
        current = state.current
        assert current is not None
        parameters = {key: value.clone() for key, value in current.parameters.items()}
        seen.append((stage.name, current.epoch, current.history["loss"][-1], parameters))

    train(task_of(graph, settings, (0, 1)), MODELS[name], watch=watch)
    return seen


def assert_same_trajectory(one, other):
    assert len(one) == len(other) > 0
    for (stage, epoch, loss, parameters), (stage2, epoch2, loss2, parameters2) in zip(
        one, other, strict=True
    ):
        assert (stage, epoch) == (stage2, epoch2)
        assert torch.equal(loss, loss2)
        for key, value in parameters.items():
            assert torch.equal(value, parameters2[key]), (stage, epoch, key)


def with_other_validation_labels(graph):
    val = graph.split(0).val
    other = changed(graph, y=np.where(val, (graph.y + 1) % 3, graph.y))
    assert not np.array_equal(graph.y, other.y)
    return other


@some_models
def test_validation_labels_change_nothing_before_selection(name, small_graph):
    other = with_other_validation_labels(small_graph)
    settings = settings_of(name, 6)
    first_stage = next(iter(MODELS[name].stages))
    one, two = (
        [seen for seen in trajectory(name, graph, settings) if seen[0] == first_stage]
        for graph in (small_graph, other)
    )
    assert_same_trajectory(one, two)


@some_models
def test_validation_labels_change_nothing_where_earlier_stages_leave_no_choice(name, small_graph):
    other = with_other_validation_labels(small_graph)
    # One epoch in every stage but the last: the stages before it have nothing to select.
    settings = settings_of(name, 1, epochs=6)
    one, two = (trajectory(name, graph, settings) for graph in (small_graph, other))
    assert [seen[0] for seen in one].count("main") == 6
    assert_same_trajectory(one, two)


@some_models
def test_validation_labels_are_what_epochs_are_judged_by(name, small_graph):
    other = with_other_validation_labels(small_graph)
    settings = settings_of(name, 1, epochs=6)
    one, _ = fit(name, task_of(small_graph, settings))
    two, _ = fit(name, task_of(other, settings))
    assert (one.history["main"]["val_loss"] != two.history["main"]["val_loss"]).all()


@some_models
def test_one_seed_repeats_and_two_seeds_differ(name, small_graph):
    settings = settings_of(name)
    one, first = fit(name, task_of(small_graph, settings, (3, 4)))
    two, second = fit(name, task_of(small_graph, settings, (3, 4)))
    assert_same_bits(one, two)
    assert torch.equal(first, second)
    assert (first[0] != first[1]).any()
    for parameters in one.done.values():
        for key, value in parameters.items():
            if name not in WITHOUT_GRADIENTS or value.dtype == torch.uint8:
                assert (value[0] != value[1]).any(), key


@some_models
def test_a_saved_model_predicts_the_same(name, small_graph, tmp_path):
    settings = settings_of(name)
    split = small_graph.split(0)
    replicas = [Replica(0, seed, settings) for seed in (0, 1)]
    masks = [(split.train, split.val)] * 2
    fitted = fit_replicas(small_graph, MODELS[name], replicas, masks)
    saved = SavedModel.of(MODELS[name], fitted, small_graph, [split.train] * 2)
    saved.write(tmp_path / "model.safetensors")
    again = SavedModel.read(tmp_path / "model.safetensors")
    assert again.replicas == replicas
    torch.testing.assert_close(again.logits(small_graph), fitted.logits, rtol=0, atol=0)
    torch.testing.assert_close(again.choose([1]).logits(small_graph)[0], fitted.logits[1])


@some_models
def test_a_resumed_training_repeats_the_bits(name, small_graph, tmp_path):
    task = task_of(small_graph, settings_of(name), (0, 1))
    paths = []

    def watch(state, stage):
        if state.current is not None and state.current.epoch in (1, 4):
            paths.append(tmp_path / f"{stage.name}-{state.current.epoch}")
            write_state(paths[-1], state, name)

    whole = train(task, MODELS[name], watch=watch)
    assert len(paths) == 2 * len([one for one in whole.history.values() if len(one["loss"])])
    for path in paths:
        again = train(task, MODELS[name], state=read_state(path, name, task.device))
        assert_same_bits(whole, again)


@every_model
def test_a_replica_alone_is_the_replica_among_others(name, small_graph):
    settings = settings_of(name)
    _, many = fit(name, task_of(small_graph, settings, (0, 1, 2)))
    _, alone = fit(name, task_of(small_graph, settings, (1,)))
    torch.testing.assert_close(many[1], alone[0], rtol=1e-3, atol=1e-4)


def settings_of_place(name, place):
    """Small settings in which no number that replicas may differ in is that of another place."""
    values = {}
    for info in fields(MODELS[name].settings):
        if info.metadata["per_replica"] and isinstance(info.default, float):
            is_share = info.metadata["high"] is not None
            factor = (0.3, 0.5, 0.6)[place] if is_share else 1 + place
            values[info.name] = factor if is_share else factor * (info.default or 0.1)
    return settings_of(name, 4, **values)


@some_models
def test_replicas_with_settings_of_their_own_do_not_mix(name, small_graph):
    split = small_graph.split(0)
    replicas = [Replica(0, place, settings_of_place(name, place)) for place in range(3)]
    task = make_task(small_graph, replicas, [(split.train, split.val)] * 3, "cpu")
    _, many = fit(name, task)
    for place in range(3):
        _, alone = fit(name, task.subset([place]))
        torch.testing.assert_close(many[place], alone[0], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@some_models
def test_a_graph_without_edges_works(name, small_graph, kind):
    x = small_graph.x if kind == "dense" else sp.csr_array(small_graph.x)
    graph = changed(small_graph, x=x, edge_index=np.empty((2, 0), np.int64))
    loops = {"self_loop": 1.0} if name in READS_EDGES_ALONE else {}
    settings = settings_of(name, 60, lr=0.05, drop=False, **loops)
    state, found = fit(name, task_of(graph, settings))
    assert found.isfinite().all()
    assert state.best_score["main"].item() == 1.0  # the attributes alone tell the classes apart


@some_models
def test_an_undirected_graph_is_the_directed_one_with_every_edge_both_ways(name, small_graph):
    edges = small_graph.edge_index
    listed_twice = changed(small_graph, edge_index=np.concatenate([edges, edges[::-1]], axis=1))
    undirected = changed(small_graph, directed=False)
    settings = settings_of(name)
    _, first = fit(name, task_of(listed_twice, settings))
    _, second = fit(name, task_of(undirected, settings))
    assert first.isfinite().all()
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@some_models
def test_sparse_and_dense_attributes_train_equally(name, small_graph):
    sparse = changed(small_graph, x=sp.csr_array(small_graph.x))
    settings = settings_of(name)
    _, first = fit(name, task_of(small_graph, settings))
    _, second = fit(name, task_of(sparse, settings))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@some_models
def test_a_class_without_train_nodes_works(name, small_graph):
    mask = small_graph.split(0).train & (small_graph.y != 2)
    settings = settings_of(name, 60, lr=0.05, drop=False)
    task = make_task(small_graph, [Replica(0, 0, settings)], [(mask, mask)], "cpu")
    _, found = fit(name, task)
    assert found.shape == (1, 18, 3)
    assert found.isfinite().all()
    assert np.array_equal(found[0].argmax(dim=-1).numpy()[mask], small_graph.y[mask])


@some_models
def test_unlabelled_nodes_are_predicted_too(name, small_graph):
    test = small_graph.split(0).test
    graph = changed(
        small_graph,
        y=np.where(test, -1, small_graph.y),
        train_mask=small_graph.split(0).train,
        val_mask=small_graph.split(0).val,
        test_mask=None,
    )
    settings = settings_of(name)
    _, found = fit(name, task_of(graph, settings))
    _, expected = fit(name, task_of(small_graph, settings))
    assert torch.equal(found, expected)


@every_model
def test_an_entry_is_called_as_it_calls_itself(name):
    assert find_model(name) is MODELS[name]
    assert MODELS[name].name == name
    assert MODELS[name].summary
    assert MODELS[name].citation
    assert list(MODELS[name].stages)[-1] == "main"


def test_an_unknown_model_gets_the_nearest_name():
    with pytest.raises(HPGMNError, match="Unknown model 'hpgnm'") as caught:
        find_model("hpgnm")
    assert caught.value.remedy is not None
    assert caught.value.remedy.value == "hpgmn"


def test_the_registry_imports_a_model_on_use_only():
    code = (
        "import sys; from hpgmn.models import MODELS, listings\n"
        "assert len(listings()) == len(MODELS) and 'gcn' in MODELS and 'gnc' not in MODELS\n"
        "print('torch' in sys.modules)\n"
        "MODELS['hpgmn']\n"
        "print(sorted(name for name in sys.modules if name.startswith('hpgmn.models.baselines')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False", "[]"]
