"""Variants of HP-GMN on the same splits, with paired differences to a base variant.

``forms``: diffusion without an N×N matrix, against the matrix. ``batches``: training in batches of
rows, against all rows at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from typer import Option

from hpgmn.base.errors import SettingError
from hpgmn.base.machine import hardware
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.base.version import __version__
from hpgmn.evaluation.scores import Difference, Score, paired_difference, scores
from hpgmn.graph import Graph
from hpgmn.graph.content import graph_content
from hpgmn.graph.datasets import DATASETS, PROTOCOLS, load
from hpgmn.models import find_model, settings_for
from hpgmn.models.stage import Replica
from hpgmn.statistics import LocalStatistics, averaged_statistic
from hpgmn.training.checks import check_split
from hpgmn.training.replicas import Fitted, fit_replicas
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
from hpgmn_lab.bench.process import ProgressLines, say
from hpgmn_lab.bench.records import Bar, Call, Record, Table, bars_table, new_record, reuse
from hpgmn_lab.records import interval_text

MODEL = "hpgmn"
MAX_POINTS_BEHIND = 0.5
"""The bar: how far the mean difference may be below zero."""

FORMS = ("topk", "sketch")
STATISTICS = ["attributes", "class_counts", "class_means", "diffusion"]
BATCHED = "in batches"
BASES = {"forms": "dense", "batches": "all at once"}
"""The variant that the others of a benchmark are compared with."""

Settings = Mapping[str, Any]


def complete(values: Settings) -> dict[str, Any]:
    """Return HP-GMN's settings with all defaults, validated."""
    return settings_dict(make_settings(find_model(MODEL).settings, values))


def _shipped(graph: str) -> dict[str, Any]:
    return dict(settings_for(graph if graph in DATASETS else None))


# Forms of diffusion.


