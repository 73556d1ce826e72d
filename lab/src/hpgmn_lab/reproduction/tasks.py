"""The cells of a reproduction as tasks of an engine.

On this machine they work in the folder of the reproduction. The machines of a cluster need neither
the graphs nor the folder: the graph comes with the task, and records and finished parts of searches
come back and are written here.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_text
from hpgmn.engines import Ended, Engine, Line, Seldom, Task
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.training.replicas import Progress
from hpgmn_lab.reproduction.cells import Cell, record_path, write_cell
from hpgmn_lab.reproduction.todo import Outcome, at_work, attempt
from hpgmn_lab.reproduction.work import CELLS_FOLDER, SEARCH_FOLDER, Way, tidy

TRIES = 3
"""A cell whose machine is lost is not begun more often than this by one command."""


def cell_task(
    argument: tuple[Cell, str, Path | dict[str, str]], graph: Graph, line: Line
) -> Outcome:
    """The outcome of a cell.

    Args:
        argument: the cell, the device, and the folder of the reproduction; where that is on another
            machine, the files that are known of the cell (name below the folder → content).
        graph: its graph.
        line: where progress goes, and to another machine the content of a search's file.
    """
    cell, device, known = argument
    is_time = Seldom()

    def report(now: Progress) -> None:
        if is_time():
            line.tell(now)

    way = Way(device, report, line.should_stop, line.share.memory)
    if isinstance(known, Path):
        with at_work(known):
            return attempt(cell, known, way, graph)
    with tempfile.TemporaryDirectory(prefix="hpgmn-") as place:
        for name, text in known.items():
            (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(place) / name).write_text(text, encoding="utf-8")
        return attempt(cell, Path(place), dataclasses.replace(way, keep=line.ask), graph)


def work_on(
    engine: Engine,
    cells: Sequence[Cell],
    folder: Path,
    *,
    device: str = "cpu",
    tell: Callable[[Outcome], None] = lambda outcome: None,
    report: Callable[[str, Progress], None] = lambda name, progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    lost: Callable[[str], None] = lambda name: None,
) -> list[Outcome]:
    """Do the cells' work; what is asked to stop raises KeyboardInterrupt with all kept.

    Args:
        engine: where tasks run.
        cells: the cells.
        folder: the folder of the reproduction.
        device: "cpu" or "cuda".
        tell: called with the outcome of each cell, in the order in which they end.
        report: called with a cell's name and its progress.
        should_stop: asked all the time.
        lost: called with the name of a cell that is begun again because its machine is lost.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    by_name = {cell.name: cell for cell in cells}
    waiting, graphs = iter(cells), _Graphs()

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        tell(outcome)

    def next_task() -> Task | None:
        for cell in waiting:
            try:
                graph = graphs.of(cell)
            except HPGMNError as error:
                keep(Outcome(cell, reason=str(error)))
                continue
            known = folder if engine.is_local else _known(cell, folder)
            return Task(cell.name, cell_task, (cell, device, known), graph)
        return None

    def told(ended: Ended) -> None:
        outcome = ended.value
        if outcome is None:
            outcome = Outcome(by_name[ended.name], reason=ended.reason, trace=ended.trace)
        elif outcome.record is not None and not engine.is_local:
            write_cell(folder / CELLS_FOLDER, outcome.record)
            tidy(outcome.cell, folder)
        keep(outcome)

    def answer(name: str, message: Any) -> None:
        if isinstance(message, str):
            path = folder / SEARCH_FOLDER / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, message)
        else:
            report(name, message)

    engine.run(
        next_task,
        told,
        answer=answer,
        should_stop=should_stop,
        tries=TRIES,
        lost=lost,
        at_a_time=len(cells),
    )
    return outcomes


class _Graphs:
    """The graph that was asked for last; cells of one graph come one after the other."""

    def __init__(self) -> None:
        self._place: tuple[str, str | None] | None = None
        self._graph: Graph | None = None

    def of(self, cell: Cell) -> Graph:
        """A cell's graph."""
        place = (cell.graph, cell.protocol)
        if self._graph is None or self._place != place:
            self._graph, self._place = load(*place), place
        return self._graph


def _known(cell: Cell, folder: Path) -> dict[str, str]:
    """The files of an earlier record and of a search under way, as far as they can be read."""
    found = {}
    for part in (CELLS_FOLDER, SEARCH_FOLDER):
        path = record_path(folder / part, cell.name)
        try:
            found[f"{part}/{path.name}"] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return found
