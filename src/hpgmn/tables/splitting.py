"""Make splits from a column of the node table: whole groups, or past and future."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpgmn.base.errors import GraphError, Remedy, count_noun
from hpgmn.base.tasks import is_known
from hpgmn.tables.column_types import Category, Column, Date, Number, parse_date
from hpgmn.tables.preparation import read_values
from hpgmn.tables.sources import Array, Table

PARTS = ("train", "val", "test")
SPLIT_BY = ("group", "time")
"""The kinds of columns that make splits."""

_SHARES = np.asarray([0.6, 0.8])  # where train and validation end
_GROUP_SPLITS = 10


def split_by(
    table: Table, kind: str, column: str, y: Array, log: Callable[[str], None]
) -> dict[str, Array]:
    """Make masks (N, S) by part from a column of the node table; log how.

    Args:
        table: the nodes.
        kind: one of ``SPLIT_BY``.
        column: the column of groups, or of times.
        y: (N,) classes; unlabelled nodes (-1) are in no part.
        log: receives one line.
    """
    try:
        if kind == "group":
            groups = read_values(table, {column: Category})[column].tolist()
            masks = group_splits(y, groups)
            without = np.asarray([group is None for group in groups])
            log(
                f"{table.label}: {_GROUP_SPLITS} splits of about 60/20/20, seeds 0 to "
                f"{_GROUP_SPLITS - 1}; each group of '{column}' is in one part"
                f"{_unused(without & is_known(y), 'group')}."
            )
            return masks
        times = read_times(table, column)
        masks = time_split(y, times)
        log(
            f"{table.label}: one split by '{column}', oldest 60 % train, newest 20 % test"
            f"{_unused(np.isnan(times) & is_known(y), 'time')}."
        )
        return masks
    except ValueError as error:
        raise GraphError(
            f"{table.label}: column '{column}' {error}.",
            Remedy("Choose another column", option="split_by") | "Leave it out for random splits",
        ) from None


def _unused(without: Array, noun: str) -> str:
    """Report labelled nodes in no part, if any."""
    count = int(without.sum())
    return f"; labelled nodes in no part, because they have no {noun}: {count:,}" if count else ""


def read_times(table: Table, name: str) -> Array:
    """Read numbers, or dates in days; missing ones are NaN."""
    return read_values(table, {name: time_type(table, name)})[name]


def time_type(table: Table, name: str) -> type[Column]:
    """Return the type of a column of times; ValueError if it has none."""
    for column_type in (Number, Date):
        if column_type.holds(table.types[name]):
            return column_type
    row, value = table.first_text(name) or (0, "")
    example = f" ('{value}' in {table.row(row)})" if value else ""
    date = parse_date(value)
    example += f"; write them as {date}" if date else ""
    raise ValueError(f"holds neither numbers nor dates such as 2024-03-01{example}")


def group_splits(y: Array, groups: Sequence[str | None]) -> dict[str, Array]:
    """Make ten random splits by group; split i depends on labels, groups and i alone.

    Groups come in the order of ``numpy.random.default_rng(i).permutation`` of their sorted names;
    a group is in the part that contains the middle of its labelled nodes.

    Args:
        y: (N,) classes, -1 where unknown.
        groups: N names; a node without one is in no part.

    >>> masks = group_splits(np.zeros(4, int), ["a", "a", "b", "c"])
    >>> bool((masks["train"][0] == masks["train"][1]).all())
    True
    """
    used = is_known(y) & np.asarray([name is not None for name in groups])
    names = sorted({name for name in groups if name is not None})
    numbers = {name: number for number, name in enumerate(names)}
    code = np.asarray([numbers[name] if name is not None else 0 for name in groups])
    sizes = np.bincount(code[used], minlength=len(names))
    labelled = np.flatnonzero(sizes)
    if labelled.size < len(PARTS):
        count = count_noun(labelled.size, "group")
        raise ValueError(f"has {count} with labels, and a split needs 3")
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
    """Make one split: the oldest 60 % of the labelled nodes train, the newest 20 % test.

    Nodes of one time are in one part, the older of the two.

    Args:
        y: (N,) classes, -1 where unknown.
        times: (N,) numbers; nodes with NaN are in no part.
    """
    used = is_known(y) & ~np.isnan(times)
    ordered = np.sort(times[used])
    if ordered.size < len(PARTS):
        count = count_noun(ordered.size, "labelled node")
        raise ValueError(f"has a time for {count}, and a split needs more")
    ends = ordered[np.maximum(np.rint(_SHARES * ordered.size).astype(int), 1) - 1]
    part = np.searchsorted(ends, times, side="left")
    masks = {name: (used & (part == number))[:, None] for number, name in enumerate(PARTS)}
    empty = [name for name, mask in masks.items() if not mask.any()]
    if empty:
        raise ValueError(f"has too few different times: {empty[0]} would be empty")
    return masks
