"""Scores over runs and classes against NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import f1_score, precision_recall_fscore_support, roc_auc_score

from hpgmn.base.calibration import (
    Calibrator,
    calibrated_probabilities,
    calibration_error,
    fit_temperature,
    from_temperatures,
)
from hpgmn.base.errors import SettingError
from hpgmn.evaluation.scores import (
    Score,
    calibration_report,
    class_calibration,
    class_report,
    ensemble_scores,
    ensemble_size,
    independent_values,
    paired_difference,
    scores,
)


def test_a_score_is_mean_and_sample_deviation_over_runs():
    values = [0.8, 0.9, 0.4]
    score = Score.of(values)
    assert score.mean == pytest.approx(np.mean(values))
    assert score.std == pytest.approx(np.std(values, ddof=1))
    assert score.values == tuple(values)


def test_a_single_run_has_no_spread():
    assert Score.of([0.7]) == Score(0.7, 0.0, (0.7,))


def test_each_run_is_scored_on_its_own_nodes():
    random = np.random.default_rng(0)
    logits = random.normal(size=(3, 40, 4))
    y = random.integers(0, 4, 40)
    masks = [random.random(40) < share for share in (0.3, 0.6, 0.9)]
    found = scores(torch.from_numpy(logits), y, masks, "accuracy")
    expected = [
        (own.argmax(axis=1) == y)[mask].mean() for own, mask in zip(logits, masks, strict=True)
    ]
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_area_is_scikit_learns():
    random = np.random.default_rng(1)
    logits = random.normal(size=(2, 50, 2))
    y = random.integers(0, 2, 50)
    masks = [random.random(50) < 0.5 for _ in range(2)]
    found = scores(torch.from_numpy(logits), y, masks, "roc_auc")
    expected = [
        roc_auc_score(y[mask], (own[:, 1] - own[:, 0])[mask])
        for own, mask in zip(logits, masks, strict=True)
    ]
    assert found == pytest.approx(expected, abs=1e-6)


def test_unknown_labels_outside_the_mask_do_no_harm():
    logits = torch.tensor([[[2.0, 1.0], [0.0, 1.0], [0.0, 1.0]]])
    mask = np.array([True, True, False])
    assert scores(logits, np.array([0, 0, -1]), [mask], "accuracy") == [0.5]


def test_an_unknown_metric_is_refused():
    with pytest.raises(SettingError, match=r"Did you mean 'accuracy'\?"):
        scores(torch.zeros(1, 2, 2), np.array([0, 1]), [np.ones(2, bool)], "acuracy")


def test_the_report_by_class_pools_the_runs_as_scikit_learn_does():
    random = np.random.default_rng(2)
    y = random.integers(0, 3, 60)
    predicted = random.integers(0, 3, (4, 60))
    masks = [random.random(60) < 0.4 for _ in range(4)]
    rows = class_report(predicted, y, masks, ["a", "b", "c"])
    truth = np.concatenate([y[mask] for mask in masks])
    guess = np.concatenate([own[mask] for own, mask in zip(predicted, masks, strict=True)])
    expected = precision_recall_fscore_support(truth, guess)
    assert [row["class"] for row in rows] == ["a", "b", "c"]
    for key, column in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        assert [row[key] for row in rows] == pytest.approx(column.tolist())


def test_a_share_of_nothing_is_none():
    y = np.array([0, 0, 1])
    predicted = np.array([[0, 0, 0]])
    rows = class_report(predicted, y, [np.ones(3, bool)], ["often", "missed", "absent"])
    assert rows[0] == {"class": "often", "precision": 2 / 3, "recall": 1.0, "f1": 0.8, "support": 2}
    assert rows[1] == {"class": "missed", "precision": None, "recall": 0.0, "f1": 0.0, "support": 1}
    assert rows[2] == {
        "class": "absent",
        "precision": None,
        "recall": None,
        "f1": None,
        "support": 0,
    }


def test_seeds_of_a_split_are_averaged_first():
    values = [80.0, 81.0, 82.0, 90.0, 90.0, 93.0]
    assert independent_values(values, splits=2, seeds=3) == [81.0, 91.0]
    assert independent_values(values, splits=6, seeds=1) == values


def test_one_split_leaves_its_seeds():
    assert independent_values([80.0, 81.0, 82.0], splits=1, seeds=3) == [80.0, 81.0, 82.0]


def test_missing_runs_are_refused():
    with pytest.raises(ValueError, match="2 splits × 3 seeds"):
        independent_values([80.0] * 5, splits=2, seeds=3)


def test_the_difference_is_that_of_nadeau_and_bengio():
    random = np.random.default_rng(3)
    first, second = random.normal(80, 2, 10), random.normal(75, 3, 10)
    found = paired_difference(first, second, splits=10, test_per_train=20 / 48)
    gaps = [float(a - b) for a, b in zip(first, second, strict=True)]
    mean = sum(gaps) / 10
    variance = sum((gap - mean) ** 2 for gap in gaps) / 9
    half = 2.2621571628 * (variance * (1 / 10 + 20 / 48)) ** 0.5
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half))
    assert (found.count, found.over) == (10, "splits")


def test_without_overlap_the_interval_is_students():
    first, second = [3.0, 5.0, 4.0, 8.0], [2.0, 2.0, 3.0, 4.0]
    found = paired_difference(first, second, splits=4, test_per_train=0.0)
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_seeds_are_averaged_before_splits_are_paired():
    one = paired_difference([1, 3, 5, 7], [1, 2], splits=2, test_per_train=0.5)
    assert one == paired_difference([2, 6], [1, 2], splits=2, test_per_train=0.5)
    assert one.mean == 2.5


def test_seeds_of_one_split_are_two_samples():
    first, second = [81.0, 82.5, 83.0, 80.0, 82.0], [79.0, 80.0, 78.0]
    found = paired_difference(first, second, splits=1, test_per_train=0.4)
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (found.count, found.over) == (3, "seeds")


def test_equal_seeds_have_an_interval_of_no_width():
    found = paired_difference([80.0, 80.0], [79.0, 79.0], splits=1, test_per_train=0.4)
    assert (found.mean, found.low, found.high) == (1.0, 1.0, 1.0)


def test_a_single_run_has_a_difference_without_interval():
    found = paired_difference([80.0], [79.0, 79.5], splits=1, test_per_train=0.4)
    assert (found.mean, found.low, found.high) == (0.75, None, None)


# Probabilities.


def test_thresholds_come_from_validation_and_errors_from_test_nodes(monkeypatch):
    """Two runs on six nodes; the first knows everything, the second guesses."""
    log = np.log
    sure, unsure = [log(0.9), log(0.1)], [log(0.4), log(0.6)]
    logits = torch.tensor([[sure] * 6, [unsure] * 6])
    y = np.array([0, 0, 0, 1, 0, 0])
    val = [np.array([1, 1, 0, 0, 0, 0], bool), np.array([1, 0, 0, 0, 0, 0], bool)]
    test = [np.array([0, 0, 1, 1, 0, 0], bool), np.array([0, 0, 0, 1, 0, 0], bool)]
    monkeypatch.setattr("hpgmn.evaluation.scores.FEWEST_ANSWERED", 1)
    found = calibration_report(logits, from_temperatures([1.0, 1.0], 2), y, val, test)
    # Validation: 0.9 right, 0.9 right, 0.6 wrong. Two of three are not enough for any wish.
    assert [own["wanted_accuracy"] for own in found["thresholds"]] == [0.8, 0.9, 0.95, 0.99]
    for own in found["thresholds"]:
        assert own["threshold"] == pytest.approx(0.9, abs=1e-6)
        assert (own["coverage"], own["accuracy"]) == (2 / 3, 1.0)
    # Test: 0.9 right, 0.9 wrong; 0.6 right.
    assert found["ece_after"] == pytest.approx([0.4, 0.4], abs=1e-6)
    assert found["ece_before_mean"] == pytest.approx(0.4, abs=1e-6)
    assert found["nll_after"] == pytest.approx([-(log(0.9) + log(0.1)) / 2, -log(0.6)], abs=1e-6)
    assert found["brier_after"] == pytest.approx([(0.02 + 1.62) / 2, 0.32], abs=1e-6)
    curve = found["coverage"]
    assert [own["coverage"] for own in curve] == pytest.approx([2 / 3] * 13 + [1.0] * 7)
    assert [own["accuracy"] for own in curve] == pytest.approx([0.5] * 13 + [2 / 3] * 7)


def test_bins_and_thresholds_are_those_of_the_average_over_seeds():
    """Two splits with three seeds: what ``predict`` answers, by a loop."""
    draw = np.random.default_rng(3)
    logits = torch.from_numpy(3 * draw.normal(size=(6, 200, 3)))
    y = np.where(draw.random(200) < 0.7, logits.mean(dim=0).argmax(dim=1).numpy(), 0)
    halves = [draw.random(200) < 0.5 for _ in range(2)]
    val, test = [halves[r // 3] for r in range(6)], [~halves[r // 3] for r in range(6)]
    scales = [1.5, 1.5, 1.5, 0.5, 0.5, 0.5]
    found = calibration_report(
        *(logits, from_temperatures([1.0] * 6, 3), y, val, test),
        seeds=3,
        mean_calibration=from_temperatures(scales, 3),
    )
    confidence, right = [], []
    for split in range(2):
        for node in np.flatnonzero(~halves[split]):
            rows = [softmax(logits[3 * split + seed, node].numpy()) for seed in range(3)]
            chances = softmax(np.log(np.mean(rows, axis=0)) / scales[3 * split])
            confidence.append(chances.max())
            right.append(chances.argmax() == y[node])
    whole = found["coverage"][-1]
    assert whole["accuracy"] == pytest.approx(np.mean(right))
    assert whole["threshold"] == pytest.approx(min(confidence))
    counts = np.histogram(confidence, bins=np.linspace(0, 1, 16))[0]
    assert [own["count"] for own in found["reliability"]] == counts.tolist()


def test_a_threshold_needs_more_than_a_handful_of_nodes():
    logits = torch.zeros(1, 40, 2)
    logits[0, :, 1] = torch.linspace(3, 1, 40)  # class 1 for all, the first the surest
    y = np.r_[np.ones(10, int), np.zeros(30, int)]
    masks = [np.ones(40, bool)]
    found = calibration_report(logits, from_temperatures([1.0], 2), y, masks, masks)
    assert found["thresholds"][0] == {"wanted_accuracy": 0.8, "threshold": None}


def test_a_wish_that_no_threshold_fulfils_says_so():
    logits, y = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), np.array([1, 1])
    masks = [np.array([True, False])]
    found = calibration_report(logits, from_temperatures([1.0], 2), y, masks, masks)
    assert found["thresholds"][0] == {"wanted_accuracy": 0.8, "threshold": None}


def test_without_test_nodes_only_validation_speaks():
    logits, y, val = torch.zeros(1, 2, 2), np.array([0, 1]), [np.array([True, True])]
    found = calibration_report(
        logits, from_temperatures([3.0], 2), y, val, [np.array([False, False])]
    )
    assert list(found) == ["temperature", "mean_temperature", "thresholds"]
    assert found["temperature"] == [3.0]
    lost = torch.full((1, 2, 2), float("nan"))
    found = calibration_report(lost, from_temperatures([1.0], 2), y, val, val)
    assert found == {"temperature": [1.0], "mean_temperature": [1.0]}


def weighted_run(size=4000, seed=0):
    """Logits (1, N, 2) that class weights have shifted: 3 % are of class 1, told as a third."""
    random = np.random.default_rng(seed)
    true = random.normal(size=size) * 1.5 - 4.5
    y = (random.random(size) < 1 / (1 + np.exp(-true))).astype(int)
    logits = torch.from_numpy(np.stack([np.zeros(size), true + 4], axis=1))[None]
    half = np.arange(size) < size // 2
    return logits, y, [half], [~half]


def test_probabilities_that_class_weights_shift_are_not_called_good():
    logits, y, val, test = weighted_run()
    names = ["paid", "fraud"]
    temperature = fit_temperature(logits[0].numpy()[val[0]], y[val[0]])
    scaled = from_temperatures([temperature], 2)
    found = calibration_report(logits, scaled, y, val, test, class_names=names)["classes"]
    assert [row["class"] for row in found] == names
    assert [row["verdict"] for row in found] == ["understated", "overstated"]
    assert found[1]["mean_probability"] > 5 * found[1]["rate"]
    assert found[1]["rate"] == pytest.approx(y[test[0]].mean())
    fitted = Calibrator("affine").fit(logits, y, val)
    report = calibration_report(logits, fitted, y, val, test, class_names=names)
    assert [row["verdict"] for row in report["classes"]] == ["good", "good"]
    assert report["classes"][1]["mean_probability"] == pytest.approx(found[1]["rate"], rel=0.3)
    assert report["ece_by_class_after_mean"] < report["ece_by_class_before_mean"] / 3
    chances = calibrated_probabilities(logits, fitted)[0].numpy()[test[0]]
    errors = [calibration_error(chances[:, c], y[test[0]] == c) for c in range(2)]
    assert report["ece_by_class_after"] == [pytest.approx(np.mean(errors))]
    assert report["bias"] == [fitted[0, 1].tolist()]


def test_probabilities_right_on_average_only_are_uneven():
    truth = np.r_[np.ones(50), np.zeros(950)].astype(bool)
    assert class_calibration(np.full(1000, 0.05), truth)["verdict"] == "good"
    turned = np.r_[np.zeros(500), np.full(500, 0.1)]  # where none is of the class
    assert class_calibration(turned, truth)["verdict"] == "uneven"


def test_many_classes_have_no_diagrams():
    logits, y = torch.zeros(1, 40, 8), np.arange(40) % 8
    masks = [np.ones(40, bool)]
    found = calibration_report(
        *(logits, from_temperatures([1.0], 8), y, masks, masks), class_names=list("abcdefgh")
    )
    assert not any("reliability" in row for row in found["classes"])
    assert len(found["classes"]) == 8


# Averages over seeds.


def softmax(row):
    powers = np.exp(row - row.max())
    return np.asarray(powers / powers.sum())


@pytest.mark.parametrize(("splits", "seeds", "size"), [(3, 4, 4), (1, 7, 3), (2, 3, 2), (1, 2, 2)])
@pytest.mark.parametrize("metric", ["accuracy", "roc_auc", "macro_f1", "roc_auc of many"])
def test_averages_over_seeds_are_those_of_a_loop(splits, seeds, size, metric):
    draw = np.random.default_rng(splits + seeds)
    metric, _, many = metric.partition(" of ")
    classes = 2 if metric == "roc_auc" and not many else 4
    logits = 3 * draw.normal(size=(splits * seeds, 30, classes))
    y = np.arange(30) % classes
    masks = [draw.random(30) < 0.6 for _ in range(splits)]
    expected = []
    for split in range(splits):
        for first in range(0, seeds, size):
            if first + size > seeds:
                continue
            mean = np.zeros((30, classes))
            for seed in range(first, first + size):
                for node in range(30):
                    mean[node] += softmax(logits[split * seeds + seed, node]) / size
            nodes = np.flatnonzero(masks[split])
            if metric == "accuracy":
                expected.append(np.mean([mean[node].argmax() == y[node] for node in nodes]))
            elif metric == "macro_f1":
                guess = mean[nodes].argmax(axis=1)
                expected.append(f1_score(y[nodes], guess, average="macro"))
            elif many:
                area = roc_auc_score(y[nodes], mean[nodes], multi_class="ovr", average="macro")
                expected.append(area)
            else:
                expected.append(roc_auc_score(y[nodes], mean[nodes, 1]))
    repeated = [mask for mask in masks for _ in range(seeds)]
    found = ensemble_scores(torch.from_numpy(logits), y, repeated, metric, seeds=seeds, size=size)
    assert len(found) == splits * (seeds // size)
    assert found == pytest.approx(expected, abs=1e-6)


def test_an_average_is_over_probabilities_not_votes_or_logits():
    """One sure seed outvotes two that hesitate; one huge logit does not outweigh them all."""
    sure, hesitating = [4.0, 0.0], [0.0, 0.5]
    logits = torch.tensor([[sure], [hesitating], [hesitating]])
    mask = np.array([True])
    assert ensemble_scores(logits, np.array([0]), [mask] * 3, "accuracy", seeds=3, size=3) == [1.0]
    huge, opposed = [9.0, 0.0], [0.0, 2.5]
    logits = torch.tensor([[huge], [opposed], [opposed]])
    assert ensemble_scores(logits, np.array([1]), [mask] * 3, "accuracy", seeds=3, size=3) == [1.0]


def test_all_seeds_of_a_split_are_averaged_and_five_of_a_single_one():
    assert [ensemble_size(10, seeds) for seeds in (2, 5, 8)] == [2, 5, 8]
    assert [ensemble_size(1, seeds) for seeds in (2, 5, 8)] == [2, 5, 5]
