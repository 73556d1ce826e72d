"""Two workers against one on independent runs of one thread each."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.engines import ENGINES
from hpgmn.engines.cluster import RayEngine, connected, require_ray
from hpgmn.engines.local import LocalEngine
from hpgmn.graph.files import write_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench.machine import Neighbours
from hpgmn_lab.bench.processes import required
from hpgmn_lab.bench.records import Bar, Record, Table, bars_table, disturbance_of_sides, head
from hpgmn_lab.reproduction.cells import Cell
from hpgmn_lab.reproduction.tasks import work_on

LEAST = 1.7
"""Two workers have to be so many times as fast as one."""
NODES = 2000
MODEL = "gcn"
GRAPH = "texas"
"""The name under which cells find the generated graph."""

ABOUT = f"""\
Independent runs of equal length ({MODEL} on a generated graph of {NODES:,} nodes), one thread each,
as `hpgmn reproduce` does them: by one worker, one run after the other, and by two at a time. Each
measurement is a fresh process. The start of processes counts on both sides, so two workers pay for
three starts and one for one; a Ray cluster is up before the clock starts. The order of both changes
from repeat to repeat, and the ratio is the median of the ratios of repeats."""


def measure(
    *,
    command: str,
    engine: str = "local",
    runs: int = 8,
    epochs: int = 4000,
    repeats: int = 3,
    device: str = "cpu",
    say: Callable[[str], None],
) -> Record:
    """Do the same runs with one worker and with two, in turns.

    Args:
        command: what to type to make the record again.
        engine: "local" or "ray".
        runs: how many, an even number.
        epochs: of each run.
        repeats: how often both are measured.
        device: "cpu" or "cuda".
        say: called with a line of progress.
    """
    if engine not in ENGINES:
        raise SettingError.unknown("engine", engine, ENGINES)
    if runs < 2 or runs % 2:
        raise SettingError(f"--runs must be an even number (got {runs}).")
    for name, value in (("--epochs", epochs), ("--repeats", repeats)):
        if value < 1:
            raise SettingError(f"{name} must be at least 1 (got {value}).")
    if engine == "ray":
        require_ray()
    settings = {"model": MODEL, "nodes": NODES, "epochs": epochs, "patience": 0}
    record = head("workers", command, device, seeds={"graph": 0, "training": 0}, settings=settings)
    record |= {"engine": engine, "runs": runs, "cores": os.cpu_count(), "repeats": []}
    for number in range(repeats):
        found = {}
        for workers in (1, 2) if number % 2 == 0 else (2, 1):
            say(f"repeat {number + 1} of {repeats}: {workers} worker{'s' * (workers > 1)}")
            found[str(workers)] = required(
                "workers",
                threads=1,
                engine=engine,
                workers=workers,
                runs=runs,
                epochs=epochs,
                device=device,
                launched=time.time(),
            )
        record["repeats"].append(found)
    return record


# In the measured process.


def one_side(
    engine: str, workers: int, runs: int, epochs: int, device: str, launched: float
) -> Record:
    """All runs by so many workers; a task of the worker.

    Args:
        engine: "local" or "ray".
        workers: how many.
        runs: how many.
        epochs: of each run.
        device: "cpu" or "cuda".
        launched: when the process was started, in seconds since 1970.
    """
    cells = [
        Cell(GRAPH, MODEL, f"copy-{number}", {"epochs": epochs, "patience": 0})
        for number in range(runs)
    ]
    neighbours = Neighbours(with_offspring=True)
    with tempfile.TemporaryDirectory() as place, _data_in(Path(place)):
        write_graph(trading_network(NODES, seed=0).graph, Path(place) / f"{GRAPH}.npz")
        if engine == "local":
            found = work_on(LocalEngine(workers), cells, Path(place) / "runs", device=device)
            seconds = time.time() - launched
            others = neighbours.cores_taken()
        else:  # one core for each worker, so that each has one thread
            with connected(num_cpus=workers, object_store_memory=150 * 2**20) as ray:
                own = RayEngine(ray, device, workers)
                neighbours, started = Neighbours(with_offspring=True), time.perf_counter()
                found = work_on(own, cells, Path(place) / "runs", device=device)
                seconds = time.perf_counter() - started
                others = neighbours.cores_taken()
    failed = [outcome.reason for outcome in found if outcome.record is None]
    if failed:
        raise HPGMNError(f"A run failed: {failed[0]}")
    return {"seconds": seconds, "cores_taken_by_others": others}


@contextmanager
def _data_in(folder: Path) -> Iterator[None]:
    """Datasets are found in this folder."""
    name = "HPGMN_DATA"
    before = os.environ.get(name)
    os.environ[name] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


# What the record says.


def ratios(record: Mapping[str, Any]) -> list[float]:
    """For each repeat how many times as fast two workers were."""
    return [found["1"]["seconds"] / found["2"]["seconds"] for found in record["repeats"]]


def bars(record: Mapping[str, Any]) -> list[Bar]:
    """What two workers have to reach."""
    value = statistics.median(ratios(record))
    return [Bar("two workers against one", value, LEAST, " ×", at_most=False)]


def tables(record: Mapping[str, Any]) -> list[Table]:
    """The record as tables: the repeats, the bar."""
    rows = [
        [
            str(number),
            *(f"{found[side]['seconds']:.1f}" for side in ("1", "2")),
            f"{ratio:.2f} ×",
        ]
        for number, (found, ratio) in enumerate(
            zip(record["repeats"], ratios(record), strict=True), start=1
        )
    ]
    what = f"{record['runs']} runs, engine {record['engine']}, a machine of {record['cores']} cores"
    columns = ("repeat", "one worker, s", "two workers, s", "ratio")
    return [Table(columns, rows, f"{what}:"), bars_table(bars(record))]


disturbance = disturbance_of_sides
