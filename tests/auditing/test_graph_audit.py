"""A whole audit: its parts, its JSON, known defects of real graphs, and every finding."""

import dataclasses
import json

import numpy as np
import pytest

import hpgmn
from hpgmn.auditing import audit
from hpgmn.auditing import graph_audit as module
from hpgmn.auditing.measures import (
    KnownData,
    Twins,
    attribute_columns,
    class_balance,
    missing_classes,
    structure,
    twins,
)
from hpgmn.auditing.usefulness import Contribution, Usefulness, verdict
from hpgmn.base.errors import GraphError, Remedy
from hpgmn.evaluation.scores import Difference
from hpgmn.graph import Graph
from hpgmn.graph.homophily import homophily


def test_every_measure_is_in_it(small_graph):
    result = hpgmn.audit(small_graph, 1, training=False)
    split = small_graph.split(1)
    assert isinstance(result, hpgmn.Audit)
    assert (result.graph, result.split, result.has_own_splits) == (small_graph.name, 1, True)
    assert result.structure == structure(small_graph)
    assert result.classes == class_balance(small_graph)
    assert result.missing_classes == missing_classes(small_graph)
    assert result.homophily == homophily(small_graph)
    assert result.columns == attribute_columns(small_graph, split)
    assert result.twins == twins(small_graph, split)
    assert result.known_data is None
    assert result.usefulness is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.graph = "other"  # type: ignore[misc]


def test_it_is_json_without_nan():
    result = audit(Graph([[1.0], [2.0]], [[0], [1]], [0, -1])).as_dict()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["homophily"]["adjusted"] is None
    assert result["structure"]["out_degrees"] == {
        "least": 0,
        "median": 0.5,
        "most": 1,
        "without": 1,
    }
    assert result["findings"][0].keys() == {"severity", "topic", "message", "advice"}


def test_trained_audits_have_a_verdict(small_graph, monkeypatch):
    from hpgmn.auditing import usefulness

    short = {"hidden_dim": 4, "epochs": 2, "estimator_epochs": 2}
    monkeypatch.setattr(usefulness, "SETTINGS", usefulness.SETTINGS | short)
    result = audit(small_graph)
    assert result.usefulness is not None
    verdict = result.usefulness.verdict
    assert any(one.message.startswith(verdict) for one in result.findings)
    content = result.as_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert len(content["usefulness"]["contributions"]) == 6


def test_with_twins_the_others_are_compared_too(sound, monkeypatch):
    from hpgmn.auditing import usefulness

    short = {"hidden_dim": 4, "epochs": 2, "estimator_epochs": 2}
    monkeypatch.setattr(usefulness, "SETTINGS", usefulness.SETTINGS | short)
    graph = sound()
    rows = np.where(np.arange(300) < 150, np.arange(300) % 102, np.arange(300))
    result = audit(sound(x=graph.x[rows])).usefulness
    assert result is not None
    assert result.without_twins is not None
    split = graph.split(0)
    taught = set(rows[split.train].tolist())
    assert result.without_twins.count == sum(row not in taught for row in rows[split.val])


def test_a_graph_without_splits_gets_a_random_one(sound):
    graph = sound(train_mask=None, val_mask=None, test_mask=None)
    result = audit(graph, 3, training=False)
    made = graph.with_splits(hpgmn.random_splits(graph, stratified=True))
    assert (result.split, result.has_own_splits) == (3, False)
    assert result.columns == attribute_columns(made, made.split(3))
    assert not audit(made, 3, training=False).has_own_splits  # as `load` makes them
    with pytest.raises(GraphError, match="has splits 0 to 9"):
        audit(graph, 10, training=False)


def test_too_few_labels_leave_out_what_needs_a_split():
    result = audit(Graph([[1.0], [2.0], [3.0]], [[0], [1]], [0, 1, -1]))
    assert (result.split, result.usefulness) == (None, None)
    (why,) = [one for one in result.findings if one.topic == "graph-helps"]
    assert why.message == "Whether the graph helps was not measured: there is no split."


def real(data_dir, name):
    for needed in {name, "texas"}:
        if not (data_dir / f"{needed}.npz").exists():
            pytest.skip(f"{needed}.npz is not in the folder of graph files")
    return audit(hpgmn.load(name), training=False)


def test_cornell_geomgcn_has_the_data_of_texas(data_dir):
    result = real(data_dir, "cornell-geomgcn")
    assert (result.findings[0].severity, result.findings[0].topic) == ("defect", "known-data")
    assert "'texas' has the same attributes and labels" in result.findings[0].message


