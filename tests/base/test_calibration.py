"""Temperatures against a grid, errors by hand, coverage by a slow loop."""

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.calibration import (
    HIGHEST,
    LOWEST,
    Answered,
    Bin,
    brier_score,
    calibrated_probabilities,
    calibration_error,
    coverage_curve,
    fit_temperature,
    fit_temperatures,
    log_loss,
    mean_logits,
    reliability,
    threshold_for_accuracy,
)


def softmax(scores):
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def drawn(scores, seed):
    """Labels that come true as often as the scores' probabilities say."""
    random = np.random.default_rng(seed)
    return np.array([random.choice(scores.shape[1], p=own) for own in softmax(scores)])


# The temperature.


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 5.0])
def test_the_temperature_is_that_of_a_fine_grid(sharpness):
    true = np.random.default_rng(0).normal(size=(300, 4)) * 2
    labels, logits = drawn(true, 1), true * sharpness
    found = fit_temperature(logits, labels)
    grid = np.exp(np.linspace(np.log(LOWEST), np.log(HIGHEST), 6001))
    logs = [torch.from_numpy(logits / value).log_softmax(dim=-1).numpy() for value in grid]
    losses = [log_loss(own, labels) for own in logs]
    assert found == pytest.approx(grid[np.argmin(losses)], rel=2e-3)
    assert found == pytest.approx(sharpness, rel=0.25)  # labels were drawn at temperature 1


def test_logits_that_are_shifted_or_scaled_give_the_same_probabilities():
    true = np.random.default_rng(0).normal(size=(200, 3)) * 2
    labels = drawn(true, 1)
    base = fit_temperature(true, labels)
    assert fit_temperature(3 * true + 7, labels) == pytest.approx(3 * base, rel=1e-6)


def test_perfect_validation_nodes_do_not_make_certain():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 30)
    logits = random.normal(size=(30, 3))
    logits[np.arange(30), labels] += 6
    temperature = fit_temperature(logits, labels)
    assert LOWEST < temperature < HIGHEST
    assert softmax(logits / temperature).max(axis=1).mean() == pytest.approx(31 / 32)


def test_the_temperature_is_bounded():
    logits, labels = np.array([[1.0, 0.0]] * 4), np.array([1, 1, 1, 1])
    assert fit_temperature(logits, labels) == HIGHEST  # always wrong: no confidence at all
    assert fit_temperature(logits * 1e-3, 1 - labels) == pytest.approx(LOWEST)  # hardly a lead
    assert fit_temperature(logits * 1e6, np.array([0, 0, 0, 1])) == HIGHEST


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (np.zeros((0, 3)), np.zeros(0, int)),
        (np.full((4, 3), 2.0), np.zeros(4, int)),
        (np.array([[np.nan, 1.0], [0.0, 1.0]]), np.array([0, 1])),
        (np.array([[np.inf, 1.0], [0.0, 1.0]]), np.array([0, 1])),
    ],
    ids=["no nodes", "all alike", "nan", "infinite"],
)
def test_what_says_nothing_of_a_temperature_leaves_it_at_one(logits, labels):
    assert fit_temperature(logits, labels) == 1.0


def test_every_replica_has_a_temperature_of_its_own_nodes():
    random = np.random.default_rng(3)
    logits = torch.from_numpy(random.normal(size=(2, 40, 3)) * 3).float()
    y = random.integers(0, 3, 40)
    y[:5] = -1  # unlabelled
    masks = [np.arange(40) % 2 == 1, np.arange(40) >= 20]
    masks[0][:5] = False
    expected = [
        fit_temperature(own.numpy()[mask], y[mask]) for own, mask in zip(logits, masks, strict=True)
    ]
    found = fit_temperatures(logits, y, masks)
    assert found == pytest.approx(expected, rel=1e-6)
    assert found[0] != found[1]
    chances = calibrated_probabilities(logits, found).numpy()
    for own, temperature, one in zip(logits.numpy(), found, chances, strict=True):
        np.testing.assert_allclose(one, softmax(own / temperature), atol=1e-6)
    np.testing.assert_array_equal(chances.argmax(-1), logits.numpy().argmax(-1))


def test_a_temperature_of_one_changes_no_bit():
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(calibrated_probabilities(logits, [1.0, 1.0]), logits.softmax(dim=-1))


