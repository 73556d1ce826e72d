"""Seeded random splits of the labelled nodes into train, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpgmn.base.errors import GraphError
from hpgmn.graph.graph import Graph, Splits


def random_splits(
    graph_or_labels: Graph | Any,
    count: int = 10,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    stratified: bool = False,
    first_seed: int = 0,
) -> Splits:
    """Random splits: number i depends on the labels and ``first_seed + i`` alone.

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
    y = np.asarray(
        graph_or_labels.y if isinstance(graph_or_labels, Graph) else graph_or_labels
    ).reshape(-1)
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
        for part, mask, share in zip(("train", "val", "test"), masks, shares, strict=True)
        if share > 0 and not mask.any(axis=0).all()
    ]
    if empty:
        raise GraphError(
            f"{len(labelled)} labelled nodes are too few for a {'/'.join(f'{s:g}' for s in shares)}"
            f" split: {empty[0]} would be empty. Label more nodes or change the fractions."
        )
    return Splits(*masks, is_random=True)
