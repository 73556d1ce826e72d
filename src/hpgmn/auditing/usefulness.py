"""Whether the graph helps: attributes alone against statistics of neighbours, on validation nodes.

Test labels are not read. All scores are slightly optimistic alike: the same nodes select the epoch.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from hpgmn.base.html import bars_html
from hpgmn.base.settings import make_settings
from hpgmn.evaluation.scores import Difference
from hpgmn.graph import Array, Graph, Split
from hpgmn.models import find_model
from hpgmn.models.hpgmn import estimator_logits
from hpgmn.models.stage import Replica, make_task
from hpgmn.training.checks import SKEWED
from hpgmn.training.replicas import Progress, fit_replicas

ESTIMATOR = "label estimator"
TOGETHER = "all together"
STATISTICS = ("attributes", "class_counts", "class_means", "adjacency")
"""Each is trained alone, then all together."""
SEEDS = 3
SETTINGS: dict[str, Any] = {
    "hidden_dim": 32,
    "num_patterns": 20,
    "epochs": 100,
    "patience": 30,
    "estimator_hidden": 32,
    "estimator_epochs": 100,
    "estimator_patience": 30,
}
"""Small and fixed: the aim is a comparison, not the best score."""

LARGE = 50_000
"""Graphs with more nodes are trained in batches on a sample of nodes."""
LARGE_SETTINGS: dict[str, Any] = {
    "batch_size": 2048,
    "epochs": 15,
    "patience": 5,
    "estimator_epochs": 15,
    "estimator_patience": 5,
}
MOST_NODES = {"train": 10_000, "val": 5_000}
"""The size of that sample."""
LARGE_SEEDS = 1

FEWEST_NODES = 30
"""With fewer nodes no difference is computed."""


@dataclass(frozen=True)
class Contribution:
    """The score of a model with some of the statistics.

    Attributes:
        name: the statistic, "label estimator" or "all together".
        score: on validation nodes, the mean over seeds.
        difference: to the baseline on the same nodes, with its 95 % interval; None for the
            baseline itself.
    """

    name: str
    score: float
    difference: Difference | None


@dataclass(frozen=True)
class Usefulness:
    """Whether the graph helps.

    Attributes:
        metric: "accuracy" or "roc_auc".
        baseline: the better of the two models that read attributes alone: "label estimator" or
            "attributes".
        contributions: label estimator first, all together last.
        is_sampled: whether train and validation nodes are a sample.
        seeds: how many trainings are averaged.
        verdict: one sentence.
        without_twins: all together minus the baseline on validation nodes without a twin in train;
            None if there are no twins, or hardly any other node.
    """

    metric: str
    baseline: str
    contributions: tuple[Contribution, ...]
    train_nodes: int
    val_nodes: int
    is_sampled: bool
    seeds: int
    verdict: str
    without_twins: Difference | None
    seconds: float

    @property
    def difference(self) -> Difference:
        """All statistics together minus the baseline."""
        last = self.contributions[-1].difference
        assert last is not None
        return last

    def _repr_html_(self) -> str:
        scores = {part.name: part.score for part in self.contributions}
        return bars_html(f"Validation {self.metric} of models trained on", scores, ".1%")


def cannot_train(graph: Graph, split: Split | None) -> str | None:
    """Return why a split cannot be trained on; None if it can."""
    if split is None:
        return "there is no split"
    if np.unique(graph.y[split.train & (graph.y >= 0)]).size < 2:
        return "the train nodes have fewer than two classes"
    if (split.val & (graph.y >= 0)).sum() < 2:
        return "there are fewer than two validation nodes"
    return None


def usefulness(
    graph: Graph,
    split: Split,
    *,
    twins: Array | None = None,
    device: torch.device | str = "cpu",
    report: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Usefulness:
    """Train the label estimator, each statistic alone and all together; score on validation.

    Args:
        split: its test nodes are not read.
        twins: (N,) nodes with a twin in train, to compute the difference without them.
        report: called after each epoch.
        should_stop: polled after each epoch; True raises KeyboardInterrupt.
    """
    started = time.perf_counter()
    is_large = graph.num_nodes > LARGE
    train, val = (
        _draw_sample(getattr(split, part) & (graph.y >= 0), most if is_large else None)
        for part, most in MOST_NODES.items()
    )
    seeds = LARGE_SEEDS if is_large else SEEDS
    metric = _metric(graph.y[train], graph.y[val], graph.num_classes)
    entry, truth = find_model("hpgmn"), graph.y[val]
    changes = SETTINGS | (LARGE_SETTINGS if is_large else {})
    # Distinguishing directions doubles the cost.
    changes["neighbors"] = "both" if graph.has_one_way_edges else "undirected"
    logits: dict[str, Array] = {}
    sets = [(name,) for name in STATISTICS] + [STATISTICS]
    for number, statistics in enumerate(sets):
        settings = make_settings(entry.settings, changes | {"statistics": statistics})
        fitted = fit_replicas(
            graph,
            entry,
            [Replica(0, seed, settings) for seed in range(seeds)],
            [(train, val)] * seeds,
            device=device,
            metric=metric,
            report=_with_number(report, number, len(sets)),
            should_stop=should_stop,
        )
        if not logits:  # every fit has the same estimator
            task = make_task(graph, fitted.replicas, [(train, val)] * seeds, device)
            parameters = {key: value.to(device) for key, value in fitted.done["estimator"].items()}
            logits[ESTIMATOR] = _select_nodes(estimator_logits(task, parameters).cpu(), val)
        name = statistics[0] if len(statistics) == 1 else TOGETHER
        logits[name] = _select_nodes(fitted.logits, val)
    values = {name: _values(model_logits, truth, metric) for name, model_logits in logits.items()}
    baseline = max((ESTIMATOR, STATISTICS[0]), key=lambda name: values[name].score)
    contributions = tuple(
        Contribution(
            name, value.score, None if name == baseline else interval(value, values[baseline])
        )
        for name, value in values.items()
    )
    without_twins = None
    if twins is not None:
        pair = (logits[TOGETHER], logits[baseline])
        without_twins = _difference_among(~twins[val], pair, truth, metric)
    num_train, num_val = int(train.sum()), int(val.sum())
    return Usefulness(
        metric=metric,
        baseline=baseline,
        contributions=contributions,
        train_nodes=num_train,
        val_nodes=num_val,
        is_sampled=bool(num_train + num_val < ((split.train | split.val) & (graph.y >= 0)).sum()),
        seeds=seeds,
        verdict=verdict(contributions[-1].difference, metric),
        without_twins=without_twins,
        seconds=time.perf_counter() - started,
    )


def verdict(difference: Difference | None, metric: str) -> str:
    """State in one sentence whether a difference is significant."""
    assert difference is not None
    assert difference.low is not None
    assert difference.high is not None
    name = "ROC-AUC" if metric == "roc_auc" else "Accuracy"
    numbers = (
        f"{name} of all statistics together minus attributes alone: {100 * difference.mean:+.1f} "
        f"points on {difference.count:,} validation nodes (95 % interval "
        f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f})."
    )
    if difference.low > 0:
        return f"The graph helps. {numbers}"
    if difference.high < 0:
        return f"The graph does not help. {numbers}"
    return f"No significant difference. {numbers}"


@dataclass(frozen=True)
class _Values:
    """A score as a mean over nodes, averaged over seeds.

    Attributes:
        groups: for accuracy one array of hits; for ROC-AUC DeLong's placements of each class.
    """

    groups: tuple[Array, ...]

    @property
    def score(self) -> float:
        return float(self.groups[0].mean())


def interval(first: _Values, second: _Values) -> Difference:
    """Return first minus second with a 95 % interval (paired t; DeLong's variance for ROC-AUC)."""
    differences = [a - b for a, b in zip(first.groups, second.groups, strict=True)]
    variance = sum(float(difference.var(ddof=1)) / difference.size for difference in differences)
    count = sum(difference.size for difference in differences)
    half = float(stats.t.ppf(0.975, count - 1)) * math.sqrt(variance)
    mean = round(float(differences[0].mean()), 12) + 0.0  # without rounding errors and -0
    return Difference(mean, mean - half, mean + half, count, "validation nodes")


def _difference_among(
    kept: Array, pair: tuple[Array, Array], truth: Array, metric: str
) -> Difference | None:
    """Return the difference of two models on some of the nodes; None if these are too few."""
    truth = truth[kept]
    is_one_sided = metric == "roc_auc" and np.bincount(truth, minlength=2).min() < 2
    if truth.size < FEWEST_NODES or is_one_sided:
        return None
    first, second = (_values(logits[:, kept], truth, metric) for logits in pair)
    return interval(first, second)


def _select_nodes(logits: Tensor, val: Array) -> Array:
    """Return (R, nodes, C) logits of the validation nodes."""
    return np.asarray(logits[:, torch.from_numpy(val)].numpy())


def _values(logits: Array, truth: Array, metric: str) -> _Values:
    """Return what each node adds to the score of (R, nodes, C) logits."""
    if metric == "accuracy":
        return _Values(((logits.argmax(axis=-1) == truth).mean(axis=0),))
    ranks = logits[..., 1] - logits[..., 0]  # (R, nodes)
    above = [placements(seed_ranks[truth == 1], seed_ranks[truth == 0]) for seed_ranks in ranks]
    below = [placements(-seed_ranks[truth == 0], -seed_ranks[truth == 1]) for seed_ranks in ranks]
    return _Values((np.mean(above, axis=0), np.mean(below, axis=0)))


def placements(scores: Array, others: Array) -> Array:
    """Return for each score the share of the others below it, ties counted half.

    >>> placements(np.array([1.0, 3.0]), np.array([0.0, 1.0, 2.0, 3.0])).tolist()
    [0.375, 0.875]
    """
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    through = np.searchsorted(ordered, scores, side="right")
    return np.asarray((below + through) / (2 * others.size))


def _metric(train_labels: Array, val_labels: Array, classes: int) -> str:
    """Choose ROC-AUC for two skewed classes with two validation nodes each, else accuracy."""
    sizes = np.bincount(train_labels, minlength=classes)
    judged = np.bincount(val_labels, minlength=classes)
    is_skewed = classes == 2 and sizes.max() > SKEWED * sizes.sum()
    return "roc_auc" if is_skewed and judged.min() > 1 else "accuracy"


def _draw_sample(mask: Array, most: int | None) -> Array:
    """Return the mask, reduced to a seeded sample if it has more nodes."""
    nodes = np.flatnonzero(mask)
    if most is None or nodes.size <= most:
        return mask
    chosen = np.zeros_like(mask)
    chosen[np.random.default_rng(0).choice(nodes, most, replace=False)] = True
    return chosen


def _with_number(
    report: Callable[[Progress], None] | None, number: int, count: int
) -> Callable[[Progress], None] | None:
    """Return the callback with the number of the current training added."""
    if report is None:
        return None
    return lambda now: report(dataclasses.replace(now, batch=number, batches=count))
