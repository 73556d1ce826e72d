"""Records: common fields, files, bars and tables."""

import datetime
import json

import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.base.version import __version__
from hpgmn_lab.bench.records import (
    Bar,
    Call,
    Table,
    bars_table,
    cores_taken,
    environment_text,
    make_folder,
    new_record,
    read_record,
    reuse,
    write_record,
)


def test_a_record_names_version_date_machine_seeds_and_settings():
    call = Call("hpgmn bench growth", "cpu")
    record = new_record("growth", call, seeds=[3], settings={"lr": 0.1})
    assert record["benchmark"] == "growth"
    assert record["command"] == "hpgmn bench growth"
    assert record["version"] == __version__
    assert record["date"] == datetime.date.today().isoformat()
    assert record["torch"] == torch.__version__
    assert record["threads"] == torch.get_num_threads()
    assert record["device"] == record["device_kind"] == "cpu"
    assert {"processor", "python"} <= set(record)
    assert (record["seeds"], record["settings"]) == ([3], {"lr": 0.1})
    assert json.loads(json.dumps(record)) == record


def test_environment_text():
    record = {"processor": "P", "threads": 2, "torch": "2.1", "version": "0.1", "date": "D"}
    assert environment_text(record) == "Machine: P; 2 threads; torch 2.1; hpgmn 0.1; D."
    text = environment_text(record | {"device_kind": "cuda", "device": "G"})
    assert text.startswith("Machine: G; host P; 2 threads")


def test_the_most_cores_taken_of_any_measurement_counts():
    parts = [{"cores_taken_by_others": None}, {"inner": {"cores_taken_by_others": 0.3}}, 5]
    assert cores_taken({"repeats": parts, "cores_taken_by_others": 0.2}) == 0.3
    assert cores_taken({"repeats": [1.0, "x"]}) is None


def test_bars_show_value_requirement_and_verdict():
    bars = [
        Bar("time", 700.0, 600.0, " s"),
        Bar("points", 0.2, -0.5, " points", at_most=False),
        Bar("memory", None, 6.0, " GiB", why_missing="out of memory"),
        Bar("excused", -0.7, -0.5, at_most=False, excuse="good enough"),
    ]
    assert bars_table(bars).rows == [
        ["time", "700.00 s", "≤ 600 s", "short by 100.00 s"],
        ["points", "0.20 points", "≥ -0.5 points", "reached"],
        ["memory", "–", "≤ 6 GiB", "out of memory"],
        ["excused", "-0.70", "≥ -0.5", "good enough"],
    ]


def test_table_as_markdown():
    table = Table(("a", "b"), [["1", "2"]], "Title:")
    assert table.markdown() == "Title:\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert Table(("a",), []).markdown() == "| a |\n| --- |"


def test_a_record_is_read_as_written(tmp_path):
    write_record({"a": [1, 2]}, tmp_path / "r.json")
    assert read_record(tmp_path / "r.json") == {"a": [1, 2]}
    for text in ("{", "[1]"):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(HPGMNError, match=r"r\.json.*Measure it again"):
            read_record(tmp_path / "r.json")


def test_an_unwritable_folder_is_refused(tmp_path):
    make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(HPGMNError, match="Cannot write into the folder") as caught:
        make_folder(tmp_path / "file" / "b")
    assert caught.value.remedy.option == "out"


def test_the_answer_to_the_same_request_is_reused(tmp_path):
    computed = []

    def compute():
        computed.append(None)
        return {"number": len(computed)}

    path = tmp_path / "parts" / "one.json"
    assert reuse(path, {"lr": 0.1, "splits": (0, 1)}, compute) == {"number": 1}
    assert reuse(path, {"lr": 0.1, "splits": (0, 1)}, compute) == {"number": 1}
    assert reuse(path, {"lr": 0.2, "splits": (0, 1)}, compute) == {"number": 2}