def measure_forms(
    call: Call,
    graphs: Graphs = "chameleon,squirrel,crocodile",
    error_graphs: Annotated[
        str, Option(help="Where errors are measured; '' for none.")
    ] = "texas,chameleon,squirrel",  # the Gram matrix of S is N×N, too
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
    trained, compared, base = names(graphs), names(error_graphs), BASES["forms"]
    settings = {name: form_settings(name, base, changed) for name in (*trained, *compared)}
    record = new_record("forms", call, seeds=list(range(seeds)), settings=settings)
    record |= {"errors": {}, "graphs": {}}
    for name in compared:
        say(f"{name}: errors")
        graph = load(name)
        record["errors"][graph.name] = errors(graph, settings[name], call.device)
    for name in trained:
        graph = load(name)
        variants = {
            form: [form_settings(name, form, changed | rate) for rate in rates]
            for form in (base, *FORMS)
        }
        record["graphs"][graph.name] = train_variants(call, graph, variants, split_list, seeds)
    return record


def form_settings(graph: str, form: str, changes: Settings) -> dict[str, Any]:
    """Return HP-GMN's settings for a graph, with diffusion in one form."""
    return complete(
        _shipped(graph) | {"statistics": STATISTICS, "diffusion_form": form} | dict(changes)
    )


def errors(graph: Graph, values: Settings, device: str) -> Record:
    """Compute the relative error of each form, with self entries and without."""
    settings: Any = make_settings(find_model(MODEL).settings, values)
    results: Record = {form: {} for form in FORMS}
    for name, self_entry in (("with self entries", True), ("without", False)):
        exact, topk, sketch = (
            _rows(graph, replace(settings, diffusion_form=form), self_entry, device)
            for form in (BASES["forms"], *FORMS)
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


# Batches of rows.


def measure_batches(
    call: Call,
    graphs: Graphs = "squirrel,pubmed",
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
    changed, base = changes(set_), BASES["batches"]
    variants = {name: batch_variants(name, batch_size, factors, changed) for name in names(graphs)}
    settings = {name: own | {base: own[base][0]} for name, own in variants.items()}
    record = new_record("batches", call, seeds=list(range(seeds)), settings=settings)
    record |= {"batch_size": batch_size, "lr_factors": factors, "graphs": {}}
    for name, own in variants.items():
        protocol = "geom-gcn" if name in PROTOCOLS["geom-gcn"].graphs else None
        graph = load(name, protocol)
        runs = train_variants(call, graph, own, split_list, seeds)
        record["graphs"][graph.name] = {"protocol": protocol} | runs
    return record


def batch_variants(
    graph: str, batch_size: int, factors: Sequence[float], changes: Settings
) -> dict[str, list[dict[str, Any]]]:
    """Return the settings of both variants; ``changes`` apply to batches only."""
    shipped = complete(_shipped(graph))
    # Means over neighbours cannot be computed in batches, so neither variant has them.
    rows = [name for name in shipped["statistics"] if averaged_statistic(name) is None]
    full = complete(shipped | {"statistics": rows})
    batched = complete(full | {"batch_size": batch_size} | dict(changes))
    rates = [complete(batched | {"lr": batched["lr"] * factor}) for factor in factors]
    return {BASES["batches"]: [full], BATCHED: rates}


# Training.


def train_variants(
    call: Call,
    graph: Graph,
    variants: Mapping[str, Sequence[Settings]],
    splits: Sequence[int] | None,
    seeds: int,
) -> Record:
    """Train HP-GMN in every variant on the same splits and seeds; finished variants are reused.

    Args:
        variants: by name, complete settings; of several, one is selected on validation, and only
            its test score is computed.
        splits: their numbers; None for all.
    """
    numbers = checked_splits(graph, splits)
    runs = {}
    for name, candidates in variants.items():
        say(f"{graph.name}: {name}")
        request = {
            "graph": graph_content(graph, numbers),
            "candidates": [dict(candidate) for candidate in candidates],
            "splits": numbers,
            "seeds": seeds,
            "version": __version__,
            "machine": hardware(call.device),
        }
        path = call.out / "parts" / f"{graph.name}-{name.replace(' ', '-')}.json"
        lines = ProgressLines(f"{graph.name} {name}")
        runs[name] = reuse(path, request, lambda: _train(graph, request, call.device, lines))  # noqa: B023
    masks = [graph.split(number) for number in numbers]
    ratio = float(np.mean([mask.test.sum() / mask.train.sum() for mask in masks]))
    return {"splits": numbers, "test_per_train": ratio, "runs": runs}


def checked_splits(graph: Graph, requested: Sequence[int] | None) -> list[int]:
    """Return the numbers of the splits to train, all of them for None, each validated."""
    numbers = list(range(len(graph.splits or []))) if requested is None else list(requested)
    for number in numbers or [0]:
        check_split(graph, graph.split(number), number)
    return numbers


def _train(graph: Graph, request: Settings, device: str, report: Callable[..., None]) -> Record:
    entry = find_model(MODEL)
    metric = DATASETS[graph.name].metric if graph.name in DATASETS else "accuracy"
    pairs = [(split, seed) for split in request["splits"] for seed in range(request["seeds"])]
    masks = [graph.split(split) for split, _ in pairs]
    means: list[float] = []
    best: tuple[Fitted, Record] | None = None
    for values in request["candidates"]:
        settings = make_settings(entry.settings, values)
        started = time.perf_counter()
        fitted = fit_replicas(
            graph,
            entry,
            [Replica(split, seed, settings) for split, seed in pairs],
            [(mask.train, mask.val) for mask in masks],
            device=device,
            metric=metric,
            report=report,
        )
        seconds = time.perf_counter() - started
        means.append(float(fitted.val_score.mean()))
        if means[-1] == max(means):
            best = fitted, {"settings": dict(values), "seconds": seconds}
    assert best is not None
    fitted, facts = best
    return facts | {
        "metric": metric,
        "tried_val_score": means,
        "val_score": fitted.val_score.tolist(),
        "test_score": scores(fitted.logits, graph.y, [mask.test for mask in masks], metric),
        "epochs": fitted.best_epoch["main"].tolist(),
    }


# Read the record.


def differences(record: Settings) -> dict[tuple[str, str], Difference]:
    """Return by graph and variant its difference to the base variant, in points."""
    base, results = BASES[record["benchmark"]], {}
    for graph, content in record["graphs"].items():
        percent = {
            variant: [100 * score for score in runs["test_score"]]
            for variant, runs in content["runs"].items()
        }
        for variant in (variant for variant in percent if variant != base):
            results[graph, variant] = paired_difference(
                percent[variant],
                percent[base],
                splits=len(content["splits"]),
                test_per_train=content["test_per_train"],
            )
    return results


def tables(record: Settings) -> list[Table]:
    """Return the errors, the scores and differences, and the bars."""
    results = []
    if record.get("errors"):
        rows = [
            [name, *(f"{error:.3g}" for form in FORMS for error in own[form].values())]
            for name, own in record["errors"].items()
        ]
        kinds = [f"{form}, {kind}" for form in FORMS for kind in ("with self entries", "without")]
        results.append(Table(("error on", *kinds), rows))
    if record["graphs"]:
        results += [_scores_table(record), _bars_table(record)]
    return results


def _scores_table(record: Settings) -> Table:
    """Return a row for each graph and variant: a setting, score, difference to base, seconds."""
    found, base = differences(record), BASES[record["benchmark"]]
    columns, setting = ("form", "dropout"), "diffusion_dropout"
    if record["benchmark"] == "batches":
        columns, setting = (f"rows (batches of {record['batch_size']})", "lr"), "lr"
    rows = []
    for graph, content in record["graphs"].items():
        for variant, runs in content["runs"].items():
            score = Score.of([100 * value for value in runs["test_score"]])
            gap = found.get((graph, variant))
            rows.append(
                [
                    graph,
                    variant,
                    f"{runs['settings'][setting]:g}",
                    f"{score.mean:.1f} ± {score.std:.1f}",
                    "" if gap is None else interval_text([gap.mean, gap.low, gap.high], 2),
                    f"{runs['seconds']:.0f}",
                ]
            )
    return Table(("graph", *columns, "test %", f"minus {base} (95 %)", "seconds"), rows)


def _bars_table(record: Settings) -> Table:
    """Return the bars; for batches an interval that contains zero suffices."""
    base, bars = BASES[record["benchmark"]], []
    for (graph, variant), gap in differences(record).items():
        contains_zero = gap.low is not None and gap.high is not None and gap.low <= 0 <= gap.high
        suffices = record["benchmark"] == "batches" and contains_zero
        excuse = "reached: the interval contains 0" if suffices else ""
        what, required = f"{graph}, {variant} minus {base}", -MAX_POINTS_BEHIND
        bars.append(Bar(what, gap.mean, required, " points", at_most=False, excuse=excuse))
    return bars_table(bars)
