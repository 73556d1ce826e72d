"""hpgmn bench as a user types it."""

import importlib
import json
from pathlib import Path

import pytest

TINY = ["--set", "estimator_epochs=1", "--set", "hidden_dim=8", "--device", "cpu"]


def test_without_a_name_the_benchmarks_are_listed(hpgmn):
    from hpgmn_lab.bench import BENCHMARKS

    answer = hpgmn("bench")
    assert answer.code == 0
    for name in BENCHMARKS:
        assert name in answer.out
    assert "Start with `hpgmn bench all --quick`" in answer.err


def test_an_unknown_name_points_to_the_help(hpgmn):
    answer = hpgmn("bench", "grwth")
    assert answer.code == 2
    assert "'grwth'" in answer.err
    assert answer.err.endswith("See `hpgmn bench --help`.\n")
    answer = hpgmn("bench", "growth", "--nods", "3")
    assert answer.code == 2
    assert answer.err.endswith("See `hpgmn bench --help`.\n")


@pytest.mark.slow
def test_growth_measures_writes_and_prints(hpgmn, tmp_path):
    sizes = ["--nodes", "300", "--degree", "3", "--attributes", "4", "--epochs", "2"]
    answer = hpgmn("bench", "growth", *sizes, *TINY, "--out", "mine")
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "mine" / "growth.json").read_text())
    assert [size["nodes"] for size in record["sizes"]] == [300]
    assert record["command"] == (
        "hpgmn bench growth --nodes 300 --degree 3.0 --attributes 4 --epochs 2 "
        "--set estimator_epochs=1 --set hidden_dim=8 --device cpu"
    )
    assert record["settings"]["estimator_epochs"] == 1
    for word in ("whole run, s", "training, µs", "verdict"):
        assert word in answer.out
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {
        *("growth.json", "growth.png", "growth.svg", "graphs")
    }
    assert f"{record['sizes'][0]['edges']:,}" in answer.out


@pytest.mark.slow
def test_peers_measures_writes_and_prints(hpgmn, tmp_path, graph_file):
    few = ["--trials", "1", "--epochs", "2", "--peer-epochs", "2", "--models", "gcn"]
    changes = ["--set", "hidden_dim=4", "--set", "gcn.layers=1"]
    answer = hpgmn(
        *("bench", "peers", "--graph", graph_file, "--split", "1", *few, *changes),
        *("--limit", "60", "--device", "cpu"),
    )
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "bench" / "peers" / "peers.json").read_text())
    assert list(record["models"]) == ["hpgmn", "gcn"]
    [trial] = record["settings"]["trials"]["gcn"]
    assert trial["hidden_dim"] == 4
    assert trial["layers"] == 1
    assert record["settings"]["trials"]["hpgmn"][0]["hidden_dim"] == 4
    assert record["command"].endswith(
        "--split 1 --models gcn --trials 1 --epochs 2 --peer-epochs 2 --limit 60.0 "
        "--set hidden_dim=4 --set gcn.layers=1 --device cpu"
    )
    for word in ("minus hpgmn", "times faster", "verdict"):
        assert word in answer.out
    assert (tmp_path / "bench" / "peers" / "peers.svg").is_file()


def test_forms_and_batches_measure_write_and_print(hpgmn, tmp_path, graph_file):
    few = ["--set", "epochs=2", "--splits", "1,0", "--device", "cpu"]
    answer = hpgmn("bench", "forms", "--graphs", graph_file, "--error-graphs", "", *few)
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "bench" / "forms" / "forms.json").read_text())
    assert record["graphs"]["small"]["splits"] == [1, 0]
    assert record["errors"] == {}
    assert "minus dense" in answer.out
    answer = hpgmn(
        *("bench", "batches", "--graphs", f"{graph_file},{graph_file}", *few),
        *("--batch-size", "3", "--lr-factors", "1"),
    )
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "bench" / "batches" / "batches.json").read_text())
    assert record["lr_factors"] == [1.0]
    assert list(record["graphs"]) == ["small"]
    assert "rows (batches of 3)" in answer.out
    assert (tmp_path / "bench" / "batches" / "batches.png").is_file()


