"""Measured processes, the load of others, and the clock of a training."""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import hpgmn
import hpgmn_lab
from hpgmn.base.errors import HPGMNError
from hpgmn.base.machine import reset_peak_memory
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.training.replicas import Progress
from hpgmn_lab.bench import graphs, process
from hpgmn_lab.bench.process import (
    OtherLoad,
    ProcessFailed,
    ProgressLines,
    StageClock,
    fit_once,
    run_task,
)

SPEC = {"nodes": 100, "degree": 2.0, "attributes": 2, "seed": 5}


@pytest.mark.slow
def test_a_task_runs_in_a_fresh_process(tmp_path):
    facts = run_task("graph", spec=SPEC, folder=str(tmp_path))
    assert Path(facts["path"]).parent == tmp_path
    assert facts["parameters"]["seed"] == 5
    with pytest.raises(ProcessFailed, match="--nodes must be at least 100"):
        run_task("graph", spec=SPEC | {"nodes": 99}, folder=str(tmp_path))


def test_every_task_exists():
    for module, function in process.TASKS.values():
        assert callable(getattr(importlib.import_module(f"hpgmn_lab.bench.{module}"), function))


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (-9, ProcessFailed, "out of memory.*Choose smaller sizes"),
        (130, KeyboardInterrupt, "^$"),
        (-2, KeyboardInterrupt, "^$"),
        (1, HPGMNError, "'graph' exited with code 1"),
    ],
)
def test_exit_codes_become_errors(monkeypatch, code, error, message):
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, code)
    )
    with pytest.raises(error, match=message):
        run_task("graph")


def test_a_process_is_killed_after_its_timeout(monkeypatch):
    original = subprocess.run

    def run(command, **options):
        return original([sys.executable, "-c", "import time; time.sleep(30)"], **options)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ProcessFailed, match="no result after 0 s"):
        run_task("graph", timeout=0.2)


def test_the_environment_has_both_packages_and_the_threads(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    sources = [str(Path(package.__file__).parents[1]) for package in (hpgmn, hpgmn_lab)]
    assert process.environment()["PYTHONPATH"].split(os.pathsep) == [*sources, "elsewhere"]
    assert process.environment()["OMP_NUM_THREADS"] == "7"
    assert process.environment(1)["OMP_NUM_THREADS"] == "1"


def answer(tmp_path, **arguments):
    request, answered = tmp_path / "request.json", tmp_path / "answer.json"
    request.write_text(json.dumps({"task": "graph", "arguments": arguments}))
    code = process.main([str(request), str(answered)])
    return code, json.loads(answered.read_text()) if answered.exists() else None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (HPGMNError("Wrong."), (0, {"failed": "Wrong."})),
        (MemoryError(), (0, {"failed": "out of memory"})),
        (KeyboardInterrupt(), (130, None)),
    ],
)
def test_failures_are_answers(tmp_path, monkeypatch, error, expected):
    def fail(**_):
        raise error

    monkeypatch.setattr(graphs, "write_generated", fail)
    assert answer(tmp_path) == expected


def test_arguments_reach_the_task(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "write_generated", lambda **arguments: arguments)
    assert answer(tmp_path, a=1, b=[2]) == (0, {"a": 1, "b": [2]})


def test_peak_memory_includes_what_was_freed():
    reset_peak_memory("cpu")
    before = process.peak_bytes()
    block = np.ones(2**26, np.uint8)  # 64 MiB, touched
    del block
    assert 60 * 2**20 < process.peak_bytes() - before < 90 * 2**20
    assert process.Meter("cpu").record()["device_peak_bytes"] is None


def test_load_of_others_excludes_this_process(monkeypatch):
    """The machine works 5 seconds in 2, of which 1 is ours."""
    clocks = {"wall": 0.0, "own": 0.0, "user": 10.0, "system": 1.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clocks["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clocks["own"])
    monkeypatch.setattr(
        psutil, "cpu_times", lambda: SimpleNamespace(user=clocks["user"], system=clocks["system"])
    )
    load = OtherLoad()
    clocks |= {"wall": 2.0, "own": 1.0, "user": 14.0, "system": 2.0}
    assert load.cores() == pytest.approx((5 - 1) / 2)


def test_load_of_others_excludes_children_on_request(monkeypatch):
    class Process:
        def __init__(self, *times, children=()):
            self.times, self.members = times, children

        def cpu_times(self):
            if not self.times:
                raise psutil.NoSuchProcess(1)
            return (*self.times, 99.0)  # time waiting for the disk does not count

        def children(self, recursive):
            return self.members

    busy = [100.0]
    own = [Process(1.0, 2.0, 3.0, 4.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=busy[0]))
    monkeypatch.setattr(psutil, "Process", lambda: own[0])
    load = OtherLoad(with_children=True)
    busy[0] = 120.0
    exited, child = Process(), Process(10.0, 10.0, 0.0, 0.0)
    own[0] = Process(1.0, 2.0, 3.0, 4.0, children=(exited, child))
    assert load.cores() == 0.0


def progress(stage, epoch, val, statistics):
    return Progress(0, 1, stage, epoch, 3, 0.5, val, statistics)


def test_time_is_divided_into_preparation_and_epochs(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    reports = []
    clock = StageClock(reports.append)
    # at second …: stage, epoch, validation score, seconds of statistics so far
    for moment, stage, epoch, val, statistics in (
        (103.0, "estimator", 1, 0.4, 2.0),
        (104.5, "estimator", 2, 0.5, 2.0),
        (110.0, "main", 1, 0.6, 6.0),
        (116.0, "main", 4, 0.7, 6.0),  # three epochs at once
    ):
        now[0] = moment
        clock(progress(stage, epoch, val, statistics))
    assert clock.prepared == {"estimator": 2.0, "main": 4.0}
    assert clock.epochs == {"estimator": [1.0, 1.5], "main": [1.5, 2.0, 2.0, 2.0]}
    assert clock.curve == [(10.0, 0.6), (16.0, 0.7)]
    assert clock.seconds("estimator") == 4.5
    assert set(clock.peaks) == {"estimator", "main"}
    assert len(reports) == 4


def test_stages_of_a_training_add_up(small_graph):
    settings = HPGMNSettings(epochs=3, estimator_epochs=2, patience=0, hidden_dim=4)
    clock = StageClock()
    fitted = fit_once(small_graph, "hpgmn", settings, split=1, report=clock)
    assert {name: len(epochs) for name, epochs in clock.epochs.items()} == {
        "estimator": 2,
        "main": 3,
    }
    assert sum(clock.prepared.values()) == pytest.approx(fitted.seconds["statistics"])
    total = clock.seconds("estimator") + clock.seconds("main")
    assert total == pytest.approx(clock.last - clock.started)
    best = fitted.history["main"]["val_score"][:, 0].cummax(dim=0).values
    assert [score for _, score in clock.curve] == pytest.approx(best.tolist())


def test_progress_lines_are_rare(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = ProgressLines("10 nodes")
    for moment in (1.0, 6.0, 7.0, 12.0):
        now[0] = moment
        lines(progress("main", int(moment), 0.5, 0.0))
    assert capsys.readouterr().err.splitlines() == [
        "10 nodes: main epoch 6/3 val 0.500",
        "10 nodes: main epoch 12/3 val 0.500",
    ]
