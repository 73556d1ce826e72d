"""``hpgmn settings`` as a table and as JSON."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from hpgmn.base.settings import describe_settings, make_settings, settings_dict
from hpgmn.models import MODELS, settings_for

Command = Callable[..., Any]


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
