"""A graph in node ranges: what each kind of work costs, and what training on the rows costs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpgmn.base.errors import SettingError
from hpgmn.base.parsing import read_array, read_json
from hpgmn.base.settings import settings_dict
from hpgmn.runs.folder import METRICS_FILE
from hpgmn.shards.files import write_array
from hpgmn.training.saved import MODEL_FILE
from hpgmn_lab.bench.graphs import GraphSpec, check_spec, generated
from hpgmn_lab.bench.machine import Neighbours
from hpgmn_lab.bench.processes import ProcessFailed, environment, measured
from hpgmn_lab.bench.ranges import KINDS
from hpgmn_lab.bench.records import Record, Table, head
from hpgmn_lab.bench.settings import large

MEMORY = 256 * 2**20
THRESHOLDS = (1e-3, 1e-4)
FEWER = 10
"""A training on one in so many train nodes tells the costs of training and of validation apart."""

SETTINGS: dict[str, Any] = {
    "statistics": "attributes,class_counts,class_means,diffusion",
    "neighbors": "out",
    "diffusion_form": "sketch",
    "diffusion_dim": 64,
    "teleport": 0.6,  # few rounds: one is like another
    "diffusion_tolerance": 0.1,
    "epochs": 3,
}
"""What differs from the settings for large graphs."""

ABOUT = """\
A generated graph cut into ranges of nodes (`hpgmn shard`), one thread, one unit of work after the
other: what each kind of work takes for the whole graph, and for an edge or a node. Rounds of the
sketch are counted one by one, without the first, which reads no rows. Top-k diffusion, with the
default teleport, is computed for a sample of rows. Files are in the system's cache, so seconds are
those of computing and copying; bytes are those that units ask for. Then HP-GMN is trained on these
rows (`hpgmn train-shards`), alone and by two ranks under `torchrun`, one thread each. What a
train row and a validation row take is found by a second training on a tenth of the train nodes.
`docs/SCALE.md` reckons from these numbers."""


def measure(
    out: Path,
    *,
    command: str,
    graph: GraphSpec,
    ranges: int = 8,
    memory: int = MEMORY,
    sample: int = 2000,
    changes: Mapping[str, Any],
    graphs: Path | None = None,
    device: str = "cpu",
    say: Callable[[str], None],
) -> Record:
    """Cut a generated graph into ranges, then train on its rows.

    Args:
        out: the folder of the benchmark.
        command: what to type to make the record again.
        graph: the graph.
        ranges: R.
        memory: bytes that a unit of work holds.
        sample: rows of top-k diffusion.
        changes: settings other than :data:`SETTINGS`.
        graphs: where generated graphs are kept; None for a folder inside ``out``.
        device: "cpu" or "cuda", of the training.
        say: called with a line of progress.
    """
    check_spec(graph)
    if ranges < 2:
        raise SettingError(f"--ranges must be at least 2 (got {ranges}).")
    if sample < 1:
        raise SettingError(f"--sample must be at least 1 (got {sample}).")
    settings = settings_dict(large(SETTINGS | dict(changes)))
    record = head("shards", command, device, seeds={"graph": graph.seed}, settings=settings)
    record |= {"graph": asdict(graph), "ranges": ranges, "memory": memory}
    say(f"{graph.nodes:,} nodes: the graph")
    made = generated(graph, graphs or out / "graphs")
    shards = out / "shards"
    shutil.rmtree(shards, ignore_errors=True)
    try:
        say(f"{graph.nodes:,} nodes: statistics in {ranges} ranges")
        record["statistics"] = measured(
            "shards",
            threads=1,
            path=made["path"],
            folder=str(shards / "all"),
            settings=settings,
            ranges=ranges,
            memory=memory,
            thresholds=list(THRESHOLDS),
            sample=sample,
        )
        shutil.rmtree(shards / "all" / "work")
        say("training on rows: alone")
        record["training"] = {"alone": train(shards / "all", shards / "alone", device)}
        say(f"training on rows: alone, one in {FEWER} train nodes")
        fewer_train_nodes(shards / "all", shards / "fewer")
        record["training"]["fewer"] = train(shards / "fewer", shards / "few", device)
        if device == "cuda" and torch.cuda.device_count() < 2:
            record["training"]["two"] = {"failed": "two ranks need two GPUs"}
        else:
            say("training on rows: two ranks")
            record["training"]["two"] = train(shards / "all", shards / "two", device, ranks=2)
    finally:
        shutil.rmtree(shards, ignore_errors=True)
    return record


def fewer_train_nodes(folder: Path, other: Path) -> None:
    """The same rows in another folder, with a tenth of the train nodes; files are linked."""
    other.mkdir(parents=True)
    about = read_json(folder / "manifest.json")
    for rows in sorted(folder.glob("rows-*")):
        (other / rows.name).mkdir()
        for path in rows.iterdir():
            if path.name != "train.npy":
                (other / rows.name / path.name).symlink_to(path.resolve())
        train_nodes = read_array(rows / "train.npy")
        kept = np.zeros_like(train_nodes)
        kept[np.flatnonzero(train_nodes)[::FEWER]] = True
        name = f"{rows.name}/train.npy"
        about["files"][name] = write_array(other / name, kept)
    (other / "manifest.json").write_text(json.dumps(about), encoding="utf-8")


def train(folder: Path, run: Path, device: str, ranks: int = 1) -> Record:
    """Train on rows in fresh processes of one thread each, as the command line does it.

    Args:
        folder: that of the rows.
        run: the run folder.
        device: "cpu" or "cuda".
        ranks: how many processes, under torchrun if there are several.
    """
    words = [sys.executable]
    if ranks > 1:
        words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words += ["-m", "hpgmn", "train-shards", str(folder), "--out", str(run), "--device", device]
    neighbours = Neighbours(with_offspring=True)
    done = subprocess.run(  # this Python and options of ours, no shell  # nosec B603
        words, env=environment(1), capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise ProcessFailed(f"{' '.join(words[1:])} failed: {done.stderr.strip()[-400:]}")
    others = neighbours.cores_taken()
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
        "parameters": parameters_of(run / MODEL_FILE),
        "peak_bytes": round(metrics["peak_memory_mb"] * 1e6),
        "cores_taken_by_others": others,
    }


def parameters_of(path: Path) -> int:
    """How many numbers the main stage of a saved model has, those of its estimator left out."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        shapes = [
            file.get_slice(name).get_shape()
            for name in file.keys()  # noqa: SIM118
            if name.startswith("main/")
        ]
    return int(sum(np.prod(shape) for shape in shapes))


