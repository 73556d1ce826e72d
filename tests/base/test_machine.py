"""What is free on this machine, by the files in which Linux says so."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hpgmn.base import machine as free_memory
from hpgmn.base.machine import free_host_bytes


def test_free_memory_is_the_least_that_anyone_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory, group = tmp_path / "meminfo", tmp_path / "group"
    (group / "memory").mkdir(parents=True)
    monkeypatch.setattr(free_memory, "_MEMORY", memory)
    monkeypatch.setattr(free_memory, "_GROUPS", group)
    assert free_host_bytes() == math.inf
    memory.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:   5000 kB\n")
    assert free_host_bytes() == 5000 * 1024
    (group / "memory.current").write_text("3000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    (group / "memory.max").write_text("max\n")
    assert free_host_bytes() == 5000 * 1024
    (group / "memory.max").write_text("4000\n")
    assert free_host_bytes() == 1200
    for name, value in (("limit_in_bytes", "700"), ("usage_in_bytes", "600"), ("stat", "")):
        (group / "memory" / f"memory.{name}").write_text(value)
    assert free_host_bytes() == 100
