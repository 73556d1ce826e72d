"""Scores against scikit-learn and against the definition, replica by replica."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom, spearmanr
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch import Tensor
from torch.nn import functional

from hpgmn.base.errors import SettingError, format_score
from hpgmn.base.metrics import (
    METRICS,
    REGRESSION_METRICS,
    accuracy,
    average_precision,
    balanced_accuracy,
    class_loss,
    conformal_quantile,
    has_positive,
    macro_f1,
    mean_logits,
    metric,
    plain_score,
    precision_at,
    require_metric,
    roc_auc,
    selection_metric,
)

Case = tuple[Tensor, Tensor, Tensor]
Replica = tuple[Tensor, np.ndarray, np.ndarray, np.ndarray]


@st.composite
def predictions(draw, num_classes):
    """Logits of few values (so that many tie), labels, and rows of which some are padding."""
    replicas, rows = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    levels = draw(st.sampled_from([1, 3, 1000]))
    logits = random.integers(-levels, levels, (replicas, rows, num_classes), endpoint=True) / 4
    labels = random.integers(0, num_classes, (replicas, rows))
    valid = random.random((replicas, rows)) < draw(st.sampled_from([0.5, 1.0]))
    return torch.from_numpy(logits).float(), torch.from_numpy(labels), torch.from_numpy(valid)


@given(predictions(num_classes=4))
def test_accuracy_matches_scikit_learn(case):
    found = accuracy(*case)
    for score, logits, labels, valid in zip(found, *(part.numpy() for part in case), strict=True):
        if not valid.any():
            assert score == 0
            continue
        guess = logits.argmax(axis=-1)
        expected = sklearn.metrics.accuracy_score(labels[valid], guess[valid])
        assert score.item() == pytest.approx(expected, rel=1e-6)


@given(predictions(num_classes=2))
def test_roc_auc_matches_scikit_learn(case):
    found = roc_auc(*case)
    for area, logits, labels, valid in zip(found, *(part.numpy() for part in case), strict=True):
        if len(set(labels[valid])) < 2:
            assert area == 0.5
            continue
        scores = (logits[:, 1] - logits[:, 0])[valid]
        expected = sklearn.metrics.roc_auc_score(labels[valid], scores)
        assert area.item() == pytest.approx(expected, rel=1e-6)


def by_replica(found, case):
    """Each replica's score with its logits, labels and valid rows."""
    return list(zip(found, *(part.numpy() for part in case), strict=True))


any_classes = st.sampled_from([2, 3, 5]).flatmap(lambda number: predictions(num_classes=number))


@given(any_classes)
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.filterwarnings("ignore:A single label was found")
def test_balanced_accuracy_matches_scikit_learn(case):
    for score, logits, labels, valid in by_replica(balanced_accuracy(*case), case):
        if not valid.any():
            assert score == 0
            continue
        guess = logits.argmax(axis=-1)
        expected = sklearn.metrics.balanced_accuracy_score(labels[valid], guess[valid])
        assert score.item() == pytest.approx(expected, rel=1e-6)


@given(any_classes)
def test_macro_f1_matches_scikit_learn(case):
    for score, logits, labels, valid in by_replica(macro_f1(*case), case):
        if not valid.any():
            assert score == 0
            continue
        guess = logits.argmax(axis=-1)
        expected = sklearn.metrics.f1_score(
            labels[valid], guess[valid], average="macro", zero_division=0
        )
        assert score.item() == pytest.approx(expected, rel=1e-6)


def rankings(logits, labels):
    """For each ranking that is judged, who is positive and the scores."""
    if logits.shape[1] == 2:
        return [(labels == 1, logits[:, 1] - logits[:, 0])]
    chances = torch.from_numpy(logits).double().log_softmax(dim=-1).numpy()
    return [(labels == number, chances[:, number]) for number in range(logits.shape[1])]


