"""Calibration: fitted maps against independent optima, and the errors of probabilities."""

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.calibration import (
    HIGHEST,
    LOWEST,
    Answered,
    Bin,
    Calibrator,
    brier_score,
    calibrated_probabilities,
    calibration_error,
    chance_error,
    coverage_curve,
    decision_logits,
    fit_temperature,
    from_temperatures,
    log_loss,
    predicted_classes,
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


def test_every_replica_is_calibrated_on_its_own_nodes():
    random = np.random.default_rng(3)
    logits = torch.from_numpy(random.normal(size=(2, 40, 3)) * 3).float()
    y = random.integers(0, 3, 40)
    y[:5] = -1  # unlabelled
    masks = [np.arange(40) % 2 == 1, np.arange(40) >= 20]
    masks[0][:5] = False
    expected = [
        fit_temperature(own.numpy()[mask], y[mask]) for own, mask in zip(logits, masks, strict=True)
    ]
    found = Calibrator().fit(logits, y, masks)
    np.testing.assert_allclose(found, from_temperatures(expected, 3), rtol=1e-6)
    assert expected[0] != expected[1]
    chances = calibrated_probabilities(logits, found).numpy()
    for own, temperature, one in zip(logits.numpy(), expected, chances, strict=True):
        np.testing.assert_allclose(one, softmax(own / temperature), atol=1e-6)
    assert torch.equal(decision_logits(logits, found), logits)  # bit for bit


def test_a_temperature_of_one_changes_no_bit():
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    chances = calibrated_probabilities(logits, from_temperatures([1.0, 1.0], 3))
    assert torch.equal(chances, logits.softmax(dim=-1))


# Slope, intercept and vector scaling.


def fit_affine(logits, labels, **options):
    rows = np.ones(len(labels), bool)
    return Calibrator("affine", **options).fit(torch.from_numpy(logits)[None], labels, [rows])[0]


def rare_logits(size, seed=0):
    """Logits of two classes that are calibrated, and labels: about 3 % are of class 1."""
    random = np.random.default_rng(seed)
    true = np.stack([np.zeros(size), random.normal(size=size) * 1.5 - 4.5], axis=1)
    return true, drawn(true, seed + 1)


def test_slope_and_intercept_are_those_of_scikit_learn():
    true, labels = rare_logits(2000)
    logits = np.stack([0.3 - 0.2 * true[:, 1], 0.7 * true[:, 1] + 2.5], axis=1)  # weighted, blurred
    scale, bias, _ = fit_affine(logits, labels)
    # Platt's targets as weights of copies of each node with either label.
    sizes = np.bincount(labels)
    certain = (sizes + 1) / (sizes + 2)
    positive = np.where(labels == 1, certain[1], 1 - certain[0])
    lead = (logits[:, 1] - logits[:, 0])[:, None]
    model = sklearn.linear_model.LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(
        np.concatenate([lead, lead]),
        np.repeat([1, 0], len(labels)),
        sample_weight=np.concatenate([positive, 1 - positive]),
    )
    assert scale[0] == scale[1] == pytest.approx(model.coef_[0, 0], rel=1e-4)
    assert bias[1] - bias[0] == pytest.approx(model.intercept_[0], rel=1e-4)


@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0])
def test_slope_and_intercept_are_recovered(slope):
    true, labels = rare_logits(20000)
    logits = true / slope + np.array([0.0, 3.5])  # as class weights of 33 to 1 do
    scale, bias, decision = fit_affine(logits, labels)
    assert scale[0] == pytest.approx(slope, rel=0.1)
    assert bias[1] - bias[0] == pytest.approx(-3.5 * slope, rel=0.1)
    assert not decision.any()
    mean = softmax(logits * scale + bias)[:, 1].mean()
    assert mean == pytest.approx((labels == 1).mean(), rel=0.02)
    assert softmax(logits)[:, 1].mean() > 2 * mean


def test_vector_scaling_is_recovered_and_is_the_optimum():
    random = np.random.default_rng(5)
    true = random.normal(size=(6000, 3)) * 2
    labels = drawn(true, 6)
    logits = (true - [1.0, 0.0, -1.5]) / [0.5, 1.0, 2.0]
    scale, bias, _ = fit_affine(logits, labels)
    np.testing.assert_allclose(scale, [0.5, 1.0, 2.0], rtol=0.1)
    np.testing.assert_allclose(bias - bias.mean(), np.array([1.0, 0.0, -1.5]) + 0.5 / 3, atol=0.15)

    sizes = np.bincount(labels)

    def loss(parameters):  # with the logarithms of the scales, their mean free
        logs = np.log(softmax(logits * np.exp(parameters[:3]) + parameters[3:]))
        total = 0.0
        for row, label in zip(logs, labels, strict=True):
            certain = (sizes[label] + 1) / (sizes[label] + 2)
            total -= certain * row[label] + (1 - certain) / 2 * np.delete(row, label).sum()
        apart = parameters[:3] - parameters[:3].mean()
        return total + (apart**2).sum() / 2

    found = np.concatenate([np.log(scale), bias])
    best = loss(found)
    for step in np.vstack([np.eye(6), -np.eye(6), random.normal(size=(6, 6))]) * 0.01:
        assert loss(found + step) > best - 1e-6


