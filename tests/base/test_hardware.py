"""The machine of a run: its names, and memory in megabytes."""

from __future__ import annotations

import numpy as np
import torch

from hpgmn.base.hardware import hardware, peak_memory_mb


def test_the_hardware_is_named() -> None:
    found = hardware("cpu")
    assert found["device"] == "cpu"
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["processor"]


def test_peak_memory_is_in_megabytes() -> None:
    before = peak_memory_mb("cpu")
    block = np.ones(300_000_000 // 8)
    after = peak_memory_mb("cpu")
    assert block.sum() > 0
    assert 20 < before <= after < before + 400
