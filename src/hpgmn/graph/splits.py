"""Splits of the labelled nodes into train, validation and test; random ones are seeded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from hpgmn.base.errors import GraphError
from hpgmn.graph.edges import Array

PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of nodes, each a boolean mask of length N."""

    train: Array
    val: Array
    test: Array


@dataclass(frozen=True, eq=False)
class Splits(Sequence[Split]):
    """S splits of N nodes: three boolean arrays (N, S); a slice is again splits.

    ``is_random`` marks splits by ``random_splits``; graph files do not store it.
    """

    train: Array
    val: Array
    test: Array
    is_random: bool = field(default=False, kw_only=True)

    def __len__(self) -> int:
        return int(self.train.shape[1])

    @overload
    def __getitem__(self, index: int) -> Split: ...

    @overload
    def __getitem__(self, index: slice) -> Splits: ...

    def __getitem__(self, index: int | slice) -> Split | Splits:
        parts = (self.train[:, index], self.val[:, index], self.test[:, index])
        return (
            Splits(*parts, is_random=self.is_random) if isinstance(index, slice) else Split(*parts)
        )

    def __iter__(self) -> Iterator[Split]:
        return (self[index] for index in range(len(self)))


def random_splits(
    graph_or_labels: Any,
    count: int = 10,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    stratified: bool = False,
    first_seed: int = 0,
) -> Splits:
    """Draw random splits; split i depends on the labels and ``first_seed + i`` alone.

    Split i draws ``numpy.random.default_rng(first_seed + i).permutation`` of the labelled nodes
    and cuts it at the rounded fractions. Stratified, every class is cut on its own, in the order
    of the same permutation, and keeps at least one train node.

    Args:
        graph_or_labels: a graph, or its labels (N,) with -1 for unknown.
        count: S, how many splits.
        fractions: shares of train, validation and test; a rest stays unused.
        stratified: whether each class is divided by the fractions.
        first_seed: seed of the first split.

    Returns:
        Three boolean arrays (N, S); a node without a label is in none of them.

    >>> splits = random_splits([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, -1], count=2)
    >>> [int(mask.sum()) for mask in (splits.train, splits.val, splits.test)]
    [12, 4, 4]
    """
    y = np.asarray(getattr(graph_or_labels, "y", graph_or_labels)).reshape(-1)
    shares = np.asarray(fractions, dtype=float)
    if shares.shape != (3,) or (shares < 0).any() or shares[0] <= 0 or shares.sum() > 1 + 1e-9:
        raise ValueError(
            "fractions must be three shares, train above 0, that add up to at most 1 "
            f"(got {tuple(fractions)})"
        )
    if count < 1:
        raise ValueError(f"count must be at least 1 (got {count})")
    labelled = np.flatnonzero(y >= 0)
    masks = np.zeros((3, y.shape[0], count), dtype=bool)
    for split in range(count):
        order = np.random.default_rng(first_seed + split).permutation(labelled)
        groups = [order]
        if stratified:
            by_class = order[np.argsort(y[order], kind="stable")]  # keeps the drawn order
            groups = np.split(by_class, np.flatnonzero(np.diff(y[by_class])) + 1)
        for group in groups:
            cuts = np.rint(np.cumsum(shares) * len(group)).astype(int)
            if stratified and len(group):
                cuts = np.maximum(cuts, 1)
            for mask, begin, end in zip(masks, (0, *cuts[:-1]), cuts, strict=True):
                mask[group[begin:end], split] = True
    empty = [
        part
        for part, mask, share in zip(PARTS, masks, shares, strict=True)
        if share > 0 and not mask.any(axis=0).all()
    ]
    if empty:
        fractions_text = "/".join(f"{share:g}" for share in shares)
        raise GraphError(
            f"{len(labelled)} labelled nodes are too few for a {fractions_text} split: {empty[0]} "
            "would be empty.",
            "Label more nodes or change the fractions",
        )
    return Splits(*masks, is_random=True)
