"""The estimators with the tools of scikit-learn: nodes, tables, searches, pickles, insides."""

import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import joblib
import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_blobs
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import hpgmn
from hpgmn import Graph, HPGMNClassifier, HPGMNError, HPGMNRegressor
from hpgmn.base.errors import SettingError

QUICK = {"epochs": 12, "estimator_epochs": 12, "hidden_dim": 8, "num_patterns": 4, "patience": 0}
EXPECTED_FAILURES: dict[str, str] = {}
"""Checks of scikit-learn that the estimators fail, each with the reason; none at present."""


@pytest.fixture(scope="module")
def graph():
    return hpgmn.trading_network(num_nodes=200, seed=0).graph


@pytest.fixture(scope="module")
def fitted(graph):
    return HPGMNClassifier(graph=graph, **QUICK).fit(np.arange(150), graph.y[:150])


def two_classes(graph):
    return (graph.y > 1).astype(int)


# The contract of an estimator.


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HPGMNClassifier, HPGMNRegressor])
def test_the_checks_of_scikit_learn_pass(kind):
    small = {"hidden_dim": 16, "num_patterns": 4, "patience": 0, "lr": 0.03}
    model = kind(epochs=60, estimator_epochs=5, **small)
    results = check_estimator(model, on_skip=None, expected_failed_checks=EXPECTED_FAILURES)
    assert sum(result["status"] == "passed" for result in results) > 45


def test_estimators_have_the_tags_of_their_kind():
    assert is_classifier(HPGMNClassifier())
    assert is_regressor(HPGMNRegressor())


def test_a_clone_shares_the_graph(graph, fitted):
    copied = clone(fitted.set_params(settings={"lr": 0.02}))
    assert copied.graph is graph
    assert copied.settings == fitted.settings
    assert copied.settings is not fitted.settings
    assert not hasattr(copied, "saved_")
    fitted.set_params(settings=None)


