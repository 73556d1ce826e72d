"""A whole audit: every part is in it, it is JSON, and it finds the known defects of real graphs."""

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest

import hpgmn
from hpgmn.auditing import audit
from hpgmn.auditing.attributes import attribute_columns
from hpgmn.auditing.measures import class_balance, missing_classes, structure, twins
from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph
from hpgmn.graph.homophily import homophily

Make = Callable[..., Graph]


def test_every_measure_is_in_it(small_graph):
    found = hpgmn.audit(small_graph, 1, training=False)
    split = small_graph.split(1)
    assert isinstance(found, hpgmn.Audit)
    assert (found.graph, found.split, found.has_own_splits) == (small_graph.name, 1, True)
    assert found.structure == structure(small_graph)
    assert found.classes == class_balance(small_graph)
    assert found.missing_classes == missing_classes(small_graph)
    assert found.homophily == homophily(small_graph)
    assert found.columns == attribute_columns(small_graph, split)
    assert found.twins == twins(small_graph, split)
    assert found.known_data is None
    assert found.usefulness is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.graph = "other"  # type: ignore[misc]


def test_it_is_json_without_nan():
    found = audit(Graph([[1.0], [2.0]], [[0], [1]], [0, -1])).as_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["homophily"]["adjusted"] is None
    assert found["structure"]["out_degrees"] == {"least": 0, "median": 0.5, "most": 1, "without": 1}
    assert found["findings"][0].keys() == {"severity", "topic", "message", "advice"}


def test_trained_audits_have_a_verdict(small_graph, monkeypatch):
    from hpgmn.auditing import usefulness

    short = {"hidden_dim": 4, "epochs": 2, "estimator_epochs": 2}
    monkeypatch.setattr(usefulness, "SETTINGS", usefulness.SETTINGS | short)
    found = audit(small_graph)
    assert found.usefulness is not None
    verdict = found.usefulness.verdict
    assert any(one.message.startswith(verdict) for one in found.findings)
    content = found.as_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert len(content["usefulness"]["contributions"]) == 6


def test_with_twins_the_others_are_compared_too(sound, monkeypatch):
    from hpgmn.auditing import usefulness

    short = {"hidden_dim": 4, "epochs": 2, "estimator_epochs": 2}
    monkeypatch.setattr(usefulness, "SETTINGS", usefulness.SETTINGS | short)
    graph = sound()
    rows = np.where(np.arange(300) < 150, np.arange(300) % 102, np.arange(300))
    found = audit(sound(x=graph.x[rows])).usefulness
    assert found is not None
    assert found.without_twins is not None
    split = graph.split(0)
    taught = set(rows[split.train].tolist())
    assert found.without_twins.count == sum(row not in taught for row in rows[split.val])


def test_a_graph_without_splits_gets_a_random_one(sound):
    graph = sound(train_mask=None, val_mask=None, test_mask=None)
    found = audit(graph, 3, training=False)
    made = graph.with_splits(hpgmn.random_splits(graph, stratified=True))
    assert (found.split, found.has_own_splits) == (3, False)
    assert found.columns == attribute_columns(made, made.split(3))
    assert not audit(made, 3, training=False).has_own_splits  # as `load` makes them
    with pytest.raises(GraphError, match="has splits 0 to 9"):
        audit(graph, 10, training=False)


def test_too_few_labels_leave_out_what_needs_a_split():
    found = audit(Graph([[1.0], [2.0], [3.0]], [[0], [1]], [0, 1, -1]))
    assert (found.split, found.usefulness) == (None, None)
    (why,) = [one for one in found.findings if one.topic == "graph-helps"]
    assert why.message == "Whether the graph helps was not measured: there is no split."


def test_a_split_that_is_not_there_is_refused(small_graph):
    with pytest.raises(GraphError, match="has splits 0 to 1 \\(got 2\\)"):
        audit(small_graph, 2)


def real(data_dir, name):
    for needed in {name, "texas"}:
        if not (data_dir / f"{needed}.npz").exists():
            pytest.skip(f"{needed}.npz is not in the folder of graph files")
    return audit(hpgmn.load(name), training=False)


def test_cornell_geomgcn_has_the_data_of_texas(data_dir):
    found = real(data_dir, "cornell-geomgcn")
    assert (found.findings[0].severity, found.findings[0].topic) == ("defect", "known-data")
    assert "'texas' has the same attributes and labels" in found.findings[0].message


@pytest.mark.parametrize(("name", "share"), [("chameleon", 0.566), ("squirrel", 0.550)])
def test_chameleon_and_squirrel_have_twins(data_dir, name, share):
    found = real(data_dir, name)
    assert [one.topic for one in found.findings if one.severity == "defect"] == ["twins"]
    assert found.twins[0].alike == "out-neighbors"
    assert found.twins[0].test_share == pytest.approx(share, abs=5e-4)
    assert found.twins[0].agreement is not None
    assert found.twins[0].agreement > 0.99


@pytest.mark.parametrize(
    "name",
    [
        *("chameleon-filtered", "squirrel-filtered", "cornell", "texas", "wisconsin", "cora"),
        *("citeseer", "actor", "minesweeper"),
    ],
)
def test_sound_graphs_have_no_such_finding(data_dir, name):
    found = real(data_dir, name)
    topics = {one.topic for one in found.findings}
    assert not topics & {"known-data", "twins", "giveaway"}
    assert "defect" not in {one.severity for one in found.findings}


def test_a_renamed_copy_of_a_dataset_is_recognised(data_dir):
    texas = hpgmn.load(data_dir / "texas.npz")
    found = audit(
        Graph(texas.x, texas.edge_index, texas.y, name="mine", directed=texas.directed),
        training=False,
    )
    assert found.known_data is not None
    assert found.known_data.name == "texas"
    assert np.isin("known-data", [one.topic for one in found.findings if one.severity == "info"])
