"""How large the classes are, and which of them a part of a split lacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpgmn.graph import Graph

PARTS = ("train", "val", "test")
"""The parts of a split."""


@dataclass(frozen=True)
class ClassBalance:
    """The labels of all nodes, counted.

    Attributes:
        counts: labelled nodes of each class by its name, those with none included.
        unlabelled: nodes without a label.
        largest_share: share of the largest class among labelled nodes; 0 if there are none.
    """

    counts: dict[str, int]
    unlabelled: int
    largest_share: float


@dataclass(frozen=True)
class MissingClass:
    """A class that a part of some splits lacks.

    Attributes:
        name: the class.
        part: "train", "val" or "test".
        splits: the splits concerned.
    """

    name: str
    part: str
    splits: tuple[int, ...]


def class_balance(graph: Graph) -> ClassBalance:
    """Count the labels."""
    known = graph.y[graph.y >= 0]
    counts = np.bincount(known, minlength=graph.num_classes)
    return ClassBalance(
        counts={
            str(name): int(count) for name, count in zip(graph.class_names, counts, strict=True)
        },
        unlabelled=graph.num_nodes - known.size,
        largest_share=float(counts.max() / known.size) if known.size else 0.0,
    )


def missing_classes(graph: Graph) -> tuple[MissingClass, ...]:
    """Classes that have labelled nodes, but none in a part of a split; all stored splits.

    A part without any node is left out: it lacks more than a class.
    """
    if graph.splits is None:
        return ()
    present = np.unique(graph.y[graph.y >= 0])
    found = []
    for part in PARTS:
        masks = [getattr(split, part) & (graph.y >= 0) for split in graph.splits]
        counts = np.stack(
            [np.bincount(graph.y[mask], minlength=graph.num_classes) for mask in masks]
        )
        lacks = counts.any(axis=1, keepdims=True) & (counts == 0)  # (S, C)
        for label in present[lacks[:, present].any(axis=0)]:
            splits = tuple(int(number) for number in np.flatnonzero(lacks[:, label]))
            found.append(MissingClass(str(graph.class_names[label]), part, splits))
    return tuple(found)
