"""The same model in two ways on the same splits: scores side by side, their difference judged."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from hpgmn_lab.bench.clock import Lines
from hpgmn_lab.bench.records import Bar, Record, kept

MODEL = "hpgmn"
BEHIND = 0.5
"""The mean difference may be so many points below zero."""


def checked_splits(graph: Graph, asked: Sequence[int] | None) -> list[int]:
    """The numbers of the splits to train, all of them for None; each can be trained on."""
    numbers = list(range(len(graph.splits or []))) if asked is None else list(asked)
    for number in numbers or [0]:
        check_split(graph, graph.split(number), number)
    return numbers


def complete(values: Mapping[str, Any]) -> dict[str, Any]:
    """HP-GMN's settings with all the defaults, checked."""
    return settings_dict(make_settings(find_model(MODEL).settings, values))


def runs_of(
    graph: Graph,
    candidates: Sequence[Mapping[str, Any]],
    splits: Sequence[int],
    seeds: int,
    *,
    device: str,
    path: Path,
    what: str,
) -> Record:
    """Train HP-GMN on every split and seed, score it once; kept, so that long work can be cut.

    Args:
        graph: the graph.
        candidates: complete settings; of several, the highest mean validation score chooses one,
            and the test labels are read for that one alone.
        splits: the numbers of the splits.
        seeds: how many seeds on each split.
        device: "cpu" or "cuda".
        path: where the answer is kept.
        what: what lines of progress begin with.
    """
    asked = {
        "graph": [graph.fingerprint, _labels_digest(graph)],
        "candidates": [dict(one) for one in candidates],
        "splits": list(splits),
        "seeds": seeds,
        "version": __version__,
        "machine": hardware(device),
    }
    return kept(path, asked, lambda: _runs(graph, candidates, splits, seeds, device, what))


def _labels_digest(graph: Graph) -> str:
    """Of labels and splits, which the fingerprint of a graph does not hold."""
    digest = hashlib.blake2b(graph.y.tobytes(), digest_size=16)
    if graph.splits is not None:
        for mask in (graph.splits.train, graph.splits.val, graph.splits.test):
            digest.update(mask.tobytes())
    return digest.hexdigest()


def _runs(
    graph: Graph,
    candidates: Sequence[Mapping[str, Any]],
    splits: Sequence[int],
    seeds: int,
    device: str,
    what: str,
) -> Record:
    entry = find_model(MODEL)
    metric = DATASETS[graph.name].metric if graph.name in DATASETS else "accuracy"
    pairs = [(graph.split(split), split, seed) for split in splits for seed in range(seeds)]
    means: list[float] = []
    best: tuple[Fitted, Record] | None = None
    for values in candidates:
        chosen = make_settings(entry.settings, values)
        started = time.perf_counter()
        fitted = fit_replicas(
            graph,
            entry,
            [Replica(split, seed, chosen) for _, split, seed in pairs],
            [(own.train, own.val) for own, _, _ in pairs],
            device=device,
            metric=metric,
            report=Lines(what),
        )
        seconds = time.perf_counter() - started
        means.append(float(fitted.val_score.mean()))
        if means[-1] == max(means):
            best = fitted, {"settings": dict(values), "seconds": seconds}
    assert best is not None
    fitted, about = best
    return about | {
        "metric": metric,
        "tried_val_score": means,
        "val_score": fitted.val_score.tolist(),
        "test_score": scores(fitted.logits, graph.y, [own.test for own, _, _ in pairs], metric),
        "epochs": fitted.best_epoch["main"].tolist(),
    }


def ratio_of_test(graph: Graph, splits: Sequence[int]) -> float:
    """The number of test nodes divided by that of train nodes, on the mean over splits."""
    chosen = [graph.split(number) for number in splits]
    return float(np.mean([one.test.sum() / one.train.sum() for one in chosen]))


def difference(first: Record, second: Record, about: Mapping[str, Any]) -> Difference:
    """First minus second in points, with its 95 % interval.

    Args:
        first: runs of :func:`runs_of`.
        second: those to compare with, on the same splits.
        about: ``splits`` and ``test_per_train`` of the graph.
    """
    ours, theirs = ([100 * value for value in runs["test_score"]] for runs in (first, second))
    return paired_difference(
        ours, theirs, splits=len(about["splits"]), test_per_train=about["test_per_train"]
    )


def difference_words(found: Difference) -> str:
    """A difference in points with its interval.

    >>> difference_words(Difference(-0.74, -0.91, -0.575, 10, "splits"))
    '-0.74 (-0.91 to -0.57)'
    """
    if found.low is None or found.high is None:
        return f"{found.mean:+.2f}"
    return f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def difference_bar(what: str, found: Difference, *, zero_suffices: bool = False) -> Bar:
    """A difference that must not be far below zero.

    Args:
        what: what is compared.
        found: the difference.
        zero_suffices: whether an interval that holds zero is enough.
    """
    holds_zero = found.low is not None and found.high is not None and found.low <= 0 <= found.high
    excuse = "reached: the interval holds 0" if zero_suffices and holds_zero else ""
    return Bar(what, found.mean, -BEHIND, " points", at_most=False, excuse=excuse)


def score_words(runs: Record) -> str:
    """Mean and deviation of the test scores in percent."""
    score = Score.of([100 * value for value in runs["test_score"]])
    return f"{score.mean:.1f} ± {score.std:.1f}"
