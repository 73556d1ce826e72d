"""Pictures: the same bytes for the same record, and what they must show is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpgmn.bench.pictures import draw_growth

PNG = b"\x89PNG"


def drawn(path: Path) -> str:
    assert path.with_suffix(".png").read_bytes().startswith(PNG)
    return path.with_suffix(".svg").read_text(encoding="utf-8")


def test_growth_shows_every_stage_and_the_slope(
    tmp_path: Path, growth_record: dict[str, Any]
) -> None:
    draw_growth(growth_record, tmp_path / "growth")
    text = drawn(tmp_path / "growth")
    for word in ("estimator", "prediction", "whole run", "proportional to edges", "peak memory"):
        assert word in text
    assert "GPU" not in text
    draw_growth(growth_record, tmp_path / "again")
    assert drawn(tmp_path / "again") == text


def test_growth_on_a_gpu_shows_its_memory(tmp_path: Path, growth_record: dict[str, Any]) -> None:
    growth_record["device_kind"] = "cuda"
    growth_record["sizes"][1] = {"nodes": 1_000_000, "failed": "out of memory"}
    growth_record["sizes"][0]["device_peak_bytes"] = 2**28
    draw_growth(growth_record, tmp_path / "growth")
    assert "GPU" in drawn(tmp_path / "growth")
