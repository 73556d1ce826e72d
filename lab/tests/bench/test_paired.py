"""The same splits both ways: chosen by validation, kept, and judged by the paired interval."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import Difference, scores
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn_lab.bench import paired
from hpgmn_lab.bench.clock import fit_once
from hpgmn_lab.bench.paired import (
    checked_splits,
    complete,
    difference,
    difference_bar,
    difference_words,
    ratio_of_test,
    runs_of,
    score_words,
)

FEW = {"epochs": 3, "estimator_epochs": 2, "hidden_dim": 4, "num_patterns": 3, "patience": 0}


def runs(graph: Graph, tmp_path: Path, *candidates: dict[str, Any], seeds: int = 1) -> Any:
    return runs_of(
        graph,
        [complete(FEW | one) for one in candidates],
        [1, 0],
        seeds,
        device="cpu",
        path=tmp_path / "part.json",
        what="small",
    )


def test_runs_are_those_of_the_model_alone(small_graph: Graph, tmp_path: Path) -> None:
    found = runs(small_graph, tmp_path, {}, seeds=2)
    settings = make_settings(find_model("hpgmn").settings, FEW)
    expected = []
    for split in (1, 0):
        for seed in (0, 1):
            fitted = fit_once(small_graph, "hpgmn", settings, split=split, seed=seed)
            test = small_graph.split(split).test
            expected.append(scores(fitted.logits, small_graph.y, [test], "accuracy")[0])
    assert found["test_score"] == pytest.approx(expected)
    assert len(found["val_score"]) == len(found["epochs"]) == 4
    assert found["seconds"] > 0
    assert found["metric"] == "accuracy"


def test_validation_chooses_and_only_the_chosen_is_tested(
    small_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = []
    real = paired.scores

    def counted(*arguments: Any) -> list[float]:
        tested.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(paired, "scores", counted)
    found = runs(small_graph, tmp_path, {"lr": 1e-9}, {"lr": 0.05, "epochs": 20}, {"lr": 1e-8})
    assert len(found["tried_val_score"]) == 3
    best = int(np.argmax(found["tried_val_score"]))
    assert best == 1
    assert found["settings"]["lr"] == 0.05
    assert np.mean(found["val_score"]) == pytest.approx(found["tried_val_score"][1])
    assert len(tested) == 1


def test_what_was_trained_is_not_trained_again(
    small_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runs(small_graph, tmp_path, {})
    monkeypatch.setattr(paired, "fit_replicas", None)
    assert runs(small_graph, tmp_path, {}) == first
    with pytest.raises(TypeError):
        runs(small_graph, tmp_path, {"lr": 0.5})


def test_splits_are_all_or_those_asked_for(small_graph: Graph) -> None:
    assert checked_splits(small_graph, None) == [0, 1]
    assert checked_splits(small_graph, [1]) == [1]
    with pytest.raises(GraphError, match="has splits 0 to 1"):
        checked_splits(small_graph, [2])
    unsplit = Graph(small_graph.x, small_graph.edge_index, small_graph.y)
    with pytest.raises(HPGMNError, match="has no splits"):
        checked_splits(unsplit, None)


def test_difference_is_paired_over_splits_and_corrected(small_graph: Graph) -> None:
    first, second = {"test_score": [0.9, 0.8, 0.85]}, {"test_score": [0.88, 0.8, 0.8]}
    found = difference(first, second, {"splits": [0, 1, 2], "test_per_train": 0.5})
    gaps = np.array([2.0, 0.0, 5.0])
    half = stats.t.ppf(0.975, 2) * math.sqrt((1 / 3 + 0.5) * gaps.var(ddof=1))
    assert found.mean == pytest.approx(gaps.mean())
    assert found.low == pytest.approx(gaps.mean() - half)
    assert found.high == pytest.approx(gaps.mean() + half)
    assert ratio_of_test(small_graph, [0, 1]) == 1.0
    assert score_words(first) == "85.0 ± 5.0"


def test_a_difference_is_judged_by_its_mean_or_by_its_interval() -> None:
    near, far = (Difference(mean, mean - 1, mean + 1, 10, "splits") for mean in (-0.7, -2.0))
    assert difference_bar("a", near).words == "short by 0.20 points"
    assert difference_bar("a", near, zero_suffices=True).words == "reached: the interval holds 0"
    assert difference_bar("a", far, zero_suffices=True).words == "short by 1.50 points"
    good = Difference(-0.2, None, None, 1, "splits")
    assert difference_bar("a", good, zero_suffices=True).words == "reached"
    assert difference_words(good) == "-0.20"
