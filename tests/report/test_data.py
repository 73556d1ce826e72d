from __future__ import annotations

import math

import numpy as np
import pytest

from hpgmn.report.data import ReportData, mapping, number


def data(**metrics: object) -> ReportData:
    recorded = {"splits": [0, 3], "seeds": 3} | metrics
    return ReportData({}, recorded, (), (), np.zeros((0, 0), int))


def test_lists_are_split_by_split_with_seeds_inside() -> None:
    run = data(test_score=[0.1, 0.2, 0.3, 0.4, None, 0.6])
    assert run.num_runs == 6
    np.testing.assert_equal(run.per_run("test_score"), [[0.1, 0.2, 0.3], [0.4, np.nan, 0.6]])


@pytest.mark.parametrize("values", [None, []])
def test_a_list_that_was_not_recorded_is_nan(values: object) -> None:
    assert np.isnan(data(epochs=values).per_run("epochs")).all()


@pytest.mark.parametrize(("values", "received"), [([0.5], "1 values"), (0.5, "0.5")])
def test_a_list_of_another_length_is_refused(values: object, received: str) -> None:
    with pytest.raises(ValueError, match=rf"2 splits × 3 seeds \(got {received}\)"):
        data(test_score=values).per_run("test_score")


@pytest.mark.parametrize("value", [None, "0.5", True, math.inf, math.nan, [1]])
def test_what_is_no_finite_number_is_nan(value: object) -> None:
    assert math.isnan(number(value))


def test_what_is_no_mapping_is_empty() -> None:
    assert mapping([1]) == mapping(None) == {}
    assert mapping({"a": 1}) == {"a": 1}
