"""Same bits where they are asked for; what a GPU makes of it is in tests/cuda."""

from __future__ import annotations

import os

import pytest
import torch

from hpgmn.training.repeatable import repeatable


@pytest.mark.parametrize(("is_asked", "device"), [(True, "cpu"), (False, "cpu"), (False, "cuda")])
def test_nothing_is_done_where_nothing_has_to_be(
    is_asked: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with repeatable(is_asked, device):
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize(
    ("before", "inside"), [(None, ":4096:8"), (":0:0", ":4096:8"), (":16:8", ":16:8")]
)
def test_a_gpu_is_told_and_let_go(
    before: str | None, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before or "")
    with repeatable(True, torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == inside
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
