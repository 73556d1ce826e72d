from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from hpgmn.report import model_plots as plots

Make = Callable[..., dict[str, Any]]


def words(svg):
    """Every text of a figure, in order."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("text")]


def label(svg):
    return ElementTree.fromstring(svg).attrib["aria-label"]


def test_reliability_and_coverage_describe_their_numbers():
    bins = [
        {"low": 0.5, "high": 0.75, "count": 10, "confidence": 0.6, "accuracy": 0.7},
        {"low": 0.75, "high": 1.0, "count": 1030, "confidence": 0.9, "accuracy": 0.75},
    ]
    for fact in ("1,040 test nodes", "0.75 and 1.00", "75.0%", "15.0 points below"):
        assert fact in label(plots.reliability_diagram(bins, "r"))
    coverage = [{"coverage": 0.5, "accuracy": 0.95}, {"coverage": 1.0, "accuracy": 0.8}]
    thresholds: list[dict[str, float | None]] = [
        {"threshold": 0.7, "coverage": 0.6, "accuracy": 0.91}
    ]
    svg = plots.coverage_curve(coverage, thresholds, "c")
    assert "95.0% with 50% answered, 80.0% with 100% answered" in label(svg)
    assert "0.70" in words(svg)
    svg = plots.coverage_curve(coverage, [{"threshold": None}], "c")
    assert "validation, threshold" not in words(svg)


def test_bars_of_a_class_are_stacked():
    groups = [{"name": "a", "nodes": 4, "statistics": {"one": 1.0, "two": 3.0}}]
    svg = plots.class_bars(["one", "two"], groups, "bars")
    ends = []
    for colour in ("#0072b2", "#d55e00"):
        [bar, *_] = [
            element.attrib["d"]
            for element in ElementTree.fromstring(svg).iter("path")
            if f"fill: {colour}" in element.attrib.get("style", "")
        ]
        x = [float(x) for x, _ in re.findall(r"[ML] (\S+) (\S+)", bar)]
        ends.append((min(x), max(x)))
    [(start, middle), (second_start, end)] = ends
    assert second_start == pytest.approx(middle, abs=0.02)
    assert end - second_start == pytest.approx(3 * (middle - start), abs=0.1)
    assert "Largest: a: two." in label(svg)


def test_share_bars_list_every_statistic():
    assert "one 0.75, two 0.25" in label(plots.share_bars({"one": 0.75, "two": 0.25}, "s"))


def test_patterns_reach_as_far_as_the_outer_nodes():
    nodes = [[float(x), 0.0] for x in range(11)]  # nine tenths lie within 9
    assert plots.enlargement({"nodes": nodes, "patterns": [[0.0, 0.3], [0.1, 0.0]]}) == 30
    assert plots.enlargement({"nodes": nodes, "patterns": [[0.0, 0.0]]}) == 1
    assert plots.enlargement({"nodes": [[0.0, 0.0]], "patterns": [[1.0, 0.0]]}) == 1


def test_map_numbers_the_used_patterns(make_understanding):
    content = make_understanding(num_patterns=41)
    used = list(range(40, -1, -1))
    shown = words(plots.memory_map(content["map"], content["class_names"], used, "map"))
    assert shown.count("40") == 1
    assert "10" not in shown  # the 31st
    assert "unused, redundant, less used" in shown
    content = make_understanding()
    shown = words(plots.memory_map(content["map"], content["class_names"], [0, 1, 4, 5], "map"))
    assert {"0", "1", "4", "5"} <= set(shown)
    assert "unused, redundant, less used" in shown
    shown = words(plots.memory_map(content["map"], content["class_names"], range(6), "map"))
    assert "unused, redundant, less used" not in shown


def test_map_numbers_no_pattern_over_a_more_used_one(make_understanding):
    content = make_understanding()
    content["map"]["patterns"] = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.001], [0.0, 0.999]] + [[0, 0]] * 2
    used = [2, 1, 0, 3]
    shown = plots.memory_map(content["map"], content["class_names"], used, "map")
    assert "6 patterns, 2 of them numbered" in label(shown)
    assert {"1", "2"} <= set(words(shown))
    assert not {"0", "3"} & set(words(shown))


def test_heatmap_and_map_merge_and_cut_classes(make_understanding):
    long = [f"class {number} with a name that is rather long" for number in range(40)]
    content = make_understanding(classes=long, num_patterns=72, num_nodes=200)
    shown = words(plots.pattern_heatmap(content["patterns"][:60], long, {}, 72, "p"))
    assert "11 other classes" in shown
    assert max(len(word) for word in shown) <= 30
    assert "33 other classes" in words(plots.memory_map(content["map"], long, [0], "map"))
