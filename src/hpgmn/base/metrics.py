"""Metrics, losses and averages of logits.

Metrics and losses map logits (R, B, C), labels (R, B) and valid rows (R, B) to (R,); those of a
regression map values (R, B, 1) and targets (R, B).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hpgmn.base.errors import Remedy, SettingError
from hpgmn.base.sparse import at_least_single

Array = NDArray[Any]


def accuracy(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Return the fraction of valid rows classified correctly.

    >>> logits = torch.tensor([[[2.0, 1.0], [0.0, 3.0], [5.0, 0.0]]])
    >>> labels, valid = torch.tensor([[0, 0, 0]]), torch.tensor([[True, True, False]])
    >>> accuracy(logits, labels, valid)
    tensor([0.5000])
    """
    hits = (logits.argmax(dim=-1) == labels) & valid
    return hits.sum(dim=-1).double().div(valid.sum(dim=-1).clamp(min=1)).float()


def balanced_accuracy(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Return the mean recall over the classes that have valid rows."""
    truth = _members(labels, valid, logits.shape[-1])
    hits = truth & (logits.argmax(dim=-1) == labels).unsqueeze(-1)
    support = truth.sum(dim=1)
    recall = hits.sum(dim=1).double() / support.clamp(min=1)
    return _mean_where(recall, support > 0).float()


def macro_f1(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Return the mean F1 over the classes among labels or predictions."""
    truth = _members(labels, valid, logits.shape[-1])
    predicted = _members(logits.argmax(dim=-1), valid, logits.shape[-1])
    both = truth.sum(dim=1) + predicted.sum(dim=1)
    score = 2 * (truth & predicted).sum(dim=1).double() / both.clamp(min=1)
    return _mean_where(score, both > 0).float()


def roc_auc(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Return the area under the ROC curve; ties count one half.

    With more than two classes, the mean of one-vs-rest over classes with rows on both sides. Valid
    rows of a single class give 0.5, NaN among the scores gives NaN.
    """
    scores, positive, valid_rows = _rankings("roc_auc", logits, labels, valid)
    negative = valid_rows & ~positive
    others = negative.sum(dim=-1, keepdim=True)
    # Masked, not selected: a selection would synchronise the host with the GPU.
    ordered = scores.masked_fill(~negative, float("inf")).sort(dim=-1).values
    below = torch.searchsorted(ordered, scores, right=False).clamp(max=others)
    through = torch.searchsorted(ordered, scores, right=True).clamp(max=others)
    pairs = positive.sum(dim=-1) * others.squeeze(-1)
    area = ((below + through) * positive).sum(dim=-1).double() / (2 * pairs).clamp(min=1)
    area = torch.where((pairs > 0).any(dim=-1), _mean_where(area, pairs > 0), 0.5)
    return _nan_where_invalid(area, scores, valid_rows)


def average_precision(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Return the average precision; rows of equal score share a rank.

    With more than two classes, the mean of one-vs-rest over classes with valid rows. Without a row
    of class 1 it is 0, with NaN among the scores NaN.
    """
    scores, positive, valid_rows = _rankings("average_precision", logits, labels, valid)
    hits = _count_at_least(scores, positive).double()
    precision = hits / _count_at_least(scores, valid_rows).clamp(min=1)
    number = positive.sum(dim=-1)
    value = (precision * positive).sum(dim=-1) / number.clamp(min=1)
    return _nan_where_invalid(_mean_where(value, number > 0), scores, valid_rows)


def precision_at(logits: Tensor, labels: Tensor, valid: Tensor, *, number: int) -> Tensor:
    """Return the fraction of class 1 among the ``number`` highest-ranked nodes, for two classes.

    Nodes tied at the cut-off share its ranks. NaN among the scores gives NaN.
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
    remaining = taken.squeeze(-1) - above.sum(dim=-1)
    value = ((above & positive).sum(dim=-1) + remaining * share) / taken.squeeze(-1).clamp(min=1)
    return _nan_where_invalid(value, scores.unsqueeze(1), valid.unsqueeze(1))


def _members(classes: Tensor, valid: Tensor, num_classes: int) -> Tensor:
    """Return which valid rows belong to each class: (R, B, C)."""
    every = torch.arange(num_classes, device=classes.device)
    return (classes.unsqueeze(-1) == every) & valid.unsqueeze(-1)


def _mean_where(values: Tensor, counted: Tensor) -> Tensor:
    """Return the masked mean along the last axis; 0 of an empty mask."""
    return (values * counted).sum(dim=-1) / counted.sum(dim=-1).clamp(min=1)


def _rankings(
    name: str, logits: Tensor, labels: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, positive rows and valid rows, (R, rankings, B) each.

    Two classes give one ranking, that of class 1; more give one ranking per class.
    """
    num_classes = logits.shape[-1]
    if num_classes == 2:
        scores = (logits[..., 1] - logits[..., 0]).double().unsqueeze(1)
        return scores, (valid & (labels == 1)).unsqueeze(1), valid.unsqueeze(1)
    require_metric(name, num_classes, "this graph")
    scores = functional.log_softmax(logits.double(), dim=-1).transpose(1, 2).contiguous()
    positive = _members(labels, valid, num_classes).transpose(1, 2)
    return scores, positive, valid.unsqueeze(1).expand_as(positive)


def _count_at_least(scores: Tensor, counted: Tensor) -> Tensor:
    """Count, for each row, the masked rows whose score is at least as high."""
    number = counted.sum(dim=-1, keepdim=True)
    ordered = scores.masked_fill(~counted, float("inf")).sort(dim=-1).values
    return number - torch.searchsorted(ordered, scores, right=False).clamp(max=number)


def _nan_where_invalid(values: Tensor, scores: Tensor, valid: Tensor) -> Tensor:
    """Return NaN for replicas with NaN among their scores, which sort above all numbers."""
    lost = (scores.isnan() & valid).flatten(1).any(dim=-1)
    return values.masked_fill(lost, float("nan")).float()


def class_loss(
    logits: Tensor,
    labels: Tensor,
    valid: Tensor,
    weights: Tensor | None = None,
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the mean cross-entropy over the valid rows of each replica: (R,); Eq. (13).

    Args:
        weights: (R, C) class weights; None for uniform ones.
        total: sums (2, R) over the ranks that share the rows; None for a single process.
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


def r2(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """Return the share of the targets' variance that is explained; 0 for equal targets.

    >>> targets, valid = torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3, dtype=torch.bool)
    >>> r2(torch.tensor([[[1.0], [2.0], [2.0]]]), targets, valid)
    tensor([0.5000])
    """
    truth = torch.where(valid, targets, 0).double()
    mean = truth.sum(dim=-1, keepdim=True) / valid.sum(dim=-1, keepdim=True).clamp(min=1)
    total = ((truth - mean).square() * valid).sum(dim=-1)
    error = _errors(values, targets, valid).square().sum(dim=-1)
    return torch.where(total > 0, 1 - error / torch.where(total > 0, total, 1), 0.0).float()


def rmse(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """Return the root of the mean squared error."""
    squares = _errors(values, targets, valid).square().sum(dim=-1)
    return (squares / valid.sum(dim=-1).clamp(min=1)).sqrt().float()


def mae(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """Return the mean absolute error."""
    distances = _errors(values, targets, valid).abs().sum(dim=-1)
    return (distances / valid.sum(dim=-1).clamp(min=1)).float()


def spearman(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """Return the rank correlation, ties sharing their mean rank; 0 where all are tied."""
    count = valid.sum(dim=-1, keepdim=True)
    first, second = (
        (_mean_ranks(column.double(), valid, count) - (count - 1) / 2) * valid
        for column in (values[..., 0], targets)
    )
    spread = (first.square().sum(dim=-1) * second.square().sum(dim=-1)).sqrt()
    value = (first * second).sum(dim=-1) / torch.where(spread > 0, spread, 1)
    lost = (values[..., 0].isnan() & valid).any(dim=-1)  # NaN sorts above all numbers
    return value.masked_fill(lost, float("nan")).float()


def _errors(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, values[..., 0].double() - targets.double(), 0)


def _mean_ranks(values: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """Return the rank of each value among the valid ones of its row, from 0."""
    ordered = values.masked_fill(~valid, float("inf")).sort(dim=-1).values
    below = torch.searchsorted(ordered, values.contiguous(), right=False).clamp(max=count)
    through = torch.searchsorted(ordered, values.contiguous(), right=True).clamp(max=count)
    return (below + through - 1).double() / 2


Metric = Callable[[Tensor, Tensor, Tensor], Tensor]

METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "roc_auc": roc_auc,
    "average_precision": average_precision,
}
"""Metrics of classes by name; precision@K exists beside them for any K."""

REGRESSION_METRICS: dict[str, Metric] = {"r2": r2, "rmse": rmse, "mae": mae, "spearman": spearman}
"""Metrics of targets by name."""

LOWER_IS_BETTER = ("rmse", "mae")
"""Metrics whose negative selects."""

BALANCED_METRICS = ("balanced_accuracy", "macro_f1")
"""Metrics in which every class counts alike."""

RANKING_METRICS = ("roc_auc", "average_precision")
"""Metrics that rank nodes, class by class."""

_PRECISION = re.compile(r"precision@([1-9][0-9]{0,8})")


def has_positive(name: str) -> bool:
    """Return whether a binary metric depends on which class is positive.

    >>> has_positive("average_precision"), has_positive("precision@5"), has_positive("roc_auc")
    (True, True, False)
    """
    return name == "average_precision" or name.startswith("precision@")


def rarest_class(labels: Any) -> int:
    """Return the rarer of two classes, 1 on a tie; negative labels are unknown.

    >>> rarest_class([0, 1, 1, -1]), rarest_class([0, 1, 1, 0])
    (0, 1)
    """
    known = np.asarray(labels)
    return 0 if (known == 0).sum() < (known == 1).sum() else 1


def metric_words(name: str, positive: str | None) -> str:
    """Format a metric with its positive class, if it has one.

    >>> metric_words("average_precision", "fraud"), metric_words("accuracy", None)
    ("average_precision of 'fraud'", 'accuracy')
    """
    return f"{name} of '{positive}'" if positive is not None and has_positive(name) else name


def metric(name: str, positive: int = 1) -> Metric:
    """Return the metric of that name.

    Args:
        name: as in :data:`METRICS`, or precision@K.
        positive: the positive class of average_precision and precision@K, for two classes.

    >>> logits = torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]]])
    >>> labels = torch.tensor([[1, 0, 1]])
    >>> metric("precision@2")(logits, labels, torch.ones(1, 3, dtype=torch.bool))
    tensor([0.5000])
    """
    if match := _PRECISION.fullmatch(name):
        function: Metric = functools.partial(precision_at, number=int(match[1]))
    elif name.startswith("precision"):
        raise SettingError(
            f"Unknown metric '{name}'.",
            "Give the number of nodes: precision@50 is the fraction of the rarer class among the "
            "50 most likely nodes",
        )
    elif name in REGRESSION_METRICS:
        return REGRESSION_METRICS[name]
    elif name not in METRICS:
        raise SettingError.unknown("metric", name, [*METRICS, "precision@K", *REGRESSION_METRICS])
    else:
        function = METRICS[name]
    return functools.partial(_swap_classes, function) if positive == 0 else function


def selection_metric(name: str, positive: int = 1) -> Metric:
    """Return the metric that selection maximises: that of the name, or its negative."""
    function = metric(name, positive)
    return (lambda *args: -function(*args)) if name in LOWER_IS_BETTER else function


def plain_score(name: str, score: float) -> float:
    """Return the value of a metric, given that of :func:`selection_metric`."""
    return -score if name in LOWER_IS_BETTER else score


def _swap_classes(function: Metric, logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Evaluate a binary metric with the two classes exchanged."""
    if logits.shape[-1] != 2:
        return function(logits, labels, valid)
    return function(logits.flip(-1), 1 - labels, valid)


def require_metric(name: str, num_classes: int, graph: str) -> None:
    """Raise SettingError for a metric that is unknown or undefined for this number of classes.

    Targets have no classes.
    """
    metric(name)
    if (name in REGRESSION_METRICS) == bool(num_classes):
        kind, usual = ("classes", "accuracy") if num_classes else ("numbers", "r2")
        raise SettingError(
            f"Metric '{name}' is not for {kind}, the labels of {graph}.",
            Remedy(f"Use {usual}", option="metric", value=usual),
        )
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


def mean_logits(logits: Tensor) -> Tensor:
    """Return log-probabilities averaged over seeds in probability space: (R, …, C) to (…, C).

    Targets, of a single column, are averaged themselves.
    """
    if logits.shape[-1] == 1:
        return logits.double().mean(dim=0)
    logs = logits.double().log_softmax(dim=-1)
    return torch.logsumexp(logs, dim=0) - math.log(logits.shape[0])


def conformal_quantile(scores: Array, coverage: float) -> float:
    """Return the score that a new one of the same kind does not exceed with this probability.

    Split conformal prediction: the ⌈(n + 1) · coverage⌉-th smallest of n scores; infinite where n
    is too small for the coverage.

    >>> conformal_quantile(np.array([3.0, 1.0, 2.0, 4.0]), 0.8), conformal_quantile(np.ones(3), 0.8)
    (4.0, inf)
    """
    rank = math.ceil((scores.size + 1) * coverage - 1e-9)
    return float(np.sort(scores)[rank - 1]) if 0 < rank <= scores.size else math.inf
