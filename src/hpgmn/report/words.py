"""Summaries of arrays of scores, as the report writes them."""

from __future__ import annotations

import math

import numpy as np

from hpgmn.base.text import MISSING
from hpgmn.graph import Array


def value_range(values: Array, form: str) -> str:
    """The lowest and the highest finite value, each in a format; one of them where they agree."""
    known = values[np.isfinite(values)]
    if not known.size:
        return MISSING
    low, high = form.format(known.min()), form.format(known.max())
    return low if low == high else f"{low} to {high}"


def finite_mean(values: Array) -> float:
    """The mean of the finite values; NaN without any."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan


def deviation(values: Array) -> float:
    """The sample standard deviation of the finite values; NaN of fewer than two."""
    known = values[np.isfinite(values)]
    return float(known.std(ddof=1)) if known.size > 1 else math.nan


def share_of(part: Array, whole: Array) -> Array:
    """Part by whole, element by element; NaN for a share of nothing."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
