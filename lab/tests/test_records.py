"""Records are read and checked; their numbers as text."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.evaluation.scores import Difference
from hpgmn_lab.paper import Published
from hpgmn_lab.records import (
    command,
    difference_text,
    published_text,
    read_runs,
    read_trials,
    row_record,
    runs_text,
    score_text,
    sort_graphs,
    trials_text,
)

Write = Callable[..., Path]
WriteTrials = Callable[..., None]

TRIAL = {"graph": "texas", "model": "mlp", "round": "first", "trial": {}}


def test_a_record_has_the_numbers_of_its_file(write_run, tmp_path):
    write_run(tmp_path, "texas", "mlp", [80.0, 90.0] * 10, splits=10)
    [record] = read_runs(tmp_path / "runs.jsonl")
    assert (record.name, record.graph, record.model) == ("texas-mlp", "texas", "mlp")
    assert score_text(record) == "85.0 ± 5.1"
    assert runs_text(record) == "20 = 10 × 2"
    assert record.validation == pytest.approx(87.0)


def test_a_verdict_is_over_splits(write_run, tmp_path):
    write_run(tmp_path, "texas", "mlp", [80.0, 90.0] * 10, splits=10)
    [record] = read_runs(tmp_path / "runs.jsonl")
    assert record.against(85.0).count == 10
    assert record.against(85.0).interval == (85.0, 85.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_score_mean": 0.9}, "test_score_mean does not match"),
        ({"test_score_std": 0.0}, "test_score_std does not match"),
        ({"val_score": [0.5]}, "1 of 10 values of val_score"),
        ({"seeds": 2}, "10 of 20 values of test_score"),
    ],
)
def test_record_that_contradicts_itself_fails(write_run, tmp_path, changes, message):
    write_run(tmp_path, "chameleon", "hpgmn", [80.0, 81.0] * 5, **changes)
    with pytest.raises(HPGMNError, match=message):
        read_runs(tmp_path / "runs.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"name": "texas-hpgmn", "record": {"graph": "texas"}}', "lacks model, metric"),
        ('{"name": "texas-hpgmn"}', "line 1 has no name"),
        ("{", "line 1 is not a JSON object"),
        ("[]", "line 1 is not a JSON object"),
        ('{"name": "a", "record": {"crc32": 1}}', "is damaged: "),
        ('{"name": "a", "record": {"format": 99}}', "newer hpgmn"),
    ],
)
def test_damaged_run_is_named(tmp_path, line, message):
    (tmp_path / "runs.jsonl").write_text(line)
    with pytest.raises(HPGMNError, match=rf"runs\.jsonl.*{message}"):
        read_runs(tmp_path / "runs.jsonl")


def test_a_folder_of_runs_is_read_too(write_run, tmp_path):
    path = write_run(tmp_path, "texas", "mlp", [80.0, 81.0] * 5)
    (tmp_path / "runs" / "texas-mlp").mkdir(parents=True)
    metrics = tmp_path / "runs" / "texas-mlp" / "metrics.json"
    metrics.write_text(json.dumps(json.loads(path.read_text())["record"]))
    assert read_runs(tmp_path / "runs") == read_runs(path)
    metrics.write_text("{")
    with pytest.raises(HPGMNError, match="not valid JSON"):
        read_runs(tmp_path / "runs")


def test_a_record_of_an_unknown_model_is_refused(write_run, tmp_path):
    path = write_run(tmp_path, "texas", "mlp", [80.0, 81.0] * 5)
    path.write_text(path.read_text().replace('"model": "mlp"', '"model": "mine:Net"'))
    with pytest.raises(HPGMNError, match="unknown model 'mine:Net'"):
        read_runs(path)


def test_no_runs_are_reported(tmp_path):
    with pytest.raises(HPGMNError, match="There is no file or folder"):
        read_runs(tmp_path / "runs.jsonl")


@pytest.mark.parametrize("line", ["{", "[1]", '{"graph": "texas"}'])
def test_damaged_search_record_is_named(write_trials, tmp_path, line):
    write_trials(tmp_path, [TRIAL | {"val_score": [0.8], "val_loss": [1.0]}])
    with (tmp_path / "search.jsonl").open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(HPGMNError, match=r"search\.jsonl line 3"):
        read_trials(tmp_path / "search.jsonl")


def test_a_row_is_a_whole_record_of_its_name(write_run, tmp_path):
    write_run(tmp_path, "texas", "mlp", [80.0] * 9, splits=9, name="part")
    assert row_record(read_runs(tmp_path / "runs.jsonl"), "texas", "mlp") is None
    write_run(tmp_path, "texas", "mlp", [81.0] * 10, name="other")
    found = row_record(read_runs(tmp_path / "runs.jsonl"), "texas", "mlp")
    assert found is not None
    assert found.name == "other"
    write_run(tmp_path, "texas", "mlp", [82.0] * 10)
    found = row_record(read_runs(tmp_path / "runs.jsonl"), "texas", "mlp")
    assert found is not None
    assert found.name == "texas-mlp"


def test_two_records_of_a_row_without_its_name_fail(write_run, tmp_path):
    for folder in ("one", "two"):
        write_run(tmp_path, "chameleon", "hpgmn", [80.0] * 10, name=folder)
    with pytest.raises(HPGMNError, match="one, two are all hpgmn on chameleon"):
        row_record(read_runs(tmp_path / "runs.jsonl"), "chameleon", "hpgmn")


def test_the_command_of_a_baseline_names_its_model(write_run, tmp_path):
    write_run(tmp_path, "cora", "gcn", [80.0] * 5, splits=1, settings={"self_loop": 2.0})
    [record] = read_runs(tmp_path / "runs.jsonl")
    assert command(record) == "hpgmn train cora --model gcn --seeds 5 --set self_loop=2.0"


def test_numbers_as_text():
    assert trials_text([]) == "–"
    assert trials_text([{"val_score": [1]}]) == "1 × 1 run"
    assert trials_text([{"val_score": [1]}, {"val_score": [1, 2]}]) == "2 × 1–2 runs"
    assert sort_graphs(["nowhere", "squirrel", "texas"]) == ["texas", "squirrel", "nowhere"]
    assert difference_text(None) == "–"
    assert difference_text(Difference(-0.0312, None, None, 1, "splits")) == "-3.1"
    assert difference_text(Difference(0.01, -0.02, 0.04, 9, "splits")) == "+1.0 (-2.0 to +4.0)"
    assert published_text(Published(85.12, 4.0)) == "85.1 ± 4.0"
    assert published_text(Published(85.12, None, "x")) == "85.1"
