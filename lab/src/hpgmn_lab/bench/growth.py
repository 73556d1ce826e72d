"""The cost of each stage as the graph grows: seconds and memory per edge, from size to size."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpgmn.base.errors import SettingError
from hpgmn.base.machine import reset_peak_memory
from hpgmn.base.settings import settings_dict
from hpgmn.evaluation.scores import scores
from hpgmn.graph.files import read_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench.clock import Lines, StageClock, fit_once
from hpgmn_lab.bench.graphs import GraphSpec, check_spec, generated
from hpgmn_lab.bench.machine import Neighbours, device_peak_bytes, peak_bytes
from hpgmn_lab.bench.processes import ProcessFailed, measured
from hpgmn_lab.bench.records import Bar, Record, Table, bars_table, head
from hpgmn_lab.bench.settings import large

STAGES = ("open", "estimator", "statistics", "training", "prediction")
"""What a run consists of, in order."""

MOST_PER_EDGE = 1.5
"""The whole run at the largest size may cost so many times more per edge than at the one before."""
MILLION_SECONDS, MILLION_GIB = 600.0, 6.0
"""The most for 1,000,000 nodes on a CPU."""
CUDA_SECONDS = 60.0
"""The most for any size on a GPU."""

GIB = 2**30

ABOUT = """\
HP-GMN with the settings for large graphs (`hpgmn_lab.bench.settings`) on generated graphs of rising
size, half of whose nodes train. Every run is a fresh process that opens a graph folder; imports and
the compiling of kernels are counted apart as start-up. *Open* reads the graph and merges its edges,
*estimator* trains the network that guesses labels, *statistics* computes class counts and class
means of every node in both directions, *training* is in batches of rows, *prediction* is of all
nodes. Memory per edge is that above the level after start-up."""


def measure(
    sizes: Sequence[int],
    out: Path,
    *,
    command: str,
    graph: GraphSpec,
    changes: Mapping[str, Any],
    repeats: int = 1,
    graphs: Path | None = None,
    device: str = "cpu",
    say: Callable[[str], None],
) -> Record:
    """Train HP-GMN on generated graphs of several sizes, every run in a fresh process.

    Args:
        sizes: numbers of nodes, rising.
        out: the folder of the benchmark.
        command: what to type to make the record again.
        graph: what the graphs have in common.
        changes: settings other than those of :data:`hpgmn_lab.bench.settings.LARGE`.
        repeats: runs of each size; the one of median time is shown.
        graphs: where the generated graphs are kept; None for a folder inside ``out``.
        device: "cpu" or "cuda".
        say: called with a line of progress.
    """
    specs = [replace(graph, nodes=size) for size in sizes]
    if list(sizes) != sorted(set(sizes)) or not sizes:
        raise SettingError(f"--nodes takes rising sizes (got {','.join(map(str, sizes))}).")
    if repeats < 1:
        raise SettingError(f"--repeats must be at least 1 (got {repeats}).")
    for spec in specs:
        check_spec(spec)
    settings = settings_dict(large(changes))
    record = head(
        "growth",
        command,
        device,
        seeds={"graph": graph.seed, "training": graph.seed},
        settings=settings,
    )
    record |= {"graph": asdict(graph) | {"nodes": list(sizes)}, "repeats": repeats, "sizes": []}
    for spec in specs:
        say(f"{spec.nodes:,} nodes: the graph")
        try:
            made = generated(spec, graphs or out / "graphs")
            runs = []
            for number in range(1, repeats + 1):
                say(f"{spec.nodes:,} nodes: run {number} of {repeats}")
                runs.append(
                    measured(
                        "growth",
                        path=made["path"],
                        settings=settings,
                        seed=graph.seed,
                        device=device,
                        launched=time.time(),
                    )
                )
        except ProcessFailed as error:  # what is larger would fail, too
            if spec is specs[0]:
                raise
            say(f"{spec.nodes:,} nodes: {error}")
            record["sizes"].append({"nodes": spec.nodes, "failed": str(error)})
            break
        record["sizes"].append(_summary(spec, made, runs))
    return record


def _summary(spec: GraphSpec, made: Record, runs: list[Record]) -> Record:
    """The run of median time, and the times of all."""
    runs = sorted(runs, key=total)
    return {
        "nodes": spec.nodes,
        "best_accuracy": made["best_accuracy"],
        "seconds_of_graph": made["seconds"],
        **runs[(len(runs) - 1) // 2],
        "seconds_of_runs": [total(run) for run in runs],
    }


def total(run: Mapping[str, Any]) -> float:
    """Seconds of the whole run, without its start-up."""
    return float(sum(run["seconds"].values()))


# In the measured process.


def one_run(path: str, settings: dict[str, Any], seed: int, device: str, launched: float) -> Record:
    """From the graph folder to the predictions of all nodes, stage by stage; a task of the worker.

    Args:
        path: the graph folder.
        settings: all of HP-GMN's settings.
        seed: of the training.
        device: "cpu" or "cuda".
        launched: when the process was started, in seconds since 1970.
    """
    warm_up(settings, device)
    startup = time.time() - launched
    reset_peak_memory(device)
    level, neighbours = peak_bytes(), Neighbours()
    started = time.perf_counter()
    graph = read_graph(path)
    edges = graph.num_edges  # merges the edges into the adjacency
    seconds, peaks = {"open": time.perf_counter() - started}, {"open": peak_bytes()}
    clock = StageClock(Lines(f"{graph.num_nodes:,} nodes"))
    fitted = fit_once(graph, "hpgmn", large(settings), seed=seed, device=device, report=clock)
    ended = time.perf_counter()
    seconds |= {
        "estimator": clock.seconds("estimator"),
        "statistics": clock.prepared["main"],
        "training": sum(clock.epochs["main"]),
        "prediction": ended - clock.last,
    }
    peaks |= {
        "estimator": clock.peaks["estimator"],
        "training": clock.peaks["main"],
        "prediction": peak_bytes(),
    }
    return {
        "edges": edges,
        "train_nodes": int(graph.split(0).train.sum()),
        "startup_seconds": startup,
        "seconds": seconds,
        "peak_bytes_after": peaks,
        "peak_bytes": peak_bytes(),
        "level_bytes": level,
        "device_peak_bytes": device_peak_bytes(device),
        "cores_taken_by_others": neighbours.cores_taken(),
        "val_accuracy": float(fitted.val_score[0]),
        "test_accuracy": scores(fitted.logits, graph.y, [graph.split(0).test], "accuracy")[0],
    }


def warm_up(settings: Mapping[str, Any], device: str) -> None:
    """One epoch on a tiny graph: compiles kernels, starts threads and the device."""
    graph = trading_network(200, num_features=4).graph
    few = dict(settings) | {"epochs": 1, "estimator_epochs": 1}
    fit_once(graph, "hpgmn", large(few), seed=0, device=device)


# What the record says.


def finished(record: Mapping[str, Any]) -> list[Record]:
    """The sizes that were measured."""
    return [size for size in record["sizes"] if "failed" not in size]


def per_edge(size: Mapping[str, Any], stage: str | None = None) -> float:
    """Microseconds per edge, of a stage or of the whole run."""
    seconds = total(size) if stage is None else size["seconds"][stage]
    return float(1e6 * seconds / size["edges"])


def own_bytes(size: Mapping[str, Any]) -> int:
    """Peak memory above what the process took after its start-up; at least a page."""
    return max(int(size["peak_bytes"] - size["level_bytes"]), 4096)


def bars(record: Mapping[str, Any]) -> list[Bar]:
    """What growth has to reach."""
    sizes, missing = finished(record), "needs two sizes"
    if len(sizes) < len(record["sizes"]):
        missing = record["sizes"][-1]["failed"]
    pair = sizes[-2:] if len(sizes) == len(record["sizes"]) and len(sizes) > 1 else None
    found = [
        Bar(
            "whole run per edge, against the size before",
            per_edge(pair[1]) / per_edge(pair[0]) if pair else None,
            MOST_PER_EDGE,
            " ×",
            why_missing=missing,
        ),
        Bar(
            "memory per edge, against the size before",
            _memory_ratio(pair, own_bytes) if pair else None,
            1.0,
            " ×",
            why_missing=missing,
        ),
    ]
    if record["device_kind"] == "cuda":
        if pair:
            ratio = _memory_ratio(pair, lambda size: int(size["device_peak_bytes"]))
            found.append(Bar("GPU memory per edge, against the size before", ratio, 1.0, " ×"))
        largest = total(sizes[-1]) if sizes else None
        found.append(Bar("whole run on a GPU", largest, CUDA_SECONDS, " s", why_missing=missing))
        return found
    for size in record["sizes"]:
        if size["nodes"] == 1_000_000:
            failed = size.get("failed", "")
            seconds = None if failed else total(size)
            memory = None if failed else size["peak_bytes"] / GIB
            words = {"why_missing": failed}
            found += [
                Bar("1,000,000 nodes, whole run", seconds, MILLION_SECONDS, " s", **words),
                Bar("1,000,000 nodes, peak memory", memory, MILLION_GIB, " GiB", **words),
            ]
    return found


def _memory_ratio(pair: Sequence[Record], memory: Callable[[Record], int]) -> float:
    before, after = (memory(size) / size["edges"] for size in pair)
    return float(after / before)


def tables(record: Mapping[str, Any]) -> list[Table]:
    """The record as tables: the runs, the costs per edge and their ratios, the bars."""
    sizes = finished(record)
    pairs = list(itertools.pairwise(sizes))
    costs: dict[str, Callable[[Record], float]] = {
        f"{stage}, µs": partial(per_edge, stage=stage) for stage in STAGES
    }
    costs |= {
        "whole run, µs": per_edge,
        "memory, bytes": lambda size: own_bytes(size) / size["edges"],
    }
    ratios = [
        [
            name,
            *(_short(cost(size)) for size in sizes),
            *(f"{cost(after) / cost(before):.2f} ×" for before, after in pairs),
        ]
        for name, cost in costs.items()
    ]
    named = [f"{size['nodes']:,}" for size in sizes]
    return [
        _runs_table(record),
        Table(
            (
                "per edge",
                *named,
                *(f"{after} : {before}" for before, after in itertools.pairwise(named)),
            ),
            ratios,
        ),
        bars_table(bars(record)),
    ]


def _runs_table(record: Mapping[str, Any]) -> Table:
    """A column for each size; one that failed says why."""
    lines: dict[str, Callable[[Record], str]] = {"edges": lambda size: f"{size['edges']:,}"}
    for stage in STAGES:
        lines[f"{stage}, s"] = partial(_stage_seconds, stage=stage)
    lines["whole run, s"] = lambda size: f"{total(size):.1f}"
    lines["peak memory, GiB"] = lambda size: f"{size['peak_bytes'] / GIB:.2f}"
    if record["device_kind"] == "cuda":
        lines["GPU memory, GiB"] = lambda size: f"{size['device_peak_bytes'] / GIB:.2f}"
    lines["start-up (apart), s"] = lambda size: f"{size['startup_seconds']:.1f}"
    shares = {
        "validation": "val_accuracy",
        "test": "test_accuracy",
        "best possible": "best_accuracy",
    }
    for name, key in shares.items():
        lines[f"{name}, %"] = partial(_percent, key=key)
    rows = [
        [name, *("–" if "failed" in size else words(size) for size in record["sizes"])]
        for name, words in lines.items()
    ]
    for place, size in enumerate(record["sizes"], start=1):
        rows[0][place] = size.get("failed", rows[0][place])
    return Table(("nodes", *(f"{size['nodes']:,}" for size in record["sizes"])), rows)


def _stage_seconds(size: Record, stage: str) -> str:
    return f"{size['seconds'][stage]:.2f}"


def _percent(size: Record, key: str) -> str:
    return f"{100 * size[key]:.1f}"


def _short(value: float) -> str:
    """A number with three digits that count.

    >>> _short(1234.5), _short(12.345), _short(0.01234)
    ('1234', '12.3', '0.0123')
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def disturbance(record: Mapping[str, Any]) -> float:
    """The most cores that others took during any of the shown runs."""
    return max((size["cores_taken_by_others"] or 0.0 for size in finished(record)), default=0.0)
