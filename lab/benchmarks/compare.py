"""Measure the package against the yardstick in one run; write the record and the page.

    python lab/benchmarks/compare.py --data FOLDER                # about 8 minutes on 2 quiet cores
    python lab/benchmarks/compare.py --data FOLDER --device cuda  # about 3 minutes on one H200

Every measurement is a fresh process; the two sides alternate. On a CPU the yardstick is timed on
some epochs and scaled to 300; its accuracy is that of the record of one full run on a GPU. On a GPU
both sides train the paper's model in full, the yardstick four splits of the ten.
``hpgmn_lab.bench.yardstick`` has the bars and tables of the record.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hpgmn_lab.bench import page
from hpgmn_lab.bench.records import Call, new_record
from hpgmn_lab.bench.yardstick import GPU_GRAPHS, GRAPHS, command_for
from hpgmn_lab.records import read_named, write_named

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDS = ROOT / "lab" / "results" / page.BENCHMARK_RECORDS

NEIGHBORS = {"texas": "undirected", "chameleon": "out", "squirrel": "out"}
EQUAL_SIZES = ["--hidden", "128", "--patterns", "100"]
SPLITS = 10
GPU_SPLITS = ["--splits", "0", "1", "2", "3"]
"""The yardstick's on a GPU; the first warms up libraries and is not timed."""


def measured(script: str, graph: Path, *options: str) -> dict[str, Any]:
    """Return the record of one fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        command = [sys.executable, str(HERE / script), str(graph), *options, "--json", str(path)]
        print("·", script, graph.stem, *options, file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{script} failed:\n{done.stderr}")
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record


def alternate(repeats: int, *sides: tuple[str, Path, list[str]]) -> list[list[dict[str, Any]]]:
    """Measure each side so many times, alternating."""
    records: list[list[dict[str, Any]]] = [[] for _ in sides]
    for _ in range(repeats):
        for side_records, (script, graph, options) in zip(records, sides, strict=True):
            side_records.append(measured(script, graph, *options))
    return records


def yardstick_accuracy(name: str) -> list[float]:
    """Return mean and deviation of the yardstick's recorded accuracy on a graph."""
    record = read_named(RECORDS)[f"{page.INPUTS}{name}"]
    return [record["accuracy_mean"], record["accuracy_std"]]


def median(records: list[dict[str, Any]], key: str) -> float:
    """Return the median of one number over repeated measurements."""
    return float(statistics.median(record[key] for record in records))


def scaled_total(record: dict[str, Any]) -> float:
    """Scale the yardstick's seconds of one split to ten; shared work counts once."""
    shared = record["seconds_shared"]
    return float(shared + SPLITS * (record["seconds_total"] - shared))


def whole_result(data: Path, repeats: int) -> dict[str, Any]:
    """Measure ten splits with the shipped settings, and the yardstick at its own sizes."""
    rows = {}
    for name in GRAPHS:
        graph = data / f"{name}.npz"
        epochs = ["--splits", "0", "--timed-epochs", "4" if name == "squirrel" else "10"]
        plain = ["--neighbors", NEIGHBORS[name], *epochs]
        few = ["--shipped", "--timed-epochs", "10"]
        ours = measured("ours.py", graph, "--shipped")
        sizes = ["--hidden", str(ours["settings"]["hidden_dim"])]
        sizes += ["--patterns", str(ours["settings"]["num_patterns"])]
        large, small, alone, together = alternate(
            repeats,
            ("yardstick.py", graph, plain),
            ("yardstick.py", graph, plain + sizes),
            ("ours.py", graph, [*few, "--splits", "0"]),
            ("ours.py", graph, [*few, "--replicas", str(SPLITS)]),
        )
        rows[name] = {
            "yardstick_seconds": statistics.median(scaled_total(record) for record in large),
            "yardstick_per_epoch": median(large, "seconds_per_epoch"),
            "yardstick_per_epoch_at_our_sizes": median(small, "seconds_per_epoch"),
            "yardstick_accuracy": yardstick_accuracy(name),
            "ours_seconds": ours["seconds_total"],
            "ours_accuracy": [ours["accuracy_mean"], ours["accuracy_std"]],
            "ours_per_epoch_alone": median(alone, "seconds_per_epoch"),
            "ours_per_epoch_together": median(together, "seconds_per_epoch"),
            "ours_epochs": statistics.mean(ours["epochs_trained"]),
            "hidden": ours["settings"]["hidden_dim"],
            "patterns": ours["settings"]["num_patterns"],
            "cores_taken_by_others": worst([ours, *large, *small, *alone, *together]),
        }
    return rows


