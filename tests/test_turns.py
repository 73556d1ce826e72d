"""Taking turns: how many are at work at a time, and who does not wait."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from hpgmn import turns
from hpgmn.turns import own_turn


@pytest.fixture(autouse=True)
def _one_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(turns, "PER_CORE", 1)
    monkeypatch.setattr(turns.os, "cpu_count", lambda: 1)
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
