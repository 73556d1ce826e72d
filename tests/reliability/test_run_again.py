"""``config.yaml`` of a run folder is enough to get the run again, bit for bit."""

import csv
import json
import textwrap

import numpy as np
import pytest
import yaml

from hpgmn.cli import main
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.graph.synthetic import trading_network

TINY = {
    "hidden_dim": 4,
    "num_patterns": 3,
    "estimator_hidden": 4,
    "epochs": 4,
    "estimator_epochs": 3,
    "statistics": "attributes,class_counts,class_means,diffusion",
}
SET = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch):
    monkeypatch.setattr("hpgmn.runs.train.explain_run", lambda *_: None)
    monkeypatch.setattr("hpgmn.runs.report_data.write_report", lambda *_: None)


@pytest.fixture(scope="module")
def graph():
    return trading_network(num_nodes=120, seed=1).graph


@pytest.fixture
def home(tmp_path, graph, monkeypatch):
    """The folder in which commands are typed, with a graph file in it."""
    write_graph(graph, tmp_path / "graph.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def again(home, monkeypatch, *more, command="train"):
    """Train the run in ``first`` again by its config alone, from another folder."""
    monkeypatch.chdir(home / "elsewhere")
    words = [command, "--config", str(home / "first" / "config.yaml"), *more]
    assert main([*words, "--out", str(home / "second")]) == 0


def assert_same_run(home, lasting, leave=()):
    first, second = home / "first", home / "second"
    for name in ("model.safetensors", "predictions.parquet", "history.jsonl", "config.yaml"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    one, other = (
        lasting(json.loads((folder / "metrics.json").read_text())) for folder in (first, second)
    )
    for name in leave:
        one.pop(name)
    assert one == other


def write_tables(folder, graph):
    folder.mkdir()
    with (folder / "nodes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["account", *(f"x{one}" for one in range(graph.num_features)), "kind", "colour"]
        )
        for node, row in enumerate(graph.x.tolist()):
            colour = ["red", "", "blue"][node % 3]
            table.writerow([f"n{node}", *row, graph.class_names[graph.y[node]], colour])
    with (folder / "edges.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["payer", "payee"])
        table.writerows([f"n{a}", f"n{b}"] for a, b in graph.edge_index.T.tolist())


COLUMNS = ["--id", "account", "--label", "kind", "--source", "payer", "--target", "payee"]
MORE = ["--seeds", "2", "--metric", "macro_f1", "--no-calibration"]
GPRGNN = ["--set", "epochs=4", "--set", "neighbors=out"]
CASES: dict[str, list[str]] = {
    "a single run": ["graph.npz", "--model", "hpgmn", "--splits", "1", *SET],
    "several splits and seeds": ["graph.npz", "--model", "hpgmn", "--splits", "0,3", *SET, *MORE],
    "another model": ["graph.npz", "--model", "gprgnn", "--splits", "0", *GPRGNN],
    "tables": ["tables", "--model", "hpgmn", "--splits", "0", *SET, *COLUMNS],
    "deterministic": ["graph.npz", "--model", "mlp", "--splits", "0", "--deterministic"],
}


@pytest.mark.parametrize("case", CASES)
def test_a_config_is_enough(case, home, graph, monkeypatch, lasting, capsys):
    if case == "tables":
        write_tables(home / "tables", graph)
    assert main(["train", *CASES[case], "--device", "cpu", "--out", "first"]) == 0
    config = yaml.safe_load((home / "first" / "config.yaml").read_text())
    assert config.get("deterministic", False) == (case == "deterministic")
    capsys.readouterr()
    again(home, monkeypatch)
    assert "The run of the config" not in capsys.readouterr().err
    assert_same_run(home, lasting)


OWN = """
import torch

class Two(torch.nn.Module):
    def __init__(self, num_features, num_classes, hidden_dim: int = 4):
        super().__init__()
        self.first = torch.nn.Linear(num_features, hidden_dim)
        self.second = torch.nn.Linear(hidden_dim, num_classes)

    def forward(self, x, edge_index):
        return self.second(torch.nn.functional.dropout(self.first(x), 0.5, self.training))
"""


def test_a_model_of_one_s_own_is_named_once_more(home, monkeypatch, lasting, capsys):
    (home / "again_own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(home)
    words = ["--model", "again_own:Two", "--splits", "0", "--set", "epochs=3"]
    words += ["--set", "neighbors=out"]
    assert main(["train", "graph.npz", *words, "--device", "cpu", "--out", "first"]) == 0
    assert main(["train", "--config", "first/config.yaml", "--out", "second"]) == 2
    assert "(--model again_own:Two)" in capsys.readouterr().err
    again(home, monkeypatch, "--model", "again_own:Two")
    assert_same_run(home, lasting)


def test_a_run_on_row_shards(home, monkeypatch, lasting, capsys):
    kinds = ["--set", "statistics=attributes,class_counts", "--set", "estimator_epochs=3"]
    assert main(["shard", "graph.npz", "--out", "shards", "--ranges", "2", *kinds]) == 0
    quick = ["epochs=3", "hidden_dim=4", "num_patterns=3", "batch_size=20"]
    options = [word for one in quick for word in ("--set", one)]
    words = ["train-shards", "shards", "--seeds", "2", "--device", "cpu", *options]
    assert main([*words, "--no-calibration", "--out", "first"]) == 0
    assert main(["train", "--config", "first/config.yaml", "--out", "second"]) == 2
    assert "hpgmn train-shards --config first/config.yaml" in capsys.readouterr().err
    again(home, monkeypatch, command="train-shards")
    assert "The r" not in capsys.readouterr().err.replace("Run folder", "")
    assert_same_run(home, lasting)
    config = yaml.safe_load((home / "first" / "config.yaml").read_text())
    config["made_with"] |= {"shards_content": "other", "ranks": 3}
    (home / "first" / "config.yaml").write_text(yaml.safe_dump(config))
    again(home, monkeypatch, "--overwrite", command="train-shards")
    told = capsys.readouterr().err
    assert "The row shards are not those of the run of the config" in told
    assert "ranks 3 (now 1)" in told


def test_shards_are_named_by_an_argument_or_a_config(home, capsys):
    assert main(["train-shards", "--out", "first"]) == 2
    assert "(--config)" in capsys.readouterr().err


# What has changed since is said.


def test_a_graph_that_has_changed_is_told(home, graph, monkeypatch, capsys):
    words = ["--model", "mlp", "--splits", "0", "--set", "epochs=2", "--device", "cpu"]
    assert main(["train", "graph.npz", *words, "--out", "first"]) == 0
    x = np.array(graph.x)
    x[0, 0] += 1
    write_graph(with_attributes(graph, x), home / "graph.npz")
    capsys.readouterr()
    again(home, monkeypatch)
    told = capsys.readouterr().err
    assert f"The graph {home / 'graph.npz'} has changed since" in told
    metrics = json.loads((home / "second" / "metrics.json").read_text())
    assert any("has changed since" in line for line in metrics["warnings"])
    (home / "graph.npz").unlink()
    config = str(home / "first" / "config.yaml")
    assert main(["train", "--config", config, "--out", str(home / "third")]) == 2
    assert f"{home / 'graph.npz'}" in capsys.readouterr().err
    write_graph(graph, home / "moved.npz")  # settings for another graph are not a run again
    words = ["train", str(home / "moved.npz"), "--config", config, "--out", str(home / "third")]
    assert main(words) == 0
    assert "has changed since" not in capsys.readouterr().err


def with_attributes(graph, x):
    """The same graph with other attributes."""
    assert graph.splits is not None
    masks = {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    names = {"class_names": graph.class_names, "directed": graph.directed}
    return Graph(x, graph.edge_index, graph.y, **names, **masks)


def test_a_graph_must_be_named(home, capsys):
    (home / "settings.yaml").write_text("lr: 0.01\n")
    for words in ([], ["--config", "settings.yaml"]):
        assert main(["train", *words]) == 2
        assert "No graph is given" in capsys.readouterr().err
