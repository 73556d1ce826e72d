"""All cells: what is here, is done or fails; several processes; one reproduction a folder."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpgmn
from hpgmn.errors import HPGMNError
from hpgmn.experiments.reproduction import engine, plan
from hpgmn.experiments.reproduction.cells import Cell, CellRecord, read_cell
from hpgmn.experiments.reproduction.engine import (
    Outcome,
    cells_of,
    on_this_machine,
    only_one,
    sort_out,
    what_to_do,
    work,
)
from hpgmn.graph import Graph

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
    sizes = [hpgmn.datasets.DATASETS[cell.graph].num_nodes for cell in found]
    assert sizes == sorted(sizes)


# What is done, and what fails.


def test_cells_are_sorted_into_done_waiting_and_failed(save_as: Save, tmp_path: Path) -> None:
    folder = save_as("texas")
    (folder / "cora.npz").write_bytes(b"damaged")
    (first,) = work(CELLS[:1], tmp_path / "out")
    assert first.record is not None
    broken = dataclasses.replace(CELLS[0], graph="cora", protocol=None)
    todo = sort_out([broken, *CELLS], tmp_path / "out")
    assert todo.done == [Outcome(CELLS[0], first.record)]
    assert todo.waiting == CELLS[1:]
    assert [one.cell for one in todo.failed] == [broken]
    assert "cora.npz" in todo.failed[0].reason


def test_a_failing_cell_is_told_and_the_others_go_on(
    save_as: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_as("texas")
    genuine = engine.do_cell

    def sometimes(cell: Cell, *arguments: Any) -> CellRecord:
        if cell.model == "gcn":
            raise ZeroDivisionError("first line\nsecond line")
        return genuine(cell, *arguments)

    monkeypatch.setattr(engine, "do_cell", sometimes)
    wrong = dataclasses.replace(CELLS[0], variant="wrong", settings={"lr": -1})
    told: list[Outcome] = []
    found = work([wrong, *CELLS], tmp_path / "out", tell=told.append)
    assert told == found
    assert [one.record is None for one in found] == [True, False, True, False]
    assert "lr" in found[0].reason
    assert found[0].trace == ""
    assert found[2].reason == "ZeroDivisionError: first line"
    assert found[2].trace.startswith("Traceback")
    assert read_cell(tmp_path / "out" / "cells", CELLS[2].name) == found[3].record


def test_progress_names_the_cell(save_as: Save, tmp_path: Path) -> None:
    save_as("texas")
    told = []
    work(CELLS[:2], tmp_path / "out", report=lambda name, now: told.append((name, now.epoch)))
    expected = [("texas-mlp-shipped", epoch) for epoch in (1, 2, 3)]
    assert told == expected + [("texas-gcn-shipped", epoch) for epoch in (1, 2, 3)]


def test_what_is_asked_to_stop_keeps_what_is_finished(save_as: Save, tmp_path: Path) -> None:
    save_as("texas")
    told: list[Outcome] = []
    with pytest.raises(KeyboardInterrupt):
        work(CELLS, tmp_path / "out", tell=told.append, should_stop=lambda: bool(told))
    assert [one.cell.model for one in told] == ["mlp"]
    assert read_cell(tmp_path / "out" / "cells", CELLS[0].name) is not None
    assert read_cell(tmp_path / "out" / "cells", CELLS[1].name) is None


# Several processes.


@pytest.mark.slow
def test_processes_make_the_records_of_one(save_as: Save, tmp_path: Path, lasting: Lasting) -> None:
    save_as("texas")
    wrong = dataclasses.replace(CELLS[0], variant="wrong", settings={"lr": -1})
    alone = work([*CELLS, wrong], tmp_path / "alone")
    told: list[Outcome] = []
    found = work([*CELLS, wrong], tmp_path / "many", workers=2, tell=told.append)
    assert told == found
    by_name = {one.cell.name: one for one in found}
    assert len(by_name) == 4
    for one in alone:
        other = by_name[one.cell.name]
        assert other.reason == one.reason
        if one.record is not None:
            assert other.record is not None
            shared = {**one.record.metrics["hardware"], "threads": 1}  # cores are divided
            assert lasting({**other.record.metrics, "hardware": shared}) == lasting(
                {**one.record.metrics, "hardware": shared}
            )
            assert other.record.metrics["hardware"] == shared
            assert other.record.identity == one.record.identity


@pytest.mark.slow
def test_processes_stop_when_asked(save_as: Save, tmp_path: Path) -> None:
    save_as("texas")
    long = [dataclasses.replace(cell, settings={"epochs": 10**6, "patience": 0}) for cell in CELLS]
    began = time.monotonic()

    def begun() -> bool:
        assert time.monotonic() < began + 60
        return bool(list(tmp_path.glob("out/work/*/*/state")))

    with pytest.raises(KeyboardInterrupt):
        work(long, tmp_path / "out", workers=2, should_stop=begun)
    assert list(tmp_path.glob("out/work/*/*/state/state-000.safetensors"))  # saved on the way out
    with only_one(tmp_path / "out"):
        pass  # no worker is left


KILLED = """
import os, signal, sys
from hpgmn.experiments.reproduction import engine
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    from pathlib import Path
    from hpgmn.errors import HPGMNError
    from hpgmn.experiments.reproduction.cells import Cell
    cells = [Cell("texas", name, "shipped", {"epochs": 3}) for name in ("mlp", "gcn")]
    try:
        engine.work(cells, Path(sys.argv[1]), workers=2, should_stop=lambda: False)
    except HPGMNError as error:
        print(error)
