"""The sections about graph, probabilities, model and nodes against their data."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpgmn.auditing import audit
from hpgmn.report import ReportData, ReportDataError, render_report
from hpgmn.report.model_sections import MOST_BARS, MOST_PATTERNS, pattern_marks
from hpgmn.report.rendering import resource

MakeData = Callable[..., ReportData]
Make = Callable[..., dict[str, Any]]
Tables = Callable[[str], dict[str, list[list[str]]]]


def plain(page):
    """The page's text without tags and figures, on one line."""
    page = re.sub(r"<(style|svg)\b.*?</\1>", "", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def section(page, key):
    """The text of a section; empty if the page has none of that id."""
    found = re.search(rf'<section id="{key}".*?</section>', page, flags=re.S)
    return plain(found.group()) if found else ""


def recorded(**changes):
    errors = {
        f"{key}_{when}_mean": value
        for when, values in (("before", (0.15, 0.14, 1.1, 0.4)), ("after", (0.04, 0.05, 0.7, 0.3)))
        for key, value in zip(("ece", "ece_equal_mass", "nll", "brier"), values, strict=True)
    }
    bins = [
        {"low": 0.0, "high": 0.5, "count": 0, "confidence": None, "accuracy": None},
        {"low": 0.5, "high": 0.75, "count": 10, "confidence": 0.6, "accuracy": 0.7},
        {"low": 0.75, "high": 1.0, "count": 1030, "confidence": 0.9, "accuracy": 0.75},
    ]
    coverage = [
        {"threshold": 0.9, "coverage": 0.5, "accuracy": 0.95},
        {"threshold": 0.51, "coverage": 1.0, "accuracy": 0.8},
    ]
    thresholds = [
        {"wanted_accuracy": 0.9, "threshold": 0.7, "coverage": 0.6, "accuracy": 0.91},
        {"wanted_accuracy": 0.99, "threshold": None},
    ]
    return {
        "temperature": [2.0, 2.5, 1.5, 2.0],
        **errors,
        "reliability": bins,
        "coverage": coverage,
        "thresholds": thresholds,
    } | changes


def test_calibration_shows_the_recorded_numbers(make_data, tables_of):
    page = render_report(make_data(calibration=recorded()))
    tables, text = tables_of(page), section(page, "calibration")
    for fact in ("1.50 to 2.50", "4.0 points", "15.0 without"):
        assert fact in text
    assert tables["Errors of the probabilities on test nodes, mean of the runs"][1:] == [
        ["Calibration error, bins of equal width", "0.150", "0.040"],
        ["Calibration error, bins of equal size", "0.140", "0.050"],
        ["Log loss", "1.100", "0.700"],
        ["Brier score", "0.400", "0.300"],
    ]
    assert tables["Confidence and accuracy of test nodes, all 4 runs pooled"][1:] == [
        ["0.50 to 0.75", "10", "60.00%", "70.00%"],
        ["0.75 to 1.00", "1,030", "90.00%", "75.00%"],
    ]
    assert tables["Accuracy when only the most confident test nodes are answered"][1:] == [
        ["50.00%", "0.900", "95.00%"],
        ["100.00%", "0.510", "80.00%"],
    ]
    assert tables["Confidence thresholds from validation nodes"][1:] == [
        ["90%", "0.700", "60.00%", "91.00%"],
        ["99%", "–", "–", "–"],
    ]


def test_calibration_without_test_nodes_or_temperature(make_data, tables_of):
    content = {"temperature": [2.0], "thresholds": recorded()["thresholds"]}
    page = render_report(make_data(calibration=content))
    assert "Confidence thresholds from validation nodes" in tables_of(page)
    assert 'aria-label="Reliability' not in page
    page = render_report(make_data(calibration=recorded(), config={"calibrate": False}))
    assert "1.50 to 2.50" not in section(page, "calibration")


# Graph health


def test_health_shows_the_audit(make_data, small_graph, tables_of):
    found = audit(small_graph, training=False)
    content = found.as_dict()
    kinds = ("out-neighbors", "in-neighbors", "attributes")
    content["twins"] = [
        {"alike": kind, "nodes": 6 * position, "test_share": 0.5, "agreement": None}
        for position, kind in zip((1, 0, 2), kinds, strict=True)
    ]
    content["homophily"]["edge"] = None
    content["findings"] += [
        {"severity": "odd", "topic": "t", "message": "<b>Bad</b>.", "advice": "Do <i>."}
    ]
    page = render_report(make_data(audit=content))
    tables, edges = tables_of(page), found.structure
    assert ["Self-loops and repeats listed", "1, 3"] in tables["Edges and attributes"]
    assert ["Edges", f"{edges.edges} directed"] in tables["Edges and attributes"]
    assert ["Nodes without neighbours", "1"] in tables["Edges and attributes"]
    measures = tables["Homophily"]
    assert measures[1][1] == f"{found.homophily.node:.3f}"
    assert measures[2][1] == "–"
    assert [row[1:] for row in tables["Duplicate nodes"][1:]] == [
        ["6", "50.00%", "–"],
        ["12", "50.00%", "–"],
    ]
    findings = tables["Findings, most severe first"][1:]
    assert len(findings) == len(found.findings) + 1
    assert findings[-1] == ["odd", "<b>Bad</b>. Do <i>."]
    assert "<b>" not in page


def test_health_without_findings_or_left_out(make_data, small_graph):
    content = audit(small_graph, training=False).as_dict()
    page = render_report(make_data(audit=content | {"findings": [], "twins": [], "split": None}))
    assert section(page, "health")
    assert "Duplicate nodes" not in page
    page = render_report(make_data(audit={"left_out": "Too large & slow."}))
    assert "Too large &amp; slow." in page


# The model


def test_statistics_are_shown_overall_and_by_class(make_data, make_understanding, tables_of):
    page = render_report(make_data(understanding=make_understanding()))
    tables = tables_of(page)
    shares = tables["Share of each statistic"][1:]
    assert [row[0].split()[0] for row in shares] == ["class_counts", "attributes"]
    assert [row[1] for row in shares] == ["0.750", "0.250"]
    assert tables["Share of each statistic by predicted class"] == [
        ["Class", "Nodes", "class_counts", "attributes"],
        ["student", "3", "2.500", "0.100"],
        ["faculty", "2", "1.500", "0.100"],
        ["course", "1", "0.500", "0.100"],
    ]
    assert "30 sampled nodes" in section(page, "statistics")
    assert "2 models of split 0" in section(page, "statistics")


def test_models_of_a_single_run_have_no_scope(make_data, make_understanding):
    content = make_understanding(seeds=1, split=4)
    page = render_report(make_data(splits=[4], seeds=1, understanding=content))
    assert "of split 4" not in page
    page = render_report(make_data(splits=[4, 5], seeds=1, understanding=content))
    assert "Model of split 4." in section(page, "memory")


def test_bars_show_the_classes_with_the_most_nodes(make_data, make_understanding):
    classes = [f"c{number}" for number in range(MOST_BARS + 5)]
    page = render_report(make_data(understanding=make_understanding(classes=classes)))
    assert f"the {MOST_BARS} classes" in section(page, "statistics")
    assert "c20: class_counts" in page  # has the most nodes
    assert "c4: class_counts" not in page
    content = make_understanding()
    content["statistics_by_class"] = content["statistics_by_class"][:1]
    page = render_report(make_data(understanding=content))
    assert "by predicted class. Largest" not in page


def test_a_model_without_statistics_or_memory(make_data, make_understanding):
    content = make_understanding(
        statistics={}, statistics_by_class=[], patterns=[], map=None, model="<gcn>", label_next=[]
    )
    page = render_report(make_data(understanding=content))
    for key in ("statistics", "memory"):
        assert "<gcn>" in section(page, key)
    assert not section(page, "label-next")
    page = render_report(make_data(understanding={"left_out": "Too <large>."}))
    assert "Too <large>." in section(page, "learned")
    assert not section(page, "memory")


def test_nodes_to_label_next_are_listed_in_order(make_data, make_understanding, tables_of):
    page = render_report(make_data(understanding=make_understanding()))
    assert tables_of(page)["Nodes to label next"] == [
        ["Node", "Predicted class", "Entropy (nats)", "Neighbours"],
        ["n7", "course", "1.10", "1,234"],
        ["n3", "faculty", "0.50", "0"],
    ]
    assert "Nodes to label next are chosen so." in section(page, "label-next")


def test_patterns_are_shown_with_marks(make_data, make_understanding, tables_of):
    content = make_understanding()
    page = render_report(make_data(understanding=content))
    assert "6 patterns, 1 unused and 1 redundant" in section(page, "memory")
    marks = pattern_marks(content)
    first, *_, redundant, unused = [one["number"] for one in content["patterns"]]
    assert marks == {unused: "unused", redundant: f"like {first}"}
    rows = tables_of(page)["Patterns of the memory"]
    assert len(rows[0]) == 6
    for row, one in zip(rows[1:], content["patterns"], strict=True):
        mark = f" ({marks[one['number']]})" if one["number"] in marks else ""
        assert row[:2] == [f"{one['number']}{mark}", f"{100 * one['attention']:.1f}%"]
        best = max(one["classes"], key=lambda name: one["classes"][name])
        assert row[2].startswith(f"{best} {100 * one['classes'][best]:.0f}%")
        assert row[-1] == ", ".join(one["typical_nodes"])
    colours = tables_of(page)["Classes of each pattern's nodes"]
    one = content["patterns"][2]
    shares = [f"{100 * one['classes'][name]:.0f}%" for name in content["class_names"]]
    assert colours[3] == [str(one["number"]), *shares]


def test_many_patterns_and_classes_are_cut(make_data, make_understanding):
    names = [f"class {number} with a name that is rather long {number:>3}" for number in range(40)]
    content = make_understanding(classes=names, num_patterns=72, num_nodes=200)
    page = render_report(make_data(understanding=content))
    text = section(page, "memory")
    assert "The 11 classes" in text
    assert f"the {MOST_PATTERNS} most used patterns of 72" in text
    assert "Classes of each pattern's nodes" not in page
    content = make_understanding(num_patterns=4, map=None)
    for one in content["patterns"]:
        one["classes"] = dict.fromkeys(one["classes"], 0.0)
    text = section(render_report(make_data(understanding=content)), "memory")
    assert "Map of nodes" not in text


def test_map_shows_centres_and_variances(make_data, make_understanding, tables_of):
    content = make_understanding(num_nodes=30)
    page = render_report(make_data(understanding=content))
    text = section(page, "memory")
    for fact in ("75% of the variance", "50% and 25%", "40% of that", "All 30 nodes"):
        assert fact in text
    nodes, classes = np.array(content["map"]["nodes"]), np.array(content["map"]["classes"])
    rows = tables_of(page)["Mean position of each predicted class"][1:]
    for label, row in enumerate(rows):
        first, second = (
            sum(nodes[v, axis] for v in range(30) if classes[v] == label) / 10 for axis in (0, 1)
        )
        assert row == [content["class_names"][label], "10", f"{first:.3g}", f"{second:.3g}"]
    first, second = content["map"]["patterns"][4]
    rows = tables_of(page)["Positions of the patterns"][1:]
    assert rows[4] == ["4", f"{first:.3g}", f"{second:.3g}"]
    content["map"]["all_nodes"] = 12345
    page = render_report(make_data(understanding=content))
    assert "30 of 12,345 nodes" in section(page, "memory")


def test_nothing_from_the_model_becomes_markup(make_data, make_understanding):
    bad = '"><script>alert(1)</script><b>x</b>'
    content = make_understanding(classes=[bad, "b", "c"], model=bad, notes=[bad])
    for one in content["patterns"]:
        one["typical_nodes"] = [bad]
    content["label_next"][0]["node"] = bad
    page = render_report(make_data(understanding=content))
    assert "<script" not in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("audit", {"graph": "g"}),
        ("understanding", {"patterns": 3}),
        ("understanding", {"map": {"nodes": []}}),
        ("understanding", {"unused": None}),
        ("explorer", {"nodes": [{}]}),
        ("metrics", {"reliability": [{"low": 0.1}]}),
    ],
)
def test_data_of_another_form_is_named(make_data, make_understanding, part, content):
    if part == "metrics":
        data = make_data(calibration=recorded(**content))
    elif part == "understanding":
        data = make_data(understanding=make_understanding(**content))
    else:
        data = make_data(**{part: content})
    with pytest.raises(ReportDataError) as caught:
        render_report(data)
    assert caught.value.part == part


