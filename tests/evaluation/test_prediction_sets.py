"""Prediction sets hold the true class as often as they promise."""

import numpy as np
import pytest
from scipy import stats

from hpgmn.evaluation.prediction_sets import lowest_probabilities, prediction_sets, set_report


def drawn(size, seed, classes=4, sharpness=3.0):
    """Probabilities that are too sure, and labels: the coverage must not depend on calibration."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=(size, classes)) * 1.5 - np.arange(classes)
    true = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    labels = np.array([random.choice(classes, p=row) for row in true])
    sharp = true**sharpness
    return sharp / sharp.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("by_class", [False, True])
def test_coverage_is_within_its_binomial_interval_over_200_repetitions(by_class):
    coverage, held, number = 0.9, 0, 0
    of_class = np.zeros((4, 2))
    for seed in range(200):
        chances, labels = drawn(300, seed)
        lowest = lowest_probabilities(chances[:250], labels[:250], coverage, by_class=by_class)
        sets = prediction_sets(chances[250:], lowest)
        hit = sets[np.arange(50), labels[250:]]
        held, number = held + hit.sum(), number + hit.size
        for c in range(4):
            of_class[c] += [hit[labels[250:] == c].sum(), (labels[250:] == c).sum()]
    # Reserved nodes are new in each repetition; of a class with few of them sets are larger.
    low, high = stats.binom.interval(0.999, number, coverage)
    assert held >= low
    if not by_class:
        assert held <= high + number / 250
        assert (of_class[:, 0] / of_class[:, 1]).min() < coverage - 0.1
    else:
        for hits, count in of_class:
            assert hits >= stats.binom.ppf(0.001, int(count), coverage)


def test_the_smallest_sets_come_from_the_highest_probabilities():
    chances, labels = drawn(400, 7)
    lowest = lowest_probabilities(chances, labels, 0.8)
    sets = prediction_sets(chances, lowest)
    for row, members in zip(chances, sets, strict=True):
        assert members[row.argmax()]
        assert min(row[members]) >= max(row[~members], default=0.0)
    # A lower threshold than necessary would hold more classes.
    scores = np.sort(1 - chances[np.arange(400), labels])
    assert 1 - lowest[0] == pytest.approx(scores[int(np.ceil(401 * 0.8)) - 1])


def test_too_few_nodes_give_every_class():
    chances, labels = drawn(5, 0)
    assert np.isneginf(lowest_probabilities(chances, labels, 0.9)).all()
    assert prediction_sets(chances, lowest_probabilities(chances, labels, 0.9)).all()


def test_a_set_is_never_empty():
    assert prediction_sets(np.array([[0.4, 0.3, 0.3]]), np.full(3, 0.9)).tolist() == [
        [True, False, False]
    ]


def test_the_report_measures_coverage_and_size():
    chances, labels = drawn(600, 1)
    reserved = np.arange(600) < 300
    rows = set_report([chances], labels, [reserved], [~reserved])
    assert [(row["coverage"], row["by_class"]) for row in rows[:3]] == [
        (0.8, False),
        (0.9, False),
        (0.95, False),
    ]
    for row in rows[:3]:
        lowest = lowest_probabilities(chances[reserved], labels[reserved], row["coverage"])
        sets = prediction_sets(chances[~reserved], lowest)
        hit = sets[np.arange(300), labels[~reserved]]
        assert row["measured"] == pytest.approx(hit.mean())
        assert row["mean_size"] == pytest.approx(sets.sum() / 300)
    assert rows[3]["lowest_of_classes"] > rows[0]["lowest_of_classes"]
