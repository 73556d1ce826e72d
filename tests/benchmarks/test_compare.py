"""The page and the arithmetic of benchmarks/compare.py, on numbers made by hand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", ROOT / "benchmarks" / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(**changes: Any) -> dict[str, Any]:
    whole = {
        "yardstick_seconds": 3000.0,
        "yardstick_per_epoch": 1.0,
        "yardstick_per_epoch_at_our_sizes": 0.25,
        "yardstick_accuracy": [60.0, 2.0],
        "ours_seconds": 100.0,
        "ours_accuracy": [78.0, 1.0],
        "ours_per_epoch_alone": 0.125,
        "ours_per_epoch_together": 0.0625,
        "ours_epochs": 150.0,
        "hidden": 64,
        "patterns": 50,
        "cores_taken_by_others": 0.02,
    }
    return whole | changes


def record() -> dict[str, Any]:
    equal = {
        "yardstick_per_epoch": 0.6,
        "ours_per_epoch": 0.2,
        "yardstick_memory": 600 * 2**20,
        "ours_memory": 240 * 2**20,
        "cores_taken_by_others": 0.07,
    }
    return {
        "machine": "a machine",
        "threads": 2,
        "torch": "2",
        "version": "0",
        "date": "2026-01-01",
        "whole_result": {"texas": row(ours_seconds=400.0), "squirrel": row()},
        "equal_sizes": {"diffusion": equal, "adjacency": equal},
    }


def test_factors_multiply_to_the_measured_total(compare: ModuleType) -> None:
    found = compare.factors(row())
    assert found["size"] == 4.0
    assert found["epochs"] == 2.0
    assert found["algorithm"] == 2.0
    assert found["replicas"] == 2.0
    assert found["total"] == 30.0
    assert found["rest"] == pytest.approx(30 / 32)


def test_scaled_total_counts_shared_work_once(compare: ModuleType) -> None:
    assert compare.scaled_total({"seconds_shared": 3.0, "seconds_total": 13.0}) == 103.0


def test_page_shows_the_numbers_and_says_what_is_short(compare: ModuleType) -> None:
    page = compare.page(record())
    assert "| squirrel | 3000 | 100.0 | 30.0 | 15 | reached | 60.0 ± 2.0 | 78.0 ± 1.0 |" in page
    assert "| texas | 3000 | 400.0 | 7.5 | 10 | short by 2.50 |" in page
    assert "| diffusion rows | 0.600 | 0.200 | 3.00 | 2.3 | reached | 600 | 240 | 0.40 |" in page
    assert "| adjacency rows | 0.600 | 0.200 | 3.00 | 4.0 | short by 1.00 |" in page
    assert "short by 0.07 |" in page
    assert "at most 0.07 cores" in page


def test_committed_page_is_what_the_committed_record_gives(compare: ModuleType) -> None:
    kept = json.loads(compare.RECORD.read_text(encoding="utf-8"))
    assert compare.PAGE.read_text(encoding="utf-8") == compare.page(kept)