# The node explorer; what its script does is tested in a browser

EVIL_ID = "</script><b>bold</b><!--"


def node(prediction, label, role, **more):
    probabilities = [0.1, 0.1]
    probabilities[prediction] = 0.9
    return {
        "degree": 0,
        "neighbors": [],
        "edges": [],
        "prediction": prediction,
        "label": label,
        "role": role,
        "probabilities": probabilities,
        **more,
    }


def explorer(**changes):
    nodes = [node(0, 0, "train"), node(1, 0, "test"), node(1, None, "unlabelled")]
    nodes[2]["probabilities"] = [0.4, 0.6]
    return {
        "split": 3,
        "seeds": 1,
        "num_nodes": 3,
        "classes": ["yes", "no"],
        "ids": ["ann", EVIL_ID, "a b/ö"],
        "counts_as": [0, 1, 1],
        "is_known": [1, 0, 0],
        "nodes": nodes,
        "directed": True,
        "statistics": [],
        "patterns": [],
        "notes": [],
        **changes,
    }


def test_an_empty_explorer_gives_no_section_and_no_script(make_data):
    page = render_report(make_data(explorer=explorer(nodes=[], ids=[])))
    assert not section(page, "explorer")
    assert "<script" not in page


def test_exactly_one_script_may_run_by_its_hash(make_data):
    page = render_report(make_data(explorer=explorer()))
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [
        ' type="application/json" id="explorer-data"',
        "",
    ]
    digest = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_an_id_never_becomes_markup(make_data):
    page = render_report(make_data(explorer=explorer()))
    assert "<b>" not in page
    [data] = re.findall(r'id="explorer-data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["ids"] == ["ann", EVIL_ID, "a b/ö"]
    assert data.isascii()
    assert '<a href="#node=%3C%2Fscript%3E%3Cb%3Ebold%3C%2Fb%3E%3C%21--">&lt;/script&gt;' in page


def test_the_script_makes_no_markup_from_text_and_loads_nothing():
    script = resource("explorer.js")
    words = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval", "Function(")
    for word in (*words, "fetch", "XMLHttp", "import(", "sendBeacon", "</script", "<!--"):
        assert word not in script
    assert len(script.splitlines()) <= 400
    assert max(len(line) for line in script.splitlines()) <= 110


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, ["split 3", "All 3 nodes"]),
        ({"seeds": 4}, ["mean of 4 seeds"]),
        ({"num_nodes": 51234}, ["3 of 51,234 nodes"]),
        (
            {"nodes": [node(0, 0, "train", support=[]), node(0, 0, "train"), node(0, 0, "train")]},
            ["computed for 1 of them"],
        ),
    ],
)
def test_the_explorer_says_what_it_holds(make_data, changes, facts):
    text = section(render_report(make_data(explorer=explorer(**changes))), "explorer")
    for fact in facts:
        assert fact in text
    assert "hpgmn explain RUN --node ID" in text  # where scripts are disabled


def test_examples_are_an_error_a_turning_node_and_the_least_confident(make_data):
    def examples(content):
        page = render_report(make_data(explorer=content))
        [line] = re.findall("<p>For example: (.*?)</p>", page, re.DOTALL)
        return re.findall(r">([^<]*)</a>", line)

    assert examples(explorer()) == [html.escape(EVIL_ID), "a b/ö"]
    turning = [
        node(0, 0, "train", turning={"neighbors": [1, 2]}),
        node(0, 0, "train", turning={"neighbors": [2]}),
        node(1, 0, "train"),
    ]
    turning[1]["probabilities"] = [0.5, 0.5]  # also the least confident: named once
    assert examples(explorer(nodes=turning, ids=["x", "y", "z"])) == ["y"]
