"""Best values against a loop over replicas; Adam against torch; states saved and read."""

import copy
import json
import logging
import math

import pytest
import torch
from torch import Tensor, nn

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import read_tensors, write_tensors
from hpgmn.models.stage import Rates, Replica, TrainingStage
from hpgmn.training.state import (
    HISTORY,
    ReplicaAdam,
    StageState,
    TrainState,
    all_parameters,
    drop_replicas,
    read_spent,
    read_state,
    start_stage,
    update_best,
    write_state,
)
from hpgmn.training.trainer import finish_stage

INFINITE = float("inf")


def started(replicas):
    values = {"weight": torch.arange(2.0 * replicas).view(replicas, 2)}
    moments = ({"weight": torch.zeros(replicas, 2)}, {"weight": torch.ones(replicas, 2)})
    return start_stage("main", values, moments, replicas, torch.device("cpu"))


def test_a_stage_begins_with_nothing_found():
    current = started(3)
    assert (current.epoch, current.live) == (0, [0, 1, 2])
    assert current.best_score.tolist() == [-INFINITE] * 3
    assert current.best_loss.tolist() == [INFINITE] * 3
    current.parameters["weight"].zero_()
    assert current.best["weight"].tolist() == [[0, 1], [2, 3], [4, 5]]  # a copy of its own


@pytest.mark.parametrize("live", [[0, 1, 2, 3], [1, 3]])
@pytest.mark.parametrize("patience", [0, 2])
def test_the_better_epoch_is_kept_replica_by_replica(live, patience):
    random = torch.Generator().manual_seed(1)
    current = started(4)
    drop_replicas(current, live)
    best = {r: (-INFINITE, INFINITE, 0, current.best["weight"][r].tolist()) for r in range(4)}
    for epoch in range(1, 9):
        current.parameters["weight"] += 1
        score = torch.randint(0, 3, (len(live),), generator=random).float()
        loss = torch.rand(len(live), generator=random)
        loss[torch.rand(len(live), generator=random) < 0.2] = float("nan")
        update_best(current, torch.tensor(live), epoch, score, loss, patience)
        for place, replica in enumerate(live):
            now = (score[place].item(), -loss[place].item())
            old_score, old_loss, old_epoch, _ = best[replica]
            in_time = not patience or epoch - old_epoch <= patience
            if in_time and now[1] == now[1] and now > (old_score, -old_loss):
                values = current.parameters["weight"][place].tolist()
                best[replica] = (now[0], -now[1], epoch, values)
    for replica, (score, loss, epoch, values) in best.items():
        assert current.best_score[replica].item() == score
        assert current.best_loss[replica].item() == loss
        assert current.best_epoch[replica].item() == epoch
        assert current.best["weight"][replica].tolist() == values
    assert any(epoch for _, _, epoch, _ in best.values())


def test_the_number_of_an_epoch_may_be_a_tensor():
    one, other = started(2), started(2)
    given = (torch.tensor([0.5, 0.1]), torch.tensor([1.0, 2.0]), 3)
    update_best(one, torch.tensor([0, 1]), 4, *given)
    update_best(other, torch.tensor([0, 1]), torch.tensor(4), *given)
    assert one.best_epoch.tolist() == other.best_epoch.tolist() == [0, 0]  # beyond the patience
    update_best(one, torch.tensor([0, 1]), 2, *given)
    update_best(other, torch.tensor([0, 1]), torch.tensor(2), *given)
    assert one.best_epoch.tolist() == other.best_epoch.tolist() == [2, 2]


def test_replicas_are_taken_out_of_values_and_moments():
    current = started(3)
    drop_replicas(current, [0, 2])
    assert current.live == [0, 2]
    assert current.parameters["weight"].tolist() == [[0, 1], [4, 5]]
    assert current.first["weight"].shape == current.second["weight"].shape == (2, 2)
    assert current.best["weight"].shape == (3, 2)
    drop_replicas(current, [1])
    assert current.live == [2]
    assert current.parameters["weight"].tolist() == [[4, 5]]


def ended(overflow, best, shape=(2,)):
    """Three replicas in eight epochs; in which epoch a square becomes infinite, and the best one.

    Replica 2 is taken out of the batch after epoch 6.
    """
    values, moments = {"weight": torch.zeros(3, *shape)}, torch.ones(3, *shape)
    seconds = {"weight": moments, "whole": torch.ones(3, 2, 2), "empty": torch.ones(3, 0)}
    current = start_stage("main", values, ({}, seconds), 3, torch.device("cpu"))
    current.parameters, current.first = {}, {}
    for epoch in range(1, 9):
        if epoch == 7:
            drop_replicas(current, [0, 1])
        for place, number in enumerate(current.live):
            if epoch == overflow.get(number):
                current.second["weight"].view(len(current.live), -1)[place, -1] = INFINITE
        live = torch.tensor(current.live)
        score = torch.tensor([float(epoch == best[number]) for number in current.live])
        update_best(current, live, epoch, score, torch.ones(len(live)), 0)
        for key in HISTORY:
            current.history[key].append(torch.ones(3))
        current.epoch += 1
    stage = TrainingStage(
        "main", nn.Identity(), {}, lr=[0.01], weight_decay=[0.0], epochs=8, patience=0
    )
    replicas = [Replica(number, 5, None) for number in range(3)]
    state = TrainState(current=current)
    finish_stage(state, stage, replicas, lambda number: ("Why.", Remedy(f"Ask {number}")))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("number", "epoch"), [(0, 1), (1, 3), (1, 4), (2, 2)])