def test_an_average_is_of_probabilities():
    logits = torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]]])
    first = (0.5 + 1 / (1 + np.exp(-2.0))) / 2
    found = mean_logits(logits).exp().numpy()
    np.testing.assert_allclose(found, [[first, 1 - first]], rtol=1e-12)
    far = torch.tensor([[[0.0, 2000.0]], [[0.0, 1000.0]]])  # a probability too small for a number
    np.testing.assert_allclose(mean_logits(far)[0], [-1000 - np.log(2), 0.0], atol=1e-9)


# Errors.


def test_the_calibration_error_by_hand():
    confidence = np.array([0.95, 0.98, 0.45, 0.46, 0.6])
    right = np.array([True, False, True, True, False])
    # (14/15, 1]: |0.965 - 0.5|; (6/15, 7/15]: |0.455 - 1|; (8/15, 9/15]: |0.6 - 0|
    expected = (2 * 0.465 + 2 * 0.545 + 1 * 0.6) / 5
    assert calibration_error(confidence, right) == pytest.approx(expected)
    # Two bins of equal mass: 0.45, 0.46, 0.6 and 0.95, 0.98.
    expected = (3 * abs((0.45 + 0.46 + 0.6) / 3 - 2 / 3) + 2 * 0.465) / 5
    assert calibration_error(confidence, right, 2, equal_mass=True) == pytest.approx(expected)


def test_a_bin_has_its_upper_end():
    found = reliability(np.array([0.0, 0.5, 0.75, 1.0]), np.array([0, 1, 1, 1]), bins=2)
    assert found == [Bin(0.0, 0.5, 2, 0.25, 0.5), Bin(0.5, 1.0, 2, 0.875, 1.0)]


def test_an_empty_bin_says_so():
    found = reliability(np.array([0.9]), np.array([True]), bins=2)
    assert found == [Bin(0.0, 0.5, 0, None, None), Bin(0.5, 1.0, 1, 0.9, 1.0)]


def test_bins_of_equal_mass_are_no_more_than_nodes():
    found = reliability(np.array([0.9, 0.4]), np.array([1, 0]), bins=5, equal_mass=True)
    assert found == [Bin(0.4, 0.4, 1, 0.4, 0.0), Bin(0.9, 0.9, 1, 0.9, 1.0)]


def test_no_nodes_have_no_error():
    assert calibration_error(np.zeros(0), np.zeros(0)) == 0
    assert calibration_error(np.zeros(0), np.zeros(0), equal_mass=True) == 0


def test_log_loss_and_brier_score_match_scikit_learn():
    random = np.random.default_rng(0)
    chances = softmax(random.normal(size=(50, 3)))
    labels = random.integers(0, 3, 50)
    expected = sklearn.metrics.log_loss(labels, chances, labels=[0, 1, 2])
    assert log_loss(np.log(chances), labels) == pytest.approx(expected)
    by_class = [sklearn.metrics.brier_score_loss(labels == c, chances[:, c]) for c in range(3)]
    assert brier_score(chances, labels) == pytest.approx(sum(by_class))


# Saying nothing.


@st.composite
def answers(draw):
    number = draw(st.integers(1, 15))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    return random.integers(1, draw(st.sampled_from([3, 100])), number) / 100, random.random(
        number
    ) < 0.6


def slow_answers(confidence, right):
    found = []
    for threshold in sorted(set(confidence.tolist()), reverse=True):
        told = [hit for own, hit in zip(confidence, right, strict=True) if own >= threshold]
        found.append(Answered(threshold, len(told) / len(right), sum(told) / len(told)))
    return found


@given(answers(), st.sampled_from([0.05, 0.3, 0.5, 0.9, 1.0]))
def test_the_coverage_curve_matches_a_loop(case, wanted):
    every = slow_answers(*case)
    expected = next(found for found in every if found.coverage >= wanted - 1e-9)
    assert coverage_curve(*case, [wanted]) == [expected]


@given(answers(), st.sampled_from([0.0, 0.5, 0.8, 1.0]))
def test_the_threshold_for_an_accuracy_is_the_lowest_that_has_it(case, wanted):
    enough = [found for found in slow_answers(*case) if found.accuracy >= wanted]
    expected = min(enough, key=lambda found: found.threshold) if enough else None
    assert threshold_for_accuracy(*case, wanted) == expected


def test_the_whole_curve_ends_with_every_node():
    random = np.random.default_rng(0)
    curve = coverage_curve(random.random(100), random.random(100) < 0.5)
    assert [round(found.coverage, 2) for found in curve] == [n / 20 for n in range(1, 21)]