@pytest.mark.parametrize(("name", "share"), [("chameleon", 0.566), ("squirrel", 0.550)])
def test_chameleon_and_squirrel_have_twins(data_dir, name, share):
    result = real(data_dir, name)
    assert [one.topic for one in result.findings if one.severity == "defect"] == ["twins"]
    assert result.twins[0].alike == "out-neighbors"
    assert result.twins[0].test_share == pytest.approx(share, abs=5e-4)
    assert result.twins[0].agreement is not None
    assert result.twins[0].agreement > 0.99


@pytest.mark.parametrize(
    "name",
    [
        *("chameleon-filtered", "squirrel-filtered", "cornell", "texas", "wisconsin", "cora"),
        *("citeseer", "actor", "minesweeper"),
    ],
)
def test_sound_graphs_have_no_such_finding(data_dir, name):
    result = real(data_dir, name)
    topics = {one.topic for one in result.findings}
    assert not topics & {"known-data", "twins", "giveaway"}
    assert "defect" not in {one.severity for one in result.findings}


def test_a_renamed_copy_of_a_dataset_is_recognised(data_dir):
    texas = hpgmn.load(data_dir / "texas.npz")
    result = audit(
        Graph(texas.x, texas.edge_index, texas.y, name="mine", directed=texas.directed),
        training=False,
    )
    assert result.known_data is not None
    assert result.known_data.name == "texas"
    assert np.isin("known-data", [one.topic for one in result.findings if one.severity == "info"])


# Findings of small graphs, each made to have one.


def found_in(graph):
    """The findings without training, by topic; each topic once."""
    result = audit(graph, training=False).findings
    assert len({one.topic for one in result}) == len(result)
    return {one.topic: one for one in result}


def test_a_sound_graph_has_a_word_on_homophily_only(sound):
    graph = sound(edge_index=sound().adjacency("out").nonzero())
    result = found_in(graph)
    assert list(result) == ["homophily"]
    assert result["homophily"].severity == "info"
    assert "uninformative" in result["homophily"].message


@pytest.mark.parametrize(("step", "words"), [(0, "Homophilous"), (1, "Heterophilous")])
def test_the_kind_of_homophily_is_named(sound, step, words):
    nodes = np.arange(300)
    edges = np.stack([nodes, (nodes + 30 + step) % 300])
    assert words in found_in(sound(edge_index=edges))["homophily"].message


def test_twins_that_share_their_label_are_a_defect(sound):
    nodes = np.arange(300)
    hubs = nodes % 30 * 10  # nodes a multiple of 30 apart have the same three neighbours
    edges = np.stack([np.repeat(nodes, 3), (hubs[:, None] + [1, 2, 3]).ravel() % 300])
    result = found_in(sound(edge_index=edges))["twins"]
    assert result.severity == "defect"
    assert "the same out-neighbours as a train node" in result.message
    # Nodes 33, 133 and 233 list themselves; without it they have two neighbours: 96 of 99.
    assert result.message.startswith("97.0% of the test nodes")
    assert "100.0%" in result.message


def test_twins_by_attributes_are_a_defect(sound):
    x = sound().x[np.arange(300) % 102]  # rows return in the same class, in the next part
    result = found_in(sound(x=x))["twins"]
    assert result.severity == "defect"
    assert "the same attributes" in result.message


def twins_with(agreement, share=0.5):
    return (
        Twins("neighbors", 10, 0.01, 1.0, 0.5),
        Twins("out-neighbors", 10, share, agreement, 0.5),
        Twins("attributes", 10, None, None),
    )


@pytest.mark.parametrize(
    ("agreement", "share", "severity"),
    [
        (0.95, 0.5, "defect"),
        (0.7, 0.5, "warning"),
        (None, 0.5, "warning"),
        (0.55, 0.5, None),
        (1.0, 0.09, None),
    ],
)
def test_twins_matter_as_far_as_they_agree(agreement, share, severity):
    result = list(module._twins(twins_with(agreement, share)))
    assert [one.severity for one in result] == ([] if severity is None else [severity])


def test_a_copy_of_the_label_is_a_defect(sound):
    graph = sound()
    x = np.column_stack([graph.x, graph.y, 3 - graph.y])
    names = [*"abcdef", "answer", "reverse"]
    result = found_in(sound(x=x, feature_names=names))["giveaway"]
    assert result.severity == "defect"
    assert result.message.startswith("Attribute columns answer, reverse alone: accuracy 100.0%")


