"""Memory at its peak is seen, and so are other processes at work."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from hpgmn.bench import machine
from hpgmn.experiments.machine import forget_peak_memory


def test_peak_sees_memory_that_was_given_back() -> None:
    forget_peak_memory("cpu")
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
