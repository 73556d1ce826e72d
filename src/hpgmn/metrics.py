"""Scores and losses of predictions: tensors in, one number per replica out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from hpgmn.errors import SettingError, unknown_name


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


def roc_auc(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """The probability that a random node of class 1 is ranked above one of class 0.

    Ties count one half (the Mann–Whitney statistic). A replica whose valid rows hold one class
    only has no ranking to judge and gets 0.5; one with NaN among its scores gets NaN.

    Args:
        logits: (R, B, 2).
        labels: (R, B), 0 or 1.
        valid: (R, B) boolean; other rows are padding.

    Returns:
        (R,)
    """
    if logits.shape[-1] != 2:
        raise SettingError(
            f"Metric 'roc_auc' needs two classes (this graph has {logits.shape[-1]}). "
            "Use --metric accuracy."
        )
    scores = (logits[..., 1] - logits[..., 0]).double()
    positive, negative = valid & (labels == 1), valid & (labels == 0)
    others = negative.sum(dim=-1, keepdim=True)
    # The scores of class 0, then all else: a selection has a size that a GPU must tell its host.
    ordered = scores.masked_fill(~negative, float("inf")).sort(dim=-1).values
    below = torch.searchsorted(ordered, scores, right=False).clamp(max=others)
    through = torch.searchsorted(ordered, scores, right=True).clamp(max=others)
    pairs = positive.sum(dim=-1) * others.squeeze(-1)
    area = ((below + through) * positive).sum(dim=-1).double() / (2 * pairs).clamp(min=1)
    area = torch.where(pairs > 0, area, 0.5)
    lost = (scores.isnan() & valid).any(dim=-1)  # searchsorted would put NaN above every number
    return area.masked_fill(lost, float("nan")).float()


def class_loss(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Mean cross-entropy over the valid rows of each replica: (R, B, C) to (R,); Eq. (13)."""
    chances = functional.log_softmax(logits.float(), dim=-1)
    own = chances.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -(own * valid).sum(dim=-1) / valid.sum(dim=-1).clamp(min=1)


METRICS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "accuracy": accuracy,
    "roc_auc": roc_auc,
}


def metric(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The metric of that name."""
    if name not in METRICS:
        raise SettingError(unknown_name("metric", name, METRICS))
    return METRICS[name]