# What the record says.


def row_seconds(training: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds for a train row and for a validation row, from a training on all and on few.

    An epoch takes what its train rows and its validation rows take; two epochs with as many of the
    one and fewer of the other give both. Where chance has the better of it, none is below zero.
    """
    alone, fewer = training["alone"], training["fewer"]
    apart = alone["epoch_seconds"] - fewer["epoch_seconds"]
    of_train = max(0.0, apart / (alone["train_rows"] - fewer["train_rows"]))
    rest = alone["epoch_seconds"] - of_train * alone["train_rows"]
    return of_train, max(0.0, rest) / alone["val_rows"]


def row_bytes(statistics: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The bytes of one node's row of every dense statistic."""
    return {
        name: about["width"] * np.dtype(about["dtype"]).itemsize
        for name, about in statistics.items()
    }


def talk_seconds(training: Mapping[str, Any]) -> float | None:
    """Seconds of a step that two ranks spend on each other: beyond half of one rank's epoch."""
    alone, two = training["alone"], training["two"]
    if "failed" in two:
        return None
    beyond: float = two["epoch_seconds"] - alone["epoch_seconds"] / 2
    return max(0.0, beyond / int(two["steps"]))


def tables(record: Mapping[str, Any]) -> list[Table]:
    """The record as tables: kinds of work, top-k diffusion, training."""
    return [
        work_table(record),
        unit_table(record),
        topk_table(record),
        training_table(record),
    ]


def cost_of(record: Mapping[str, Any], kind: str) -> Record:
    """What a kind of work costs for the whole graph; a round of the sketch is one of several."""
    found = record["statistics"]
    times = max(1, found["rounds"] - 1) if kind == "round" else 1
    return {name: value / times for name, value in found["costs"][kind].items()}


def count_of(record: Mapping[str, Any], kind: str) -> tuple[str, int]:
    """What the cost of a kind of work is divided by: nodes or edges, and how many there are."""
    by = "node" if kind in ("nodes", "attributes") else "edge"
    return by, record["statistics"][f"{by}s"]


def work_table(record: Mapping[str, Any]) -> Table:
    """What each kind of work costs."""
    found = record["statistics"]
    rows = []
    for kind in (kind for kind in KINDS if kind in found["costs"]):
        cost = cost_of(record, kind)
        rows.append(
            [
                KINDS[kind],
                f"{cost['tasks']:.0f}",
                f"{cost['cpu_seconds']:.2f}",
                f"{cost['seconds']:.2f}",
                f"{cost['bytes_read'] / 1e6:,.0f}",
                f"{cost['bytes_written'] / 1e6:,.0f}",
            ]
        )
    title = (
        f"{found['nodes']:,} nodes, {found['edges']:,} edges, {found['attributes']} attributes, "
        f"{found['classes']} classes, a sketch of {record['settings']['diffusion_dim']} columns, "
        f"{record['ranges']} ranges, {record['memory'] / 2**20:.0f} MiB for a unit:"
    )
    return Table(("work", "tasks", "CPU s", "s", "MB read", "MB written"), rows, title)


def unit_table(record: Mapping[str, Any]) -> Table:
    """What each kind of work costs for an edge or a node."""
    rows = []
    for kind in (kind for kind in KINDS if kind in record["statistics"]["costs"]):
        cost, (by, count) = cost_of(record, kind), count_of(record, kind)
        rows.append(
            [
                KINDS[kind],
                by,
                f"{1e6 * cost['cpu_seconds'] / count:.3g}",
                f"{cost['bytes_read'] / count:.0f}",
                f"{cost['bytes_written'] / count:.0f}",
            ]
        )
    return Table(("work", "for each", "CPU µs", "bytes read", "bytes written"), rows)


def topk_table(record: Mapping[str, Any]) -> Table:
    """What a row of top-k diffusion costs."""
    rows = [
        [
            f"{found['threshold']:g}",
            f"{found['rows']:,}",
            f"{found['cpu_seconds']:.2f}",
            f"{1e6 * found['cpu_seconds'] / found['rows']:.0f}",
        ]
        for found in record["statistics"]["topk"]
    ]
    columns = ("top-k diffusion, threshold", "rows", "CPU s", "CPU µs for a row")
    return Table(columns, rows)


def training_table(record: Mapping[str, Any]) -> Table:
    """What training on rows costs."""
    training = record["training"]
    alone, two = training["alone"], training["two"]
    of_train, of_val = row_seconds(training)
    talk = talk_seconds(training)
    of_node = sum(row_bytes(record["statistics"]["statistics"]).values())
    both = "failed" not in two
    rows: Sequence[Sequence[str]] = [
        ["s for an epoch, alone", f"{alone['epoch_seconds']:.2f}"],
        ["s for an epoch, two ranks", f"{two['epoch_seconds']:.2f}" if both else two["failed"]],
        ["ms of talk in a step of two ranks", "–" if talk is None else f"{1e3 * talk:.1f}"],
        ["train rows in a second", _rate(of_train)],
        ["validation rows in a second", _rate(of_val)],
        ["bytes of a node's rows", f"{of_node:,}"],
        ["parameters", f"{alone['parameters']:,}"],
        ["bytes added up over ranks in a step", f"{4 * alone['parameters']:,}"],
        ["peak memory, MB", f"{alone['peak_bytes'] / 1e6:.0f}"],
        ["peak memory of the first of two ranks, MB",
         f"{two['peak_bytes'] / 1e6:.0f}" if both else "–"],
    ]  # fmt: skip
    what = f"{alone['train_rows']:,} train rows in batches of {alone['batch_size']:,}"
    return Table((f"training on rows: {what}", record["device_kind"]), rows)


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f}" if seconds else "–"


def disturbance(record: Mapping[str, Any]) -> float:
    """The most cores that others took during any of the measurements."""
    parts = [record["statistics"], *record["training"].values()]
    return float(max(part.get("cores_taken_by_others") or 0.0 for part in parts))
