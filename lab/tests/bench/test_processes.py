"""A measurement is a process of its own, whose end is told in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpgmn
import hpgmn_lab
from hpgmn.base.errors import HPGMNError
from hpgmn_lab.bench import processes
from hpgmn_lab.bench.processes import ProcessFailed, measured, required


def test_a_task_is_done_in_another_process_by_this_package(tmp_path: Path) -> None:
    spec = {"nodes": 100, "degree": 2.0, "attributes": 2, "seed": 5}
    found = measured("graph", spec=spec, folder=str(tmp_path))
    assert Path(found["path"]).parent == tmp_path
    assert found["parameters"]["seed"] == 5


def test_a_mistake_in_the_process_is_told(tmp_path: Path) -> None:
    spec = {"nodes": 99, "degree": 2.0, "attributes": 2, "seed": 5}
    with pytest.raises(ProcessFailed, match="num_nodes must be at least 100"):
        measured("graph", spec=spec, folder=str(tmp_path))


def ends_with(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", run)


def test_a_process_that_the_system_ends_ran_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(-9, monkeypatch)
    with pytest.raises(ProcessFailed, match="out of memory"):
        measured("graph")


def test_what_is_required_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(-9, monkeypatch)
    with pytest.raises(HPGMNError) as caught:
        required("graph")
    assert str(caught.value) == (
        "Nothing was measured: out of memory: the system ended the process. Choose smaller sizes, "
        "or a larger machine."
    )


@pytest.mark.parametrize("code", [130, -2])
def test_an_interrupted_process_interrupts(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(code, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        measured("graph")


def test_a_crash_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(1, monkeypatch)
    with pytest.raises(HPGMNError, match="'graph' broke off with code 1") as caught:
        measured("graph")
    assert not isinstance(caught.value, ProcessFailed)


def test_a_process_beyond_its_limit_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        return real([sys.executable, "-c", "import time; time.sleep(30)"], **options)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ProcessFailed, match="no answer after 0 s"):
        measured("graph", patience=0.2)


def test_the_process_finds_this_package_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    sources = [str(Path(package.__file__).parents[1]) for package in (hpgmn, hpgmn_lab)]
    assert processes.environment()["PYTHONPATH"].split(":") == [*sources, "elsewhere"]


def test_a_process_may_be_given_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert processes.environment()["OMP_NUM_THREADS"] == "7"
    assert processes.environment(1)["OMP_NUM_THREADS"] == "1"
