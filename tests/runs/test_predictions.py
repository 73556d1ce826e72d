"""Rankings, thresholds and tables of predictions, of a run with a rare class."""

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.cli import main
from hpgmn.graph import Graph
from hpgmn.runs.run import open_run


def test_class_weights_are_undone(rare_run, rare_graph):
    assert rare_run.metrics["calibration"]["bias"][0][0] != 0
    split = rare_graph.split(0)
    chances = rare_run.predict().probabilities[split.val | split.test, 1]
    rate = (rare_graph.y[split.val | split.test] == 1).mean()
    assert chances.mean() == pytest.approx(rate, rel=0.3)
    raw = rare_run.model.logits(rare_graph).softmax(dim=-1).numpy()[:, split.val, 1]
    assert raw.mean() > 1.5 * rate


def test_the_top_are_the_unlabelled_nodes_with_the_highest_probability(rare_run, rare_graph):
    every = rare_run.predict()
    found = rare_run.predict(top=7)
    order = sorted(range(300, 400), key=lambda node: -every.probabilities[node, 1])[:7]
    assert found.node_ids.tolist() == [f"a{node}" for node in order]
    np.testing.assert_allclose(found.probabilities, every.probabilities[order], atol=1e-6)
    assert found.of == "mule"
    paid = rare_run.predict(top=3, of="paid", all_nodes=True)
    order = np.argsort(-every.probabilities[:, 0], kind="stable")[:3]
    assert paid.node_ids.tolist() == [f"a{node}" for node in order]
    assert len(rare_run.predict(top=1000).node_ids) == 100


def test_a_ranking_is_written_with_its_reasons(rare_run, tmp_path):
    found = rare_run.predict(top=5)
    assert any("=" in str(reason) for reason in found.reasons)  # a column with its value
    found.write(tmp_path / "top.csv")
    table = pyarrow.csv.read_csv(tmp_path / "top.csv")
    assert table.column_names[-1] == "reason"
    assert table["node_id"].to_pylist() == found.node_ids.tolist()
    assert "reason" not in rare_run.predict().to_table().column_names


def test_a_ranking_that_makes_no_sense_is_refused(rare_run, rare_graph):
    with pytest.raises(SettingError, match="top"):
        rare_run.predict(of="mule")
    with pytest.raises(SettingError, match="at least 1"):
        rare_run.predict(top=0)
    with pytest.raises(SettingError, match="paid, mule"):
        rare_run.predict(top=3, of="fraud")
    labelled = Graph(
        *(rare_graph.x, rare_graph.edge_index, np.zeros(400, int)),
        node_ids=rare_graph.node_ids,
        class_names=["paid", "mule"],
    )
    with pytest.raises(HPGMNError, match="all_nodes"):
        rare_run.predict(labelled, top=3)


def test_the_threshold_of_the_run_decides(rare_run, rare_graph):
    content = rare_run.metrics["threshold"]
    [value] = content["value"]
    found = rare_run.predict()
    is_mule = found.probabilities[:, 1] >= value
    assert (found.labels == "mule").tolist() == is_mule.tolist()
    split = rare_graph.split(0)
    recall = is_mule[split.val & (rare_graph.y == 1)].mean()
    assert content["val"]["recall"] == pytest.approx(recall)
    assert recall >= 0.9
    precision = (rare_graph.y[split.test & is_mule] == 1).mean()
    assert content["test"]["precision"] == pytest.approx(precision)
    opened = open_run(rare_run.folder)
    assert opened.predict().labels.tolist() == found.labels.tolist()


def test_confidence_is_the_probability_of_the_predicted_class(rare_run):
    found = rare_run.predict(threshold=0.01)
    column = np.where(found.labels == "mule", 1, 0)
    assert (found.probabilities[:, 1] < 0.5)[column == 1].any()  # decided by the threshold
    np.testing.assert_array_equal(
        found.confidence, np.take_along_axis(found.probabilities, column[:, None], 1)[:, 0]
    )
    kept = rare_run.predict(threshold=0.01, min_confidence=0.5)
    assert [label is None for label in kept.labels] == (found.confidence < 0.5).tolist()


def test_another_threshold_replaces_that_of_the_run(rare_run, rare_graph):
    found = rare_run.predict(threshold=0.3)
    assert (found.labels == "mule").tolist() == (found.probabilities[:, 1] >= 0.3).tolist()
    one = rare_run.predict(threshold="recall=1")
    nodes = rare_graph.split(0).val & (rare_graph.y == 1)
    assert (one.labels[nodes] == "mule").all()
    with pytest.raises(SettingError, match="f1"):
        rare_run.predict(threshold="f2")


