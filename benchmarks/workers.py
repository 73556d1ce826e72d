"""How much faster two workers are than one on independent runs of one thread each.

Run it on a machine with two idle cores: ``python benchmarks/workers.py [--engine ray]``. The start
of worker processes counts, that of Ray does not.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hpgmn.datasets import trading_network, write_graph
from hpgmn.engines.cluster import RayEngine, connected
from hpgmn.engines.local import LocalEngine
from hpgmn.experiments.reproduction.cells import Cell
from hpgmn.experiments.reproduction.tasks import work_on

CELLS = 8
WANTED = 1.7


def cells(epochs: int) -> list[Cell]:
    """Independent runs of equal length."""
    settings = {"epochs": epochs, "patience": 0}
    return [Cell("texas", "gcn", f"copy-{number}", settings) for number in range(CELLS)]


def seconds(engine: str, workers: int, epochs: int) -> float:
    """How long all cells take, the start of processes included."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        if engine == "local":
            found = work_on(LocalEngine(workers), cells(epochs), Path(folder))
        else:
            with connected(num_cpus=workers, object_store_memory=150 * 2**20) as ray:
                started = time.perf_counter()
                found = work_on(RayEngine(ray, workers=workers), cells(epochs), Path(folder))
        assert all(one.record is not None for one in found), found
        return time.perf_counter() - started


def main() -> None:
    """Print the times and the factor as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="local", choices=["local", "ray"])
    parser.add_argument("--epochs", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        write_graph(trading_network(num_nodes=2000, seed=0).graph, Path(data) / "texas.npz")
        os.environ["HPGMN_DATA"] = data
        one, two = (seconds(asked.engine, workers, asked.epochs) for workers in (1, 2))
    about = {"engine": asked.engine, "cells": CELLS, "load": os.getloadavg()[0]}
    print(json.dumps(about | {"one": one, "two": two, "factor": one / two, "wanted": WANTED}))


if __name__ == "__main__":
    main()
