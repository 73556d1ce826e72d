"""What can be said of a graph and a split before any work begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.metrics import has_positive, rarest_class
from hpgmn.graph import Array, Graph, Split

SKEWED = 0.8
"""Classes are skewed if the largest has more than this share of the labelled nodes."""

FEW_NODES = 3
"""Of a class with fewer train nodes than this hardly anything is learned."""


@dataclass(frozen=True)
class LabelCounts:
    """How many nodes of each class there are, which of two large arrays is all that is asked.

    Attributes:
        train: (C,) among the train nodes.
        val: (C,) among the validation nodes.
        every: (C,) among all nodes.
        sizes: of "train" and "val", nodes of unknown class included.
    """

    train: Array
    val: Array
    every: Array
    sizes: dict[str, int]

    @classmethod
    def of(cls, y: Array, split: Split, num_classes: int) -> LabelCounts:
        """Count some nodes.

        Args:
            y: (N,) numbers of classes, -1 unknown.
            split: their roles.
            num_classes: C.
        """

        def counted(labels: Array) -> Array:
            return np.bincount(labels[labels >= 0], minlength=num_classes)

        sizes = {"train": int(split.train.sum()), "val": int(split.val.sum())}
        return cls(counted(y[split.train]), counted(y[split.val]), counted(y), sizes)

    def __add__(self, other: LabelCounts) -> LabelCounts:
        sizes = {part: size + other.sizes[part] for part, size in self.sizes.items()}
        return LabelCounts(
            self.train + other.train, self.val + other.val, self.every + other.every, sizes
        )


def check_split(graph: Graph, split: Split, number: int | str) -> list[str]:
    """Refuse a split that cannot be trained on; return what is odd about it."""
    counts = LabelCounts.of(graph.y, split, graph.num_classes)
    return check_counts(counts, graph.class_names, graph.name, number)


def check_counts(
    counts: LabelCounts, class_names: Sequence[str], graph: str, number: int | str
) -> list[str]:
    """:func:`check_split` by what was counted.

    Args:
        counts: of the nodes.
        class_names: C names.
        graph: what the graph is called.
        number: that of the split.
    """
    for part, size in counts.sizes.items():
        if not size:
            raise HPGMNError(
                f"Split {number} of '{graph}' has no {part} nodes. Give it some, or let "
                "hpgmn.random_splits(graph) make splits."
            )
    seen = int((counts.train > 0).sum())
    if seen < 2:
        raise HPGMNError(
            f"Split {number} of '{graph}' has train nodes of {seen} class only; "
            "classification needs at least two. Label more nodes, of another class."
        )
    missing = [class_names[int(c)] for c in np.flatnonzero(counts.train == 0)]
    if missing:
        names = ", ".join(missing)
        return [f"Split {number}: no train node of class {names}; it can never be predicted well."]
    return []


def scarce_classes(graph: Graph, splits: Sequence[Split]) -> list[str]:
    """One line about the classes that have train nodes, but hardly any, in some splits."""
    counts = [np.bincount(graph.y[one.train], minlength=graph.num_classes) for one in splits]
    return scarce_counts(np.stack(counts), graph.class_names)


def scarce_counts(counts: Array, class_names: Sequence[str]) -> list[str]:
    """:func:`scarce_classes` by what was counted.

    Args:
        counts: (S, C) train nodes in each split.
        class_names: C names.
    """
    is_scarce = (counts > 0) & (counts < FEW_NODES)
    names = [f"'{class_names[int(c)]}'" for c in np.flatnonzero(is_scarce.any(axis=0))]
    if not names:
        return []
    number = int(is_scarce.any(axis=1).sum())
    where = "the split" if len(counts) == 1 else f"{number} of {len(counts)} splits"
    subject = f"Class {names[0]} has" if len(names) == 1 else f"Classes {', '.join(names)} have"
    return [
        f"{subject} fewer than {FEW_NODES} train nodes in {where}: hardly anything is learned of "
        "so few. Label more nodes, or merge classes."
    ]


def metric_for_skewed(num_classes: int) -> str:
    """The metric that tells more than accuracy where one class has nearly all nodes."""
    return "average_precision" if num_classes == 2 else "balanced_accuracy"


def skewed_classes(graph: Graph, metric: str) -> list[str]:
    """Where nearly all labelled nodes are of one class, what tells more than accuracy."""
    return skewed_counts(np.bincount(graph.y[graph.y >= 0]), graph.class_names, metric)


def skewed_counts(counts: Array, class_names: Sequence[str], metric: str) -> list[str]:
    """:func:`skewed_classes` by what was counted.

    Args:
        counts: (C,) nodes of each class.
        class_names: C names.
        metric: the metric's name.
    """
    share = counts.max() / counts.sum()
    if share <= SKEWED or metric != "accuracy":
        return []
    return [
        f"{100 * share:.0f} % of the labelled nodes are of class "
        f"'{class_names[int(counts.argmax())]}', so accuracy says little. Use --metric "
        f"{metric_for_skewed(len(class_names))}."
    ]


def seen_labels(graph: Graph, splits: Sequence[Split]) -> Array:
    """(S, N) the labels that training and selection may see, -1 elsewhere."""
    return np.stack([np.where(split.train | split.val, graph.y, -1) for split in splits])


def positive_class(
    metric: str, labels: Array, class_names: Sequence[str], asked: str | None = None
) -> str | None:
    """The class that average_precision and precision@K of two classes look for.

    Args:
        metric: the metric's name.
        labels: the known labels, of any shape, -1 where unknown: the rarest class is taken.
        class_names: C names.
        asked: the class that the user named.

    Returns:
        Its name; None where the metric looks for no class in particular.
    """
    return sought_class(metric, rarest_class(labels), class_names, asked)


def sought_class(
    metric: str, rarest: int, class_names: Sequence[str], asked: str | None = None
) -> str | None:
    """:func:`positive_class` where the rarer of two classes is known.

    Args:
        metric: the metric's name.
        rarest: the number of that class.
        class_names: C names.
        asked: the class that the user named.
    """
    if asked is None:
        is_sought = has_positive(metric) and len(class_names) == 2
        return str(class_names[rarest]) if is_sought else None
    if asked not in class_names:
        raise SettingError.unknown("positive class", asked, class_names)
    if len(class_names) != 2:
        raise SettingError(
            f"A positive class is for two classes (there are {len(class_names)}): of more, "
            "average_precision is the mean over all. Leave out the positive class."
        )
    return asked


def class_number(name: str | None, class_names: Sequence[str]) -> int:
    """The number of the positive class; 1 where there is none in particular."""
    return 1 if name is None else list(class_names).index(name)


def graph_warnings(graph: Graph) -> list[str]:
    """What is odd about a graph but does not stop a training."""
    if not graph.num_edges:
        return [f"Graph '{graph.name}' has no edges; only the attributes can help."]
    isolated = len(graph.isolated_nodes)
    if isolated:
        return [f"{isolated} of {graph.num_nodes} nodes have no edges (self-loops do not count)."]
    return []
