"""Growth: seconds and memory per edge of each stage, as a generated graph grows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from typer import Option

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import settings_dict
from hpgmn.evaluation.scores import scores
from hpgmn.graph.files import read_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench.graphs import GraphSpec, generate, large_settings
from hpgmn_lab.bench.options import Assignments, Attributes, Degree, Epochs, Seed, changes, integers
from hpgmn_lab.bench.process import (
    Meter,
    ProcessFailed,
    ProgressLines,
    StageClock,
    fit_once,
    peak_bytes,
    run_task,
    say,
)
from hpgmn_lab.bench.records import GIB, Bar, Call, Record, Table, bars_table, new_record

STAGES = ("open", "estimator", "statistics", "training", "prediction")

# The bars: cost per edge relative to the previous size, and limits of whole runs.
MAX_RATIO_PER_EDGE = 1.5
MILLION_SECONDS, MILLION_GIB = 600.0, 6.0
CUDA_SECONDS = 60.0


def measure(
    call: Call,
    nodes: Annotated[str, Option(help="Increasing sizes.")] = "10000,100000,1000000",
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    epochs: Epochs = 20,
    repeats: Annotated[int, Option(min=1, help="Runs per size; the median is shown.")] = 1,
    seed: Seed = 0,
    set_: Assignments = None,
) -> Record:
    """Measure the cost of each stage of HP-GMN as a generated graph grows."""
    sizes = integers("--nodes", nodes)
    specs = [GraphSpec(size, degree, attributes, seed) for size in sizes]
    if sizes != sorted(set(sizes)):
        raise SettingError(f"--nodes takes increasing sizes (got {nodes}).")
    changed = {"epochs": epochs} | changes(set_)
    settings = settings_dict(large_settings(changed))
    seeds = {"graph": seed, "training": seed}
    record = new_record("growth", call, seeds=seeds, settings=settings)
    record["graph"] = asdict(specs[0]) | {"nodes": sizes}
    record |= {"repeats": repeats, "sizes": []}
    for spec in specs:
        try:
            facts = generate(spec, call.graph_folder)
            runs = []
            for number in range(1, repeats + 1):
                say(f"{spec.nodes:,} nodes: run {number} of {repeats}")
                run = run_task(
                    "growth", path=facts["path"], settings=settings, seed=seed, device=call.device
                )
                runs.append(run)
        except ProcessFailed as error:
            if spec is specs[0]:
                raise
            say(f"{spec.nodes:,} nodes: {error.message}")
            record["sizes"].append({"nodes": spec.nodes, "failed": error.message})
            break  # larger sizes would fail, too
        record["sizes"].append(_median_run(spec, facts, runs))
    return record


def _median_run(spec: GraphSpec, facts: Record, runs: list[Record]) -> Record:
    runs = sorted(runs, key=total_seconds)
    return {
        "nodes": spec.nodes,
        "best_accuracy": facts["best_accuracy"],
        "seconds_of_graph": facts["seconds"],
        **runs[(len(runs) - 1) // 2],
        "seconds_of_runs": [total_seconds(run) for run in runs],
    }


def run_stages(path: str, settings: dict[str, Any], seed: int, device: str) -> Record:
    """Train from the graph folder to the predictions of all nodes; in the measured process."""
    warm_up(settings, device)
    meter, started = Meter(device), time.perf_counter()
    graph = read_graph(path)
    edges = graph.num_edges  # merges the edges into the adjacency
    seconds, peaks = {"open": time.perf_counter() - started}, {"open": peak_bytes()}
    clock = StageClock(ProgressLines(f"{graph.num_nodes:,} nodes"))
    settings = large_settings(settings)
    fitted = fit_once(graph, "hpgmn", settings, seed=seed, device=device, report=clock)
    seconds |= {
        "estimator": clock.seconds("estimator"),
        "statistics": clock.prepared["main"],
        "training": sum(clock.epochs["main"]),
        "prediction": time.perf_counter() - clock.last,
    }
    peaks |= {
        "estimator": clock.peaks["estimator"],
        "training": clock.peaks["main"],
        "prediction": peak_bytes(),
    }
    return {
        "edges": edges,
        "train_nodes": int(graph.split(0).train.sum()),
        "seconds": seconds,
        "peak_bytes_after": peaks,
        **meter.record(),
        "val_accuracy": float(fitted.val_score[0]),
        "test_accuracy": scores(fitted.logits, graph.y, [graph.split(0).test], "accuracy")[0],
    }


def warm_up(settings: Mapping[str, Any], device: str) -> None:
    """Train one epoch on a tiny graph: compiles kernels, starts threads and the device."""
    graph = trading_network(200, num_features=4).graph
    short = dict(settings) | {"epochs": 1, "estimator_epochs": 1}
    fit_once(graph, "hpgmn", large_settings(short), device=device)


# Read the record.


def total_seconds(run: Mapping[str, Any]) -> float:
    """Return the seconds of a whole run without its start-up."""
    return float(sum(run["seconds"].values()))


def finished_sizes(record: Mapping[str, Any]) -> list[Record]:
    """Return the sizes that did not fail."""
    return [size for size in record["sizes"] if "failed" not in size]


def working_bytes(size: Mapping[str, Any]) -> int:
    """Return peak memory above the level after start-up; at least a page."""
    return max(int(size["peak_bytes"] - size["level_bytes"]), 4096)


def costs_per_edge(size: Mapping[str, Any]) -> dict[str, float]:
    """Return microseconds per edge of each stage and the whole run, and bytes per edge."""
    costs = {f"{stage}, µs": 1e6 * size["seconds"][stage] / size["edges"] for stage in STAGES}
    costs["whole run, µs"] = 1e6 * total_seconds(size) / size["edges"]
    return costs | {"memory, bytes": working_bytes(size) / size["edges"]}


def bars(record: Mapping[str, Any]) -> list[Bar]:
    """Return the bars of growth."""
    sizes, missing = finished_sizes(record), "needs two sizes"
    is_complete = len(sizes) == len(record["sizes"])
    if not is_complete:
        missing = record["sizes"][-1]["failed"]
    limits = {"whole run, µs": MAX_RATIO_PER_EDGE, "memory, bytes": 1.0}
    results = []
    for name, limit in limits.items():
        ratio = None
        if is_complete and len(sizes) > 1:
            before, after = (costs_per_edge(size)[name] for size in sizes[-2:])
            ratio = after / before
        what = f"{name.split(',')[0]} per edge, against the size before"
        results.append(Bar(what, ratio, limit, " ×", why_missing=missing))
    if record["device_kind"] == "cuda":
        if is_complete and len(sizes) > 1:
            before, after = (size["device_peak_bytes"] / size["edges"] for size in sizes[-2:])
            what = "GPU memory per edge, against the size before"
            results.append(Bar(what, after / before, 1.0, " ×"))
        seconds = total_seconds(sizes[-1]) if sizes else None
        results.append(Bar("whole run on a GPU", seconds, CUDA_SECONDS, " s", why_missing=missing))
        return results
    for size in record["sizes"]:
        if size["nodes"] == 1_000_000:
            failed = size.get("failed", "")
            seconds = None if failed else total_seconds(size)
            memory = None if failed else size["peak_bytes"] / GIB
            why = {"why_missing": failed}
            results += [
                Bar("1,000,000 nodes, whole run", seconds, MILLION_SECONDS, " s", **why),
                Bar("1,000,000 nodes, peak memory", memory, MILLION_GIB, " GiB", **why),
            ]
    return results


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the runs, the costs per edge with their ratios, and the bars."""
    sizes = finished_sizes(record)
    names = [f"{size['nodes']:,}" for size in sizes]
    costs = [costs_per_edge(size) for size in sizes]
    rows = [
        [
            name,
            *(_three_digits(cost[name]) for cost in costs),
            *(f"{after[name] / before[name]:.2f} ×" for before, after in itertools.pairwise(costs)),
        ]
        for name in (costs[0] if costs else ())
    ]
    ratios = [f"{after} : {before}" for before, after in itertools.pairwise(names)]
    per_edge = Table(("per edge", *names, *ratios), rows)
    return [_runs_table(record), per_edge, bars_table(bars(record))]


