"""The section about the graph's health against an audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpgmn.auditing import audit
from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.report import build_report

MakeRun = Callable[..., Path]
Tables = Callable[[str], dict[str, list[list[str]]]]


def page_of(folder: Path, content: Any) -> str:
    (folder / "audit.json").write_text(json.dumps(content), encoding="utf-8")
    return build_report(folder)


def test_an_audit_is_told(make_run: MakeRun, small_graph: Graph, tables_of: Tables) -> None:
    found = audit(small_graph, training=False)
    content = found.as_dict()
    kinds = ("out-neighbors", "in-neighbors", "attributes")
    content["twins"] = [
        {"alike": kind, "nodes": 6 * place, "test_share": 0.5, "agreement": None}
        for place, kind in zip((1, 0, 2), kinds, strict=True)
    ]
    page = page_of(make_run(), content)
    tables = tables_of(page)
    edges = found.structure
    assert ["Self-loops and repeats listed", "1, 3"] in tables["Edges and attributes"]
    assert ["Edges", f"{edges.edges} directed"] in tables["Edges and attributes"]
    assert ["Nodes without neighbours", "1"] in tables["Edges and attributes"]
    measures = tables["How alike neighbours are"]
    assert measures[1] == [
        "Node mean share of neighbours with a node's class",
        f"{found.homophily.node:.3f}",
    ]
    assert measures[5][1] == f"{found.homophily.label_informativeness:.3f}"
    twins = tables["Duplicate nodes"]
    assert twins[1:] == [
        ["The same out-neighbours", "6", "50.00%", "–"],
        ["The same attributes", "12", "50.00%", "–"],
    ]
    assert found.findings
    for one in found.findings:
        assert one.advice.split("`")[0].replace("'", "&#x27;") in page
    assert "Found by an audit of split 0" in page


def test_findings_name_their_weight_and_stay_text(
    make_run: MakeRun, small_graph: Graph, tables_of: Tables
) -> None:
    content = audit(small_graph, training=False).as_dict()
    content["findings"] = [
        {"severity": "defect", "topic": "t", "message": "<b>Bad</b>.", "advice": "Do <i>."},
        {"severity": "odd", "topic": "t", "message": "Fine.", "advice": "Nothing."},
    ]
    content["homophily"]["edge"] = None
    page = page_of(make_run(), content)
    assert tables_of(page)["Findings, the worst first"][1:] == [
        ["Defect", "<b>Bad</b>. Do <i>."],
        ["odd", "Fine. Nothing."],
    ]
    assert "<b>" not in page
    assert "share of edges inside a class</span></th><td>–</td>" in page


def test_a_healthy_graph_without_twins_or_split(make_run: MakeRun, small_graph: Graph) -> None:
    content = audit(small_graph, training=False).as_dict()
    page = page_of(make_run(), content | {"findings": [], "twins": [], "split": None})
    assert "Nothing stands out." in page
    assert "Duplicate nodes" not in page
    assert "Found by an audit without training" in page


def test_what_was_left_out_is_told(make_run: MakeRun) -> None:
    assert "<p>Too large &amp; slow.</p>" in page_of(make_run(), {"left_out": "Too large & slow."})


@pytest.mark.parametrize(
    ("content", "fault"),
    [({"graph": "g"}, "does not hold what a run writes"), ([], "must hold one JSON object")],
)
def test_a_damaged_audit_is_named(make_run: MakeRun, content: Any, fault: str) -> None:
    with pytest.raises(HPGMNError, match=rf"audit\.json {fault}"):
        page_of(make_run(), content)
