"""The sections of the results page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpgmn.experiments.reproduction.plan import experiment
from hpgmn.experiments.reproduction.sections import reproduction_sections

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
        "No record yet: `hpgmn reproduce table3`, `hpgmn reproduce sound`.",
    ]
    assert "](../results/reproduction/figure3.svg)" in found[2]
    assert "Made by `hpgmn reproduce figure3`: 8 final runs" in found[2]


def test_complete_records_leave_nothing_to_name(
    tmp_path: Path, fill_cells: Fill, make_facts: MakeFacts
) -> None:
    folder = tmp_path / "results" / "reproduction"
    make_facts(folder / "cells")
    for name in ("table2", "table3", "figure3", "table4", "sound", "options"):
        fill_cells(folder / "cells", experiment(name))
    found = reproduction_sections(folder)
    assert len(found) == 7
    assert not any("No record yet: `" in section for section in found)