def test_scikit_learn_is_imported_on_use():
    code = "import sys, hpgmn, hpgmn.cli.train, hpgmn.runs.train; print('sklearn' in sys.modules)"
    source = str(Path(hpgmn.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


# Nodes of a graph.


def test_nodes_are_predicted_as_in_the_whole_graph(graph, fitted):
    nodes = np.array([180, 3, 3])
    everything = fitted.predict_proba(graph)
    np.testing.assert_array_equal(fitted.predict_proba(nodes), everything[nodes])
    assert fitted.classes_.dtype == graph.y.dtype
    np.testing.assert_array_equal(fitted.predict(nodes), everything[nodes].argmax(axis=1))
    np.testing.assert_array_equal(fitted.predict(nodes[:, None]), fitted.predict(nodes))
    expected = accuracy_score(graph.y[150:], fitted.predict(np.arange(150, 200)))
    assert fitted.score(np.arange(150, 200), graph.y[150:]) == pytest.approx(expected)


def test_only_the_labels_passed_are_used(graph, fitted):
    y = np.roll(graph.y, 1)
    y[150:] = -1
    other = Graph(graph.x, graph.edge_index, y, class_names=graph.class_names)
    model = HPGMNClassifier(graph=other, **QUICK).fit(np.arange(150), graph.y[:150])
    np.testing.assert_array_equal(
        model.predict_proba(np.arange(200)), fitted.predict_proba(np.arange(200))
    )


def test_the_validation_nodes_are_a_share_of_those_passed(fitted):
    trained = fitted.saved_.train_labels[0] >= 0
    assert 0.75 < trained[:150].mean() < 0.85
    assert not trained[150:].any()


def test_labels_default_to_those_of_the_graph(graph, fitted):
    model = clone(fitted).fit(np.arange(150))
    assert model.classes_.tolist() == sorted(graph.class_names)
    names = np.asarray(graph.class_names)[graph.y[150:]]
    rest = np.arange(150, 200)
    assert model.score(rest) == model.score(rest, names)
    assert model.score(rest) == pytest.approx(accuracy_score(names, model.predict(rest)))


def test_a_graph_is_scored_by_the_names_of_its_classes(graph, fitted):
    names = np.asarray(graph.class_names)[graph.y]
    model = clone(fitted).fit(np.arange(150), names[:150])
    assert model.classes_.tolist() != list(graph.class_names)  # sorted
    expected = accuracy_score(names, model.predict(graph))
    assert model.score(graph) == pytest.approx(expected)
    rest = np.arange(200) >= 150
    assert model.score(graph, rest) == pytest.approx(model.score(np.flatnonzero(rest)))
    with pytest.raises(ValueError, match="among the classes"):
        fitted.score(graph)  # fitted on numbers
    unnamed = Graph(graph.x, graph.edge_index, graph.y)
    expected = accuracy_score(graph.y, fitted.predict(unnamed))
    assert fitted.score(unnamed) == pytest.approx(expected)


def test_another_metric_can_be_scored(graph, fitted):
    rest = np.arange(150, 200)
    expected = f1_score(graph.y[150:], fitted.predict(rest), average="macro")
    found = fitted.score(rest, graph.y[150:], metric="macro_f1")
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_class_that_was_not_trained_counts_as_wrong(graph):
    y = two_classes(graph)
    model = HPGMNClassifier(graph=graph, **QUICK).fit(np.arange(150), y[:150])
    later = y[150:].copy()
    later[:10] = 7
    rest = np.arange(150, 200)
    expected = accuracy_score(later, model.predict(rest))
    assert model.score(rest, later) == pytest.approx(expected)


def test_a_search_over_errors_keeps_the_smallest(graph):
    targets = graph.x[:, 0].astype(float)
    model = HPGMNRegressor(graph=graph, metric="mae", **QUICK).fit(np.arange(150), targets[:150])
    rest = np.arange(150, 200)
    error = mean_absolute_error(targets[150:], model.predict(rest))
    assert model.score(rest, targets[150:]) == pytest.approx(-error, rel=1e-5)


@pytest.mark.parametrize(
    ("nodes", "labels"),
    [
        (np.arange(20), np.zeros(20, int)),
        (np.arange(20), np.arange(19)),
        (np.arange(2), np.arange(2)),
        (np.array([500]), np.array([1])),
    ],
)
def test_unusable_nodes_and_labels_are_value_errors(graph, nodes, labels):
    with pytest.raises(ValueError):  # noqa: PT011  # several messages
        HPGMNClassifier(graph=graph, **QUICK).fit(nodes, labels)


def test_a_graph_that_is_none_is_refused():
    with pytest.raises(SettingError, match="graph must be a graph"):
        HPGMNClassifier(graph="texas").fit([0, 1], [0, 1])


def test_graphs_of_other_libraries_are_fitted(graph):
    model = HPGMNClassifier(**QUICK).fit(graph.to_pyg(), split=1)
    expected = HPGMNClassifier(**QUICK).fit(graph, split=1).predict_proba(graph)
    np.testing.assert_array_equal(model.predict_proba(graph.to_pyg()), expected)
    network = nx.DiGraph(graph.edge_index.T.tolist())
    for node in network:
        attributes = dict(zip("abcdefgh", graph.x[node].tolist(), strict=True))
        part = "train" if node % 3 else "val"
        network.nodes[node].update(attributes, label=f"c{graph.y[node]}", split=part)
    model = HPGMNClassifier(**QUICK).fit(network)
    assert set(model.predict(network)) <= {f"c{number}" for number in range(5)}
    assert model.embed(network).shape == (len(network), model.patterns_.shape[1])


# Tools of scikit-learn.


def test_cross_validation_and_scorers_run(graph):
    nodes, y = np.arange(200), two_classes(graph)
    model = HPGMNClassifier(graph=graph, **QUICK)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    found = cross_val_score(model, nodes, y, cv=folds, scoring="roc_auc", error_score="raise")
    expected = [
        roc_auc_score(y[test], clone(model).fit(train, y[train]).predict_proba(test)[:, 1])
        for train, test in folds.split(nodes, y)
    ]
    np.testing.assert_allclose(found, expected)


def test_a_grid_is_searched_over_models(graph):
    grid = {"model": ["hpgmn", "mlp"], "lr": [0.01, 0.03]}
    small = {name: QUICK[name] for name in ("epochs", "hidden_dim", "patience")}
    search = GridSearchCV(HPGMNClassifier(graph=graph, **small), grid, cv=2, error_score="raise")
    search.fit(np.arange(200)[:, None], graph.y)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_.model == search.best_params_["model"]
    assert search.best_estimator_.graph is graph


def test_probabilities_are_calibrated_by_cross_validation(graph):
    model = CalibratedClassifierCV(HPGMNClassifier(graph=graph, **QUICK), cv=2, ensemble=False)
    chances = model.fit(np.arange(200)[:, None], graph.y).predict_proba(np.arange(7)[:, None])
    np.testing.assert_allclose(chances.sum(axis=1), 1)


def test_pipelines_of_nodes_and_of_tables_run(graph):
    nodes = make_pipeline(FunctionTransformer(), HPGMNClassifier(graph=graph, **QUICK))
    nodes.fit(np.arange(150)[:, None], graph.y[:150])
    assert 0 <= nodes.score(np.arange(150, 200)[:, None], graph.y[150:]) <= 1
    x, y = make_blobs(120, centers=3, random_state=0)
    table = make_pipeline(StandardScaler(), HPGMNClassifier(**(QUICK | {"epochs": 60})))
    table.fit(x[:80], np.array(["a", "b", "c"])[y[:80]])
    assert table.score(x[80:], np.array(["a", "b", "c"])[y[80:]]) > 0.7


# Saving.


@pytest.mark.parametrize("library", ["pickle", "joblib"])
def test_a_pickle_predicts_the_same(graph, fitted, library):
    if library == "pickle":
        content = pickle.dumps(fitted)
        loaded = pickle.loads(content)
    else:
        file = io.BytesIO()
        joblib.dump(fitted, file)
        content = file.getvalue()
        loaded = joblib.load(io.BytesIO(content))
    assert b"SavedModel" not in content
    np.testing.assert_array_equal(
        loaded.predict_proba(np.arange(200)), fitted.predict_proba(np.arange(200))
    )
    assert loaded.history_ == fitted.history_
    assert loaded.get_params().keys() == fitted.get_params().keys()


def test_changed_parameters_do_not_change_what_is_pickled(graph, fitted):
    model = pickle.loads(pickle.dumps(fitted))
    again = pickle.loads(pickle.dumps(model.set_params(model="mlp")))
    np.testing.assert_array_equal(again.predict_proba(graph), fitted.predict_proba(graph))


def test_nodes_are_those_of_the_present_graph(graph, fitted, tmp_path):
    other = Graph(graph.x[::-1].copy(), graph.num_nodes - 1 - graph.edge_index, name="reversed")
    fitted = clone(fitted).set_params(statistics=("attributes", "class_counts"))
    fitted.fit(np.arange(150), graph.y[:150]).save(tmp_path)
    for model in (HPGMNClassifier.load(tmp_path), fitted):
        for present in (graph, other):
            model.set_params(graph=present)
            np.testing.assert_array_equal(
                model.predict_proba([7, 2]), model.predict_proba(present)[[7, 2]]
            )


def test_classes_and_tables_are_saved(graph, fitted, tmp_path):
    fitted.save(tmp_path / "nodes")
    loaded = HPGMNClassifier.load(tmp_path / "nodes")
    assert loaded.classes_.dtype == fitted.classes_.dtype
    with pytest.raises(ValueError, match="trained on a graph"):
        loaded.predict([3])
    np.testing.assert_array_equal(loaded.set_params(graph=graph).predict([3]), fitted.predict([3]))
    x = np.random.default_rng(0).normal(size=(60, 3))
    model = HPGMNRegressor(**QUICK).fit(x, x.sum(axis=1))
    model.save(tmp_path / "table")
    again = HPGMNRegressor.load(tmp_path / "table")
    np.testing.assert_array_equal(again.predict(x[:5]), model.predict(x[:5]))


# Insides.


def test_attention_is_the_softmax_of_queries_and_patterns(graph, fitted):
    queries, patterns = fitted.embed(graph), fitted.patterns_
    assert (len(queries), len(patterns)) == (200, 4)
    scores = np.exp(queries.astype(float) @ patterns.T.astype(float))
    expected = scores / scores.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.attention(graph), expected, atol=1e-5)
    np.testing.assert_array_equal(fitted.attention([5, 2]), fitted.attention(graph)[[5, 2]])


def test_a_model_without_a_memory_says_so(graph):
    model = HPGMNClassifier(model="mlp", epochs=2).fit(graph)
    for call in (model.embed, model.attention, lambda _: model.patterns_):
        with pytest.raises(HPGMNError) as caught:
            call(graph)
        assert caught.value.remedy.value == "hpgmn"
    assert not hasattr(model, "patterns_")


def test_callbacks_see_every_epoch_and_history_keeps_them(graph):
    seen = []
    model = HPGMNClassifier(callbacks=[seen.append], **QUICK).fit(graph)
    rows = [(row["stage"], row["epoch"], row["loss"]) for row in model.history_]
    assert rows == [(progress.stage, progress.epoch, progress.loss) for progress in seen]
    assert [stage for stage, _, _ in rows] == ["estimator"] * 12 + ["main"] * 12
    assert model.n_iter_ == 12
    main = [row["val_score"] for row in model.history_ if row["stage"] == "main"]
    assert max(main) == pytest.approx(model.val_score_)
    assert json.dumps(model.history_)


# A class as a model.


class Hidden(torch.nn.Module):
    """A layer on the attributes."""

    def __init__(self, num_features, num_classes, width=4):
        super().__init__()
        self.inner = torch.nn.Linear(num_features, width)
        self.outer = torch.nn.Linear(width, num_classes)

    def forward(self, x, edge_index):
        return self.outer(self.inner(x).relu())


def test_a_class_is_a_model(graph, tmp_path):
    model = HPGMNClassifier(model=Hidden, graph=graph, epochs=3, settings={"width": 6})
    model.fit(np.arange(150), graph.y[:150])
    assert model.saved_.done["main"]["inner/weight"].shape == (1, 6, 8)
    chances = model.predict_proba(graph)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(graph), chances)
    model.save(tmp_path)
    loaded = HPGMNClassifier.load(tmp_path, model=Hidden)
    assert loaded.settings == {"width": 6}
    np.testing.assert_array_equal(loaded.predict_proba(graph), chances)
    search = GridSearchCV(clone(model), {"model": [Hidden, "mlp"], "settings": [None]}, cv=2)
    assert search.fit(np.arange(200), graph.y).best_params_["model"] in (Hidden, "mlp")


