"""A sharded graph: the cost of each kind of work, and of training on the shards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from typer import Option

from hpgmn.base.parsing import read_array, read_json
from hpgmn.base.settings import settings_dict
from hpgmn.runs.folder import METRICS_FILE
from hpgmn.shards.files import write_array
from hpgmn.training.saved import MODEL_FILE
from hpgmn_lab.bench.graphs import GraphSpec, generate, large_settings
from hpgmn_lab.bench.options import Assignments, Attributes, Degree, Nodes, Seed, changes
from hpgmn_lab.bench.process import OtherLoad, ProcessFailed, environment, run_task, say
from hpgmn_lab.bench.records import Call, Record, Table, new_record
from hpgmn_lab.bench.shard_costs import KINDS

THRESHOLDS = (1e-3, 1e-4)
FEWER = 10
"""A training on one in so many train nodes separates the cost of training and of validation."""

SETTINGS: dict[str, Any] = {
    "statistics": "attributes,class_counts,class_means,diffusion",
    "neighbors": "out",
    "diffusion_form": "sketch",
    "diffusion_dim": 64,
    "teleport": 0.6,  # few rounds: all cost the same
    "diffusion_tolerance": 0.1,
    "epochs": 3,
}
"""Settings that differ from those for large graphs."""


def measure(
    call: Call,
    nodes: Nodes = 500_000,
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    ranges: Annotated[int, Option(min=2, help="Ranges of nodes.")] = 8,
    memory: Annotated[int, Option(min=1, help="MiB of a unit of work.")] = 256,
    sample: Annotated[int, Option(min=1, help="Rows of top-k diffusion.")] = 2000,
    seed: Seed = 0,
    set_: Assignments = None,
) -> Record:
    """Measure each kind of work of sharding a graph, and training on the shards."""
    graph = GraphSpec(nodes, degree, attributes, seed)
    unit_bytes = memory * 2**20
    settings = settings_dict(large_settings(SETTINGS | changes(set_)))
    record = new_record("shards", call, seeds={"graph": graph.seed}, settings=settings)
    record |= {"graph": asdict(graph), "ranges": ranges, "memory": unit_bytes}
    facts = generate(graph, call.graph_folder)
    folder = call.out / "shards"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        say(f"{graph.nodes:,} nodes: statistics in {ranges} ranges")
        record["statistics"] = run_task(
            "shards",
            threads=1,
            path=facts["path"],
            folder=str(folder / "all"),
            settings=settings,
            ranges=ranges,
            memory=unit_bytes,
            thresholds=list(THRESHOLDS),
            sample=sample,
        )
        shutil.rmtree(folder / "all" / "work")
        say("training on shards: one rank")
        training = {"alone": train(folder / "all", folder / "alone", call.device)}
        say(f"training on shards: one rank, one in {FEWER} train nodes")
        thin_train_nodes(folder / "all", folder / "fewer")
        training["fewer"] = train(folder / "fewer", folder / "few", call.device)
        if call.device == "cuda" and torch.cuda.device_count() < 2:
            training["two"] = {"failed": "two ranks need two GPUs"}
        else:
            say("training on shards: two ranks")
            training["two"] = train(folder / "all", folder / "two", call.device, ranks=2)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return record | {"training": training}


def thin_train_nodes(folder: Path, other: Path) -> None:
    """Link the shards into another folder, with a tenth of the train nodes."""
    other.mkdir(parents=True)
    manifest = read_json(folder / "manifest.json")
    for rows in sorted(folder.glob("rows-*")):
        (other / rows.name).mkdir()
        for path in rows.iterdir():
            if path.name != "train.npy":
                (other / rows.name / path.name).symlink_to(path.resolve())
        train_nodes = read_array(rows / "train.npy")
        remaining = np.zeros_like(train_nodes)
        remaining[np.flatnonzero(train_nodes)[::FEWER]] = True
        name = f"{rows.name}/train.npy"
        manifest["files"][name] = write_array(other / name, remaining)
    (other / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def train(folder: Path, run: Path, device: str, ranks: int = 1) -> Record:
    """Train on shards by ``hpgmn train-shards``, one thread per rank; several under torchrun."""
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "hpgmn", "train-shards", str(folder), "--out", str(run), "--device", device]
    load = OtherLoad(with_children=True)
    tracing = environment(1) | {"PYTHONFAULTHANDLER": "1"}  # shows where a rank is aborted
    done = subprocess.run(  # this Python and options of ours, no shell  # nosec B603
        command, env=tracing, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        say(done.stderr)  # torchrun's summary hides the reason
        raise ProcessFailed(f"{' '.join(command[1:])} failed: {done.stderr.strip()[-400:]}")
    others = load.cores()
    metrics = read_json(run / METRICS_FILE)
    epochs = metrics["epochs_trained"]["main"]
    batch_size = metrics["config"]["settings"]["batch_size"]
    rows = metrics["nodes"]["train"][0]
    return {
        "ranks": ranks,
        "epochs": epochs,
        "epoch_seconds": metrics["seconds_training"] / epochs,
        "seconds": metrics["seconds"],
        "train_rows": rows,
        "val_rows": metrics["nodes"]["val"][0],
        "batch_size": batch_size,
        "steps": -(-rows // batch_size),
        "parameters": count_parameters(run / MODEL_FILE),
        "peak_bytes": round(metrics["peak_memory_mb"] * 1e6),
        "cores_taken_by_others": others,
    }


def count_parameters(path: Path) -> int:
    """Return the number of parameters of the main stage of a saved model."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        shapes = [
            file.get_slice(name).get_shape()
            for name in file.keys()  # noqa: SIM118
            if name.startswith("main/")
        ]
    return int(sum(np.prod(shape) for shape in shapes))


