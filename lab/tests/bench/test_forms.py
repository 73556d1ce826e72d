"""Forms of diffusion: errors against a matrix inverse, and scores on the same splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpgmn.base.errors import SettingError
from hpgmn.graph.files import write_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench import forms

FEW = {
    **{"epochs": 3, "estimator_epochs": 2, "hidden_dim": 4, "num_patterns": 3, "patience": 0},
    **{"diffusion_topk": 8, "diffusion_dim": 16, "neighbors": "undirected"},
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    graph = trading_network(150, num_features=4, degree=4, seed=1).graph
    write_graph(graph, tmp_path / "own.npz")
    return str(tmp_path / "own.npz")


def test_errors_are_those_against_the_inverse() -> None:
    """Row errors of the 8 largest entries; the sketch's Gram matrix is off by about tr/(√d·‖G‖)."""
    graph = trading_network(150, num_features=4, degree=4, seed=1).graph
    settings = forms.settings_of("own", "dense", FEW | {"teleport": 0.3})
    found = forms.errors(graph, settings, "cpu")
    adjacency = graph.adjacency("out").toarray().astype(np.float64)
    sums = adjacency.sum(axis=0)
    walk = adjacency / np.where(sums > 0, sums, 1)
    exact = 0.3 * np.linalg.inv(np.eye(150) - 0.7 * walk)
    for words in ("with self entries", "without"):
        if words == "without":
            np.fill_diagonal(exact, 0)
        largest = np.where(exact >= np.sort(exact, axis=1)[:, [-8]], exact, 0)
        expected = np.linalg.norm(exact - largest) / np.linalg.norm(exact)
        assert found["topk"][words] == pytest.approx(expected, rel=0.02)
        gram = exact @ exact.T
        rough = np.trace(gram) / (np.sqrt(16) * np.linalg.norm(gram))
        assert rough / 2 < found["sketch"][words] < 2 * rough


def test_every_form_is_trained_on_the_same_splits(
    out: Path, said: list[str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = forms.measure(
        out,
        command="c",
        graphs=[source],
        error_graphs=[source],
        splits=[0, 2],
        seeds=2,
        changes=FEW,
        say=said.append,
    )
    own = record["graphs"]["own"]
    assert list(own["runs"]) == ["dense", "topk", "sketch"]
    assert [runs["settings"]["diffusion_form"] for runs in own["runs"].values()] == [*own["runs"]]
    assert all(len(runs["test_score"]) == 4 for runs in own["runs"].values())
    assert own["splits"] == [0, 2]
    assert own["test_per_train"] == pytest.approx(0.2 / 0.48, rel=0.1)
    assert record["settings"][source]["statistics"] == forms.STATISTICS
    assert record["seeds"] == [0, 1]
    assert set(record["errors"]) == {"own"}
    errors, scores, bars = forms.tables(record)
    assert errors.rows[0][0] == "own"
    assert [row[1] for row in scores.rows] == ["dense", "topk", "sketch"]
    assert [row[0] for row in bars.rows] == ["own, topk minus dense", "own, sketch minus dense"]


def test_validation_chooses_the_dropout_of_each_form(
    out: Path, said: list[str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[float]] = {}

    def runs_of(graph: Any, candidates: Any, *given: Any, **more: Any) -> dict[str, Any]:
        asked[more["what"]] = [one["diffusion_dropout"] for one in candidates]
        return {"settings": candidates[0], "test_score": [0.5, 0.6], "seconds": 1.0}

    monkeypatch.setattr(forms, "runs_of", runs_of)
    for dropouts, expected in (((0.5, 0.0), [0.5, 0.0]), ((), [0.6])):
        forms.measure(
            out,
            command="c",
            graphs=[source],
            error_graphs=[],
            changes=FEW,
            dropouts=dropouts,
            say=said.append,
        )
        assert asked == {f"own {form}": expected for form in ("dense", "topk", "sketch")}


def test_the_settings_are_the_shipped_ones_but_for_the_statistics() -> None:
    found = forms.settings_of("squirrel", "topk", {"lr": "0.5"})
    assert found["statistics"] == ["attributes", "class_counts", "class_means", "diffusion"]
    assert found["diffusion_form"] == "topk"
    assert found["class_means_scaling"] == "unit"  # shipped for squirrel
    assert found["neighbors"] == "out"
    assert found["lr"] == 0.5


def test_bars_and_tables_of_a_record(forms_record: dict[str, Any]) -> None:
    assert [bar.words for bar in forms.bars(forms_record)] == ["reached", "short by 0.50 points"]
    errors, scores, _ = forms.tables(forms_record)
    assert errors.rows == [["texas", "0.185", "0.3", "0.41", "0.19"]]
    assert [row[:4] for row in scores.rows] == [
        ["squirrel", "dense", "0.6", "71.0 ± 1.4"],
        ["squirrel", "topk", "0.6", "71.5 ± 0.7"],
        ["squirrel", "sketch", "0.6", "70.0 ± 1.4"],
    ]
    assert scores.rows[1][4].startswith("+0.50 (")
    assert scores.rows[2][4] == "-1.00 (-1.00 to -1.00)"
    assert scores.rows[0][4:] == ["", "9"]
    assert forms.tables(forms_record | {"errors": {}, "graphs": {}}) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"seeds": 0}, r"--seeds must be at least 1 \(got 0\)"),
        ({"changes": {"diffusion_form": "topk"}}, "diffusion_form is what this benchmark changes"),
        ({"changes": {"lr": "fast"}}, "Setting 'lr' takes a number"),
    ],
)
def test_mistakes_are_refused_before_any_work(
    out: Path, said: list[str], source: str, more: dict[str, Any], message: str
) -> None:
    options: dict[str, Any] = {"command": "c", "graphs": [source], "changes": {}} | more
    with pytest.raises(SettingError, match=message):
        forms.measure(out, say=said.append, **options)
    assert said == []
