"""Report data from run folders, whole and damaged, and from memory."""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from hpgmn import auditing
from hpgmn.auditing import audit
from hpgmn.base import parsing
from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import settings_dict
from hpgmn.explain import explain_model, replicas
from hpgmn.explain import explorer as explorer_module
from hpgmn.explain import model as model_module
from hpgmn.models import find_model
from hpgmn.report.rendering import CURVE_NAMES
from hpgmn.runs import report_data as module
from hpgmn.runs.fit import fit_run
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.report_data import (
    build_report,
    compute,
    explain_training,
    read_report_data,
    write_report,
)
from hpgmn.runs.spec import RunSpec
from hpgmn.training.saved import SavedModel

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
        columns: dict[str, list[Any]] = {"split": [], "seed": [], "node": [], "node_id": []}
        columns |= {"role": [], "label": [], "prediction": []}
        for split, seed in runs:
            for v in range(40):
                columns["split"].append(split)
                columns["seed"].append(seed)
                columns["node"].append(v)
                columns["node_id"].append(f"n{v}")
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


@pytest.mark.parametrize("positive", [None, "faculty"])
@pytest.mark.parametrize("is_labelled", [False, True])
def test_unlabelled_nodes_are_ranked_by_their_mean_over_seeds(make_run, positive, is_labelled):
    folder = make_run(positive=positive)
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    random = np.random.default_rng(4)
    for row in rows:
        shares = random.dirichlet(np.ones(3)).tolist()
        row |= {f"probability_{name}": p for name, p in zip(CLASSES, shares, strict=True)}
        row["label"] = "course" if is_labelled else row["label"]
    pq.write_table(pa.Table.from_pylist(rows), folder / "predictions.parquet")

    means: dict[str, dict[str, float]] = {}
    for row in rows:
        is_test = row["role"] != "train" and row["split"] == 0
        if is_test and (is_labelled or row["label"] is None):
            node = means.setdefault(row["node_id"], dict.fromkeys(CLASSES, 0.0))
            for name in CLASSES:
                node[name] += row[f"probability_{name}"] / 2
    best = {v: positive or max(CLASSES, key=shares.__getitem__) for v, shares in means.items()}
    order = sorted(means, key=lambda v: -means[v][best[v]])
    ranked = read_report_data(folder).ranked
    assert [(row["node"], row["class"]) for row in ranked["rows"]] == [(v, best[v]) for v in order]
    probabilities = [row["probability"] for row in ranked["rows"]]
    assert probabilities == pytest.approx([means[v][best[v]] for v in order])
    assert (ranked["num_nodes"], ranked["is_labelled"]) == (len(means), is_labelled)


def test_values_of_regression_are_read_and_ranked(make_run):
    folder = make_run(metric="r2", graph_summary={"class_names": [], "is_regression": True})
    table = pq.read_table(folder / "predictions.parquet")
    rows = table.select(["split", "seed", "node", "node_id", "role"]).to_pylist()
    random = np.random.default_rng(5)
    for row in rows:
        known = row["role"] != "unlabelled"
        row |= {"label": 1.5 * row["node"] if known else None}
        row |= {"prediction": float(random.normal())}
    pq.write_table(pa.Table.from_pylist(rows), folder / "predictions.parquet")
    data = read_report_data(folder)
    test = [row for row in rows if row["role"] == "test"]
    assert data.targets is not None
    assert data.targets.tolist() == [[row[key] for row in test] for key in ("label", "prediction")]
    means: dict[str, float] = {}
    for row in rows:
        if row["role"] == "unlabelled" and row["split"] == 0:
            means[row["node_id"]] = means.get(row["node_id"], 0.0) + row["prediction"] / 2
    order = sorted(means, key=lambda v: -means[v])
    assert [row["node"] for row in data.ranked["rows"]] == order
    assert data.ranked["rows"][0]["value"] == pytest.approx(means[order[0]])
    build_report(folder)


def test_classes_may_be_stored_as_numbers(make_run):
    folder = make_run()
    expected = read_report_data(folder).confusion
    numbers = {name: str(index) for index, name in enumerate(CLASSES)}
    folder = make_run(graph_summary={"class_names": list(numbers.values())})
    table = pq.read_table(folder / "predictions.parquet")
    for name in ("label", "prediction"):
        values = [value and int(numbers[value]) for value in table[name].to_pylist()]
        position = table.column_names.index(name)
        table = table.set_column(position, name, pa.array(values, pa.int64()))
    renamed = {f"probability_{name}": f"probability_{k}" for name, k in numbers.items()}
    table = table.rename_columns([renamed.get(name, name) for name in table.column_names])
    pq.write_table(table, folder / "predictions.parquet")
    np.testing.assert_array_equal(read_report_data(folder).confusion, expected)


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


def test_written_report_is_the_built_one(make_run):
    folder = make_run()
    before = {path.name for path in folder.iterdir()}
    path = write_report(folder)
    assert path.read_text(encoding="utf-8") == build_report(folder)
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}


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
    assert str(caught.value).endswith("Restore it, or train again (overwrite=True).")


