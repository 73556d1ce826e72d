"""``hpgmn evaluate``: which nodes are scored, and with what."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score, f1_score

from hpgmn.evaluation.scores import class_scores
from hpgmn.graph import Graph, Splits
from hpgmn.graph.files import write_graph
from hpgmn.runs.report_data import read_report_data

RUN = ("--splits", "0", "--device", "cpu", "--out", "run")


def read_table(path):
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def changed(graph, **values):
    assert graph.splits is not None
    given = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y, "name": graph.name}
    given |= {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    return Graph(**(given | values))


# evaluate


def test_evaluate_has_every_metric_that_applies(hpgmn, trained, small_graph):
    found = json.loads(hpgmn("evaluate", trained, "--json").out)["metrics"]
    assert list(found) == [
        *("accuracy", "balanced_accuracy", "macro_f1", "roc_auc", "average_precision")
    ]
    table = pq.read_table(trained / "predictions.parquet").to_pylist()
    values = []
    for split in (1, 0):
        for seed in range(2):
            rows = [
                row
                for row in table
                if (row["split"], row["seed"], row["role"]) == (split, seed, "test")
            ]
            truth, guess = ([row[key] for row in rows] for key in ("label", "prediction"))
            values.append(f1_score(truth, guess, average="macro"))
    assert found["macro_f1"]["mean"] == pytest.approx(np.mean(values), abs=1e-6)
    assert found["macro_f1"]["std"] == pytest.approx(np.std(values, ddof=1), abs=1e-6)


def test_evaluate_begins_with_the_metric_of_the_run(hpgmn, tiny, small_graph):
    write_graph(changed(small_graph, y=small_graph.y % 2), "two.npz")
    options = ["--metric", "precision@2", "--splits", "0", "--out", "run"]
    assert hpgmn("train", "two.npz", *tiny(), *options).code == 0
    found = json.loads(hpgmn("evaluate", "run", "--json").out)
    assert found["metric"] == next(iter(found["metrics"])) == "precision@2"
    assert found["metrics"]["precision@2"]["mean"] == found["score_mean"]
    assert len(found["metrics"]) == 6


def test_evaluate_and_the_report_have_the_same_numbers_by_class(hpgmn, trained):
    data = read_report_data(trained)
    classes = json.loads(hpgmn("evaluate", trained, "--json").out)["classes"]
    assert classes == class_scores(data.confusion, data.classes)
    assert [row["support"] for row in classes] == [8, 8, 8]  # 2 nodes in each of 4 runs


def test_evaluate_pools_the_nodes_of_all_runs(hpgmn, trained):
    rows = pq.read_table(trained / "predictions.parquet").to_pylist()
    tested = [(row["label"], row["prediction"]) for row in rows if row["role"] == "test"]
    for row in json.loads(hpgmn("evaluate", trained, "--json").out)["classes"]:
        name = row["class"]
        hits = tested.count((name, name))
        claimed = sum(guess == name for _, guess in tested)
        assert row["recall"] == hits / 8
        assert row["precision"] == (hits / claimed if claimed else None)


def test_evaluate_prints_a_table(hpgmn, trained):
    found = json.loads(hpgmn("evaluate", trained, "--json").out)
    answer = hpgmn("evaluate", trained)
    assert answer.code == 0
    score = f"{100 * found['score_mean']:.1f} ± {100 * found['score_std']:.1f}"
    assert answer.out.startswith(f"small, test nodes, 4 runs: accuracy {score}\n")
    for name, own in found["metrics"].items():
        (line,) = [x for x in answer.out.splitlines() if x.startswith(f"│ {name} ")]
        shown = f"{100 * own['mean']:.1f} ± {100 * own['std']:.1f}"
        assert [cell.strip() for cell in line.strip("│").split("│")] == [name, shown]
    for row in found["classes"]:
        (line,) = [x for x in answer.out.splitlines() if x.startswith(f"│ {row['class']} ")]
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        shares = [row[key] for key in ("precision", "recall", "f1")]
        shown = ["–" if share is None else f"{100 * share:.1f}" for share in shares]
        assert cells == [row["class"], *shown, str(row["support"])]


def test_evaluate_scores_all_labelled_nodes_of_another_graph(hpgmn, tiny, graph_file, small_graph):
    options = [*tiny(statistics="attributes,class_counts"), "--splits", "0", "--out", "run"]
    assert hpgmn("train", graph_file, *options).code == 0
    y = small_graph.y.copy()
    y[3] = -1
    other = Graph(small_graph.x * 1.1, small_graph.edge_index, y, class_names=["0", "1", "2"])
    write_graph(other, "other.npz")
    found = json.loads(hpgmn("evaluate", "run", "other.npz", "--json").out)
    assert found["nodes"] == "all labelled nodes"
    assert hpgmn("predict", "run", "other.npz", "--out", "p.csv").code == 0
    guesses = np.array([int(row["prediction"]) for row in read_table(Path("p.csv"))])
    known = y >= 0
    assert found["score_mean"] == pytest.approx((guesses == y)[known].mean(), abs=1e-6)
    assert [row["support"] for row in found["classes"]] == [5, 6, 6]


def test_evaluate_refuses_splits_that_changed(hpgmn, tiny, graph_file, small_graph):
    options = ["--splits", "0", "--no-graph", "--out", "run"]
    assert hpgmn("train", graph_file, *tiny(), *options).code == 0
    splits = small_graph.splits
    assert splits is not None
    write_graph(small_graph.with_splits(Splits(splits.test, splits.val, splits.train)), graph_file)
    answer = hpgmn("evaluate", "run", graph_file)
    assert answer.code == 2
    assert "are test nodes now" in answer.err
    assert hpgmn("predict", "run", "--out", "p.csv").code == 0  # needs no splits


def test_evaluate_keeps_to_the_protocol_of_the_run(hpgmn, tiny, tmp_path, small_graph, monkeypatch):
    """The named graph's own splits are not the protocol's: they would test on train nodes."""
    splits = small_graph.splits
    assert splits is not None
    swapped = Splits(splits.test, splits.val, splits.train)
    graph = changed(small_graph, alternative_splits={"geom": swapped}, name="cora")
    write_graph(graph, tmp_path / "cora.npz")
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path))
    options = ["--protocol", "geom-gcn", *tiny(), "--out", "run"]
    assert hpgmn("train", "cora", *options).code == 0
    scores = json.loads(Path("run/metrics.json").read_text())["test_score"]
    for named in ([], ["cora"], [tmp_path / "cora.npz"]):
        assert json.loads(hpgmn("evaluate", "run", *named, "--json").out)["score"] == scores


def fraud_graph(small_graph, **values):
    """Two classes, of which the first by name is the rarer one."""
    y = np.where(small_graph.y == 2, 0, 1)
    return changed(small_graph, **({"y": y, "class_names": ["fraud", "honest"]} | values))


@pytest.mark.parametrize(
    ("options", "sought"), [([], "fraud"), (["--positive", "honest"], "honest")]
)
def test_the_rarer_class_is_looked_for_unless_another_is_named(
    hpgmn, tiny, small_graph, options, sought
):
    write_graph(fraud_graph(small_graph), "two.npz")
    told = hpgmn("train", "two.npz", *tiny(), *options, "--metric", "average_precision", *RUN)
    assert told.code == 0, told.err
    metrics = json.loads(Path("run/metrics.json").read_text())
    rows = pq.read_table("run/predictions.parquet").to_pylist()
    parts = {"test": "test_score", "val": "val_score"}
    for role, key in parts.items():
        mine = [row for row in rows if row["role"] == role]
        truth = [row["label"] == sought for row in mine]
        expected = average_precision_score(truth, [row[f"probability_{sought}"] for row in mine])
        assert metrics[key] == [pytest.approx(expected, abs=1e-6)]
    assert metrics["positive"] == metrics["config"]["positive"] == sought
    score = f"{100 * metrics['test_score_mean']:.1f}"
    lines = told.out.splitlines()
    head = next(place for place, line in enumerate(lines) if "validation" in line)
    start, end = lines[head].index("test"), lines[head].index("validation")
    shown = [line[start:end].strip() for line in lines[head + 1 :]]  # narrow: 80 columns
    assert shown[:3] == ["average_precision", f"of '{sought}'", score]
    words = f"average_precision of '{sought}' {score}"
    again = hpgmn("evaluate", "run", "--json")
    found = json.loads(again.out)
    assert (found["positive"], found["score"]) == (sought, metrics["test_score"])
    assert words in hpgmn("evaluate", "run").out
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert f"Test average precision of &#39;{sought}&#39;" in page
    assert f"--positive {sought}" in page


def test_evaluate_of_a_run_by_accuracy_looks_for_the_rarer_class(hpgmn, tiny, small_graph):
    write_graph(fraud_graph(small_graph), "two.npz")
    assert hpgmn("train", "two.npz", *tiny(), *RUN).code == 0
    assert "positive" not in Path("run/config.yaml").read_text()
    mine = [
        row for row in pq.read_table("run/predictions.parquet").to_pylist() if row["role"] == "test"
    ]
    truth = [row["label"] == "fraud" for row in mine]
    expected = average_precision_score(truth, [row["probability_fraud"] for row in mine])
    found = json.loads(hpgmn("evaluate", "run", "--json").out)
    assert found["metrics"]["average_precision"]["mean"] == pytest.approx(expected, abs=1e-6)
    assert "average_precision of 'fraud'" in hpgmn("evaluate", "run").out


def test_evaluate_says_when_the_run_has_used_every_node(hpgmn, tiny, small_graph):
    ids = np.array([f"node {number}" for number in range(18)])
    write_graph(changed(small_graph, node_ids=ids), "one.npz")
    assert hpgmn("train", "one.npz", *tiny(statistics="attributes"), *RUN).code == 0
    split = small_graph.split(0)
    known = np.where(split.train, small_graph.y, -1)
    write_graph(
        changed(
            small_graph,
            node_ids=ids,
            y=known,
            x=small_graph.x + 1,
            train_mask=None,
            val_mask=None,
            test_mask=None,
        ),
        "other.npz",
    )
    Path("run/predictions.parquet").unlink()  # the model itself knows its train nodes
    answer = hpgmn("evaluate", "run", "other.npz")
    assert answer.code == 2
    assert "on every labelled node of 'other'" in answer.err


def test_evaluate_says_that_nodes_are_summed_over_runs(hpgmn, trained):
    words = " ".join(hpgmn("evaluate", trained).out.replace("┃", " ").split())
    assert "nodes, summed over 4 runs" in words