def test_the_command_tells_the_threshold_and_who_is_above(rare_run, tmp_path, capsys):
    words = ["predict", str(rare_run.folder), "--out", str(tmp_path / "p.csv")]
    assert main([*words, "--threshold", "precision=0.5"]) == 0
    told = capsys.readouterr().err
    found = rare_run.predict(threshold="precision=0.5")
    name, value = found.threshold
    assert name == "mule"
    assert (found.labels == "mule").tolist() == (found.probabilities[:, 1] >= value).tolist()
    assert f"{(found.labels == 'mule').sum()} 'mule' (probability {value:.3g} or more)" in told


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("top", 0),
        ("coverage", 0.0),
        ("coverage", 1.5),
        ("coverage", np.nan),
        ("min_confidence", 2.0),
        ("min_confidence", np.nan),
    ],
)
def test_numbers_out_of_range_are_refused_with_a_remedy(rare_run, option, value):
    with pytest.raises(SettingError, match=rf"{option} must be .*\({option}=[\d.]+\)"):
        rare_run.predict(**{option: value})


def test_sets_are_refused_without_reserved_nodes(rare_run):
    with pytest.raises(SettingError, match="conformal"):
        rare_run.predict(coverage=0.9)


def test_sets_come_from_the_reserved_nodes(rare_graph, tmp_path):
    run = hpgmn.train(
        rare_graph, model="mlp", settings={"epochs": 5}, conformal=True, out=tmp_path, report=False
    )
    [reserved] = run.metrics["nodes"]["calibration"]
    roles = pq.read_table(tmp_path / "predictions.parquet")["role"].to_pylist()
    nodes = np.flatnonzero(np.array(roles) == "calibration")
    assert len(nodes) == reserved > 10
    found = run.predict(coverage=0.8)
    scores = np.sort(1 - found.probabilities[nodes, rare_graph.y[nodes]])
    lowest = 1 - scores[int(np.ceil((len(nodes) + 1) * 0.8)) - 1]
    expected = found.probabilities >= lowest - 1e-6
    expected[np.arange(400), found.probabilities.argmax(axis=1)] = True
    np.testing.assert_array_equal(found.sets, expected)
    texts = found.to_table()["prediction_set"].to_pylist()
    assert texts[0] == "|".join(np.array(["paid", "mule"])[expected[0]])
    assert len(run.metrics["prediction_sets"]) == 6
    with pytest.raises(SettingError, match="coverage"):
        run.predict(coverage=90)


def test_sets_of_a_graph_as_of_a_date_are_those_that_were_measured(tmp_path):
    nodes, edges = hpgmn.bank_transfers(0)
    graph = hpgmn.from_tables(nodes, edges, label="fraud", as_of="2025-03-15")
    graph = graph.with_splits(hpgmn.random_splits(graph, 1))
    settings = {"epochs": 40, "hidden_dim": 16}
    run = hpgmn.train(
        graph, model="mlp", settings=settings, conformal=True, out=tmp_path, report=False
    )
    sets = run.predict(coverage=0.9, by_class=True).sets[graph.split(0).test]
    [row] = [
        row for row in run.metrics["prediction_sets"] if row["by_class"] and row["coverage"] == 0.9
    ]
    assert sets.sum(axis=1).mean() == pytest.approx(row["mean_size"])


def test_the_top_of_a_regression_are_the_highest_predictions(rare_graph, tmp_path):
    y = np.where(rare_graph.y < 0, np.nan, rare_graph.x[:, 0].astype(float))
    splits = rare_graph.splits
    masks = {f"{part}_mask": getattr(splits, part) for part in ("train", "val", "test")}
    graph = Graph(rare_graph.x, rare_graph.edge_index, y, **masks, name="numbers")
    run = hpgmn.train(graph, model="mlp", settings={"epochs": 5}, out=tmp_path, report=False)
    found = run.predict(top=6)
    values = run.predict().labels
    assert found.node_ids.tolist() == sorted(range(300, 400), key=lambda n: -values[n])[:6]
    assert found.reasons is None
    with pytest.raises(SettingError, match="numbers"):
        run.predict(top=6, of="mule")


def test_a_threshold_may_be_a_number(rare_graph, tmp_path):
    settings = {"epochs": 1}
    hpgmn.train(
        rare_graph, model="mlp", settings=settings, threshold=0.3, out=tmp_path, report=False
    )
    assert open_run(tmp_path).predict().threshold == ("mule", pytest.approx(0.3))
