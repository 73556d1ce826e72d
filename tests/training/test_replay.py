"""Replayed epochs: the same numbers as epochs run one by one. tests/cuda does it on a GPU."""

import logging

import pytest
import torch

from hpgmn.base.randomness import Noise
from hpgmn.training import replay
from hpgmn.training.replay import Replay, attempt

KEYS = torch.tensor([11, 12])
STEPS = [[2 * epoch, 2 * epoch + 1] for epoch in range(8)]


def drawn(epoch, noises):
    """Something of the epoch's number and of both passes' noise."""
    first, second = (noise.uniform("place", (3,)) for noise in noises)
    return (first - second) * epoch


@pytest.fixture
def repeats(monkeypatch):
    """Without a GPU: a recording that runs the function again."""
    monkeypatch.setattr(replay, "record", lambda work: work)


@pytest.mark.usefixtures("repeats")
def test_each_epoch_has_its_own_number_and_noise():
    replayed = Replay(drawn, KEYS, STEPS, done=2, shape=(2, 3))
    rows = [replayed.next() for _ in range(5)]
    for epoch, row in zip(range(3, 8), rows, strict=True):
        expected = drawn(epoch, [Noise(KEYS, number) for number in STEPS[epoch]])
        assert torch.equal(row, expected), epoch  # all of them, after the last was run


def test_what_cannot_be_recorded_is_said_and_left(monkeypatch, caplog):
    def refuses(work):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(replay, "record", refuses)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with caplog.at_level(logging.INFO):
        assert attempt(lambda: Replay(drawn, KEYS, STEPS, done=2, shape=(2, 3))) is None
    assert "not permitted when stream is capturing" in caplog.text
    assert "more" not in caplog.text
