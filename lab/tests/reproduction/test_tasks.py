"""The cells of a reproduction as tasks: records as on one machine, also where one is lost."""

import dataclasses
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

import hpgmn
import hpgmn_lab
from hpgmn.base.errors import HPGMNError
from hpgmn.engines.processes import LocalEngine
from hpgmn.graph.datasets import DATASETS
from hpgmn_lab import paper
from hpgmn_lab.reproduction import plan, tasks
from hpgmn_lab.reproduction.cells import Cell, read_cell
from hpgmn_lab.reproduction.tasks import (
    Outcome,
    attempt,
    cell_states,
    cell_task,
    cells_of,
    download_remedy,
    local_experiments,
    lock_folder,
    work_on,
)
from hpgmn_lab.reproduction.work import Execution

SOURCES = os.pathsep.join(str(Path(own.__file__).parents[1]) for own in (hpgmn, hpgmn_lab))

SEARCHED = Cell(
    *("texas", "mlp", "tuned"),
    {"epochs": 3, "patience": 0},
    trials=3,
    search_splits=(0,),
    splits=(0, 1),
    protocol="paper-heterophily",
)


PLAIN = dataclasses.replace(SEARCHED, variant="shipped", trials=0, search_splits=())
CELLS = [dataclasses.replace(PLAIN, model=model) for model in ("mlp", "gcn", "appnp")]


def same(folder, lasting):
    """All records of a folder without times and without the machine."""
    found = {}
    for path in sorted(folder.glob("cells/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        del record["metrics"]["hardware"]
        found[path.name] = lasting(record)
    return found


def test_records_are_those_of_this_machine(save_as, tmp_path, lasting, here_engine):
    save_as("texas")
    engine, told, progress = here_engine(), [], []
    found = work_on(
        engine,
        [SEARCHED, PLAIN],
        tmp_path / "other",
        on_outcome=told.append,
        report=lambda name, now: progress.append((name, now.stage)),
    )
    assert found == told
    work_on(LocalEngine(), [SEARCHED, PLAIN], tmp_path / "here")
    assert same(tmp_path / "other", lasting) == same(tmp_path / "here", lasting)
    assert len(same(tmp_path / "here", lasting)) == 2
    assert read_cell(tmp_path / "other" / "cells", SEARCHED.name) == found[0].record
    assert progress[0] == (SEARCHED.name, "main")
    assert {name for name, _ in progress} == {SEARCHED.name, PLAIN.name}
    assert not list(tmp_path.glob("other/search/*"))
    assert engine.options["max_tasks"] == 2
    assert engine.options["tries"] == tasks.ATTEMPTS
    first, second = engine.begun
    assert first.shared is second.shared, "a graph is loaded once"


def test_the_work_needs_neither_graphs_nor_the_folder(
    save_as, small_graph, tmp_path, monkeypatch, here_engine
):
    """As on another machine."""
    save_as("texas")
    graph = tasks.load("texas", "paper-heterophily")
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path / "none"))
    engine = here_engine()
    engine.on_message, engine.name = lambda name, message: None, "any"
    outcome = cell_task((SEARCHED, "cpu", {}), graph, engine)
    assert outcome.record is not None, outcome.reason
    assert outcome.record.metrics["graph_summary"]["num_nodes"] == small_graph.num_nodes


def test_a_search_resumes_from_the_saved_trials(
    save_as, tmp_path, lasting, monkeypatch, here_engine
):
    save_as("texas")
    folder = tmp_path / "out"
    trained = []
    from hpgmn_lab.reproduction import work as module

    genuine = module.run_trials

    def counted(graph, model, trials, **options):
        if len(trained) == 1:
            raise ConnectionError("as when the machine is lost")
        trained.append(len(trials))
        return genuine(graph, model, trials, **options)

    monkeypatch.setattr(module, "run_trials", counted)
    wide = dataclasses.replace(SEARCHED, trials=6)
    (lost,) = work_on(here_engine(), [wide], folder)
    assert lost.reason == "ConnectionError: as when the machine is lost"
    kept = json.loads((folder / "search" / f"{wide.name}.json").read_text(encoding="utf-8"))
    assert len(kept["trials"]) == trained[0] < 6
    monkeypatch.setattr(module, "run_trials", genuine)
    engine = here_engine()
    work_on(engine, [wide], folder)
    assert set(engine.begun[0].argument[2]) == {f"search/{wide.name}.json"}
    work_on(LocalEngine(), [wide], tmp_path / "here")
    assert same(folder, lasting) == same(tmp_path / "here", lasting)


