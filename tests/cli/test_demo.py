"""``hpgmn demo``: the built-in graph, end to end."""

import json
from pathlib import Path
from typing import Any

RUN_FILES = {
    *("config.yaml", "metrics.json", "history.jsonl", "predictions.parquet"),
    *("model.safetensors", "report.html", "log.txt", "audit.json", "understanding.json"),
    "explorer.json",
}


def metrics_of(run):
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    return found


def test_the_demo_trains_on_the_built_in_graph(hpgmn, monkeypatch):
    short = {"epochs": 5, "hidden_dim": 8}

    def settings_for(graph, model):
        return short | ({"estimator_epochs": 5} if model == "hpgmn" else {})

    monkeypatch.setattr("hpgmn.models.settings_for", settings_for)
    answer = hpgmn("demo", "--nodes", "120", "--out", "demo")
    assert answer.code == 0, answer.err
    others = {"trading-network.npz", "mlp", "gcn"}
    assert {path.name for path in Path("demo").iterdir()} == RUN_FILES | others
    for name in ("mlp", "gcn"):
        assert {path.name for path in Path("demo", name).iterdir()} == RUN_FILES
        assert f"{100 * metrics_of(Path('demo', name))['test_score_mean']:.1f} ±" in answer.out
    metrics = metrics_of(Path("demo"))
    assert metrics["splits"] == [0, 1, 2]
    rows = ("label estimator (attributes only)", "MLP", "GCN", "HP-GMN", "best attainable")
    for row in rows:
        assert row in answer.out
    assert f"{100 * metrics['test_score_mean']:.1f} ±" in answer.out
    again = hpgmn("demo", "--nodes", "120", "--out", "demo")  # replaces itself
    assert again.code == 0
    assert metrics_of(Path("demo"))["test_score"] == metrics["test_score"]


def test_the_demo_never_replaces_another_run(hpgmn, own_run, contents):
    before = contents(own_run)
    answer = hpgmn("demo", "--nodes", "120", "--out", own_run)
    assert answer.code == 2
    assert "exists" in answer.err
    assert contents(own_run) == before
