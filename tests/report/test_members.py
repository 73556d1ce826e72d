import numpy as np

from hpgmn.report.members import choice, ensemble
from hpgmn.report.rendering import ReportData


def data(metric, score, gain):
    row = {"name": "a", "model": "gcn", "weight": 1.0, "settings": {}, "seconds": 1.0}
    member = row | {"val_score": score, "contribution": gain}
    tried = row | {"val_score_mean": -score if metric == "rmse" else score, "failure": None}
    metrics = {"metric": metric, "splits": [0], "members": [member]}
    metrics["portfolio"] = {"members": [tried], "splits": [0], "chosen": "a"}
    return ReportData({}, metrics, (), (), np.zeros((0, 0)))


def test_scores_are_percentages_for_classes_alone():
    for metric, score, gain in (("accuracy", "50.00%", "+1.00"), ("rmse", "0.500", "+0.010")):
        shown = data(metric, 0.5, 0.01)
        assert ensemble(shown)["members"][0]["shown_score"] == score
        assert ensemble(shown)["members"][0]["shown_gain"] == gain
        selected = choice(shown, metric)
        assert selected is not None
        assert selected["members"][0]["shown_score"] == score


def test_without_members_there_is_no_choice():
    assert choice(ReportData({}, {"metric": "r2"}, (), (), np.zeros((0, 0)))) is None
