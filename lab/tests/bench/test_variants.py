"""Variants on the same splits: selected on validation, reused, judged by the paired interval."""

import math

import numpy as np
import pytest
from scipy import stats

from hpgmn.base.errors import GraphError, HPGMNError, SettingError
from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import scores
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import find_model, settings_for
from hpgmn_lab.bench import variants
from hpgmn_lab.bench.process import fit_once
from hpgmn_lab.bench.variants import (
    batch_variants,
    checked_splits,
    complete,
    differences,
    form_settings,
    measure_batches,
    measure_forms,
    tables,
    train_variants,
)

SHORT = {"epochs": 3, "estimator_epochs": 2, "hidden_dim": 4, "num_patterns": 3, "patience": 0}
SMALL = {"diffusion_topk": 8, "diffusion_dim": 16, "neighbors": "undirected"}
ASSIGNMENTS = [f"{key}={value}" for key, value in (SHORT | SMALL).items()]


def runs(graph, call, *candidates, seeds=1):
    requested = {"a variant": [complete(SHORT | candidate) for candidate in candidates]}
    result = train_variants(call, graph, requested, [1, 0], seeds)
    assert result["splits"] == [1, 0]
    assert result["test_per_train"] == 1.0
    return result["runs"]["a variant"]


def test_runs_are_those_of_the_model_alone(small_graph, call):
    result = runs(small_graph, call, {}, seeds=2)
    settings = make_settings(find_model("hpgmn").settings, SHORT)
    expected = []
    for split in (1, 0):
        for seed in (0, 1):
            fitted = fit_once(small_graph, "hpgmn", settings, split=split, seed=seed)
            test = small_graph.split(split).test
            expected.append(scores(fitted.logits, small_graph.y, [test], "accuracy")[0])
    assert result["test_score"] == pytest.approx(expected)
    assert len(result["val_score"]) == len(result["epochs"]) == 4
    assert result["seconds"] > 0
    assert result["metric"] == "accuracy"


def test_only_the_candidate_selected_on_validation_is_tested(small_graph, call, monkeypatch):
    tested = []
    original = variants.scores

    def count(*arguments):
        tested.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(variants, "scores", count)
    result = runs(small_graph, call, {"lr": 1e-9}, {"lr": 0.05, "epochs": 20}, {"lr": 1e-8})
    assert len(result["tried_val_score"]) == 3
    assert int(np.argmax(result["tried_val_score"])) == 1
    assert result["settings"]["lr"] == 0.05
    assert np.mean(result["val_score"]) == pytest.approx(result["tried_val_score"][1])
    assert len(tested) == 1


def test_finished_variants_are_reused(small_graph, call, monkeypatch):
    first = runs(small_graph, call, {})
    monkeypatch.setattr(variants, "fit_replicas", None)
    assert runs(small_graph, call, {}) == first
    with pytest.raises(TypeError):
        runs(small_graph, call, {"lr": 0.5})


def test_splits_are_all_or_the_requested_ones(small_graph):
    assert checked_splits(small_graph, None) == [0, 1]
    assert checked_splits(small_graph, [1]) == [1]
    with pytest.raises(GraphError, match="0 to 1"):
        checked_splits(small_graph, [2])
    with pytest.raises(HPGMNError, match="no splits"):
        checked_splits(Graph(small_graph.x, small_graph.edge_index, small_graph.y), None)


def test_differences_are_paired_over_splits_and_corrected():
    scores = {"topk": [0.9, 0.8, 0.85], "dense": [0.88, 0.8, 0.8]}
    content = {"splits": [0, 1, 2], "test_per_train": 0.5}
    content["runs"] = {name: {"test_score": values} for name, values in scores.items()}
    [(key, found)] = differences({"benchmark": "forms", "graphs": {"g": content}}).items()
    assert key == ("g", "topk")
    gaps = np.array([2.0, 0.0, 5.0])
    half = stats.t.ppf(0.975, 2) * math.sqrt((1 / 3 + 0.5) * gaps.var(ddof=1))
    assert found.mean == pytest.approx(gaps.mean())
    assert found.low == pytest.approx(gaps.mean() - half)
    assert found.high == pytest.approx(gaps.mean() + half)


