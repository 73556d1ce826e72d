"""Table 1 as it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpgmn_lab.reproduction.facts import read_facts
from hpgmn_lab.reproduction.facts_grid import facts_blocks
from hpgmn_lab.reproduction.grids import Grid, Items

MakeFacts = Callable[..., None]


def test_measured_stands_beside_printed(tmp_path: Path, make_facts: MakeFacts) -> None:
    make_facts(tmp_path)
    blocks, count = facts_blocks(("texas", "cora"), tmp_path, "`c`")
    [grid] = [block for block in blocks if isinstance(block, Grid)]
    shown = [[words.text + words.rest for words in row] for row in grid.rows]
    assert shown == [
        ["texas", "183 / 183", "325 / 309 ≠", "1,703 / 1,703", "5 / 5", "0.11 / 0.11"],
        ["cora", "–", "–", "–", "–", "–"],
    ]
    assert Items(("texas, edges: self-loops are counted.",)) in blocks
    assert "1 of 2 graphs have no record yet (–): cora." in blocks
    assert blocks[-1] == "Made by `c`; nothing is trained for it."
    assert count == 1


def test_nothing_to_explain_and_nothing_missing(tmp_path: Path, make_facts: MakeFacts) -> None:
    printed = {"nodes": 183, "edges": 325, "attributes": 1703, "classes": 5, "homophily": 0.11}
    make_facts(tmp_path, printed=printed)
    blocks, count = facts_blocks(("texas",), tmp_path, "`c`")
    assert (len(blocks), count) == (3, 1)
    assert not any(isinstance(block, Items) for block in blocks)


def test_what_nothing_explains_is_said(tmp_path: Path, make_facts: MakeFacts) -> None:
    make_facts(tmp_path, explanations={})
    assert Items(("texas, edges: not explained.",)) in facts_blocks(("texas",), tmp_path, "c")[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"nodes": 1}'])
def test_damaged_facts_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "texas-facts.json").write_text(text)
    assert read_facts(tmp_path, "texas") is None
    assert read_facts(tmp_path, "cora") is None
