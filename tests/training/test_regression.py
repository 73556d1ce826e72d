"""Regression through training, saving and prediction."""

import dataclasses

import numpy as np
import pytest
import torch

from hpgmn import Graph
from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings, settings_names
from hpgmn.graph import random_splits
from hpgmn.models import MODELS, find_model, task_settings
from hpgmn.models.stage import Replica, require_task
from hpgmn.training.checks import check_split
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import SavedModel

SMALL = {"hidden_dim": 8, "epochs": 60, "patience": 0, "lr": 0.02, "dropout": 0.0, "rounds": 2}
SMALL |= {"estimator_epochs": 30, "estimator_hidden": 8, "min_leaf": 3, "svd_dim": 4, "layers": 2}
SMALL |= {"pretraining_epochs": 20, "representation_epochs": 5, "attributes_dropout": 0.0}
ABOUT_CLASSES = ("bmgcn", "cpgnn", "lwgcn")


def make_graph(nodes=80, seed=0, shift=0.0):
    """Targets are a sum of attributes, and neighbours have similar ones."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(nodes, 3)).astype(np.float32)
    y = 5 + 3 * x[:, 0] + x[:, 1] + 0.1 * random.normal(size=nodes)
    near = np.abs(y[:, None] - y) + random.uniform(0, 6, size=(nodes, nodes))
    np.fill_diagonal(near, np.inf)
    edges = np.stack([np.repeat(np.arange(nodes), 3), np.argsort(near, axis=1)[:, :3].ravel()])
    graph = Graph(x, edges, y + shift, name="tiny", node_ids=[f"n{i}" for i in range(nodes)])
    return graph.with_splits(random_splits(graph, 2))


def settings_of(model, **changes):
    kind = find_model(model).settings
    values = {**SMALL, **changes}
    values = {name: value for name, value in values.items() if name in settings_names(kind)}
    return make_settings(kind, task_settings(kind, values, is_regression=True))


def fit(graph, model="hpgmn", splits=(0,), settings=None, **options):
    settings = settings or settings_of(model)
    replicas = [Replica(split, 0, settings) for split in splits]
    masks = [(graph.split(split).train, graph.split(split).val) for split in splits]
    return fit_replicas(graph, find_model(model), replicas, masks, metric="r2", **options)


def with_targets(graph, part, change):
    y = graph.y.copy()
    y[getattr(graph.split(0), part)] += change
    other = Graph(graph.x, graph.edge_index, y, name="tiny", node_ids=graph.node_ids)
    assert graph.splits is not None
    return other.with_splits(graph.splits)


@pytest.mark.parametrize("model", [name for name in MODELS if name not in ABOUT_CLASSES])
def test_every_model_beats_the_mean(model):
    graph = make_graph()
    fitted = fit(graph, model)
    assert fitted.logits.shape == (1, graph.num_nodes, 1)
    test = graph.split(0).test
    errors = fitted.logits[0, :, 0].numpy()[test] - graph.y[test]
    assert np.square(errors).mean() < 0.9 * graph.y[test].var()


@pytest.mark.parametrize("model", ABOUT_CLASSES)
def test_models_about_classes_are_refused_in_one_line(model):
    with pytest.raises(HPGMNError, match=f"Model {model} is about classes") as raised:
        require_task(find_model(model), None, make_graph(20))
    assert "\n" not in str(raised.value)


def test_mean_targets_are_refused_for_classes():
    graph = Graph([[1.0]] * 2, [[0], [1]], [0, 1])
    with pytest.raises(HPGMNError, match="target_means is the mean target of neighbours"):
        require_task(find_model("hpgmn"), settings_of("hpgmn"), graph)


@pytest.mark.parametrize("model", ["hpgmn", "boosting"])
def test_targets_of_test_nodes_change_nothing(model):
    graph = make_graph()
    changed = with_targets(graph, "test", 100.0)
    assert torch.equal(fit(graph, model).logits, fit(changed, model).logits)


@pytest.mark.parametrize("model", ["hpgmn", "boosting"])
def test_targets_of_validation_nodes_select_and_nothing_else(model):
    graph = make_graph()
    first = fit(graph, model)
    again = fit(with_targets(graph, "val", 100.0), model, epochs=first.best_epoch)
    assert torch.equal(first.logits, again.logits)


@pytest.mark.parametrize("model", ["hpgmn", "boosting", "gcn"])
def test_a_replica_alone_is_the_same_as_among_others(model):
    graph = make_graph()
    both = fit(graph, model, (0, 1)).logits
    for number in (0, 1):
        alone = fit(graph, model, (number,)).logits[0]
        torch.testing.assert_close(alone, both[number], rtol=1e-4, atol=1e-4)


def test_an_interrupted_training_resumes_bit_for_bit(tmp_path):
    graph, whole = make_graph(), fit(make_graph())
    calls = iter(range(1000))
    with pytest.raises(KeyboardInterrupt):
        fit(graph, folder=tmp_path, identity="a", should_stop=lambda: next(calls) == 45)
    resumed = fit(graph, folder=tmp_path, identity="a")
    assert torch.equal(resumed.logits, whole.logits)


@pytest.mark.parametrize("model", ["hpgmn", "boosting"])
def test_a_saved_model_predicts_the_same_and_keeps_its_unit_on_other_graphs(tmp_path, model):
    graph = make_graph(shift=1000.0)
    settings = settings_of(model)
    if model == "hpgmn":  # nothing tied to nodes
        settings = dataclasses.replace(settings, statistics=("attributes", "target_means"))
    fitted = fit(graph, model, settings=settings)
    saved = SavedModel.of(find_model(model), fitted, graph, [graph.split(0).train])
    saved.write(tmp_path / "model.safetensors")
    read = SavedModel.read(tmp_path / "model.safetensors")
    assert torch.equal(read.logits(graph), fitted.logits)
    part = Graph(graph.x[:10], [[0, 1], [1, 2]], node_ids=[f"n{i}" for i in range(10)])
    assert (read.logits(part)[0] - 1005).abs().max() < 100


def test_rmse_selects_the_lowest_error():
    graph = make_graph()
    replicas, masks = (
        [Replica(0, 0, settings_of("mlp"))],
        [(graph.split(0).train, graph.split(0).val)],
    )
    fitted = fit_replicas(graph, find_model("mlp"), replicas, masks, metric="rmse")
    errors = -fitted.history["main"]["val_score"][:, 0]
    assert int(errors.argmin()) + 1 == int(fitted.best_epoch["main"])
    assert float(errors.min()) > 0


def test_a_constant_target_is_refused():
    graph = make_graph()
    y = np.where(graph.split(0).train, 3.0, graph.y)
    assert graph.splits is not None
    constant = Graph(graph.x, graph.edge_index, y).with_splits(graph.splits)
    with pytest.raises(HPGMNError, match="The target is 3 on all train nodes of split 0"):
        check_split(constant, constant.split(0), 0)
