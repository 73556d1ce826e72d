"""What each kind of work costs when a graph is cut into node ranges, in the measured process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.parsing import read_array
from hpgmn.engines import Ended, Share, Task
from hpgmn.engines.local import HereLine
from hpgmn.shards import shard
from hpgmn.shards.cutting import transition_folder
from hpgmn.shards.plan import Plan, Unit
from hpgmn.shards.units import PLAN, compute, record
from hpgmn.statistics.push import largest_of_range
from hpgmn.statistics.settings import StatisticsSettings, base_name
from hpgmn_lab.bench.machine import Neighbours, peak_bytes
from hpgmn_lab.bench.records import Record
from hpgmn_lab.bench.settings import large

KINDS = {
    "out": "edges by source",
    "in": "edges by target",
    "nodes": "labels and splits",
    "attributes": "attributes",
    "class_counts": "class counts",
    "class_means": "class means",
    "transition": "transition matrix",
    "round": "one round of the sketch",
    "join": "transition matrix joined",
}
"""Every kind of work and what it is called."""


def kind_of(unit: Unit) -> str | None:
    """A unit's place in :data:`KINDS`; None for the first round, which reads no rows.

    >>> kind_of(Unit("rows", 0, "class_means")), kind_of(Unit("round", 0, "diffusion", 1))
    ('class_means', 'round')
    """
    if unit.kind == "round" and unit.step == 0:
        return None
    return base_name(unit.name) if unit.kind == "rows" else unit.kind


class Ledger:
    """What units have cost, kind by kind.

    Attributes:
        costs: for each kind its tasks, CPU seconds, seconds, and bytes read and written.
    """

    def __init__(self) -> None:
        self.costs: dict[str, Record] = {}
        self._read = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """What is read by ``pread`` is counted; sharding reads in no other way."""
        real = os.preadv

        def preadv(*arguments: Any) -> int:
            count = real(*arguments)
            self._read += count
            return count

        os.preadv = preadv
        try:
            yield
        finally:
            os.preadv = real

    def timed(self, kind: str | None, work: Callable[[], Any], written: Callable[[], int]) -> None:
        """Do some work and note what it took.

        Args:
            kind: its kind; None: it is done and not noted.
            work: the work.
            written: called afterwards, says how many bytes it has written.
        """
        before = self._read
        cpu, started = time.process_time(), time.perf_counter()
        work()
        spent = {
            "tasks": 1,
            "cpu_seconds": time.process_time() - cpu,
            "seconds": time.perf_counter() - started,
            "bytes_read": self._read - before,
            "bytes_written": written(),
        }
        if kind is not None:
            known = self.costs.setdefault(kind, dict.fromkeys(spent, 0))
            for name, value in spent.items():
                known[name] += value


class TimedEngine:
    """Runs units in this process, one after the other, and notes what each kind costs.

    Args:
        ledger: where costs are noted.
    """

    workers = 1
    is_local = True

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def run(
        self,
        next_task: Callable[[], Task | None],
        told: Callable[[Ended], None],
        *,
        answer: Callable[[str, Any], Any] = lambda name, message: None,
        should_stop: Callable[[], bool] = lambda: False,
        tries: int = 1,
        lost: Callable[[str], None] = lambda name: None,
        at_a_time: int | None = None,
    ) -> None:
        """Run units until there are no more; see :class:`hpgmn.engines.Engine`."""
        while (task := next_task()) is not None:
            place, unit = task.argument
            line = HereLine(Share(), partial(answer, task.name), should_stop)
            self._ledger.timed(
                kind_of(unit),
                partial(task.function, task.argument, None, line),
                partial(_written, Path(place), unit),
            )
            told(Ended(task.name))


def _written(folder: Path, unit: Unit) -> int:
    """The bytes of the files that a unit has left."""
    said = record(folder, Plan.read(folder / PLAN), unit)
    assert said is not None
    return sum(about["bytes"] for about in said["files"].values())


def one_cut(
    path: str,
    folder: str,
    settings: dict[str, Any],
    ranges: int,
    memory: int,
    thresholds: Sequence[float],
    sample: int,
) -> Record:
    """Cut a graph into ranges, every kind of work timed; a task of the worker.

    Args:
        path: the graph folder; neighbours are counted by its labels.
        folder: where the shards go.
        settings: all of HP-GMN's settings.
        ranges: R.
        memory: bytes that a unit holds.
        thresholds: of top-k diffusion.
        sample: how many rows top-k diffusion is computed of, at the first threshold; a tenth of
            it at each further one, which takes about ten times as long.
    """
    place, ledger = Path(folder), Ledger()
    labels = read_array(Path(path) / "y.npy")
    reset_peak_memory("cpu")
    level, neighbours = peak_bytes(), Neighbours()
    with ledger.counting():
        done = shard(
            path,
            place,
            labels,
            large(settings),
            ranges=ranges,
            memory=memory,
            engine=TimedEngine(ledger),
            keep=True,
        )
        peak = peak_bytes()
        plan = Plan.read(place / PLAN)
        [mode] = {unit.name for stage in plan.stages() for unit in stage.units
                  if unit.kind == "transition"}  # fmt: skip
        files: Record = {}
        ledger.timed(
            "join",
            lambda: files.update(compute(place, plan, Unit("join", 0, mode))),
            lambda: sum(about["bytes"] for about in files.values()),
        )
    return {
        "nodes": plan.num_nodes,
        "edges": plan.num_edges,
        "attributes": plan.num_features,
        "classes": plan.num_classes,
        "rounds": len(plan.theta),
        "costs": ledger.costs,
        "topk": _topk(place, plan, mode, thresholds, sample),
        "statistics": done.shards.statistics,
        "peak_bytes": peak,
        "level_bytes": level,
        "cores_taken_by_others": neighbours.cores_taken(),
    }


def _topk(
    folder: Path, plan: Plan, mode: str, thresholds: Sequence[float], sample: int
) -> list[Record]:
    """The cost of top-k diffusion, of some rows in the middle; its teleport is the default."""
    place = transition_folder(folder, mode)
    indptr, indices, data = (
        read_array(place / f"{name}.npy", mapped="r") for name in ("indptr", "indices", "data")
    )
    usual = StatisticsSettings()

    def rows(first: int, count: int, threshold: float) -> None:
        largest_of_range(
            (indptr, indices, data),
            (first, first + count),
            usual.diffusion,
            count=usual.diffusion_topk,
            threshold=threshold,
            threads=1,
            teleport=usual.teleport,
        )

    middle = plan.num_nodes // 2
    rows(middle, 1, thresholds[0])  # compiles
    found = []
    for number, threshold in enumerate(thresholds):
        count = max(1, min(plan.num_nodes - middle, sample // 10 ** min(number, 1)))
        cpu, started = time.process_time(), time.perf_counter()
        rows(middle, count, threshold)
        found.append(
            {
                "threshold": threshold,
                "rows": count,
                "entries": usual.diffusion_topk,
                "teleport": usual.teleport,
                "cpu_seconds": time.process_time() - cpu,
                "seconds": time.perf_counter() - started,
            }
        )
    return found
