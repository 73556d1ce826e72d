"""Records say what they were measured with; bars say what is short."""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.version import __version__
from hpgmn_lab.bench.records import (
    Bar,
    Table,
    bars_table,
    head,
    kept,
    machine_words,
    make_folder,
    read_record,
    verdict,
    write_record,
)


def test_every_record_names_version_date_torch_machine_threads_seeds_and_settings() -> None:
    made = head("growth", "hpgmn bench growth", "cpu", seeds=[3], settings={"lr": 0.1})
    assert made["benchmark"] == "growth"
    assert made["command"] == "hpgmn bench growth"
    assert made["version"] == __version__
    assert made["date"] == datetime.date.today().isoformat()
    assert made["torch"] == torch.__version__
    assert made["threads"] == torch.get_num_threads()
    assert made["device"] == made["device_kind"] == "cpu"
    assert made["processor"]
    assert made["python"] == platform.python_version()
    assert made["seeds"] == [3]
    assert made["settings"] == {"lr": 0.1}
    assert json.loads(json.dumps(made)) == made


def test_machine_in_words() -> None:
    record = {"processor": "P", "threads": 2, "torch": "2.1", "version": "0.1", "date": "D"}
    assert machine_words(record) == "Machine: P; 2 threads; torch 2.1; hpgmn 0.1; D."
    words = machine_words(record | {"device_kind": "cuda", "device": "G"})
    assert words.startswith("Machine: G; host P; 2 threads")


@pytest.mark.parametrize(
    ("value", "required", "at_most", "words"),
    [
        (10.0, 10.0, False, "reached"),
        (9.5, 10.0, False, "short by 0.50"),
        (1.5, 1.5, True, "reached"),
        (1.75, 1.5, True, "short by 0.25"),
    ],
)
def test_verdict(value: float, required: float, at_most: bool, words: str) -> None:
    assert verdict(value, required, at_most=at_most) == words


def test_bars_show_value_requirement_and_verdict() -> None:
    bars = [
        Bar("time", 700.0, 600.0, " s"),
        Bar("points", 0.2, -0.5, " points", at_most=False),
        Bar("memory", None, 6.0, " GiB", why_missing="out of memory"),
    ]
    assert bars_table(bars).rows == [
        ["time", "700.00 s", "≤ 600 s", "short by 100.00 s"],
        ["points", "0.20 points", "≥ -0.5 points", "reached"],
        ["memory", "–", "≤ 6 GiB", "out of memory"],
    ]


def test_table_as_markdown() -> None:
    table = Table(("a", "b"), [["1", "2"]], "Title:")
    assert table.markdown() == "Title:\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert Table(("a",), []).markdown() == "| a |\n| --- |"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_record({"a": [1, 2]}, tmp_path / "r.json")
    assert read_record(tmp_path / "r.json") == {"a": [1, 2]}
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(HPGMNError, match=r"r\.json.*Measure it again"):
        read_record(tmp_path / "r.json")


def test_a_folder_that_cannot_be_written_to_is_refused_before_work(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(HPGMNError, match=r"Cannot write into the folder .*Choose another --out"):
        make_folder(tmp_path / "file" / "b")


def test_what_was_made_for_the_same_request_is_kept(tmp_path: Path) -> None:
    made: list[Any] = []

    def make() -> dict[str, Any]:
        made.append(None)
        return {"number": len(made)}

    path = tmp_path / "parts" / "one.json"
    assert kept(path, {"lr": 0.1, "splits": (0, 1)}, make) == {"number": 1}
    assert kept(path, {"lr": 0.1, "splits": (0, 1)}, make) == {"number": 1}
    assert kept(path, {"lr": 0.2, "splits": (0, 1)}, make) == {"number": 2}
    assert kept(path, {"lr": 0.1, "splits": (0, 1)}, make) == {"number": 3}
