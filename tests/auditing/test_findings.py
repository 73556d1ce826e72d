"""Every finding by a small graph made to have it, and none of them on a sound one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpgmn.auditing import audit, findings
from hpgmn.auditing.findings import Measures
from hpgmn.auditing.measures import KnownData, Twins
from hpgmn.auditing.usefulness import Contribution, Usefulness, verdict
from hpgmn.evaluation.scores import Difference
from hpgmn.graph import Graph

Make = Callable[..., Graph]


@pytest.fixture(autouse=True)
def _nothing_here(tmp_path, monkeypatch):
    """No other dataset to compare with."""
    monkeypatch.setenv("HPGMN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def found_in(graph):
    """The findings without training, by topic; each topic once."""
    found = audit(graph, training=False).findings
    assert len({one.topic for one in found}) == len(found)
    return {one.topic: one for one in found}


def test_a_sound_graph_has_a_word_on_homophily_only(sound):
    graph = sound(edge_index=sound().adjacency("out").nonzero())
    found = found_in(graph)
    assert list(found) == ["homophily"]
    assert found["homophily"].severity == "info"
    assert "uninformative" in found["homophily"].message


@pytest.mark.parametrize(("step", "words"), [(0, "Homophilous"), (1, "Heterophilous")])
def test_the_kind_of_homophily_is_said(sound, step, words):
    nodes = np.arange(300)
    edges = np.stack([nodes, (nodes + 30 + step) % 300])
    assert words in found_in(sound(edge_index=edges))["homophily"].message


def test_twins_that_share_their_label_are_a_defect(sound):
    nodes = np.arange(300)
    hubs = nodes % 30 * 10  # nodes a multiple of 30 apart have the same three neighbours
    edges = np.stack([np.repeat(nodes, 3), (hubs[:, None] + [1, 2, 3]).ravel() % 300])
    found = found_in(sound(edge_index=edges))["twins"]
    assert found.severity == "defect"
    assert "the same out-neighbours as a train node" in found.message
    # Nodes 33, 133 and 233 list themselves; without it they have two neighbours: 96 of 99.
    assert found.message.startswith("97.0% of the test nodes")
    assert "100.0%" in found.message


def test_twins_by_attributes_are_a_defect(sound):
    x = sound().x[np.arange(300) % 102]  # rows return in the same class, in the next part
    found = found_in(sound(x=x))["twins"]
    assert found.severity == "defect"
    assert "the same attributes" in found.message


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
    found = list(findings._twins(twins_with(agreement, share)))
    assert [one.severity for one in found] == ([] if severity is None else [severity])


def test_a_copy_of_the_label_is_a_defect(sound):
    graph = sound()
    x = np.column_stack([graph.x, graph.y, 3 - graph.y])
    names = [*"abcdef", "answer", "reverse"]
    found = found_in(sound(x=x, feature_names=names))["giveaway"]
    assert found.severity == "defect"
    assert found.message.startswith("Attribute columns answer, reverse alone: accuracy 100.0%")


def test_a_near_copy_of_the_label_is_a_warning(sound):
    graph = sound()
    near = graph.y + np.random.default_rng(1).normal(size=300) * 0.2
    found = found_in(sound(x=np.column_stack([graph.x, near])))["giveaway"]
    assert found.severity == "warning"
    assert found.message.startswith("Attribute column 6 alone: accuracy ")


def test_one_hot_labels_are_a_defect(sound):
    graph = sound()
    x = np.column_stack([graph.x, np.eye(3)[graph.y]])
    found = found_in(sound(x=x))["giveaway"]
    assert found.severity == "defect"
    for fact in ("columns 6, 7, 8", "F1 up to 1.00", "classes '0', '1', '2'"):
        assert fact in found.message


def test_one_class_or_none_is_a_defect(sound):
    one = found_in(sound(y=np.zeros(300, int)))["classes"]
    assert one.severity == "defect"
    none = found_in(Graph([[1.0], [2.0]], [[0], [1]]))["classes"]
    assert none.severity == "defect"
    assert none.message != one.message


def test_skewed_classes_are_a_warning(sound):
    found = found_in(sound(y=(np.arange(300) % 10 == 0).astype(int)))["class-balance"]
    assert found.severity == "warning"
    assert found.message.startswith("Class '0' makes up 90.0%")
    assert found.remedy.option == "metric"
    assert found.remedy.value == "average_precision"
    assert 'metric="average_precision"' in found.advice


def test_a_small_class_and_where_it_is_missing(sound):
    y = np.arange(300) % 3
    y[:9] = [0, 1, 2, 0, 1, 2, 3, 3, 1]  # nodes 6 and 7 are test nodes
    found = found_in(sound(y=y))
    assert "class '3'" in found["class-balance"].message
    assert found["missing-class"].severity == "warning"
    assert found["missing-class"].message == "No train node of class '3' in split 0."


def test_a_class_missing_from_test_is_an_info(sound):
    graph = sound()
    y = np.where(graph.split(0).test & (graph.y == 2), 1, graph.y)
    found = found_in(sound(y=y, class_names=["a", "b", "c"]))["missing-class"]
    assert (found.severity, found.message) == ("info", "No test node of class 'c' in split 0.")


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
    found = found_in(sound(y=y, x=x, edge_index=graph.edge_index[:, kept], **masks))
    assert "30 (10.0%)" in found["unlabelled"].message
    assert "6 (2.0%)" in found["isolated-nodes"].message
    assert found["isolated-nodes"].severity == "info"
    assert "15 (5.0%)" in found["empty-attributes"].message


def test_many_isolated_nodes_are_a_warning(sound):
    graph = sound()
    kept = (graph.edge_index >= 60).all(axis=0)
    found = found_in(sound(edge_index=graph.edge_index[:, kept]))["isolated-nodes"]
    assert found.severity == "warning"
    assert "60 (20.0%)" in found.message


def test_no_edges_are_a_defect(sound):
    found = found_in(sound(edge_index=[[3], [3]]))["edges"]
    assert found.severity == "defect"


def test_parts_loops_repeats_and_directions_are_said(sound):
    ring = np.arange(300)
    one = np.stack([ring, np.where(ring % 150 == 149, ring - 149, ring + 1)])  # two rings
    listed = np.concatenate([one, one[::-1], one[:, :5], [[1, 2], [1, 2]]], axis=1)
    found = found_in(sound(edge_index=listed))
    assert "2 components" in found["components"].message
    assert "50.0%" in found["components"].message
    assert "2 self-loops and 5 repeated edges" in found["edges"].message
    assert found["directions"].remedy.setting == "neighbors"
    assert "directions" not in found_in(sound(edge_index=listed, directed=False))


def test_only_what_there_is_is_counted(sound):
    edges = [[0, 1, 1], [1, 2, 1]]
    found = found_in(sound(edge_index=edges))["edges"]
    assert "1 self-loop." in found.message


def test_columns_without_information_are_counted(sound):
    x = np.column_stack([sound().x, np.zeros((300, 2)), np.ones(300)])
    found = found_in(sound(x=x))["columns"]
    assert found.severity == "info"
    assert "3 of 9 attribute columns" in found.message
    assert "2 zero" in found.message
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
    (found,) = findings._known_data(KnownData("texas", same))
    assert found.severity == severity
    assert words in found.message


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
    (found,) = findings._usefulness(useful(low, high), "", has_twins=False)
    assert (found.severity, found.topic) == (severity, "graph-helps")
    assert found.message == useful(low, high).verdict
    assert found.remedy.command == command


@pytest.mark.parametrize(("score", "is_named"), [(0.63, True), (0.61, False)])
def test_a_statistic_that_is_better_alone_is_named(score, is_named):
    told = useful(0.1, 0.2)
    estimator, together = told.contributions
    parts = (
        dataclasses.replace(estimator, score=0.9),  # a model that cannot be chosen by --set
        Contribution("attributes", 0.5, None),
        Contribution("class_means", score, together.difference),
        together,
    )
    told = dataclasses.replace(told, contributions=parts)
    (found,) = findings._usefulness(told, "", has_twins=False)
    assert ("'class_means' alone: 63.0, all: 60.0." in found.message) is is_named
    settings = [(one.setting, one.value) for one in found.remedy.alternatives]
    assert (("statistics", "class_means") in settings) is is_named


def test_with_twins_the_verdict_says_what_is_left():
    (found,) = findings._usefulness(useful(0.1, 0.2), "", has_twins=True)
    assert "Nearly all of these nodes" in found.message
    left = Difference(0.01, -0.02, 0.04, 40, "validation nodes")
    told = dataclasses.replace(useful(0.1, 0.2), without_twins=left)
    (found,) = findings._usefulness(told, "", has_twins=True)
    for fact in ("40 nodes", "+1.0 points", "-2.0 to +4.0"):
        assert fact in found.message


def test_what_was_not_trained_says_why():
    (found,) = findings._usefulness(None, "there is no split", has_twins=False)
    assert "there is no split" in found.message
    assert list(findings._usefulness(None, "", has_twins=False)) == []


def test_the_worst_comes_first(sound):
    graph = sound()
    found = audit(
        sound(
            x=np.column_stack([graph.x, graph.y, np.ones(300)]),
            y=np.where(graph.y == 2, 0, graph.y),
        ),
        training=False,
    ).findings
    order = [findings.SEVERITIES.index(one.severity) for one in found]
    assert order == sorted(order)
    assert order[0] == 0


def test_every_finding_ends_its_sentences(sound):
    measures: Any = audit(sound(x=np.ones((300, 1))), training=False)
    parts = {name: getattr(measures, name) for name in Measures.__dataclass_fields__}
    for one in findings.findings(Measures(**parts), useful(-0.1, 0.1), ""):
        assert one.message.endswith(".")
        assert one.message[0].isupper() or one.message[0].isdigit()
        assert one.advice.endswith(".")
