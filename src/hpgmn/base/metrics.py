"""Scores and losses of predictions: tensors in, one number per replica out."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.sparse import at_least_single


def accuracy(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """The share of valid rows whose largest logit is at the label.

    Args:
        logits: (R, B, C).
        labels: (R, B).
        valid: (R, B) boolean; other rows are padding.

    Returns:
        (R,)

    >>> logits = torch.tensor([[[2.0, 1.0], [0.0, 3.0], [5.0, 0.0]]])
    >>> labels, valid = torch.tensor([[0, 0, 0]]), torch.tensor([[True, True, False]])
    >>> accuracy(logits, labels, valid)
    tensor([0.5000])
    """
    hits = (logits.argmax(dim=-1) == labels) & valid
    return hits.sum(dim=-1).double().div(valid.sum(dim=-1).clamp(min=1)).float()


def balanced_accuracy(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """The mean over classes of the share of their valid rows that are told right.

    Classes without a valid row do not count.

    Args:
        logits: (R, B, C).
        labels: (R, B).
        valid: (R, B) boolean; other rows are padding.

    Returns:
        (R,)
    """
    truth = _members(labels, valid, logits.shape[-1])
    hits = truth & (logits.argmax(dim=-1) == labels).unsqueeze(-1)
    support = truth.sum(dim=1)
    recall = hits.sum(dim=1).double() / support.clamp(min=1)
    return _mean_where(recall, support > 0).float()


def macro_f1(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """The mean F1 of the classes that valid rows have or are given.

    Args:
        logits: (R, B, C).
        labels: (R, B).
        valid: (R, B) boolean; other rows are padding.

    Returns:
        (R,)
    """
    truth = _members(labels, valid, logits.shape[-1])
    guess = _members(logits.argmax(dim=-1), valid, logits.shape[-1])
    both = truth.sum(dim=1) + guess.sum(dim=1)
    score = 2 * (truth & guess).sum(dim=1).double() / both.clamp(min=1)
    return _mean_where(score, both > 0).float()


def roc_auc(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """The probability that a random node of class 1 is ranked above one of class 0.

    Ties count one half (the Mann–Whitney statistic). With more than two classes, each is set
    against the rest by its own probability, and those with nodes on both sides are averaged. A
    replica whose valid rows hold one class only has no ranking to judge and gets 0.5; one with NaN
    among its scores gets NaN.

    Args:
        logits: (R, B, C).
        labels: (R, B).
        valid: (R, B) boolean; other rows are padding.

    Returns:
        (R,)
    """
    scores, positive, valid_rows = _sides("roc_auc", logits, labels, valid)
    negative = valid_rows & ~positive
    others = negative.sum(dim=-1, keepdim=True)
    # The scores of class 0, then all else: a selection has a size that a GPU must tell its host.
    ordered = scores.masked_fill(~negative, float("inf")).sort(dim=-1).values
    below = torch.searchsorted(ordered, scores, right=False).clamp(max=others)
    through = torch.searchsorted(ordered, scores, right=True).clamp(max=others)
    pairs = positive.sum(dim=-1) * others.squeeze(-1)
    area = ((below + through) * positive).sum(dim=-1).double() / (2 * pairs).clamp(min=1)
    area = torch.where((pairs > 0).any(dim=-1), _mean_where(area, pairs > 0), 0.5)
    return _unless_lost(area, scores, valid_rows)


def average_precision(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """The mean, over the nodes of class 1, of the precision among all ranked as high or higher.

    With more than two classes, each is set against the rest by its own probability, and those with
    a valid row are averaged. Without any node of class 1 it is 0; with NaN among the scores NaN.

    Args:
        logits: (R, B, C).
        labels: (R, B).
        valid: (R, B) boolean; other rows are padding.

    Returns:
        (R,)
    """
    scores, positive, valid_rows = _sides("average_precision", logits, labels, valid)
    found = _as_high(scores, positive).double()
    precision = found / _as_high(scores, valid_rows).clamp(min=1)
    number = positive.sum(dim=-1)
    value = (precision * positive).sum(dim=-1) / number.clamp(min=1)
    return _unless_lost(_mean_where(value, number > 0), scores, valid_rows)


def precision_at(logits: Tensor, labels: Tensor, valid: Tensor, *, number: int) -> Tensor:
    """The share of class 1 among the so many nodes most likely to be of it.

    Nodes tied at the border share its places, so that the order of rows decides nothing. Where
    fewer rows are valid, all of them are taken. NaN among the scores gives NaN.

    Args:
        logits: (R, B, 2).
        labels: (R, B), 0 or 1.
        valid: (R, B) boolean; other rows are padding.
        number: how many nodes are taken.

    Returns:
        (R,)
    """
    if logits.shape[-1] != 2:
        require_metric(f"precision@{number}", logits.shape[-1], "this graph")
    scores = (logits[..., 1] - logits[..., 0]).double()
    positive = valid & (labels == 1)
    taken = valid.sum(dim=-1, keepdim=True).clamp(max=number)
    ordered = scores.masked_fill(~valid, -float("inf")).sort(dim=-1, descending=True).values
    border = ordered.gather(-1, (taken - 1).clamp(min=0))
    above, tied = valid & (scores > border), valid & (scores == border)
    share = (tied & positive).sum(dim=-1).double() / tied.sum(dim=-1).clamp(min=1)
    left = taken.squeeze(-1) - above.sum(dim=-1)
    value = ((above & positive).sum(dim=-1) + left * share) / taken.squeeze(-1).clamp(min=1)
    return _unless_lost(value, scores.unsqueeze(1), valid.unsqueeze(1))


def _members(classes: Tensor, valid: Tensor, num_classes: int) -> Tensor:
    """(R, B, C): whether a valid row is of a class."""
    every = torch.arange(num_classes, device=classes.device)
    return (classes.unsqueeze(-1) == every) & valid.unsqueeze(-1)


def _mean_where(values: Tensor, counted: Tensor) -> Tensor:
    """The mean along the last axis of what is counted; 0 of nothing."""
    return (values * counted).sum(dim=-1) / counted.sum(dim=-1).clamp(min=1)


def _sides(
    name: str, logits: Tensor, labels: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The rankings to judge: scores, positive rows and valid rows, each (R, rankings, B).

    Two classes are one ranking, that of class 1; more are one ranking each.
    """
    num_classes = logits.shape[-1]
    if num_classes == 2:
        scores = (logits[..., 1] - logits[..., 0]).double().unsqueeze(1)
        return scores, (valid & (labels == 1)).unsqueeze(1), valid.unsqueeze(1)
    require_metric(name, num_classes, "this graph")
    scores = functional.log_softmax(logits.double(), dim=-1).transpose(1, 2).contiguous()
    positive = _members(labels, valid, num_classes).transpose(1, 2)
    return scores, positive, valid.unsqueeze(1).expand_as(positive)


