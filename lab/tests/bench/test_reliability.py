"""The table of docs/RELIABILITY.md: what was counted; every test that it names exists."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from hpgmn.base.version import __version__
from hpgmn_lab.bench.reliability import PAGE, filled, long_run_part, write_soak_record

ROOT = Path(__file__).parents[3]
TEXT = (
    "# Title\n<!-- long run: begin -->old<!-- long run: end -->\n"
    "<!-- cost of the same bits: begin -->old<!-- cost of the same bits: end -->\n"
)


def test_a_record_says_what_was_counted_where_and_when(tmp_path: Path) -> None:
    path = tmp_path / "soak" / "kill.json"
    figures = {"kills_survived": 1200, "hours": 0.5}
    write_soak_record(path, "Nothing is lost.", "tests/test_a.py::test_b", 59.96, figures)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["figures"] == figures
    assert (record["seconds"], record["version"]) == (60.0, __version__)
    assert {"processor", "torch", "python", "created"} <= set(record)
    text = filled(TEXT, tmp_path)
    line = (
        "| Nothing is lost. | `tests/test_a.py::test_b` | 1,200 kills survived, 0.50 hours | 60 |"
    )
    assert line in text
    assert "old" not in text
    other = {"kills_survived": 34, "cases_fuzzed": 5000, "seed": 12345}
    write_soak_record(path.with_name("z.json"), "Two.", "tests/test_a.py::test_c", 1, other)
    text = filled(TEXT, tmp_path)
    assert "In all: 1,234 kills survived, 5,000 cases fuzzed.\n" in text
    assert "| 34 kills survived, 5,000 cases fuzzed, 12345 seed | 1 |" in text
    assert filled(text, tmp_path) == text


def test_a_run_over_midnight_on_two_machines_names_both(tmp_path: Path) -> None:
    write_soak_record(tmp_path / "a.json", "One.", "t::a", 60, {})
    record = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    made = [
        record | {"created": f"2026-01-0{day}T00:00:00+00:00", "processor": name, "torch": "3"}
        for day, name in ((3, "b"), (1, "a"), (2, "a"))
    ]
    head = long_run_part(made).splitlines()[0]
    assert head.startswith("2026-01-01 to 2026-01-03, a, torch 3, ")
    assert "; b, torch 3, " in head
    assert head.endswith("3 tests, 3 minutes in all, two at a time.")


def test_without_records_the_page_says_how_to_make_some(tmp_path: Path) -> None:
    text = filled(TEXT, tmp_path)
    assert "`make soak` makes one" in text
    assert "`hpgmn bench deterministic` makes one" in text


def test_the_cost_of_the_same_bits_is_told_for_each_machine(
    tmp_path: Path, deterministic_record: dict[str, Any]
) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    other = {"device_kind": "cuda", "device": "A card"}
    for name, record in (("", deterministic_record), ("-gpu", deterministic_record | other)):
        (folder / f"deterministic{name}.json").write_text(json.dumps(record), encoding="utf-8")
    text = filled(TEXT, tmp_path)
    assert "On A card a training with the switch takes 1.50 times as long" in text
    assert text.index("a processor") > text.index("A card")  # deterministic-gpu comes first


def test_committed_page_is_what_the_committed_records_give() -> None:
    written = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    made = filled(written, ROOT / "lab" / "results")
    assert written == made, "docs/RELIABILITY.md is not up to date: make results"


def test_every_test_that_the_page_names_exists() -> None:
    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?(?:\[[^`]*\])?`", text))
    assert len(named) > 20
    for file, test in sorted(named):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not test or test in functions, f"{file}::{test} is named in {PAGE} and is not there"
