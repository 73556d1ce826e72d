"""``hpgmn models``, ``settings`` and ``datasets``: tables, JSON and the download."""

import json

import numpy as np
import pytest

from hpgmn.base.settings import describe_settings, make_settings, settings_dict
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS, settings_for


def test_models_as_json_have_their_citation(hpgmn):
    rows = json.loads(hpgmn("models", "--json").out)
    assert [row["name"] for row in rows] == list(MODELS)
    for row in rows:
        assert row["citation"] == MODELS[row["name"]].citation
        assert row["summary"] == MODELS[row["name"]].summary


def test_models_as_a_table(hpgmn):
    text = " ".join(hpgmn("models").out.replace("│", " ").split())
    for name in MODELS:
        assert name in text
    assert "ICDM" in text


@pytest.mark.parametrize(
    ("model", "graph"), [("hpgmn", None), ("hpgmn", "texas"), ("mlp", "cora"), ("linkx", None)]
)
def test_settings_as_json_are_every_key_with_its_value(hpgmn, model, graph):
    answer = hpgmn("settings", *([graph] if graph else []), "--model", model, "--json")
    assert answer.code == 0
    assert answer.err == ""
    rows = {row["name"]: row for row in json.loads(answer.out)}
    cls = MODELS[model].settings
    values = settings_dict(make_settings(cls, settings_for(graph, model)))
    assert {name: row["value"] for name, row in rows.items()} == values
    for info in describe_settings(cls):
        row = rows[info["name"]]
        assert (row["help"], row["allowed"]) == (info["help"], info["allowed"])
        assert row["help"]


def test_settings_as_a_table_never_cut_a_key(hpgmn, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = hpgmn("settings").out.splitlines()
    keys = {line.strip("│").split("│")[0].strip() for line in lines if line.startswith("│")}
    assert keys - {""} == set(settings_dict(MODELS["hpgmn"].settings()))


def test_settings_of_a_graph_file_are_the_defaults(hpgmn, graph_file):
    answer = hpgmn("settings", graph_file, "--json")
    assert answer.code == 0
    assert json.loads(answer.out) == json.loads(hpgmn("settings", "--json").out)


@pytest.fixture
def _no_local_copies(tmp_path, monkeypatch):
    """An empty folder of graphs, and no cache."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_no_local_copies")
def test_datasets_as_json_are_the_registry(hpgmn, tmp_path):
    np.savez(tmp_path / "data" / "texas.npz", x=np.zeros(1))
    answer = hpgmn("datasets", "--json")
    assert answer.code == 0
    assert answer.err == ""
    rows = json.loads(answer.out)
    assert [row["name"] for row in rows] == list(DATASETS)
    for row in rows:
        known = DATASETS[row["name"]]
        assert (row["nodes"], row["edges"]) == (known.num_nodes, known.num_edges)
        assert (row["attributes"], row["classes"]) == (known.num_features, known.num_classes)
        assert (row["homophily"], row["metric"]) == (known.homophily, known.metric)
        assert row["here"] is (row["name"] == "texas")
        assert row["get"] == ("bring the file" if known.download is None else "download")
        assert row["defects"] == known.defects


@pytest.mark.usefixtures("_no_local_copies")
def test_datasets_as_a_table_fit_a_terminal_of_80_columns(hpgmn, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    np.savez(tmp_path / "data" / "texas.npz", x=np.zeros(1))
    answer = hpgmn("datasets")
    lines = answer.out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].split() == ["texas", "183", "325", "1,703", "5", "0.06", "yes"]
    assert lines[2].split() == ["wisconsin", "251", "515", "1,703", "5", "0.15", "download"]
    for name in DATASETS:
        assert any(line.split()[:1] == [name] for line in lines), name
    assert "citeseer: 48 nodes are isolated" in answer.out
    assert "hpgmn datasets --download NAME" in answer.err


def test_a_download_prints_its_path(hpgmn, monkeypatch, tmp_path):
    requested = []

    def fetch(name):
        requested.append(name)
        return tmp_path / "texas.npz"

    monkeypatch.setattr("hpgmn.graph.download.download", fetch)
    answer = hpgmn("datasets", "--download", "texas")
    assert answer.code == 0
    assert requested == ["texas"]
    assert answer.err == f"Wrote {tmp_path}/texas.npz.\n"
