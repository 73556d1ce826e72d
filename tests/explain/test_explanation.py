"""Explanations as text, HTML and plain values."""

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest

from hpgmn.explain.explanation import (
    Explanation,
    LabelCandidate,
    ModelExplanation,
    Neighbor,
    Pattern,
    Without,
)

PATTERN = Pattern(
    number=4,
    attention=0.62,
    classes={"student": 0.9, "staff": 0.096, "faculty": 0.004},
    neighborhood={
        "out": {"student": 0.2, "staff": 0.8, "faculty": 0.0},
        "in": {"student": 0.0, "staff": 0.0, "faculty": 0.0},
    },
    typical_nodes=("17", "3"),
)
WITHOUT = Without(("a", "b"), "student", {"student": 0.55, "staff": 0.45, "faculty": 0.0})
FOUND = Explanation(
    node="17",
    prediction="student",
    probabilities={"student": 0.87, "staff": 0.13, "faculty": 0.0},
    label=None,
    statistics={"class_means": 1.2, "attributes": 0.3, "class_counts": -0.001, "adjacency": -0.4},
    baseline=-1.25,
    patterns=(PATTERN,),
    neighbors=(
        Neighbor("a", "staff", True, 0.123),
        Neighbor("b", "student", False, 0.0001),
        Neighbor("c", None, False, 0.0),
        Neighbor("d", "staff", False, -0.031),
    ),
    without=WITHOUT,
    turning=Without(("a", "b", "c"), "staff", {"student": 0.3, "staff": 0.7, "faculty": 0.0}),
    notes=("A note.",),
)


