"""The sections of the results page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpgmn.experiments.reproduction.cells import read_cell
from hpgmn.experiments.reproduction.plan import EXPERIMENTS, experiment
from hpgmn.experiments.reproduction.sections import reproduction_sections, shipped_records

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
    assert "](../results/reproduction/figure3.svg)" in found[2]
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
