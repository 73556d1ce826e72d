"""What a stage keeps of its epochs, against a loop over replicas."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from hpgmn.base.errors import HPGMNError
from hpgmn.models.stage import Replica, TrainingStage
from hpgmn.training.state import (
    HISTORY,
    StageState,
    TrainState,
    drop_replicas,
    finish_stage,
    start_stage,
    update_best,
)

INFINITE = float("inf")


def started(replicas: int) -> StageState:
    values = {"weight": torch.arange(2.0 * replicas).view(replicas, 2)}
    moments = ({"weight": torch.zeros(replicas, 2)}, {"weight": torch.ones(replicas, 2)})
    return start_stage("main", values, moments, replicas, torch.device("cpu"))


def test_a_stage_begins_with_nothing_found() -> None:
    current = started(3)
    assert (current.epoch, current.live) == (0, [0, 1, 2])
    assert current.best_score.tolist() == [-1, -1, -1]
    assert current.best_loss.tolist() == [INFINITE] * 3
    current.parameters["weight"].zero_()
    assert current.best["weight"].tolist() == [[0, 1], [2, 3], [4, 5]]  # a copy of its own


@pytest.mark.parametrize("live", [[0, 1, 2, 3], [1, 3]])
@pytest.mark.parametrize("patience", [0, 2])
def test_the_better_epoch_is_kept_replica_by_replica(live: list[int], patience: int) -> None:
    random = torch.Generator().manual_seed(1)
    current = started(4)
    drop_replicas(current, live)
    best = {r: (-1.0, INFINITE, 0, current.best["weight"][r].tolist()) for r in range(4)}
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


def test_the_number_of_an_epoch_may_be_a_tensor() -> None:
    one, other = started(2), started(2)
    given = (torch.tensor([0.5, 0.1]), torch.tensor([1.0, 2.0]), 3)
    update_best(one, torch.tensor([0, 1]), 4, *given)
    update_best(other, torch.tensor([0, 1]), torch.tensor(4), *given)
    assert one.best_epoch.tolist() == other.best_epoch.tolist() == [0, 0]  # beyond the patience
    update_best(one, torch.tensor([0, 1]), 2, *given)
    update_best(other, torch.tensor([0, 1]), torch.tensor(2), *given)
    assert one.best_epoch.tolist() == other.best_epoch.tolist() == [2, 2]


def test_replicas_are_taken_out_of_values_and_moments() -> None:
    current = started(3)
    drop_replicas(current, [0, 2])
    assert current.live == [0, 2]
    assert current.parameters["weight"].tolist() == [[0, 1], [4, 5]]
    assert current.first["weight"].shape == current.second["weight"].shape == (2, 2)
    assert current.best["weight"].shape == (3, 2)
    drop_replicas(current, [1])
    assert current.live == [2]
    assert current.parameters["weight"].tolist() == [[4, 5]]


def ended(overflow: dict[int, int], best: dict[int, int], shape: tuple[int, ...] = (2,)) -> None:
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
    finish_stage(TrainState(current=current), stage, replicas, lambda number: f"Ask {number}.")


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("number", "epoch"), [(0, 1), (1, 3), (1, 4), (2, 2)])
def test_weights_that_were_not_trained_up_to_the_best_epoch_are_refused(
    number: int, epoch: int, shape: tuple[int, ...]
) -> None:
    told = rf"'main' in split {number}, seed 5 are too large.* not trained. Ask {number}\."
    with pytest.raises(HPGMNError, match=told):
        ended({number: epoch}, {0: 4, 1: 4, 2: 4}, shape)


def test_an_overflow_after_the_best_epoch_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hpgmn"):
        ended({}, {0: 8, 1: 1, 2: 5})
        assert caplog.messages == []
        ended({0: 5, 1: 8}, {0: 4, 1: 7, 2: 5})
    [told] = caplog.messages
    assert "too large to be squared after the best epoch, 4, which is kept" in told
    assert "split 0, seed 5" in told
    assert "2 of 3 runs" in told
    assert told.endswith("Ask 0.")
