"""Scores of a run: from stored predictions they are those of a recomputation."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from hpgmn.base.errors import SettingError
from hpgmn.cli import main


def test_stored_predictions_give_the_scores_of_a_recomputation(rare_run):
    names = ["precision@5", "average_precision", "accuracy"]
    found = rare_run.evaluate(metrics=", ".join(names))
    computed = rare_run.evaluate(rare_run.graph, names)
    assert list(found["metrics"]) == names
    for name in names:
        assert found["metrics"][name] == pytest.approx(computed["metrics"][name])
    for key in ("classes", "positive", "nodes", "runs", "graph", "model", "metric"):
        assert found[key] == computed[key]
    assert found["positive"] == "mule"
    assert rare_run.evaluate()["score"] == pytest.approx(rare_run.metrics["test_score"])


def test_classes_are_told_apart_at_the_threshold_of_the_run(rare_run, rare_graph, capsys):
    found = rare_run.evaluate()
    mules = []
    test = np.flatnonzero(rare_graph.split(0).test)
    rows = pq.read_table(rare_run.folder / "predictions.parquet").to_pylist()
    for seed, value in enumerate(found["threshold"]):
        own = [row for row in rows if row["seed"] == seed and row["node"] in set(test)]
        mules += [row["label"] for row in own if row["probability_mule"] >= value]
    assert found["classes"][1]["precision"] == mules.count("mule") / len(mules)
    assert main(["evaluate", str(rare_run.folder)]) == 0
    low, high = sorted(found["threshold"])
    assert f"'mule' at probability {low:.3g} to {high:.3g}" in capsys.readouterr().out


def test_a_stored_prediction_needs_no_graph(rare_run, monkeypatch):
    monkeypatch.setattr(type(rare_run), "_resolve", None)
    monkeypatch.setattr(rare_run.model, "logits", None)
    assert rare_run.evaluate(metrics="roc_auc")["metric"] == "roc_auc"


def test_an_unknown_metric_is_refused_with_the_known_ones(rare_run):
    with pytest.raises(SettingError, match="average_precision"):
        rare_run.evaluate(metrics="f7")
    with pytest.raises(SettingError, match="precision@50"):
        rare_run.evaluate(metrics="precision@")
