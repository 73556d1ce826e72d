"""The package against the yardstick, both measured in one run; writes the record and the page.

    python benchmarks/compare.py --data FOLDER     # measures (about 8 minutes on 2 quiet cores)
    python benchmarks/compare.py --docs-only       # writes docs/BENCHMARKS.md from the record

Every measurement is a fresh process; the two sides take turns. The yardstick is timed on some
epochs and scaled to 300; its accuracy comes from one full run on a GPU, whose record is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
RECORD = ROOT / "results" / "benchmarks" / "compare.json"
PAGE = ROOT / "docs" / "BENCHMARKS.md"

GRAPHS = {"texas": 10.0, "chameleon": 15.0, "squirrel": 15.0}
"""The graphs of the whole result, and how many times faster it has to be."""

NEIGHBORS = {"texas": "undirected", "chameleon": "out", "squirrel": "out"}
EQUAL_SIZES = ["--hidden", "128", "--patterns", "100"]
REQUIRED = {"diffusion": 2.3, "adjacency": 4.0}
MEMORY_SHARE = 1 / 3
SPLITS = 10


def measured(script: str, graph: Path, *options: str) -> dict[str, Any]:
    """The record of one fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        command = [sys.executable, str(HERE / script), str(graph), *options, "--json", str(path)]
        print("·", script, graph.stem, *options, file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{script} failed:\n{done.stderr}")
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record


def in_turns(repeats: int, *sides: tuple[str, Path, list[str]]) -> list[list[dict[str, Any]]]:
    """Each side measured so many times, taking turns."""
    records: list[list[dict[str, Any]]] = [[] for _ in sides]
    for _ in range(repeats):
        for own, (script, graph, options) in zip(records, sides, strict=True):
            own.append(measured(script, graph, *options))
    return records


def median(records: list[dict[str, Any]], key: str) -> float:
    """The median of one number over repeated measurements."""
    return float(statistics.median(record[key] for record in records))


def scaled_total(record: dict[str, Any]) -> float:
    """Seconds of the yardstick for ten splits, from one timed split: shared work counts once."""
    shared = record["seconds_shared"]
    return float(shared + SPLITS * (record["seconds_total"] - shared))


def whole_result(data: Path, repeats: int) -> dict[str, Any]:
    """Ten splits with the shipped settings against the yardstick at the released code's sizes."""
    rows = {}
    for name in GRAPHS:
        graph = data / f"{name}.npz"
        epochs = ["--splits", "0", "--timed-epochs", "4" if name == "squirrel" else "10"]
        plain = ["--neighbors", NEIGHBORS[name], *epochs]
        few = ["--shipped", "--timed-epochs", "10"]
        ours = measured("ours.py", graph, "--shipped")
        sizes = ["--hidden", str(ours["settings"]["hidden_dim"])]
        sizes += ["--patterns", str(ours["settings"]["num_patterns"])]
        large, small, alone, together = in_turns(
            repeats,
            ("yardstick.py", graph, plain),
            ("yardstick.py", graph, plain + sizes),
            ("ours.py", graph, [*few, "--splits", "0"]),
            ("ours.py", graph, [*few, "--replicas", str(SPLITS)]),
        )
        kept = json.loads((RECORD.parent / f"yardstick-{name}.json").read_text(encoding="utf-8"))
        rows[name] = {
            "yardstick_seconds": statistics.median(scaled_total(record) for record in large),
            "yardstick_per_epoch": median(large, "seconds_per_epoch"),
            "yardstick_per_epoch_at_our_sizes": median(small, "seconds_per_epoch"),
            "yardstick_accuracy": [kept["accuracy_mean"], kept["accuracy_std"]],
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
    """Hidden 128, K 100 on squirrel: seconds per split and epoch, and peak memory."""
    graph = data / "squirrel.npz"
    rows = {}
    for name, option in (("diffusion", []), ("adjacency", ["--adjacency-rows"])):
        options = [*EQUAL_SIZES, "--splits", "0", "--timed-epochs", "10", *option]
        plain, ours = in_turns(
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


def worst(records: list[dict[str, Any]]) -> float:
    """The most that other processes took of the machine during any of the measurements."""
    return max(float(record["cores_taken_by_others"]) for record in records)


def factors(row: dict[str, Any]) -> dict[str, float]:
    """The speed-up of a whole result as a product.

    size: the yardstick at its sizes against the yardstick at ours, per epoch; epochs: 300 against
    what our runs trained; algorithm: the yardstick at our sizes against ours one split at a time;
    replicas: one split at a time against ten at once; rest: what remains (statistics, estimator,
    start, files).
    """
    parts = {
        "size": row["yardstick_per_epoch"] / row["yardstick_per_epoch_at_our_sizes"],
        "epochs": 300 / row["ours_epochs"],
        "algorithm": row["yardstick_per_epoch_at_our_sizes"] / row["ours_per_epoch_alone"],
        "replicas": row["ours_per_epoch_alone"] / row["ours_per_epoch_together"],
    }
    product = 1.0
    for value in parts.values():
        product *= value
    total = row["yardstick_seconds"] / row["ours_seconds"]
    return parts | {"rest": total / product, "total": total}


def verdict(value: float, required: float, *, at_most: bool = False) -> str:
    """Whether a bar is reached, or by how much it is missed."""
    good = value <= required if at_most else value >= required
    return "reached" if good else f"short by {abs(value - required):.2f}"


def page(record: dict[str, Any]) -> str:
    """docs/BENCHMARKS.md from the record."""
    lines = [
        "# Benchmarks",
        "",
        "This page is written by `python benchmarks/compare.py` from its own measurements",
        "(`--docs-only` writes it again from `results/benchmarks/compare.json`). The yardstick,",
        "`benchmarks/yardstick.py`, is a plain dense implementation of the paper: dense class",
        "means, a dense N×N diffusion matrix, one split at a time. Both sides are measured in one",
        "run, in fresh processes that take turns; ratios matter, seconds depend on the machine.",
        "",
        f"Machine: {record['machine']}; {record['threads']} threads; torch {record['torch']}; "
        f"hpgmn {record['version']}; {record['date']}.",
        "",
        "## The whole result: ten splits",
        "",
        "The yardstick has the released code's sizes (hidden 500, K 200, 300 epochs), timed on",
        "some epochs and scaled; its accuracy is that of one full run on a GPU",
        "(`results/benchmarks/yardstick-*.json`). Ours are the shipped settings, trained in full,",
        "from the graph file to the run folder.",
        "",
        "| graph | yardstick, s | ours, s | times faster | required | | yardstick % | ours % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in record["whole_result"].items():
        ratio, bar = row["yardstick_seconds"] / row["ours_seconds"], GRAPHS[name]
        plain, ours = (
            f"{mean:.1f} ± {std:.1f}"
            for mean, std in (row["yardstick_accuracy"], row["ours_accuracy"])
        )
        lines.append(
            f"| {name} | {row['yardstick_seconds']:.0f} | {row['ours_seconds']:.1f} | "
            f"{ratio:.1f} | {bar:.0f} | {verdict(ratio, bar)} | {plain} | {ours} |"
        )
    lines += [
        "",
        "Where the factor comes from. *Size*: the yardstick at its own sizes against the yardstick",
        "at ours. *Epochs*: 300 against what our runs trained before stopping. *Algorithm*: the",
        "yardstick at our sizes against ours, one split at a time. *Replicas*: one split at a time",
        "against ten as one model. *Rest*: statistics, label estimator, start and files, and the",
        "replicas that leave the batch early.",
        "",
        "| graph | size | epochs | algorithm | replicas | rest | total | hidden, K |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in record["whole_result"].items():
        parts = factors(row)
        shown = " | ".join(f"{parts[key]:.2f}" for key in parts)
        lines.append(f"| {name} | {shown} | {row['hidden']}, {row['patterns']} |")
    lines += [
        "",
        "## Equal sizes: hidden 128, K 100, squirrel",
        "",
        "One split, the paper's model on both sides; an epoch is a train step and an evaluation.",
        "Memory is the peak of a fresh process above the level after imports.",
        "",
        "| fourth statistic | yardstick, s per epoch | ours | times faster | required | | "
        "yardstick, MiB | ours | share | at most | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in record["equal_sizes"].items():
        ratio, bar = row["yardstick_per_epoch"] / row["ours_per_epoch"], REQUIRED[name]
        share = row["ours_memory"] / row["yardstick_memory"]
        lines.append(
            f"| {name} rows | {row['yardstick_per_epoch']:.3f} | {row['ours_per_epoch']:.3f} | "
            f"{ratio:.2f} | {bar:.1f} | {verdict(ratio, bar)} | "
            f"{row['yardstick_memory'] / 2**20:.0f} | {row['ours_memory'] / 2**20:.0f} | "
            f"{share:.2f} | 0.33 | {verdict(share, MEMORY_SHARE, at_most=True)} |"
        )
    taken = max(
        row["cores_taken_by_others"]
        for part in ("whole_result", "equal_sizes")
        for row in record[part].values()
    )
    lines += [
        "",
        f"Other processes took at most {taken:.2f} cores during any of these measurements.",
        "",
        "```sh",
        "python benchmarks/compare.py --data $HPGMN_DATA",
        "```",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder of graph files")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each measurement")
    parser.add_argument("--docs-only", action="store_true", help="only write the page again")
    options = parser.parse_args(arguments)
    if not options.docs_only:
        if options.data is None:
            parser.error("give --data, the folder of graph files, or --docs-only")
        import torch

        import hpgmn
        from hpgmn.experiments.run import hardware

        record = {
            "machine": hardware("cpu")["processor"],
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "version": hpgmn.__version__,
            "date": datetime.date.today().isoformat(),
            "repeats": options.repeats,
            "equal_sizes": equal_sizes(options.data, options.repeats),
            "whole_result": whole_result(options.data, options.repeats),
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()
