"""Rankings against scikit-learn and loops; the noise of few positive nodes."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_curve

from hpgmn.evaluation.rankings import FEW_POSITIVES, ranking_report, validation_noise


def drawn(size, rate, seed, decimals=3):
    random = np.random.default_rng(seed)
    positive = random.random(size) < rate
    return np.round(random.normal(size=size) + 1.5 * positive, decimals), positive


@pytest.mark.parametrize("decimals", [6, 1], ids=["no ties", "ties"])
def test_a_ranking_is_that_of_scikit_learn(decimals):
    lead, positive = drawn(400, 0.1, 0, decimals)
    found = ranking_report([lead], [positive])
    assert found["base_rate"] == pytest.approx(positive.mean())
    expected = average_precision_score(positive, lead)
    assert found["average_precision"] == pytest.approx(expected, rel=1e-6)
    precision, recall, _ = precision_recall_curve(positive, lead)
    for at, value in found["curve"]:
        # The fewest nodes that reach this recall, tied nodes together.
        reached = [p for p, r in zip(precision, recall, strict=True) if r >= at - 1e-9]
        assert value == pytest.approx(reached[-1], abs=1e-6)


def test_precision_at_the_top_is_a_count_and_its_gain_a_ratio():
    lead, positive = drawn(120, 0.2, 1, 9)
    found = ranking_report([lead], [positive])["precision_at"]
    assert [row["nodes"] for row in found] == [10, 50, 100]  # not 500
    for row in found:
        expected = positive[np.argsort(-lead)[: row["nodes"]]].mean()
        assert row["precision"] == pytest.approx(expected)
        assert row["gain"] == pytest.approx(expected / positive.mean())


def test_splits_are_averaged():
    cases = [drawn(60, 0.3, seed) for seed in (2, 3)]
    alone = [ranking_report([lead], [positive]) for lead, positive in cases]
    both = ranking_report(*zip(*cases, strict=True))
    for key in ("base_rate", "average_precision"):
        assert both[key] == pytest.approx((alone[0][key] + alone[1][key]) / 2)
    curves = [np.array(one["curve"])[:, 1] for one in alone]
    np.testing.assert_allclose(np.array(both["curve"])[:, 1], np.mean(curves, axis=0), atol=1e-6)


def test_without_positive_nodes_there_is_no_ranking():
    assert ranking_report([np.arange(3.0)], [np.zeros(3, bool)]) is None


def test_noise_is_the_spread_over_other_validation_nodes():
    """The bootstrap estimates what drawing new validation nodes of the same kind gives."""
    values = []
    for seed in range(300):
        lead, positive = drawn(300, 0.06, seed, 9)
        values.append(average_precision_score(positive, lead))
    lead, positive = drawn(300, 0.06, 1000, 9)
    logits = torch.from_numpy(np.stack([np.zeros(300), lead], axis=1))
    found = validation_noise(logits, positive.astype(int), "average_precision", 1)
    assert found["positives"] == positive.sum()
    assert found["standard_error"] == pytest.approx(np.std(values), rel=0.4)
    swapped = validation_noise(logits.flip(-1), 1 - positive.astype(int), "average_precision", 0)
    assert swapped == found


def test_many_positive_nodes_have_no_noise():
    labels = np.r_[np.ones(FEW_POSITIVES, int), np.zeros(100, int)]
    logits = torch.zeros(len(labels), 2)
    assert validation_noise(logits, labels, "accuracy", 1) is None
    assert validation_noise(logits, np.zeros(len(labels), int), "accuracy", 1) is None
