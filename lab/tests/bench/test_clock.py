"""The clock tells preparation from epochs, and stage from stage."""

from __future__ import annotations

import time

import pytest

from hpgmn.graph import Graph
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.training.replicas import Progress
from hpgmn_lab.bench.clock import Lines, StageClock, fit_once


def progress(stage: str, epoch: int, val: float, statistics: float) -> Progress:
    return Progress(0, 1, stage, epoch, 3, 0.5, val, statistics)


def test_gaps_are_divided_into_preparation_and_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    told: list[Progress] = []
    clock = StageClock(told.append)
    # at second …: stage, epoch, validation score, seconds of statistics so far
    for moment, stage, epoch, val, statistics in (
        (103.0, "estimator", 1, 0.4, 2.0),
        (104.5, "estimator", 2, 0.5, 2.0),
        (110.0, "main", 1, 0.6, 6.0),
        (111.0, "main", 2, 0.7, 6.0),
        (113.0, "main", 3, 0.7, 6.0),
    ):
        now[0] = moment
        clock(progress(stage, epoch, val, statistics))
    assert clock.prepared == {"estimator": 2.0, "main": 4.0}
    assert clock.epochs == {"estimator": [1.0, 1.5], "main": [1.5, 1.0, 2.0]}
    assert clock.curve == [(10.0, 0.6), (11.0, 0.7), (13.0, 0.7)]
    assert clock.seconds("estimator") == 4.5
    assert clock.seconds("main") == 8.5
    assert set(clock.peaks) == {"estimator", "main"}
    assert len(told) == 5


def test_epochs_told_of_together_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = StageClock()
    for moment, epoch in ((2.0, 2), (8.0, 5), (9.0, 6)):
        now[0] = moment
        clock(progress("main", epoch, 0.5, 0.0))
    assert clock.epochs == {"main": [1.0, 1.0, 2.0, 2.0, 2.0, 1.0]}
    assert clock.curve == [(2.0, 0.5), (8.0, 0.5), (9.0, 0.5)]


def test_stages_of_a_real_training_add_up(small_graph: Graph) -> None:
    settings = HPGMNSettings(epochs=3, estimator_epochs=2, patience=0, hidden_dim=4)
    clock = StageClock()
    fitted = fit_once(small_graph, "hpgmn", settings, split=1, report=clock)
    assert {name: len(epochs) for name, epochs in clock.epochs.items()} == {
        "estimator": 2,
        "main": 3,
    }
    assert sum(clock.prepared.values()) == pytest.approx(fitted.seconds["statistics"])
    whole = clock.seconds("estimator") + clock.seconds("main")
    assert whole == pytest.approx(clock.last - clock.began)
    assert min(epoch for epochs in clock.epochs.values() for epoch in epochs) > 0
    best = fitted.history["main"]["val_score"][:, 0].cummax(dim=0).values
    assert [score for _, score in clock.curve] == pytest.approx(best.tolist())


def test_lines_come_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = Lines("10 nodes")
    for moment in (1.0, 6.0, 7.0, 12.0):
        now[0] = moment
        lines(progress("main", int(moment), 0.5, 0.0))
    assert capsys.readouterr().err.splitlines() == [
        "10 nodes: main epoch 6/3 val 0.500",
        "10 nodes: main epoch 12/3 val 0.500",
    ]
