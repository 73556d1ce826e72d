"""What is recorded about scores and decisions, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpgmn.base.calibration import Calibrator, from_temperatures
from hpgmn.evaluation.prediction_sets import set_report
from hpgmn.runs.metrics import TrainingResult, decision_metrics, run_metrics
from hpgmn.runs.spec import RunSpec

SPEC = RunSpec("somewhere", "hpgmn", {"epochs": 4}, (3,), seeds=2)
SUMMARY = {"num_nodes": 9, "class_names": ["no", "yes"]}
Y = np.array([0, 1, 1, 0, 1])
VAL = np.array([True, False, False, False, False])
TEST = ~VAL
HISTORY = {"main": {"loss": torch.zeros(4, 2)}}


def result(**changes):
    """Two seeds, which are right in three and in two of four test nodes."""
    margins = torch.tensor([[-1.0, 2.0, 3.0, -1.0, -4.0], [-1.0, 2.0, -1.0, 1.0, 4.0]])
    made = TrainingResult(
        logits=torch.stack([-margins, margins], dim=-1) / 2,
        y=Y,
        val=[VAL] * 2,
        test=[TEST] * 2,
        calibration=from_temperatures([1.5, 2.0], 2),
        mean_calibration=from_temperatures([0.5, 0.5], 2),
        val_score=torch.tensor([1.0, 0.5]),
        best_epoch=torch.tensor([4, 2]),
        history=HISTORY,
        seconds={"statistics": 1.0, "training": 2.0},
    )
    return replace(made, **changes)


def test_scores_are_those_of_the_test_nodes():
    found = run_metrics(SPEC, result(), "the graph", SUMMARY)
    assert found["test_score"] == [0.75, 0.5]
    assert found["test_score_mean"] == found["test_accuracy_mean"] == 0.625
    assert found["test_score_std"] == pytest.approx(0.25 / 2**0.5)
    # Averaged probabilities: 1, 1 (0.95 and 0.27), 0 or 1 by a tie, 0 (0.02 and 0.98) by a tie.
    assert found["ensemble"]["seeds"] == 2
    assert len(found["ensemble"]["test_score"]) == 1
    assert found["val_score"] == [1.0, 0.5]
    assert found["epochs"] == [4, 2]
    assert found["epochs_trained"] == {"main": 4}
    assert (found["seconds_statistics"], found["seconds_training"]) == (1.0, 2.0)
    assert (found["graph"], found["graph_summary"]) == ("the graph", SUMMARY)
    assert found["calibration"]["temperature"] == [1.5, 2.0]
    assert found["calibration"]["mean_temperature"] == [0.5]
    assert found["config"] == SPEC.as_dict()
    assert found["positive"] is found["label_estimator"] is None


def test_the_estimator_is_scored_where_its_guesses_are_known():
    own = result()
    found = run_metrics(SPEC, replace(own, estimator_logits=own.logits.flip(-1)), "g", SUMMARY)
    assert found["label_estimator"]["test_accuracy_mean"] == 1 - 0.625


def test_a_positive_class_is_the_one_that_is_looked_for():
    spec = replace(SPEC, metric="precision@1", positive="no")
    found = run_metrics(spec, result(), "g", SUMMARY)
    assert found["test_score"] == [0.0, 0.0]  # the surest "no" of each is a "yes"
    found = run_metrics(replace(spec, positive="yes"), result(), "g", SUMMARY)
    assert found["test_score"] == [1.0, 1.0]


def test_without_test_nodes_or_with_one_seed_there_is_less():
    found = run_metrics(SPEC, result(test=[~TEST & ~VAL] * 2), "g", SUMMARY)
    assert (found["test_score_mean"], found["test_score"]) == (None, [])
    assert "ensemble" not in found
    one = {key: getattr(result(), key)[:1] for key in ("val", "test", "calibration")}
    one |= {"logits": result().logits[:1], "mean_calibration": from_temperatures([1.0], 2)}
    found = run_metrics(replace(SPEC, seeds=1), result(**one), "g", SUMMARY)
    assert found["test_score"] == [0.75]
    assert "ensemble" not in found


# Decisions.

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
    made = result(logits=logits, y=y, val=val, test=test, calibration=own, mean_calibration=maps)
    return decision_metrics(spec, made, NAMES), mean[0]


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
    made = result(logits=wide, y=y, val=val, test=test, calibration=maps, mean_calibration=maps)
    assert decision_metrics(spec, made, [*NAMES, "x"]) == {}


def test_reserved_nodes_give_prediction_sets():
    logits, y, val, test = case()
    spec = RunSpec("g", "hpgmn", {}, (0,), seeds=2, conformal=True)
    maps = np.repeat(Calibrator("none").fit(logits[:1], y, val[:1]), 2, axis=0)
    made = result(logits=logits, y=y, val=val, test=test, calibration=maps, mean_calibration=maps)
    found = decision_metrics(spec, replace(made, reserved=val), NAMES)
    chances = logits.softmax(dim=-1).mean(dim=0).numpy()
    expected = set_report([chances], y, val[:1], test[:1])
    assert [row["measured"] for row in found["prediction_sets"]] == pytest.approx(
        [row["measured"] for row in expected]
    )