def test_a_near_copy_of_the_label_is_a_warning(sound):
    graph = sound()
    near = graph.y + np.random.default_rng(1).normal(size=300) * 0.2
    result = found_in(sound(x=np.column_stack([graph.x, near])))["giveaway"]
    assert result.severity == "warning"
    assert result.message.startswith("Attribute column 6 alone: accuracy ")


def test_one_hot_labels_are_a_defect(sound):
    graph = sound()
    x = np.column_stack([graph.x, np.eye(3)[graph.y]])
    result = found_in(sound(x=x))["giveaway"]
    assert result.severity == "defect"
    for fact in ("columns 6, 7, 8", "F1 up to 1.00", "classes '0', '1', '2'"):
        assert fact in result.message


def test_one_class_or_none_is_a_defect(sound):
    one = found_in(sound(y=np.zeros(300, int)))["classes"]
    assert one.severity == "defect"
    none = found_in(Graph([[1.0], [2.0]], [[0], [1]]))["classes"]
    assert none.severity == "defect"
    assert none.message != one.message


def test_skewed_classes_are_a_warning(sound):
    result = found_in(sound(y=(np.arange(300) % 10 == 0).astype(int)))["class-balance"]
    assert result.severity == "warning"
    assert result.message.startswith("Class '0' makes up 90.0%")
    assert result.remedy.option == "metric"
    assert result.remedy.value == "average_precision"
    assert 'metric="average_precision"' in result.advice


def test_a_small_class_and_where_it_is_missing(sound):
    y = np.arange(300) % 3
    y[:9] = [0, 1, 2, 0, 1, 2, 3, 3, 1]  # nodes 6 and 7 are test nodes
    result = found_in(sound(y=y))
    assert "class '3'" in result["class-balance"].message
    assert result["missing-class"].severity == "warning"
    assert result["missing-class"].message == "No train node of class '3' in split 0."


def test_a_class_missing_from_test_is_an_info(sound):
    graph = sound()
    y = np.where(graph.split(0).test & (graph.y == 2), 1, graph.y)
    result = found_in(sound(y=y, class_names=["a", "b", "c"]))["missing-class"]
    assert (result.severity, result.message) == ("info", "No test node of class 'c' in split 0.")


def test_nodes_without_label_edge_or_attributes_are_counted(sound):
    graph = sound()
    masks = {
        f"{part}_mask": getattr(graph.split(0), part).copy() for part in ("train", "val", "test")
    }
    for mask in masks.values():
        mask[:30] = False
    x = graph.x.copy()
    x[:15] = 0
    kept = (graph.edge_index > 5).all(axis=0)
    y = np.where(np.arange(300) < 30, -1, graph.y)
    result = found_in(sound(y=y, x=x, edge_index=graph.edge_index[:, kept], **masks))
    assert "30 (10.0%)" in result["unlabelled"].message
    assert "6 (2.0%)" in result["isolated-nodes"].message
    assert result["isolated-nodes"].severity == "info"
    assert "15 (5.0%)" in result["empty-attributes"].message


def test_many_isolated_nodes_are_a_warning(sound):
    graph = sound()
    kept = (graph.edge_index >= 60).all(axis=0)
    result = found_in(sound(edge_index=graph.edge_index[:, kept]))["isolated-nodes"]
    assert result.severity == "warning"
    assert "60 (20.0%)" in result.message


def test_no_edges_are_a_defect(sound):
    result = found_in(sound(edge_index=[[3], [3]]))["edges"]
    assert result.severity == "defect"


def test_components_loops_repeats_and_directions_are_reported(sound):
    ring = np.arange(300)
    one = np.stack([ring, np.where(ring % 150 == 149, ring - 149, ring + 1)])  # two rings
    listed = np.concatenate([one, one[::-1], one[:, :5], [[1, 2], [1, 2]]], axis=1)
    result = found_in(sound(edge_index=listed))
    assert "2 components" in result["components"].message
    assert "50.0%" in result["components"].message
    assert "2 self-loops and 5 repeated edges" in result["edges"].message
    assert result["directions"].remedy.setting == "neighbors"
    assert "directions" not in found_in(sound(edge_index=listed, directed=False))


def test_only_what_there_is_is_counted(sound):
    edges = [[0, 1, 1], [1, 2, 1]]
    result = found_in(sound(edge_index=edges))["edges"]
    assert "1 self-loop." in result.message


def test_columns_without_information_are_counted(sound):
    x = np.column_stack([sound().x, np.zeros((300, 2)), np.ones(300)])
    result = found_in(sound(x=x))["columns"]
    assert result.severity == "info"
    assert "3 of 9 attribute columns" in result.message
    assert "2 zero" in result.message
    assert found_in(sound(x=np.ones((300, 1))))["columns"].severity == "warning"


