"""The arithmetic of lab/benchmarks/compare.py, and the record and page it leaves."""

import importlib.util
from pathlib import Path

import pytest

from hpgmn_lab.bench.yardstick import GRAPHS
from hpgmn_lab.records import read_named, write_named

ROOT = Path(__file__).parents[3]


@pytest.fixture
def compare():
    spec = importlib.util.spec_from_file_location(
        "compare", ROOT / "lab" / "benchmarks" / "compare.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded_yardstick(compare, folder, monkeypatch):
    """Put records of the yardstick and the page into a folder."""
    records = folder / "lab" / "results" / "benchmarks.jsonl"
    accuracy = {"accuracy_mean": 60.0, "accuracy_std": 2.0}
    write_named(records, {f"yardstick-{name}": accuracy for name in GRAPHS})
    monkeypatch.setattr(compare, "ROOT", folder)
    monkeypatch.setattr(compare, "RECORDS", records)
    return records


def test_scaled_total_counts_shared_work_once(compare):
    assert compare.scaled_total({"seconds_shared": 3.0, "seconds_total": 13.0}) == 103.0


def test_the_record_is_what_the_processes_measured_and_the_page_shows_it(
    compare, tmp_path, monkeypatch
):
    calls = []

    def measured(script, graph, *options):
        calls.append((script, graph.stem))
        is_ours = script == "ours.py"
        return {
            "settings": {"hidden_dim": 64, "num_patterns": 50},
            "seconds_shared": 1.0,
            "seconds_total": 20.0 if is_ours else 31.0,
            "seconds_per_epoch": 0.1 if is_ours else 0.5,
            "accuracy_mean": 80.0,
            "accuracy_std": 1.0,
            "runs": [{}],
            "epochs_trained": [100, 200],
            "peak_memory_bytes": (100 if is_ours else 400) * 2**20,
            "cores_taken_by_others": 0.01 * len(calls),
        }

    records = recorded_yardstick(compare, tmp_path, monkeypatch)
    monkeypatch.setattr(compare, "measured", measured)
    compare.main(["--data", "somewhere", "--repeats", "2"])
    record = read_named(records)["compare"]
    assert record["benchmark"] == "compare"
    assert record["command"].endswith("--data $HPGMN_DATA --repeats 2")
    row = record["whole_result"]["squirrel"]
    assert row["yardstick_seconds"] == 1 + 10 * 30
    assert row["ours_seconds"] == 20.0
    assert row["ours_epochs"] == 150
    assert row["yardstick_accuracy"] == [60.0, 2.0]
    worst = max(row["cores_taken_by_others"] for row in record["whole_result"].values())
    assert worst == pytest.approx(0.01 * len(calls))
    page = (tmp_path / "docs" / "BENCHMARKS.md").read_text()
    assert "| squirrel | 301 | 20.0 | 15.1 | 25 | short by 9.95 | 60.0 ± 2.0 | 80.0 ± 1.0 |" in page
    assert "| diffusion rows | 0.500 | 0.100 | 5.00 | 2.3 | reached | 400 | 100 | 0.25 |" in page


def test_on_a_gpu_both_sides_train_in_full(compare, tmp_path, monkeypatch):
    calls = []

    def measured(script, graph, *options):
        calls.append((script, graph.stem, *options))
        is_ours = script == "ours.py"
        record = {
            "seconds_total": 4.0 if is_ours else 36.0,
            "accuracy_mean": 70.0,
            "accuracy_std": 1.5,
            "cores_taken_by_others": 0.2,
        }
        if is_ours:
            return record | {"seconds_epochs": 2.0}
        slow, timed = ({"seconds_total": t, "seconds_epochs": e} for t, e in ((9, 8), (3, 2.5)))
        return record | {"seconds_shared": 6.0, "runs": [slow, timed, timed, timed]}

    records = recorded_yardstick(compare, tmp_path, monkeypatch)
    monkeypatch.setattr(compare, "measured", measured)
    monkeypatch.setattr(
        compare, "new_record", lambda name, call, **more: HEAD | {"command": call.command}
    )
    compare.main(["--data", "somewhere", "--repeats", "1", "--device", "cuda"])
    options = ("--neighbors", "undirected", "--device", "cuda", "--tf32")
    few = ("--splits", "0", "1", "2", "3")
    assert calls[:2] == [("yardstick.py", "texas", *options, *few), ("ours.py", "texas", *options)]
    record = read_named(records)["compare-gpu"]
    assert record["command"].endswith("--repeats 1 --device cuda")
    assert record["graphs"]["squirrel"]["yardstick_epochs_seconds"] == 25.0
    page = (tmp_path / "docs" / "BENCHMARKS.md").read_text()
    assert (
        "| squirrel | epochs | 25.0 | 2.00 | 12.5 | 6 | reached | 60.0 ± 2.0 | 70.0 ± 1.5 |" in page
    )
    assert "| texas | whole | 36.0 | 4.00 | 9.0 |  |  | 60.0 ± 2.0 |" in page
    assert "0.20 cores" in page


HEAD = {
    "benchmark": "compare-gpu",
    "device_kind": "cuda",
    "device": "a GPU",
    "processor": "a processor",
    "threads": 4,
    "torch": "2",
    "version": "0",
    "date": "2026-01-01",
    "seeds": [0],
    "settings": {},
}
