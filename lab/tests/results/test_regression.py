from hpgmn_lab.results.regression import regression_frame

HARDWARE = {"device": "cpu", "processor": "any", "threads": 2, "torch": "2"}


def run(split, score, coverage, weight):
    members = [
        {"name": "trees", "weight": weight, "val_score": 0.5, "seconds": 1.0},
        {"name": "memory", "weight": 1 - weight, "val_score": 0.6, "seconds": 1.0},
    ]
    return {
        "graph": "towns",
        "splits": [split],
        "test_score": [score],
        "val_score": [0.7],
        "test_metrics": {"rmse": {"mean": 2.0 * score, "std": 0.0}},
        "intervals": {"coverage": [coverage]},
        "members": members,
        "seconds": 10.0,
        "hardware": HARDWARE,
        "version": "1",
    }


def test_values_are_means_over_splits():
    records = {"a": run(0, 0.5, [0.7, 0.9], 0.2), "b": run(1, 0.7, [0.9, 1.0], 0.4)}
    (row,) = regression_frame(records).itertuples(index=False)
    assert row[:4] == ("towns", "2", "0.600 ± 0.141", "1.200")
    assert row[4:7] == ("0.700 (0.600)", "80.0 %, 95.0 %", "memory 0.70, trees 0.30")
