"""Free memory in and outside containers, peak memory, the recorded hardware."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import torch

from hpgmn.base import machine
from hpgmn.base.machine import free_host_bytes, hardware, peak_memory_mb


def test_free_memory_is_the_smallest_limit(monkeypatch, tmp_path):
    group = tmp_path / "group"
    (group / "memory").mkdir(parents=True)
    monkeypatch.setattr(machine, "_GROUPS", group)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert free_host_bytes() == math.inf
    psutil = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=5000))
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    assert free_host_bytes() == 5000
    (group / "memory.current").write_text("3000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    (group / "memory.max").write_text("max\n")
    assert free_host_bytes() == 5000
    (group / "memory.max").write_text("4000\n")
    assert free_host_bytes() == 1200
    for name, value in (("limit_in_bytes", "700"), ("usage_in_bytes", "600"), ("stat", "")):
        (group / "memory" / f"memory.{name}").write_text(value)
    assert free_host_bytes() == 100


def test_the_hardware_is_named():
    found = hardware("cpu")
    assert found["device"] == "cpu"
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["processor"]


def test_peak_memory_is_in_megabytes():
    before = peak_memory_mb("cpu")
    block = np.ones(300_000_000 // 8)
    after = peak_memory_mb("cpu")
    assert block.sum() > 0
    assert 20 < before <= after < before + 400


def test_one_thread_is_restored():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with machine.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
