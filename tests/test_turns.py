"""Taking turns: how many are at work at a time, and who does not wait."""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpgmn import turns
from hpgmn.turns import own_turn


@pytest.fixture(autouse=True)
def _one_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(turns, "PER_CORE", 1)
    monkeypatch.setattr(turns.os, "sched_getaffinity", lambda process: {3}, raising=False)
    monkeypatch.setattr(turns, "free_host_bytes", lambda: math.inf)
    monkeypatch.setattr(turns, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(turns, "QUIET_SECONDS", 0.0)


def test_the_second_waits_for_the_first() -> None:
    order: list[str] = []
    told: list[str] = []

    def second() -> None:
        with own_turn(told.append):
            order.append("second")

    with own_turn(told.append):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]
    assert told == ["Waiting: 1 other predictions run on this machine."]


def test_two_places_are_for_two_of_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PER_CORE", 2)
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.05)
    told: list[str] = []
    with own_turn(pytest.fail), own_turn(pytest.fail), own_turn(told.append):
        assert told == ["Waiting: 2 other predictions run on this machine."]


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.05)
    with own_turn(), own_turn():
        pass


def test_a_folder_of_another_user_s_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"hpgmn-turns-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with own_turn(), own_turn(pytest.fail):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("fault", ["no folder", "no locks"])
def test_where_no_turns_can_be_kept_nobody_waits(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("no locks available")

    if fault == "no folder":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    else:
        monkeypatch.setattr(turns.fcntl, "flock", refused)
    with own_turn(), own_turn(pytest.fail):
        pass


@pytest.mark.parametrize(
    ("cores", "free", "number"),
    [
        (2, math.inf, 8),
        (64, 16 * 2**30, 64),  # 100 at once would take more than there is
        (64, 2**30, 4),
        (2, 0.0, 1),  # nobody is kept out for good
    ],
)
def test_there_are_as_many_turns_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, free: float, number: int
) -> None:
    monkeypatch.setattr(turns, "PER_CORE", 4)
    monkeypatch.setattr(turns.os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(turns.os, "cpu_count", lambda: 1000)  # the whole machine's
    monkeypatch.setattr(turns, "free_host_bytes", lambda: free)
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.02)
    told: list[str] = []
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(own_turn(pytest.fail))
        stack.enter_context(own_turn(told.append))
    assert told == [f"Waiting: {number} other predictions run on this machine."]


def test_where_the_cores_of_a_process_are_not_told_those_of_the_machine_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(turns.os, "sched_getaffinity")
    monkeypatch.setattr(turns.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.02)
    told: list[str] = []
    with own_turn(pytest.fail), own_turn(pytest.fail), own_turn(told.append):
        assert told == ["Waiting: 2 other predictions run on this machine."]