@pytest.mark.slow
def test_workers_and_shards_measure_write_and_print(hpgmn, tmp_path):
    few = ["--runs", "2", "--epochs", "1", "--repeats", "1", "--device", "cpu"]
    answer = hpgmn("bench", "workers", *few)
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "bench" / "workers" / "workers.json").read_text())
    assert record["command"] == f"hpgmn bench workers {' '.join(few)}"
    assert set(record["repeats"][0]) == {"1", "2"}
    assert "two workers against one" in answer.out
    few = ["--nodes", "300", "--degree", "3.0", "--attributes", "4", "--ranges", "2"]
    few += ["--memory", "8", "--sample", "5", "--set", "epochs=1", "--device", "cpu"]
    answer = hpgmn("bench", "shards", *few)
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "bench" / "shards" / "shards.json").read_text())
    assert record["command"] == f"hpgmn bench shards {' '.join(few)}"
    assert record["memory"] == 8 * 2**20
    assert record["training"]["two"]["ranks"] == 2
    assert record["training"]["two"]["train_rows"] == record["training"]["alone"]["train_rows"]
    assert "one round of the sketch" in answer.out
    assert "picture" not in answer.err


def test_all_runs_every_benchmark_with_its_own_options(hpgmn, tmp_path, monkeypatch):
    from hpgmn_lab.bench import BENCHMARKS, graphs
    from hpgmn_lab.cli import bench

    called = []
    monkeypatch.setattr(bench, "app", lambda args, **_: called.append(args))
    monkeypatch.setattr(graphs, "generate", lambda *_: {"path": "a b.graph"})
    assert hpgmn_all(bench, quick=True) is None
    assert [words[0] for words in called] == list(BENCHMARKS)
    assert "a b.graph" in called[2]
    assert called[0][-2:] == ["--out", str(Path("bench") / "quick" / "growth")]
    called.clear()
    hpgmn_all(bench, quick=False)
    assert called[1] == ["peers", "--device", "cpu", "--out", str(Path("bench") / "peers")]


def hpgmn_all(bench, *, quick):
    bench.run_all(quick=quick, device="cpu", out_folder=None)


@pytest.mark.slow
def test_all_in_tiny_form_works_without_any_data(hpgmn, tmp_path, monkeypatch):
    monkeypatch.delenv("HPGMN_DATA", raising=False)
    from hpgmn_lab.bench import deterministic, graphs, growth, peers, shards, workers
    from hpgmn_lab.bench.process import TASKS

    def run_task(task, *, timeout=None, threads=None, **options):
        module, function = TASKS[task]
        return getattr(importlib.import_module(f"hpgmn_lab.bench.{module}"), function)(**options)

    for module in (deterministic, graphs, growth, peers, shards, workers):
        monkeypatch.setattr(module, "run_task", run_task)  # fresh processes: in the tests above
    train = shards.train  # by one rank: two are trained in the test above
    monkeypatch.setattr(shards, "train", lambda *folders, ranks=1: train(*folders))
    answer = hpgmn("bench", "all", "--quick", "--device", "cpu")
    assert answer.code == 0, answer.err
    for name in (
        "growth",
        "peers",
        "forms",
        "batches",
        "workers",
        "shards",
        "deterministic",
        "serve",
    ):
        record = json.loads((tmp_path / "bench" / "quick" / name / f"{name}.json").read_text())
        assert record["command"].startswith(f"hpgmn bench {name} ")
        has_picture = (tmp_path / "bench" / "quick" / name / f"{name}.png").is_file()
        assert has_picture == (name not in ("workers", "shards", "deterministic", "serve"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["forms", "--splits", "x"], "--splits takes integers such as 1000,2000 (got 'x')."),
        (["batches", "--lr-factors", "x"], "--lr-factors takes numbers such as 1,0.5 (got 'x')."),
        (["forms", "--graphs", "texsas"], "Unknown dataset 'texsas'. Did you mean 'texas'?"),
        (["peers", "--graph", "texsas"], "Unknown dataset 'texsas'. Did you mean 'texas'?"),
    ],
)
def test_user_errors_of_the_others_print_one_line(hpgmn, options, message):
    answer = hpgmn("bench", *options, *(["--error-graphs", ""] if options[0] == "forms" else []))
    assert answer.code == 2
    assert f"Error: {message}" in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "many"], "--nodes takes integers such as 1000,2000 (got 'many')."),
        (["--nodes", "50"], "--nodes must be at least 100 (got 50)."),
        (["--device", "gpu"], "Unknown device 'gpu'."),
        (["--set", "lr"], "A setting takes the form key=value (got 'lr')"),
        (["--set", "hiden_dim=3"], "Unknown setting 'hiden_dim'. Did you mean 'hidden_dim'?"),
    ],
)
def test_user_errors_print_one_line(hpgmn, options, message):
    answer = hpgmn("bench", "growth", *options)
    assert answer.code == 2
    assert f"Error: {message}" in answer.err
    assert len(answer.err.splitlines()) == 1


def test_an_unwritable_folder_is_an_error(hpgmn, tmp_path):
    (tmp_path / "taken").touch()
    answer = hpgmn("bench", "growth", "--out", "taken/inner")
    assert answer.code == 2
    assert "Cannot write into the folder taken/inner" in answer.err
