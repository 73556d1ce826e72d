"""Report data from run folders, whole and damaged, and from memory."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from hpgmn.base import parsing
from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Split
from hpgmn.report.rendering import CURVE_NAMES
from hpgmn.runs.report_data import (
    build_report,
    confusion_counts,
    learning_curves,
    read_report_data,
    write_report,
)

MakeRun = Callable[..., Path]
FILES = ("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet")
CLASSES = ["course", "faculty", "student"]


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder of two splits and two seeds; keywords change ``metrics.json``."""

    def make(**changes):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        random = np.random.default_rng(2)
        config = {
            "graph": "texas",
            "model": "hpgmn",
            "metric": "accuracy",
            "splits": [0, 3],
            "seeds": 2,
            "settings": {"lr": 0.01},
        }
        metrics = {
            **{name: config[name] for name in ("graph", "model", "metric", "splits", "seeds")},
            "test_score_mean": 0.85,
            "test_score": [0.8, 0.9, 0.8, 0.9],
            "val_score": [0.7, 0.8, 0.7, 0.8],
            "epochs": [3, 4, 2, 5],
            "graph_summary": {"class_names": CLASSES},
        } | changes
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "metrics.json").write_text(json.dumps(metrics))
        runs = [(split, seed) for split in (0, 3) for seed in (0, 1)]
        rows = [
            {"split": split, "seed": seed, "stage": stage, "epoch": epoch}
            | {"loss": 1 / (epoch + seed), "val_loss": None, "val_score": 0.1 * epoch}
            for stage, length in (("estimator", 3), ("main", 5))
            for split, seed in runs
            for epoch in range(1, length + 1 - seed)
        ]
        (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        columns: dict[str, list[Any]] = {"split": [], "seed": [], "node": []}
        columns |= {"role": [], "label": [], "prediction": []}
        for split, seed in runs:
            for v in range(40):
                columns["split"].append(split)
                columns["seed"].append(seed)
                columns["node"].append(v)
                columns["role"].append(("train", "test", "test", "unlabelled")[v % 4])
                columns["label"].append(None if v % 7 == 0 else CLASSES[v % 3])
                columns["prediction"].append(CLASSES[int(random.integers(3))])
        probabilities = {f"probability_{name}": [0.5] * 160 for name in CLASSES}
        pq.write_table(pa.table(columns | probabilities), folder / "predictions.parquet")
        return folder

    return make


def test_confusion_counts_labelled_test_nodes_of_every_run(make_run):
    folder = make_run()
    data = read_report_data(folder)
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    seen = Counter(
        (row["label"], row["prediction"])
        for row in rows
        if row["role"] == "test" and row["label"] is not None
    )
    assert data.classes == tuple(CLASSES)
    for index, true in enumerate(CLASSES):
        assert data.confusion[index].tolist() == [seen[true, name] for name in CLASSES]
    table = pq.read_table(folder / "predictions.parquet")
    for name in ("role", "label", "prediction"):
        position = table.column_names.index(name)
        table = table.set_column(position, name, table[name].dictionary_encode())
    pq.write_table(table, folder / "predictions.parquet")
    np.testing.assert_array_equal(read_report_data(folder).confusion, data.confusion)


def test_classes_come_from_the_columns_without_a_summary(make_run):
    assert read_report_data(make_run(graph_summary=None)).classes == tuple(CLASSES)


def test_history_becomes_one_table_for_each_stage(make_run):
    folder = make_run()
    stages = {stage.stage: stage for stage in read_report_data(folder).stages}
    assert list(stages) == ["estimator", "main"]
    runs = [("0", "0"), ("0", "1"), ("3", "0"), ("3", "1")]
    lines = (folder / "history.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        stage = stages[row["stage"]]
        line = runs.index((str(row["split"]), str(row["seed"])))
        column = stage.epochs.tolist().index(row["epoch"])
        for name in CURVE_NAMES:
            value = stage.curves[name][line, column]
            assert math.isnan(value) if row[name] is None else value == row[name]
    (folder / "history.jsonl").write_text("")
    assert read_report_data(folder).stages == ()


def test_curves_from_memory_are_those_of_the_file():
    nan, inf = math.nan, math.inf
    history = {
        "loss": torch.tensor([[1.0, 2.0], [0.5, nan], [nan, nan]]),  # (E, R)
        "val_score": torch.tensor([[0.25, inf], [0.5, 0.75], [0.5, 0.5]]),
    }
    [curves] = learning_curves({"main": history})
    assert (curves.stage, curves.epochs.tolist()) == ("main", [1, 2])
    np.testing.assert_equal(curves.curves["loss"], [[1.0, 0.5], [2.0, nan]])
    np.testing.assert_equal(curves.curves["val_score"], [[0.25, 0.5], [nan, nan]])
    np.testing.assert_equal(curves.curves["val_loss"], np.full((2, 2), nan))


def test_confusion_from_memory_counts_labelled_test_nodes():
    y = np.array([0, 1, -1, 1])
    test = np.array([True, True, True, False])
    split = Split(train=~test, val=np.zeros(4, bool), test=test)
    predictions = np.array([[0, 0, 1, 1], [1, 1, 0, 0]])
    assert confusion_counts(predictions, y, [split, split], 2).tolist() == [[1, 1], [1, 1]]


def test_written_report_is_the_built_one(make_run):
    folder = make_run()
    before = {path.name for path in folder.iterdir()}
    path = write_report(folder)
    assert path.read_text(encoding="utf-8") == build_report(folder)
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}
    write_report(folder, read_report_data(folder))
    assert path.read_text(encoding="utf-8") == build_report(folder)


def test_failed_report_leaves_the_old_page(make_run, monkeypatch):
    folder = make_run()
    old = write_report(folder).read_bytes()
    (folder / "audit.json").write_text("{}")
    (folder / "understanding.json").write_text('{"patterns": 3}')
    with pytest.raises(HPGMNError, match=r"understanding\.json"):
        write_report(folder)

    def refuse(source, target):
        raise PermissionError(13, "Permission denied")

    (folder / "understanding.json").unlink()
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(HPGMNError, match=r"report\.html \(Permission denied\)"):
        write_report(folder)
    assert (folder / "report.html").read_bytes() == old


def test_missing_folder_or_file_is_named(make_run, tmp_path):
    with pytest.raises(HPGMNError, match="nowhere"):
        read_report_data(tmp_path / "nowhere")
    for name in FILES:
        folder = make_run()
        (folder / name).unlink()
        with pytest.raises(HPGMNError, match=f"has no {name}") as caught:
            read_report_data(folder)
        assert caught.value.remedy is not None
        assert caught.value.remedy.option == "resume"


@pytest.mark.parametrize("name", [*FILES, "audit.json", "understanding.json", "explorer.json"])
@pytest.mark.parametrize("content", [b"{not: [valid", b"\xff\xfe\x00\x80", b"[1, 2]"])
def test_broken_file_is_named_with_the_remedy(make_run, name, content):
    folder = make_run()
    (folder / name).write_bytes(content)
    with pytest.raises(HPGMNError, match=name) as caught:
        read_report_data(folder)
    assert caught.value.remedy is not None
    assert caught.value.remedy.option == "overwrite"


@pytest.mark.parametrize("name", ["metrics.json", "audit.json", "explorer.json"])
def test_an_oversized_file_is_not_read(make_run, monkeypatch, name):
    folder = make_run()
    (folder / name).write_text(f'{{"a": "{"x" * 9000}"}}')
    monkeypatch.setattr(parsing, "LARGEST_JSON", 8192)
    with pytest.raises(HPGMNError, match=rf"{name} is not valid JSON \(.*8 KiB"):
        read_report_data(folder)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"test_score": [0.5]}, r"'test_score' .*\(got 1 values\)"),
        ({"test_score": 0.5}, r"'test_score' .*\(got 0.5\)"),
        ({"splits": 2}, r"'splits' \(got 2\)"),
        ({"seeds": 0}, r"'seeds' \(got 0\)"),
        ({"graph_summary": {"class_names": ["a", "a"]}}, "'class_names'"),
    ],
)
def test_inconsistent_metrics_are_refused(make_run, changes, fact):
    with pytest.raises(HPGMNError, match=rf"metrics\.json .*{fact}"):
        read_report_data(make_run(**changes))