def test_weights_that_were_not_trained_up_to_the_best_epoch_are_refused(number, epoch, shape):
    message = rf"'main' .*split {number}, seed 5, the gradients .* not trained. Why. Ask {number}\."
    with pytest.raises(HPGMNError, match=message):
        ended({number: epoch}, {0: 4, 1: 4, 2: 4}, shape)


def test_an_overflow_after_the_best_epoch_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "hpgmn"):
        ended({}, {0: 8, 1: 1, 2: 5})
        assert caplog.messages == []
        ended({0: 5, 1: 8}, {0: 4, 1: 7, 2: 5})
    [message] = caplog.messages
    assert "too large to be squared. Its best epoch before, 4, is kept" in message
    assert "split 0, seed 5" in message
    assert "2 of 3 runs" in message
    assert message.endswith("Why. Ask 0.")


REPLICAS, STEPS = 3, 12
ALIKE = ([0.02] * 3, [0.1] * 3)
DIFFERENT = ([0.02, 0.3, 0.0], [0.1, 0.0, 0.5])
RATES = pytest.mark.parametrize(("lr", "weight_decay"), [ALIKE, DIFFERENT], ids=["one", "each"])


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def first_values():
    """A weight and a bias, both leading with R."""
    return {
        "weight": normal(REPLICAS, 4, 5, seed=1).requires_grad_(),
        "bias": normal(REPLICAS, 1, 5, seed=2).requires_grad_(),
    }


def gradient(name, step, values):
    """Some gradient that depends on the step and on where the parameters stand."""
    drawn = normal(*values.shape[1:], seed=100 * step + len(name))
    return 0.3 * values.detach() + drawn * (1 + step % 3)


def advance(optimizer, steps):
    for step in steps:
        for name, parameter in optimizer.parameters.items():
            parameter.grad = gradient(name, step, parameter)
        optimizer.step()


