"""The cells of a reproduction as tasks of an engine.

On this machine tasks work in the folder of the reproduction. Machines of a cluster need neither
graphs nor folder: the graph is sent with the task, and records and finished parts of searches are
sent back. A cell that fails is reported; the others continue.
"""

from __future__ import annotations

import dataclasses
import fcntl
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpgmn.base import files as locking
from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import remove_stale_drafts, write_text
from hpgmn.engines import Channel, Engine, RateLimiter, Task, TaskResult
from hpgmn.engines.processes import run_safely
from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS, find_file, load
from hpgmn.training.replicas import Progress
from hpgmn_lab.reproduction.cells import Cell, CellRecord, record_path, write_cell
from hpgmn_lab.reproduction.plan import Experiment
from hpgmn_lab.reproduction.work import (
    CELLS_FOLDER,
    SEARCH_FOLDER,
    Execution,
    do_cell,
    finished_record,
    free_memory,
    remove_unfinished,
)

ATTEMPTS = 3
"""How often one command starts a cell whose machine is lost."""
WORKERS_LOCK_FILE = ".lock-workers"


@dataclass(frozen=True)
class Outcome:
    """The result of a cell: a record, or the reason of its failure.

    ``trace`` is the traceback of an unexpected error.
    """

    cell: Cell
    record: CellRecord | None = None
    seconds: float = 0.0
    reason: str = ""
    trace: str = ""


@dataclass(frozen=True)
class CellStates:
    """Cells by state: finished, waiting, and failed because their graph cannot be read."""

    finished: list[Outcome] = field(default_factory=list)
    waiting: list[Cell] = field(default_factory=list)
    failed: list[Outcome] = field(default_factory=list)


def local_experiments(experiments: Sequence[Experiment]) -> tuple[list[Experiment], list[str]]:
    """Return the experiments without the graphs that have no local copy, and their names."""
    graphs = list(dict.fromkeys(graph for each in experiments for graph in each.graphs))
    missing = [graph for graph in graphs if find_file(graph) is None]
    if missing and len(missing) == len(graphs):
        raise HPGMNError(
            f"No graph has a local copy: {', '.join(missing)}.", download_remedy(missing)
        )
    return [each.without(missing) for each in experiments], missing


def download_remedy(missing: Sequence[str]) -> Remedy:
    """Return how to get graphs that have no local copy."""
    remedy = Remedy("Set HPGMN_DATA to the folder of their .npz files")
    names = [name for name in missing if DATASETS[name].download is not None]
    if not names:
        return remedy
    action = f"Download {', '.join(names)}"
    return remedy | Remedy(action, command="datasets", option="download", value="NAME")


def cells_of(experiments: Sequence[Experiment]) -> list[Cell]:
    """Return the distinct cells of experiments, those of small graphs first."""
    cells = {cell.name: cell for each in experiments for cell in each.cells}
    return sorted(cells.values(), key=lambda cell: DATASETS[cell.graph].num_nodes)


def cell_states(cells: Sequence[Cell], folder: Path) -> CellStates:
    """Compare the cells with the records in a folder."""
    states = CellStates()
    for source in dict.fromkeys((cell.graph, cell.protocol) for cell in cells):
        graph_cells = [cell for cell in cells if (cell.graph, cell.protocol) == source]
        try:
            graph = load(*source)
        except HPGMNError as error:
            states.failed.extend(Outcome(cell, reason=str(error)) for cell in graph_cells)
            continue
        for cell in graph_cells:
            record = finished_record(cell, graph, folder)
            if record is None:
                states.waiting.append(cell)
            else:
                remove_unfinished(cell, folder)  # left by a process killed before it could
                states.finished.append(Outcome(cell, record))
    return states


