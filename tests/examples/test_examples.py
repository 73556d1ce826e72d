"""Every example runs as its first lines say, and prints numbers that make sense."""

import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = 60


def output_of(name):
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


def trading(num_nodes):
    """The built-in graph."""
    from hpgmn.graph.synthetic import trading_network

    return trading_network(num_nodes=num_nodes, seed=0).graph


def majority(num_nodes):
    """The share of the built-in graph's largest class."""
    y = trading(num_nodes).y
    return float(np.bincount(y).max() / len(y))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_to_run_it(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST
    assert re.search(rf"{path.stem}(\.py|:)", lines[2])


@pytest.mark.slow
def test_a_module_of_ones_own_learns_in_a_pyg_loop():
    found = re.findall(r"^(validation|test) accuracy (0\.\d+)$", output_of("pyg_loop.py"), re.M)
    assert [part for part, _ in found] == ["validation", "test"]
    for _, score in found:  # attributes alone give about 0.65, a GCN 0.46
        assert majority(2000) < 0.85 < float(score) < 0.975


@pytest.mark.slow
def test_the_grid_is_decided_by_validation_and_tested_once():
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


@pytest.mark.slow
def test_own_tables_are_audited_trained_and_predicted():
    text = output_of("own_tables.py")
    # Eight habits, two regions and one attribute for an unknown region.
    assert text.startswith("Graph('accounts': 800 nodes, ")
    assert "edges, 11 attributes, 5 classes)\n" in text
    assert "160 (20.0%)" in text
    [score] = re.findall(r"^test accuracy (0\.\d+)$", text, re.M)
    assert majority(800) < 0.85 < float(score) < 1
    [path] = re.findall(r"^160 predictions in (.*)$", text, re.M)
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    shutil.rmtree(Path(path).parents[1])
    assert [row["id"] for row in rows] == [f"account-{number}" for number in range(0, 800, 5)]
    network = trading(800)
    truth = [network.class_names[label] for label in network.y[::5]]
    right = np.mean([row["prediction"] == name for row, name in zip(rows, truth, strict=True)])
    assert right > 0.85
    assert all(0.2 <= float(row["confidence"]) <= 1 for row in rows)


@pytest.mark.slow
def test_accounts_of_tomorrow_get_their_classes():
    text = output_of("new_nodes.py")
    assert text.startswith("today 800 accounts, tomorrow 840\n")
    named = re.findall(r"^(a-\d+): ([a-z]+), probability ([01]\.\d\d)$", text, re.M)
    assert [name for name, _, _ in named] == ["a-800", "a-801", "a-802"]
    assert {kind for _, kind, _ in named} <= set(trading(840).class_names)
    [right] = re.findall(r"^correct for ([01]\.\d+) of 40 new accounts$", text, re.M)
    assert majority(840) < 0.8 <= float(right)


@pytest.mark.slow
def test_onnxruntime_predicts_from_rows():
    pytest.importorskip("onnxruntime")
    text = output_of("export_onnx.py")
    assert "('class_counts_in', ['batch', 5])" in text
    named = re.findall(r"^([a-z]+), probability ([01]\.\d+)$", text, re.M)
    assert len(named) == 3
    assert {name for name, _ in named} <= set(trading(500).class_names)
    [difference] = re.findall(r"^largest difference (\S+)$", text, re.M)
    assert float(difference) < 1e-5
