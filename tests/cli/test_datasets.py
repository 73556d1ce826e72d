"""``hpgmn datasets`` as a table, as JSON, and its download."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpgmn.graph.datasets import DATASETS

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_local_copies(tmp_path, monkeypatch):
    """An empty folder of graphs, and no cache."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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
    assert "".join(answer.err.split()) == f"Wrote{tmp_path}/texas.npz."