# Forms of diffusion.


@pytest.fixture
def source(tmp_path):
    graph = trading_network(150, num_features=4, degree=4, seed=1).graph
    write_graph(graph, tmp_path / "own.npz")
    return str(tmp_path / "own.npz")


def test_errors_are_those_against_the_inverse():
    """Row errors of the 8 largest entries; the sketch's Gram matrix is off by about tr/(√d·‖G‖)."""
    graph = trading_network(150, num_features=4, degree=4, seed=1).graph
    settings = form_settings("own", "dense", SHORT | SMALL | {"teleport": 0.3})
    errors = variants.errors(graph, settings, "cpu")
    adjacency = graph.adjacency("out").toarray().astype(np.float64)
    sums = adjacency.sum(axis=0)
    walk = adjacency / np.where(sums > 0, sums, 1)
    exact = 0.3 * np.linalg.inv(np.eye(150) - 0.7 * walk)
    for kind in ("with self entries", "without"):
        if kind == "without":
            np.fill_diagonal(exact, 0)
        largest = np.where(exact >= np.sort(exact, axis=1)[:, [-8]], exact, 0)
        expected = np.linalg.norm(exact - largest) / np.linalg.norm(exact)
        assert errors["topk"][kind] == pytest.approx(expected, rel=0.02)
        gram = exact @ exact.T
        rough = np.trace(gram) / (np.sqrt(16) * np.linalg.norm(gram))
        assert rough / 2 < errors["sketch"][kind] < 2 * rough


def test_every_form_is_trained_on_the_same_splits(call, source):
    options = {"graphs": source, "error_graphs": source, "splits": "0,2"}
    record = measure_forms(call, seeds=2, set_=ASSIGNMENTS, **options)
    content = record["graphs"]["own"]
    assert list(content["runs"]) == ["dense", "topk", "sketch"]
    for form, runs in content["runs"].items():
        assert runs["settings"]["diffusion_form"] == form
        assert len(runs["test_score"]) == 4
    assert content["splits"] == [0, 2]
    assert content["test_per_train"] == pytest.approx(0.2 / 0.48, rel=0.1)
    assert record["settings"][source]["statistics"] == variants.STATISTICS
    assert record["seeds"] == [0, 1]
    errors, scores, bars = tables(record)
    assert errors.rows[0][0] == "own"
    assert [row[1] for row in scores.rows] == ["dense", "topk", "sketch"]
    assert [row[0] for row in bars.rows] == ["own, topk minus dense", "own, sketch minus dense"]


@pytest.mark.parametrize(("dropouts", "expected"), [("0.5,0", [0.5, 0.0]), ("", [0.6])])
def test_the_dropout_of_each_form_is_selected(call, source, monkeypatch, dropouts, expected):
    rates = {}

    def train_variants(call, graph, requested, *_):
        for form, candidates in requested.items():
            rates[form] = [candidate["diffusion_dropout"] for candidate in candidates]
        return {}

    monkeypatch.setattr(variants, "train_variants", train_variants)
    options = {"graphs": source, "error_graphs": "", "dropouts": dropouts}
    measure_forms(call, set_=ASSIGNMENTS, **options)
    assert rates == dict.fromkeys(("dense", "topk", "sketch"), expected)


def test_settings_are_the_shipped_ones_with_other_statistics():
    settings = form_settings("squirrel", "topk", {"lr": "0.5"})
    assert settings["statistics"] == variants.STATISTICS
    assert settings["diffusion_form"] == "topk"
    assert settings["class_means_scaling"] == "unit"  # shipped for squirrel
    assert settings["lr"] == 0.5