def equal_sizes(data: Path, repeats: int) -> dict[str, Any]:
    """Measure hidden 128, K 100 on squirrel: seconds per split and epoch, and peak memory."""
    graph = data / "squirrel.npz"
    rows = {}
    for name, option in (("diffusion", []), ("adjacency", ["--adjacency-rows"])):
        options = [*EQUAL_SIZES, "--splits", "0", "--timed-epochs", "10", *option]
        plain, ours = alternate(
            repeats, ("yardstick.py", graph, options), ("ours.py", graph, options)
        )
        rows[name] = {
            "yardstick_per_epoch": median(plain, "seconds_per_epoch"),
            "ours_per_epoch": median(ours, "seconds_per_epoch"),
            "yardstick_memory": median(plain, "peak_memory_bytes"),
            "ours_memory": median(ours, "peak_memory_bytes"),
            "cores_taken_by_others": worst([*plain, *ours]),
        }
    return rows


def later_splits(record: dict[str, Any], key: str) -> float:
    """Return the mean of one number over the yardstick's splits without the first."""
    return statistics.mean(run[key] for run in record["runs"][1:])


def on_gpu(data: Path, repeats: int) -> dict[str, Any]:
    """Measure ten splits of the paper's model in full at equal sizes, in TF32 on both sides."""
    rows = {}
    for name in GPU_GRAPHS:
        graph = data / f"{name}.npz"
        options = ["--neighbors", NEIGHBORS[name], "--device", "cuda", "--tf32"]
        plain, ours = alternate(
            repeats, ("yardstick.py", graph, [*options, *GPU_SPLITS]), ("ours.py", graph, options)
        )
        whole = [
            record["seconds_shared"] + SPLITS * later_splits(record, "seconds_total")
            for record in plain
        ]
        epochs = [SPLITS * later_splits(record, "seconds_epochs") for record in plain]
        rows[name] = {
            "yardstick_seconds": statistics.median(whole),
            "yardstick_epochs_seconds": statistics.median(epochs),
            "yardstick_accuracy": yardstick_accuracy(name),
            "ours_seconds": median(ours, "seconds_total"),
            "ours_epochs_seconds": median(ours, "seconds_epochs"),
            "ours_accuracy": [ours[0]["accuracy_mean"], ours[0]["accuracy_std"]],
            "cores_taken_by_others": worst([*plain, *ours]),
        }
    return rows


def worst(records: list[dict[str, Any]]) -> float:
    """Return the most cores that other processes used during any measurement."""
    return max(float(record["cores_taken_by_others"]) for record in records)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of graph files")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each measurement")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cpu")
    options = parser.parse_args(arguments)
    data, repeats = options.data, options.repeats
    call = Call(command_for(repeats, options.device), options.device)
    if options.device == "cuda":
        settings = {"repeats": repeats, "splits": SPLITS, "ours": "paper", "precision": "tf32"}
        record = new_record("compare-gpu", call, seeds=[0], settings=settings)
        record["graphs"] = on_gpu(data, repeats)
    else:
        settings = {"repeats": repeats, "splits": SPLITS, "ours": "shipped"}
        record = new_record("compare", call, seeds=[0], settings=settings)
        record["equal_sizes"] = equal_sizes(data, repeats)
        record["whole_result"] = whole_result(data, repeats)
    write_named(RECORDS, read_named(RECORDS) | {record["benchmark"]: record})
    page.main(["--results", str(RECORDS.parent), "--docs", str(ROOT / "docs")])


if __name__ == "__main__":
    main()
