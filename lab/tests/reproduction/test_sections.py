"""The sections of the results page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.reproduction.cells import read_cell, write_cell
from hpgmn_lab.reproduction.plan import EXPERIMENTS, experiment
from hpgmn_lab.reproduction.sections import reproduction_sections, shipped_records

Fill = Callable[..., None]
MakeFacts = Callable[..., None]


def test_no_records_no_sections(tmp_path: Path) -> None:
    assert reproduction_sections(tmp_path / "results" / "reproduction") == []


def test_sections_of_experiments_with_records(
    tmp_path: Path, fill_cells: Fill, make_facts: MakeFacts
) -> None:
    folder = tmp_path / "results" / "reproduction"
    make_facts(folder / "cells")
    fill_cells(folder / "cells", experiment("figure3"))
    found = reproduction_sections(folder)
    headings = [section.splitlines()[0] for section in found]
    # the full model of Figure 3 is a cell of three more experiments
    assert headings == [
        "## Table 1: the graphs",
        "## Table 2: heterophilous graphs",
        "## Figure 3: regularisation",
        "## Table 4: local statistics",
        "## Options beyond the paper",
        "No record yet: `hpgmn reproduce table3`, `hpgmn reproduce sound`, `hpgmn reproduce "
        "citation-options`.",
    ]
    assert "](../lab/results/reproduction/figure3.svg)" in found[2]
    assert "Made by `hpgmn reproduce figure3`: 8 final runs" in found[2]


def test_complete_records_leave_nothing_to_name(
    tmp_path: Path, fill_cells: Fill, make_facts: MakeFacts
) -> None:
    folder = tmp_path / "results" / "reproduction"
    make_facts(folder / "cells")
    for name in EXPERIMENTS[1:]:
        fill_cells(folder / "cells", experiment(name))
    found = reproduction_sections(folder)
    assert len(found) == len(EXPERIMENTS) == 8
    assert not any("No record yet: `" in section for section in found)


def test_runs_of_shipped_settings_are_records_named_by_graph_and_model(
    tmp_path: Path, fill_cells: Fill
) -> None:
    assert shipped_records(tmp_path) == []
    fill_cells(tmp_path / "cells", experiment("figure3"))
    found = {record.folder: record for record in shipped_records(tmp_path)}
    assert list(found) == ["squirrel-hpgmn", "texas-hpgmn"]
    record = read_cell(tmp_path / "cells", "texas-hpgmn-shipped")
    assert record is not None
    assert found["texas-hpgmn"].metrics == record.metrics
    (tmp_path / "cells" / "texas-hpgmn-shipped.json").write_text("{", encoding="utf-8")
    assert [one.folder for one in shipped_records(tmp_path)] == ["squirrel-hpgmn"]


def test_runs_of_settings_that_ship_no_longer_are_left_out(
    tmp_path: Path, fill_cells: Fill
) -> None:
    cells = tmp_path / "cells"
    fill_cells(cells, experiment("figure3"))
    record = read_cell(cells, "texas-hpgmn-shipped")
    assert record is not None
    older = {"settings": {**record.metrics["config"]["settings"], "lr": 0.123}}
    metrics = {**record.metrics, "config": older}
    write_cell(cells, dataclasses.replace(record, metrics=metrics))
    assert [one.folder for one in shipped_records(tmp_path)] == ["squirrel-hpgmn"]
    unknown = {**record.cell, "graph": "lost"}
    write_cell(cells, dataclasses.replace(record, cell=unknown))
    assert [one.folder for one in shipped_records(tmp_path)] == ["squirrel-hpgmn"]


def test_a_damaged_run_of_shipped_settings_is_to_be_deleted(
    tmp_path: Path, fill_cells: Fill
) -> None:
    cells = tmp_path / "cells"
    fill_cells(cells, experiment("figure3"))
    record = read_cell(cells, "texas-hpgmn-shipped")
    assert record is not None
    metrics = {**record.metrics, "test_score_mean": 0.1}
    write_cell(cells, dataclasses.replace(record, metrics=metrics))
    path = cells / "texas-hpgmn-shipped.json"
    with pytest.raises(HPGMNError, match="is not that of its scores") as raised:
        shipped_records(tmp_path)
    assert f"Delete {path} and run hpgmn reproduce again." in str(raised.value)
