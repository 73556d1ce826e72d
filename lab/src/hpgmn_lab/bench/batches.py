"""Training in batches of rows against all rows at once, on the same splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from typer import Option

from hpgmn.base.errors import SettingError
from hpgmn.graph.datasets import DATASETS, PROTOCOLS, load
from hpgmn.models import settings_for
from hpgmn.statistics import averaged_statistic
from hpgmn_lab.bench.options import Graphs, Seeds, Splits, changes, names, numbers, split_numbers
from hpgmn_lab.bench.paired import (
    complete,
    difference_bar,
    differences,
    scores_table,
    train_variants,
)
from hpgmn_lab.bench.records import Call, Record, Table, bars_table, new_record

GRAPHS = ("squirrel", "pubmed")
BASE, BATCHED = "all at once", "in batches"


def protocol_of(graph: str) -> str | None:
    """Return the protocol whose splits a graph is trained on; None for its own splits."""
    return "geom-gcn" if graph in PROTOCOLS["geom-gcn"].graphs else None


def variants_of(
    graph: str, batch_size: int, factors: Sequence[float], changes: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Return the settings of both variants; ``changes`` apply to batches only."""
    shipped = complete(settings_for(graph if graph in DATASETS else None))
    # Means over neighbours cannot be computed in batches, so neither variant has them.
    rows = [name for name in shipped["statistics"] if averaged_statistic(name) is None]
    full = complete(shipped | {"statistics": rows})
    batched = complete(full | {"batch_size": batch_size} | dict(changes))
    rates = [complete(batched | {"lr": batched["lr"] * factor}) for factor in factors]
    return {BASE: [full], BATCHED: rates}


def measure(
    call: Call,
    graphs: Graphs = None,
    batch_size: Annotated[int, Option(min=1, help="Train nodes of a step.")] = 512,
    lr_factors: Annotated[
        str, Option(help="Fractions of the shipped learning rate, selected on validation.")
    ] = "1,0.25",
    splits: Splits = "all",
    seeds: Seeds = 1,
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Change a setting of batches only."),
    ] = None,
) -> Record:
    """Compare training in batches of rows with all rows at once: score and seconds.

    Interrupted, it resumes when called again with the same --out.
    """
    factors, split_list = numbers("--lr-factors", lr_factors), split_numbers(splits)
    if min(factors) <= 0:
        raise SettingError(f"--lr-factors takes numbers above 0 (got '{lr_factors}').")
    variants = {
        name: variants_of(name, batch_size, factors, changes(set_))
        for name in names(graphs) or GRAPHS
    }
    settings = {name: {BASE: own[BASE][0], BATCHED: own[BATCHED]} for name, own in variants.items()}
    record = new_record("batches", call, seeds=list(range(seeds)), settings=settings)
    record |= {"batch_size": batch_size, "lr_factors": factors, "graphs": {}}
    for name, own in variants.items():
        graph = load(name, protocol_of(name))
        runs = train_variants(call, graph, own, split_list, seeds)
        record["graphs"][graph.name] = {"protocol": protocol_of(name)} | runs
    return record


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the scores, differences and seconds, and the bars."""
    bars = [
        difference_bar(f"{graph}, {BATCHED} minus {BASE}", difference, zero_suffices=True)
        for (graph, _), difference in differences(record, BASE).items()
    ]
    table = scores_table(record, BASE, (f"rows (batches of {record['batch_size']})", "lr"), "lr")
    return [table, bars_table(bars)]
