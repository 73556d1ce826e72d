"""Scores against scikit-learn and against the definition, replica by replica."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from hpgmn.errors import SettingError
from hpgmn.metrics import METRICS, accuracy, class_loss, metric, roc_auc


@st.composite
def predictions(draw: st.DrawFn, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of few values (so that many tie), labels, and rows of which some are padding."""
    replicas, rows = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    levels = draw(st.sampled_from([1, 3, 1000]))
    logits = random.integers(-levels, levels, (replicas, rows, num_classes), endpoint=True) / 4
    labels = random.integers(0, num_classes, (replicas, rows))
    valid = random.random((replicas, rows)) < draw(st.sampled_from([0.5, 1.0]))
    return torch.from_numpy(logits).float(), torch.from_numpy(labels), torch.from_numpy(valid)


@given(predictions(num_classes=4))
def test_accuracy_matches_scikit_learn(case: tuple[Tensor, Tensor, Tensor]) -> None:
    found = accuracy(*case)
    for score, logits, labels, valid in zip(found, *(part.numpy() for part in case), strict=True):
        if not valid.any():
            assert score == 0
            continue
        guess = logits.argmax(axis=-1)
        expected = sklearn.metrics.accuracy_score(labels[valid], guess[valid])
        assert score.item() == pytest.approx(expected, rel=1e-6)


@given(predictions(num_classes=2))
def test_roc_auc_matches_scikit_learn(case: tuple[Tensor, Tensor, Tensor]) -> None:
    found = roc_auc(*case)
    for area, logits, labels, valid in zip(found, *(part.numpy() for part in case), strict=True):
        if len(set(labels[valid])) < 2:
            assert area == 0.5
            continue
        scores = (logits[:, 1] - logits[:, 0])[valid]
        expected = sklearn.metrics.roc_auc_score(labels[valid], scores)
        assert area.item() == pytest.approx(expected, rel=1e-6)


@given(predictions(num_classes=2))
def test_roc_auc_is_the_share_of_pairs_in_order(case: tuple[Tensor, Tensor, Tensor]) -> None:
    for area, logits, labels, valid in zip(roc_auc(*case), *case, strict=True):
        scores = (logits[:, 1] - logits[:, 0]).tolist()
        won = pairs = 0.0
        for one in range(len(scores)):
            for other in range(len(scores)):
                if valid[one] and valid[other] and labels[one] == 1 and labels[other] == 0:
                    pairs += 1
                    won += (scores[one] > scores[other]) + 0.5 * (scores[one] == scores[other])
        assert area.item() == pytest.approx(won / pairs if pairs else 0.5)


@given(predictions(num_classes=2), st.sampled_from(sorted(METRICS)))
def test_padding_and_order_do_not_matter(case: tuple[Tensor, Tensor, Tensor], name: str) -> None:
    logits, labels, valid = case
    expected = METRICS[name](logits, labels, valid)
    noisy = torch.where(valid.unsqueeze(-1), logits, torch.full_like(logits, float("nan")))
    other = torch.where(valid, labels, 1 - labels)
    order = torch.arange(labels.shape[1]).flip(0)
    found = METRICS[name](noisy[:, order], other[:, order], valid[:, order])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_roc_auc_counts_a_tie_as_one_half() -> None:
    logits = torch.tensor([[[0.0, 1.0], [1.0, 2.0], [0.0, 0.0]]])
    labels = torch.tensor([[1, 0, 0]])
    assert roc_auc(logits, labels, torch.ones(1, 3, dtype=torch.bool)).tolist() == [0.75]


def test_a_diverged_model_has_no_roc_auc() -> None:
    logits = torch.zeros(2, 3, 2)
    logits[0, 1] = float("nan")
    labels, valid = torch.tensor([[0, 1, 0]] * 2), torch.ones(2, 3, dtype=torch.bool)
    lost, fine = roc_auc(logits, labels, valid).tolist()
    assert math.isnan(lost)
    assert fine == 0.5


@pytest.mark.parametrize("num_classes", [1, 3])
def test_roc_auc_refuses_other_numbers_of_classes(num_classes: int) -> None:
    valid = torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(SettingError, match=rf"needs two classes \(this graph has {num_classes}\)"):
        roc_auc(torch.zeros(1, 4, num_classes), torch.zeros(1, 4, dtype=torch.int64), valid)


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_found_by_name(name: str) -> None:
    assert metric(name) is {"accuracy": accuracy, "roc_auc": roc_auc}[name]


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"'acuracy'. Did you mean 'accuracy'\? Choose from: ac"):
        metric("acuracy")


def test_class_loss_is_torchs_cross_entropy_over_the_valid_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 5, 4, generator=generator) * 3
    labels = torch.randint(0, 4, (3, 5), generator=generator)
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 1]]).bool()
    expected = [
        functional.cross_entropy(s[v], y[v]) for s, y, v in zip(scores, labels, valid, strict=True)
    ]
    torch.testing.assert_close(class_loss(scores, labels, valid), torch.stack(expected))


def test_class_loss_of_no_rows_is_zero() -> None:
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert class_loss(torch.ones(1, 3, 2), torch.zeros(1, 3).long(), nothing).tolist() == [0.0]
