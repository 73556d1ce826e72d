"""The table of what same bits cost, on a CPU, where they cost nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "deterministic.py"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    spec = importlib.util.spec_from_file_location("deterministic", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cpu_repeats_its_bits_without_being_asked(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program.main(["--device", "cpu", "--nodes", "120", "--epochs", "2", "--models", "mlp,gcn"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith(("| mlp |", "| gcn |"))]
    assert len(rows) == 2
    assert all(line.endswith("| yes | yes |") for line in rows)


def test_models_without_time_are_named(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["--device", "cpu", "--nodes", "120", "--models", "gcn", "--seconds", "0"])
    assert "No time was left for gcn." in capsys.readouterr().out
