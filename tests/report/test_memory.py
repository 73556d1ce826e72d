"""The memory's section against the numbers it is made from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hpgmn.report import build_report
from hpgmn.report.memory import (
    MOST_PATTERNS,
    enlargement,
    memory_map,
    memory_section,
    pattern_marks,
    pattern_picture,
)

Make = Callable[..., dict[str, Any]]
Tables = Callable[[str], dict[str, list[list[str]]]]
LONG = [
    f"class {number} with a name that is rather long, indeed {number:>3}" for number in range(40)
]


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter("text")]


def test_patterns_are_told_as_they_are(make_understanding: Make, tables_of: Tables) -> None:
    found = make_understanding()
    page = memory_section(found, "")
    assert "The memory has 6 patterns, 1 unused and 1 redundant." in page
    marks = pattern_marks(found)
    first, *_, again, unused = [one["number"] for one in found["patterns"]]
    assert marks == {unused: "unused", again: f"like {first}"}
    rows = tables_of(page)["What each pattern stands for"]
    assert rows[0] == [
        *("Pattern", "Attention", "Classes of its nodes", "Classes of their out-neighbours"),
        *("Classes of their in-neighbours", "Typical nodes"),
    ]
    for row, one in zip(rows[1:], found["patterns"], strict=True):
        mark = f" ({marks[one['number']]})" if one["number"] in marks else ""
        assert row[0] == f"{one['number']}{mark}"
        assert row[1] == f"{100 * one['attention']:.1f}%"
        best = max(one["classes"], key=lambda name: one["classes"][name])
        assert row[2].startswith(f"{best} {100 * one['classes'][best]:.0f}%")
        assert row[-1] == ", ".join(one["typical_nodes"])
    colours = tables_of(page)["Classes of each pattern's nodes"]
    one = found["patterns"][2]
    shares = [f"{100 * one['classes'][name]:.0f}%" for name in found["class_names"]]
    assert colours[3] == [str(one["number"]), *shares]


def test_map_tells_centres_and_the_share_it_shows(
    make_understanding: Make, tables_of: Tables
) -> None:
    found = make_understanding(num_nodes=30)
    page = memory_section(found, "")
    assert "75% of the variance of the queries (50% across, 25% upwards) and 40%" in page
    assert "All 30 nodes" in page
    places, classes = np.array(found["map"]["nodes"]), np.array(found["map"]["classes"])
    rows = tables_of(page)["Where the nodes of each predicted class lie"][1:]
    for label, row in enumerate(rows):
        across, upwards = (
            sum(places[v, axis] for v in range(30) if classes[v] == label) / 10 for axis in (0, 1)
        )
        assert row == [found["class_names"][label], "10", f"{across:.3g}", f"{upwards:.3g}"]
    rows = tables_of(page)["Where the patterns lie, from the mean pattern"][1:]
    across, upwards = found["map"]["patterns"][4]
    assert rows[4] == ["4", f"{across:.3g}", f"{upwards:.3g}"]


def test_sampled_nodes_are_said(make_understanding: Make) -> None:
    found = make_understanding(num_nodes=30)
    found["map"]["all_nodes"] = 12345
    assert "30 of 12,345 nodes, drawn at random" in memory_section(found, "")


def test_patterns_reach_as_far_as_the_outer_nodes() -> None:
    nodes = [[float(place), 0.0] for place in range(11)]  # nine tenths lie within 9
    content = {"nodes": nodes, "patterns": [[0.0, 0.3], [0.1, 0.0]]}
    assert enlargement(content) == 30
    assert enlargement({"nodes": nodes, "patterns": [[0.0, 0.0]]}) == 1
    assert enlargement({"nodes": [[0.0, 0.0]], "patterns": [[1.0, 0.0]]}) == 1


def test_map_has_numbers_at_the_used_patterns_only(make_understanding: Make) -> None:
    found = make_understanding()
    marks = pattern_marks(found)
    used = [number for number in range(6) if number not in marks]
    words = texts(memory_map(found["map"], found["class_names"], used, "map"))
    numbers = [word for word in words if re.fullmatch(r"\d", word)]
    assert numbers[-4:] == [str(number) for number in used]
    assert "unused or redundant" in words
    every = list(range(6))
    words = texts(memory_map(found["map"], found["class_names"], every, "map"))
    assert "unused or redundant" not in words


def test_map_numbers_the_most_used_of_many_patterns(make_understanding: Make) -> None:
    found = make_understanding(num_patterns=41)
    used = list(range(40, -1, -1))
    words = texts(memory_map(found["map"], found["class_names"], used, "map"))
    assert words.count("40") == 1
    assert "10" not in words  # the 31st
    assert "unused or redundant, or less used" in words


def test_many_long_classes_are_joined_and_cut(make_understanding: Make) -> None:
    found = make_understanding(classes=LONG, num_patterns=72, num_nodes=200)
    page = memory_section(found, "")
    assert "The 11 classes that patterns stand for least are drawn as one." in page
    assert f"Drawn are the {MOST_PATTERNS} most used patterns of 72." in page
    assert "Classes of each pattern's nodes" not in page
    shown = found["patterns"][:MOST_PATTERNS]
    words = texts(pattern_picture(shown, LONG, {}, 72, "p"))
    assert "11 other classes" in words
    assert max(len(word) for word in words) <= 30
    assert "33 other classes" in texts(memory_map(found["map"], LONG, [0], "map"))


def test_a_model_without_memory_says_so(make_understanding: Make) -> None:
    found = make_understanding(patterns=[], map=None, model="<gcn>")
    page = memory_section(found, "")
    assert page == (
        "<p>&lt;gcn&gt; was trained without a memory, so there are no patterns "
        "(hpgmn with memory=true has them).</p>"
    )


def test_a_memory_without_a_map_has_no_map(make_understanding: Make) -> None:
    assert "<h3>" not in memory_section(make_understanding(map=None), "")


def test_patterns_of_no_nodes_have_dashes(make_understanding: Make, tables_of: Tables) -> None:
    found = make_understanding(num_patterns=4)
    for one in found["patterns"]:
        one["classes"] = dict.fromkeys(one["classes"], 0.0)
    rows = tables_of(memory_section(found, ""))["What each pattern stands for"]
    assert rows[1][2] == "–"


@pytest.mark.parametrize("change", [{"patterns": 3}, {"map": {"nodes": []}}, {"unused": None}])
def test_a_file_of_another_kind_is_named(
    make_run: Callable[..., Path], make_understanding: Make, change: dict[str, Any]
) -> None:
    from hpgmn.base.errors import HPGMNError

    folder = make_run()
    path = folder / "understanding.json"
    path.write_text(json.dumps(make_understanding(**change)), encoding="utf-8")
    with pytest.raises(HPGMNError, match=r"understanding\.json does not hold what a run writes"):
        build_report(folder)
