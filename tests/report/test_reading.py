from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpgmn.base import parsing
from hpgmn.base.errors import HPGMNError
from hpgmn.report.reading import CURVES, number, printable, read_run

MakeRun = Callable[..., Path]
FILES = ("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet")


def change_metrics(folder: Path, **changes: object) -> None:
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics |= changes
    (folder / "metrics.json").write_text(json.dumps(metrics))


def test_scores_are_split_by_split_with_seeds_inside(make_run: MakeRun) -> None:
    scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    folder = make_run(splits=[0, 3], seeds=3, test_score=scores, epochs=30)
    run = read_run(folder)
    assert run.test_score.tolist() == [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]
    assert run.num_runs == 6


def test_confusion_counts_labelled_test_nodes_of_every_run(make_run: MakeRun) -> None:
    folder = make_run()
    run = read_run(folder)
    seen = Counter(
        (row["label"], row["prediction"])
        for row in pq.read_table(folder / "predictions.parquet").to_pylist()
        if row["role"] == "test" and row["label"] is not None
    )
    assert run.classes == ("course", "faculty", "student")
    for row, true in enumerate(run.classes):
        for column, predicted in enumerate(run.classes):
            assert run.confusion[row, column] == seen[true, predicted]
    assert run.confusion.sum() == sum(seen.values())


def test_confusion_of_dictionary_columns_is_the_same(make_run: MakeRun) -> None:
    folder = make_run()
    expected = read_run(folder).confusion
    table = pq.read_table(folder / "predictions.parquet")
    for name in ("role", "label", "prediction"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].dictionary_encode())
    pq.write_table(table, folder / "predictions.parquet")
    np.testing.assert_array_equal(read_run(folder).confusion, expected)


def test_classes_come_from_the_columns_where_the_summary_has_none(make_run: MakeRun) -> None:
    folder = make_run(graph_summary=None)
    assert read_run(folder).classes == ("course", "faculty", "student")


def test_history_becomes_one_table_for_each_stage(make_run: MakeRun) -> None:
    folder = make_run(splits=[0, 3], seeds=2)
    stages = {stage.name: stage for stage in read_run(folder).stages}
    assert list(stages) == ["estimator", "pretraining", "main"]
    runs = [("0", "0"), ("0", "1"), ("3", "0"), ("3", "1")]
    lines = (folder / "history.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        stage = stages[row["stage"]]
        line = runs.index((str(row["split"]), str(row["seed"])))
        column = stage.epochs.tolist().index(row["epoch"])
        for name in CURVES:
            value = stage.curves[name][line, column]
            assert math.isnan(value) if row[name] is None else value == row[name]
    assert len(lines) == sum(stage.curves["loss"].size for stage in stages.values())


def test_history_may_be_empty(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "history.jsonl").write_text("")
    assert read_run(folder).stages == ()


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(HPGMNError, match=r"no run folder .*nowhere.*hpgmn train"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named_with_the_remedy(make_run: MakeRun, name: str) -> None:
    folder = make_run()
    (folder / name).unlink()
    with pytest.raises(HPGMNError, match=f"has no {name}: .*--resume.*--overwrite"):
        read_run(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"{not: [valid", b"\xff\xfe\x00\x80", b"[1, 2]"])
def test_broken_file_is_named_with_the_remedy(make_run: MakeRun, name: str, content: bytes) -> None:
    folder = make_run()
    (folder / name).write_bytes(content)
    with pytest.raises(HPGMNError, match=rf"{name}.* Train again with --overwrite"):
        read_run(folder)


@pytest.mark.parametrize("name", ["metrics.json", "audit.json", "understanding.json"])
def test_a_file_beyond_all_measure_is_not_read(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = make_run()
    (folder / name).write_text(f'{{"a": "{"x" * 9000}"}}')
    monkeypatch.setattr(parsing, "LARGEST_JSON", 8192)
    with pytest.raises(HPGMNError, match=rf"{name} is not valid JSON \(it is larger than 8 KiB"):
        read_run(folder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"test_score": [0.5]}, r"'test_score' for 2 splits × 2 seeds \(got 1 values\)"),
        ({"test_score": 0.5}, r"'test_score' .*\(got 0.5\)"),
        ({"splits": 2}, r"a list 'splits' \(got 2\)"),
        ({"seeds": 0}, r"a whole number 'seeds' \(got 0\)"),
        ({"graph_summary": {"class_names": ["a", "a"]}}, "distinct 'class_names'"),
    ],
)
def test_metrics_that_contradict_themselves_are_refused(
    make_run: MakeRun, changes: dict[str, object], fault: str
) -> None:
    folder = make_run()
    change_metrics(folder, **changes)
    with pytest.raises(HPGMNError, match=rf"metrics\.json .*{fault}"):
        read_run(folder)


def test_missing_key_is_named(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "metrics.json").write_text('{"model": "hpgmn"}')
    with pytest.raises(HPGMNError, match=r"metrics\.json lacks graph, splits, seeds"):
        read_run(folder)


@pytest.mark.parametrize("line", ["3", '{"split": 0}', '{"split": 0, "seed": 0, "epoch": "x"}'])
def test_broken_line_of_the_history_is_counted(make_run: MakeRun, line: str) -> None:
    folder = make_run()
    path = folder / "history.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text(f"{first}\n\n{line}\n")
    with pytest.raises(HPGMNError, match=r"history\.jsonl is damaged at line 3"):
        read_run(folder)


def test_predictions_without_a_column_are_refused(make_run: MakeRun) -> None:
    folder = make_run()
    pq.write_table(pa.table({"split": [0], "seed": [0]}), folder / "predictions.parquet")
    with pytest.raises(HPGMNError, match=r"parquet lacks the columns node, role, label"):
        read_run(folder)


def test_predictions_of_another_graph_are_refused(make_run: MakeRun) -> None:
    folder = make_run()
    change_metrics(folder, graph_summary={"class_names": ["course", "faculty"]})
    with pytest.raises(HPGMNError, match=r"predictions\.parquet holds the class 'student'"):
        read_run(folder)


@pytest.mark.parametrize("value", [None, "0.5", True, math.inf, math.nan, [1]])
def test_what_is_no_number_is_not_a_number(value: object) -> None:
    assert math.isnan(number(value))


def test_printable_text_fits_any_file() -> None:
    text = printable("a\nb\x1b\x00\ud800\uffff<ü学>")
    assert text == "a b\ufffd\ufffd\ufffd\ufffd<ü学>"
    text.encode("utf-8")
