"""Trials: chosen by validation, the test labels read once, cut where time is up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import scores
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.models import find_model
from hpgmn_lab.bench import trials
from hpgmn_lab.bench.clock import fit_once
from hpgmn_lab.bench.trials import Trial, run_trials

CANDIDATES: list[dict[str, Any]] = [
    {"epochs": 4, "patience": 0, "hidden_dim": 4, "lr": 1e-9, "dropout": 0.0},
    {"epochs": 4, "patience": 0, "hidden_dim": 4, "lr": 0.1, "dropout": 0.0},
    {"epochs": 4, "patience": 0, "hidden_dim": 4, "lr": 1e-8, "dropout": 0.0},
]


@pytest.fixture
def source(small_graph: Graph, tmp_path: Path) -> str:
    write_graph(small_graph, tmp_path / "small.npz")
    return str(tmp_path / "small.npz")


def run(source: str, model: str, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "split": 1,
        "candidates": CANDIDATES,
        "seed": 5,
        "device": "cpu",
        "limit": None,
        "launched": time.time(),
    }
    return run_trials(source, model=model, **options | changes)


def test_the_best_by_validation_is_tested(source: str, small_graph: Graph) -> None:
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


def test_preparation_is_everything_before_the_first_epoch(source: str) -> None:
    """HP-GMN's label estimator and statistics count."""
    few = [{"epochs": 3, "estimator_epochs": 5, "hidden_dim": 4, "patience": 0}]
    found = run(source, "hpgmn", candidates=few)
    [row] = found["trials"]
    first = found["curve"][0][0]
    assert 0 < row["preparation_seconds"] < first
    assert row["epochs_trained"] == 3
    assert row["seconds"] == found["curve"][-1][0]


@pytest.mark.parametrize("model", ["mlp", "pyg-mlp"])
def test_a_model_without_time_is_cut_and_says_so(source: str, model: str) -> None:
    found = run(source, model, limit=1e-6)
    [row] = found["trials"]
    assert row["epochs_trained"] == 1
    assert not row["is_finished"]
    assert found["test_accuracy"] is None
    assert found["curve"]


def test_a_model_cut_before_its_own_first_epoch_has_no_score(source: str) -> None:
    few = [{"epochs": 3, "estimator_epochs": 5, "hidden_dim": 4, "patience": 0}]
    found = run(source, "hpgmn", candidates=few, limit=1e-6)
    [row] = found["trials"]
    assert row["epochs_trained"] == 0
    assert row["val_accuracy"] is row["preparation_seconds"] is row["epoch_seconds"] is None
    assert found["curve"] == []


def test_an_interrupt_is_no_cut(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit_once(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "fit_once", fit_once)
    with pytest.raises(KeyboardInterrupt):
        run(source, "mlp")


def test_a_finished_trial_goes_before_a_better_one_that_was_cut(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter(
        [
            Trial([1.0], [(1.0, 0.1)], True, None),  # the warm-up
            Trial([1.0, 1.0], [(2.0, 0.5), (3.0, 0.6)], True, None),
            Trial([1.0], [(2.0, 0.9)], False, None),
            Trial([1.0], [(2.0, 0.95)], False, None),
        ]
    )
    monkeypatch.setattr(trials, "_fit_of", lambda model: lambda *_: next(made))
    found = run(source, "mlp")
    assert found["chosen"] == 0
    assert found["trials"][0]["preparation_seconds"] == 1.0
    assert found["trials"][0]["epoch_seconds"] == 1.0