else:
    engine.do_cell = die
"""


@pytest.mark.slow
def test_a_killed_worker_is_told_with_what_to_do(save_as: Save, tmp_path: Path) -> None:
    folder = save_as("texas")
    (tmp_path / "killed.py").write_text(KILLED)
    done = subprocess.run(
        [sys.executable, tmp_path / "killed.py", tmp_path / "out"],
        env=os.environ | {"PYTHONPATH": str(SOURCE), "HPGMN_DATA": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.startswith("A worker was killed"), done.stderr
    assert "fewer --workers" in done.stdout


class _Broken:
    """A pool whose workers are gone."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> _Broken:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, *arguments: Any) -> Any:
        future: engine.Future[None] = engine.Future()
        future.set_exception(engine.BrokenProcessPool("gone"))
        return future

    def shutdown(self, **options: Any) -> None:
        pass


@pytest.mark.parametrize("is_asked", [False, True])
def test_workers_that_were_stopped_with_the_first_process_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    monkeypatch.setattr(engine, "ProcessPoolExecutor", _Broken)
    answers = iter([False, is_asked])
    with pytest.raises(KeyboardInterrupt if is_asked else HPGMNError):
        work(CELLS, tmp_path, workers=2, should_stop=lambda: next(answers))


def test_a_worker_leaves_interrupts_to_the_first_process(
    save_as: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's own functions, called here."""
    save_as("texas")
    stop = multiprocessing.get_context("spawn").Event()
    before = signal.getsignal(signal.SIGINT)
    handlers = list(logging.getLogger("hpgmn").handlers)
    monkeypatch.setattr(engine, "_own", {})
    monkeypatch.setattr(engine, "_end_with_parent", lambda: None)
    monkeypatch.setattr(engine.torch, "set_num_threads", lambda number: threads.append(number))
    threads: list[int] = []
    (tmp_path / "out").mkdir()
    try:
        engine._begin(tmp_path / "out", stop, 3, "cpu", 0.25)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        logging.getLogger("hpgmn").handlers[:] = handlers
    assert threads == [3]
    way = engine._own["way"]
    assert (way.device, way.memory_share) == ("cpu", 0.25)
    found = engine._in_worker(CELLS[0], tmp_path / "out")
    assert found is not None
    assert found.record is not None
    stop.set()
    assert engine._in_worker(CELLS[1], tmp_path / "out") is None

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    stop.clear()
    monkeypatch.setattr(engine, "do_cell", interrupted)
    assert engine._in_worker(CELLS[1], tmp_path / "out") is None
    engine._own["lock"].close()


def test_a_worker_ends_with_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = multiprocessing.Pipe()
    parent = SimpleNamespace(sentinel=ours)
    codes: list[int] = []
    monkeypatch.setattr(engine.multiprocessing, "parent_process", lambda: parent)
    monkeypatch.setattr(engine.os, "_exit", codes.append)
    watcher = threading.Thread(target=engine._end_with_parent)
    watcher.start()
    watcher.join(0.05)
    assert codes == []
    theirs.close()  # as when the first process is gone
    watcher.join(10)
    assert codes == [1]
    ours.close()


# One reproduction a folder.


def test_a_second_reproduction_in_a_folder_is_refused(tmp_path: Path) -> None:
    with only_one(tmp_path / "out"):
        with (
            pytest.raises(HPGMNError, match="Another reproduction is at work"),
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
        "from hpgmn.experiments.reproduction.engine import only_one\n"
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
    with pytest.raises(HPGMNError, match="Choose another --out"), only_one(tmp_path / "file" / "x"):
        pass


def test_a_reproduction_may_be_of_a_graph_unlike_the_registered(
    save_as: Save, small_graph: Graph, tmp_path: Path
) -> None:
    """The small graph stands in for texas in these tests: it must be the one that is read."""
    save_as("texas")
    (found,) = work(CELLS[:1], tmp_path / "out")
    assert found.record is not None
    assert found.record.metrics["graph_summary"]["num_nodes"] == small_graph.num_nodes
