"""Graphs for Python programs: keywords do what the options of the commands do."""

from __future__ import annotations

import inspect
import json
import logging
from dataclasses import fields
from pathlib import Path

import pytest

import hpgmn
from hpgmn.base.errors import GraphError, HPGMNError, SettingError
from hpgmn.graph import datasets as registry
from hpgmn.tables import Columns

PEOPLE = ["who,kind,age,code", "a,x,1,7", "b,y,2,8", "c,x,3,7", "d,y,4,8"]
PAYMENTS = ["u,v,paid", "a,b,1", "b,c,2"]


@pytest.fixture
def people(tmp_path: Path) -> Path:
    folder = tmp_path / "people"
    folder.mkdir()
    (folder / "nodes.csv").write_text("\n".join([*PEOPLE, ""]))
    (folder / "edges.csv").write_text("\n".join([*PAYMENTS, ""]))
    return folder


def test_every_choice_of_columns_has_a_keyword() -> None:
    for function in (hpgmn.load, hpgmn.from_tables):
        assert {info.name for info in fields(Columns)} <= set(
            inspect.signature(function).parameters
        )


def test_keywords_say_what_the_columns_are(people: Path) -> None:
    named = {"id": "who", "label": "kind", "source": "u", "target": "v", "weight": "paid"}
    graph = hpgmn.load(people, **named, drop=["age"], categories=["code"], directed=False)
    assert graph.feature_names is not None
    assert graph.feature_names.tolist() == ["code=7", "code=8"]
    assert graph.class_names == ("x", "y")
    assert graph.edge_weight is not None
    assert not graph.directed
    columns = Columns(**named, drop=("age",), categories=("code",), directed=False)
    assert graph.fingerprint == registry.load(people, columns=columns).fingerprint
    assert hpgmn.load(people, **named, attributes=["age"]).num_features == 1


def test_messages_name_keywords(people: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(GraphError, match=r"no column for the id .*Name it with id: who, kind"):
        hpgmn.load(people)
    with pytest.raises(SettingError, match=r"drop takes a list of names: give \['age'\]"):
        hpgmn.load(people, drop="age")
    hpgmn.load(people, id="who", label="kind", source="u", target="v")
    warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warned == ["edges.csv: ignored: 'paid' (weight=\"paid\" uses it)."]


def test_later_tables_are_like_the_first_or_added_to_it(people: Path, tmp_path: Path) -> None:
    first = hpgmn.load(people, id="who", label="kind", source="u", target="v", weight="paid")
    again = hpgmn.load(people, like=first)
    assert again.fingerprint == first.fingerprint
    (people / "nodes.csv").write_text("who,age,code\ne,9,7\n")
    (people / "edges.csv").write_text("u,v,paid\ne,a,1\n")
    assert hpgmn.load(people, onto=first).num_nodes == 5
    with pytest.raises(SettingError, match="like and onto exclude each other"):
        hpgmn.load(people, like=first, onto=first)
    with pytest.raises(HPGMNError, match=r"trained on 1 of the nodes .*give onto if"):
        hpgmn.load(people, like=first)
    json.dumps(first.preparation)


def test_a_dataset_is_loaded_by_name_and_protocol(data_dir: Path) -> None:
    assert hpgmn.load("texas").fingerprint == registry.load("texas").fingerprint
    assert len(hpgmn.load("texas", "paper-heterophily").splits) == 10
