"""Label columns of numbers: targets of a regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpgmn.base.errors import GraphError, Remedy
from hpgmn.tables.columns import Tables
from hpgmn.tables.options import column_remedy

Array = NDArray[Any]


def read_targets(
    tables: Tables, words: Sequence[str], codes: Sequence[Array], onto: Any | None
) -> Array | None:
    """Return (N,) targets, NaN where missing; None for classes.

    Without a task a column is a target if all its values are numbers and some are no integers.

    Args:
        words: the distinct labels.
        codes: batches of positions in ``words``, -1 where a label is missing; none without labels.
        onto: a graph that the tables extend, whose task is kept.
    """
    task = tables.task
    if tables.preparation is not None:
        task = tables.preparation.roles.get("task") or "classification"  # older models have none
    elif onto is not None:
        task = "regression" if onto.is_regression else "classification"
    if not codes or task == "classification":
        return None
    values = [_number(word) for word in words]
    known = [value for value in values if value is not None]
    has_fractions = len(known) == len(words) and not all(map(float.is_integer, known))
    if task == "auto" and not has_fractions:
        return None
    where = f"{tables.nodes.label}: column '{tables.label}'"
    for word, value in zip(words, values, strict=True):
        if value is None or not math.isfinite(value):
            what = "which is not finite" if value is not None else "which is no number"
            raise GraphError(
                f"{where} holds '{word}', {what}.",
                Remedy("Leave unknown targets empty")
                | column_remedy("Name another column", "label"),
            )
    if tables.preparation is None and onto is None and len(set(known)) == 1:
        raise GraphError(
            f"{where} has a single value, {known[0]:g}, so there is nothing to predict.",
            column_remedy("Name another column", "label"),
        )
    targets = np.asarray([*known, math.nan])
    return np.asarray(targets[np.concatenate(codes)])


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
