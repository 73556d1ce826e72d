"""Cells and their records: what makes an identity, and what a damaged file is taken for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from hpgmn_lab.reproduction.cells import (
    Cell,
    CellRecord,
    identity,
    read_cell,
    record_path,
    write_cell,
)

CELL = Cell("texas", "hpgmn", "without-entropy", {"entropy_weight": 0.0, "statistics": ("a", "b")})


def test_a_cell_is_known_by_graph_model_and_variant() -> None:
    assert CELL.name == "texas-hpgmn-without-entropy"
    assert CELL.as_dict()["settings"] == {"entropy_weight": 0.0, "statistics": ["a", "b"]}
    assert json.loads(json.dumps(CELL.as_dict())) == CELL.as_dict()


def test_every_part_of_a_cell_counts() -> None:
    other = [
        dataclasses.replace(CELL, trials=3),
        dataclasses.replace(CELL, splits=(0, 1)),
        dataclasses.replace(CELL, seeds=2),
        dataclasses.replace(CELL, settings={"entropy_weight": 0.1}),
    ]
    assert len({identity(cell.as_dict()) for cell in (CELL, *other)}) == 5


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = CellRecord(CELL.as_dict(), "abc", None, {"test_score": [0.5]})
    write_cell(tmp_path / "cells", record)
    assert read_cell(tmp_path / "cells", CELL.name) == record
    assert record.name == CELL.name


def test_a_missing_or_damaged_record_is_none(tmp_path: Path) -> None:
    assert read_cell(tmp_path, CELL.name) is None
    for text in ("", "{", "[]", "{}", '{"cell": 1}'):
        record_path(tmp_path, CELL.name).write_text(text, encoding="utf-8")
        assert read_cell(tmp_path, CELL.name) is None
