"""The worker that measures the package: what it times, and what it says of a whole run."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
FEW = ["--hidden", "8", "--patterns", "4", "--timed-epochs", "3"]


@pytest.fixture
def ours(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))  # ours.py imports yardstick.py beside it
    before = sys.modules.pop("yardstick", None)
    spec = importlib.util.spec_from_file_location("ours", FOLDER / "ours.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("yardstick", None)
    if before is not None:
        sys.modules["yardstick"] = before


@pytest.fixture
def graph_file(small_graph, tmp_path):
    from hpgmn.graph.files import write_graph

    path = tmp_path / "small.npz"
    write_graph(small_graph, path)
    return path


@pytest.mark.parametrize("fourth", [[], ["--adjacency-rows"]])
def test_epochs_are_timed_split_by_split(ours, graph_file, tmp_path, fourth):
    out = tmp_path / "out.json"
    found = ours.main([str(graph_file), *FEW, *fourth, "--json", str(out)])
    assert json.loads(out.read_text(encoding="utf-8")) == found
    assert [row["splits"] for row in found["runs"]] == [[0], [1]]
    assert [row["epochs_trained"] for row in found["runs"]] == [3, 3]
    assert found["seconds_per_epoch"] > 0
    assert found["settings"]["hidden_dim"] == 8
    assert found["settings"]["statistics"][-1] == ("adjacency" if fourth else "diffusion")


def test_replicas_share_an_epoch(ours, graph_file):
    [row] = ours.main([str(graph_file), *FEW, "--replicas", "2"])["runs"]
    assert row["splits"] == [0, 1]
    assert row["seconds_per_epoch"] <= max(row["seconds_of_epochs"]) / 2


def test_a_whole_run_is_scored(ours, graph_file, monkeypatch):
    few = {"epochs": 4, "patience": 2, "estimator_epochs": 3, "hidden_dim": 8, "num_patterns": 4}
    monkeypatch.setattr(ours, "settings_for", lambda *_: few)
    found = ours.main([str(graph_file), "--shipped"])
    assert found["splits"] == [0, 1]
    assert len(found["epochs_trained"]) == 2
    assert max(found["epochs_trained"]) <= 4
    assert 0 <= found["accuracy_mean"] <= 100
    assert 0 < found["seconds_training"] < found["seconds_total"]


def test_epochs_alone_end_with_patience(ours):
    assert ours.epochs_alone([10, 290], {"epochs": 300, "patience": 100}) == [110, 300]
    assert ours.epochs_alone([10], {"epochs": 300, "patience": 0}) == [300]


def test_the_papers_model_is_trained_in_full_and_scored(ours, graph_file, monkeypatch):
    few = {"epochs": 4, "estimator_epochs": 3, "hidden_dim": 8, "num_patterns": 4}
    monkeypatch.setattr(ours, "read_config", lambda name: {"settings": few})
    found = ours.main([str(graph_file), "--tf32"])
    assert found["splits"] == [0, 1]
    assert found["settings"]["precision"] == "tf32"
    assert found["accuracy_mean"] == pytest.approx(sum(found["accuracy"]) / 2)
    parts = found["seconds_statistics"] + found["seconds_training"]
    assert 0 < parts < found["seconds_total"]
    assert found["device"] == "cpu"


@pytest.mark.parametrize("mode", [["--shipped"], ["--timed-epochs", "3"]])
def test_a_gpu_is_for_the_papers_model_in_full(ours, graph_file, capsys, mode):
    with pytest.raises(SystemExit):
        ours.main([str(graph_file), "--device", "cuda", *mode])
    assert "the paper's model in full" in capsys.readouterr().err
