"""Adam over replicas: each may have its own learning rate and weight decay."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adam import adam

from hpgmn.models.stage import Parameters, Rates

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


class ReplicaAdam:
    """Adam (β₁ 0.9, β₂ 0.999, ε 1e-8) whose moments are plain tensors, easy to save and slice.

    Args:
        parameters: tensors that lead with R, by name.
        rates: learning rate and weight decay (L2, added to the gradient) of each replica.
        first: the first moments to continue from; zeros if None.
        second: the second moments to continue from; zeros if None.
        steps: how many were made before.
        own_rates: prefixes of names whose parameters have other rates.
    """

    def __init__(
        self,
        parameters: Parameters,
        rates: Rates,
        first: Parameters | None = None,
        second: Parameters | None = None,
        steps: int = 0,
        own_rates: Mapping[str, Rates] | None = None,
    ) -> None:
        self.parameters = parameters
        self.first = first or {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = second or {name: torch.zeros_like(p) for name, p in parameters.items()}
        own = own_rates or {}
        groups: dict[str | None, dict[str, Tensor]] = {}
        for name, parameter in parameters.items():
            prefix = next((prefix for prefix in own if name.startswith(prefix)), None)
            groups.setdefault(prefix, {})[name] = parameter
        self._groups = [
            _Group(members, rates if prefix is None else own[prefix], steps)
            for prefix, members in groups.items()
        ]

    @torch.no_grad()
    def step(self) -> None:
        """Make one step along the parameters' gradients."""
        for group in self._groups:
            group.step(self.first, self.second)

    def clear(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None


class _Group:
    """Parameters that share their rates."""

    def __init__(self, parameters: Parameters, rates: Rates, steps: int) -> None:
        self.parameters = parameters
        device = next(iter(parameters.values())).device
        self._rates = set(zip(rates.lr, rates.weight_decay, strict=True))
        self._lr = torch.tensor(rates.lr, device=device)
        self._weight_decay = torch.tensor(rates.weight_decay, device=device)
        self._decay = torch.tensor([_BETA1, _BETA2], dtype=torch.float64, device=device)
        self._steps = torch.full((), steps, device=device)  # a CUDA graph counts here
        self._counts = [torch.full((), float(steps), device=device) for _ in parameters]

    def step(self, first: Parameters, second: Parameters) -> None:
        """Update the parameters and their moments."""
        if len(self._rates) > 1:
            self._step_each(first, second)
            return
        [(lr, weight_decay)] = self._rates
        names = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        adam(
            [self.parameters[name] for name in names],
            gradients,
            [first[name] for name in names],
            [second[name] for name in names],
            [],
            self._counts[: len(names)],
            fused=True,
            amsgrad=False,
            beta1=_BETA1,
            beta2=_BETA2,
            lr=lr,
            weight_decay=weight_decay,
            eps=_EPSILON,
            maximize=False,
        )

    def _step_each(self, first: Parameters, second: Parameters) -> None:
        """Make the same step for replicas with different rates, broadcast over each tensor."""
        self._steps += 1
        scale1, scale2 = (1 - self._decay**self._steps).unbind()
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            shape = (-1, *[1] * (parameter.dim() - 1))
            gradient = parameter.grad + self._weight_decay.view(shape) * parameter
            mean = first[name].lerp_(gradient, 1 - _BETA1)
            square = second[name].mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
            spread = (square / scale2).sqrt_().add_(_EPSILON)
            parameter -= mean / spread * (self._lr.view(shape) / scale1)


def all_parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return every parameter of a module by name."""
    return dict(module.named_parameters())
