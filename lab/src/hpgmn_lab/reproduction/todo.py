"""The cells of a reproduction: which there are, which are done, and what became of the others.

A cell that fails is reported with its reason; the others go on.
"""

from __future__ import annotations

import dataclasses
import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hpgmn.base import locking
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import remove_stale_drafts
from hpgmn.engines.tasks import done
from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS, find_file, load
from hpgmn_lab.reproduction.cells import Cell, CellRecord
from hpgmn_lab.reproduction.plan import Experiment, Row
from hpgmn_lab.reproduction.work import (
    CELLS_FOLDER,
    SEARCH_FOLDER,
    Way,
    do_cell,
    done_record,
    free_memory,
    tidy,
)

WORKERS_LOCK_FILE = ".lock-workers"


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: the cell.
        record: its record, or None where the work failed.
        seconds: how long it took.
        reason: one sentence why it failed.
        trace: where an error that nobody foresaw came from.
    """

    cell: Cell
    record: CellRecord | None = None
    seconds: float = 0.0
    reason: str = ""
    trace: str = ""


@dataclass(frozen=True)
class Todo:
    """The cells of a reproduction: finished ones, those to work on, those that cannot be begun."""

    done: list[Outcome] = field(default_factory=list)
    waiting: list[Cell] = field(default_factory=list)
    failed: list[Outcome] = field(default_factory=list)


def on_this_machine(experiments: Sequence[Experiment]) -> tuple[list[Experiment], list[str]]:
    """The experiments with the columns whose graphs are here, and the names of the other graphs."""
    every = list(dict.fromkeys(graph for one in experiments for graph in one.graphs))
    missing = [graph for graph in every if find_file(graph) is None]
    if missing and len(missing) == len(every):
        raise HPGMNError(
            f"None of the graphs is on this machine: {', '.join(missing)}. {what_to_do(missing)}"
        )
    return [_without(one, missing) for one in experiments], missing


def what_to_do(missing: Sequence[str]) -> str:
    """How to get graphs that are not here."""
    ways = "Set HPGMN_DATA to the folder of their .npz files"
    loadable = [name for name in missing if DATASETS[name].download is not None]
    if loadable:
        ways += f", or run `hpgmn datasets --download NAME` ({', '.join(loadable)})"
    return f"{ways}."


def _without(one: Experiment, missing: Sequence[str]) -> Experiment:
    graphs = tuple(graph for graph in one.graphs if graph not in missing)
    rows = [
        Row(row.label, {graph: row.cells[graph] for graph in graphs}, row.is_ensemble)
        for row in one.rows
    ]
    return dataclasses.replace(one, graphs=graphs, rows=tuple(rows))


def cells_of(experiments: Sequence[Experiment]) -> list[Cell]:
    """The cells of some experiments, each once, those of small graphs first."""
    every = {cell.name: cell for one in experiments for cell in one.cells}
    return sorted(every.values(), key=lambda cell: DATASETS[cell.graph].num_nodes)


def sort_out(cells: Sequence[Cell], folder: Path) -> Todo:
    """Which cells are done; a graph that cannot be read fails all of its cells."""
    todo = Todo()
    places = dict.fromkeys((cell.graph, cell.protocol) for cell in cells)
    for place in places:
        own = [cell for cell in cells if (cell.graph, cell.protocol) == place]
        try:
            graph = load(*place)
        except HPGMNError as error:
            todo.failed.extend(Outcome(cell, reason=str(error)) for cell in own)
            continue
        for cell in own:
            record = done_record(cell, graph, folder)
            if record is None:
                todo.waiting.append(cell)
            else:
                tidy(cell, folder)  # it may have been killed before it could
                todo.done.append(Outcome(cell, record))
    return todo


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Refuse to work in a folder in which another reproduction is at work.

    Processes whose first one was killed end by themselves; they are waited for.
    """
    with locking.lock_folder(folder):
        with (folder / WORKERS_LOCK_FILE).open("a") as orphans:
            fcntl.flock(orphans, fcntl.LOCK_EX)
        for place in (folder, folder / CELLS_FOLDER, folder / SEARCH_FOLDER):
            remove_stale_drafts(place, older_than=0)
        yield


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Let whoever wants to work in a folder next wait for this process to end its cell."""
    with (folder / WORKERS_LOCK_FILE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def attempt(cell: Cell, folder: Path, way: Way, graph: Graph | None = None) -> Outcome:
    """A cell's outcome, a failure included; see :func:`.work.do_cell`."""
    started = time.perf_counter()
    try:
        record, reason, trace = done(do_cell, cell, folder, way, graph)
    finally:
        free_memory(way.device)
    return Outcome(cell, record, time.perf_counter() - started, reason, trace)
