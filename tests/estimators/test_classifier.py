"""HPGMNClassifier: scikit-learn's contract, saving, and graphs it was not fitted on."""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

import hpgmn
from hpgmn import Graph, HPGMNClassifier, HPGMNError
from hpgmn.base.calibration import fit_temperature, from_temperatures
from hpgmn.base.errors import GraphError, SettingError
from hpgmn.models import MODELS
from hpgmn.runs.fit import fit_run
from hpgmn.runs.spec import RunSpec

TINY: dict[str, Any] = {
    "hidden_dim": 6,
    "num_patterns": 5,
    "estimator_hidden": 6,
    "epochs": 8,
    "patience": 0,
    "estimator_epochs": 5,
    "estimator_patience": 0,
    "neighbors": "undirected",
    "statistics": ("attributes", "class_counts", "class_means", "diffusion"),
}


def classifier(**changes):
    return HPGMNClassifier(**(TINY | changes))


def changed(graph, **values):
    assert graph.splits is not None
    given: dict[str, Any] = {
        "x": graph.x,
        "edge_index": graph.edge_index,
        "y": graph.y,
        "node_ids": graph.node_ids,
        "name": graph.name,
    }
    given |= {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    return Graph(**(given | values))


@pytest.fixture
def fitted(small_graph):
    return classifier().fit(small_graph)


# Fitting and predicting.


def test_fit_returns_the_classifier_with_learned_attributes(small_graph):
    model = classifier()
    assert model.fit(small_graph, split=1) is model
    assert model.classes_.tolist() == [0, 1, 2]  # the graph has no names
    assert model.saved_.replicas[0].split == 1
    val = small_graph.split(1).val
    assert model.val_score_ == pytest.approx(model.score(small_graph, val), abs=1e-6)


def test_predictions_agree_with_each_other(small_graph, fitted):
    chances = fitted.predict_proba(small_graph)
    assert chances.shape == (18, 3)
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
    guesses = fitted.predict(small_graph)
    assert guesses.tolist() == [fitted.classes_[number] for number in chances.argmax(axis=1)]
    test, names = small_graph.split(0).test, small_graph.y
    share = (guesses == names)[test].mean()
    assert fitted.score(small_graph, test) == pytest.approx(share, abs=1e-6)
    share = (guesses == names).mean()
    assert fitted.score(small_graph) == pytest.approx(share, abs=1e-6)


def test_the_seed_decides(small_graph, fitted):
    chances = fitted.predict_proba(small_graph)
    np.testing.assert_array_equal(
        classifier(seed=0).fit(small_graph).predict_proba(small_graph), chances
    )
    assert np.abs(classifier(seed=1).fit(small_graph).predict_proba(small_graph) - chances).max()


def test_masks_serve_instead_of_a_split(small_graph, fitted):
    split = small_graph.split(0)
    bare = Graph(small_graph.x, small_graph.edge_index, small_graph.y)
    model = classifier().fit(bare, train=split.train, val=split.val)
    np.testing.assert_array_equal(model.predict_proba(bare), fitted.predict_proba(small_graph))


def test_test_labels_are_never_looked_at(small_graph, fitted):
    y, test = small_graph.y.copy(), small_graph.split(0).test
    y[test] = (y[test] + 1) % 3
    split = small_graph.split(0)
    graph = Graph(small_graph.x, small_graph.edge_index, y)
    model = classifier().fit(graph, train=split.train, val=split.val)
    np.testing.assert_array_equal(model.predict_proba(graph), fitted.predict_proba(small_graph))


def test_it_learns(small_graph):
    model = classifier(epochs=60, estimator_epochs=60, lr=0.05, dropout=0.0).fit(small_graph)
    assert model.score(small_graph, small_graph.split(0).train) == 1.0


def test_unlabelled_nodes_are_predicted_but_not_scored(small_graph, fitted):
    y = small_graph.y.copy()
    test = small_graph.split(0).test
    y[test] = -1
    graph = Graph(small_graph.x, small_graph.edge_index, y)
    np.testing.assert_array_equal(fitted.predict(graph), fitted.predict(small_graph))
    assert fitted.score(graph) == pytest.approx(fitted.score(small_graph, ~test), abs=1e-6)
    with pytest.raises(GraphError, match="holds no labelled node"):
        fitted.score(graph, test)


# Mistakes.


def test_what_is_not_fitted_says_so(small_graph, tmp_path):
    model = classifier()
    calls: list[Callable[[], Any]] = [
        lambda: model.predict(small_graph),
        lambda: model.predict_proba(small_graph),
        lambda: model.score(small_graph),
        lambda: model.save(tmp_path / "model"),
        lambda: model.explain(small_graph, node=4),
    ]
    for call in calls:
        with pytest.raises(HPGMNError, match=r"is not fitted\. Call fit\(graph\)"):
            call()
    assert not (tmp_path / "model").exists()


def test_an_unknown_keyword_is_refused(small_graph):
    with pytest.raises(TypeError, match="'hiden_dim'"):
        HPGMNClassifier(hiden_dim=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="'sed'"):
        HPGMNClassifier().set_params(sed=3)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"lr": -1}, "Setting 'lr' must be at least 0"),
        ({"neighbors": "inn"}, "Did you mean 'in'?"),
        ({"metric": "roc"}, "Did you mean 'roc_auc'?"),
        ({"settings": {"hiden_dim": 3}}, "Did you mean 'hidden_dim'?"),
        ({"model": "mlp"}, "Unknown setting '"),
        ({"callbacks": [3]}, "callbacks must be a list of functions"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"metric": "precision@3"}, "needs two classes .'small' has 3"),
    ],
    ids=str,
)
def test_wrong_values_are_told_when_fitting(small_graph, values, told):
    with pytest.raises(SettingError, match=told.replace("?", r"\?")):
        classifier(**values).fit(small_graph)


