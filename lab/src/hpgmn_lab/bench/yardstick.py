"""The package against a plain dense implementation of the paper: compare.json, compare-gpu.json.

``lab/benchmarks/compare.py`` measures and writes the records; here are the bars and the words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpgmn_lab.bench.records import Record, Table, verdict

GRAPHS = {"texas": 10.0, "chameleon": 15.0, "squirrel": 25.0}
"""The graphs of the whole result, and how many times faster it has to be."""
GPU_GRAPHS = {"texas": 10.0, "chameleon": 7.0, "squirrel": 6.0}
"""How many times faster the same work at equal sizes has to be on a GPU."""
REQUIRED = {"diffusion": 2.3, "adjacency": 4.0}
"""How many times faster an epoch at equal sizes has to be, by the fourth statistic."""
MEMORY_SHARE = 1 / 3
"""The most memory at equal sizes, as a share of the yardstick's."""
EPOCHS = 300
"""What the yardstick trains."""

ABOUT = """\
The yardstick, `lab/benchmarks/yardstick.py`, is a plain dense implementation of the paper: dense
class means, a dense N×N diffusion matrix, one split at a time. Both sides are measured in one run,
in fresh processes that take turns; ratios matter, seconds depend on the machine."""

_WHOLE = """\
The yardstick has the released code's sizes (hidden 500, K 200, 300 epochs), timed on
some epochs and scaled; its accuracy is that of one full run on a GPU
(`lab/results/benchmarks/yardstick-*.json`). Ours are the shipped settings, trained in full,
from the graph file to the run folder."""

_FACTORS = """\
Where the factor comes from. *Size*: the yardstick at its own sizes against the yardstick
at ours. *Epochs*: 300 against what our runs trained before stopping. *Algorithm*: the
yardstick at our sizes against ours, one split at a time. *Replicas*: one split at a time
against ten as one model. *Rest*: statistics, label estimator, start and files, and the
replicas that leave the batch early."""

_EQUAL = """\
One split, the paper's model on both sides; an epoch is a train step and an evaluation.
Memory is the peak of a fresh process above the level after imports."""


ABOUT_GPU = """\
The paper's model in full on a GPU: ten splits, hidden 500, K 200, 300 epochs of label estimator and
model, a train step and an evaluation each, products in TF32 on both sides. The yardstick trains one
split after the other (of four the first sets libraries up, the others are timed and scaled to ten;
its accuracy is that of an earlier run of all ten). Ours trains ten as one model, whose epochs are
CUDA graphs. *Epochs* are those of the model alone, which the bar is about; *whole* is from the
graph file to the scores: statistics, estimator, epochs, and the compiling of kernels, which are
kept on disk after the first graph. Imports are in neither."""


def command_for(repeats: int, device: str = "cpu") -> str:
    """What to type to make the record again."""
    command = f"python lab/benchmarks/compare.py --data $HPGMN_DATA --repeats {repeats}"
    return command if device == "cpu" else f"{command} --device {device}"


def factors(row: Mapping[str, Any]) -> dict[str, float]:
    """The speed-up of a whole result as a product.

    size: the yardstick at its sizes against the yardstick at ours, per epoch; epochs: 300 against
    what our runs trained; algorithm: the yardstick at our sizes against ours one split at a time;
    replicas: one split at a time against ten at once; rest: what remains (statistics, estimator,
    start, files).
    """
    parts = {
        "size": row["yardstick_per_epoch"] / row["yardstick_per_epoch_at_our_sizes"],
        "epochs": EPOCHS / row["ours_epochs"],
        "algorithm": row["yardstick_per_epoch_at_our_sizes"] / row["ours_per_epoch_alone"],
        "replicas": row["ours_per_epoch_alone"] / row["ours_per_epoch_together"],
    }
    total = row["yardstick_seconds"] / row["ours_seconds"]
    return parts | {"rest": total / math.prod(parts.values()), "total": total}


