"""The forms of diffusion that need no N×N matrix, against the matrix: error and test score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS, load
from hpgmn.models import find_model
from hpgmn.models.shipped import settings_for
from hpgmn.statistics import LocalStatistics
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

EXACT, FORMS = "dense", ("topk", "sketch")
GRAPHS = ("chameleon", "squirrel", "crocodile")
"""Where the forms are trained."""
ERROR_GRAPHS = ("texas", "chameleon", "squirrel")
"""Where their error is measured: the Gram matrix of S is N×N, too."""
STATISTICS = ["attributes", "class_counts", "class_means", "diffusion"]

ABOUT = f"""\
Diffusion as its largest entries (`topk`) and as a random sketch (`sketch`), against the exact
matrix (`dense`). The error of `topk` is ‖S - found‖ / ‖S‖ over all rows, that of the sketch
‖SΩ(SΩ)ᵀ - SSᵀ‖ / ‖SSᵀ‖, because a layer on a sketch sees which rows are alike, not their entries;
both in Frobenius norm, for neighbours "out". Test scores are those of HP-GMN with the settings
shipped for the graph and the statistics {", ".join(STATISTICS).replace("_", " ")}, the form alone
changed. Where several rates of dropping columns of diffusion are given, validation chooses one for
each form: a column of the sketch is a mixture of all nodes, of the others a node. Differences are
paired over splits, and their 95 % intervals widened for the overlap of splits."""


def settings_of(graph: str, form: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """HP-GMN's settings for a graph, with diffusion in one form."""
    shipped = settings_for(graph if graph in DATASETS else None)
    own = {"statistics": STATISTICS, "diffusion_form": form}
    return complete(shipped | own | dict(changes))


def measure(
    out: Path,
    *,
    command: str,
    graphs: Sequence[str] = GRAPHS,
    error_graphs: Sequence[str] = ERROR_GRAPHS,
    splits: Sequence[int] | None = None,
    seeds: int = 1,
    changes: Mapping[str, Any],
    dropouts: Sequence[float] = (),
    device: str = "cpu",
    say: Callable[[str], None],
) -> Record:
    """Measure errors and train every form; what was done before for the same is not done again.

    Args:
        out: the folder of the benchmark.
        command: what to type to make the record again.
        graphs: where to train: dataset names, graph files or folders.
        error_graphs: where to measure errors.
        splits: their numbers; None for all.
        seeds: how many on each split.
        changes: settings other than the shipped ones.
        dropouts: rates of ``diffusion_dropout`` of which validation chooses one for each form; if
            empty, the shipped one.
        device: "cpu" or "cuda".
        say: called with a line of progress.
    """
    if seeds < 1:
        raise SettingError(f"--seeds must be at least 1 (got {seeds}).")
    if "diffusion_form" in changes:
        raise SettingError("diffusion_form is what this benchmark changes. Leave it out of --set.")
    settings = {name: settings_of(name, EXACT, changes) for name in (*graphs, *error_graphs)}
    record = head("forms", command, device, seeds=list(range(seeds)), settings=settings)
    record |= {"errors": {}, "graphs": {}}
    for name in error_graphs:
        say(f"{name}: errors")
        graph = load(name)
        record["errors"][graph.name] = errors(graph, settings[name], device)
    for name in graphs:
        graph = load(name)
        numbers = checked_splits(graph, splits)
        runs = {}
        for form in (EXACT, *FORMS):
            say(f"{name}: {form}")
            own = [{"diffusion_dropout": rate} for rate in dropouts] or [{}]
            runs[form] = runs_of(
                graph,
                [settings_of(name, form, dict(changes) | one) for one in own],
                numbers,
                seeds,
                device=device,
                path=out / "parts" / f"{graph.name}-{form}.json",
                what=f"{graph.name} {form}",
            )
        record["graphs"][graph.name] = {
            "splits": numbers,
            "test_per_train": ratio_of_test(graph, numbers),
            "runs": runs,
        }
    return record


def errors(graph: Graph, values: Mapping[str, Any], device: str) -> Record:
    """The error of each form, with self entries and without."""
    settings: Any = make_settings(find_model("hpgmn").settings, values)
    found: Record = {form: {} for form in FORMS}
    for words, self_entry in (("with self entries", True), ("without", False)):
        exact, topk, sketch = (
            _rows(graph, replace(settings, diffusion_form=form), self_entry, device)
            for form in (EXACT, *FORMS)
        )
        found["topk"][words] = _relative(topk, exact)
        found["sketch"][words] = _relative(sketch @ sketch.T, exact @ exact.T)
    return found


def _rows(graph: Graph, settings: Any, self_entry: bool, device: str) -> Tensor:
    """All rows of the statistic as it is built for a model, unscaled: (N, width)."""
    chosen = replace(
        settings,
        statistics=("diffusion",),
        neighbors="out",
        diffusion_scaling="raw",
        diffusion_self_entry=self_entry,
    )
    nobody = np.full((1, graph.num_nodes), -1)  # diffusion reads no labels
    built = LocalStatistics(graph, device).build(nobody, graph.num_classes, [chosen])
    return built["diffusion"].rows(torch.arange(graph.num_nodes, device=device)).double()


def _relative(found: Tensor, exact: Tensor) -> float:
    return float(torch.linalg.norm(found - exact) / torch.linalg.norm(exact))


# What the record says.


def differences(record: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """For each graph and form its difference to the exact matrix."""
    return {
        (name, form): difference(about["runs"][form], about["runs"][EXACT], about)
        for name, about in record["graphs"].items()
        for form in FORMS
    }


def bars(record: Mapping[str, Any]) -> list[Bar]:
    """What the forms have to reach."""
    return [
        difference_bar(f"{name}, {form} minus {EXACT}", found)
        for (name, form), found in differences(record).items()
    ]


def tables(record: Mapping[str, Any]) -> list[Table]:
    """The record as tables: errors, scores and differences, the bars."""
    error_rows = [
        [name, *(f"{error:.3g}" for form in FORMS for error in own[form].values())]
        for name, own in record["errors"].items()
    ]
    found = differences(record)
    rows = [
        [
            name,
            form,
            f"{runs['settings']['diffusion_dropout']:g}",
            score_words(runs),
            "" if form == EXACT else difference_words(found[name, form]),
            f"{runs['seconds']:.0f}",
        ]
        for name, about in record["graphs"].items()
        for form, runs in about["runs"].items()
    ]
    shown = []
    if error_rows:
        words = ("with self entries", "without")
        columns = ("error on", *(f"{form}, {word}" for form in FORMS for word in words))
        shown.append(Table(columns, error_rows))
    if rows:
        columns = ("graph", "form", "dropout", "test %", f"minus {EXACT} (95 %)", "seconds")
        shown += [Table(columns, rows), bars_table(bars(record))]
    return shown
