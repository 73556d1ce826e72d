"""What a stage keeps of its epochs, against a loop over replicas."""

from __future__ import annotations

import pytest
import torch

from hpgmn.training.state import StageState, begin, keep_better, shrink

INFINITE = float("inf")


def started(replicas: int) -> StageState:
    values = {"weight": torch.arange(2.0 * replicas).view(replicas, 2)}
    moments = ({"weight": torch.zeros(replicas, 2)}, {"weight": torch.ones(replicas, 2)})
    return begin("main", values, moments, replicas, torch.device("cpu"))


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
    shrink(current, live)
    best = {r: (-1.0, INFINITE, 0, current.best["weight"][r].tolist()) for r in range(4)}
    for epoch in range(1, 9):
        current.parameters["weight"] += 1
        score = torch.randint(0, 3, (len(live),), generator=random).float()
        loss = torch.rand(len(live), generator=random)
        loss[torch.rand(len(live), generator=random) < 0.2] = float("nan")
        keep_better(current, torch.tensor(live), epoch, score, loss, patience)
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
    keep_better(one, torch.tensor([0, 1]), 4, *given)
    keep_better(other, torch.tensor([0, 1]), torch.tensor(4), *given)
    assert one.best_epoch.tolist() == other.best_epoch.tolist() == [0, 0]  # beyond the patience
    keep_better(one, torch.tensor([0, 1]), 2, *given)
    keep_better(other, torch.tensor([0, 1]), torch.tensor(2), *given)
    assert one.best_epoch.tolist() == other.best_epoch.tolist() == [2, 2]


def test_replicas_are_taken_out_of_values_and_moments() -> None:
    current = started(3)
    shrink(current, [0, 2])
    assert current.live == [0, 2]
    assert current.parameters["weight"].tolist() == [[0, 1], [4, 5]]
    assert current.first["weight"].shape == current.second["weight"].shape == (2, 2)
    assert current.best["weight"].shape == (3, 2)
    shrink(current, [1])
    assert current.live == [2]
    assert current.parameters["weight"].tolist() == [[4, 5]]
