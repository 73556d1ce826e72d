"""Numbers and recorded values in words, as the report writes them."""

from __future__ import annotations

import math

import numpy as np

from hpgmn.graph import Array

NOTHING = "–"
"""What stands where there is no value."""


def percent(value: float) -> str:
    """A share in percent with two decimals, or a dash for NaN."""
    return NOTHING if math.isnan(value) else f"{value:.2%}"


def points(value: float) -> str:
    """A share in percentage points, or a dash for NaN."""
    return NOTHING if math.isnan(value) else f"{100 * value:.2f}"


def value_range(values: Array, form: str) -> str:
    """The lowest and the highest finite value, each in a format; one of them where they agree."""
    known = values[np.isfinite(values)]
    if not known.size:
        return NOTHING
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


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "seed"), counted(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Seconds as one would say them."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(created: object) -> str:
    """``2026-01-31T12:34:56+00:00`` as ``2026-01-31 12:34``; anything else as it is."""
    said = str(created)
    return f"{said[:10]} {said[11:16]}" if said[10:11] == "T" and len(said) >= 16 else said


def typed(value: object) -> str:
    """A setting as one would type it after ``--set``."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(typed(part) for part in value)
    return str(value)
