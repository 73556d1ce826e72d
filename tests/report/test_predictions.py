"""What the sections about predictions show."""

import re

import numpy as np
import pytest

from hpgmn.evaluation.rankings import ranking_report
from hpgmn.evaluation.scores import class_calibration
from hpgmn.report import render_report
from hpgmn.report.predictions import calibration_content, errors, ranking_content, target_content
from hpgmn.report.rendering import ReportData


def ranking():
    random = np.random.default_rng(0)
    positive = random.random(200) < 0.1
    return {"positive": "fraud", **ranking_report([random.random(200) + positive], [positive])}


def test_a_ranking_is_drawn_and_tabulated(make_data, tables_of):
    content = ranking()
    page = render_report(make_data(ranking=content))
    rows = tables_of(page)["The most likely test nodes, mean over splits"][1:]
    shown = [[row["nodes"], row["precision"], row["gain"]] for row in content["precision_at"]]
    expected = [[f"{k}", f"{100 * value:.1f}%", f"{gain:.1f}"] for k, value, gain in shown]
    assert rows == expected
    assert "Precision by recall of test nodes" in page


def test_a_threshold_is_marked_and_told(make_data):
    test = {"class": "fraud", "precision": 0.25, "recall": 0.75, "f1": 0.4, "support": 20}
    threshold = {"rule": "recall=0.8", "positive": "fraud", "value": [0.125], "test": test}
    data = make_data(ranking=ranking(), threshold=threshold)
    page = render_report(data)
    for fact in ("0.125", "25.0%", "75.0%", "--threshold recall=0.8"):
        assert fact in page
    plain = ranking_content(make_data(ranking=ranking()), ranking())["figure"]
    assert ranking_content(data, ranking())["figure"] != plain


def test_classes_without_bins_have_no_diagram(make_data):
    truth = np.arange(100) < 5
    row = {"class": "fraud", **class_calibration(np.full(100, 0.05), truth)}
    recorded = {"temperature": [1.0], "classes": [row]}
    assert len(calibration_content(make_data(), recorded)["diagrams"]) == 1
    del row["reliability"]
    assert calibration_content(make_data(), recorded)["diagrams"] == []


@pytest.mark.parametrize(
    ("count", "drawn"), [(2, ["1"]), (3, ["0", "2"]), (7, ["0", "2", "3", "4"])]
)
def test_the_rarer_of_two_or_the_worst_classes_are_drawn(make_data, count, drawn):
    bins = class_calibration(np.full(10, 0.5), np.arange(10) < 5)["reliability"]
    classes = [
        {"class": str(k), "rate": 1 / (k + 1), "error": 0.1 / (k + 1), "reliability": bins}
        for k in range(count)
    ]
    if count > 2:
        classes[1]["error"] = 0.0
    figures = calibration_content(make_data(), {"classes": classes})["diagrams"]
    assert [re.findall(r"probability of '(\d)'", str(figure))[0] for figure in figures] == drawn


def regression(**changes):
    metrics = {
        "metric": "r2",
        "test_metrics": {"r2": {"mean": 0.5, "std": 0.1}, "mae": {"mean": 250.0, "std": 3.0}},
        "intervals": {
            "nominal": [0.8, 0.95],
            "half_width": [[1.0, None], [2.0, 4.0]],
            "coverage_mean": [0.81, 0.94],
        },
    }
    targets = np.array([[1.0, 2.0, 4.0], [1.5, 2.0, 3.0]])
    return ReportData({}, metrics | changes, (), (), np.zeros((0, 0)), targets=targets)


def test_the_section_shows_metrics_and_intervals_as_numbers():
    shown = target_content(regression())
    assert shown["metrics"] == [("R²", "0.500 ± 0.100"), ("MAE", "250 ± 3.000")]
    assert shown["intervals"] == [
        ("80%", "1.5", "81.00%"),
        ("95%", "too few reserved nodes", "94.00%"),
    ]
    assert shown["num_nodes"] == 3
    assert "against true values: r = 1.00" in shown["figures"][0]
    assert "median 0, 80 % of them from -0.8 to 0.4" in shown["figures"][1]


def test_a_run_without_test_nodes_has_no_figures():
    empty = ReportData({}, {"metric": "r2"}, (), (), np.zeros((0, 0)))
    assert target_content(empty) == {"figures": [], "metrics": [], "intervals": [], "num_nodes": 0}


def test_equal_errors_are_drawn():
    values = np.linspace(0, 3, 40)
    assert "median 0.1," in errors(values, values + 0.1)
    assert "median 0," in errors(values, values)
