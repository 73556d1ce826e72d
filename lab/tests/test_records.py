"""Records: read whole or refused by name, and told in words that repeat them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.base.text import format_setting
from hpgmn.evaluation.scores import Difference
from hpgmn_lab.paper import Published, Target
from hpgmn_lab.results.records import (
    command,
    count_words,
    difference_words,
    grid,
    in_order,
    printed_words,
    read_records,
    read_trials,
    row_record,
    runs_words,
    score_words,
    validation_words,
)

Write = Callable[..., Path]
WriteTrials = Callable[..., None]

TRIAL = {"graph": "texas", "model": "mlp", "round": "first", "trial": {}}


def test_a_record_has_the_numbers_of_its_file(write_run: Write, tmp_path: Path) -> None:
    write_run(tmp_path, "texas", "mlp", [80.0, 90.0] * 10, splits=10)
    [record] = read_records(tmp_path / "runs")
    assert (record.folder, record.graph, record.model) == ("texas-mlp", "texas", "mlp")
    assert score_words(record) == "85.0 ± 5.1"
    assert validation_words(record) == "87.0"
    assert runs_words(record) == "20 = 10 × 2"
    assert record.validation == pytest.approx(87.0)


def test_a_verdict_is_over_splits(write_run: Write, tmp_path: Path) -> None:
    write_run(tmp_path, "texas", "mlp", [80.0, 90.0] * 10, splits=10)
    [record] = read_records(tmp_path / "runs")
    assert record.against(85.0).count == 10
    assert record.against(85.0).interval == (85.0, 85.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_score_mean": 0.9}, "test_score_mean is not that of its scores"),
        ({"test_score_std": 0.0}, "test_score_std is not that of its scores"),
        ({"val_score": [0.5]}, "10 values of val_score"),
        ({"seeds": 2}, "20 values of test_score"),
    ],
)
def test_record_that_contradicts_itself_fails(
    write_run: Write, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_run(tmp_path, "chameleon", "hpgmn", [80.0, 81.0] * 5, **changes)
    with pytest.raises(HPGMNError, match=message):
        read_records(tmp_path / "runs")


def test_incomplete_record_is_named(write_run: Write, tmp_path: Path) -> None:
    path = write_run(tmp_path, "texas", "hpgmn", [80.0, 81.0] * 5) / "metrics.json"
    path.write_text('{"graph": "texas"}')
    with pytest.raises(HPGMNError, match=r"texas-hpgmn.metrics\.json lacks model, metric"):
        read_records(tmp_path / "runs")
    path.write_text("{")
    with pytest.raises(HPGMNError, match=r"texas-hpgmn.metrics\.json is not valid JSON"):
        read_records(tmp_path / "runs")


def test_a_record_of_an_unknown_model_is_refused(write_run: Write, tmp_path: Path) -> None:
    write_run(tmp_path, "texas", "mlp", [80.0, 81.0] * 5)
    path = tmp_path / "runs" / "texas-mlp" / "metrics.json"
    path.write_text(path.read_text().replace('"model": "mlp"', '"model": "mine:Net"'))
    with pytest.raises(HPGMNError, match="'mine:Net' is no model of this package"):
        read_records(tmp_path / "runs")


def test_no_runs_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(HPGMNError, match="There is no folder"):
        read_records(tmp_path / "runs")


@pytest.mark.parametrize("line", ["{", "[1]", '{"graph": "texas"}'])
def test_damaged_search_record_is_named(
    write_trials: WriteTrials, tmp_path: Path, line: str
) -> None:
    write_trials(tmp_path, "all", [TRIAL | {"val_score": [0.8], "val_loss": [1.0]}])
    with (tmp_path / "search" / "all.jsonl").open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(HPGMNError, match=r"all\.jsonl line 3"):
        read_trials(tmp_path / "search")


def test_a_row_is_a_whole_record_of_its_name(write_run: Write, tmp_path: Path) -> None:
    write_run(tmp_path, "texas", "mlp", [80.0] * 9, splits=9, folder="part")
    assert row_record(read_records(tmp_path / "runs"), "texas", "mlp") is None
    write_run(tmp_path, "texas", "mlp", [81.0] * 10, folder="other")
    found = row_record(read_records(tmp_path / "runs"), "texas", "mlp")
    assert found is not None
    assert found.folder == "other"
    write_run(tmp_path, "texas", "mlp", [82.0] * 10)
    found = row_record(read_records(tmp_path / "runs"), "texas", "mlp")
    assert found is not None
    assert found.folder == "texas-mlp"


def test_two_records_of_a_row_without_its_name_fail(write_run: Write, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_run(tmp_path, "chameleon", "hpgmn", [80.0] * 10, folder=folder)
    with pytest.raises(HPGMNError, match="one, two are all hpgmn on chameleon"):
        row_record(read_records(tmp_path / "runs"), "chameleon", "hpgmn")


def test_the_command_of_a_baseline_names_its_model(write_run: Write, tmp_path: Path) -> None:
    write_run(tmp_path, "cora", "gcn", [80.0] * 5, splits=1, settings={"self_loop": 2.0})
    [record] = read_records(tmp_path / "runs")
    assert command(record) == "hpgmn train cora --model gcn --seeds 5 --set self_loop=2.0"


def test_words_and_tables() -> None:
    assert [format_setting(value) for value in (["a", "b"], True, None, 0.5)] == [
        "a,b",
        "true",
        "none",
        "0.5",
    ]
    assert grid(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert count_words([]) == "–"
    assert count_words([{"val_score": [1]}]) == "1 × 1 run"
    assert count_words([{"val_score": [1]}, {"val_score": [1, 2]}]) == "2 × 1–2 runs"
    assert in_order(["nowhere", "squirrel", "texas"]) == ["texas", "squirrel", "nowhere"]


def test_differences_and_printed_numbers_in_words() -> None:
    assert difference_words(None) == "–"
    assert difference_words(Difference(-0.0312, None, None, 1, "splits")) == "-3.1"
    assert difference_words(Difference(0.01, -0.02, 0.04, 9, "splits")) == "+1.0 (-2.0 to +4.0)"
    assert printed_words(Published(85.12, 4.0)) == "85.1 ± 4.0"
    assert printed_words(Target(85.12, None, "x")) == "85.1"
