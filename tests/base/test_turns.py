"""Taking turns: how many are at work at a time, and who does not wait."""

from __future__ import annotations

import math
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpgmn.base import turns
from hpgmn.base.turns import own_turn


class Clock:
    """A clock that goes on when somebody sleeps, and in no other way: no test waits for time.

    Attributes:
        now: seconds.
        slept: is called with every sleep.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept()


@pytest.fixture(autouse=True)
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """One turn in a folder of the test's own, and a clock of its own."""
    made = Clock()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(turns, "PER_CORE", 1)
    monkeypatch.setattr(turns.os, "sched_getaffinity", lambda process: {3}, raising=False)
    monkeypatch.setattr(turns, "free_host_bytes", lambda: math.inf)
    monkeypatch.setattr(turns, "time", made)
    monkeypatch.setattr(turns, "LOOK_SECONDS", 2.0)
    return made


def test_the_second_waits_for_the_first(clock: Clock) -> None:
    order: list[str] = []
    told: list[str] = []
    looked, gone = threading.Event(), threading.Event()

    def slept() -> None:
        if clock.now > 1000 + turns.QUIET_SECONDS + turns.LOOK_SECONDS:  # it has been told
            looked.set()
            assert gone.wait(timeout=60)

    def second() -> None:
        with own_turn(told.append):
            order.append("second")

    clock.slept = slept
    with own_turn(pytest.fail):
        thread = threading.Thread(target=second)
        thread.start()
        assert looked.wait(timeout=60)
        order.append("first")
    gone.set()
    thread.join(timeout=60)
    assert order == ["first", "second"]
    assert told == ["Waiting: 1 other predictions run on this machine."]


def test_a_short_wait_is_not_spoken_of(clock: Clock) -> None:
    with ExitStack() as stack:
        stack.enter_context(own_turn(pytest.fail))
        clock.slept = lambda: stack.close() if clock.now > 1003 else None
        with own_turn(pytest.fail):
            assert clock.now == 1004.0  # looked twice, five seconds are quiet


def test_two_places_are_for_two_of_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PER_CORE", 2)
    told: list[str] = []
    with own_turn(pytest.fail), own_turn(pytest.fail), own_turn(told.append):
        assert told == ["Waiting: 2 other predictions run on this machine."]


def test_nobody_waits_for_ever(clock: Clock) -> None:
    with own_turn(), own_turn():
        assert clock.now == 1000 + turns.PATIENCE_SECONDS + turns.LOOK_SECONDS


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
    told: list[str] = []
    with own_turn(pytest.fail), own_turn(pytest.fail), own_turn(told.append):
        assert told == ["Waiting: 2 other predictions run on this machine."]


def test_two_test_runs_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that tests start take turns in a folder of this run alone."""
    own = Path(os.environ["TMPDIR"])
    assert own.name.startswith("hpgmn-tests-")
    assert own.stat().st_uid == os.getuid()
    monkeypatch.setattr(tempfile, "tempdir", None)  # as in a process that begins
    assert turns._folder().parent == own
