"""Adam over replicas against torch.optim.Adam, one optimiser per replica."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hpgmn.models.stage import Rates
from hpgmn.training.optimizer import ReplicaAdam, all_parameters

REPLICAS, STEPS = 3, 12
ALIKE = ([0.02] * 3, [0.1] * 3)
DIFFERENT = ([0.02, 0.3, 0.0], [0.1, 0.0, 0.5])
RATES = pytest.mark.parametrize(("lr", "weight_decay"), [ALIKE, DIFFERENT], ids=["one", "each"])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def first_values() -> dict[str, Tensor]:
    """A weight and a bias, both leading with R."""
    return {
        "weight": normal(REPLICAS, 4, 5, seed=1).requires_grad_(),
        "bias": normal(REPLICAS, 1, 5, seed=2).requires_grad_(),
    }


def gradient(name: str, step: int, values: Tensor) -> Tensor:
    """Some gradient that depends on the step and on where the parameters stand."""
    drawn = normal(*values.shape[1:], seed=100 * step + len(name))
    return 0.3 * values.detach() + drawn * (1 + step % 3)


def advance(optimizer: ReplicaAdam, steps: range) -> None:
    for step in steps:
        for name, parameter in optimizer.parameters.items():
            parameter.grad = gradient(name, step, parameter)
        optimizer.step()


def one_adam_each(lr: list[float], weight_decay: list[float]) -> dict[str, Tensor]:
    """The same steps by torch.optim.Adam, each replica on its own."""
    final: dict[str, list[Tensor]] = {"weight": [], "bias": []}
    for r in range(REPLICAS):
        own = {name: value[r].detach().clone() for name, value in first_values().items()}
        adam = torch.optim.Adam(own.values(), lr=lr[r], weight_decay=weight_decay[r])
        for step in range(STEPS):
            for name, value in own.items():
                value.grad = gradient(name, step, value[None])[0]
            adam.step()
        for name, value in own.items():
            final[name].append(value)
    return {name: torch.stack(values) for name, values in final.items()}


@RATES
def test_steps_are_those_of_one_torch_adam_per_replica(
    lr: list[float], weight_decay: list[float]
) -> None:
    optimizer = ReplicaAdam(first_values(), Rates(lr, weight_decay))
    advance(optimizer, range(STEPS))
    found = {name: value.detach() for name, value in optimizer.parameters.items()}
    torch.testing.assert_close(found, one_adam_each(lr, weight_decay), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cut", [0, 4])
def test_parameters_with_their_own_rates_step_by_those(cut: int) -> None:
    others = ([0.01, 0.05, 0.2], [0.3, 0.0, 0.1])
    own = {"bi": Rates(*others)}
    optimizer = ReplicaAdam(first_values(), Rates(*ALIKE), own_rates=own)
    advance(optimizer, range(cut))
    moments = (optimizer.first, optimizer.second)
    optimizer = ReplicaAdam(optimizer.parameters, Rates(*ALIKE), *moments, cut, own)
    advance(optimizer, range(cut, STEPS))
    for name, rates in (("weight", ALIKE), ("bias", others)):
        expected = one_adam_each(*rates)[name]
        found = optimizer.parameters[name].detach()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_learning_rate_of_zero_keeps_its_replica_in_place() -> None:
    optimizer = ReplicaAdam(first_values(), Rates(*DIFFERENT))
    advance(optimizer, range(3))
    for name, before in first_values().items():
        assert torch.equal(optimizer.parameters[name][2], before[2])
        assert (optimizer.parameters[name][:2] != before[:2]).all()


def resumed(
    optimizer: ReplicaAdam, lr: list[float], weight_decay: list[float], steps: int
) -> ReplicaAdam:
    """A new optimiser from copies of what another one holds, as a saved state would give them."""
    return ReplicaAdam(
        {n: p.detach().clone().requires_grad_() for n, p in optimizer.parameters.items()},
        Rates(lr, weight_decay),
        {n: value.clone() for n, value in optimizer.first.items()},
        {n: value.clone() for n, value in optimizer.second.items()},
        steps,
    )


@pytest.mark.parametrize("cut", [0, 1, 5, 11])
@RATES
def test_going_on_from_saved_moments_gives_the_same_bits(
    lr: list[float], weight_decay: list[float], cut: int
) -> None:
    whole = ReplicaAdam(first_values(), Rates(lr, weight_decay))
    advance(whole, range(STEPS))
    part = ReplicaAdam(first_values(), Rates(lr, weight_decay))
    advance(part, range(cut))
    rest = resumed(part, lr, weight_decay, cut)
    advance(rest, range(cut, STEPS))
    for name in ("weight", "bias"):
        assert torch.equal(rest.parameters[name], whole.parameters[name])
        assert torch.equal(rest.first[name], whole.first[name])
        assert torch.equal(rest.second[name], whole.second[name])


@pytest.mark.parametrize("kept", [[0, 2], [1]], ids=["still different", "now alike"])
def test_replicas_that_stay_go_on_when_others_are_taken_out(kept: list[int]) -> None:
    whole = ReplicaAdam(first_values(), Rates(*DIFFERENT))
    advance(whole, range(5))
    fewer = ReplicaAdam(
        {n: p.detach()[kept].requires_grad_() for n, p in whole.parameters.items()},
        Rates([DIFFERENT[0][r] for r in kept], [DIFFERENT[1][r] for r in kept]),
        {n: value[kept] for n, value in whole.first.items()},
        {n: value[kept] for n, value in whole.second.items()},
        5,
    )
    advance(whole, range(5, STEPS))
    advance(fewer, range(5, STEPS))
    for name in ("weight", "bias"):
        torch.testing.assert_close(
            fewer.parameters[name], whole.parameters[name][kept], rtol=1e-5, atol=1e-6
        )


@RATES
def test_a_parameter_without_gradient_stays_where_it_is(
    lr: list[float], weight_decay: list[float]
) -> None:
    optimizer = ReplicaAdam(first_values(), Rates(lr, weight_decay))
    optimizer.parameters["bias"].grad = torch.ones(REPLICAS, 1, 5)
    optimizer.step()
    assert torch.equal(optimizer.parameters["weight"], first_values()["weight"])
    assert not optimizer.first["weight"].any()
    assert (optimizer.parameters["bias"][:2] != first_values()["bias"][:2]).all()


def test_a_replicas_nan_stays_its_own() -> None:
    healthy = ReplicaAdam(first_values(), Rates(*DIFFERENT))
    broken = ReplicaAdam(first_values(), Rates(*DIFFERENT))
    for optimizer in (healthy, broken):
        for parameter in optimizer.parameters.values():
            parameter.grad = torch.ones_like(parameter)
    for parameter in broken.parameters.values():
        parameter.grad[1] = float("nan")
    healthy.step()
    broken.step()
    for name, value in broken.parameters.items():
        assert value[1].isnan().all()
        assert torch.equal(value[[0, 2]], healthy.parameters[name][[0, 2]])


def test_clearing_forgets_the_gradients() -> None:
    optimizer = ReplicaAdam(first_values(), Rates(*ALIKE))
    advance(optimizer, range(1))
    optimizer.clear()
    assert all(parameter.grad is None for parameter in optimizer.parameters.values())


def test_all_parameters_are_found_by_name() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    found = all_parameters(module)
    assert list(found) == ["0.weight", "0.bias", "2.weight"]
    assert found["2.weight"] is module[2].weight
