"""Variants on the same splits: selected on validation, reused, judged by the paired interval."""

import math

import numpy as np
import pytest
from scipy import stats

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import Difference, scores
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn_lab.bench import paired
from hpgmn_lab.bench.paired import (
    checked_splits,
    complete,
    difference_bar,
    difference_text,
    differences,
    score_text,
    train_variants,
)
from hpgmn_lab.bench.process import fit_once

SHORT = {"epochs": 3, "estimator_epochs": 2, "hidden_dim": 4, "num_patterns": 3, "patience": 0}


def runs(graph, call, *candidates, seeds=1):
    variants = {"a variant": [complete(SHORT | candidate) for candidate in candidates]}
    result = train_variants(call, graph, variants, [1, 0], seeds)
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
    original = paired.scores

    def count(*arguments):
        tested.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(paired, "scores", count)
    result = runs(small_graph, call, {"lr": 1e-9}, {"lr": 0.05, "epochs": 20}, {"lr": 1e-8})
    assert len(result["tried_val_score"]) == 3
    assert int(np.argmax(result["tried_val_score"])) == 1
    assert result["settings"]["lr"] == 0.05
    assert np.mean(result["val_score"]) == pytest.approx(result["tried_val_score"][1])
    assert len(tested) == 1


def test_finished_variants_are_reused(small_graph, call, monkeypatch):
    first = runs(small_graph, call, {})
    monkeypatch.setattr(paired, "fit_replicas", None)
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
    scores = {"new": [0.9, 0.8, 0.85], "base": [0.88, 0.8, 0.8]}
    content = {"splits": [0, 1, 2], "test_per_train": 0.5}
    content["runs"] = {name: {"test_score": values} for name, values in scores.items()}
    found = differences({"graphs": {"g": content}}, "base")
    assert list(found) == [("g", "new")]
    gaps = np.array([2.0, 0.0, 5.0])
    half = stats.t.ppf(0.975, 2) * math.sqrt((1 / 3 + 0.5) * gaps.var(ddof=1))
    assert found["g", "new"].mean == pytest.approx(gaps.mean())
    assert found["g", "new"].low == pytest.approx(gaps.mean() - half)
    assert found["g", "new"].high == pytest.approx(gaps.mean() + half)
    assert score_text(scores["new"]) == "85.0 ± 5.0"


def test_a_difference_is_judged_by_its_mean_or_by_its_interval():
    near, far = (Difference(mean, mean - 1, mean + 1, 10, "splits") for mean in (-0.7, -2.0))
    assert difference_bar("a", near).verdict == "short by 0.20 points"
    assert difference_bar("a", near, zero_suffices=True).verdict.startswith("reached: ")
    assert difference_bar("a", far, zero_suffices=True).verdict == "short by 1.50 points"
    good = Difference(-0.2, None, None, 1, "splits")
    assert difference_bar("a", good, zero_suffices=True).verdict == "reached"
    assert difference_text(good) == "-0.20"
