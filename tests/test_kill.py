"""A run that is killed or interrupted again and again ends with the bits of an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import hpgmn as package

pytestmark = pytest.mark.slow

SOURCE = Path(package.__file__).parents[1]
RUN_FILES = {
    *("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet"),
    *("model.safetensors", "report.html", "explorer.json", "log.txt"),
    *("audit.json", "understanding.json"),
}
# States are saved all the time, and two replicas fit into memory at once: three batches.
PROGRAM = """
import sys
import hpgmn.training.replicas as replicas
replicas.SAVE_SECONDS = 0.01
replicas.replicas_at_once = lambda *_: 2
from hpgmn.cli import main
sys.exit(main(sys.argv[1:]))
"""
SETTINGS = {
    "hidden_dim": 16,
    "num_patterns": 10,
    "estimator_hidden": 16,
    "estimator_epochs": 60,
    "estimator_patience": 20,
    "epochs": 120,
    "patience": 40,
    "neighbors": "undirected",
    "statistics": "attributes,class_counts,class_means,diffusion",
}
LONGEST = 60.0
"""Seconds that one process may take before the test gives up."""


class Runs:
    """Trains one graph in processes of their own."""

    def __init__(self, folder: Path) -> None:
        graph = package.trading_network(num_nodes=200, seed=3).graph
        self.graph = folder / "trading.npz"
        package.write_graph(graph, self.graph)
        self.running: list[subprocess.Popen[str]] = []

    def start(self, out: Path, *options: str) -> subprocess.Popen[str]:
        words = [w for key, value in SETTINGS.items() for w in ("--set", f"{key}={value}")]
        command = ["train", str(self.graph), "--splits", "0,1,2", "--seeds", "2", "--device", "cpu"]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *command, "--out", str(out), *words, *options],
            env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def finish(self, out: Path, *options: str) -> None:
        process = self.start(out, *options)
        _, error = process.communicate(timeout=LONGEST)
        assert process.returncode == 0, error


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Runs(tmp_path_factory.mktemp("kill"))
    yield made
    for process in made.running:
        process.kill()  # does nothing to one that has ended
        process.communicate()


@pytest.fixture(scope="module")
def undisturbed(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    runs.finish(out)
    return out


def wait_for(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST
    while not ready():
        assert process.poll() is None, "the run ended before it could be disturbed"
        assert time.monotonic() < end, "the run did not get on"
        time.sleep(0.002)


def stamp(out: Path) -> tuple[int, int]:
    """Changes whenever a state is saved."""
    saved = [path.stat().st_mtime_ns for path in out.glob("state/state-*.safetensors")]
    return len(saved), max(saved, default=0)


def wait_for_saves(process: subprocess.Popen[str], out: Path, count: int) -> None:
    """Wait until the run has saved its state so many times."""
    for _ in range(count):
        before = stamp(out)
        wait_for(process, lambda before=before: stamp(out) != before)  # type: ignore[misc]


def assert_same_bits(one: Path, other: Path) -> None:
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    tables = [pq.read_table(folder / "predictions.parquet") for folder in (one, other)]
    assert tables[0].equals(tables[1])
    keys = ("test_score", "val_score", "epochs", "epochs_trained", "label_estimator", "splits")
    found = [json.loads((folder / "metrics.json").read_text()) for folder in (one, other)]
    assert {key: found[0][key] for key in keys} == {key: found[1][key] for key in keys}
    for name in ("history.jsonl", "explorer.json", "audit.json", "understanding.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_the_undisturbed_run_is_worth_disturbing(undisturbed: Path) -> None:
    """Several batches, replicas that stop at different epochs, and an estimator before them."""
    lines = [json.loads(line) for line in (undisturbed / "history.jsonl").read_text().splitlines()]
    last = {
        (line["split"], line["seed"]): line["epoch"] for line in lines if line["stage"] == "main"
    }
    assert len(last) == 6
    assert len(set(last.values())) > 1


def test_a_run_killed_five_times_ends_with_the_same_bits(
    runs: Runs, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    draw = random.Random(7)
    for _ in range(5):
        process = runs.start(out, "--resume")
        wait_for_saves(process, out, draw.randint(1, 8))
        time.sleep(draw.uniform(0, 0.03))  # anywhere between two saves, or in the middle of one
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"
        assert not (out / "metrics.json").exists()
    runs.finish(out, "--resume")
    assert {path.name for path in out.iterdir()} == RUN_FILES
    assert_same_bits(out, undisturbed)


def test_an_interrupted_run_ends_with_the_same_bits(
    runs: Runs, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = runs.start(out)
    wait_for_saves(process, out, 3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=LONGEST)
    assert process.returncode == 130
    assert f"repeat the command with --resume --out {out}" in error
    assert "Traceback" not in error
    runs.finish(out, "--resume")
    assert {path.name for path in out.iterdir()} == RUN_FILES
    assert_same_bits(out, undisturbed)