# Read the record.


def row_seconds(training: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds of a train row and of a validation row.

    Two epochs with the same validation rows and different train rows give both; noise may make
    one of them zero.
    """
    alone, fewer = training["alone"], training["fewer"]
    gap = alone["epoch_seconds"] - fewer["epoch_seconds"]
    train_row = max(0.0, gap / (alone["train_rows"] - fewer["train_rows"]))
    rest = alone["epoch_seconds"] - train_row * alone["train_rows"]
    return train_row, max(0.0, rest) / alone["val_rows"]


def communication_seconds(training: Mapping[str, Any]) -> float | None:
    """Return the seconds of a step of two ranks beyond half of one rank's."""
    alone, two = training["alone"], training["two"]
    if "failed" in two:
        return None
    overhead: float = two["epoch_seconds"] - alone["epoch_seconds"] / 2
    return max(0.0, overhead / int(two["steps"]))


def cost_of(record: Mapping[str, Any], kind: str) -> Record:
    """Return the cost of a kind of work for the whole graph; of the sketch, that of one round."""
    statistics = record["statistics"]
    times = max(1, statistics["rounds"] - 1) if kind == "round" else 1
    return {name: value / times for name, value in statistics["costs"][kind].items()}


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the kinds of work, their unit costs, top-k diffusion, and training."""
    return [work_table(record), unit_table(record), topk_table(record), training_table(record)]


def work_table(record: Mapping[str, Any]) -> Table:
    """Return the cost of each kind of work."""
    facts = record["statistics"]
    rows = []
    for kind in (kind for kind in KINDS if kind in facts["costs"]):
        cost = cost_of(record, kind)
        rows.append(
            [
                KINDS[kind],
                f"{cost['tasks']:.0f}",
                *(f"{cost[name]:.2f}" for name in ("cpu_seconds", "seconds")),
                *(f"{cost[name] / 1e6:,.0f}" for name in ("bytes_read", "bytes_written")),
            ]
        )
    title = (
        f"{facts['nodes']:,} nodes, {facts['edges']:,} edges, {facts['attributes']} attributes, "
        f"{facts['classes']} classes, a sketch of {record['settings']['diffusion_dim']} columns, "
        f"{record['ranges']} ranges, {record['memory'] / 2**20:.0f} MiB per unit:"
    )
    return Table(("work", "tasks", "CPU s", "s", "MB read", "MB written"), rows, title)


def unit_table(record: Mapping[str, Any]) -> Table:
    """Return the cost of each kind of work per edge or node."""
    rows = []
    for kind in (kind for kind in KINDS if kind in record["statistics"]["costs"]):
        cost = cost_of(record, kind)
        per = "node" if kind in ("nodes", "attributes") else "edge"
        count = record["statistics"][f"{per}s"]
        rows.append(
            [
                KINDS[kind],
                per,
                f"{1e6 * cost['cpu_seconds'] / count:.3g}",
                *(f"{cost[name] / count:.0f}" for name in ("bytes_read", "bytes_written")),
            ]
        )
    return Table(("work", "per", "CPU µs", "bytes read", "bytes written"), rows)


def topk_table(record: Mapping[str, Any]) -> Table:
    """Return the cost of top-k diffusion."""
    rows = [
        [
            f"{cost['threshold']:g}",
            f"{cost['rows']:,}",
            f"{cost['cpu_seconds']:.2f}",
            f"{1e6 * cost['cpu_seconds'] / cost['rows']:.0f}",
        ]
        for cost in record["statistics"]["topk"]
    ]
    return Table(("top-k diffusion, threshold", "rows", "CPU s", "CPU µs per row"), rows)


def training_table(record: Mapping[str, Any]) -> Table:
    """Return the cost of training on shards."""
    training = record["training"]
    alone, two = training["alone"], training["two"]
    has_two = "failed" not in two
    train_row, val_row = row_seconds(training)
    overhead = communication_seconds(training)
    statistics = record["statistics"]["statistics"].values()
    node_bytes = sum(facts["width"] * np.dtype(facts["dtype"]).itemsize for facts in statistics)
    rows = {
        "s per epoch, one rank": f"{alone['epoch_seconds']:.2f}",
        "s per epoch, two ranks": f"{two['epoch_seconds']:.2f}" if has_two else two["failed"],
        "ms of communication per step": "–" if overhead is None else f"{1e3 * overhead:.1f}",
        "train rows per second": _rate(train_row),
        "validation rows per second": _rate(val_row),
        "bytes of a node's rows": f"{node_bytes:,}",
        "parameters": f"{alone['parameters']:,}",
        "bytes reduced over ranks per step": f"{4 * alone['parameters']:,}",
        "peak memory, MB": f"{alone['peak_bytes'] / 1e6:.0f}",
        "peak memory of the first of two ranks, MB": (
            f"{two['peak_bytes'] / 1e6:.0f}" if has_two else "–"
        ),
    }
    sizes = f"{alone['train_rows']:,} train rows in batches of {alone['batch_size']:,}"
    columns = (f"training on shards: {sizes}", record["device_kind"])
    return Table(columns, [[name, value] for name, value in rows.items()])


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f}" if seconds else "–"
