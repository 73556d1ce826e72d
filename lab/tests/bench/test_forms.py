"""Forms of diffusion: errors against a matrix inverse, and scores on the same splits."""

from typing import Any

import numpy as np
import pytest

from hpgmn.base.errors import SettingError
from hpgmn.graph.files import write_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench import forms

SHORT = {
    **{"epochs": 3, "estimator_epochs": 2, "hidden_dim": 4, "num_patterns": 3, "patience": 0},
    **{"diffusion_topk": 8, "diffusion_dim": 16, "neighbors": "undirected"},
}

ASSIGNMENTS = [f"{key}={value}" for key, value in SHORT.items()]


@pytest.fixture
def source(tmp_path):
    graph = trading_network(150, num_features=4, degree=4, seed=1).graph
    write_graph(graph, tmp_path / "own.npz")
    return str(tmp_path / "own.npz")


def test_errors_are_those_against_the_inverse():
    """Row errors of the 8 largest entries; the sketch's Gram matrix is off by about tr/(√d·‖G‖)."""
    graph = trading_network(150, num_features=4, degree=4, seed=1).graph
    settings = forms.settings_of("own", "dense", SHORT | {"teleport": 0.3})
    errors = forms.errors(graph, settings, "cpu")
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
    options: dict[str, Any] = {"graphs": source, "error_graphs": source, "splits": "0,2"}
    record = forms.measure(call, seeds=2, set_=ASSIGNMENTS, **options)
    content = record["graphs"]["own"]
    assert list(content["runs"]) == ["dense", "topk", "sketch"]
    for form, runs in content["runs"].items():
        assert runs["settings"]["diffusion_form"] == form
        assert len(runs["test_score"]) == 4
    assert content["splits"] == [0, 2]
    assert content["test_per_train"] == pytest.approx(0.2 / 0.48, rel=0.1)
    assert record["settings"][source]["statistics"] == forms.STATISTICS
    assert record["seeds"] == [0, 1]
    errors, scores, bars = forms.tables(record)
    assert errors.rows[0][0] == "own"
    assert [row[1] for row in scores.rows] == ["dense", "topk", "sketch"]
    assert [row[0] for row in bars.rows] == ["own, topk minus dense", "own, sketch minus dense"]


@pytest.mark.parametrize(("dropouts", "expected"), [("0.5,0", [0.5, 0.0]), ("", [0.6])])
def test_the_dropout_of_each_form_is_selected(call, source, monkeypatch, dropouts, expected):
    rates: dict[str, list[float]] = {}

    def train_variants(call, graph, variants, *_):
        for form, candidates in variants.items():
            rates[form] = [candidate["diffusion_dropout"] for candidate in candidates]
        return {}

    monkeypatch.setattr(forms, "train_variants", train_variants)
    options: dict[str, Any] = {"graphs": source, "error_graphs": "", "dropouts": dropouts}
    forms.measure(call, set_=ASSIGNMENTS, **options)
    assert rates == dict.fromkeys(("dense", "topk", "sketch"), expected)


def test_settings_are_the_shipped_ones_with_other_statistics():
    settings = forms.settings_of("squirrel", "topk", {"lr": "0.5"})
    assert settings["statistics"] == forms.STATISTICS
    assert settings["diffusion_form"] == "topk"
    assert settings["class_means_scaling"] == "unit"  # shipped for squirrel
    assert settings["lr"] == 0.5


def test_tables_of_a_record(forms_record):
    errors, scores, bars = forms.tables(forms_record)
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
    assert forms.tables(forms_record | {"errors": {}, "graphs": {}}) == []


def test_the_form_itself_is_no_option(call, source):
    with pytest.raises(SettingError, match="diffusion_form"):
        forms.measure(call, graphs=source, set_=["diffusion_form=topk"])
