"""Check splits and labels before a training: refuse what cannot be trained, warn of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpgmn.base.calibration import RARE
from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.metrics import has_positive, rarest_class
from hpgmn.base.tasks import hide_labels
from hpgmn.graph import Array, Graph, Split

SKEWED = 0.8
"""Classes are skewed if the largest has more than this share of the labelled nodes."""

FEW_NODES = 3
"""A class with fewer train nodes than this is hardly learned."""


@dataclass(frozen=True)
class LabelCounts:
    """Numbers of nodes by class: all that the checks need of two large arrays.

    Attributes:
        train: (C,) train nodes.
        val: (C,) validation nodes.
        every: (C,) all nodes.
        sizes: of "train" and "val", nodes of unknown class included.
    """

    train: Array
    val: Array
    every: Array
    sizes: dict[str, int]

    @classmethod
    def of(cls, y: Array, split: Split, num_classes: int) -> LabelCounts:
        """Count nodes by their class number, -1 unknown, and role."""

        def count(labels: Array) -> Array:
            return np.bincount(labels[labels >= 0], minlength=num_classes)

        sizes = {"train": int(split.train.sum()), "val": int(split.val.sum())}
        return cls(count(y[split.train]), count(y[split.val]), count(y), sizes)

    def __add__(self, other: LabelCounts) -> LabelCounts:
        sizes = {part: size + other.sizes[part] for part, size in self.sizes.items()}
        return LabelCounts(
            self.train + other.train, self.val + other.val, self.every + other.every, sizes
        )


def check_split(graph: Graph, split: Split, number: int | str) -> list[str]:
    """Refuse a split that cannot be trained on; return warnings."""
    if graph.is_regression:
        return _check_targets(graph, split, number)
    counts = LabelCounts.of(graph.y, split, graph.num_classes)
    return check_counts(counts, graph.class_names, graph.name, number)


def _check_targets(graph: Graph, split: Split, number: int | str) -> list[str]:
    """Refuse a split whose targets cannot be learned or validated; return warnings."""
    _require_nodes(
        {part: int(getattr(split, part).sum()) for part in ("train", "val")}, graph.name, number
    )
    low, high = (float(edge(graph.y[split.train])) for edge in (np.min, np.max))
    if low == high:
        raise HPGMNError(
            f"The target is {low:g} on all train nodes of split {number} of '{graph.name}'.",
            "Label nodes with other targets",
        )
    return []


def check_counts(
    counts: LabelCounts, class_names: Sequence[str], graph: str, number: int | str
) -> list[str]:
    """Refuse the counts of a split that cannot be trained on; return warnings."""
    _require_nodes(counts.sizes, graph, number)
    seen = int((counts.train > 0).sum())
    if seen < 2:
        raise HPGMNError(
            f"Split {number} of '{graph}' has train nodes of {seen} class only; "
            "classification needs at least two.",
            "Label more nodes, of another class",
        )
    warnings = []
    missing = [class_names[int(c)] for c in np.flatnonzero(counts.train == 0)]
    if missing:
        names = ", ".join(missing)
        warnings.append(
            f"Split {number}: no train node of class {names}; it can never be predicted well."
        )
    validated = np.flatnonzero(counts.val)
    if len(validated) == 1:
        warnings.append(
            f"Split {number}: all validation nodes are of class {class_names[validated[0]]}, so "
            "they select the best epoch and model poorly. Label others, or make other splits."
        )
    return warnings


def _require_nodes(sizes: dict[str, int], graph: str, number: int | str) -> None:
    for part, size in sizes.items():
        if not size:
            raise HPGMNError(
                f"Split {number} of '{graph}' has no {part} nodes.",
                Remedy("Give it some") | "Let hpgmn.random_splits(graph) make splits",
            )


def scarce_classes(counts: Array, class_names: Sequence[str]) -> list[str]:
    """Warn of classes that have few train nodes, from (S, C) counts of each split."""
    is_scarce = (counts > 0) & (counts < FEW_NODES)
    names = [f"'{class_names[int(c)]}'" for c in np.flatnonzero(is_scarce.any(axis=0))]
    if not names:
        return []
    number = int(is_scarce.any(axis=1).sum())
    where = "the split" if len(counts) == 1 else f"{number} of {len(counts)} splits"
    subject = f"Class {names[0]} has" if len(names) == 1 else f"Classes {', '.join(names)} have"
    return [
        f"{subject} fewer than {FEW_NODES} train nodes in {where}: too few to learn "
        "from. Label more nodes, or merge classes."
    ]


RARE_AMONG_MANY = 0.2
"""The rarest of more than two classes is rare below this part of an even share."""


def fitting_metric(labels: Array, class_names: Sequence[str]) -> tuple[str, str]:
    """Return the metric that fits the classes of train nodes, and the reason.

    Args:
        labels: of the train nodes, -1 where unknown.

    >>> fitting_metric(np.array([0] * 95 + [1] * 5), ["paid", "fraud"])
    ('average_precision', "5 % of the train nodes are of class 'fraud'")
    >>> fitting_metric(np.array([0, 1, 1]), ["paid", "fraud"])
    ('accuracy', 'no class is rare (the rarest has 33 % of the train nodes)')
    """
    counts = np.bincount(labels[labels >= 0], minlength=len(class_names))
    present = np.flatnonzero(counts)
    if len(present) < 2:  # refused later
        return "accuracy", "no class is rare"
    rarest = int(present[counts[present].argmin()])
    share = counts[rarest] / counts.sum()
    if share >= (RARE if len(present) == 2 else RARE_AMONG_MANY / len(present)):
        reason = f"no class is rare (the rarest has {100 * share:.2g} % of the train nodes)"
        return "accuracy", reason
    metric = metric_for_skewed(len(class_names))
    return metric, f"{100 * share:.2g} % of the train nodes are of class '{class_names[rarest]}'"


def metric_for_skewed(num_classes: int) -> str:
    """Return the metric to use instead of accuracy where one class has nearly all nodes."""
    return "average_precision" if num_classes == 2 else "balanced_accuracy"


def skewed_classes(counts: Array, class_names: Sequence[str], metric: str) -> list[str]:
    """Warn of accuracy where nearly all labelled nodes are of one class, from (C,) counts."""
    share = counts.max() / counts.sum()
    if share <= SKEWED or metric != "accuracy":
        return []
    return [
        f"{100 * share:.0f} % of the labelled nodes are of class "
        f"'{class_names[int(counts.argmax())]}', so accuracy says little. Use the metric "
        f"{metric_for_skewed(len(class_names))}."
    ]


def seen_labels(graph: Graph, splits: Sequence[Split]) -> Array:
    """Return (S, N) the labels that training and selection may see, unknown elsewhere."""
    return np.stack([hide_labels(graph.y, split.train | split.val) for split in splits])


def positive_class(
    metric: str, labels: Array, class_names: Sequence[str], requested: str | None = None
) -> str | None:
    """Return the positive class of average_precision and precision@K of two classes.

    Args:
        labels: known labels of any shape, -1 where unknown: the rarest class is the default.
        requested: the class that the user named.

    Returns:
        Its name; None where the metric has no positive class.
    """
    return check_positive(metric, rarest_class(labels), class_names, requested)


def check_positive(
    metric: str, rarest: int, class_names: Sequence[str], requested: str | None = None
) -> str | None:
    """Return the positive class (:func:`positive_class`), given the number of the rarer class."""
    if requested is None:
        has_one = has_positive(metric) and len(class_names) == 2
        return str(class_names[rarest]) if has_one else None
    if requested not in class_names:
        raise SettingError.unknown("positive class", requested, class_names)
    if len(class_names) != 2:
        raise SettingError(
            f"A positive class needs two classes (got {len(class_names)}); with more, "
            "average_precision is the mean over all.",
            "Leave out the positive class",
        )
    return requested


def class_number(name: str | None, class_names: Sequence[str]) -> int:
    """Return the number of the positive class; 1 where there is none."""
    return 1 if name is None else list(class_names).index(name)


def graph_warnings(graph: Graph) -> list[str]:
    """Warn of missing edges."""
    if not graph.num_edges:
        return [f"Graph '{graph.name}' has no edges; only the attributes can help."]
    isolated = len(graph.isolated_nodes)
    if isolated:
        return [f"{isolated} of {graph.num_nodes} nodes have no edges (self-loops do not count)."]
    return []