def sections(record: Record) -> list[str]:
    """The record in words and tables."""
    whole, equal = record["whole_result"], record["equal_sizes"]
    parts = {name: factors(row) for name, row in whole.items()}
    return [
        "### The whole result: ten splits",
        _WHOLE,
        Table(
            (
                *("graph", "yardstick, s", "ours, s", "times faster", "required", ""),
                *("yardstick %", "ours %"),
            ),
            [_whole_row(name, row) for name, row in whole.items()],
        ).markdown(),
        _FACTORS,
        Table(
            ("graph", "size", "epochs", "algorithm", "replicas", "rest", "total", "hidden, K"),
            [
                [name, *(f"{part:.2f}" for part in own.values()), _sizes(whole[name])]
                for name, own in parts.items()
            ],
        ).markdown(),
        "### Equal sizes: hidden 128, K 100, squirrel",
        _EQUAL,
        Table(
            (
                *("fourth statistic", "yardstick, s per epoch", "ours", "times faster", "required"),
                *("", "yardstick, MiB", "ours", "share", "at most", ""),
            ),
            [_equal_row(name, row) for name, row in equal.items()],
        ).markdown(),
    ]


def _whole_row(name: str, row: Mapping[str, Any]) -> list[str]:
    ratio, bar = row["yardstick_seconds"] / row["ours_seconds"], GRAPHS[name]
    return [
        name,
        f"{row['yardstick_seconds']:.0f}",
        f"{row['ours_seconds']:.1f}",
        f"{ratio:.1f}",
        f"{bar:.0f}",
        verdict(ratio, bar),
        *(
            f"{mean:.1f} ± {std:.1f}"
            for mean, std in (row["yardstick_accuracy"], row["ours_accuracy"])
        ),
    ]


def _sizes(row: Mapping[str, Any]) -> str:
    return f"{row['hidden']}, {row['patterns']}"


def _equal_row(name: str, row: Mapping[str, Any]) -> list[str]:
    ratio, bar = row["yardstick_per_epoch"] / row["ours_per_epoch"], REQUIRED[name]
    share = row["ours_memory"] / row["yardstick_memory"]
    return [
        f"{name} rows",
        *(f"{row[key]:.3f}" for key in ("yardstick_per_epoch", "ours_per_epoch")),
        f"{ratio:.2f}",
        f"{bar:.1f}",
        verdict(ratio, bar),
        *(f"{row[key] / 2**20:.0f}" for key in ("yardstick_memory", "ours_memory")),
        f"{share:.2f}",
        f"{MEMORY_SHARE:.2f}",
        verdict(share, MEMORY_SHARE, at_most=True),
    ]


def gpu_sections(record: Record) -> list[str]:
    """The record of a GPU as a table."""
    return [
        Table(
            (
                *("graph", "part", "yardstick, s", "ours, s", "times faster", "required", ""),
                *("yardstick %", "ours %"),
            ),
            [
                row
                for name, own in record["graphs"].items()
                for row in (
                    _gpu_row(name, "epochs", own, "epochs_seconds"),
                    _gpu_row(name, "whole", own, "seconds"),
                )
            ],
        ).markdown()
    ]


def _gpu_row(name: str, part: str, row: Mapping[str, Any], key: str) -> list[str]:
    plain, ours = row[f"yardstick_{key}"], row[f"ours_{key}"]
    bar = GPU_GRAPHS[name]
    judged = [f"{bar:.0f}", verdict(plain / ours, bar)] if part == "epochs" else ["", ""]
    return [
        *(name, part, f"{plain:.1f}", f"{ours:.2f}", f"{plain / ours:.1f}", *judged),
        *(
            f"{mean:.1f} ± {std:.1f}"
            for mean, std in (row["yardstick_accuracy"], row["ours_accuracy"])
        ),
    ]


def gpu_disturbance(record: Mapping[str, Any]) -> float:
    """:func:`disturbance` of the record of a GPU."""
    return max(float(row["cores_taken_by_others"]) for row in record["graphs"].values())


def disturbance(record: Mapping[str, Any]) -> float:
    """The most cores that others took during any of the measurements."""
    return max(
        float(row["cores_taken_by_others"])
        for part in ("whole_result", "equal_sizes")
        for row in record[part].values()
    )