def rows_of(text, heading):
    """The rows below a heading, columns apart."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(heading))
    rows = lines[start + 1 :]
    end = next((n for n, line in enumerate(rows) if not line.startswith("  ")), len(rows))
    return [re.split(r"  +", row.strip()) for row in rows[:end]]


def test_the_text_of_a_node():
    text = str(FOUND)
    assert text.splitlines()[0].startswith("Node 17: 'student' (87 %).")
    assert rows_of(text, "Contribution") == [
        ["its neighbours' attributes, class by class", "+1.20"],
        ["its own attributes", "+0.30"],
        ["how many neighbours of each class it has", "0.00"],
        ["which nodes it is linked to", "-0.40"],
    ]
    assert "29 %" in text  # of the mean train node
    [[pattern, attention]] = rows_of(text, "Attention")
    assert pattern.startswith("pattern 4: nodes of class 'student' 90 %, 'staff' 10 %; ")
    assert "'staff' 80 %, 'student' 20 %; for example 17, 3" in pattern
    assert attention == "62 %"
    assert rows_of(text, "Effect") == [
        ["a, label 'staff'", "+12.3 points"],
        ["b, pseudo-label 'student'", "below 0.1 points"],
        ["c, class unknown", "no change"],
        ["d, pseudo-label 'staff'", "-3.1 points"],
    ]
    assert text.splitlines()[-3:] == [
        "Without a, b: 'student' (55 %).",
        "Without a, b, c: 'staff' (70 %).",
        "A note.",
    ]


def test_the_summary_names_reasons_and_the_train_label():
    assert "its own attributes (+0.30)" in FOUND.summary
    result = replace(FOUND, label="staff", statistics={"attributes": -0.2})
    assert "its own attributes" not in result.summary
    assert "Train label: 'staff'." in result.summary


def test_a_node_of_which_little_is_known():
    result = replace(
        FOUND, statistics={}, patterns=(), neighbors=(), without=None, turning=None, notes=()
    )
    assert str(result) == "Node 17: 'student' (87 %)."


def test_the_same_sentence_is_not_said_twice():
    text = str(replace(FOUND, turning=WITHOUT))
    assert text.count("Without a, b") == 1


def test_of_many_neighbours_the_extremes_are_shown():
    many = tuple(Neighbor(f"n{k}", "staff", True, 0.1 - 0.01 * k) for k in range(20))
    gone = Without(tuple(one.node for one in many[:10]), "staff", FOUND.probabilities)
    lines = str(replace(FOUND, neighbors=many, without=gone)).splitlines()
    shown = [row[0].split(",")[0] for row in rows_of("\n".join(lines), "Effect")]
    assert shown == ["n0", "n1", "n2", "n3", "n4", "n17", "n18", "n19"]
    assert any(line.startswith("Without n0, n1, n2, n3, n4, n5, n6, n7 and 2") for line in lines)


def test_values_survive_json_and_cannot_be_changed():
    read = json.loads(json.dumps(FOUND.as_dict()))
    assert read["neighbors"][0] == {
        "node": "a",
        "counts_as": "staff",
        "is_known": True,
        "support": 0.123,
        "edge_types": [],
    }
    assert read["patterns"][0]["neighborhood"]["out"]["staff"] == 0.8
    assert read["without"]["prediction"] == "student"
    with pytest.raises(FrozenInstanceError):
        FOUND.node = "18"  # type: ignore[misc]


def test_html_says_the_same_and_names_never_become_markup():
    html = replace(FOUND, node="<b>17</b>")._repr_html_()
    assert "<b>17</b>" not in html
    assert "Node &lt;b&gt;17&lt;/b&gt;: &#x27;student&#x27; (87 %)." in html
    assert html.count("<table>") == html.count("<caption>") == 4
    assert '<th scope="row">its own attributes</th><td>+0.30</td>' in html
    assert "<p>A note.</p>" in html


MODEL = ModelExplanation(
    model="hpgmn",
    statistics={"class_counts": 1.5, "attributes": 0.25},
    sampled=200,
    patterns=(PATTERN, replace(PATTERN, number=2), replace(PATTERN, number=0, attention=0.0)),
    redundant=((2, 4),),
    unused=(0,),
    label_next=(LabelCandidate("x", "staff", 1.234, 7),),
    notes=("A note.",),
)


def test_the_text_of_a_model():
    text = str(MODEL)
    assert text.startswith("Model hpgmn. Its memory has 3 patterns: 1 unused, 1 redundant.")
    assert rows_of(text, "Mean absolute contribution over 200 nodes") == [
        ["how many neighbours of each class a node has", "1.50"],
        ["its own attributes", "0.25"],
    ]
    assert [row[0].split(":")[0] for row in rows_of(text, "Memory patterns")] == ["pattern 4"]
    assert rows_of(text, "Redundant patterns") == [["2, 4"]]
    assert rows_of(text, "Nodes to label next") == [
        ["1. x, predicted 'staff'", "entropy 1.23, degree 7"]
    ]
    assert text.endswith("A note.")


def test_the_html_and_values_of_a_model():
    html = MODEL._repr_html_()
    assert html.count("<table>") == 5
    assert "Nodes to label next" in html
    assert json.loads(json.dumps(MODEL.as_dict()))["redundant"] == [[2, 4]]


def test_only_the_most_used_patterns_are_printed():
    many = tuple(replace(PATTERN, number=number) for number in range(12))
    text = str(replace(MODEL, patterns=many, unused=(), redundant=((0, 9),)))
    assert "Memory patterns, the 8 most used:" in text
    assert text.count("pattern 7:") == 1
    assert "pattern 8:" not in text


def test_a_model_of_which_little_is_known():
    result = ModelExplanation("mlp", {}, 0, (), (), (), (), ())
    assert str(result) == "Model mlp."


def test_fewer_neighbours_that_change_the_class_come_first():
    turning = Without(("a",), "staff", {"student": 0.4, "staff": 0.6, "faculty": 0.0})
    lines = str(replace(FOUND, turning=turning)).splitlines()
    assert lines[-3:] == [
        "Without a: 'staff' (60 %).",
        "Without a, b: 'student' (55 %).",
        "A note.",
    ]