def test_a_lost_machine_or_unreadable_graph_fails_its_cell_only(
    save_as, tmp_path, monkeypatch, here_engine
):
    save_as("texas")
    genuine = tasks.load

    def load(graph, protocol):
        if graph == "cora":
            raise HPGMNError("No cora.")
        return genuine(graph, protocol)

    monkeypatch.setattr(tasks, "load", load)
    missing = dataclasses.replace(PLAIN, graph="cora")
    found = work_on(here_engine(lost=(SEARCHED.name,)), [missing, SEARCHED, PLAIN], tmp_path)
    assert found[:2] == [Outcome(missing, reason="No cora."), Outcome(SEARCHED, reason="Gone.")]
    assert found[2].record is not None


# Local copies.


def test_graphs_without_a_local_copy_are_skipped(save_as):
    save_as("texas")
    save_as("cora")
    asked = [plan.experiment(name) for name in ("table1", "table2", "table3")]
    found, missing = local_experiments(asked)
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


def test_only_graphs_with_a_download_are_offered():
    assert download_remedy(["crocodile"]).alternatives == ()
    [download] = download_remedy(["crocodile", "texas", "cora"]).alternatives
    assert download.action == "Download texas, cora"
    assert (download.command, download.option) == ("datasets", "download")


def test_without_any_graph_there_is_nothing_to_do(save_as):
    save_as("texas")
    with pytest.raises(HPGMNError, match="No graph has a local copy: cora, citeseer, pubmed"):
        local_experiments([plan.experiment("table3")])


def test_cells_come_once_and_those_of_small_graphs_first():
    every = [plan.experiment(name) for name in plan.EXPERIMENTS]
    found = cells_of(every)
    assert len({cell.name for cell in found}) == len(found)
    assert {cell.name for cell in found} == {cell.name for one in every for cell in one.cells}
    sizes = [DATASETS[cell.graph].num_nodes for cell in found]
    assert sizes == sorted(sizes)


# States.


def test_cells_are_sorted_into_done_waiting_and_failed(save_as, tmp_path):
    folder = save_as("texas")
    (folder / "cora.npz").write_bytes(b"damaged")
    first = attempt(CELLS[0], tmp_path / "out", Execution())
    assert first.record is not None
    broken = dataclasses.replace(CELLS[0], graph="cora", protocol=None)
    states = cell_states([broken, *CELLS], tmp_path / "out")
    assert states.finished == [Outcome(CELLS[0], first.record)]
    assert states.waiting == CELLS[1:]
    assert [one.cell for one in states.failed] == [broken]
    assert "cora.npz" in states.failed[0].reason


# Locks.


def test_the_next_command_waits_for_orphaned_workers(tmp_path):
    order = []

    def next_one():
        with lock_folder(tmp_path):
            order.append("next")

    waiting = threading.Thread(target=next_one)
    with tasks._worker_lock(tmp_path), tasks._worker_lock(tmp_path):  # several work at a time
        waiting.start()
        waiting.join(0.1)
        order.append("cell")
    waiting.join(10)
    assert order == ["cell", "next"]


# On this machine.


def test_a_failing_cell_is_reported_and_the_others_continue(save_as, tmp_path, monkeypatch):
    save_as("texas")
    genuine = tasks.do_cell

    def sometimes(cell, *arguments):
        if cell.model == "gcn":
            raise ZeroDivisionError("first line\nsecond line")
        return genuine(cell, *arguments)

    monkeypatch.setattr(tasks, "do_cell", sometimes)
    wrong = dataclasses.replace(CELLS[0], variant="wrong", settings={"lr": -1})
    told = []
    found = work_on(LocalEngine(), [wrong, *CELLS], tmp_path / "out", on_outcome=told.append)
    assert told == found
    assert [one.record is None for one in found] == [True, False, True, False]
    assert "lr" in found[0].reason
    assert found[0].trace == ""
    assert found[2].reason == "ZeroDivisionError: first line"
    assert found[2].trace.startswith("Traceback")
    assert read_cell(tmp_path / "out" / "cells", CELLS[2].name) == found[3].record


