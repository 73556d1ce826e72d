"""The files of a reproduction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.reproduction.output import write_outputs
from hpgmn_lab.reproduction.plan import EXPERIMENTS, QUICK, Budget, experiment

Fill = Callable[..., None]


def test_every_experiment_has_its_files_and_the_same_bytes_again(
    tmp_path: Path, fill_cells: Fill
) -> None:
    plans = [experiment(name, QUICK) for name in EXPERIMENTS]
    for plan in plans:
        fill_cells(tmp_path / "cells", plan)
    written = write_outputs(
        tmp_path / "a", plans, cells_folder=tmp_path / "cells", options=" --quick"
    )
    names = {f"{name}.{ending}" for name in EXPERIMENTS for ending in ("md", "csv", "tex")}
    assert {path.name for path in written} == names | {"figure3.png", "figure3.svg"}
    assert sorted(written) == sorted((tmp_path / "a").iterdir())
    again = write_outputs(
        tmp_path / "b", plans, cells_folder=tmp_path / "cells", options=" --quick"
    )
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]
    text = (tmp_path / "a" / "table2.md").read_text(encoding="utf-8")
    assert "Made by `hpgmn reproduce table2 --quick`: " in text


def test_without_graphs_there_is_no_figure(tmp_path: Path) -> None:
    plan = experiment("figure3", Budget(graphs=("cora",)))
    written = write_outputs(tmp_path, [plan], cells_folder=tmp_path / "cells")
    assert [path.name for path in written] == ["figure3.md", "figure3.csv", "figure3.tex"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HPGMNError, match=r"Cannot write .*Choose a writable path"):
        write_outputs(tmp_path / "file", [], cells_folder=tmp_path)
