"""The package against a plain dense implementation: bars and tables of compare.py's records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpgmn_lab.bench.records import Bar, Table

# The bars: how many times faster, and the largest share of the yardstick's memory.
GRAPHS = {"texas": 10.0, "chameleon": 15.0, "squirrel": 25.0}
GPU_GRAPHS = {"texas": 10.0, "chameleon": 7.0, "squirrel": 6.0}
EQUAL_SIZES = {"diffusion": 2.3, "adjacency": 4.0}
MEMORY_SHARE = 1 / 3
EPOCHS = 300
"""Epochs of the yardstick."""


def command_for(repeats: int, device: str = "cpu") -> str:
    """Return the command that measures the record again."""
    command = f"python lab/benchmarks/compare.py --data $HPGMN_DATA --repeats {repeats}"
    return command if device == "cpu" else f"{command} --device {device}"


def factors(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the speed-up of a whole result as a product of factors; see the page for each."""
    parts = {
        "size": row["yardstick_per_epoch"] / row["yardstick_per_epoch_at_our_sizes"],
        "epochs": EPOCHS / row["ours_epochs"],
        "algorithm": row["yardstick_per_epoch_at_our_sizes"] / row["ours_per_epoch_alone"],
        "replicas": row["ours_per_epoch_alone"] / row["ours_per_epoch_together"],
    }
    total = row["yardstick_seconds"] / row["ours_seconds"]
    return parts | {"rest": total / math.prod(parts.values()), "total": total}


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the whole result, its factors and equal sizes, or the results on a GPU."""
    return _gpu_tables(record) if record.get("benchmark") == "compare-gpu" else _tables(record)


def _tables(record: Mapping[str, Any]) -> list[Table]:
    whole_rows, factor_rows, equal_rows = [], [], []
    for name, row in record["whole_result"].items():
        own = factors(row)
        seconds = [f"{row['yardstick_seconds']:.0f}", f"{row['ours_seconds']:.1f}"]
        judged = [
            f"{own['total']:.1f}",
            f"{GRAPHS[name]:.0f}",
            _verdict(own["total"], GRAPHS[name]),
        ]
        whole_rows.append([name, *seconds, *judged, *_accuracies(row)])
        sizes = f"{row['hidden']}, {row['patterns']}"
        factor_rows.append([name, *(f"{part:.2f}" for part in own.values()), sizes])
    for name, row in record["equal_sizes"].items():
        ratio, bar = row["yardstick_per_epoch"] / row["ours_per_epoch"], EQUAL_SIZES[name]
        share = row["ours_memory"] / row["yardstick_memory"]
        equal_rows.append(
            [
                f"{name} rows",
                *(f"{row[key]:.3f}" for key in ("yardstick_per_epoch", "ours_per_epoch")),
                *(f"{ratio:.2f}", f"{bar:.1f}", _verdict(ratio, bar)),
                *(f"{row[key] / 2**20:.0f}" for key in ("yardstick_memory", "ours_memory")),
                *(f"{share:.2f}", f"{MEMORY_SHARE:.2f}"),
                Bar("memory", share, MEMORY_SHARE).verdict,
            ]
        )
    speed = ("times faster", "required", "")
    whole_columns = ("graph", "yardstick, s", "ours, s", *speed, "yardstick %", "ours %")
    equal_columns = ("fourth statistic", "yardstick, s per epoch", "ours", *speed)
    memory_columns = ("yardstick, MiB", "ours", "share", "at most", "")
    names = ("size", "epochs", "algorithm", "replicas", "rest", "total")
    return [
        Table(whole_columns, whole_rows, "The whole result:"),
        Table(("graph", *names, "hidden, K"), factor_rows, "Its factors:"),
        Table((*equal_columns, *memory_columns), equal_rows, "Equal sizes:"),
    ]


def _gpu_tables(record: Mapping[str, Any]) -> list[Table]:
    rows = []
    for name, row in record["graphs"].items():
        for part, key in (("epochs", "epochs_seconds"), ("whole", "seconds")):
            plain, ours = row[f"yardstick_{key}"], row[f"ours_{key}"]
            ratio, bar = plain / ours, GPU_GRAPHS[name]
            judged = [f"{bar:.0f}", _verdict(ratio, bar)] if part == "epochs" else ["", ""]
            seconds = [f"{plain:.1f}", f"{ours:.2f}", f"{ratio:.1f}"]
            rows.append([name, part, *seconds, *judged, *_accuracies(row)])
    columns = ("graph", "part", "yardstick, s", "ours, s", "times faster", "required", "")
    return [Table((*columns, "yardstick %", "ours %"), rows)]


def _verdict(ratio: float, required: float) -> str:
    return Bar("speed-up", ratio, required, at_most=False).verdict


def _accuracies(row: Mapping[str, Any]) -> list[str]:
    pairs = (row["yardstick_accuracy"], row["ours_accuracy"])
    return [f"{mean:.1f} ± {std:.1f}" for mean, std in pairs]