@pytest.mark.parametrize(
    ("same", "severity", "words"),
    [
        (("attributes", "labels"), "defect", "same attributes and labels, but other edges"),
        (("attributes",), "defect", "other labels and edges"),
        (("labels",), "warning", "same labels"),
        (("attributes", "labels", "edges"), "info", "This is the dataset 'texas'"),
    ],
)
def test_known_data_is_a_defect_unless_all_is_equal(same, severity, words):
    (result,) = module._known_data(KnownData("texas", same))
    assert result.severity == severity
    assert words in result.message


def useful(low, high):
    apart = Difference((low + high) / 2, low, high, 50, "validation nodes")
    parts = (Contribution("label estimator", 0.5, None), Contribution("all together", 0.6, apart))
    sentence = verdict(apart, "accuracy")
    return Usefulness("accuracy", "label estimator", parts, 9, 50, False, 3, sentence, None, 1.0)


@pytest.mark.parametrize(
    ("low", "high", "severity", "command"),
    [(0.1, 0.2, "info", "train"), (-0.2, -0.1, "warning", "train"), (-1, 1, "info", "tune")],
)
def test_the_verdict_is_a_finding(low, high, severity, command):
    (result,) = module._usefulness(useful(low, high), "", has_twins=False)
    assert (result.severity, result.topic) == (severity, "graph-helps")
    assert result.message == useful(low, high).verdict
    assert result.remedy.command == command


@pytest.mark.parametrize(("score", "is_named"), [(0.63, True), (0.61, False)])
def test_a_statistic_that_is_better_alone_is_named(score, is_named):
    outcome = useful(0.1, 0.2)
    estimator, together = outcome.contributions
    parts = (
        dataclasses.replace(estimator, score=0.9),  # a model that cannot be chosen by --set
        Contribution("attributes", 0.5, None),
        Contribution("class_means", score, together.difference),
        together,
    )
    outcome = dataclasses.replace(outcome, contributions=parts)
    (result,) = module._usefulness(outcome, "", has_twins=False)
    assert ("'class_means' alone: 63.0, all: 60.0." in result.message) is is_named
    settings = [(one.setting, one.value) for one in result.remedy.alternatives]
    assert (("statistics", "class_means") in settings) is is_named


def test_with_twins_the_verdict_says_what_is_left():
    (result,) = module._usefulness(useful(0.1, 0.2), "", has_twins=True)
    assert "Nearly all of these nodes" in result.message
    left = Difference(0.01, -0.02, 0.04, 40, "validation nodes")
    outcome = dataclasses.replace(useful(0.1, 0.2), without_twins=left)
    (result,) = module._usefulness(outcome, "", has_twins=True)
    for fact in ("40 nodes", "+1.0 points", "-2.0 to +4.0"):
        assert fact in result.message


def test_what_was_not_trained_says_why():
    (result,) = module._usefulness(None, "there is no split", has_twins=False)
    assert "there is no split" in result.message
    assert list(module._usefulness(None, "", has_twins=False)) == []


def test_the_worst_comes_first(sound):
    graph = sound()
    result = audit(
        sound(
            x=np.column_stack([graph.x, graph.y, np.ones(300)]),
            y=np.where(graph.y == 2, 0, graph.y),
        ),
        training=False,
    ).findings
    order = [module.SEVERITIES.index(one.severity) for one in result]
    assert order == sorted(order)
    assert order[0] == 0


def test_every_finding_ends_its_sentences(sound):
    measured = audit(sound(x=np.ones((300, 1))), training=False)
    measured = dataclasses.replace(measured, usefulness=useful(-0.1, 0.1))
    for one in module.findings(measured, ""):
        assert one.message.endswith(".")
        assert one.message[0].isupper() or one.message[0].isdigit()
        assert one.advice.endswith(".")


def test_a_notebook_shows_findings_and_whether_the_graph_helps(small_graph):
    found = hpgmn.audit(small_graph)
    evil = module.Finding("warning", "topic", "<b>bold</b>", Remedy("Mend it"))
    shown = dataclasses.replace(found, findings=(*found.findings, evil))._repr_html_()
    assert "<td>&lt;b&gt;bold&lt;/b&gt;</td><td>Mend it.</td>" in shown
    assert found.usefulness is not None
    for part in found.usefulness.contributions:
        assert f">{part.name}</th>" in shown
        assert f">{part.score:.1%}</td>" in shown
    assert "<div" not in hpgmn.audit(small_graph, training=False)._repr_html_()