def test_missing_key_is_named(make_run):
    folder = make_run()
    (folder / "explorer.json").write_text('{"split": 0}')
    with pytest.raises(HPGMNError, match=r"explorer\.json lacks seeds"):
        read_report_data(folder)
    (folder / "metrics.json").write_text('{"model": "hpgmn"}')
    with pytest.raises(HPGMNError, match=r"metrics\.json lacks graph, splits, seeds"):
        read_report_data(folder)


@pytest.mark.parametrize("line", ["3", '{"split": 0}', '{"split": 0, "seed": 0, "epoch": "x"}'])
def test_broken_line_of_the_history_is_counted(make_run, line):
    folder = make_run()
    path = folder / "history.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text(f"{first}\n\n{line}\n")
    with pytest.raises(HPGMNError, match=r"history\.jsonl is damaged at line 3"):
        read_report_data(folder)


def test_predictions_without_a_column_or_of_another_graph_are_refused(make_run):
    folder = make_run(graph_summary={"class_names": CLASSES[:2]})
    with pytest.raises(HPGMNError, match=r"predictions\.parquet holds the class 'student'"):
        read_report_data(folder)
    pq.write_table(pa.table({"split": [0], "seed": [0]}), folder / "predictions.parquet")
    with pytest.raises(HPGMNError, match=r"parquet lacks the columns node, role, label"):
        read_report_data(folder)
