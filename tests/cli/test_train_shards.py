"""The command train-shards in one process: what it writes, continues and refuses."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from hpgmn.cli import main
from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS
from hpgmn.graph.files import write_graph
from hpgmn.shards import shard
from hpgmn.statistics import StatisticsSettings

SETTINGS = ["epochs=2", "hidden_dim=4", "num_patterns=3", "batch_size=3"]
OPTIONS = [word for value in SETTINGS for word in ("--set", value)]


@pytest.fixture
def shards(tmp_path, small_graph):
    """The row shards of the small graph in two ranges; the graph is in small.npz."""
    write_graph(small_graph, tmp_path / "small.npz")
    words = ["shard", str(tmp_path / "small.npz"), "--out", str(tmp_path / "shards")]
    quick = ["--set", "statistics=attributes,class_means", "--set", "estimator_epochs=5"]
    assert main([*words, "--ranges", "2", *quick]) == 0
    return tmp_path / "shards"


def test_a_run_is_written_and_printed(shards, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["train-shards", str(shards), "--out", str(out), "--device", "cpu", *OPTIONS]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "accuracy" in told.out
    assert f"Run folder: {out}" in told.err
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["graph"] == "small"
    assert metrics["config"]["settings"]["hidden_dim"] == 4
    assert (out / "report.html").exists()
    assert main(words) == 2
    assert "exists. Continue it (--resume)" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 2
    assert "is finished" in capsys.readouterr().err
    (out / "report.html").unlink()
    assert main([*words, "--resume"]) == 0
    assert (out / "report.html").exists()
    assert main([*words, "--overwrite", "--seeds", "2"]) == 0
    assert json.loads((out / "metrics.json").read_text())["seeds"] == 2


def test_an_interrupted_run_goes_on(shards, tmp_path, monkeypatch):
    words = [
        "train-shards",
        str(shards),
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
        *OPTIONS,
    ]
    monkeypatch.setattr("hpgmn.training.replicas.SAVE_SECONDS", -1.0)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hpgmn.training.trainer.finish_stage", stop)
        assert main(words) == 130
    assert (tmp_path / "run" / "state" / "state.safetensors").exists()
    trained = []
    runner = "hpgmn.training.stage_runner.StageRunner"
    monkeypatch.setattr(f"{runner}.epoch", lambda *_: trained.append(1))
    assert main([*words, "--resume"]) == 0  # both epochs were saved: none is trained again
    assert not trained


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "--overwrite"], "Resuming and overwriting exclude each other"),
        (["--engine", "dask"], "Unknown engine 'dask'. Choose from: local, ray."),
        (["--address", "auto"], "(--engine ray)"),
        (["--workers", "2"], "--workers needs --engine ray"),
        (["--metric", "average_precision", "--positive", "a"], "Unknown positive class 'a'"),
        (["--set", "batch_size=0"], "batch_size=1024"),
        (["--device", "tpu"], "Unknown device 'tpu'"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(words, message, shards, tmp_path, capsys):
    given = ["train-shards", str(shards), "--out", str(tmp_path / "run"), *OPTIONS, *words]
    assert main(given) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_shards_of_a_graph_without_splits_are_refused(tmp_path, capsys):
    bare = Graph(np.eye(4), [[0, 1], [1, 2]], [0, 1, -1, -1])
    settings = StatisticsSettings(statistics=("attributes",))
    shard(bare, tmp_path / "bare", bare.y, settings, ranges=2)
    assert main(["train-shards", str(tmp_path / "bare"), "--out", str(tmp_path / "run")]) == 2
    assert "has no split. Add splits and recreate the shards" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_finished_folder_is_what_is_asked_for(tmp_path, capsys):
    assert main(["train-shards", str(tmp_path), "--out", str(tmp_path / "run")]) == 2
    assert "has no finished shards" in capsys.readouterr().err


def table(path):
    return pq.read_table(path)


def chances(found):
    names = [name for name in found.column_names if name.startswith("probability_")]
    return np.stack([found[name].to_numpy() for name in names], axis=1)


def test_from_a_graph_to_shards_to_a_run_to_predictions_of_it_and_of_another(
    shards, small_graph, tmp_path, capsys
):
    run = str(tmp_path / "run")
    assert main(["train-shards", str(shards), "--out", run, "--device", "cpu", *OPTIONS]) == 0
    assert f"graph: {tmp_path / 'small.npz'}" in (tmp_path / "run" / "config.yaml").read_text()
    own = chances(table(tmp_path / "run" / "predictions.parquet"))
    out = tmp_path / "found.parquet"
    for named in ([], [str(tmp_path / "small.npz")]):
        assert main(["predict", run, *named, "--out", str(out)]) == 0
        # Half-precision means are read, and computed anew: equal up to the order of sums.
        np.testing.assert_allclose(chances(table(out)), own, rtol=0, atol=1e-5)
    x = np.concatenate([small_graph.x, small_graph.x[:3]])
    edges = np.concatenate([small_graph.edge_index, [[18, 19, 2], [0, 4, 20]]], axis=1)
    write_graph(Graph(x, edges), tmp_path / "new.npz")
    assert main(["predict", run, str(tmp_path / "new.npz"), "--out", str(out)]) == 0
    assert chances(table(out)).shape == (21, 3)
    np.testing.assert_allclose(chances(table(out)).sum(axis=1), 1, rtol=1e-5)
    capsys.readouterr()
    assert main(["evaluate", run, "--json"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    found = json.loads(capsys.readouterr().out)
    assert found["score"] == pytest.approx(metrics["test_score"])
    assert main(["explain", run, "--node", "3"]) == 0
    assert "Node 3: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "FILE"])
def test_a_model_without_an_estimator_is_refused_in_a_sentence(kind, small_graph, tmp_path, capsys):
    write_graph(small_graph, tmp_path / "small.graph")
    np.save(tmp_path / "labels.npy", small_graph.y)
    labels = str(tmp_path / "labels.npy") if kind == "FILE" else kind
    words = ["shard", str(tmp_path / "small.graph"), "--out", str(tmp_path / "shards")]
    assert main([*words, "--labels", labels, "--set", "statistics=attributes,class_counts"]) == 0
    run = str(tmp_path / "run")
    words = ["train-shards", str(tmp_path / "shards"), "--out", run, "--device", "cpu", *OPTIONS]
    assert main(words) == 0
    for given in (["predict", run], ["evaluate", run], ["explain", run]):
        capsys.readouterr()
        assert main(given) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "`hpgmn shard --labels estimated`" in told


def test_a_run_says_what_train_says(shards, tmp_path):
    """The same keys, names and sizes in metrics.json, and the same warnings of labels."""
    shared = ["--device", "cpu", "--seeds", "2", *OPTIONS]
    assert main(["train-shards", str(shards), "--out", str(tmp_path / "run"), *shared]) == 0
    words = ["train", str(tmp_path / "small.npz"), "--out", str(tmp_path / "whole"), *shared]
    quick = ["--splits", "0", "--set", "statistics=attributes,class_means"]
    assert main([*words, *quick, "--set", "estimator_epochs=5"]) == 0
    found, expected = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("run", "whole")
    )
    assert found.keys() == expected.keys()
    for key in ("calibration", "ensemble", "graph_summary"):
        assert found[key].keys() == expected[key].keys()
    for key in ("graph_summary", "nodes", "positive", "splits", "seeds"):
        assert found[key] == expected[key]
    about_edges, about_labels = expected["warnings"]
    assert "have no edges" in about_edges
    assert found["warnings"] == [about_labels]


def test_the_metric_is_the_dataset_s_own(shards, tmp_path, monkeypatch):
    path = shards / "manifest.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"source": "texas"}))
    usual = dataclasses.replace(DATASETS["texas"], metric="macro_f1")
    monkeypatch.setitem(DATASETS, "texas", usual)
    words = ["train-shards", str(shards), "--device", "cpu", *OPTIONS, "--out"]
    for name, options in (("macro_f1", []), ("accuracy", ["--metric", "accuracy"])):
        assert main([*words, str(tmp_path / name), *options]) == 0
        metrics = json.loads((tmp_path / name / "metrics.json").read_text())
        assert metrics["config"]["metric"] == name


@pytest.mark.distributed
@pytest.mark.slow
def test_a_mistake_under_torchrun_is_one_sentence(shards, tmp_path):
    """Rank 0 says it, and the other ends: its own traceback would hide it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = ["train-shards", str(shards), "--out", str(tmp_path / "run"), "--device", "cpu"]
    for extra, message in (
        ([], "--overwrite"),
        (["--set", "teleport=0.5"], "Row shards fix teleport"),
    ):
        done = subprocess.run(
            [*command, "--nproc-per-node", "2", "-m", "hpgmn", *words, *extra],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 1
        (told,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert message in told
        assert done.stderr.count("Traceback") == 1  # torchrun's own, of a child that failed
        assert "exitcode  : 2" in done.stderr
        assert "SIGABRT" not in done.stderr


def two_classes(tmp_path):
    """Shards of 40 nodes, of which few are 'rare'."""
    random = np.random.default_rng(0)
    y = (np.arange(40) % 4 == 0).astype(int)
    part = np.arange(40) // 4 % 3
    graph = Graph(
        random.normal(size=(40, 3)) + y[:, None],
        random.integers(0, 40, (2, 90)),
        y,
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
        class_names=["usual", "rare"],
        name="two",
    )
    settings = StatisticsSettings(statistics=("attributes",))
    return shard(graph, tmp_path / "two", graph.y, settings, ranges=2).shards.folder


@pytest.mark.parametrize(("asked", "sought"), [(None, "rare"), ("usual", "usual")])
def test_a_positive_class_is_looked_for(asked, sought, tmp_path):
    words = ["train-shards", str(two_classes(tmp_path)), "--out", str(tmp_path / "run"), *OPTIONS]
    options = ["--positive", asked] if asked else []
    metric = ["--metric", "average_precision", "--device", "cpu"]
    assert main([*words, *metric, *options]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["positive"] == metrics["config"]["positive"] == sought
    found = table(tmp_path / "run" / "predictions.parquet").to_pydict()
    for role, score in (("test", metrics["test_score"][0]), ("val", metrics["val_score"][0])):
        own = [place for place, one in enumerate(found["role"]) if one == role]
        chance = np.array(found[f"probability_{sought}"])[own]
        is_sought = (np.array(found["label"])[own] == sought)[np.argsort(-chance)]
        precision = np.cumsum(is_sought) / np.arange(1, len(own) + 1)
        assert score == pytest.approx(precision[is_sought].mean(), abs=1e-5)


@pytest.mark.ray
@pytest.mark.distributed
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_ray_does_what_this_process_does(shards, tmp_path, capsys):
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    words = ["train-shards", str(shards), "--device", "cpu", *OPTIONS]
    assert main([*words, "--out", str(tmp_path / "here")]) == 0
    by_ray = [*words, "--out", str(tmp_path / "run"), "--engine", "ray", "--workers", "1"]
    assert main(by_ray) == 0
    told = capsys.readouterr()
    assert "Ray: 1 machine" in told.err
    assert "Starting 1 Ray Train workers" in told.err
    here, there = (
        (tmp_path / name / "predictions.parquet").read_bytes() for name in ("here", "run")
    )
    assert here == there
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names
    assert main([*by_ray, "--resume"]) == 2
    assert "is finished" in capsys.readouterr().err
    (tmp_path / "run" / "report.html").unlink()
    assert main([*by_ray, "--resume"]) == 0
    assert (tmp_path / "run" / "report.html").exists()
