"""Splits by a column of the node table: groups that never straddle, or the past and the future."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpgmn.base.errors import GraphError
from hpgmn.graph import Array
from hpgmn.tables.preparation import read_times, read_words
from hpgmn.tables.sources import Table

PARTS = ("train", "val", "test")
SPLIT_BY = ("group", "time")
"""What a column may split by."""

_SHARES = np.asarray([0.6, 0.8])  # where train and validation end
_GROUP_SPLITS = 10


def split_by(
    table: Table, kind: str, column: str, y: Array, tell: Callable[[str], None]
) -> dict[str, Array]:
    """Part → mask (N, S), made from a column of the node table.

    Args:
        table: the nodes.
        kind: one of ``SPLIT_BY``.
        column: the column of groups, or of times.
        y: (N,) classes, -1 where unknown; such nodes are in no part.
        tell: is told how the split was made.
    """
    try:
        if kind == "group":
            groups = read_words(table, column)
            masks = group_splits(y, groups)
            without = np.asarray([group is None for group in groups])
            tell(
                f"{table.label}: {_GROUP_SPLITS} splits of about 60/20/20, seeds 0 to "
                f"{_GROUP_SPLITS - 1}; each group of '{column}' is in one part"
                f"{_rest(without & (y >= 0), 'group')}."
            )
            return masks
        times = read_times(table, column)
        masks = time_split(y, times)
        tell(
            f"{table.label}: one split by '{column}', oldest 60 % train, newest 20 % test"
            f"{_rest(np.isnan(times) & (y >= 0), 'time')}."
        )
        return masks
    except ValueError as error:
        raise GraphError(
            f"{table.label}: column '{column}' {error}. Choose another with --split-by, or leave "
            "it out for random splits."
        ) from None


def _rest(without: Array, what: str) -> str:
    """How many nodes are in no part; nothing where all are in one."""
    count = int(without.sum())
    return f"; labelled nodes in no part, because they have no {what}: {count:,}" if count else ""


def group_splits(y: Array, groups: Sequence[str | None]) -> dict[str, Array]:
    """Ten random splits by group: number i depends on labels, groups and i alone.

    The groups come in the order of ``numpy.random.default_rng(i).permutation`` of their sorted
    names; a group goes to the part in which the middle of its labelled nodes lies.

    Args:
        y: (N,) classes, -1 where unknown.
        groups: N names; a node without one is in no part.

    >>> masks = group_splits(np.zeros(4, int), ["a", "a", "b", "c"])
    >>> bool((masks["train"][0] == masks["train"][1]).all())
    True
    """
    used = (y >= 0) & np.asarray([name is not None for name in groups])
    names = sorted({name for name in groups if name is not None})
    places = {name: place for place, name in enumerate(names)}
    code = np.asarray([places[name] if name is not None else 0 for name in groups])
    sizes = np.bincount(code[used], minlength=len(names))
    labelled = np.flatnonzero(sizes)
    if labelled.size < len(PARTS):
        some = "1 group" if labelled.size == 1 else f"{labelled.size} groups"
        raise ValueError(f"has {some} with labels, and a split needs 3")
    masks = np.zeros((len(PARTS), len(groups), _GROUP_SPLITS), bool)
    for split in range(_GROUP_SPLITS):
        order = np.random.default_rng(split).permutation(labelled)
        ends = np.cumsum(sizes[order])
        middle = (ends - sizes[order] / 2) / ends[-1]
        part = np.searchsorted(_SHARES, middle, side="right")
        part[0], part[-1] = 0, 2  # no part is empty, however large one group is
        if not (part == 1).any():
            part[-2] = 1
        role = np.full(len(sizes), -1)
        role[order] = part
        for number, mask in enumerate(masks):
            mask[:, split] = (role[code] == number) & used
    return dict(zip(PARTS, masks, strict=True))


def time_split(y: Array, times: Array) -> dict[str, Array]:
    """One split: the oldest 60 % of the labelled nodes train, the newest 20 % test.

    Nodes of one time are in one part, the older of the two.

    Args:
        y: (N,) classes, -1 where unknown.
        times: (N,) numbers, NaN where unknown; such nodes are in no part.
    """
    used = (y >= 0) & ~np.isnan(times)
    ordered = np.sort(times[used])
    if ordered.size < len(PARTS):
        some = "1 labelled node" if ordered.size == 1 else f"{ordered.size} labelled nodes"
        raise ValueError(f"has a time for {some}, and a split needs more")
    ends = ordered[np.maximum(np.rint(_SHARES * ordered.size).astype(int), 1) - 1]
    part = np.searchsorted(ends, times, side="left")
    masks = {name: (used & (part == number))[:, None] for number, name in enumerate(PARTS)}
    empty = [name for name, mask in masks.items() if not mask.any()]
    if empty:
        raise ValueError(f"has too few different times: {empty[0]} would be empty")
    return masks