def _as_high(scores: Tensor, counted: Tensor) -> Tensor:
    """For each row, how many of the counted ones have its score or a higher one."""
    number = counted.sum(dim=-1, keepdim=True)
    ordered = scores.masked_fill(~counted, float("inf")).sort(dim=-1).values
    return number - torch.searchsorted(ordered, scores, right=False).clamp(max=number)


def _unless_lost(values: Tensor, scores: Tensor, valid: Tensor) -> Tensor:
    """NaN for replicas with NaN among their scores, which sorting would put above all numbers."""
    lost = (scores.isnan() & valid).flatten(1).any(dim=-1)
    return values.masked_fill(lost, float("nan")).float()


def class_loss(
    logits: Tensor,
    labels: Tensor,
    valid: Tensor,
    weights: Tensor | None = None,
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Mean cross-entropy over the valid rows of each replica: (R, B, C) to (R,); Eq. (13).

    Args:
        logits: (R, B, C).
        labels: (R, B).
        valid: (R, B) boolean; other rows are padding.
        weights: (R, C) weights of the classes in the mean; None counts all alike.
        total: sums (2, R) over the processes that share the rows; None where there is one.
    """
    log_probabilities = functional.log_softmax(at_least_single(logits), dim=-1)
    true_class = log_probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    counted = valid if weights is None else weights.gather(1, labels) * valid
    losses, counts = -(true_class * counted).sum(dim=-1), counted.sum(dim=-1)
    if total is not None:
        losses, counts = total(torch.stack([losses, counts.to(losses.dtype)]))
    if weights is None:
        return losses / counts.clamp(min=1)
    return losses / torch.where(counts > 0, counts, 1.0)


Metric = Callable[[Tensor, Tensor, Tensor], Tensor]

METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "roc_auc": roc_auc,
    "average_precision": average_precision,
}
"""The metrics without a number of their own; beside them there is precision@K for any K."""

RANKING_METRICS = ("roc_auc", "average_precision")
"""The metrics that compare the probabilities of different nodes, class by class."""

_PRECISION = re.compile(r"precision@([1-9][0-9]{0,8})")


def has_positive(name: str) -> bool:
    """Whether a metric of two classes depends on which of them is looked for.

    >>> has_positive("average_precision"), has_positive("precision@5"), has_positive("roc_auc")
    (True, True, False)
    """
    return name == "average_precision" or name.startswith("precision@")


def rarest_class(labels: Any) -> int:
    """The class of two that fewer labels have, the last one if both have as many.

    Args:
        labels: class numbers of any shape; negative ones are unknown and do not count.

    >>> rarest_class([0, 1, 1, -1]), rarest_class([0, 1, 1, 0])
    (0, 1)
    """
    known = np.asarray(labels)
    return 0 if (known == 0).sum() < (known == 1).sum() else 1


def metric_words(name: str, positive: str | None) -> str:
    """A metric with the class that it looks for, if it looks for one.

    >>> metric_words("average_precision", "fraud"), metric_words("accuracy", None)
    ("average_precision of 'fraud'", 'accuracy')
    """
    return f"{name} of '{positive}'" if positive is not None and has_positive(name) else name


def metric(name: str, positive: int = 1) -> Metric:
    """The metric of that name.

    Args:
        name: as in :data:`METRICS`, or precision@K.
        positive: which of two classes average_precision and precision@K look for. More classes
            than two have no such class.

    >>> logits = torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]]])
    >>> labels = torch.tensor([[1, 0, 1]])
    >>> metric("precision@2")(logits, labels, torch.ones(1, 3, dtype=torch.bool))
    tensor([0.5000])
    """
    function = _plain_metric(name)
    return functools.partial(_mirrored, function) if positive == 0 else function


def _mirrored(function: Metric, logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """A metric with the two classes exchanged; that of more classes as it is."""
    if logits.shape[-1] != 2:
        return function(logits, labels, valid)
    return function(logits.flip(-1), 1 - labels, valid)


def _plain_metric(name: str) -> Metric:
    if found := _PRECISION.fullmatch(name):
        return functools.partial(precision_at, number=int(found[1]))
    if name.startswith("precision"):
        raise SettingError(
            f"Unknown metric '{name}'.",
            "Give the number of nodes: precision@50 is the fraction of the rarer class among the "
            "50 most likely nodes",
        )
    if name not in METRICS:
        raise SettingError.unknown("metric", name, [*METRICS, "precision@K"])
    return METRICS[name]


def require_metric(name: str, num_classes: int, graph: str) -> None:
    """Raise SettingError for a metric that is unknown or undefined for so many classes."""
    metric(name)
    if name.startswith("precision@") and num_classes != 2:
        raise SettingError(
            f"Metric '{name}' needs two classes ({graph} has {num_classes}).",
            Remedy("Use average precision", option="metric", value="average_precision"),
        )
    if name in RANKING_METRICS and num_classes < 2:
        raise SettingError(
            f"Metric '{name}' needs two classes or more ({graph} has {num_classes}).",
            Remedy("Use accuracy", option="metric", value="accuracy"),
        )
