"""Scores of a run: from stored predictions they are those of a recomputation."""

from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from hpgmn import Graph, random_splits, train
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


@pytest.fixture(scope="module")
def number_run(tmp_path_factory):
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 2))
    y = np.where(np.arange(120) < 20, np.nan, 3 * x[:, 0] + random.normal(size=120))
    graph = Graph(x, random.integers(120, size=(2, 300)), y, name="numbers")
    graph = graph.with_splits(random_splits(graph, 2, (0.4, 0.4, 0.2)))
    out = tmp_path_factory.mktemp("numbers") / "run"
    return train(graph, model="mlp", settings={"epochs": 30}, seeds=2, out=out, report=False)


def test_a_regression_reserves_half_of_the_validation_nodes(number_run):
    table = pq.read_table(number_run.folder / "predictions.parquet").to_pydict()
    first = [
        row
        for row, key in enumerate(zip(table["split"], table["seed"], strict=True))
        if key == (0, 0)
    ]
    roles = Counter(table["role"][row] for row in first)
    assert roles == {"train": 40, "val": 20, "calibration": 20, "test": 20, "unlabelled": 20}
    split = number_run.graph.split(0)
    assert all(
        split.val[table["node"][row]] for row in first if table["role"][row] == "calibration"
    )
    assert isinstance(table["prediction"][0], float)
    assert table["label"][0] is None


def test_intervals_are_quantiles_of_the_errors_of_reserved_nodes(number_run):
    table = pq.read_table(number_run.folder / "predictions.parquet").to_pydict()
    keys = zip(table["split"], table["role"], strict=True)
    chosen = [row for row, key in enumerate(keys) if key == (1, "calibration")]
    errors = np.array([table["prediction"][row] - table["label"][row] for row in chosen])
    seeds = np.array([table["seed"][row] for row in chosen])
    mean = np.abs((errors[seeds == 0] + errors[seeds == 1]) / 2)
    predictions = number_run.predict(split=1)
    width = (predictions.intervals["high_80"] - predictions.intervals["low_80"]) / 2
    assert width == pytest.approx(np.sort(mean)[16])  # the 17th of 20: ⌈21 · 0.8⌉
    names = predictions.to_table().schema.names
    assert names == ["node_id", "prediction", "low_80", "high_80", "low_95", "high_95"]


def test_stored_targets_are_scored_like_recomputed_ones(number_run):
    found, computed = number_run.evaluate(), number_run.evaluate(number_run.graph)
    for name in ("r2", "rmse", "mae", "spearman"):
        assert found["metrics"][name] == pytest.approx(computed["metrics"][name])
    assert found["intervals"] == computed["intervals"]
    shares = number_run.metrics["intervals"]["coverage_mean"]
    assert [row["coverage"] for row in found["intervals"]] == pytest.approx(shares)
    with pytest.raises(SettingError, match="is not for numbers"):
        number_run.evaluate(metrics="accuracy")
    with pytest.raises(SettingError, match="The model predicts numbers"):
        number_run.predict(min_confidence=0.5)
