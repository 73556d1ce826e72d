"""The section about calibration against the recorded numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpgmn.base.errors import HPGMNError
from hpgmn.report import build_report

MakeRun = Callable[..., Path]
Tables = Callable[[str], dict[str, list[list[str]]]]


def recorded(**changes: Any) -> dict[str, Any]:
    errors = {
        f"{key}_{when}_mean": value
        for when, values in (("before", (0.15, 0.14, 1.1, 0.4)), ("after", (0.04, 0.05, 0.7, 0.3)))
        for key, value in zip(("ece", "ece_equal_mass", "nll", "brier"), values, strict=True)
    }
    bins = [
        {"low": 0.0, "high": 0.5, "count": 0, "confidence": None, "accuracy": None},
        {"low": 0.5, "high": 0.75, "count": 10, "confidence": 0.6, "accuracy": 0.7},
        {"low": 0.75, "high": 1.0, "count": 1030, "confidence": 0.9, "accuracy": 0.75},
    ]
    coverage = [
        {"threshold": 0.9, "coverage": 0.5, "accuracy": 0.95},
        {"threshold": 0.51, "coverage": 1.0, "accuracy": 0.8},
    ]
    thresholds = [
        {"wanted_accuracy": 0.9, "threshold": 0.7, "coverage": 0.6, "accuracy": 0.91},
        {"wanted_accuracy": 0.99, "threshold": None},
    ]
    return {
        "temperature": [2.0, 2.5, 1.5, 2.0],
        **errors,
        "reliability": bins,
        "coverage": coverage,
        "thresholds": thresholds,
    } | changes


def test_the_section_tells_what_was_recorded(make_run: MakeRun, tables_of: Tables) -> None:
    page = build_report(make_run(calibration=recorded()))
    tables = tables_of(page)
    assert "divided by a temperature, 1.50 to 2.50, fitted" in page
    assert "<strong>4.0 points</strong> on average (calibration error), 15.0 without it" in page
    assert tables["Errors of the probabilities on test nodes, mean of the runs"][1:] == [
        ["Calibration error, bins of equal width", "0.150", "0.040"],
        ["Calibration error, bins of equal size", "0.140", "0.050"],
        ["Log loss", "1.100", "0.700"],
        ["Brier score", "0.400", "0.300"],
    ]
    assert tables["Confidence and accuracy of test nodes, all 4 runs together"][1:] == [
        ["0.50 to 0.75", "10", "60.00%", "70.00%"],
        ["0.75 to 1.00", "1,030", "90.00%", "75.00%"],
    ]
    assert tables["Accuracy when only the surest test nodes are answered"][1:] == [
        ["50.00%", "0.900", "95.00%"],
        ["100.00%", "0.510", "80.00%"],
    ]
    assert tables["Thresholds found on validation nodes"][1:] == [
        ["90%", "0.700", "60.00%", "91.00%"],
        ["99%", "–", "–", "–"],
    ]


def test_the_pictures_say_the_same_in_words(make_run: MakeRun) -> None:
    page = build_report(make_run(calibration=recorded()))
    assert (
        "Reliability diagram of 1,040 test nodes in 2 bins of confidence. The largest gap is "
        "between 0.75 and 1.00: 75.0% right, 15.0 points less than the mean confidence."
    ) in page
    assert "95.0% with 50% answered, 80.0% with 100% answered." in page
    assert ">0.70</text>" in page  # the threshold beside its mark


def test_a_run_without_test_nodes_has_thresholds_only(make_run: MakeRun, tables_of: Tables) -> None:
    content = {"temperature": [2.0], "thresholds": recorded()["thresholds"]}
    page = build_report(make_run(calibration=content))
    assert "Without labelled test nodes there is nothing to compare with." in page
    assert "Thresholds found on validation nodes" in tables_of(page)
    assert 'aria-label="Reliability' not in page


def test_a_run_of_endless_logits_has_a_temperature_only(make_run: MakeRun) -> None:
    page = build_report(make_run(calibration={"temperature": [1.0]}))
    assert "divided by a temperature, 1.00, fitted" in page
    assert "don't know" not in page


def test_no_threshold_at_all_marks_nothing(make_run: MakeRun) -> None:
    content = recorded(thresholds=[{"wanted_accuracy": 0.9, "threshold": None}])
    assert ">validation, threshold</text>" not in build_report(make_run(calibration=content))


def test_a_run_without_calibration_says_so(make_run: MakeRun) -> None:
    folder = make_run(calibration=recorded())
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"calibrate": False}))
    page = build_report(folder)
    assert "No temperature was fitted (--no-calibration)" in page


def test_a_damaged_record_is_named(make_run: MakeRun) -> None:
    folder = make_run(calibration=recorded(reliability=[{"low": 0.1}]))
    with pytest.raises(HPGMNError, match=r"metrics\.json does not hold what a run writes"):
        build_report(folder)
