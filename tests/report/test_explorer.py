"""The section of the node explorer as a page holds it; what it does is tested in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.report import build_report
from hpgmn.report.explorer import explorer, explorer_script

MakeRun = Callable[..., Path]
EVIL = "</script><b>bold</b><!--"


def node(prediction: int, label: int | None, role: str, **more: Any) -> dict[str, Any]:
    chances = [0.1, 0.1]
    chances[prediction] = 0.9
    plain = {"degree": 0, "neighbors": [], "edges": []}
    return plain | {
        "prediction": prediction,
        "label": label,
        "role": role,
        "probabilities": chances,
        **more,
    }


def content(**changes: Any) -> dict[str, Any]:
    nodes = [node(0, 0, "train"), node(1, 0, "test"), node(1, None, "unlabelled")]
    nodes[2]["probabilities"] = [0.4, 0.6]
    return {
        "split": 3,
        "seeds": 1,
        "num_nodes": 3,
        "classes": ["yes", "no"],
        "ids": ["ann", EVIL, "a b/ö"],
        "counts_as": [0, 1, 1],
        "is_known": [1, 0, 0],
        "nodes": nodes,
        "directed": True,
        "statistics": [],
        "patterns": [],
        "notes": [],
        **changes,
    }


def write(folder: Path, **changes: Any) -> Path:
    (folder / "explorer.json").write_text(json.dumps(content(**changes)), encoding="utf-8")
    return folder


def section(folder: Path) -> str:
    [(key, title, markup)] = explorer(folder)
    assert (key, title) == ("explorer", "Node explorer")
    return markup


def test_a_run_without_the_file_has_no_section_and_no_script(make_run: MakeRun) -> None:
    folder = make_run()
    page = build_report(folder)
    assert explorer(folder) == []
    assert explorer_script([("graph", "Graph", "")]) == ""
    assert "<script" not in page
    assert "script-src" not in page


def test_a_file_without_nodes_gives_no_section(tmp_path: Path) -> None:
    assert explorer(write(tmp_path, nodes=[], ids=[])) == []


def test_exactly_one_script_may_run_and_it_is_known_by_its_hash(make_run: MakeRun) -> None:
    page = build_report(write(make_run()))
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    assert [about for about, _ in scripts] == [
        ' type="application/json" id="explorer-data"',
        "",
    ]
    digest = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_an_id_never_becomes_markup(make_run: MakeRun) -> None:
    page = build_report(write(make_run()))
    assert "<b>" not in page
    [data] = re.findall(r'id="explorer-data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["ids"] == ["ann", EVIL, "a b/ö"]
    assert '<a href="#node=%3C%2Fscript%3E%3Cb%3Ebold%3C%2Fb%3E%3C%21--">&lt;/script&gt;' in page


def test_the_script_makes_no_markup_from_text_and_asks_for_nothing() -> None:
    script = explorer_script([("explorer", "", "")])
    words = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval", "Function(")
    for word in (*words, "fetch", "XMLHttp", "import(", "sendBeacon", "</script", "<!--"):
        assert word not in script
    assert len(script.splitlines()) <= 400
    assert max(len(line) for line in script.splitlines()) <= 110


def test_without_scripts_the_command_is_named(tmp_path: Path) -> None:
    markup = section(write(tmp_path))
    [without] = re.findall("<noscript>(.*?)</noscript>", markup, re.DOTALL)
    assert "<code>hpgmn explain RUN --node ID</code>" in without
    assert 'id="explorer-tool" hidden' in markup


@pytest.mark.parametrize(
    ("changes", "said", "unsaid"),
    [
        ({}, ["of split 3, as", "All 3 nodes are listed."], ["seeds", "was computed"]),
        ({"seeds": 4}, ["of split 3, the mean of 4 seeds, as"], []),
        ({"num_nodes": 51234}, ["3 of 51,234 nodes are listed: a fixed sample"], ["All"]),
        (
            {"nodes": [node(0, 0, "train", support=[]), node(0, 0, "train"), node(0, 0, "train")]},
            ["What each neighbour adds was computed for 1 of them."],
            [],
        ),
    ],
)
def test_the_section_says_what_it_holds(
    tmp_path: Path, changes: dict[str, Any], said: list[str], unsaid: list[str]
) -> None:
    about = re.sub("<style>.*</style>", "", section(write(tmp_path, **changes)), flags=re.DOTALL)
    about = re.sub("<[^>]*>", "", about.split("<noscript>")[0])
    for words in said:
        assert words in about
    for words in unsaid:
        assert words not in about


def examples(markup: str) -> list[str]:
    [line] = re.findall("<p>For example: (.*?)</p>", markup)
    return re.findall(r">([^<]*)</a> \(([^)]*)\)", line)


def test_examples_are_a_mistake_a_turning_one_and_the_least_sure(tmp_path: Path) -> None:
    found = examples(section(write(tmp_path)))
    assert [words for _, words in found] == ["predicted wrongly", "the least sure"]
    assert found[1][0] == "a b/ö"
    turning = [
        node(0, 0, "train", turning={"neighbors": [1, 2]}),
        node(0, 0, "train", turning={"neighbors": [2]}),
        node(1, 0, "train"),
    ]
    turning[1]["probabilities"] = [0.5, 0.5]
    found = examples(section(write(tmp_path, nodes=turning, ids=["x", "y", "z"])))
    assert found == [("y", "decided by few neighbours")]  # also the least sure: named once


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("{", "cannot be read"),
        ("[]", "lacks split"),
        ("3", "cannot be read"),
        ("{}", "lacks split"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: str, told: str) -> None:
    (tmp_path / "explorer.json").write_text(damage, encoding="utf-8")
    with pytest.raises(HPGMNError, match=told) as caught:
        explorer(tmp_path)
    assert "explorer.json" in str(caught.value)
    assert "--overwrite" in str(caught.value)
