"""Every example runs as its first lines say, and prints numbers that make sense."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = 60


def output_of(name: str) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, name],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def majority(num_nodes: int) -> float:
    """The share of the built-in graph's largest class."""
    from hpgmn.datasets import trading_network

    y = trading_network(num_nodes=num_nodes, seed=0).graph.y
    return float(np.bincount(y).max() / len(y))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST
    assert re.search(rf"{path.stem}(\.py|:)", lines[2])


@pytest.mark.slow
def test_a_module_of_ones_own_learns_in_a_pyg_loop() -> None:
    found = re.findall(r"^(validation|test) accuracy (0\.\d+)$", output_of("pyg_loop.py"), re.M)
    assert [part for part, _ in found] == ["validation", "test"]
    for _, score in found:  # attributes alone give about 0.65, a GCN 0.46
        assert majority(2000) < 0.85 < float(score) < 0.975


@pytest.mark.slow
def test_the_grid_is_decided_by_validation_and_tested_once() -> None:
    pytest.importorskip("sklearn")
    text = output_of("sklearn_style.py")
    tried = re.findall(r"^validation accuracy (0\.\d+) with (\{.*\})$", text, re.M)
    assert len(tried) == 4
    [(mean, deviation, best)] = re.findall(
        r"^test accuracy (0\.\d+) ± (0\.\d+) with (\{.*\})$", text, re.M
    )
    assert best in [chosen for score, chosen in tried if score == max(tried)[0]]
    assert majority(500) < 0.85 < float(mean) < 1
    assert 0 < float(deviation) < 0.1
    assert re.search(r"^node 0: [a-z]+, probability [01]\.\d\d$", text, re.M)