def test_tables_of_forms(forms_record):
    errors, scores, bars = tables(forms_record)
    assert errors.rows == [["texas", "0.185", "0.3", "0.41", "0.19"]]
    assert [row[:4] for row in scores.rows] == [
        ["squirrel", "dense", "0.6", "71.0 ± 1.4"],
        ["squirrel", "topk", "0.6", "71.5 ± 0.7"],
        ["squirrel", "sketch", "0.6", "70.0 ± 1.4"],
    ]
    assert scores.rows[1][4].startswith("+0.50 (")
    assert scores.rows[2][4] == "-1.00 (-1.00 to -1.00)"
    assert scores.rows[0][4:] == ["", "9"]
    assert [row[-1] for row in bars.rows] == ["reached", "short by 0.50 points"]
    assert tables(forms_record | {"errors": {}, "graphs": {}}) == []


def test_the_form_itself_is_no_option(call, source):
    with pytest.raises(SettingError, match="diffusion_form"):
        measure_forms(call, graphs=source, set_=["diffusion_form=topk"])


# Batches of rows.


def test_both_variants_are_trained_on_the_same_splits(call, small_graph, tmp_path, monkeypatch):
    path = tmp_path / "own.npz"
    write_graph(small_graph, path)
    monkeypatch.setattr(variants, "settings_for", lambda name: SHORT)
    options = {"graphs": str(path), "batch_size": 2, "lr_factors": "1,0.5"}
    record = measure_batches(call, seeds=2, set_=["dropout=0.1"], **options)
    content = record["graphs"]["own"]
    full, batched = (content["runs"][name] for name in ("all at once", "in batches"))
    changed = {key for key, value in full["settings"].items() if batched["settings"][key] != value}
    assert {"batch_size", "dropout"} <= changed <= {"batch_size", "dropout", "lr"}
    assert (full["settings"]["batch_size"], batched["settings"]["batch_size"]) == (0, 2)
    assert len(full["tried_val_score"]) == 1
    assert len(batched["tried_val_score"]) == 2
    assert len(full["test_score"]) == len(batched["test_score"]) == 4
    assert content["splits"] == [0, 1]
    assert content["protocol"] is None


def test_learning_rates_are_fractions_of_the_shipped_one():
    found = batch_variants("squirrel", 256, [1.0, 0.25], {"epochs": 5})
    [full], batched = found["all at once"], found["in batches"]
    assert (full["lr"], full["epochs"]) == (0.02, 250)
    assert [candidate["lr"] for candidate in batched] == [0.02, 0.005]
    assert {candidate["epochs"] for candidate in batched} == {5}
    assert {candidate["batch_size"] for candidate in batched} == {256}


def test_neither_variant_has_means_over_neighbours():
    shipped = settings_for("squirrel")["statistics"]
    assert "neighbor_class_means" in shipped
    found = batch_variants("squirrel", 256, [1.0], {})
    for [settings] in found.values():
        assert settings["statistics"] == [name for name in shipped if "neighbor" not in name]


def test_citation_graphs_have_the_ten_splits_of_their_protocol(call, monkeypatch, small_graph):
    loaded = []
    monkeypatch.setattr(variants, "load", lambda *source: loaded.append(source) or small_graph)
    monkeypatch.setattr(variants, "train_variants", lambda *_: {})
    measure_batches(call)
    assert loaded == [("squirrel", None), ("pubmed", "geom-gcn")]


def test_tables_of_batches(batches_record):
    table, bars = tables(batches_record)
    assert table.columns[1] == "rows (batches of 64)"
    assert table.rows[0] == ["squirrel", "all at once", "0.02", "71.0 ± 1.4", "", "9"]
    assert table.rows[1][:4] == ["squirrel", "in batches", "0.01", "70.0 ± 4.2"]
    assert table.rows[3][4] == "-1.00 (-1.00 to -1.00)"
    assert [row[-1] for row in bars.rows] == [
        "reached: the interval contains 0",
        "short by 0.50 points",
    ]


@pytest.mark.parametrize("factors", ["1,0", ""])
def test_learning_rate_factors_are_positive(call, factors):
    with pytest.raises(SettingError, match="--lr-factors takes numbers"):
        measure_batches(call, lr_factors=factors)