def test_a_class_that_cannot_be_imported_is_not_saved(graph, tmp_path):
    class Local(Hidden):
        pass

    model = HPGMNClassifier(model=Local, epochs=2).fit(graph)
    assert model.predict(graph).shape == (200,)
    for save in (pickle.dumps, lambda fitted: fitted.save(tmp_path / "model")):
        with pytest.raises(HPGMNError, match="could not import") as caught:
            save(model)
        assert "module of its own" in str(caught.value.remedy)
    with pytest.raises(HPGMNError, match=r"not a class derived from torch\.nn\.Module"):
        HPGMNClassifier(model=dict).fit(graph)


def test_labels_of_a_graph_without_names_stay_numbers(graph):
    unnamed = Graph(
        graph.x,
        graph.edge_index,
        graph.y,
        train_mask=graph.splits.train,
        val_mask=graph.splits.val,
        test_mask=graph.splits.test,
    )
    model = HPGMNClassifier(epochs=3, hidden_dim=4).fit(unnamed)
    assert model.classes_.dtype.kind == "i"
    assert model.score(unnamed) == pytest.approx(accuracy_score(graph.y, model.predict(unnamed)))


def test_a_setting_given_twice_is_refused(graph):
    model = HPGMNClassifier(hidden_dim=4, settings={"hidden_dim": 8})
    with pytest.raises(HPGMNError, match="hidden_dim"):
        model.fit(graph)
