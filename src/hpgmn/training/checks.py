"""What can be said of a graph and a split before any work begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hpgmn.errors import HPGMNError, SettingError, unknown_name
from hpgmn.graph import Array, Graph, Split
from hpgmn.metrics import has_positive, rarest_class

SKEWED = 0.8
"""Classes are skewed if the largest has more than this share of the labelled nodes."""

FEW_NODES = 3
"""Of a class with fewer train nodes than this hardly anything is learned."""


class Labelled(Protocol):
    """What is asked here of a graph: its labels and their names."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def y(self) -> Array:
        """(N,) numbers of classes, -1 unknown."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """C names."""


def check_split(graph: Labelled, split: Split, number: int | str) -> list[str]:
    """Refuse a split that cannot be trained on; return what is odd about it."""
    for part in ("train", "val"):
        if not getattr(split, part).any():
            raise HPGMNError(
                f"Split {number} of '{graph.name}' has no {part} nodes. Give it some, or let "
                "hpgmn.random_splits(graph) make splits."
            )
    seen = np.unique(graph.y[split.train])
    if len(seen) < 2:
        raise HPGMNError(
            f"Split {number} of '{graph.name}' has train nodes of {len(seen)} class only; "
            "classification needs at least two. Label nodes of another class."
        )
    missing = [graph.class_names[c] for c in range(len(graph.class_names)) if c not in seen]
    if missing:
        names = ", ".join(missing)
        return [f"Split {number}: no train node of class {names}; it can never be predicted well."]
    return []


def scarce_classes(graph: Labelled, splits: Sequence[Split]) -> list[str]:
    """One line about the classes that have train nodes, but hardly any, in some splits."""
    counts = np.stack(
        [np.bincount(graph.y[one.train], minlength=len(graph.class_names)) for one in splits]
    )
    is_scarce = (counts > 0) & (counts < FEW_NODES)
    names = [f"'{graph.class_names[c]}'" for c in np.flatnonzero(is_scarce.any(axis=0))]
    if not names:
        return []
    number = int(is_scarce.any(axis=1).sum())
    where = "the split" if len(splits) == 1 else f"{number} of {len(splits)} splits"
    subject = f"Class {names[0]} has" if len(names) == 1 else f"Classes {', '.join(names)} have"
    return [
        f"{subject} fewer than {FEW_NODES} train nodes in {where}: hardly anything is learned of "
        "so few. Label more nodes, or merge classes."
    ]


def metric_for_skewed(num_classes: int) -> str:
    """The metric that tells more than accuracy where one class has nearly all nodes."""
    return "average_precision" if num_classes == 2 else "balanced_accuracy"


def skewed_classes(graph: Labelled, metric: str) -> list[str]:
    """Where nearly all labelled nodes are of one class, what tells more than accuracy."""
    counts = np.bincount(graph.y[graph.y >= 0])
    share = counts.max() / counts.sum()
    if share <= SKEWED or metric != "accuracy":
        return []
    return [
        f"{100 * share:.0f} % of the labelled nodes are of class "
        f"'{graph.class_names[int(counts.argmax())]}', so accuracy says little. Use --metric "
        f"{metric_for_skewed(len(graph.class_names))}."
    ]


def seen_labels(graph: Labelled, splits: Sequence[Split]) -> Array:
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
    if asked is None:
        is_sought = has_positive(metric) and len(class_names) == 2
        return str(class_names[rarest_class(labels)]) if is_sought else None
    if asked not in class_names:
        raise SettingError(unknown_name("positive class", asked, class_names))
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
