"""The cost of each kind of work when a graph is sharded, in the measured process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typing_extensions import override

from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.parsing import read_array
from hpgmn.engines import Channel, Engine, Share, TaskResult
from hpgmn.engines.processes import Callbacks
from hpgmn.graph import Array
from hpgmn.shards import shard
from hpgmn.shards.cutting import transition_folder
from hpgmn.shards.files import RowFile
from hpgmn.shards.plan import Plan, Unit
from hpgmn.shards.units import PLAN, compute, record
from hpgmn.statistics.push import largest_of_range
from hpgmn.statistics.settings import StatisticsSettings, base_name
from hpgmn_lab.bench.graphs import large_settings
from hpgmn_lab.bench.process import OtherLoad, peak_bytes
from hpgmn_lab.bench.records import Record

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
"""Every kind of work and its name in tables."""


def kind_of(unit: Unit) -> str | None:
    """Return a unit's key in :data:`KINDS`; None for the first round, which reads no rows.

    >>> kind_of(Unit("rows", 0, "class_means")), kind_of(Unit("round", 0, "diffusion", 1))
    ('class_means', 'round')
    """
    if unit.kind == "round" and unit.step == 0:
        return None
    return base_name(unit.name) if unit.kind == "rows" else unit.kind


class CostEngine(Engine):
    """Run units in this process, one after the other, and add up their ``costs`` by kind."""

    def __init__(self) -> None:
        self.costs: dict[str, Record] = {}
        self._read = 0

    @override
    def run_tasks(self, most: int, calls: Callbacks) -> None:
        while (task := calls.next_task()) is not None:
            folder, unit = task.argument
            line = Channel(Share(), partial(calls.on_message, task.name), calls.should_stop)
            self.add(
                kind_of(unit),
                partial(task.function, task.argument, None, line),
                partial(_written_bytes, Path(folder), unit),
            )
            calls.on_result(TaskResult(task.name))

    @contextmanager
    def counting_reads(self) -> Iterator[None]:
        """Count the bytes of rows that are read."""
        original = RowFile._read

        def read(file: RowFile, *arguments: Any) -> Array:
            rows = original(file, *arguments)
            self._read += rows.nbytes
            return rows

        with patch.object(RowFile, "_read", read):
            yield

    def add(self, kind: str | None, work: Callable[[], Any], written: Callable[[], int]) -> None:
        """Run some work and add its cost; None is a kind that is not counted."""
        read, cpu, started = self._read, time.process_time(), time.perf_counter()
        work()
        spent = {
            "tasks": 1,
            "cpu_seconds": time.process_time() - cpu,
            "seconds": time.perf_counter() - started,
            "bytes_read": self._read - read,
            "bytes_written": written(),
        }
        if kind is not None:
            total = self.costs.setdefault(kind, dict.fromkeys(spent, 0))
            for name, value in spent.items():
                total[name] += value


def _written_bytes(folder: Path, unit: Unit) -> int:
    """Return the size of the files that a unit has written."""
    result = record(folder, Plan.read(folder / PLAN), unit)
    assert result is not None
    return sum(file["bytes"] for file in result["files"].values())


def measure_statistics(
    path: str,
    folder: str,
    settings: dict[str, Any],
    ranges: int,
    memory: int,
    thresholds: Sequence[float],
    sample: int,
) -> Record:
    """Shard a graph and measure every kind of work.

    Args:
        path: the graph folder; its labels are the labels of neighbours.
        memory: bytes of a unit.
        sample: rows of top-k diffusion at the first threshold; a tenth at further ones, which
            take about ten times as long.
    """
    shards, engine = Path(folder), CostEngine()
    labels = read_array(Path(path) / "y.npy")
    reset_peak_memory("cpu")
    level, load = peak_bytes(), OtherLoad()
    with engine.counting_reads():
        done = shard(
            path,
            shards,
            labels,
            large_settings(settings),
            ranges=ranges,
            memory=memory,
            engine=engine,
            keep=True,
        )
        peak = peak_bytes()
        plan = Plan.read(shards / PLAN)
        units = [unit for stage in plan.stages() for unit in stage.units]
        [mode] = {unit.name for unit in units if unit.kind == "transition"}
        files: Record = {}
        engine.add(
            "join",
            lambda: files.update(compute(shards, plan, Unit("join", 0, mode))),
            lambda: sum(file["bytes"] for file in files.values()),
        )
    return {
        "nodes": plan.num_nodes,
        "edges": plan.num_edges,
        "attributes": plan.num_features,
        "classes": plan.num_classes,
        "rounds": len(plan.theta),
        "costs": engine.costs,
        "topk": _topk_costs(shards, plan, mode, thresholds, sample),
        "statistics": done.shards.statistics,
        "peak_bytes": peak,
        "level_bytes": level,
        "cores_taken_by_others": load.cores(),
    }


def _topk_costs(
    shards: Path, plan: Plan, mode: str, thresholds: Sequence[float], sample: int
) -> list[Record]:
    """Measure top-k diffusion of some rows in the middle, with the default teleport."""
    folder = transition_folder(shards, mode)
    indptr, indices, data = (
        read_array(folder / f"{name}.npy", mapped="r") for name in ("indptr", "indices", "data")
    )
    defaults = StatisticsSettings(diffusion_self_entry=True)
    middle = plan.num_nodes // 2

    def push(count: int, threshold: float) -> None:
        chosen = replace(defaults, diffusion_threshold=threshold)
        largest_of_range((indptr, indices, data), (middle, middle + count), chosen, threads=1)

    push(1, thresholds[0])  # compiles
    results = []
    for number, threshold in enumerate(thresholds):
        count = max(1, min(plan.num_nodes - middle, sample // 10 ** min(number, 1)))
        cpu, started = time.process_time(), time.perf_counter()
        push(count, threshold)
        results.append(
            {
                "threshold": threshold,
                "rows": count,
                "entries": defaults.diffusion_topk,
                "teleport": defaults.teleport,
                "cpu_seconds": time.process_time() - cpu,
                "seconds": time.perf_counter() - started,
            }
        )
    return results
