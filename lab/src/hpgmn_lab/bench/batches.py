"""Training in batches of rows against all rows at once, on the same splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpgmn.base.errors import SettingError
from hpgmn.evaluation.scores import Difference
from hpgmn.graph.datasets import DATASETS, PROTOCOLS, load
from hpgmn.models.shipped import settings_for
from hpgmn.statistics import averaged
from hpgmn_lab.bench.paired import (
    checked_splits,
    complete,
    difference,
    difference_bar,
    difference_words,
    ratio_of_test,
    runs_of,
    score_words,
)
from hpgmn_lab.bench.records import Bar, Record, Table, bars_table, head

GRAPHS = ("squirrel", "pubmed")
SIDES = ("all at once", "in batches")
LR_FACTORS = (1.0, 0.25)
"""The learning rate of batches as shares of the shipped one: they take several steps an epoch."""

ABOUT = """\
HP-GMN with the settings shipped for the graph, trained on all rows in one step and in batches of
rows. An epoch in batches has several steps, so their learning rate is one of a few shares of the
shipped one, chosen by validation; everything else is the same. Neither side has means over
neighbours, which batches cannot have. The citation graphs have the ten splits of the protocol
geom-gcn, because their public split trains on a handful of nodes. Differences are paired over
splits, and their 95 % intervals widened for the overlap of splits."""


def protocol_of(graph: str) -> str | None:
    """The protocol whose splits a graph is trained on; None for its own splits."""
    return "geom-gcn" if graph in PROTOCOLS["geom-gcn"].graphs else None


def candidates_of(
    graph: str,
    batch_size: int,
    factors: Sequence[float],
    changes: Mapping[str, Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings of both sides; of those in batches validation chooses one.

    Args:
        graph: a dataset's name, or any other graph.
        batch_size: train nodes of a step.
        factors: the learning rates of batches as shares of that of the other side.
        changes: settings of batches alone, other than the shipped ones.
    """
    full = _of_rows(complete(settings_for(graph if graph in DATASETS else None)))
    batched = complete(full | {"batch_size": batch_size} | dict(changes))
    return full, [complete(batched | {"lr": batched["lr"] * factor}) for factor in factors]


def _of_rows(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without means over neighbours, which batches cannot have."""
    rows = [name for name in settings["statistics"] if averaged(name) is None]
    return complete({**settings, "statistics": rows})


def measure(
    out: Path,
    *,
    command: str,
    graphs: Sequence[str] = GRAPHS,
    batch_size: int = 512,
    factors: Sequence[float] = LR_FACTORS,
    splits: Sequence[int] | None = None,
    seeds: int = 1,
    changes: Mapping[str, Any],
    device: str = "cpu",
    say: Callable[[str], None],
) -> Record:
    """Train both ways; what was done before for the same is not done again.

    Args:
        out: the folder of the benchmark.
        command: what to type to make the record again.
        graphs: dataset names, graph files or folders.
        batch_size: train nodes of a step.
        factors: learning rates of batches, as shares of the shipped one.
        splits: their numbers; None for all.
        seeds: how many on each split.
        changes: settings of batches alone, other than the shipped ones.
        device: "cpu" or "cuda".
        say: called with a line of progress.
    """
    if seeds < 1:
        raise SettingError(f"--seeds must be at least 1 (got {seeds}).")
    if batch_size < 1:
        raise SettingError(f"--batch-size must be at least 1 (got {batch_size}).")
    if not factors or min(factors) <= 0:
        words = ",".join(f"{factor:g}" for factor in factors)
        raise SettingError(f"--lr-factors takes numbers above 0 (got '{words}').")
    sides = {name: candidates_of(name, batch_size, factors, changes) for name in graphs}
    settings = {name: dict(zip(SIDES, own, strict=True)) for name, own in sides.items()}
    record = head("batches", command, device, seeds=list(range(seeds)), settings=settings)
    record |= {"batch_size": batch_size, "lr_factors": list(factors), "graphs": {}}
    for name, (full, batched) in sides.items():
        graph = load(name, protocol_of(name))
        numbers = checked_splits(graph, splits)
        runs = {}
        for side, candidates in zip(SIDES, ([full], batched), strict=True):
            say(f"{name}: {side}")
            runs[side] = runs_of(
                graph,
                candidates,
                numbers,
                seeds,
                device=device,
                path=out / "parts" / f"{graph.name}-{side.replace(' ', '-')}.json",
                what=f"{graph.name} {side}",
            )
        record["graphs"][graph.name] = {
            "protocol": protocol_of(name),
            "splits": numbers,
            "test_per_train": ratio_of_test(graph, numbers),
            "runs": runs,
        }
    return record


# What the record says.


def differences(record: Mapping[str, Any]) -> dict[str, Difference]:
    """For each graph what batches change."""
    full, batched = SIDES
    return {
        name: difference(about["runs"][batched], about["runs"][full], about)
        for name, about in record["graphs"].items()
    }


def bars(record: Mapping[str, Any]) -> list[Bar]:
    """What batches have to reach."""
    return [
        difference_bar(f"{name}, in batches minus all at once", found, zero_suffices=True)
        for name, found in differences(record).items()
    ]


def tables(record: Mapping[str, Any]) -> list[Table]:
    """The record as tables: scores, differences and seconds, the bars."""
    found = differences(record)
    rows = []
    for name, about in record["graphs"].items():
        for side, runs in about["runs"].items():
            is_full = side == SIDES[0]
            rows.append(
                [
                    name,
                    side if is_full else f"{side} of {record['batch_size']}",
                    f"{runs['settings']['lr']:g}",
                    score_words(runs),
                    "" if is_full else difference_words(found[name]),
                    f"{runs['seconds']:.0f}",
                ]
            )
    columns = ("graph", "rows", "lr", "test %", "minus all at once (95 %)", "seconds")
    return [Table(columns, rows), bars_table(bars(record))]
