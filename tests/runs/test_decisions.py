"""What is recorded about decisions, from logits of a few nodes."""

import numpy as np
import pytest
import torch

from hpgmn.base.calibration import Calibrator
from hpgmn.evaluation.prediction_sets import set_report
from hpgmn.runs.decisions import decision_metrics
from hpgmn.runs.spec import RunSpec

NAMES = ["paid", "fraud"]


def case(seeds=2, size=300):
    """Logits (R, N, 2) of seeds on one split, 10 % fraud; the last half are test nodes."""
    random = np.random.default_rng(0)
    y = (random.random(size) < 0.1).astype(np.int64)
    lead = random.normal(size=(seeds, size)) + 2.0 * y - 2
    logits = torch.from_numpy(np.stack([np.zeros_like(lead), lead], axis=-1))
    val = [np.arange(size) < size // 2] * seeds
    return logits, y, val, [~val[0]] * seeds


def recorded(**options):
    logits, y, val, test = case()
    spec = RunSpec("g", "hpgmn", {}, (0,), seeds=2, positive="fraud", **options)
    calibrator = spec.calibrator(NAMES, False)
    own = calibrator.fit(logits, y, val)
    mean = calibrator.fit(logits.softmax(dim=-1).mean(dim=0).log()[None], y, val[:1])
    maps = np.repeat(mean, 2, axis=0)
    return decision_metrics(spec, logits, own, maps, y, val, test, (), NAMES), mean[0]


def test_the_mean_over_seeds_is_ranked_and_decided():
    found, calibration = recorded(threshold="f1")
    logits, y, val, test = case()
    chances = logits.softmax(dim=-1).mean(dim=0).numpy()[:, 1]
    top = np.flatnonzero(test[0])[np.argsort(-chances[test[0]])[:10]]
    assert found["ranking"]["positive"] == "fraud"
    assert found["ranking"]["precision_at"][0]["precision"] == pytest.approx((y[top] == 1).mean())
    [value] = found["threshold"]["value"]
    odds = np.log(chances / (1 - chances)) * calibration[0, 0]
    is_fraud = 1 / (1 + np.exp(-odds)) >= value
    for part, mask in (("val", val[0]), ("test", test[0])):
        row = found["threshold"][part]
        assert row["precision"] == pytest.approx((y[mask & is_fraud] == 1).mean())
        assert row["recall"] == pytest.approx(is_fraud[mask & (y == 1)].mean())


def test_a_refitted_model_says_nothing_of_the_nodes_it_was_trained_on():
    found, _ = recorded(threshold="f1", refit=True)
    assert "val" not in found["threshold"]
    assert "val_noise" not in found
    plain, _ = recorded()
    assert "threshold" not in plain
    _, y, val, _ = case()
    assert plain["val_noise"]["positives"] == y[val[0]].sum()


def test_more_classes_have_no_ranking():
    logits, y, val, test = case()
    wide = torch.cat([logits, logits[..., :1]], dim=-1)
    spec = RunSpec("g", "hpgmn", {}, (0,), seeds=2)
    maps = Calibrator().fit(wide, y, val)
    assert decision_metrics(spec, wide, maps, maps, y, val, test, (), [*NAMES, "x"]) == {}


def test_reserved_nodes_give_prediction_sets():
    logits, y, val, test = case()
    spec = RunSpec("g", "hpgmn", {}, (0,), seeds=2, conformal=True)
    maps = np.repeat(Calibrator("none").fit(logits[:1], y, val[:1]), 2, axis=0)
    found = decision_metrics(spec, logits, maps, maps, y, val, test, val, NAMES)
    chances = logits.softmax(dim=-1).mean(dim=0).numpy()
    expected = set_report([chances], y, val[:1], test[:1])
    assert [row["measured"] for row in found["prediction_sets"]] == pytest.approx(
        [row["measured"] for row in expected]
    )
