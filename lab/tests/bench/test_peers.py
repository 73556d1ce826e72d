"""Peers: the same split and trials for all, the race to a score, and bars."""

import importlib.util

import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.graph.files import write_graph
from hpgmn_lab.bench import peers
from hpgmn_lab.bench.process import ProcessFailed

FEW = ["hpgmn.estimator_epochs=1", "hpgmn.hidden_dim=8", "hpgmn.num_patterns=4"]


def measure(call, **more):
    options = {
        "nodes": 200,
        "degree": 4.0,
        "attributes": 4,
        "models": "mlp,pyg-mlp",
        "trials": 2,
        "epochs": 2,
        "peer_epochs": 3,
        "set_": FEW,
    }
    return peers.measure(call, **options | more)


def test_every_model_has_its_trials_on_the_same_graph(call, here):
    record = measure(call)
    assert here == ["graph", "peer", "peer", "peer"]
    assert list(record["models"]) == ["hpgmn", "mlp", "pyg-mlp"]
    for name, own in record["models"].items():
        assert own["nodes"] == 200
        assert [row["epochs"] for row in own["trials"]] == [2 if name == "hpgmn" else 3] * 2
        assert [row["settings"] for row in own["trials"]] == record["settings"]["trials"][name]
        assert 0 <= own["test_accuracy"] <= 1
    tried = record["settings"]["trials"]
    assert [one["lr"] for one in tried["hpgmn"]] == [0.01, 0.02]
    assert tried["hpgmn"][0]["hidden_dim"] == 8
    assert tried["mlp"] == tried["pyg-mlp"]
    assert tried["mlp"][0]["hidden_dim"] == 64
    assert record["graph"]["parameters"]["num_nodes"] == 200


@pytest.mark.usefixtures("here")
def test_another_graph_may_be_named(call, small_graph, tmp_path):
    path = tmp_path / "mine.npz"
    write_graph(small_graph, path)
    record = measure(call, graph=str(path), models="mlp", split=1)
    assert record["graph"] == {"name": "mine"}
    assert record["models"]["mlp"]["nodes"] == 18
    with pytest.raises(HPGMNError, match="has splits 0 to 1"):
        measure(call, graph=str(path), split=2)


def test_the_other_models_continue_when_one_fails(call, monkeypatch, capsys):
    def run_task(task, **arguments):
        if arguments["model"] == "mlp":
            raise ProcessFailed("out of memory", "Choose smaller sizes")
        return {key: arguments[key] for key in ("limit", "timeout")}

    monkeypatch.setattr(peers, "run_task", run_task)
    monkeypatch.setattr(peers, "generate", lambda *_: {"path": "p", "parameters": {}} | BEST)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    record = measure(call, models="mlp,pyg-gcn,gcn", limit=10.0)
    assert record["models"] == {
        "hpgmn": {"limit": 10.0, "timeout": 140.0},
        "mlp": {"failed": "out of memory"},
        "pyg-gcn": {"failed": "PyTorch Geometric is not installed"},
        "gcn": {"limit": 10.0, "timeout": 140.0},
    }
    assert "PyG GCN: PyTorch Geometric is not installed" in capsys.readouterr().err


BEST = {"best_accuracy": 0.97}


def test_the_race_is_to_the_peers_own_best_score(peers_record):
    assert peers.best_validation(peers_record, "gcn") == 0.60
    assert peers.seconds_to(peers_record, "gcn", 0.60) == 6.0
    assert peers.seconds_to(peers_record, "hpgmn", 0.60) == 4.0
    assert peers.times_faster(peers_record, "gcn") == 1.5
    assert peers.seconds_to(peers_record, "hpgmn", 0.93) == 5.0
    assert peers.times_faster(peers_record, "pyg-gcn") == 0.4
    assert peers.seconds_to(peers_record, "hpgmn", 0.96) is None
    assert peers.times_faster(peers_record, "linkx") is None
    assert peers.best_validation(peers_record, "appnp") is None
    assert peers.times_faster(peers_record, "appnp") is None


def test_the_bars_of_a_record(peers_record):
    words = {bar.what: bar.verdict for bar in peers.bars(peers_record)}
    assert words == {
        "test accuracy minus that of the best peer (linkx)": "short by 0.30 points",
        "times faster than gcn to its best validation score": "reached",
        "times faster than linkx to its best validation score": "its score is never reached",
        "times faster than PyG GCN to its best validation score": "short by 0.60 ×",
    }
    peers_record["models"]["linkx"] = {"failed": "out of memory"}
    words = {bar.what: bar.verdict for bar in peers.bars(peers_record)}
    assert words["test accuracy minus that of the best peer (gcn)"] == "reached"
    assert words["times faster than linkx to its best validation score"] == "out of memory"


def test_without_a_peer_there_is_nothing_to_compare(peers_record):
    peers_record["models"] = {"hpgmn": peers_record["models"]["hpgmn"]}
    assert [bar.verdict for bar in peers.bars(peers_record)] == ["not measured"]


def test_tables_of_a_record(peers_record):
    costs, races, bars = peers.tables(peers_record)
    rows = {row[0]: row[1:] for row in costs.rows}
    assert rows["hpgmn"] == ["94.0", "", "95.0", "3.00", "1.000", "1.00", ""]
    assert rows["gcn"] == ["50.0", "-44.0", "60.0", "4.00", "1.000", "1.00", ""]
    assert rows["appnp"] == [*["–"] * 6, "Out of memory while training appnp."]
    assert rows["PyG GCN"] == [
        *("–", "–", "93.0", "1.00", "1.000", "1.00", "cut after 1 of 2 epochs")
    ]
    assert races.rows == [
        ["gcn", "60.0", "6.0", "4.0", "1.50"],
        ["linkx", "96.0", "3.0", "never", "–"],
        ["appnp", "Out of memory while training appnp.", "–", "–", "–"],
        ["PyG GCN", "93.0", "2.0", "5.0", "0.40"],
    ]
    assert len(bars.rows) == 4
    assert all(len(row) == len(costs.columns) for row in costs.rows)


def test_tables_show_the_memory_of_a_gpu_and_trials_that_were_not_begun(peers_record):
    peers_record["device_kind"] = "cuda"
    for own in peers_record["models"].values():
        own["device_peak_bytes"] = 2**31
    peers_record["settings"]["trials"]["gcn"] = [{"lr": 0.1}, {"lr": 0.2}]
    costs, *_ = peers.tables(peers_record)
    rows = {row[0]: row[1:] for row in costs.rows}
    assert rows["gcn"][-2:] == ["2.00", "1 of 2 trials"]
    assert all(len(row) == len(costs.columns) for row in costs.rows)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"models": "gcm"}, "Unknown model 'gcm'. Did you mean 'gcn'"),
        ({"set_": ["mlp.lr=fast"]}, "'lr'"),
    ],
)
def test_invalid_options_are_refused_before_any_work(call, more, message):
    with pytest.raises(SettingError, match=message):
        measure(call, **more)


def test_all_models_have_equally_many_trials_and_equal_width():
    for name, trials in peers.TRIALS.items():
        assert len(trials) == 4
        assert {one["hidden_dim"] for one in peers.candidates_of(name, 4, 9, {})} == {64}
        assert {one["patience"] for one in peers.candidates_of(name, 4, 9, {})} == {0}
