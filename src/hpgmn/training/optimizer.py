"""Adam over replicas: each may have its own learning rate and weight decay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from hpgmn.models.stage import Parameters


class ReplicaAdam:
    """Adam (β₁ 0.9, β₂ 0.999, ε 1e-8) whose moments are plain tensors, easy to save and to cut.

    Args:
        parameters: tensors that lead with R, by name.
        lr: one per replica.
        weight_decay: one per replica, added to the gradient as in L2 regularisation.
        first: the first moments to go on from; zeros if None.
        second: the second moments to go on from; zeros if None.
        steps: how many steps were made already.
    """

    def __init__(
        self,
        parameters: Parameters,
        lr: Sequence[float],
        weight_decay: Sequence[float],
        first: Parameters | None = None,
        second: Parameters | None = None,
        steps: int = 0,
    ) -> None:
        self.parameters = parameters
        self.first = first or {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = second or {name: torch.zeros_like(p) for name, p in parameters.items()}
        rates = list(zip(lr, weight_decay, strict=True))
        self.groups = [
            (rate, [r for r, own in enumerate(rates) if own == rate])
            for rate in dict.fromkeys(rates)
        ]
        any_parameter = next(iter(parameters.values()))
        whole = len(self.groups) == 1
        self._counts = [
            torch.full((), float(steps), device=any_parameter.device)
            for _ in range(len(parameters) * (1 if whole else len(rates)))
        ]

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients the parameters hold."""
        tensors = [
            (p, p.grad, self.first[name], self.second[name])
            for name, p in self.parameters.items()
            if p.grad is not None
        ]
        counts = iter(self._counts)
        for (lr, weight_decay), replicas in self.groups:
            if len(self.groups) == 1:
                chosen = tensors
            else:
                chosen = [tuple(t[r] for t in four) for four in tensors for r in replicas]
            parameters, gradients, first, second = (
                list(column) for column in zip(*chosen, strict=True)
            )
            adam(
                parameters,
                gradients,
                first,
                second,
                [],
                [next(counts) for _ in parameters],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=lr,
                weight_decay=weight_decay,
                eps=1e-8,
                maximize=False,
            )

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None


def all_parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    """Every parameter of a module by name."""
    return dict(module.named_parameters())