@given(any_classes)
def test_average_precision_matches_scikit_learn(case):
    for score, logits, labels, valid in by_replica(average_precision(*case), case):
        parts = [
            sklearn.metrics.average_precision_score(positive, scores)
            for positive, scores in rankings(logits[valid], labels[valid])
            if positive.any()
        ]
        assert score.item() == pytest.approx(np.mean(parts) if parts else 0, rel=1e-6)


@given(st.sampled_from([3, 5]).flatmap(lambda number: predictions(num_classes=number)))
def test_roc_auc_of_many_classes_is_the_mean_of_each_against_the_rest(case):
    for score, logits, labels, valid in by_replica(roc_auc(*case), case):
        parts = [
            sklearn.metrics.roc_auc_score(positive, scores)
            for positive, scores in rankings(logits[valid], labels[valid])
            if positive.any() and not positive.all()
        ]
        assert score.item() == pytest.approx(np.mean(parts) if parts else 0.5, rel=1e-6)


@given(predictions(num_classes=2), st.integers(1, 15))
def test_precision_at_is_the_mean_over_all_orders_of_ties(case, number):
    for score, logits, labels, valid in by_replica(precision_at(*case, number=number), case):
        scores, positive = (logits[:, 1] - logits[:, 0])[valid], labels[valid] == 1
        left, found, taken = min(number, len(scores)), 0.0, min(number, len(scores))
        for value in sorted(set(scores.tolist()), reverse=True):  # a tie is one group
            group = positive[scores == value]
            part = min(left, len(group))
            found += part * group.mean()
            left -= part
        assert score.item() == pytest.approx(found / taken if taken else 0, rel=1e-6)


def test_precision_at_takes_the_likeliest():
    logits = torch.tensor([[[0.0, 5.0], [0.0, 4.0], [0.0, 3.0], [0.0, 9.0]]])
    labels, valid = torch.tensor([[1, 0, 1, 1]]), torch.tensor([[True, True, True, False]])
    for number, expected in ((1, 1.0), (2, 0.5), (3, 2 / 3), (50, 2 / 3)):
        found = precision_at(logits, labels, valid, number=number)
        assert found.tolist() == pytest.approx([expected])


NAMES = [*sorted(METRICS), "precision@3"]


@given(predictions(num_classes=2), st.sampled_from(NAMES))
def test_padding_and_order_do_not_matter(case, name):
    logits, labels, valid = case
    expected = metric(name)(logits, labels, valid)
    noisy = torch.where(valid.unsqueeze(-1), logits, torch.full_like(logits, float("nan")))
    other = torch.where(valid, labels, 1 - labels)
    order = torch.arange(labels.shape[1]).flip(0)
    found = metric(name)(noisy[:, order], other[:, order], valid[:, order])
    # A mean of fractions is rounded by the order of its terms; counts are not.
    rounding = 1e-7 if name == "average_precision" else 0
    torch.testing.assert_close(found, expected, rtol=0, atol=rounding)


@given(predictions(num_classes=3), st.sampled_from(sorted(METRICS)))
def test_padding_does_not_matter_with_more_classes(case, name):
    logits, labels, valid = case
    noisy = torch.where(valid.unsqueeze(-1), logits, torch.full_like(logits, float("nan")))
    found = METRICS[name](noisy, torch.where(valid, labels, (labels + 1) % 3), valid)
    torch.testing.assert_close(found, METRICS[name](*case), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "num_classes"),
    [
        *(("roc_auc", number) for number in (2, 3)),
        *(("average_precision", number) for number in (2, 3)),
        ("precision@1", 2),
    ],
)
def test_a_diverged_model_has_no_ranking(name, num_classes):
    logits = torch.zeros(2, 3, num_classes)
    logits[0, 1] = float("nan")
    labels, valid = torch.tensor([[0, 1, 0]] * 2), torch.ones(2, 3, dtype=torch.bool)
    lost, fine = metric(name)(logits, labels, valid).tolist()
    assert math.isnan(lost)
    assert 0 <= fine <= 1


