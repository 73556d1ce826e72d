"""Format numbers, sizes, durations, settings and names as text."""

from __future__ import annotations

import math

MISSING = "–"
"""Printed where a value is missing or NaN."""

_CONTROLS = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
    - {ord("\n"), ord("\t")},
    "\ufffd",
)
"""Control characters a terminal interprets, and those that change the direction of text."""


def without_controls(text: str) -> str:
    r"""Replace control characters, which names of nodes and files may contain.

    >>> without_controls("red: \x1b[31m")
    'red: \ufffd[31m'
    """
    return text.translate(_CONTROLS)


def format_setting(value: object) -> str:
    """Format a value as ``--set`` takes it.

    >>> format_setting(["out", "in"]), format_setting(None), format_setting(0.1)
    ('out,in', 'none', '0.1')
    """
    if isinstance(value, list | tuple):
        return ",".join(format_setting(member) for member in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


def format_bytes(size: float) -> str:
    """Format a number of bytes.

    >>> format_bytes(3 * 2**29)
    '1.5 GiB'
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(1.234), format_duration(75.2), format_duration(3725)
    ('1.2 s', '75 s', '1 h 02 min')
    """
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_time(created: object) -> str:
    """Shorten an ISO timestamp to minutes; return anything else as it is.

    >>> format_time("2026-01-31T12:34:56+00:00")
    '2026-01-31 12:34'
    """
    stamp = str(created)
    is_timestamp = stamp[10:11] == "T" and len(stamp) >= 16
    return f"{stamp[:10]} {stamp[11:16]}" if is_timestamp else stamp


def percent(value: float) -> str:
    """Format a fraction in percent with two decimals; NaN is a dash."""
    return MISSING if math.isnan(value) else f"{value:.2%}"


def points(value: float) -> str:
    """Format a fraction in percentage points; NaN is a dash."""
    return MISSING if math.isnan(value) else f"{100 * value:.2f}"


def mean_and_deviation(mean: float | None, std: float | None) -> str:
    """Format a mean and a standard deviation in percent.

    >>> mean_and_deviation(0.8512, 0.031), mean_and_deviation(None, None)
    ('85.1 ± 3.1', '–')
    """
    return MISSING if mean is None else f"{100 * mean:.1f} ± {100 * (std or 0):.1f}"


def count_noun(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> count_noun(1, "seed"), count_noun(2000, "seed"), count_noun(3, "class")
    ('1 seed', '2,000 seeds', '3 classes')
    """
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
