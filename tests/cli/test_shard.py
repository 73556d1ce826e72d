"""``hpgmn shard``: what it writes, says and refuses."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from hpgmn.base.files import read_tensors
from hpgmn.cli import main
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.shards import ESTIMATOR_FILE, Shards
from hpgmn.statistics import LocalStatistics, StatisticsSettings

QUICK = ("--set", "statistics=attributes,class_counts", "--set", "neighbors=out")


def rows(folder, name):
    shards = Shards(folder)
    return np.concatenate([shards.statistic(name, part) for part in range(len(shards))])


def counts(graph, labels):
    settings = StatisticsSettings(statistics=("class_counts",), neighbors="out")
    built = LocalStatistics(graph).build(labels[None], graph.num_classes, [settings])
    import torch

    found: np.ndarray = built["class_counts"].rows(torch.arange(graph.num_nodes)).numpy()
    return found


@pytest.mark.parametrize("name", ["small.npz", "small.graph"])
def test_train_labels_alone_are_counted(tmp_path, small_graph, name, capsys):
    write_graph(small_graph, tmp_path / name)
    out = tmp_path / "shards"
    call = ["shard", str(tmp_path / name), "--out", str(out), "--ranges", "3", "--split", "1"]
    assert main([*call, "--labels", "train", *QUICK]) == 0
    labels = np.where(small_graph.splits.train[:, 1], small_graph.y, -1)
    np.testing.assert_array_equal(rows(out, "class_counts"), counts(small_graph, labels))
    said = capsys.readouterr().err
    assert "class_counts: 3 columns, float32" in said
    assert "3 ranges, 12 tasks." in said
    assert main([*call, "--labels", "train", *QUICK]) == 0
    assert "12 already done" in capsys.readouterr().err


def test_guesses_are_those_of_the_estimator(tmp_path, small_graph):
    from hpgmn.base.settings import make_settings
    from hpgmn.models import settings_for
    from hpgmn.models.hpgmn import HPGMNSettings
    from hpgmn.training.trainer import estimate_labels

    write_graph(small_graph, tmp_path / "small.npz")
    out = tmp_path / "shards"
    quick = ("--set", "estimator_epochs=3")
    assert main(["shard", str(tmp_path / "small.npz"), "--out", str(out), *QUICK, *quick]) == 0
    settings = make_settings(HPGMNSettings, settings_for() | {"estimator_epochs": 3})
    labels = estimate_labels(small_graph, settings)[0]
    assert (labels >= 0).all()
    np.testing.assert_array_equal(rows(out, "class_counts"), counts(small_graph, labels))
    assert Shards(out).settings["estimator_epochs"] == 3
    stored, _ = read_tensors(out / ESTIMATOR_FILE)
    expected = estimate_labels(small_graph, settings).parameters
    assert stored.keys() == expected.keys()
    assert all(np.array_equal(stored[name], value) for name, value in expected.items())
    assert Shards(out).source == str(tmp_path / "small.npz")
    assert Shards(out).fingerprint == small_graph.fingerprint


def test_labels_may_be_a_file(tmp_path, small_graph):
    write_graph(small_graph, tmp_path / "small.graph")
    labels = np.arange(18) % 2
    np.save(tmp_path / "labels.npy", labels)
    out = tmp_path / "shards"
    call = ["shard", str(tmp_path / "small.graph"), "--out", str(out), *QUICK]
    assert main([*call, "--labels", str(tmp_path / "labels.npy")]) == 0
    shards = Shards(out)  # the graph was never read whole
    assert (shards.source, shards.fingerprint) == (str(tmp_path / "small.graph"), "")
    assert not (out / ESTIMATOR_FILE).exists()
    np.testing.assert_array_equal(rows(out, "class_counts"), counts(small_graph, labels))


def test_a_dataset_is_named_and_its_settings_are_those_that_shards_can_have(
    tmp_path, small_graph, capsys, monkeypatch
):
    write_graph(small_graph, tmp_path / "texas.npz")
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path))
    statistics = ["attributes", "neighbor_attributes"]
    shipped = {"refinement": True, "statistics": statistics, "estimator_epochs": 3}
    monkeypatch.setattr("hpgmn.models.settings_for", lambda graph: shipped)
    assert main(["shard", "texas", "--out", str(tmp_path / "shards"), "--ranges", "2"]) == 0
    told = "do not support all default settings: leaving out refinement, neighbor_attributes."
    assert told in " ".join(capsys.readouterr().err.split())
    shards = Shards(tmp_path / "shards")
    assert shards.source == "texas"
    assert list(shards.statistics) == ["attributes"]
    assert not shards.settings["refinement"]
    call = ["shard", "texas", "--out", str(tmp_path / "other"), "--set", "refinement=true"]
    assert main(call) == 2  # what is asked for is refused, not changed
    assert "leaving out refinement" not in capsys.readouterr().err


def test_a_graph_folder_without_splits_has_those_of_train(tmp_path, small_graph):
    from hpgmn.graph import Graph
    from hpgmn.graph.datasets import load

    many = np.concatenate([small_graph.y] * 4)
    edges = np.random.default_rng(0).integers(0, len(many), (2, 200))
    x = np.random.default_rng(1).normal(size=(len(many), 3))
    write_graph(Graph(x, edges, many), tmp_path / "plain.graph")
    out = tmp_path / "shards"
    call = ["shard", str(tmp_path / "plain.graph"), "--out", str(out), "--labels", "train", *QUICK]
    assert main(call) == 0
    expected = load(tmp_path / "plain.graph").split(0)
    shards = Shards(out)
    for name in ("train", "val", "test"):
        found = np.concatenate([shards.mask(name, part) for part in range(len(shards))])
        np.testing.assert_array_equal(found, getattr(expected, name))
    assert expected.train.any()


@pytest.mark.parametrize("out", ["/proc/shards", "FILE", "FULL"])
def test_a_folder_that_cannot_be_used_is_refused(tmp_path, small_graph, out, capsys):
    write_graph(small_graph, tmp_path / "small.npz")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    places = {"FILE": str(tmp_path / "small.npz"), "FULL": str(tmp_path / "full")}
    place = places.get(out, out)
    call = ["shard", str(tmp_path / "small.npz"), "--out", place, "--labels", "train", *QUICK]
    assert main(call) == 2
    assert re.search(r"[Cc]hoose a", capsys.readouterr().err)
    assert [path.name for path in (tmp_path / "full").glob("[!.]*")] == ["mine.txt"]


@pytest.mark.parametrize("name", ["small.npz", "small.graph"])
def test_labels_may_be_a_run_on_shards_of_attributes(tmp_path, small_graph, name):
    """The guesses of a graph for whose estimator there is no room."""
    import pyarrow.parquet as pq

    write_graph(small_graph, tmp_path / name)
    graph, first, run, out = (str(tmp_path / one) for one in (name, "first", "run", "shards"))
    alone = ("--labels", "train", "--set", "statistics=attributes", "--set", "epochs=3")
    assert main(["shard", graph, "--out", first, "--ranges", "2", *alone]) == 0
    assert main(["train-shards", first, "--out", run, "--device", "cpu"]) == 0
    assert main(["shard", graph, "--out", out, "--labels", run, *QUICK]) == 0
    told = pq.read_table(Path(run) / "predictions.parquet").to_pylist()
    names = list(small_graph.class_names)
    words = [one["label"] if one["role"] == "train" else one["prediction"] for one in told]
    labels = np.array([names.index(word) for word in words])
    np.testing.assert_array_equal(rows(Path(out), "class_counts"), counts(small_graph, labels))


@pytest.mark.parametrize("name", ["small.npz", "small.graph"])
def test_the_run_must_be_one_on_the_graph(tmp_path, small_graph, name, capsys):
    write_graph(small_graph, tmp_path / name)
    first, run, out = (str(tmp_path / one) for one in ("first", "run", "shards"))
    alone = ("--labels", "train", "--set", "statistics=attributes", "--set", "epochs=1")
    assert main(["shard", str(tmp_path / name), "--out", first, "--ranges", "2", *alone]) == 0
    assert main(["train-shards", first, "--out", run, "--device", "cpu"]) == 0

    def told(graph):
        write_graph(graph, tmp_path / "other" / name)
        capsys.readouterr()
        call = ["shard", str(tmp_path / "other" / name), "--out", out, "--labels", run, *QUICK]
        assert main(call) == 2
        return " ".join(capsys.readouterr().err.split())

    def changed(count):
        nodes = np.arange(count) % 18
        splits = small_graph.splits
        return Graph(
            small_graph.x[nodes] + 1,
            small_graph.edge_index,
            small_graph.y[nodes],
            class_names=small_graph.class_names,
            train_mask=splits.train[nodes],
            val_mask=splits.val[nodes],
            test_mask=splits.test[nodes],
        )

    (tmp_path / "other").mkdir()
    assert "trained on another graph (18 nodes instead of 20)" in told(changed(20))
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "other").mkdir()
    if name == "small.npz":
        assert "trained on another graph. Choose a run on this one." in told(changed(18))
        return
    (tmp_path / name / "class_names.npy").unlink()
    call = ["shard", str(tmp_path / name), "--out", out, "--labels", run, *QUICK]
    assert main(call) == 2
    assert "names no classes (class_names.npy)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "spark"], "Choose from: local, ray."),
        (["--address", "auto"], "(--engine ray)"),
        (["--labels", "true"], "the folder of a finished run, or an existing FILE.npy"),
        (["--labels", "BAD"], "is no array of plain numbers"),
        (["--labels", "FLOATS"], "must hold whole numbers"),
        (["--set", "refinement=true"], "Set refinement=false."),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, small_graph, capsys, options, message):
    write_graph(small_graph, tmp_path / "small.npz")
    (tmp_path / "bad.npy").write_bytes(b"no array")
    np.save(tmp_path / "floats.npy", np.ones(18))
    paths = {"BAD": str(tmp_path / "bad.npy"), "FLOATS": str(tmp_path / "floats.npy")}
    options = [paths.get(option, option) for option in options]
    out = tmp_path / "shards"
    call = ["shard", str(tmp_path / "small.npz"), "--out", str(out), *QUICK, *options]
    assert main(call) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (out / "manifest.json").exists()