def _runs_table(record: Mapping[str, Any]) -> Table:
    """Return a column for each size; a failed size shows its error."""
    on_gpu = record["device_kind"] == "cuda"
    columns = [_run_texts(size, on_gpu) for size in record["sizes"]]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    return Table(("nodes", *(f"{size['nodes']:,}" for size in record["sizes"])), rows)


def _run_texts(size: Mapping[str, Any], on_gpu: bool) -> dict[str, str]:
    if "failed" in size:
        return {"edges": size["failed"]}
    return {
        "edges": f"{size['edges']:,}",
        **{f"{stage}, s": f"{size['seconds'][stage]:.2f}" for stage in STAGES},
        "whole run, s": f"{total_seconds(size):.1f}",
        "peak memory, GiB": f"{size['peak_bytes'] / GIB:.2f}",
        **({"GPU memory, GiB": f"{size['device_peak_bytes'] / GIB:.2f}"} if on_gpu else {}),
        "start-up (separate), s": f"{size['startup_seconds']:.1f}",
        "validation, %": f"{100 * size['val_accuracy']:.1f}",
        "test, %": f"{100 * size['test_accuracy']:.1f}",
        "best possible, %": f"{100 * size['best_accuracy']:.1f}",
    }


def _three_digits(value: float) -> str:
    """Format with three significant digits.

    >>> _three_digits(1234.5), _three_digits(12.345), _three_digits(0.01234)
    ('1234', '12.3', '0.0123')
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
