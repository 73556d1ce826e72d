"""Two workers against one on independent runs of one thread each."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.engines import ENGINES
from hpgmn.engines.processes import LocalEngine
from hpgmn.engines.ray import RayEngine, connect_ray, require_ray
from hpgmn.graph.files import write_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench.options import Repeats
from hpgmn_lab.bench.process import OtherLoad, run_task, say, seconds_since_start
from hpgmn_lab.bench.records import Bar, Call, Record, Table, bars_table, new_record
from hpgmn_lab.reproduction.cells import Cell
from hpgmn_lab.reproduction.tasks import work_on

MIN_SPEED_UP = 1.7
"""The bar: how many times as fast as one worker two have to be."""
NODES = 2000
MODEL = "gcn"
GRAPH = "texas"
"""The name under which cells load the generated graph."""


def alternate(
    repeats: int, sides: Sequence[str], run: Callable[[str], Record]
) -> list[dict[str, Record]]:
    """Run each side once per repeat, in alternating order."""
    results = []
    for number in range(repeats):
        result = {}
        for side in sides if number % 2 == 0 else sides[::-1]:
            say(f"repeat {number + 1} of {repeats}: {side}")
            result[side] = run(side)
        results.append(result)
    return results


def measure(
    call: Call,
    engine: Annotated[
        str, Option(help="local: processes; ray: a Ray cluster on this machine.")
    ] = "local",
    runs: Annotated[int, Option(min=2, help="Independent runs, an even number.")] = 8,
    epochs: Annotated[int, Option(min=1, help="Epochs of each run.")] = 4000,
    repeats: Repeats = 3,
) -> Record:
    """Compare two workers with one on independent runs of one thread; needs two idle cores."""
    if engine not in ENGINES:
        raise SettingError.unknown("engine", engine, ENGINES)
    if runs % 2:
        raise SettingError(f"--runs must be an even number (got {runs}).")
    if engine == "ray":
        require_ray()
    settings = {"model": MODEL, "nodes": NODES, "epochs": epochs, "patience": 0}
    record = new_record("workers", call, seeds={"graph": 0, "training": 0}, settings=settings)
    record |= {"engine": engine, "runs": runs, "cores": os.cpu_count()}

    def run(workers: str) -> Record:
        return run_task(
            "workers",
            threads=1,
            engine=engine,
            workers=int(workers),
            runs=runs,
            epochs=epochs,
            device=call.device,
        )

    return record | {"repeats": alternate(repeats, ("1", "2"), run)}


def run_cells(engine: str, workers: int, runs: int, epochs: int, device: str) -> Record:
    """Train all runs with so many workers; in the measured process."""
    changes = {"epochs": epochs, "patience": 0}
    cells = [Cell(GRAPH, MODEL, f"copy-{number}", changes) for number in range(runs)]
    load = OtherLoad(with_children=True)
    with tempfile.TemporaryDirectory() as name:
        folder, os.environ["HPGMN_DATA"] = Path(name), name  # of this process only
        write_graph(trading_network(NODES, seed=0).graph, folder / f"{GRAPH}.npz")
        if engine == "local":
            outcomes = work_on(LocalEngine(workers), cells, folder / "runs", device=device)
            seconds, others = seconds_since_start(), load.cores()
        else:  # one core for each worker, so that each has one thread
            with connect_ray(num_cpus=workers, object_store_memory=150 * 2**20) as ray:
                ray_engine = RayEngine(ray, device, workers)
                load, started = OtherLoad(with_children=True), time.perf_counter()
                outcomes = work_on(ray_engine, cells, folder / "runs", device=device)
                seconds, others = time.perf_counter() - started, load.cores()
    failures = [outcome.reason for outcome in outcomes if outcome.record is None]
    if failures:
        raise HPGMNError(f"A run failed: {failures[0]}")
    return {"seconds": seconds, "cores_taken_by_others": others}


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the repeats and the bar."""
    rows, ratios = [], []
    for number, result in enumerate(record["repeats"], start=1):
        one, two = (result[side]["seconds"] for side in ("1", "2"))
        ratios.append(one / two)
        rows.append([str(number), f"{one:.1f}", f"{two:.1f}", f"{ratios[-1]:.2f} ×"])
    title = f"{record['runs']} runs, engine {record['engine']}, {record['cores']} cores:"
    columns = ("repeat", "one worker, s", "two workers, s", "ratio")
    speed_up = statistics.median(ratios)
    bar = Bar("two workers against one", speed_up, MIN_SPEED_UP, " ×", at_most=False)
    return [Table(columns, rows, title), bars_table([bar])]
