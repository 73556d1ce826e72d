"""The service under load: latency, errors and memory, and predictions after additions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

import hpgmn
from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.runs.run import Run
from hpgmn.service.journal import JOURNAL_FILE
from hpgmn_lab.bench.options import Epochs, Nodes, Seed
from hpgmn_lab.bench.process import OtherLoad, environment, say
from hpgmn_lab.bench.records import Bar, Call, Record, Table, bars_table, new_record

KNOWN_MS, NEW_MS, GROWTH_MB, DIFFERENCE = 20.0, 60.0, 50.0, 1e-5
"""The bars: the 99th percentiles of known and new nodes, memory, predictions after additions."""
MEMBERS = ("hpgmn-both", "hpgmn-out-light")
"""The members of the ensemble; each reads the neighbourhood of a node."""
_LOADS = ("known", "new", "both")
_START_SECONDS, _CHUNK, _NEW_EDGES, _ATTRIBUTES = 120.0, 1000, 10, 6

Body = dict[str, Any]


def measure(
    call: Call,
    nodes: Nodes = 100_000,
    edges: Annotated[int, Option(min=1, help="Edges of the generated graph.")] = 1_000_000,
    epochs: Epochs = 5,
    seconds: Annotated[float, Option(help="Length of each load.")] = 60.0,
    known_rate: Annotated[float, Option(help="Requests per second for a known node.")] = 100.0,
    new_rate: Annotated[float, Option(help="Requests per second for a new node.")] = 20.0,
    added: Annotated[int, Option(min=1, help="Edges added one by one.")] = 10_000,
    ensemble: Annotated[bool, Option(help="Measure an ensemble, too.")] = True,
    seed: Seed = 0,
) -> Record:
    """Measure hpgmn serve on this machine: latency at fixed rates, memory, and equal results."""
    settings = {"epochs": epochs, "estimator_epochs": epochs, "patience": 0}
    record = new_record("serve", call, seeds={"graph": seed, "training": 0}, settings=settings)
    graph = generate_graph(nodes, edges, seed)
    rates = {"known": known_rate, "new": new_rate}
    record |= {"nodes": nodes, "edges": edges, "seconds": seconds, "rates": rates, "runs": {}}
    kinds: dict[str, Body] = {"single": {"model": "hpgmn"}}
    if ensemble:
        kinds["ensemble"] = {"ensemble": True, "members": list(MEMBERS)}
    for name, options in kinds.items():
        say(f"{name}: training")
        folder = call.out / name
        for journal in folder.glob(f"{JOURNAL_FILE}*"):  # of an earlier measurement
            journal.unlink()
        run = hpgmn.train(
            graph,
            out=folder,
            settings=settings,
            splits=[0],
            report=False,
            overwrite=True,
            **options,
        )
        record["runs"][name] = _measure_run(run, graph, seconds, rates, added, seed)
    return record


def generate_graph(nodes: int, edges: int, seed: int) -> Graph:
    """Make a graph of tables: numbers and a category, two classes, 60 % of them known."""
    random = np.random.default_rng(seed)
    y = random.integers(2, size=nodes)
    x = random.normal(size=(nodes, _ATTRIBUTES)) + 0.3 * y[:, None]
    is_known = random.random(nodes) < 0.6
    labels = [
        ("no", "yes")[label] if known else None for label, known in zip(y, is_known, strict=True)
    ]
    table: dict[str, Any] = {"id": [_name(number) for number in range(nodes)]}
    table |= {f"x{number}": x[:, number] for number in range(_ATTRIBUTES)}
    table |= {"kind": random.choice(["a", "b", "c"], nodes).tolist(), "label": labels}
    ends = random.integers(nodes, size=(2, edges))
    names = (list(map(_name, part.tolist())) for part in ends)
    return hpgmn.from_tables(table, dict(zip(("source", "target"), names, strict=True)))


def _name(number: int) -> str:
    return f"n{number}"


def _measure_run(
    run: Run, graph: Graph, seconds: float, rates: Mapping[str, float], added: int, seed: int
) -> Record:
    """Load a service of the run, add edges one by one, and compare its predictions."""
    import psutil

    random = np.random.default_rng(seed + 1)
    other = OtherLoad(with_children=True)
    with started(run.folder) as (url, process):
        makers = {kind: _requests(kind, graph.num_nodes, random) for kind in rates}
        asyncio.run(_load(url, dict.fromkeys(rates, 5.0), makers, 2.0))  # warm-up
        memory = psutil.Process(process.pid)
        before = memory.memory_info().rss
        loads = {}
        for name in _LOADS:
            say(f"{run.folder.name}: load '{name}', {seconds:.0f} s")
            chosen = rates if name == "both" else {name: rates[name]}
            loads[name] = asyncio.run(_load(url, chosen, makers, seconds))
        growth = memory.memory_info().rss - before
        say(f"{run.folder.name}: adding {added:,} edges one by one")
        ends = random.integers(graph.num_nodes, size=(added, 2)).tolist()
        rows = [{"source": _name(source), "target": _name(target)} for source, target in ends]
        began = time.perf_counter()
        found = asyncio.run(_add_and_predict(url, rows, list(map(_name, range(graph.num_nodes)))))
        return {
            "loads": loads,
            "growth_bytes": growth,
            "memory_bytes": before,
            "added": added,
            "seconds_of_additions": found["seconds"],
            "seconds_until_compared": time.perf_counter() - began,
            "difference": _difference(run, graph, rows, found["probabilities"]),
            "cores_taken_by_others": other.cores(),
        }


def _requests(kind: str, num_nodes: int, random: np.random.Generator) -> Callable[[], Body]:
    """Return a function that draws the body of a request."""

    def known() -> Body:
        return {"ids": [_name(int(random.integers(num_nodes)))]}

    def new() -> Body:
        node = {f"x{number}": float(random.normal()) for number in range(_ATTRIBUTES)}
        ends = random.integers(num_nodes, size=_NEW_EDGES).tolist()
        return {
            "nodes": [{"id": "new", "kind": "b"} | node],
            "edges": [{"source": "new", "target": _name(end)} for end in ends],
        }

    return known if kind == "known" else new


@contextlib.contextmanager
def started(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve a run on a free port until the end of the block; gives address and process."""
    import httpx

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "hpgmn", "serve", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)  # nosec B603
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _START_SECONDS
    try:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise HPGMNError("The service did not start.", "See its output above")
            time.sleep(0.1)
        yield url, process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _load(
    url: str, rates: Mapping[str, float], makers: Mapping[str, Callable[[], Body]], seconds: float
) -> Record:
    """Send requests at fixed rates; latency counts from the time at which each was due."""
    import httpx

    latencies: dict[str, list[float]] = {kind: [] for kind in rates}
    errors: dict[str, int] = dict.fromkeys(rates, 0)

    async def send(client: httpx.AsyncClient, kind: str, due: float) -> None:
        try:
            answer = await client.post(f"{url}/predict", json=makers[kind]())
            is_right = answer.status_code == 200 and len(answer.json()["predictions"]) == 1
        except httpx.HTTPError:
            is_right = False
        errors[kind] += not is_right
        latencies[kind].append(time.perf_counter() - due)

    due = sorted(
        (number / rate, kind)
        for kind, rate in rates.items()
        for number in range(max(1, int(seconds * rate)))
    )
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(timeout=30, limits=limits) as client, asyncio.TaskGroup() as tasks:
        began = time.perf_counter()
        for offset, kind in due:
            await asyncio.sleep(max(0.0, began + offset - time.perf_counter()))
            tasks.create_task(send(client, kind, began + offset))
    return {
        kind: {
            "requests": len(values),
            "errors": errors[kind],
            **{f"p{rank}_ms": 1e3 * float(np.percentile(values, rank)) for rank in (50, 99)},
            "max_ms": 1e3 * max(values),
        }
        for kind, values in latencies.items()
    }