def test_stopping_on_this_machine_keeps_finished_cells(save_as, tmp_path):
    save_as("texas")
    told = []
    with pytest.raises(KeyboardInterrupt):
        work_on(
            *(LocalEngine(), CELLS, tmp_path / "out"),
            on_outcome=told.append,
            should_stop=lambda: bool(told),
        )
    assert [one.cell.model for one in told] == ["mlp"]
    assert read_cell(tmp_path / "out" / "cells", CELLS[0].name) is not None
    assert read_cell(tmp_path / "out" / "cells", CELLS[1].name) is None


@pytest.mark.slow
def test_processes_make_the_records_of_one(save_as, tmp_path, lasting):
    save_as("texas")
    wrong = dataclasses.replace(CELLS[0], variant="wrong", settings={"lr": -1})
    alone = work_on(LocalEngine(), [*CELLS, wrong], tmp_path / "alone")
    told = []
    found = work_on(LocalEngine(2), [*CELLS, wrong], tmp_path / "many", on_outcome=told.append)
    assert told == found
    by_name = {one.cell.name: one for one in found}
    assert len(by_name) == 4
    for one in alone:
        other = by_name[one.cell.name]
        assert other.reason == one.reason
        if one.record is not None:
            shared = {**one.record.metrics["hardware"], "threads": 1}  # cores are divided
            assert lasting({**other.record.metrics, "hardware": shared}) == lasting(
                {**one.record.metrics, "hardware": shared}
            )
            assert other.record.metrics["hardware"] == shared
            assert other.record.identity == one.record.identity


@pytest.mark.slow
def test_processes_stop_when_asked(save_as, tmp_path):
    save_as("texas")
    long = [dataclasses.replace(cell, settings={"epochs": 10**6, "patience": 0}) for cell in CELLS]
    began = time.monotonic()
    seen = []

    def begun():
        """Return whether a training has had three seconds for its first epochs."""
        assert time.monotonic() < began + 60
        if list(tmp_path.glob("out/work/*/*/state")):
            seen.append(time.monotonic())
        return bool(seen) and seen[-1] - seen[0] > 3

    with pytest.raises(KeyboardInterrupt):
        work_on(LocalEngine(2), long, tmp_path / "out", should_stop=begun)
    assert list(tmp_path.glob("out/work/*/*/state/state-000.safetensors"))  # saved on the way out
    with lock_folder(tmp_path / "out"):
        pass  # no worker is left


# On a cluster.


@pytest.mark.ray
@pytest.mark.slow
def test_a_table_is_the_same_where_a_machine_is_lost_on_the_way(
    ray_cluster, save_as, tmp_path, lasting, monkeypatch
):
    """Three nodes with one core each, of which one is killed while it works."""
    import ray

    from hpgmn.engines.ray import RayEngine

    save_as("texas")
    chosen = ("gcn", "hpgmn")
    monkeypatch.setattr(paper, "TABLE_2", {name: paper.TABLE_2[name] for name in chosen})
    budget = dataclasses.replace(plan.QUICK, epochs=150, graphs=("texas",))
    cells = cells_of([plan.experiment("table2", budget)])
    assert len(cells) == 4
    work_on(LocalEngine(), cells, tmp_path / "here")
    data = tmp_path / "data"
    graphs = tasks.load("texas", "paper-heterophily")
    monkeypatch.setattr(tasks, "load", lambda *names: graphs)
    shutil.rmtree(data)  # the other machines have no graphs

    nodes = [ray_cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(2)]
    working = set()
    lost = []

    def report(name, now):
        working.add(name)
        if len(working) == 3 and len(nodes) == 2:  # every node works
            ray_cluster.remove_node(nodes.pop(), allow_graceful=False)

    engine = RayEngine(ray)
    assert engine.workers == 3
    found = work_on(engine, cells, tmp_path / "three", report=report, on_lost=lost.append)
    assert [one.reason for one in found] == [""] * 4
    assert len(nodes) == 1, "one was killed"
    assert len(lost) == 1
    assert same(tmp_path / "three", lasting) == same(tmp_path / "here", lasting)
