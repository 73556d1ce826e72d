from pathlib import Path

import pytest

from hpgmn_lab.records import read_runs, score_text
from hpgmn_lab.reproduction.cells import collect_cells
from hpgmn_lab.results.page import main, page

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "lab" / "results"


def test_main_writes_the_page_of_the_records(make_facts, tmp_path):
    make_facts(tmp_path / "cells")
    results, docs = tmp_path / "results", tmp_path / "docs"
    collect_cells(tmp_path / "cells", results / "reproduction.jsonl")
    (results / "shipped-runs.md").write_text("## Earlier runs\n")
    main(["--results", str(results), "--docs", str(docs)])
    text = (docs / "RESULTS.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings[:3] == ["# Results", "## Table 1: the graphs", "## Earlier runs"]
    assert "Command: `hpgmn reproduce table1`." in text
    assert "No record yet: `hpgmn reproduce table2`, " in text
    assert list((docs / "pictures").iterdir()) == []  # no cells of the figure


def test_a_damaged_record_exits_with_code_2(tmp_path, capsys):
    (tmp_path / "portfolio.jsonl").write_text("{")
    with pytest.raises(SystemExit) as caught:
        main(["--results", str(tmp_path), "--docs", str(tmp_path / "docs")])
    assert caught.value.code == 2
    assert "portfolio.jsonl line 1" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_the_note_has_the_score_of_every_recorded_run():
    note = (RESULTS / "shipped-runs.md").read_text(encoding="utf-8")
    records = read_runs(RESULTS / "runs.jsonl")
    assert len(records) == 179
    assert [record.name for record in records if score_text(record) not in note] == []


def test_committed_page_is_what_the_committed_records_give():
    written = (ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8")
    assert written == page(RESULTS)[0], "docs/RESULTS.md is not up to date: make results"