# Locks.


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder; raise an error if another reproduction holds the lock.

    Worker processes whose parent was killed exit on their own; wait for them.
    """
    with locking.lock_folder(folder):
        with (folder / WORKERS_LOCK_FILE).open("a") as workers:
            fcntl.flock(workers, fcntl.LOCK_EX)
        for each in (folder, folder / CELLS_FOLDER, folder / SEARCH_FOLDER):
            remove_stale_drafts(each, older_than=0)
        yield


@contextmanager
def _worker_lock(folder: Path) -> Iterator[None]:
    """Hold the lock that the next command waits for."""
    with (folder / WORKERS_LOCK_FILE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


# Tasks.


def attempt(cell: Cell, folder: Path, execution: Execution, graph: Graph | None = None) -> Outcome:
    """Do a cell and return its outcome, also after a failure; see :func:`.work.do_cell`."""
    started = time.perf_counter()
    try:
        record, reason, trace = run_safely(do_cell, cell, folder, execution, graph)
    finally:
        free_memory(execution.device)
    return Outcome(cell, record, time.perf_counter() - started, reason, trace)


def cell_task(
    argument: tuple[Cell, str, Path | dict[str, str]], graph: Graph, line: Channel
) -> Outcome:
    """Do a cell as a task of an engine.

    The argument is the cell, the device and the folder of the reproduction; on another machine, the
    existing files of the cell (path in the folder → content). There the channel also receives the
    content of a search's file.
    """
    cell, device, source = argument
    is_time = RateLimiter()

    def report(progress: Progress) -> None:
        if is_time():
            line.send(progress)

    execution = Execution(device, report, line.should_stop, line.share.memory)
    if isinstance(source, Path):
        with _worker_lock(source):
            return attempt(cell, source, execution, graph)
    with tempfile.TemporaryDirectory(prefix="hpgmn-") as folder:
        for name, text in source.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        remote = dataclasses.replace(execution, save_search=line.request)
        return attempt(cell, Path(folder), remote, graph)


def work_on(
    engine: Engine,
    cells: Sequence[Cell],
    folder: Path,
    *,
    device: str = "cpu",
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    report: Callable[[str, Progress], None] = lambda name, progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    on_lost: Callable[[str], None] = lambda name: None,
) -> list[Outcome]:
    """Do cells; when ``should_stop`` returns True, save and raise KeyboardInterrupt.

    ``on_outcome`` is called in the order of completion; ``report`` with a cell's name and its
    progress; ``on_lost`` with the name of a cell that is restarted because its machine is lost.
    Cells are sorted by graph.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    by_name = {cell.name: cell for cell in cells}
    waiting = iter(cells)
    load_graph = lru_cache(maxsize=1)(lambda *source: load(*source))  # cells are sorted by graph

    def add(outcome: Outcome) -> None:
        outcomes.append(outcome)
        on_outcome(outcome)

    def next_task() -> Task | None:
        for cell in waiting:
            try:
                graph = load_graph(cell.graph, cell.protocol)
            except HPGMNError as error:
                add(Outcome(cell, reason=str(error)))
                continue
            source = folder if engine.is_local else _existing_files(cell, folder)
            return Task(cell.name, cell_task, (cell, device, source), graph)
        return None

    def on_ended(ended: TaskResult) -> None:
        outcome = ended.value
        if outcome is None:
            outcome = Outcome(by_name[ended.name], reason=ended.reason, trace=ended.trace)
        elif outcome.record is not None and not engine.is_local:
            write_cell(folder / CELLS_FOLDER, outcome.record)
            remove_unfinished(outcome.cell, folder)
        add(outcome)

    def answer(name: str, message: Any) -> None:
        if isinstance(message, str):
            path = folder / SEARCH_FOLDER / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, message)
        else:
            report(name, message)

    engine.run(
        next_task,
        on_ended,
        on_message=answer,
        should_stop=should_stop,
        tries=ATTEMPTS,
        on_lost=on_lost,
        max_tasks=len(cells),
    )
    return outcomes


def _existing_files(cell: Cell, folder: Path) -> dict[str, str]:
    """Return the readable files of a cell: an earlier record and an unfinished search."""
    files = {}
    for part in (CELLS_FOLDER, SEARCH_FOLDER):
        path = record_path(folder / part, cell.name)
        try:
            files[f"{part}/{path.name}"] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return files
