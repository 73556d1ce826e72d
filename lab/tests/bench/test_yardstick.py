"""What is said of the record of lab/benchmarks/compare.py, on numbers made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hpgmn_lab.bench.yardstick import disturbance, factors, sections

from .conftest import yardstick_row


def test_factors_multiply_to_the_measured_total() -> None:
    found = factors(yardstick_row())
    assert found["size"] == 4.0
    assert found["epochs"] == 2.0
    assert found["algorithm"] == 2.0
    assert found["replicas"] == 2.0
    assert found["total"] == 30.0
    assert found["rest"] == pytest.approx(30 / 32)


def test_sections_show_the_numbers_and_say_what_is_short(compare_record: dict[str, Any]) -> None:
    page = "\n".join(sections(compare_record))
    assert "| squirrel | 3000 | 100.0 | 30.0 | 25 | reached | 60.0 ± 2.0 | 78.0 ± 1.0 |" in page
    assert "| texas | 3000 | 400.0 | 7.5 | 10 | short by 2.50 |" in page
    assert "| squirrel | 4.00 | 2.00 | 2.00 | 2.00 | 0.94 | 30.00 | 64, 50 |" in page
    assert "| diffusion rows | 0.600 | 0.200 | 3.00 | 2.3 | reached | 600 | 240 | 0.40 |" in page
    assert "| adjacency rows | 0.600 | 0.200 | 3.00 | 4.0 | short by 1.00 |" in page
    assert "short by 0.07 |" in page


def test_the_worst_disturbance_counts(compare_record: dict[str, Any]) -> None:
    assert disturbance(compare_record) == 0.07
