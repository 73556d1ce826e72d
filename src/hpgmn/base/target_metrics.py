"""Metrics of targets, the numbers that a regression predicts, and conformal quantiles.

Metrics map values (R, B, 1), targets (R, B) and valid rows (R, B) to (R,).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


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


def conformal_quantile(scores: Array, coverage: float) -> float:
    """Return the score that a new one of the same kind does not exceed with this probability.

    Split conformal prediction: the ⌈(n + 1) · coverage⌉-th smallest of n scores; infinite where n
    is too small for the coverage.

    >>> conformal_quantile(np.array([3.0, 1.0, 2.0, 4.0]), 0.8), conformal_quantile(np.ones(3), 0.8)
    (4.0, inf)
    """
    rank = math.ceil((scores.size + 1) * coverage - 1e-9)
    return float(np.sort(scores)[rank - 1]) if 0 < rank <= scores.size else math.inf
