"""The page: sections for whatever records there are, nothing hidden, the same text each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.bench.page import PAGE, main, page
from hpgmn_lab.bench.plan_tables import filled
from hpgmn_lab.bench.records import write_record

ROOT = Path(__file__).parents[3]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results" / "benchmarks").mkdir(parents=True)
    return tmp_path / "results"


def test_without_records_the_page_has_no_sections(results: Path) -> None:
    assert "##" not in page(results)


def test_every_record_has_its_section_machine_and_command(
    results: Path,
    compare_record: dict[str, Any],
    growth_record: dict[str, Any],
    peers_record: dict[str, Any],
    forms_record: dict[str, Any],
    batches_record: dict[str, Any],
    workers_record: dict[str, Any],
    shards_record: dict[str, Any],
    deterministic_record: dict[str, Any],
) -> None:
    for name, record in (
        ("compare", compare_record),
        ("growth", growth_record | {"command": "hpgmn bench growth --repeats 3"}),
        ("peers", peers_record),
        ("forms", forms_record),
        ("batches", batches_record),
        ("workers", workers_record),
        ("shards", shards_record),
        ("deterministic", deterministic_record),
    ):
        write_record(record, results / "benchmarks" / f"{name}.json")
    (results / "benchmarks" / "yardstick-texas.json").write_text("{}")  # an input, not a record
    text = page(results)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        *("## Against a plain implementation", "## Growth", "## Peers"),
        *("## Forms of diffusion", "## Batches of rows", "## Workers", "## Node ranges"),
        "## The same bits each time",
    ]
    assert "```sh\nhpgmn bench growth --repeats 3\n```" in text
    assert "```sh\npython lab/benchmarks/compare.py --data $HPGMN_DATA --repeats 4\n```" in text
    assert text.count("Machine: ") == 8
    assert "| two workers against one | 1.75 × | ≥ 1.7 × | reached |" in text
    assert "| one round of the sketch | edge | 4 | 60 | 6 |" in text
    assert "Machine: a processor; 2 threads; torch 3; hpgmn 9.9; 2026-01-02." in text
    assert "| whole run, µs | 15 | 24 | 1.60 × |" in text
    assert "short by 0.10 ×" in text
    assert "| appnp | – | – | – | – | – | – | Out of memory while training appnp. |" in text
    assert "Other processes took at most 0.07 cores" in text
    assert "| squirrel | sketch | 0.6 | 70.0 ± 1.4 | -1.00 (-1.00 to -1.00) | 9 |" in text
    assert "reached: the interval holds 0" in text
    assert "![" not in text
    assert page(results) == text


def test_two_records_of_one_benchmark_are_told_apart_and_pictures_shown(
    results: Path, growth_record: dict[str, Any]
) -> None:
    folder = results / "benchmarks"
    write_record(growth_record, folder / "growth.json")
    other = growth_record | {"device_kind": "cuda", "device": "a GPU"}
    for size in other["sizes"]:
        size["device_peak_bytes"] = 2**30
    write_record(other, folder / "growth-gpu.json")
    (folder / "growth-gpu.svg").touch()
    text = page(results)
    assert text.count("## Growth\n") == 1
    assert "### a processor: `hpgmn bench NAME --device cpu`" in text
    assert "### a GPU" in text
    assert text.count("![") == 1
    assert "![Growth](../lab/results/benchmarks/growth-gpu.svg)" in text


def test_a_record_of_no_known_benchmark_is_refused(results: Path) -> None:
    (results / "benchmarks" / "grwth.json").write_text("{}")
    with pytest.raises(HPGMNError, match=r"grwth\.json cannot be shown.*Did you mean 'growth'"):
        page(results)


def test_main_writes_the_page_or_says_what_is_wrong(
    results: Path, growth_record: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(growth_record, results / "benchmarks" / "growth.json")
    docs = results.parent / "docs"
    main(["--results", str(results), "--docs", str(docs)])
    assert (docs / PAGE).read_text(encoding="utf-8") == page(results)
    (results / "benchmarks" / "growth.json").write_text("{")
    with pytest.raises(SystemExit) as stop:
        main(["--results", str(results), "--docs", str(docs)])
    assert stop.value.code == 2
    assert "Measure it again" in capsys.readouterr().err


def test_main_also_fills_the_plan(
    results: Path, shards_record: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    docs = results.parent / "docs"
    docs.mkdir()
    marks = "<!-- measured: begin --><!-- measured: end -->\n<!-- plan: begin --><!-- plan: end -->"
    (docs / "SCALE.md").write_text(f"# By hand\n{marks}\n")
    arguments = ["--results", str(results), "--docs", str(docs)]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "shards.json" in capsys.readouterr().err
    assert not (docs / PAGE).exists()  # both or none
    write_record(shards_record, results / "benchmarks" / "shards.json")
    main(arguments)
    text = (docs / "SCALE.md").read_text(encoding="utf-8")
    assert text.startswith("# By hand\n<!-- measured: begin -->\n\n1,000 nodes")
    main(arguments)
    assert (docs / "SCALE.md").read_text(encoding="utf-8") == text


def test_committed_plan_is_what_the_committed_records_give() -> None:
    written = (ROOT / "docs" / "SCALE.md").read_text(encoding="utf-8")
    made = filled(written, ROOT / "lab" / "results" / "benchmarks")
    assert written == made, "docs/SCALE.md is not up to date: make results"


def test_committed_page_is_what_the_committed_records_give() -> None:
    written = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    assert written == page(ROOT / "lab" / "results"), (
        "docs/BENCHMARKS.md is not up to date: make results"
    )