def test_a_missing_gpu_is_told(small_graph, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HPGMNError, match=r"No CUDA device is available\. Use device='cpu'"):
        classifier(device="cuda").fit(small_graph)


def test_saving_needs_no_gpu_and_predicting_does(small_graph, fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fitted.set_params(device="cuda").save(tmp_path)
    loaded = HPGMNClassifier.load(tmp_path).set_params(device="cpu")
    with pytest.raises(HPGMNError, match="No CUDA device is available"):
        fitted.predict(small_graph)
    classes = fitted.set_params(device="cpu").predict(small_graph)
    np.testing.assert_array_equal(loaded.predict(small_graph), classes)


def test_splits_that_cannot_be_trained_on_are_told(small_graph):
    train, nothing = small_graph.split(0).train, np.zeros(18, bool)
    with pytest.raises(SettingError, match="Only one of train and val"):
        classifier().fit(small_graph, train=train)
    with pytest.raises(HPGMNError, match="Split given of 'small' has no val nodes"):
        classifier().fit(small_graph, train=train, val=nothing)
    with pytest.raises(GraphError, match="splits 0 to 1"):
        classifier().fit(small_graph, split=2)
    with pytest.raises(GraphError, match="has no splits"):
        classifier().fit(Graph(small_graph.x, small_graph.edge_index, small_graph.y))


def test_a_class_without_train_nodes_is_warned_of(small_graph, caplog):
    split = small_graph.split(0)
    classifier(epochs=1, estimator_epochs=1).fit(
        small_graph, train=split.train & (small_graph.y != 2), val=split.val
    )
    assert "no train node of class 2" in caplog.text


@pytest.mark.parametrize("mask", [[1, 2, 3], np.ones((18, 2), bool)], ids=["places", "two"])
def test_a_mask_of_another_shape_is_told(small_graph, fitted, mask):
    with pytest.raises(GraphError, match="true or false for each of the 18 nodes"):
        fitted.score(small_graph, mask)


# Hyperparameters as in scikit-learn.


def test_every_setting_of_every_model_is_a_parameter():
    parameters = HPGMNClassifier().get_params()
    assert parameters.keys() == inspect.signature(HPGMNClassifier).parameters.keys()
    own = {"graph", "model", "seed", "device", "metric", "positive", "calibrate", "settings"}
    own |= {"callbacks", "validation_fraction"}
    names = {info.name for model in MODELS.values() for info in fields(model.settings)}
    assert parameters.keys() == own | names
    assert {parameters[name] for name in names} == {None}


def test_parameters_can_be_read_changed_and_cloned(small_graph):
    model = classifier(seed=5, lr=0.02)
    assert model.get_params()["lr"] == model.lr == 0.02
    assert model.set_params(lr=0.5, gate=False) is model
    assert (model.get_params()["lr"], model.get_params()["gate"]) == (0.5, False)
    assert model.get_params()["hidden_dim"] == 6
    twin = clone(model.fit(small_graph))
    assert twin is not model
    assert twin.get_params() == model.get_params()
    assert not hasattr(twin, "saved_")
    np.testing.assert_array_equal(
        twin.fit(small_graph).predict_proba(small_graph), model.predict_proba(small_graph)
    )


def test_the_text_form_names_what_differs_from_the_defaults():
    assert repr(HPGMNClassifier()) == "HPGMNClassifier()"
    model = HPGMNClassifier(lr=0.5, model="hpgmn-gcn")
    assert repr(model) == "HPGMNClassifier(lr=0.5, model='hpgmn-gcn')"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_fits_and_predicts(small_graph, name):
    known = {info.name for info in fields(MODELS[name].settings)}
    small = {"epochs": 2, "estimator_epochs": 2, "pretraining_epochs": 2, "hidden_dim": 4}
    chosen = {key: value for key, value in small.items() if key in known}
    model = HPGMNClassifier(model=name, **chosen).fit(small_graph)
    assert model.predict_proba(small_graph).shape == (18, 3)


# Saving and loading.

LOADED = """
import sys
import numpy as np
import hpgmn
model = hpgmn.HPGMNClassifier.load(sys.argv[1])
np.save(sys.argv[3], model.predict_proba(hpgmn.read_graph(sys.argv[2])))
"""


@pytest.mark.slow
def test_a_saved_classifier_predicts_the_same_bits_in_a_new_process(small_graph, fitted, tmp_path):
    fitted.save(tmp_path / "model")
    hpgmn.write_graph(small_graph, tmp_path / "g.npz")
    places = [str(tmp_path / name) for name in ("model", "g.npz", "chances.npy")]
    source = str(Path(hpgmn.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", LOADED, *places], env=os.environ | {"PYTHONPATH": source}, check=True
    )
    chances = np.load(tmp_path / "chances.npy")
    np.testing.assert_array_equal(chances, fitted.predict_proba(small_graph))


def test_loading_gives_back_the_parameters(small_graph, tmp_path):
    y = small_graph.y % 2
    graph = changed(small_graph, y=y, class_names=["no", "yes"])
    model = classifier(metric="roc_auc", seed=3, lr=0.02, memory_dim=None).fit(graph)
    model.save(tmp_path / "model")
    loaded = HPGMNClassifier.load(tmp_path / "model")
    expected = dict(vars(model.saved_.replicas[0].settings), metric="roc_auc", seed=3)
    assert expected.items() <= loaded.get_params().items()
    assert loaded.classes_.tolist() == ["no", "yes"]
    area = roc_auc_score(y, model.predict_proba(graph)[:, 1])
    assert loaded.score(graph) == pytest.approx(area, abs=1e-5)


def test_a_run_folder_is_loaded_by_its_first_replica(small_graph, tmp_path):
    graph = changed(small_graph, y=small_graph.y % 2)
    settings = TINY | {"statistics": list(TINY["statistics"])}
    spec = RunSpec("small", "hpgmn", settings, splits=(1, 0), seeds=2, metric="roc_auc")
    fit_run(spec, graph, tmp_path)
    loaded = HPGMNClassifier.load(tmp_path)
    assert (loaded.seed, loaded.metric) == (0, "roc_auc")
    alone = classifier(metric="roc_auc").fit(graph, split=1)
    np.testing.assert_allclose(
        loaded.predict_proba(graph), alone.predict_proba(graph), rtol=1e-3, atol=1e-3
    )
    explained = [list(loaded.explain(graph, node).probabilities.values()) for node in range(18)]
    np.testing.assert_allclose(explained, loaded.predict_proba(graph), atol=1e-5)


def test_a_folder_without_a_model_is_told(tmp_path):
    with pytest.raises(HPGMNError, match=r"holds no model\.safetensors\. Give a folder that save"):
        HPGMNClassifier.load(tmp_path)


def test_sure_predictions_are_still_ranked(small_graph):
    """Probabilities that round to 1 are all equal; the logits behind them are not."""
    graph = changed(small_graph, y=(np.arange(18) >= 9).astype(int))
    logits = torch.stack([torch.zeros(18), 200.0 + torch.arange(18)], dim=-1)
    model = HPGMNClassifier(metric="roc_auc")
    model.saved_ = SimpleNamespace(
        logits=lambda *_: logits[None],
        calibration=from_temperatures([2.0], 2),
        train_labels=graph.y,
        class_names=graph.class_names,
        metadata={},
    )
    assert (model.predict_proba(graph)[:, 1] == 1).all()
    assert model.score(graph) == 1.0


# Other graphs than the one it was fitted on.


def named(graph):
    return changed(graph, node_ids=[f"node {number}" for number in range(graph.num_nodes)])


def permuted(graph, order):
    """The same graph with node order[i] in place i."""
    place = np.argsort(order)
    assert graph.node_ids is not None
    return Graph(
        graph.x[order], place[graph.edge_index], graph.y[order], node_ids=graph.node_ids[order]
    )


IDENTITY = [("attributes", "diffusion"), ("attributes", "class_counts", "adjacency")]


@pytest.mark.parametrize("neighbors", ["out", "undirected", "both"])
@pytest.mark.parametrize("statistics", [TINY["statistics"], *IDENTITY], ids=len)
def test_nodes_in_another_order_are_recognised_by_their_ids(small_graph, statistics, neighbors):
    graph = named(small_graph)
    model = classifier(statistics=statistics, neighbors=neighbors).fit(graph)
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    chances = model.predict_proba(permuted(graph, order))
    np.testing.assert_allclose(chances, model.predict_proba(graph)[order], atol=1e-5)


@pytest.mark.parametrize("statistics", [TINY["statistics"], *IDENTITY], ids=len)
def test_new_nodes_leave_the_predictions_of_those_they_do_not_reach(small_graph, statistics):
    """Of out-neighbourhoods with rows normalised, a node sees only what its edges lead to."""
    graph = named(small_graph)
    model = classifier(statistics=statistics, neighbors="out", normalization="row").fit(graph)
    assert graph.node_ids is not None
    grown = Graph(
        np.concatenate([graph.x, graph.x[:2] + 0.1]),
        np.concatenate([graph.edge_index, [[18, 18, 19], [0, 5, 18]]], axis=1),
        node_ids=[*graph.node_ids, "newcomer", "friend"],
    )
    chances = model.predict_proba(grown)
    assert chances.shape == (20, 3)
    np.testing.assert_allclose(chances[:18], model.predict_proba(graph), atol=1e-5)


def test_an_edge_from_a_node_changes_its_prediction(small_graph):
    graph = named(small_graph)
    model = classifier(neighbors="out", normalization="row").fit(graph)
    before = model.predict_proba(graph)
    edges = np.concatenate([graph.edge_index, [[17, 17], [0, 3]]], axis=1)
    after = model.predict_proba(changed(graph, edge_index=edges))
    assert np.abs(after[17] - before[17]).max() > 1e-4
    np.testing.assert_allclose(after[:17], before[:17], atol=1e-5)


def test_tables_of_new_nodes_are_predicted_as_in_the_whole_graph():
    count, new = 30, 4
    ids = [f"n{number}" for number in range(count + new)]
    x = np.random.default_rng(0).normal(size=count + new).tolist()
    label = ["a", "b", "c"] * 10
    split = [("train", "train", "val", "test", "test")[number % 5] for number in range(count)]
    ends = [
        (one, (5 * one + step) % (count + new)) for one in range(count + new) for step in (1, 2)
    ]

    def edges(is_wanted):
        kept = [pair for pair in ends if is_wanted(max(pair))]
        return {
            "source": [ids[source] for source, _ in kept],
            "target": [ids[target] for _, target in kept],
        }

    old = {"id": ids[:count], "x": x[:count], "label": label, "split": split}
    today = hpgmn.from_tables(old, edges(lambda last: last < count))
    model = classifier().fit(today)
    only = {"id": ids[count:], "x": x[count:]}
    tomorrow = hpgmn.from_tables(only, edges(lambda last: last >= count), onto=today)
    whole = hpgmn.from_tables({"id": ids, "x": x}, edges(lambda last: True), like=today)
    chances = model.predict_proba(tomorrow)
    assert chances.shape == (count + new, 3)
    np.testing.assert_allclose(chances, model.predict_proba(whole), atol=1e-5)


def test_without_ids_a_statistic_tied_to_nodes_is_refused(small_graph, fitted):
    other = Graph(small_graph.x + 1, small_graph.edge_index)
    told = (
        r"reads diffusion rows.*Give both graphs node_ids that are the same for the same node, or "
        r"train with sketched diffusion"
    )
    with pytest.raises(HPGMNError, match=told):
        fitted.predict(other)
    alone = classifier(statistics=("adjacency",)).fit(small_graph)
    with pytest.raises(HPGMNError, match=r"statistics=\(\"attributes\",\)"):
        alone.predict(other)


def test_without_ids_the_other_statistics_serve_any_graph(small_graph):
    model = classifier(statistics=("attributes", "class_counts", "class_means")).fit(small_graph)
    other = Graph(np.random.default_rng(1).normal(size=(4, 5)), [[0, 1], [1, 2]])
    assert model.predict(other).shape == (4,)


def test_other_attributes_are_refused(small_graph, fitted):
    with pytest.raises(HPGMNError, match="trained on 5 attributes; graph 'graph' has 4"):
        fitted.predict(Graph(small_graph.x[:, :4], small_graph.edge_index))


def test_probabilities_are_calibrated_and_classes_are_the_same(small_graph, tmp_path):
    plain, scaled = (classifier(calibrate=own).fit(small_graph) for own in (False, True))
    np.testing.assert_array_equal(plain.saved_.calibration, from_temperatures([1.0], 3))
    temperature = 1 / scaled.saved_.calibration[0, 0, 0]
    val = small_graph.split(0).val
    logs = np.log(plain.predict_proba(small_graph).astype(np.float64))
    assert temperature == pytest.approx(fit_temperature(logs[val], small_graph.y[val]), rel=1e-3)
    assert temperature != 1
    powers = np.exp(logs / temperature)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scaled.predict_proba(small_graph), expected, atol=1e-5)
    np.testing.assert_array_equal(scaled.predict(small_graph), plain.predict(small_graph))
    assert scaled.score(small_graph) == plain.score(small_graph)
    for number, model in enumerate((plain, scaled)):
        model.save(tmp_path / str(number))
        loaded = HPGMNClassifier.load(tmp_path / str(number))
        assert loaded.calibrate == bool(number)
        np.testing.assert_array_equal(
            loaded.predict_proba(small_graph), model.predict_proba(small_graph)
        )


def test_class_weights_and_metrics_of_skewed_classes_are_keywords(small_graph):
    model = classifier(class_weights="balanced", metric="balanced_accuracy").fit(small_graph)
    guesses = model.predict(small_graph)
    expected = balanced_accuracy_score(small_graph.y, guesses)
    assert model.score(small_graph) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(SettingError, match="Choose from: none, balanced"):
        classifier(class_weights="equal").fit(small_graph)


# Explaining.


def test_a_node_and_the_model_are_explained(small_graph, fitted):
    found = fitted.explain(small_graph, node=4)
    chances = fitted.predict_proba(small_graph)[4]
    assert list(found.probabilities.values()) == pytest.approx(chances, abs=1e-6)
    assert found.prediction == str(fitted.classes_[chances.argmax()])
    assert set(found.statistics) == set(TINY["statistics"])
    whole = fitted.explain(small_graph)
    assert set(whole.statistics) == set(TINY["statistics"])
    assert len(whole.patterns) == 5


def test_a_loaded_classifier_explains_the_same(small_graph, fitted, tmp_path):
    fitted.save(tmp_path)
    loaded = HPGMNClassifier.load(tmp_path)
    assert loaded.explain(small_graph, node=4) == fitted.explain(small_graph, node=4)


@pytest.mark.parametrize("asked", [None, "honest"])
def test_the_class_looked_for_is_the_rarer_or_the_named_one(small_graph, tmp_path, asked):
    y = np.where(small_graph.y == 2, 0, 1)
    split = small_graph.split(0)
    graph = Graph(
        small_graph.x,
        small_graph.edge_index,
        y,
        class_names=["fraud", "honest"],
        train_mask=split.train,
        val_mask=split.val,
        test_mask=split.test,
    )
    model = HPGMNClassifier(
        model="mlp", epochs=3, hidden_dim=4, metric="average_precision", positive=asked
    )
    model.fit(graph)
    number = {None: 0, "honest": 1}[asked]
    chances = model.predict_proba(graph)[:, number]
    for mask, found in (
        (split.val, model.val_score_),
        (split.test, model.score(graph, split.test)),
    ):
        expected = average_precision_score(y[mask] == number, chances[mask])
        assert found == pytest.approx(expected, abs=1e-6)
    model.save(tmp_path)
    loaded = HPGMNClassifier.load(tmp_path)
    assert loaded.positive == ("fraud", "honest")[number]
    assert loaded.score(graph, split.test) == model.score(graph, split.test)