@pytest.mark.parametrize(
    ("name", "num_classes", "told"),
    [
        ("roc_auc", 1, r'needs two classes or more \(this graph has 1\)\. .*metric="accuracy"'),
        ("average_precision", 1, "needs two classes or more"),
        ("precision@4", 3, r'needs two classes \(this graph has 3\)\. .*metric="average_prec'),
    ],
)
def test_a_metric_that_a_graph_cannot_have_is_refused(name, num_classes, told):
    valid = torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(SettingError, match=told):
        metric(name)(torch.zeros(1, 4, num_classes), torch.zeros(1, 4, dtype=torch.int64), valid)
    with pytest.raises(SettingError, match=told):
        require_metric(name, num_classes, "this graph")
    for own, classes in (("accuracy", 1), ("macro_f1", 3), ("roc_auc", 3), ("precision@9", 2)):
        require_metric(own, classes, "this graph")


@pytest.mark.parametrize("name", ["precision", "precision@0", "precision@k", "precision@1.5"])
def test_precision_needs_a_number(name):
    with pytest.raises(SettingError, match=f"Unknown metric '{name}'. Give the number of nodes"):
        metric(name)


def test_unknown_metric_names_the_nearest():
    with pytest.raises(SettingError, match=r"'acuracy'. Did you mean 'accuracy'\? Choose from: ac"):
        metric("acuracy")


def test_class_loss_is_torchs_cross_entropy_over_the_valid_rows():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 5, 4, generator=generator) * 3
    labels = torch.randint(0, 4, (3, 5), generator=generator)
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 1]]).bool()
    expected = [
        functional.cross_entropy(s[v], y[v]) for s, y, v in zip(scores, labels, valid, strict=True)
    ]
    torch.testing.assert_close(class_loss(scores, labels, valid), torch.stack(expected))


def test_weighted_class_loss_is_torchs():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(3, 6, 4, generator=generator)
    labels = torch.randint(0, 4, (3, 6), generator=generator)
    valid = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 1, 0]]).bool()
    weights = torch.rand(3, 4, generator=generator) + 0.1
    expected = [
        functional.cross_entropy(s[v], y[v], weight=w)
        for s, y, v, w in zip(scores, labels, valid, weights, strict=True)
    ]
    found = class_loss(scores, labels, valid, weights)
    torch.testing.assert_close(found, torch.stack(expected))
    plain = class_loss(scores, labels, valid)
    torch.testing.assert_close(class_loss(scores, labels, valid, torch.ones(3, 4)), plain)
    assert not torch.allclose(found[:2], plain[:2])


@pytest.mark.parametrize("weights", [None, torch.ones(1, 2), torch.zeros(1, 2)])
def test_class_loss_of_no_rows_is_zero(weights):
    logits, labels = torch.ones(1, 3, 2, requires_grad=True), torch.zeros(1, 3).long()
    loss = class_loss(logits, labels, torch.zeros(1, 3, dtype=torch.bool), weights)
    assert loss.tolist() == [0.0]
    loss.sum().backward()
    assert logits.grad is not None
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("name", ["average_precision", "precision@3", "roc_auc", "macro_f1"])
def test_the_positive_class_may_be_the_first(name):
    """Against scikit-learn, and precision@3 by counting."""
    random = np.random.default_rng(3)
    logits, labels = random.normal(size=(1, 40, 2)), random.random((1, 40)) < 0.8
    case = torch.tensor(logits), torch.tensor(labels).long(), torch.ones(1, 40, dtype=torch.bool)
    first = logits[0, :, 0] - logits[0, :, 1]
    truth = ~labels[0]
    expected = {
        "average_precision": sklearn.metrics.average_precision_score(truth, first),
        "precision@3": truth[np.argsort(-first)[:3]].mean(),
        "roc_auc": sklearn.metrics.roc_auc_score(truth, first),
        "macro_f1": sklearn.metrics.f1_score(truth, first > 0, average="macro"),
    }[name]
    assert metric(name, positive=0)(*case).item() == pytest.approx(expected, rel=1e-6)
    is_another = metric(name)(*case).item() != pytest.approx(expected, rel=1e-6)
    assert is_another == has_positive(name)


