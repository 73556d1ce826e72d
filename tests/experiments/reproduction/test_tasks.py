"""The cells of a reproduction as tasks: records as on one machine, also where one is lost."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpgmn.errors import HPGMNError
from hpgmn.experiments import paper
from hpgmn.experiments.reproduction import distributed, plan
from hpgmn.experiments.reproduction.cells import Cell, read_cell
from hpgmn.experiments.reproduction.engine import Outcome, cells_of, work
from hpgmn.experiments.reproduction.tasks import cell_task, work_on
from hpgmn.graph import Graph

Save = Callable[..., Path]
Lasting = Callable[[Any], Any]

SEARCHED = Cell(
    *("texas", "mlp", "tuned"),
    {"epochs": 3, "patience": 0},
    trials=3,
    search_splits=(0,),
    splits=(0, 1),
    protocol="paper-heterophily",
)
PLAIN = dataclasses.replace(SEARCHED, variant="shipped", trials=0, search_splits=())


def same(folder: Path, lasting: Lasting) -> dict[str, Any]:
    """All records of a folder without times and without the machine."""
    found = {}
    for path in sorted(folder.glob("cells/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        del record["metrics"]["hardware"]
        found[path.name] = lasting(record)
    return found


def test_records_are_those_of_this_machine(
    save_as: Save, tmp_path: Path, lasting: Lasting, here_engine: Any
) -> None:
    save_as("texas")
    engine, told, progress = here_engine(), [], []
    found = work_on(
        engine,
        [SEARCHED, PLAIN],
        tmp_path / "other",
        tell=told.append,
        report=lambda name, now: progress.append((name, now.stage)),
    )
    assert found == told
    work([SEARCHED, PLAIN], tmp_path / "here")
    assert same(tmp_path / "other", lasting) == same(tmp_path / "here", lasting)
    assert len(same(tmp_path / "here", lasting)) == 2
    assert read_cell(tmp_path / "other" / "cells", SEARCHED.name) == found[0].record
    assert progress[0] == (SEARCHED.name, "main")
    assert {name for name, _ in progress} == {SEARCHED.name, PLAIN.name}
    assert not list(tmp_path.glob("other/search/*"))
    assert engine.options["at_a_time"] == 2
    assert engine.options["tries"] == distributed.TRIES
    first, second = engine.begun
    assert first.shared is second.shared, "a graph is loaded once"


def test_the_work_needs_neither_graphs_nor_the_folder(
    save_as: Save,
    small_graph: Graph,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here_engine: Any,
) -> None:
    """As on another machine."""
    save_as("texas")
    graph = distributed.load("texas", "paper-heterophily")
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path / "none"))
    engine = here_engine()
    engine.answer, engine.name = lambda name, message: None, "any"
    outcome = cell_task((SEARCHED, {}, "cpu"), graph, engine)
    assert outcome.record is not None, outcome.reason
    assert outcome.record.metrics["graph_summary"]["num_nodes"] == small_graph.num_nodes


def test_a_search_goes_on_from_what_was_kept_here(
    save_as: Save,
    tmp_path: Path,
    lasting: Lasting,
    monkeypatch: pytest.MonkeyPatch,
    here_engine: Any,
) -> None:
    save_as("texas")
    folder = tmp_path / "out"
    trained: list[int] = []
    from hpgmn.experiments.reproduction import work as module

    genuine = module.run_trials

    def counted(graph: Graph, model: str, trials: Any, **options: Any) -> Any:
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
    assert set(engine.begun[0].argument[1]) == {f"search/{wide.name}.json"}
    work([wide], tmp_path / "here")
    assert same(folder, lasting) == same(tmp_path / "here", lasting)


def test_what_is_lost_or_cannot_be_loaded_is_a_failure_of_its_cell(
    save_as: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here_engine: Any
) -> None:
    save_as("texas")
    genuine = distributed.load

    def load(graph: str, protocol: str | None) -> Graph:
        if graph == "cora":
            raise HPGMNError("No cora.")
        return genuine(graph, protocol)

    monkeypatch.setattr(distributed, "load", load)
    missing = dataclasses.replace(PLAIN, graph="cora")
    found = work_on(here_engine(lost=(SEARCHED.name,)), [missing, SEARCHED, PLAIN], tmp_path)
    assert found[:2] == [Outcome(missing, reason="No cora."), Outcome(SEARCHED, reason="Gone.")]
    assert found[2].record is not None


def test_what_is_asked_to_stop_keeps_what_is_finished(
    save_as: Save, tmp_path: Path, here_engine: Any
) -> None:
    save_as("texas")
    told: list[Outcome] = []
    with pytest.raises(KeyboardInterrupt):
        work_on(
            *(here_engine(), [PLAIN, SEARCHED], tmp_path),
            tell=told.append,
            should_stop=lambda: bool(told),
        )
    assert read_cell(tmp_path / "cells", PLAIN.name) == told[0].record
    assert read_cell(tmp_path / "cells", SEARCHED.name) is None


@pytest.mark.ray
@pytest.mark.slow
def test_a_table_is_the_same_where_a_machine_is_lost_on_the_way(
    ray_cluster: Any,
    save_as: Save,
    tmp_path: Path,
    lasting: Lasting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three nodes with one core each, of which one is killed while it works."""
    import ray

    from hpgmn.engines.cluster import RayEngine

    save_as("texas")
    chosen = ("gcn", "hpgmn")
    monkeypatch.setattr(paper, "TABLE_2", {name: paper.TABLE_2[name] for name in chosen})
    budget = dataclasses.replace(plan.QUICK, epochs=150, graphs=("texas",))
    cells = cells_of([plan.experiment("table2", budget)])
    assert len(cells) == 4
    work(cells, tmp_path / "here")
    data = tmp_path / "data"
    graphs = distributed.load("texas", "paper-heterophily")
    monkeypatch.setattr(distributed, "load", lambda *names: graphs)
    shutil.rmtree(data)  # the other machines have no graphs

    nodes = [ray_cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(2)]
    working: set[str] = set()
    lost: list[str] = []

    def report(name: str, now: Any) -> None:
        working.add(name)
        if len(working) == 3 and len(nodes) == 2:  # every node works
            ray_cluster.remove_node(nodes.pop(), allow_graceful=False)

    engine = RayEngine(ray)
    assert engine.workers == 3
    found = work_on(engine, cells, tmp_path / "three", report=report, lost=lost.append)
    assert [one.reason for one in found] == [""] * 4
    assert len(nodes) == 1, "one was killed"
    assert len(lost) == 1
    assert same(tmp_path / "three", lasting) == same(tmp_path / "here", lasting)
