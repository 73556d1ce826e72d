"""What every engine has in common."""

from __future__ import annotations

from hpgmn.engines import ENGINES, Ended, Share, Task


def test_a_task_has_the_whole_machine_unless_it_is_said() -> None:
    assert Share() == Share(threads=1, memory=1.0)
    assert Task("a", print, 1).shared is None


def test_the_end_of_a_task_is_good_unless_it_is_said() -> None:
    ended = Ended("a", 3)
    assert (ended.reason, ended.trace, ended.is_lost) == ("", "", False)


def test_this_machine_is_the_first_engine() -> None:
    assert ENGINES == ("local", "ray")
