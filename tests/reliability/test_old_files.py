"""Old files are read, files from the future say that they are: every kind of file that we write."""

import csv
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import CELL_FORMAT, GRAPH_FORMAT, RUN_FORMAT, STUDY_FORMAT
from hpgmn.cli import main
from hpgmn.runs.report_data import write_report
from hpgmn.runs.study import claim, open_study
from hpgmn_lab.records import read_runs, write_named

OLD = Path(__file__).parent / "old_run"


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch):
    monkeypatch.setattr("hpgmn.runs.train.explain_run", lambda *_: None)


@pytest.fixture
def old(tmp_path):
    """The run of the first form, where its config says that its graph is."""
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    for path in folder.rglob("*"):
        if path.suffix in (".yaml", ".json"):
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")
    return folder


def about_of(path):
    with safe_open(str(path), "pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()["about"])
    return about


def rewrite(path, **changes):
    """Change what a file of tensors says about itself."""
    about = about_of(path) | changes
    save_file(load_file(path), path, metadata={"about": json.dumps(about)})


def same_columns(one, other):
    with one.open(newline="") as first, other.open(newline="") as second:
        ours, theirs = list(csv.DictReader(first)), list(csv.DictReader(second))
    assert len(ours) == len(theirs) == 100
    for mine, its in zip(ours, theirs, strict=True):
        assert list(mine) == list(its)
        for name, value in its.items():
            if name in ("node_id", "prediction"):
                assert mine[name] == value
            else:
                assert float(mine[name]) == pytest.approx(float(value), rel=1e-4)


# The previous form.


def test_an_old_run_predicts_what_it_did(old, tmp_path):
    assert "format" not in yaml.safe_load((old / "finished" / "config.yaml").read_text())
    assert about_of(old / "finished" / "model.safetensors")["format"] == 1
    assert main(["predict", str(old / "finished"), "--out", str(tmp_path / "now.csv")]) == 0
    same_columns(tmp_path / "now.csv", OLD / "predictions.csv")


def test_an_old_run_is_evaluated_explained_and_reported(old, capsys):
    run = str(old / "finished")
    assert main(["evaluate", run, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["score"]
    kept = json.loads((OLD / "finished" / "metrics.json").read_text())["test_score"]
    assert scores == pytest.approx(kept)
    assert main(["explain", run, "--node", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    write_report(old / "finished")
    assert "accuracy" in (old / "finished" / "report.html").read_text(encoding="utf-8")


def test_an_old_config_gives_the_run_again(old, tmp_path):
    words = ["--config", str(old / "finished" / "config.yaml"), "--out", str(tmp_path / "again")]
    assert main(["train", *words]) == 0
    before = json.loads((old / "finished" / "metrics.json").read_text())
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    assert again["format"] == RUN_FORMAT
    for key in ("splits", "seeds", "epochs", "model", "metric"):
        assert again[key] == before[key]
    assert again["test_score"] == pytest.approx(before["test_score"])
    was = load_file(old / "finished" / "model.safetensors")
    now = load_file(tmp_path / "again" / "model.safetensors")
    assert list(was) == list(now)
    for name, value in was.items():
        np.testing.assert_allclose(now[name], value, rtol=1e-3, atol=1e-5)


def old_identity(folder):
    """What the first form called a training: config, graph, labels, the code of one's own."""
    from hpgmn.graph.datasets import load

    graph = load(str(folder.parent / "graph.npz"))
    about = [yaml.safe_load((folder / "config.yaml").read_text()), graph.fingerprint]
    parts = json.dumps([*about, graph.y.tolist(), ""], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()


def test_an_old_interrupted_run_goes_on(old):
    folder = old / "interrupted"
    identity = old_identity(folder)  # names the graph's path, which is another here
    rewrite(folder / "state" / "state-000.safetensors", identity=identity)
    plan = json.loads((folder / "state" / "plan.json").read_text()) | {"identity": identity}
    (folder / "state" / "plan.json").write_text(json.dumps(plan))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    words = [f"{name}={','.join(v) if isinstance(v, list) else v}" for name, v in _set(config)]
    options = [word for one in words for word in ("--set", one)]
    asked = ["train", str(old / "graph.npz"), "--model", "hpgmn", "--splits", "0", "--seeds", "2"]
    where = ["--device", "cpu", "--resume", "--out", str(folder)]
    assert main([*asked, *options, *where]) == 0
    finished = load_file(old / "finished" / "model.safetensors")
    resumed = load_file(folder / "model.safetensors")
    for name, value in finished.items():
        np.testing.assert_allclose(resumed[name], value, rtol=1e-3, atol=1e-5)
    assert yaml.safe_load((folder / "config.yaml").read_text())["format"] == RUN_FORMAT


def _set(config):
    """The settings that the first command changed."""
    changed = ("hidden_dim", "num_patterns", "estimator_hidden", "epochs", "estimator_epochs")
    return [(name, config["settings"][name]) for name in (*changed, "statistics", "neighbors")]


# Files from the future.


def newer_config(old):
    path = old / "finished" / "config.yaml"
    path.write_text(f"format: {RUN_FORMAT + 1}\nunheard_of: 1\n" + path.read_text())
    return ["predict", str(old / "finished"), "--out", str(old / "out.csv")]


def newer_given_config(old):
    newer_config(old)
    return ["train", "--config", str(old / "finished" / "config.yaml"), "--out", str(old / "new")]


def newer_config_to_overwrite(old):
    newer_config(old)
    return ["train", str(old / "graph.npz"), "--out", str(old / "finished"), "--overwrite"]


def newer_metrics(old):
    path = old / "finished" / "metrics.json"
    path.write_text(json.dumps({"format": RUN_FORMAT + 1, "other": 1}))
    config = str(old / "finished" / "config.yaml")
    return ["train", "--config", config, "--out", str(old / "finished"), "--resume"]


def newer_model(old):
    rewrite(old / "finished" / "model.safetensors", format=RUN_FORMAT + 1)
    return ["evaluate", str(old / "finished")]


def _resumed(old):
    folder = old / "interrupted"
    return ["train", "--config", str(folder / "config.yaml"), "--out", str(folder), "--resume"]


def newer_state(old):
    rewrite(old / "interrupted" / "state" / "state-000.safetensors", format=RUN_FORMAT + 1)
    path = old / "interrupted" / "state" / "plan.json"
    path.write_text(json.dumps({"identity": old_identity(old / "interrupted"), "plan": [[0, 1]]}))
    return _resumed(old)


def newer_plan(old):
    path = old / "interrupted" / "state" / "plan.json"
    path.write_text(json.dumps({"format": RUN_FORMAT + 1, "batches": []}))
    return _resumed(old)


def newer_graph(old):
    with np.load(old / "graph.npz") as kept:
        arrays = dict(kept) | {"format": np.asarray(GRAPH_FORMAT + 1)}
    del arrays["directed"]
    save: Any = np.savez
    save(old / "graph.npz", **arrays)
    return ["train", str(old / "graph.npz"), "--out", str(old / "new")]


def _folder_of_arrays(old):
    from hpgmn.graph.files import read_graph, write_graph

    write_graph(read_graph(old / "graph.npz"), old / "big.graph")
    assert np.load(old / "big.graph" / "format.npy") == GRAPH_FORMAT
    np.save(old / "big.graph" / "format.npy", np.asarray(GRAPH_FORMAT + 1))
    return str(old / "big.graph")


def newer_graph_folder(old):
    return ["train", _folder_of_arrays(old), "--out", str(old / "new")]


def newer_graph_folder_to_shard(old):
    np.save(old / "labels.npy", np.zeros(100, np.int64))
    words = ["shard", _folder_of_arrays(old), "--out", str(old / "shards")]
    return [*words, "--labels", str(old / "labels.npy")]


def newer_shards(old):
    (old / "shards").mkdir()
    (old / "shards" / "manifest.json").write_text(json.dumps({"format": 99}))
    return ["train-shards", str(old / "shards"), "--out", str(old / "new")]


def newer_study(old):
    with open_study(old / "study.db") as study:
        claim(study, old / "study.db", {"model": "hpgmn"})
        assert study.user_attrs["format"] == STUDY_FORMAT
        study.set_user_attr("format", STUDY_FORMAT + 1)
    words = ["tune", str(old / "graph.npz"), "--study", str(old / "study.db"), "--splits", "0"]
    return [*words, "--trials", "2"]


RESUMED = {"interrupted/config.yaml", "interrupted/graph.npz", "interrupted/log.txt"}
"""A run that is to go on begins with its config, now with its format, its graph and its log."""

FUTURE: dict[Callable[[Path], list[str]], set[str]] = {
    newer_config: set(),
    newer_given_config: set(),
    newer_config_to_overwrite: set(),
    newer_metrics: set(),
    newer_model: set(),
    newer_state: RESUMED,
    newer_plan: RESUMED,
    newer_graph: set(),
    newer_graph_folder: set(),
    newer_graph_folder_to_shard: set(),
    newer_shards: set(),
    newer_study: set(),
}
"""What is not read, and what is written before that is known."""


def states(folder):
    """When each file was written, and what is in it."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("spoil", "written"), FUTURE.items(), ids=lambda one: getattr(one, "__name__", "")
)
def test_a_file_from_the_future_says_so(old, capsys, spoil, written):
    words = spoil(old)
    before = states(old)
    capsys.readouterr()
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "was written by a newer hpgmn (format " in told
    assert "Update hpgmn (pip install -U hpgmn)" in told
    after = states(old)
    assert before.keys() <= after.keys()
    assert {path for path, state in after.items() if before.get(path) != state} == written
    if written:
        config, again = (
            yaml.safe_load(one["interrupted/config.yaml"][1]) for one in (before, after)
        )
        assert again == config | {key: again[key] for key in ("format", "made_with", "version")}


def test_the_readers_of_runs_refuse_newer_ones(old):
    newer_config(old)
    with pytest.raises(HPGMNError, match="was written by a newer hpgmn"):
        write_report(old / "finished")
    newer_metrics(old)
    metrics = json.loads((old / "finished" / "metrics.json").read_text())
    write_named(old / "runs.jsonl", {"finished": metrics})
    with pytest.raises(HPGMNError, match="was written by a newer hpgmn"):
        read_runs(old / "runs.jsonl")


def test_the_record_of_a_newer_cell_is_not_done_again(tmp_path):
    from hpgmn_lab.reproduction.cells import CellRecord, read_cell, write_cell

    cell = {"graph": "texas", "model": "mlp", "variant": "plain"}
    write_cell(tmp_path, CellRecord(cell, "me", None, {}))
    assert read_cell(tmp_path, "texas-mlp-plain") == CellRecord(cell, "me", None, {})
    path = tmp_path / "texas-mlp-plain.json"
    content = json.loads(path.read_text())
    assert content["format"] == CELL_FORMAT
    without = {name: content[name] for name in content.keys() - {"format", "crc32"}}
    path.write_text(json.dumps(without))  # as before there was a version
    assert read_cell(tmp_path, "texas-mlp-plain") == CellRecord(cell, "me", None, {})
    path.write_text(json.dumps({"format": CELL_FORMAT + 1}))
    with pytest.raises(HPGMNError, match="was written by a newer hpgmn"):
        read_cell(tmp_path, "texas-mlp-plain")