def one_adam_each(lr, weight_decay):
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
def test_steps_are_those_of_one_torch_adam_per_replica(lr, weight_decay):
    optimizer = ReplicaAdam(first_values(), Rates(lr, weight_decay))
    advance(optimizer, range(STEPS))
    found = {name: value.detach() for name, value in optimizer.parameters.items()}
    torch.testing.assert_close(found, one_adam_each(lr, weight_decay), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cut", [0, 4])
def test_parameters_with_their_own_rates_step_by_those(cut):
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


def test_a_learning_rate_of_zero_keeps_its_replica_in_place():
    optimizer = ReplicaAdam(first_values(), Rates(*DIFFERENT))
    advance(optimizer, range(3))
    for name, before in first_values().items():
        assert torch.equal(optimizer.parameters[name][2], before[2])
        assert (optimizer.parameters[name][:2] != before[:2]).all()


def resumed(optimizer, lr, weight_decay, steps):
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
def test_going_on_from_saved_moments_gives_the_same_bits(lr, weight_decay, cut):
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
def test_replicas_that_stay_go_on_when_others_are_taken_out(kept):
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
def test_a_parameter_without_gradient_stays_where_it_is(lr, weight_decay):
    optimizer = ReplicaAdam(first_values(), Rates(lr, weight_decay))
    optimizer.parameters["bias"].grad = torch.ones(REPLICAS, 1, 5)
    optimizer.step()
    assert torch.equal(optimizer.parameters["weight"], first_values()["weight"])
    assert not optimizer.first["weight"].any()
    assert (optimizer.parameters["bias"][:2] != first_values()["bias"][:2]).all()


def test_a_replicas_nan_stays_its_own():
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


def test_clearing_forgets_the_gradients():
    optimizer = ReplicaAdam(first_values(), Rates(*ALIKE))
    advance(optimizer, range(1))
    optimizer.clear()
    assert all(parameter.grad is None for parameter in optimizer.parameters.values())


def test_all_parameters_are_found_by_name():
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    found = all_parameters(module)
    assert list(found) == ["0.weight", "0.bias", "2.weight"]
    assert found["2.weight"] is module[2].weight


def parameters(replicas, seed):
    return {
        "encode.attributes.first.weight": normal(replicas, 4, 3, seed=seed),
        "head.memory.patterns": normal(replicas, 2, 3, seed=seed + 1),
    }


def make_state(*, finished=False):
    """Three replicas with one stage done, and a second done or under way with two replicas left."""
    state = TrainState(seconds={"statistics": 1 / 3, "training": math.pi})
    for number, stage in enumerate(("estimator", "main") if finished else ("estimator",)):
        state.done[stage] = parameters(3, 10 * number)
        state.best_score[stage] = normal(3, seed=number)
        state.best_loss[stage] = normal(3, seed=number + 5)
        state.best_epoch[stage] = torch.tensor([3, 1, 2]) + number
        state.history[stage] = {key: normal(4, 3, seed=n) for n, key in enumerate(HISTORY)}
    if not finished:
        state.current = StageState(
            name="main",
            epoch=2,
            live=[0, 2],
            parameters=parameters(2, 30),
            first=parameters(2, 40),
            second=parameters(2, 50),
            best=parameters(3, 60),
            best_score=normal(3, seed=70),
            best_loss=torch.tensor([0.5, math.inf, math.nan]),
            best_epoch=torch.tensor([2, 0, 1]),
            overflowed=torch.tensor([False, False, True]),
            history={key: [normal(3), torch.tensor([1.0, math.nan, -0.0])] for key in HISTORY},
        )
    return state


def bits(value):
    """Anything with its tensors as (type, shape, bytes), so that even a NaN can be compared."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list):
        return [bits(part) for part in value]
    return bits(vars(value)) if isinstance(value, TrainState | StageState) else value


@pytest.mark.parametrize("finished", [True, False])
def test_a_state_comes_back_exactly(tmp_path, finished):
    state = make_state(finished=finished)
    before = copy.deepcopy(state)
    write_state(tmp_path / "state", state, "me")
    assert bits(state) == bits(before)  # writing changed nothing
    found = read_state(tmp_path / "state", "me")
    assert bits(found) == bits(state)
    assert list(found.done) == list(state.done)


def test_a_state_without_any_stage_comes_back(tmp_path):
    write_state(tmp_path / "state", TrainState(), "me")
    assert bits(read_state(tmp_path / "state", "me")) == bits(TrainState())


def test_stages_whose_names_begin_alike_are_kept_apart(tmp_path):
    state = make_state(finished=True)
    for part in (state.done, state.best_score, state.best_loss, state.best_epoch, state.history):
        part["main2"] = copy.deepcopy(part["estimator"])
    write_state(tmp_path / "state", state, "me")
    assert bits(read_state(tmp_path / "state", "me")) == bits(state)


def test_a_state_of_another_training_is_refused(tmp_path):
    write_state(tmp_path / "state", make_state(), "me")
    with pytest.raises(
        HPGMNError, match="started with other settings, graph, splits, seeds or code"
    ):
        read_state(tmp_path / "state", "you")


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": None},
        {"stages": None},
        {"stages": ["main"]},
        {"current": 7},
        {"current": {"name": "main", "epoch": 2}},
        {"current": {"name": "main", "epoch": 2, "live": [0, 2], "best": {}}},
        {"current": {"name": "main", "epoch": 2, "live": [0, 3]}},
        {"current": {"name": "main", "epoch": 2, "live": [0]}},
        {"current": {"name": "main", "epoch": 3, "live": [0, 2]}},
    ],
)
def test_a_state_that_does_not_go_together_is_refused(tmp_path, change):
    """States of the first format may lack a checksum."""
    path = tmp_path / "state"
    write_state(path, make_state(), "me")
    tensors, about = read_tensors(path)
    about |= change
    write_tensors(path, tensors, {key: value for key, value in about.items() if value is not None})
    with pytest.raises(HPGMNError, match=r"state is damaged.*Restore it, or train again"):
        read_state(path, "me")
    if "seconds" in change:
        with pytest.raises(HPGMNError, match=r"state is damaged"):
            read_spent(path)


def test_a_state_without_a_tensor_is_refused(tmp_path):
    path = tmp_path / "state"
    write_state(path, make_state(), "me")
    tensors, about = read_tensors(path)
    for name in tensors:
        if not name.startswith("done/"):  # the model knows their names
            rest = {key: value for key, value in tensors.items() if key != name}
            write_tensors(path, rest, about)
            with pytest.raises(HPGMNError, match=r"state is damaged"):
                read_state(path, "me")


def test_a_state_of_the_first_form_did_not_look_for_overflow(tmp_path):
    path = tmp_path / "state"
    write_state(path, make_state(), "me")
    tensors, about = read_tensors(path)
    del tensors["current/overflowed"], about["format"]
    write_tensors(path, tensors, about)
    found = read_state(path, "me").current
    assert found is not None
    assert found.overflowed.tolist() == [False] * 3


def test_the_seconds_of_a_state_are_added_up(tmp_path):
    write_state(tmp_path / "state", make_state(), "me")
    seconds, epochs = read_spent(tmp_path / "state")
    assert seconds == pytest.approx(1 / 3 + math.pi)
    assert epochs == 4 + 2


def test_the_description_is_plain_json(tmp_path):
    write_state(tmp_path / "state", make_state(), "me")
    content = (tmp_path / "state").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    about = json.loads(header["__metadata__"]["about"])
    assert about["identity"] == "me"
    assert about["stages"] == ["estimator"]
    assert about["current"] == {"name": "main", "epoch": 2, "live": [0, 2]}
