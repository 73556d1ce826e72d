"""``hpgmn demo``: the built-in graph, end to end."""

import json
from pathlib import Path
from typing import Any

import pytest

RUN_FILES = {
    *("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet"),
    *("model.safetensors", "log.txt", "graph.npz"),
}
PAGE_FILES = {"report.html", "audit.json", "understanding.json", "explorer.json"}


def metrics_of(run):
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_the_demo_trains_on_the_built_in_graph(hpgmn, monkeypatch):
    short = {"epochs": 5, "hidden_dim": 8}

    def settings_for(graph, model):
        return short | ({"estimator_epochs": 5} if model == "hpgmn" else {})

    monkeypatch.setattr("hpgmn.models.settings_for", settings_for)
    command = ("demo", "--nodes", "120", "--time-limit", "0.1", "--out", "demo")
    answer = hpgmn(*command)
    assert answer.code == 0, answer.err
    others = {"mlp", "gcn", "dirgcn", "linkx", "ensemble"}
    assert {path.name for path in Path("demo").iterdir()} == RUN_FILES | PAGE_FILES | others
    for name in ("mlp", "gcn", "dirgcn", "linkx"):
        assert {path.name for path in Path("demo", name).iterdir()} >= RUN_FILES
    assert Path("demo/ensemble/report.html").is_file()
    names = ("mlp", "gcn", "dirgcn", "linkx", "ensemble")
    scores = {name: metrics_of(Path("demo", name)) for name in names}
    scores["hpgmn"] = metrics_of(Path("demo"))
    for metrics in scores.values():
        assert f"{100 * metrics['test_score_mean']:.1f} ±" in answer.out
        assert metrics["splits"] == [0, 1]
    assert set(scores["gcn"]["selected"]["neighbors"]) == {"out", "in", "undirected"}
    assert scores["ensemble"]["model"] == "ensemble"
    for row in ("MLP", "GCN (direction selected)", "Dir-GCN", "LINKX", "HP-GMN", "ensemble"):
        assert row in answer.out
    assert "best attainable" in answer.out
    again = hpgmn(*command)  # replaces itself
    assert again.code == 0
    assert metrics_of(Path("demo"))["test_score"] == scores["hpgmn"]["test_score"]


def test_the_demo_says_who_is_ahead_and_by_how_much():
    from hpgmn.cli.demo import conclusion

    scores = {"mlp": 0.5, "gcn": 0.4, "dirgcn": 0.512, "linkx": 0.45}
    scores |= {"hpgmn": 0.95, "ensemble": 0.945}
    text = conclusion(scores)
    assert "HP-GMN is 43.8 points above Dir-GCN" in text
    assert "ensemble is 0.5 points below HP-GMN" in text
    assert "HP-GMN is 10.0 points below GCN" in conclusion(scores | {"hpgmn": 0.6, "gcn": 0.7})


def test_the_demo_never_replaces_another_run(hpgmn, own_run, contents):
    before = contents(own_run)
    answer = hpgmn("demo", "--nodes", "120", "--out", own_run)
    assert answer.code == 2
    assert "exists" in answer.err
    assert contents(own_run) == before


def test_the_demo_writes_tables_that_can_be_read_and_the_next_commands(hpgmn):
    from hpgmn import bank_transfers, from_tables, load

    answer = hpgmn("demo", "--tables", "bank")
    assert answer.code == 0, answer.err
    graph = load("bank", label="fraud")
    assert graph.y.tolist() == from_tables(*bank_transfers(0), label="fraud").y.tolist()
    assert Path("bank/tomorrow/nodes.csv").is_file()
    assert "hpgmn train bank --label fraud" in answer.out
    assert hpgmn("demo", "--tables", "bank").code == 0
    other_seed = hpgmn("demo", "--tables", "bank", "--seed", "1")
    assert other_seed.code == 2
    assert "exists" in other_seed.err
    assert not Path("runs").exists()