async def _add_and_predict(url: str, rows: Sequence[Body], ids: Sequence[str]) -> Record:
    """Add edges one by one; return the probabilities of all nodes then."""
    import httpx

    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        began = time.perf_counter()
        for row in rows:
            (await client.post("/edges", json={"edges": [row]})).raise_for_status()
        seconds = time.perf_counter() - began
        found: list[list[float]] = []
        for first in range(0, len(ids), _CHUNK):
            answer = await client.post("/predict", json={"ids": ids[first : first + _CHUNK]})
            answer.raise_for_status()
            predictions = answer.json()["predictions"]
            found += [list(row["probabilities"].values()) for row in predictions]
    return {"seconds": seconds, "probabilities": found}


def _difference(run: Run, graph: Graph, rows: Sequence[Body], found: Sequence[Any]) -> float:
    """Return the largest difference from the model on the graph built at once."""
    nobody: dict[str, list[Any]] = {name: [] for name in ("id", "kind")}
    nobody |= {f"x{number}": [] for number in range(_ATTRIBUTES)}
    table = {end: [row[end] for row in rows] for end in ("source", "target")}
    whole = hpgmn.from_tables(nobody, table, onto=graph)
    expected = run.models_of()[1].mean_probabilities(whole).numpy()
    return float(np.abs(np.asarray(found) - expected).max())


# Read the record.


def bars(record: Mapping[str, Any]) -> list[Bar]:
    """Return the bars of the single run; an ensemble's latency is stated only."""
    results = []
    for name, run in record["runs"].items():
        loads = run["loads"]
        if name == "single":
            rates = record["rates"]
            for kind, limit in (("known", KNOWN_MS), ("new", NEW_MS)):
                what = f"{kind} node at {rates[kind]:g} requests/s, 99th percentile"
                results.append(Bar(what, loads[kind][kind]["p99_ms"], limit, " ms"))
            growth = run["growth_bytes"] / 1e6
            results.append(Bar("memory growth under load", growth, GROWTH_MB, " MB"))
        failed = sum(part["errors"] for load in loads.values() for part in load.values())
        results.append(Bar(f"{name}: errors", float(failed), 0.0))
        what = f"{name}: largest difference after {run['added']:,} added edges, in 1e-5"
        results.append(Bar(what, run["difference"] / DIFFERENCE, 1.0))
    return results


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the latencies of each run and load, and the bars."""
    rows = []
    for name, run in record["runs"].items():
        for load, parts in run["loads"].items():
            for kind, part in parts.items():
                times = (f"{part[f'{rank}_ms']:.1f}" for rank in ("p50", "p99", "max"))
                requests, errors = f"{part['requests']:,}", f"{part['errors']:,}"
                at_once = "yes" if load == "both" else "no"
                rows.append([name, kind, at_once, requests, errors, *times])
        per_edge = 1e3 * run["seconds_of_additions"] / run["added"]
        rows.append(
            [name, "added edge", "no", f"{run['added']:,}", "0", f"{per_edge:.1f}", "–", "–"]
        )
    columns = (
        "run",
        "request",
        "with the other",
        "requests",
        "errors",
        "p50 ms",
        "p99 ms",
        "max ms",
    )
    sizes = f"{record['nodes']:,} nodes, {record['edges']:,} edges, {record['seconds']:g} s each:"
    return [Table(columns, rows, sizes), bars_table(bars(record))]
