"""What the trainer asks of a task: output width, losses, and values to score.

Regression is trained on targets standardised by the train nodes of each replica, so a trained model
needs its train labels only to predict in the targets' own unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from hpgmn.base.metrics import class_loss
from hpgmn.base.sparse import at_least_single
from hpgmn.base.tasks import Array, target_scale

RankSum = Callable[[Tensor], Tensor]
"""Sums a tensor over the ranks that share the rows."""


class Objective(ABC):
    """What the trainer asks of a task; logits are (R, B, C), labels and valid rows (R, B).

    Attributes:
        output_dim: C, the number of columns of a model's output.
    """

    output_dim: int

    @abstractmethod
    def loss(
        self, logits: Tensor, labels: Tensor, valid: Tensor, total: RankSum | None = None
    ) -> Tensor:
        """Return the mean training loss of the valid rows, (R,)."""

    def validation_loss(self, logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        """Return the loss that breaks ties between epochs, (R,)."""
        return self.loss(logits, labels, valid)

    def values(self, logits: Tensor) -> Tensor:
        """Return outputs as they are scored: class logits, or targets in their own unit."""
        return logits


@dataclass(frozen=True)
class Classification(Objective):
    """Cross-entropy over classes.

    Attributes:
        output_dim: the number of classes.
        weights: (R, C) class weights; None: equal.
    """

    output_dim: int
    weights: Tensor | None = None

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, valid: Tensor, total: RankSum | None = None
    ) -> Tensor:
        return class_loss(logits, labels, valid, self.weights, total)

    @override
    def validation_loss(self, logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        return class_loss(logits, labels, valid)


@dataclass(frozen=True)
class Regression(Objective):
    """Squared or Huber loss on targets standardised by the train nodes of each replica.

    Attributes:
        mean: (R, 1) of the train targets, in double precision.
        std: (R, 1) their standard deviation.
        kind: one of REGRESSION_LOSSES.
    """

    mean: Tensor
    std: Tensor
    kind: str = "squared"
    output_dim: int = 1

    @classmethod
    def of(cls, train_labels: Array, kind: str, device: torch.device | str) -> Regression:
        """Standardise by (R, N) targets, NaN outside the train nodes."""
        mean, std = target_scale(train_labels)
        return cls(torch.from_numpy(mean).to(device), torch.from_numpy(std).to(device), kind)

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, valid: Tensor, total: RankSum | None = None
    ) -> Tensor:
        outputs = at_least_single(logits)[..., 0]
        known = torch.where(valid, labels, self.mean)  # NaN would reach the gradient
        targets = ((known - self.mean) / self.std).to(outputs.dtype)
        loss = functional.huber_loss if self.kind == "huber" else functional.mse_loss
        each = torch.where(valid, loss(outputs, targets, reduction="none"), 0)
        sums = torch.stack([each.sum(dim=-1), valid.sum(dim=-1).to(each.dtype)])
        losses, counts = (sums if total is None else total(sums)).unbind()
        return losses / counts.clamp(min=1)

    @override
    def values(self, logits: Tensor) -> Tensor:
        return logits.double() * self.std.unsqueeze(-1) + self.mean.unsqueeze(-1)
