"""The tables of docs/SCALE.md: between their markers, from the records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.bench import plan_tables
from hpgmn_lab.bench.plan_tables import JOB, MACHINES, filled, measured_part, plan_part
from hpgmn_lab.bench.records import write_record
from hpgmn_lab.bench.scale import best_plan, training_stage

PAGE = """# Scale
<!-- measured: begin -->
of before
<!-- measured: end -->
by hand \\1
<!-- plan: begin --><!-- plan: end -->
end
"""


def test_what_is_between_the_markers_is_replaced(
    tmp_path: Path, shards_record: dict[str, Any]
) -> None:
    write_record(shards_record, tmp_path / "shards.json")
    text = filled(PAGE, tmp_path)
    assert "of before" not in text
    assert "<!-- measured: end -->\nby hand \\1\n<!-- plan: begin -->" in text
    assert text.endswith("<!-- plan: end -->\nend\n")
    assert measured_part(shards_record, None) in text
    assert plan_part(shards_record, None) in text
    assert filled(text, tmp_path) == text
    assert "GPU ranks" not in text
    write_record(shards_record | {"device_kind": "cuda"}, tmp_path / "shards-gpu.json")
    text = filled(text, tmp_path)
    assert "8 GPU ranks" in text
    assert text.count("| training on rows: 500 train rows in batches of 50 |") == 2


def test_a_page_without_markers_is_refused(tmp_path: Path, shards_record: dict[str, Any]) -> None:
    write_record(shards_record, tmp_path / "shards.json")
    with pytest.raises(HPGMNError, match=r"lacks the lines '<!-- plan: begin -->'"):
        filled(PAGE.replace("plan", "plans"), tmp_path)


def test_measured_costs_are_those_of_the_record(shards_record: dict[str, Any]) -> None:
    text = measured_part(shards_record, None)
    assert text.startswith("1,000 nodes, 10,000 edges, F = 4, C = 2, d = 16, 8 ranges, M = 1 MiB;")
    assert "Other processes took at most 0.03 cores meanwhile." in text
    assert "| one round of the sketch | edge | 4 | 60 | 6 |" in text
    assert "| one round of the sketch | 1 | 1 |" in text  # 0.6 and 0.59 MB


def test_the_sum_is_that_of_the_stages(shards_record: dict[str, Any]) -> None:
    text = plan_part(shards_record, None)
    plan = best_plan(shards_record, JOB, MACHINES)
    stages = [*plan.stages, training_stage(shards_record, JOB, MACHINES)]
    hours = sum(stage.hours for stage in stages)
    assert text.startswith(f"**{hours:.1f} hours in all")
    [total] = [line for line in text.splitlines() if line.startswith("| sum |")]
    assert total.endswith(f"| {hours:.2f} |")
    slowest = max(stages, key=lambda stage: stage.hours)
    assert f"The longest stage is “{slowest.name}”" in text
    assert f"--ranges {plan.ranges} --memory {plan.memory // 2**30}" in text
    for words in ("sketch, d = 256, 86 rounds", "top-k, threshold 0.0001", "| 1,000 million |"):
        assert words in text
    assert text.count("transition matrix joined") == 1


def test_what_no_number_of_machines_does_is_left_open(
    shards_record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_tables, "NIGHT", 0.0)
    assert "| 10 million | 0.3 billion | – | – | – |" in plan_part(shards_record, None)