@pytest.mark.parametrize("name", ["metrics.json", "audit.json", "explorer.json"])
def test_an_oversized_file_is_not_read(make_run, monkeypatch, name):
    folder = make_run()
    (folder / name).write_text(f'{{"a": "{"x" * 9000}"}}')
    monkeypatch.setattr(parsing, "LARGEST_JSON", 8192)
    with pytest.raises(HPGMNError, match=rf"{name} is damaged: .*8 KiB"):
        read_report_data(folder)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"test_score": [0.5]}, r"'test_score' .*\(got 1 values\)"),
        ({"test_score": 0.5}, r"'test_score' .*\(got 0.5\)"),
        ({"splits": 2}, "'splits'"),
        ({"seeds": 0}, "0 seeds"),
        ({"graph_summary": {"class_names": ["a", "a"]}}, "'class_names'"),
    ],
)
def test_inconsistent_metrics_are_refused(make_run, changes, fact):
    with pytest.raises(HPGMNError, match=rf"metrics\.json .*{fact}"):
        build_report(make_run(**changes))


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


SETTINGS = settings_dict(
    find_model("hpgmn").settings(epochs=3, estimator_epochs=3, hidden_dim=4, num_patterns=4)
)
SPEC = RunSpec("small", "hpgmn", SETTINGS, splits=(1, 0), seeds=2)


@pytest.fixture
def model(small_graph, tmp_path, monkeypatch):
    monkeypatch.setattr("hpgmn.explain.explorer.SECONDS", 0.1)
    return trained(SPEC, small_graph, tmp_path)


def trained(spec, graph, folder):
    prepare_folder(folder / "run", spec, resume=False, overwrite=False)
    fit_run(spec, graph, folder / "run")
    return SavedModel.read(folder / "run" / "model.safetensors")


def plain(content):
    return json.loads(json.dumps(content))


def test_everything_is_about_the_first_split(small_graph, model):
    steps: list[str] = []
    found = explain_training(SPEC, small_graph, model, steps.append)
    assert len(steps) == 3
    assert plain(found.audit) == plain(audit(small_graph, 1, training=False).as_dict())
    chosen = model.choose([r for r, one in enumerate(model.replicas) if one.split == 1])
    explained = plain(explain_model(chosen, small_graph).as_dict())
    overview = plain(found.overview)
    assert {name: overview[name] for name in explained} == explained
    assert (overview["split"], overview["seeds"], len(overview["map"]["nodes"])) == (1, 2, 18)

    explorer = found.explorer
    assert (explorer["split"], explorer["seeds"]) == (1, 2)
    mean, split = chosen.mean_probabilities(small_graph).numpy(), small_graph.split(1)
    for name, row in zip(explorer["ids"], explorer["nodes"], strict=True):
        assert row["probabilities"] == pytest.approx(mean[int(name)], abs=1e-5)
        assert getattr(split, row["role"])[int(name)]
        assert row["label"] == small_graph.y[int(name)]


def test_files_are_reproducible(small_graph, model, tmp_path):
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        explain_training(SPEC, small_graph, model).write(tmp_path / name)
        contents.append({path.name: path.read_text() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"audit.json", "understanding.json", "explorer.json"}


def test_the_model_is_opened_once(small_graph, model, monkeypatch):
    calls = []
    original = replicas.open_replicas

    def count(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(replicas, "open_replicas", count)
    explain_training(SPEC, small_graph, model)
    assert len(calls) == 1


def test_large_graphs_are_left_out(small_graph, model, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_AUDIT", 18 + small_graph.num_listed_edges - 1)
    monkeypatch.setattr(module, "LARGEST_OVERVIEW", 17)
    found = explain_training(SPEC, small_graph, model)
    assert "hpgmn audit" in found.audit["left_out"]
    assert "hpgmn explain" in found.overview["left_out"]
    assert found.explorer == {}


@pytest.mark.parametrize("name", ["audit", "model_overview", "explorer_data"])
@pytest.mark.parametrize("error", [HPGMNError("No numbers."), MemoryError()])
def test_what_cannot_be_computed_leaves_its_reason(
    small_graph, model, monkeypatch, caplog, name, error
):
    def fail(*_, **__):
        raise error

    sources = {"audit": auditing, "model_overview": model_module, "explorer_data": explorer_module}
    monkeypatch.setattr(sources[name], name, fail)
    with caplog.at_level(logging.WARNING):
        found = explain_training(SPEC, small_graph, model)
    left_out = {
        "audit": found.audit.get("left_out", ""),
        "model_overview": found.overview.get("left_out", ""),
        "explorer_data": "" if found.explorer else caplog.text,
    }
    reason = "No numbers." if isinstance(error, HPGMNError) else "memory"
    for part, text in left_out.items():
        assert (reason in text) == (part == name)


def test_lack_of_memory_is_recognised_by_what_torch_raises():
    def allocate():
        return {"size": torch.empty(2**60, dtype=torch.int8)}

    assert "memory" in compute(allocate, "count")["left_out"]

    def fail():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        compute(fail, "count")


def test_other_models_are_described_as_far_as_possible(small_graph, tmp_path):
    settings = settings_dict(find_model("mlp").settings(epochs=2))
    spec = replace(SPEC, model="mlp", settings=settings)
    found = explain_training(spec, small_graph, trained(spec, small_graph, tmp_path))
    overview = found.overview
    assert (overview["map"], list(overview["patterns"]), overview["statistics"]) == (None, [], {})
    assert overview["label_next"]
    assert found.explorer["nodes"]
