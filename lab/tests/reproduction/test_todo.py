"""The cells: what is here, is done or fails; one reproduction a folder."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError
from hpgmn_lab.reproduction import plan, todo
from hpgmn_lab.reproduction.cells import Cell, read_cell
from hpgmn_lab.reproduction.todo import (
    Outcome,
    at_work,
    attempt,
    cells_of,
    on_this_machine,
    only_one,
    sort_out,
    what_to_do,
)
from hpgmn_lab.reproduction.work import Way

SOURCE = Path(hpgmn.__file__).parents[1]
SHORT = {"epochs": 3, "patience": 0}
CELLS = [
    Cell("texas", model, "shipped", SHORT, splits=(0, 1), protocol="paper-heterophily")
    for model in ("mlp", "gcn", "appnp")
]

Save = Callable[..., Path]
Lasting = Callable[[Any], Any]


# What is here.


def test_columns_whose_graph_is_not_here_are_left_out(save_as: Save) -> None:
    save_as("texas")
    save_as("cora")
    asked = [plan.experiment(name) for name in ("table1", "table2", "table3")]
    found, missing = on_this_machine(asked)
    assert [one.graphs for one in found] == [("texas", "cora"), ("texas",), ("cora",)]
    for before, after in zip(asked, found, strict=True):
        assert [row.label for row in after.rows] == [row.label for row in before.rows]
        assert [row.is_ensemble for row in after.rows] == [row.is_ensemble for row in before.rows]
        for old, new in zip(before.rows, after.rows, strict=True):
            assert new.cells == {graph: old.cells[graph] for graph in after.graphs}
    assert missing == [
        *("wisconsin", "cornell-geomgcn", "chameleon", "squirrel", "crocodile"),
        *("citeseer", "pubmed"),
    ]


def test_graphs_that_cannot_be_downloaded_are_not_promised() -> None:
    assert what_to_do(["crocodile"]) == "Set HPGMN_DATA to the folder of their .npz files."
    words = what_to_do(["crocodile", "texas", "cora"])
    assert words.endswith("run `hpgmn datasets --download NAME` (texas, cora).")


def test_without_any_graph_there_is_nothing_to_do(save_as: Save) -> None:
    save_as("texas")
    with pytest.raises(HPGMNError, match=r"None of the graphs .*: cora, citeseer, pubmed\. Set HP"):
        on_this_machine([plan.experiment("table3")])


def test_cells_come_once_and_those_of_small_graphs_first() -> None:
    every = [plan.experiment(name) for name in plan.EXPERIMENTS]
    found = cells_of(every)
    assert len({cell.name for cell in found}) == len(found)
    assert {cell.name for cell in found} == {cell.name for one in every for cell in one.cells}
    sizes = [hpgmn.graph.datasets.DATASETS[cell.graph].num_nodes for cell in found]
    assert sizes == sorted(sizes)


# What is done, and what fails.


def test_cells_are_sorted_into_done_waiting_and_failed(save_as: Save, tmp_path: Path) -> None:
    folder = save_as("texas")
    (folder / "cora.npz").write_bytes(b"damaged")
    first = attempt(CELLS[0], tmp_path / "out", Way())
    assert first.record is not None
    broken = dataclasses.replace(CELLS[0], graph="cora", protocol=None)
    todo = sort_out([broken, *CELLS], tmp_path / "out")
    assert todo.done == [Outcome(CELLS[0], first.record)]
    assert todo.waiting == CELLS[1:]
    assert [one.cell for one in todo.failed] == [broken]
    assert "cora.npz" in todo.failed[0].reason


# One reproduction a folder.


def test_a_second_reproduction_in_a_folder_is_refused(tmp_path: Path) -> None:
    with only_one(tmp_path / "out"):
        with (
            pytest.raises(HPGMNError, match="Another process is using"),
            only_one(tmp_path / "out"),
        ):
            pass
        with only_one(tmp_path / "other"):
            pass
    with only_one(tmp_path / "out"):
        pass


def test_the_lock_of_a_killed_process_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path;"
        "from hpgmn_lab.reproduction.todo import only_one\n"
        "with only_one(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "out"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(HPGMNError, match="Wait for it"), only_one(tmp_path / "out"):
            pass
    finally:
        process.kill()
        process.communicate()
    with only_one(tmp_path / "out"):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(HPGMNError, match="Choose a writable path"),
        only_one(tmp_path / "file" / "x"),
    ):
        pass


def test_whoever_wants_to_work_next_waits_for_a_cell_to_end(tmp_path: Path) -> None:
    order = []

    def next_one() -> None:
        with only_one(tmp_path):
            order.append("next")

    waiting = threading.Thread(target=next_one)
    with at_work(tmp_path), at_work(tmp_path):  # several work at a time
        waiting.start()
        waiting.join(0.1)
        order.append("cell")
    waiting.join(10)
    assert order == ["cell", "next"]


def test_an_attempt_ends_with_a_record_or_a_reason(
    save_as: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_as("texas")
    found = attempt(CELLS[0], tmp_path / "out", Way())
    assert found.record == read_cell(tmp_path / "out" / "cells", CELLS[0].name)
    assert found.record is not None
    assert found.seconds > 0
    wrong = dataclasses.replace(CELLS[0], variant="wrong", settings={"lr": -1})
    found = attempt(wrong, tmp_path / "out", Way())
    assert found.record is None
    assert "lr" in found.reason
    assert found.trace == ""

    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr(todo, "do_cell", broken)
    found = attempt(CELLS[1], tmp_path / "out", Way())
    assert found.reason == "ZeroDivisionError: first line"
    assert found.trace.startswith("Traceback")
