"""Memory at its peak is seen, and so are other processes at work."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from hpgmn.base.machine import reset_peak_memory
from hpgmn_lab.bench import machine


def test_peak_sees_memory_that_was_given_back() -> None:
    reset_peak_memory("cpu")
    before = machine.peak_bytes()
    block = np.ones(2**26, np.uint8)  # 64 MiB, touched
    del block
    risen = machine.peak_bytes() - before
    assert 60 * 2**20 < risen < 90 * 2**20
    assert machine.device_peak_bytes("cpu") is None


def test_cores_taken_by_others_leave_out_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine worked 500 ticks more, of which our process had a second."""
    ticks = machine.os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    monkeypatch.setattr(machine, "_STAT", stat)
    clocks = {"wall": 0.0, "own": 0.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clocks["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clocks["own"])
    stat.write_text("cpu 100 0 100 999 5 0 0 0\n")
    neighbours = machine.Neighbours()
    stat.write_text(f"cpu {100 + 4 * ticks} 0 {100 + ticks} 999 5 0 0 0\n")
    clocks |= {"wall": 2.0, "own": 1.0}
    assert neighbours.cores_taken() == pytest.approx((5 - 1) / 2)
    stat.unlink()
    assert neighbours.cores_taken() is None


def test_the_family_of_a_process_is_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, own = machine.os.sysconf("SC_CLK_TCK"), machine.os.getpid()

    def process(number: int, parent: int, *seconds: int) -> None:
        times = " ".join(str(part * ticks) for part in seconds)
        (tmp_path / f"{number}").mkdir()
        text = f"{number} (a (b) c) S {parent} 0 0 0 0 0 0 0 0 0 {times} 20 0\n"
        (tmp_path / f"{number}" / "stat").write_text(text)

    monkeypatch.setattr(machine, "_PROCESSES", tmp_path)
    process(own, 1, 1, 2, 3, 4)  # itself, and children that have ended
    process(own + 1, own, 10, 0, 0, 0)
    process(own + 2, own + 1, 0, 100, 0, 0)  # a grandchild
    process(own + 3, 1, 1000, 0, 0, 0)  # no relation
    (tmp_path / f"{own + 4}" / "stat").mkdir(parents=True)  # cannot be read
    assert machine.family_seconds() == pytest.approx(120)
    monkeypatch.setattr(machine, "_busy_seconds", lambda: 120.0)
    neighbours = machine.Neighbours(with_offspring=True)
    monkeypatch.setattr(machine, "_busy_seconds", lambda: 130.0)
    process(own + 5, own, 10, 0, 0, 0)
    assert neighbours.cores_taken() == 0.0
