"""All cells of a reproduction: which are there, which are done, and the work on the others.

One process, or several that share the cores and the memory of the GPU. A cell that fails is
reported with its reason; the others go on.
"""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait as wait_for_process
from pathlib import Path
from typing import Any

import torch

from hpgmn.datasets import DATASETS, find_file, load
from hpgmn.errors import HPGMNError
from hpgmn.experiments.reproduction.cells import Cell, CellRecord
from hpgmn.experiments.reproduction.plan import Experiment, Row
from hpgmn.experiments.reproduction.work import Way, do_cell, done_record, free_memory, tidy
from hpgmn.graph import Graph
from hpgmn.training.replicas import Progress

LOCK_FILE, WORKERS_LOCK_FILE = ".lock", ".lock-workers"
_LOOK_SECONDS = 0.2
"""How often the first process looks whether it is asked to stop."""


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

    The lock is the operating system's: it is gone with the process, however that ends. Workers
    whose first process was killed end by themselves; they are waited for.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK_FILE).open("a")
    except OSError as error:
        raise HPGMNError(
            f"Cannot write into the folder {folder} ({error.strerror or error}). "
            "Choose another --out."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HPGMNError(
                f"Another reproduction is at work in {folder}. Wait for it, or choose another "
                "--out."
            ) from None
        with (folder / WORKERS_LOCK_FILE).open("a") as orphans:
            fcntl.flock(orphans, fcntl.LOCK_EX)
        yield


def work(
    cells: Sequence[Cell],
    folder: Path,
    *,
    device: str = "cpu",
    workers: int = 1,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    report: Callable[[str, Progress], None] = lambda name, progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Do the cells' work; what is asked to stop raises KeyboardInterrupt with all kept.

    Args:
        cells: the cells.
        folder: the folder of the reproduction.
        device: "cpu" or "cuda".
        workers: how many processes.
        tell: called with the outcome of each cell, in the order in which they end.
        report: called with a cell's name and its progress; with one process only.
        should_stop: asked all the time.
    """
    if workers > 1 and len(cells) > 1:
        return _in_processes(cells, folder, device, min(workers, len(cells)), tell, should_stop)
    outcomes = []
    for cell in cells:
        if should_stop():
            raise KeyboardInterrupt
        way = Way(device, partial(report, cell.name), should_stop)
        outcomes.append(attempt(cell, folder, way))
        tell(outcomes[-1])
    return outcomes


def attempt(cell: Cell, folder: Path, way: Way, graph: Graph | None = None) -> Outcome:
    """A cell's outcome, a failure included; see :func:`.work.do_cell`."""
    started = time.perf_counter()
    try:
        record = do_cell(cell, folder, way, graph)
    except HPGMNError as error:
        return Outcome(cell, seconds=time.perf_counter() - started, reason=str(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        seconds = time.perf_counter() - started
        return Outcome(cell, seconds=seconds, reason=reason, trace=traceback.format_exc())
    finally:
        free_memory(way.device)
    return Outcome(cell, record, time.perf_counter() - started)


def _in_processes(
    cells: Sequence[Cell],
    folder: Path,
    device: str,
    workers: int,
    tell: Callable[[Outcome], None],
    should_stop: Callable[[], bool],
) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
    stop = context.Event()
    folder.mkdir(parents=True, exist_ok=True)
    threads = max(1, torch.get_num_threads() // workers)
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(
        workers, context, initializer=_begin, initargs=(folder, stop, threads, device, 1 / workers)
    ) as pool:
        try:
            waiting: set[Future[Outcome | None]] = {
                pool.submit(_in_worker, cell, folder) for cell in cells
            }
            while waiting:
                if should_stop():
                    raise KeyboardInterrupt
                ended, waiting = wait(waiting, _LOOK_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    outcome = future.result()
                    if outcome is not None:
                        outcomes.append(outcome)
                        tell(outcome)
        except BrokenProcessPool:
            if should_stop():  # whoever stopped the first process stopped them all
                raise KeyboardInterrupt from None
            raise HPGMNError(
                "A worker was killed, probably for lack of memory. What was finished is kept: "
                "repeat the command with fewer --workers."
            ) from None
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return outcomes


_own: dict[str, Any] = {}
"""In a worker: how it works, and its lock."""


def _begin(folder: Path, stop: Any, threads: int, device: str, memory_share: float) -> None:
    """Prepare a worker: Ctrl-C is for the first process, and without that one there is no work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _own["lock"] = (folder / WORKERS_LOCK_FILE).open("a")
    fcntl.flock(_own["lock"], fcntl.LOCK_SH)
    logging.getLogger("hpgmn").addHandler(logging.NullHandler())  # the first process has warned
    torch.set_num_threads(threads)
    _own["way"] = Way(device, None, stop.is_set, memory_share)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_process([parent.sentinel])
    os._exit(1)


def _in_worker(cell: Cell, folder: Path) -> Outcome | None:
    """A cell's outcome; None where it was asked to stop."""
    way: Way = _own["way"]
    if way.should_stop():
        return None
    try:
        return attempt(cell, folder, way)
    except KeyboardInterrupt:
        return None