@pytest.mark.parametrize("positives", [1, 2, 12])
def test_few_positive_nodes_do_not_break_the_fit(positives):
    random = np.random.default_rng(positives)
    labels = np.arange(400) < positives
    logits = np.stack([np.zeros(400), random.normal(size=400) + 8.0 * labels], axis=1)  # separable
    scale, bias, _ = fit_affine(logits, labels.astype(int))
    chances = softmax(logits * scale + bias)[:, 1]
    assert np.isfinite(scale).all()
    assert np.isfinite(bias).all()
    assert positives - 1 < chances.sum() < positives + 1.5
    assert chances[labels].mean() < 1 - 1 / (positives + 10)


@pytest.mark.parametrize("positive", [0, 1])
def test_a_rare_class_without_weights_is_predicted_as_often_as_it_is(positive):
    """Too sharp logits say 0.9 % where 3 % are right; a temperature cannot shift the mean."""
    random = np.random.default_rng(4)
    lead = random.normal(size=40_000) * 2 - 5.5
    y = (random.random(40_000) < 1 / (1 + np.exp(-lead))).astype(int)
    scores = np.stack([np.zeros_like(lead), 2 * lead + 1.5], axis=1)
    if positive == 0:
        y, scores = 1 - y, scores[:, ::-1].copy()
    logits, val = torch.from_numpy(scores)[None], np.arange(40_000) < 8_000
    found = Calibrator().fit(logits, y, [val])
    mean = calibrated_probabilities(logits, found)[0, ~val, positive].mean()
    assert float(mean) == pytest.approx((y[~val] == positive).mean(), rel=0.1)


def test_without_a_rare_class_only_the_temperature_is_fitted():
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 100, 2)) * 3)
    y = (np.arange(100) < 12).astype(int)
    assert not Calibrator().fit(logits, y, [np.ones(100, bool)])[:, 1].any()
    one_class = np.zeros(100, int)
    assert not Calibrator().fit(logits, one_class, [np.ones(100, bool)])[:, 1].any()


def test_a_class_without_validation_nodes_keeps_some_probability():
    random = np.random.default_rng(0)
    logits = random.normal(size=(300, 3))
    scale, bias, _ = fit_affine(logits, drawn(logits[:, :2] * 3, 1))
    assert 0.2 < softmax(logits * scale + bias)[:, 2].sum() < 3


def test_a_slope_is_never_negative():
    true, labels = rare_logits(500)
    scale, _, _ = fit_affine(true, 1 - labels)
    assert scale.min() >= 1 / HIGHEST - 1e-12


def test_balanced_decisions_leave_the_bias_out():
    true, labels = rare_logits(2000)
    logits = true + np.array([0.0, 3.5])
    calibration = fit_affine(logits, labels, is_balanced=True)
    scored = decision_logits(torch.from_numpy(logits)[None], calibration[None])[0].numpy()
    np.testing.assert_allclose(scored, logits, atol=1e-9)
    chances = calibrated_probabilities(torch.from_numpy(logits)[None], calibration[None])[0]
    found = predicted_classes(chances.numpy(), calibration)
    np.testing.assert_array_equal(found, logits.argmax(axis=1))
    assert found.sum() > 3 * labels.sum()


@pytest.mark.parametrize(("positive", "threshold"), [(0, 0.95), (1, 0.2)])
def test_a_threshold_decides_alike_from_probabilities_and_logits(positive, threshold):
    true, labels = rare_logits(2000)
    calibration = fit_affine(true, labels, threshold=str(threshold), positive=positive)
    chances = calibrated_probabilities(torch.from_numpy(true)[None], calibration[None])[0].numpy()
    expected = np.where(chances[:, positive] >= threshold, positive, 1 - positive)
    scored = decision_logits(torch.from_numpy(true)[None], calibration[None])[0]
    np.testing.assert_array_equal(scored.argmax(dim=-1).numpy(), expected)
    np.testing.assert_array_equal(predicted_classes(chances, calibration), expected)
    assert len(set(expected)) == 2


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


def test_the_error_by_chance_is_that_of_drawn_labels():
    random = np.random.default_rng(0)
    chances = random.beta(0.5, 8, size=500)
    drawn_errors = [calibration_error(chances, random.random(500) < chances) for _ in range(300)]
    assert chance_error(chances) == pytest.approx(np.mean(drawn_errors), rel=0.15)


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
