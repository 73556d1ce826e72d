import numpy as np

from hpgmn.report.rendering import ReportData
from hpgmn.report.targets import errors, section


def data(**changes):
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
    shown = section(data())
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
    assert section(empty) == {"figures": [], "metrics": [], "intervals": [], "num_nodes": 0}


def test_equal_errors_are_drawn():
    values = np.linspace(0, 3, 40)
    assert "median 0.1," in errors(values, values + 0.1)
    assert "median 0," in errors(values, values)
