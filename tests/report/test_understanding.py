"""The sections about the model against the numbers they are made from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hpgmn.report import build_report
from hpgmn.report.understanding import MOST_BARS, class_bars

Make = Callable[..., dict[str, Any]]
MakeRun = Callable[..., Path]
Tables = Callable[[str], dict[str, list[list[str]]]]


def page_of(folder: Path, content: dict[str, Any]) -> str:
    (folder / "understanding.json").write_text(json.dumps(content), encoding="utf-8")
    return build_report(folder)


def test_shares_are_told_overall_and_by_class(
    make_run: MakeRun, make_understanding: Make, tables_of: Tables
) -> None:
    page = page_of(make_run(), make_understanding())
    tables = tables_of(page)
    assert tables["Share of each statistic"] == [
        ["Statistic", "Mean size"],
        ["class_counts how many neighbours of each class it has", "0.750"],
        ["attributes its own attributes", "0.250"],
    ]
    assert tables["Share of each statistic by predicted class"] == [
        ["Class", "Nodes", "class_counts", "attributes"],
        ["student", "3", "2.500", "0.100"],
        ["faculty", "2", "1.500", "0.100"],
        ["course", "1", "0.500", "0.100"],
    ]
    assert "over 30 sampled nodes" in page
    assert "Mean size of each statistic's share: class_counts 0.75, attributes 0.25." in page
    assert "About the 2 models of split 0, averaged." in page


def test_bars_of_a_class_stand_one_behind_the_other() -> None:
    groups = [{"name": "a", "nodes": 4, "statistics": {"one": 1.0, "two": 3.0}}]
    picture = class_bars(["one", "two"], groups, "bars")
    ends = []
    for colour in ("#0072b2", "#d55e00"):
        [bar, *_] = [
            element.attrib["d"]
            for element in ElementTree.fromstring(picture).iter("path")
            if f"fill: {colour}" in element.attrib.get("style", "")
        ]
        across = [float(x) for x, _ in re.findall(r"[ML] (\S+) (\S+)", bar)]
        ends.append((min(across), max(across)))
    [(start, middle), (again, end)] = ends
    assert again == pytest.approx(middle, abs=0.02)
    assert end - again == pytest.approx(3 * (middle - start), abs=0.1)
    assert "Largest: a: two." in picture


def test_nodes_to_label_next_are_listed_in_order(
    make_run: MakeRun, make_understanding: Make, tables_of: Tables
) -> None:
    page = page_of(make_run(), make_understanding())
    assert tables_of(page)["Nodes to label next"] == [
        ["Node", "Predicted class", "Entropy (nats)", "Neighbours"],
        ["n7", "course", "1.10", "1,234"],
        ["n3", "faculty", "0.50", "0"],
    ]
    assert "Nodes to label next are chosen so." in page
    assert 'id="label-next"' not in page_of(make_run(), make_understanding(label_next=[]))


def test_models_of_one_run_need_no_name(make_run: MakeRun, make_understanding: Make) -> None:
    page = page_of(make_run(splits=[0], seeds=1), make_understanding(seeds=1))
    assert "About the" not in page
    page = page_of(make_run(splits=[4, 5], seeds=1), make_understanding(seeds=1, split=4))
    assert "About the model of split 4." in page


def test_a_model_without_statistics_says_so(make_run: MakeRun, make_understanding: Make) -> None:
    page = page_of(
        make_run(), make_understanding(statistics={}, statistics_by_class=[], model="gcn")
    )
    assert "There are no shares: gcn reads no local statistics" in page


def test_one_class_needs_no_picture_by_class(make_run: MakeRun, make_understanding: Make) -> None:
    found = make_understanding()
    found["statistics_by_class"] = found["statistics_by_class"][:1]
    assert "by predicted class. Largest" not in page_of(make_run(), found)


def test_many_classes_are_drawn_in_part(make_run: MakeRun, make_understanding: Make) -> None:
    classes = [f"c{number}" for number in range(MOST_BARS + 5)]
    page = page_of(make_run(), make_understanding(classes=classes))
    assert f"shows the {MOST_BARS} classes with the most sampled nodes" in page
    assert "c20: class_counts" in page  # has the most nodes
    assert "c4: class_counts" not in page


def test_what_was_left_out_is_told(make_run: MakeRun) -> None:
    page = page_of(make_run(), {"left_out": "Too <large>."})
    assert "<p>Too &lt;large&gt;.</p>" in page
    assert 'id="memory"' not in page


def test_an_older_run_has_no_such_sections(make_run: MakeRun) -> None:
    page = build_report(make_run())
    for name in ("calibration", "health", "statistics", "memory", "label-next", "learned"):
        assert f'id="{name}"' not in page


@pytest.mark.parametrize("bad", ["<script>alert(1)</script>", '"><b>x</b>'])
def test_nothing_from_the_model_becomes_markup(
    make_run: MakeRun, make_understanding: Make, bad: str
) -> None:
    found = make_understanding(classes=[bad, "b", "c"], model=bad, notes=[bad])
    for one in found["patterns"]:
        one["typical_nodes"] = [bad]
    found["label_next"][0]["node"] = bad
    page = page_of(make_run(), found)
    assert "<script" not in page
    assert "<b>" not in page