@given(predictions(num_classes=3))
def test_three_classes_have_no_positive_one(case):
    one, other = (metric("average_precision", positive=number)(*case) for number in (0, 1))
    assert torch.equal(one, other)


def test_an_average_is_of_probabilities():
    logits = torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]]])
    first = (0.5 + 1 / (1 + np.exp(-2.0))) / 2
    found = mean_logits(logits).exp().numpy()
    np.testing.assert_allclose(found, [[first, 1 - first]], rtol=1e-12)
    far = torch.tensor([[[0.0, 2000.0]], [[0.0, 1000.0]]])  # a probability too small for a number
    np.testing.assert_allclose(mean_logits(far)[0], [-1000 - np.log(2), 0.0], atol=1e-9)


# Targets.

ROWS = arrays(np.float64, (3, 12), elements=st.integers(-20, 20).map(float))
PEERS = {
    "r2": r2_score,
    "rmse": root_mean_squared_error,
    "mae": mean_absolute_error,
    "spearman": lambda truth, values: spearmanr(truth, values).statistic,
}


@pytest.mark.parametrize("name", PEERS)
@given(ROWS)
def test_metrics_are_those_of_scikit_learn_and_scipy(name, rows):
    truth, values, mask = rows[0], rows[1], rows[2] > -10
    mask[:2], truth[:2], values[:2] = True, (30.0, 31.0), (40.0, 50.0)  # neither is constant
    expected = PEERS[name](truth[mask], values[mask])
    hidden = torch.from_numpy(np.where(mask, truth, math.nan))[None]
    function = REGRESSION_METRICS[name]
    value = float(
        function(torch.from_numpy(values)[None, :, None], hidden, torch.tensor(mask[None]))
    )
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-5)
    selected = selection_metric(name)(
        torch.from_numpy(values)[None, :, None], hidden, torch.tensor(mask[None])
    )
    assert plain_score(name, float(selected)) == value
    assert (float(selected) == value) == (name in ("r2", "spearman") or value == 0)


def test_equal_targets_have_no_score_and_nan_no_rank():
    truth, valid = torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool)
    values = torch.tensor([[[1.0], [2.0], [3.0]]])
    assert REGRESSION_METRICS["r2"](values, truth, valid) == 0
    assert REGRESSION_METRICS["spearman"](values, truth, valid) == 0
    values[0, 1] = math.nan
    assert REGRESSION_METRICS["spearman"](values, truth, valid).isnan().all()


def test_metrics_are_refused_for_the_other_task():
    require_metric("r2", 0, "'g'")
    for name, classes, usual in (("r2", 3, "accuracy"), ("accuracy", 0, "r2")):
        with pytest.raises(SettingError, match=f"Metric '{name}' is not for .*{usual}"):
            require_metric(name, classes, "'g'")


def test_scores_of_targets_are_no_percentages():
    assert format_score("rmse", 0.5) == "0.500"
    assert format_score("mae", 12345.678) == "12345.7"
    assert format_score("accuracy", 0.5) == "50.0"


def test_conformal_intervals_cover_new_errors_as_often_as_they_say():
    random, covered, trials = np.random.default_rng(0), 0, 200
    for _ in range(trials):
        errors = np.abs(random.standard_t(3, size=60))
        covered += errors[0] <= conformal_quantile(errors[1:], 0.8)
    assert binom.ppf(0.001, trials, 0.8) <= covered <= binom.ppf(0.999, trials, 49 / 60)


def test_few_scores_give_an_infinite_interval():
    assert conformal_quantile(np.arange(18.0), 0.95) == math.inf
    assert conformal_quantile(np.arange(19.0), 0.95) == 18
    assert conformal_quantile(np.empty(0), 0.5) == math.inf
