"""A corpus of broken run folders, model files, studies, labels and shards: a sentence for each."""

# ruff: noqa: E501 (a line for each case)

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file

from hpgmn.base.files import _tensor_checksum
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.cli import main
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.models import MODELS
from hpgmn.runs.fit import fit_run
from hpgmn.runs.folder import prepare_folder
from hpgmn.runs.spec import RunSpec

TINY = {
    "hidden_dim": 4,
    "num_patterns": 3,
    "estimator_hidden": 4,
    "epochs": 2,
    "estimator_epochs": 2,
}


def small():
    """20 nodes of two classes with one split."""
    random = np.random.default_rng(1)
    y = np.arange(20) % 2
    part = np.arange(20) // 2 % 4
    return Graph(
        random.normal(size=(20, 3)) + y[:, None],
        random.integers(0, 20, (2, 50)),
        y,
        train_mask=part < 2,
        val_mask=part == 2,
        test_mask=part == 3,
        node_ids=[f"n{place}" for place in range(20)],
        name="graph",
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a graph, a run of hpgmn and a run of mlp, which tests copy."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_graph(small(), "graph.npz")
        for name, values in (("hpgmn", TINY), ("mlp", {"epochs": 2})):
            settings = settings_dict(make_settings(MODELS[name].settings, values))
            spec = RunSpec(str(folder / "graph.npz"), name, settings, (0,))
            where = folder / ("run" if name == "hpgmn" else name)
            prepare_folder(where, spec, resume=False, overwrite=False)
            fit_run(spec, small(), where)
        shards = [
            "shard",
            "graph.npz",
            "--out",
            "shards",
            "--ranges",
            "2",
            "--set",
            "statistics=attributes,class_counts",
        ]
        assert main(shards) == 0
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """The same in a folder of the test's own."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    for path in Path().glob("*/config.yaml"):  # the graph is named by its whole path
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(str(trained), str(tmp_path / "copy")), encoding="utf-8")


def model(change, *, sealed=True):
    """Change tensors and description of the model file; sealed: with the right checksum."""
    path = "run/model.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors, about)
    if sealed:
        about.pop("checksum", None)
        about["checksum"] = _tensor_checksum(tensors, about)
    save_file(tensors, path, metadata={"about": json.dumps(about)})


def spoil(tensors, name, value):
    tensors[next(one for one in tensors if one.startswith(name))] = value


def config(change):
    path = Path("run/config.yaml")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def overwrite(path, content):
    Path(path).write_bytes(content)


def cut(path, share):
    content = Path(path).read_bytes()
    overwrite(path, content[: int(len(content) * share)])


def other_graph(**changes):
    graph = small()
    given = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y} | changes
    write_graph(Graph(**given, node_ids=graph.node_ids), "other.npz")


def first(tensors, start):
    return next(name for name in sorted(tensors) if name.startswith(start))


PREDICT = ["predict", "run"]
MODEL = "run/model.safetensors"

CASES: dict[str, tuple[Callable[[], Any], list[str], str]] = {
    "empty model file": (lambda: overwrite(MODEL, b""), PREDICT, "is damaged or not an hpgmn file"),
    "model file of text": (lambda: overwrite(MODEL, b"hello"), PREDICT, "Restore it, or train again"),
    "model file cut": (lambda: cut(MODEL, 0.7), PREDICT, "is damaged or not an hpgmn file"),
    "model without a description": (lambda: save_file({"a": torch.ones(1)}, MODEL), PREDICT, "is damaged or not an hpgmn file"),
    "description that is no JSON": (lambda: save_file({"a": torch.ones(1)}, MODEL, metadata={"about": "{"}), PREDICT, "is damaged or not an hpgmn file"),
    "description that is a list": (lambda: save_file({"a": torch.ones(1)}, MODEL, metadata={"about": "[]"}), PREDICT, "is damaged or not an hpgmn file"),
    "a byte of the weights": (lambda: model(lambda t, a: t[first(t, "main/")].view(-1).__setitem__(0, 9.0), sealed=False), PREDICT, "checksum differs"),
    "NaN weights": (lambda: model(lambda t, a: t[first(t, "main/")].view(-1).__setitem__(0, torch.nan)), PREDICT, "is not finite"),
    "a tensor missing": (lambda: model(lambda t, a: t.pop(first(t, "main/"))), PREDICT, "are not those that were trained"),
    "a tensor too many": (lambda: model(lambda t, a: t.update({"main/more": torch.ones(1, 2)})), PREDICT, "are not those that were trained"),
    "a tensor of another shape": (lambda: model(lambda t, a: t.update({first(t, "main/"): torch.ones(1, 2, 2)})), PREDICT, "are not those that were trained"),
    "weights of another type": (lambda: model(lambda t, a: t.update({n: v.double() for n, v in t.items() if "/" in n})), PREDICT, "damaged"),
    "weights of whole numbers": (lambda: model(lambda t, a: t.update({n: v.int() for n, v in t.items() if "/" in n})), PREDICT, "damaged"),
    "no train labels": (lambda: model(lambda t, a: t.pop("train_labels")), PREDICT, "is damaged or not an hpgmn file"),
    "train labels too short": (lambda: model(lambda t, a: t.update(train_labels=t["train_labels"][:, :5])), PREDICT, "damaged"),
    "train labels of no class": (lambda: model(lambda t, a: t.update(train_labels=t["train_labels"] + 7)), PREDICT, "damaged"),
    "no stages": (lambda: model(lambda t, a: a.pop("stages")), PREDICT, "is damaged or not an hpgmn file"),
    "stages that are a number": (lambda: model(lambda t, a: a.update(stages=3)), PREDICT, "is damaged or not an hpgmn file"),
    "unknown model": (lambda: model(lambda t, a: a.update(model="nope")), PREDICT, "Unknown model 'nope'"),
    "model that is a number": (lambda: model(lambda t, a: a.update(model=3)), PREDICT, "is damaged or not an hpgmn file"),
    "of another model": (lambda: shutil.copy("mlp/model.safetensors", MODEL), ["explain", "run", "--node", "n0"], "config.yaml of hpgmn and the model.safetensors of mlp"),
    "unknown setting": (lambda: model(lambda t, a: a["replicas"][0]["settings"].update(speed=1)), PREDICT, "Unknown setting 'speed'"),
    "setting out of range": (lambda: model(lambda t, a: a["replicas"][0]["settings"].update(hidden_dim=-4)), PREDICT, "'hidden_dim' must be at least 1"),
    "other settings than the weights": (lambda: model(lambda t, a: a["replicas"][0]["settings"].update(hidden_dim=6)), PREDICT, "are not those that were trained"),
    "no replicas": (lambda: model(lambda t, a: a.update(replicas=[])), PREDICT, "damaged"),
    "more replicas than weights": (lambda: model(lambda t, a: a.update(replicas=a["replicas"] * 2, calibration=None, mean_calibration=None)), PREDICT, "damaged"),
    "temperatures of text": (lambda: model(lambda t, a: a.update(calibration=None, temperatures=["hot"])), PREDICT, "damaged"),
    "temperature of zero": (lambda: model(lambda t, a: a.update(mean_calibration=None, mean_temperatures=[0.0])), PREDICT, "damaged"),
    "class names of another number": (lambda: model(lambda t, a: a.update(class_names=["one"])), PREDICT, "damaged"),
    "number of nodes of text": (lambda: model(lambda t, a: a.update(num_nodes="many")), ["predict", "run", "other.npz"], "damaged"),
    "folder without files": (lambda: Path("void").mkdir(), ["predict", "void"], "config.yaml is missing"),
    "folder that is not there": (lambda: None, ["predict", "nowhere"], "is not a finished run folder"),
    "file in place of a folder": (lambda: None, ["predict", "graph.npz"], "is not a finished run folder"),
    "run without a model": (lambda: Path(MODEL).unlink(), PREDICT, "model.safetensors is missing"),
    "config of the run cut": (lambda: overwrite("run/config.yaml", b"graph: x\n"), PREDICT, "config.yaml of the run is incomplete"),
    "config of the run is a list": (lambda: overwrite("run/config.yaml", b"- a\n"), PREDICT, "must hold 'name: value' lines"),
    "config of the run is no text": (lambda: overwrite("run/config.yaml", b"\xff"), PREDICT, "is not UTF-8 text"),
    "config with seeds of text": (lambda: config(lambda c: c.update(seeds="two")), PREDICT, "seeds must be a whole number"),
    "config with splits of text": (lambda: config(lambda c: c.update(splits="all")), PREDICT, "splits must be a list"),
    "config of a graph that is gone": (lambda: Path("graph.npz").unlink(), PREDICT, "copy/graph.npz' does not exist"),
    "config of another split": (lambda: config(lambda c: c.update(splits=[5])), PREDICT, "no split 5"),
    "graph that has changed": (lambda: (other_graph(x=np.ones((20, 3))), shutil.copy("other.npz", "graph.npz")), PREDICT, "is no longer the graph the model was trained on"),
    "graph with other attributes": (lambda: other_graph(x=np.ones((20, 4))), ["predict", "run", "other.npz"], "3 attributes; graph 'other' has 4"),
    "evaluate other classes": (lambda: other_graph(y=np.arange(20) % 3), ["evaluate", "run", "other.npz"], "The splits of 'other' changed"),
    "metrics that are no JSON": (lambda: overwrite("run/metrics.json", b"{"), ["train", "graph.npz", "--no-portfolio", "--resume", "--out", "run"], "run"),
    "explain an unknown node": (lambda: None, ["explain", "run", "--node", "n99"], "n99"),
    "predict to nowhere": (lambda: None, [*PREDICT, "--out", "no/such/place.csv"], "no/such"),
    "predict to a strange ending": (lambda: None, [*PREDICT, "--out", "p.xlsx"], "--out must end in .csv or .parquet"),
    "predict with a confidence of NaN": (lambda: None, [*PREDICT, "--min-confidence", "nan"], "min_confidence must be 0 to 1"),
    "predict a split of nobody": (lambda: None, [*PREDICT, "--split", "9"], "The run has no split 9"),
    "add a whole graph": (lambda: other_graph(), [*PREDICT, "other.npz", "--add"], "'other.npz' is a whole graph"),
    "study that is text": (lambda: overwrite("s.db", b"no study"), ["tune", "graph.npz", "--trials", "1", "--study", "s.db"], "s.db"),
    "study that is a folder": (lambda: Path("s.db").mkdir(), ["tune", "graph.npz", "--trials", "1", "--study", "s.db"], "s.db"),
    "study that is empty": (lambda: None, ["tune", "graph.npz", "--trials", "0", "--study", "s.db"], "s.db"),
    "trials below zero": (lambda: None, ["tune", "graph.npz", "--trials", "-1", "--study", "s.db"], "--trials"),
    "timeout of NaN": (lambda: None, ["tune", "graph.npz", "--trials", "1", "--study", "s.db", "--timeout", "nan"], "--timeout"),
    "shards of an empty manifest": (lambda: overwrite("shards/manifest.json", b""), ["train-shards", "shards", "--out", "r", "--set", "batch_size=4"], "manifest.json"),
    "shards of a list": (lambda: overwrite("shards/manifest.json", b"[]"), ["train-shards", "shards", "--out", "r", "--set", "batch_size=4"], "manifest.json"),
    "shards without a manifest": (lambda: Path("shards/manifest.json").unlink(), ["train-shards", "shards", "--out", "r"], "shards"),
    "shards of other statistics": (lambda: None, ["train-shards", "shards", "--out", "r", "--set", "batch_size=4", "--set", "statistics=diffusion"], "The shards lack"),
    "a number of shards below one": (lambda: None, ["shard", "graph.npz", "--out", "more", "--ranges", "0"], "--ranges"),
    "labels of fractions": (lambda: np.save("l.npy", np.ones(20)), ["shard", "graph.npz", "--out", "more", "--labels", "l.npy"], "must hold whole numbers"),
    "labels of text": (lambda: overwrite("l.npy", b"hello"), ["shard", "graph.npz", "--out", "more", "--labels", "l.npy"], "no array of plain numbers"),
    "too few labels": (lambda: np.save("l.npy", np.ones(7, int)), ["shard", "graph.npz", "--out", "more", "--labels", "l.npy"], "20"),
    "labels of no class": (lambda: np.save("l.npy", np.full(20, 9)), ["shard", "graph.npz", "--out", "more", "--labels", "l.npy"], "Labels must be numbers of the 2 classes"),
    "statistics of nothing": (lambda: None, ["statistics", "graph.npz", "--out", "s.npz", "--set", "statistics="], "at least one"),
    "statistics of a wrong teleport": (lambda: None, ["statistics", "graph.npz", "--out", "s.npz", "--set", "teleport=2"], "teleport"),
    "audit of nothing": (lambda: None, ["audit", "nowhere.npz"], "does not exist"),
    "audit of a split of nobody": (lambda: None, ["audit", "graph.npz", "--split", "9"], "only split 0"),
    "download of nothing": (lambda: None, ["datasets", "--download", "texass"], "Did you mean 'texas'?"),
    "settings of nothing": (lambda: None, ["settings", "--model", "hpgmm"], "Did you mean 'hpgmn'?"),
    "reproduce of nothing": (lambda: None, ["reproduce", "table9"], "table9"),
    "bench of nothing": (lambda: None, ["bench", "speed9"], "speed9"),
    "demo of no nodes": (lambda: None, ["demo", "--nodes", "0", "--out", "d"], "nodes"),
    "demo of minus nodes": (lambda: None, ["demo", "--nodes", "-5", "--out", "d"], "nodes"),
}  # fmt: skip


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", CASES)
def test_broken_runs_are_one_sentence(name, capsys, good_message):
    spoiled, words, fragment = CASES[name]
    if "other.npz" in words:
        other_graph()
    spoiled()
    capsys.readouterr()
    assert main(words) == 2
    told = capsys.readouterr().err.splitlines()
    good_message(told[-1])
    assert told[-1].startswith("Error: ")
    assert fragment in told[-1], told[-1]
    assert not Path("predictions.csv").exists()
