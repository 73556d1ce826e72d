"""The forms of diffusion without an N×N matrix, against the matrix: error and test score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from typer import Option

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS, load
from hpgmn.models import find_model, settings_for
from hpgmn.statistics import LocalStatistics
from hpgmn_lab.bench.options import (
    Assignments,
    Graphs,
    Seeds,
    Splits,
    changes,
    names,
    numbers,
    split_numbers,
)
from hpgmn_lab.bench.paired import (
    complete,
    difference_bar,
    differences,
    scores_table,
    train_variants,
)
from hpgmn_lab.bench.process import say
from hpgmn_lab.bench.records import Call, Record, Table, bars_table, new_record

BASE, FORMS = "dense", ("topk", "sketch")
GRAPHS = ("chameleon", "squirrel", "crocodile")
ERROR_GRAPHS = ("texas", "chameleon", "squirrel")  # the Gram matrix of S is N×N, too
STATISTICS = ["attributes", "class_counts", "class_means", "diffusion"]


def settings_of(graph: str, form: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return HP-GMN's settings for a graph, with diffusion in one form."""
    shipped = settings_for(graph if graph in DATASETS else None)
    return complete(shipped | {"statistics": STATISTICS, "diffusion_form": form} | dict(changes))


def measure(
    call: Call,
    graphs: Graphs = None,
    error_graphs: Annotated[
        str | None, Option(help="Where errors are measured; '' for none.")
    ] = None,
    splits: Splits = "all",
    seeds: Seeds = 1,
    dropouts: Annotated[
        str, Option(help="Rates of diffusion_dropout, selected on validation [shipped].")
    ] = "",
    set_: Assignments = None,
) -> Record:
    """Compare forms of diffusion with the exact matrix: error and score.

    Interrupted, it resumes when called again with the same --out.
    """
    changed, split_list = changes(set_), split_numbers(splits)
    if "diffusion_form" in changed:
        raise SettingError("This benchmark varies diffusion_form.", "Remove it from --set")
    rates: list[dict[str, float]] = [{}]
    if dropouts:
        rates = [{"diffusion_dropout": rate} for rate in numbers("--dropouts", dropouts)]
    trained, compared = names(graphs), names(error_graphs)
    trained = list(GRAPHS) if trained is None else trained
    compared = list(ERROR_GRAPHS) if compared is None else compared
    settings = {name: settings_of(name, BASE, changed) for name in (*trained, *compared)}
    record = new_record("forms", call, seeds=list(range(seeds)), settings=settings)
    record |= {"errors": {}, "graphs": {}}
    for name in compared:
        say(f"{name}: errors")
        graph = load(name)
        record["errors"][graph.name] = errors(graph, settings[name], call.device)
    for name in trained:
        graph = load(name)
        variants = {
            form: [settings_of(name, form, changed | rate) for rate in rates]
            for form in (BASE, *FORMS)
        }
        runs = train_variants(call, graph, variants, split_list, seeds)
        record["graphs"][graph.name] = runs
    return record


def errors(graph: Graph, values: Mapping[str, Any], device: str) -> Record:
    """Compute the relative error of each form, with self entries and without."""
    settings: Any = make_settings(find_model("hpgmn").settings, values)
    results: Record = {form: {} for form in FORMS}
    for name, self_entry in (("with self entries", True), ("without", False)):
        exact, topk, sketch = (
            _rows(graph, replace(settings, diffusion_form=form), self_entry, device)
            for form in (BASE, *FORMS)
        )
        results["topk"][name] = _relative_error(topk, exact)
        results["sketch"][name] = _relative_error(sketch @ sketch.T, exact @ exact.T)
    return results


def _rows(graph: Graph, settings: Any, self_entry: bool, device: str) -> Tensor:
    """Return all rows of the statistic as a model reads it, unscaled: (N, width)."""
    chosen = replace(
        settings,
        statistics=("diffusion",),
        neighbors="out",
        diffusion_scaling="raw",
        diffusion_self_entry=self_entry,
    )
    unlabelled = np.full((1, graph.num_nodes), -1)  # diffusion reads no labels
    built = LocalStatistics(graph, device).build(unlabelled, graph.num_classes, [chosen])
    return built["diffusion"].rows(torch.arange(graph.num_nodes, device=device)).double()


def _relative_error(approximate: Tensor, exact: Tensor) -> float:
    return float(torch.linalg.norm(approximate - exact) / torch.linalg.norm(exact))


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the errors, the scores and differences, and the bars."""
    results = []
    if record["errors"]:
        rows = [
            [name, *(f"{error:.3g}" for form in FORMS for error in own[form].values())]
            for name, own in record["errors"].items()
        ]
        kinds = [f"{form}, {kind}" for form in FORMS for kind in ("with self entries", "without")]
        results.append(Table(("error on", *kinds), rows))
    if record["graphs"]:
        bars = [
            difference_bar(f"{graph}, {form} minus {BASE}", difference)
            for (graph, form), difference in differences(record, BASE).items()
        ]
        table = scores_table(record, BASE, ("form", "dropout"), "diffusion_dropout")
        results += [table, bars_table(bars)]
    return results
