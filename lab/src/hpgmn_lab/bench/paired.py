"""Variants of HP-GMN on the same splits: scores, and paired differences to a base variant."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpgmn.base.machine import hardware
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.base.version import __version__
from hpgmn.evaluation.scores import Difference, Score, paired_difference, scores
from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import find_model
from hpgmn.models.stage import Replica
from hpgmn.training.checks import check_split
from hpgmn.training.replicas import Fitted, fit_replicas
from hpgmn_lab.bench.process import ProgressLines, say
from hpgmn_lab.bench.records import Bar, Call, Record, Table, reuse

MODEL = "hpgmn"
MAX_POINTS_BEHIND = 0.5
"""The bar: how far the mean difference may be below zero."""

Settings = Mapping[str, Any]


def complete(values: Settings) -> dict[str, Any]:
    """Return HP-GMN's settings with all defaults, validated."""
    return settings_dict(make_settings(find_model(MODEL).settings, values))


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
        seeds: of each split.
    """
    numbers = checked_splits(graph, splits)
    runs = {}
    for name, candidates in variants.items():
        say(f"{graph.name}: {name}")
        request = {
            "graph": [graph.fingerprint, _labels_digest(graph)],
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


def _labels_digest(graph: Graph) -> str:
    """Hash labels and splits, which the fingerprint of a graph does not contain."""
    digest = hashlib.blake2b(graph.y.tobytes(), digest_size=16)
    if graph.splits is not None:
        for mask in (graph.splits.train, graph.splits.val, graph.splits.test):
            digest.update(mask.tobytes())
    return digest.hexdigest()


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


def differences(record: Settings, base: str) -> dict[tuple[str, str], Difference]:
    """Return by graph and variant its difference to the base variant, in points."""
    results = {}
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


def difference_text(difference: Difference) -> str:
    """Format a difference with its interval.

    >>> difference_text(Difference(-0.74, -0.91, -0.575, 10, "splits"))
    '-0.74 (-0.91 to -0.57)'
    """
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.2f}"
    return f"{difference.mean:+.2f} ({difference.low:+.2f} to {difference.high:+.2f})"


def difference_bar(what: str, difference: Difference, *, zero_suffices: bool = False) -> Bar:
    """Return the bar of a difference; an interval that contains zero may suffice."""
    low, high = difference.low, difference.high
    contains_zero = low is not None and high is not None and low <= 0 <= high
    excuse = "reached: the interval contains 0" if zero_suffices and contains_zero else ""
    required = -MAX_POINTS_BEHIND
    return Bar(what, difference.mean, required, " points", at_most=False, excuse=excuse)


def scores_table(record: Settings, base: str, columns: tuple[str, str], setting: str) -> Table:
    """Return a row for each graph and variant: a setting, score, difference to base, seconds.

    Args:
        columns: the headings of the variant and of the setting.
        setting: its name.
    """
    found = differences(record, base)
    rows = [
        [
            graph,
            variant,
            f"{runs['settings'][setting]:g}",
            score_text(runs["test_score"]),
            "" if variant == base else difference_text(found[graph, variant]),
            f"{runs['seconds']:.0f}",
        ]
        for graph, content in record["graphs"].items()
        for variant, runs in content["runs"].items()
    ]
    return Table(("graph", *columns, "test %", f"minus {base} (95 %)", "seconds"), rows)


def score_text(fractions: Sequence[float]) -> str:
    """Format the mean and deviation of scores in percent."""
    score = Score.of([100 * value for value in fractions])
    return f"{score.mean:.1f} ± {score.std:.1f}"
