"""What every engine has in common."""

import time

from hpgmn.base.errors import HPGMNError
from hpgmn.engines import ENGINES, RateLimiter, Share, Task, TaskResult
from hpgmn.engines.tasks import run_safely


def test_a_task_has_the_whole_machine_unless_it_is_said():
    assert Share() == Share(threads=1, memory=1.0)
    assert Task("a", print, 1).shared is None


def test_the_end_of_a_task_is_good_unless_it_is_said():
    ended = TaskResult("a", 3)
    assert (ended.reason, ended.trace, ended.is_lost) == ("", "", False)


def test_this_machine_is_the_first_engine():
    assert ENGINES == ("local", "ray")


def test_a_task_gives_a_value_or_a_reason():
    def divides(argument, shared, line):
        if shared < 0:
            raise HPGMNError("Too small.")
        return argument / shared

    assert run_safely(divides, 6, 2, None) == (3.0, "", "")
    assert run_safely(divides, 6, -1, None) == (None, "Too small.", "")
    value, reason, trace = run_safely(divides, 6, 0, None)
    assert (value, reason) == (None, "ZeroDivisionError: division by zero")
    assert trace.startswith("Traceback")


def test_progress_is_told_seldom(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    is_time = RateLimiter(0.5)
    assert [is_time(), is_time()] == [True, False]
    now += 0.4
    assert not is_time()
    now += 0.2
    assert [is_time(), is_time()] == [True, False]
