from __future__ import annotations

import numpy as np
import pytest

from hpgmn.base.text import format_duration, format_setting, format_time, percent, points
from hpgmn.report.words import deviation, finite_mean, share_of, value_range


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.31, "0.3 s"), (14.2, "14 s"), (125, "2 min 05 s"), (3599.9, "1 h 00 min")],
)
def test_durations_are_readable(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_moments_are_readable() -> None:
    assert format_time("2026-01-31T12:34:56+00:00") == "2026-01-31 12:34"
    assert format_time("yesterday") == "yesterday"


def test_missing_values_are_dashes() -> None:
    nothing = np.array([np.nan, np.inf])
    assert percent(float("nan")) == points(float("nan")) == value_range(nothing, "{:g}") == "–"
    assert np.isnan(finite_mean(nothing))
    assert np.isnan(deviation(np.array([1.0, np.nan])))
    assert np.isnan(share_of(np.array([0]), np.array([0]))).all()


def test_known_values_are_told() -> None:
    values = np.array([1.0, np.nan, 3.0])
    assert (percent(0.1234), points(0.1234)) == ("12.34%", "12.34")
    assert value_range(values, "{:g}") == "1 to 3"
    assert value_range(np.array([2.0, 2.0]), "{:g}") == "2"
    assert finite_mean(values) == 2
    assert deviation(values) == pytest.approx(2**0.5)
    assert share_of(np.array([1]), np.array([4])).tolist() == [0.25]


def test_settings_are_written_as_typed() -> None:
    assert format_setting([None, True, 0.5, "x"]) == "none,true,0.5,x"
