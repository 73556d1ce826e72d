"""The pages: sections for all records, generated parts, and the committed text."""

import ast
import re
from pathlib import Path

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.bench.page import (
    BENCHMARK_RECORDS,
    SOAK_RECORDS,
    append_soak_record,
    benchmarks_page,
    main,
    reliability_page,
    replace_part,
    scale_page,
)
from hpgmn_lab.bench.records import write_record
from hpgmn_lab.records import read_named, write_named

ROOT = Path(__file__).parents[3]
SCALE = """# Scale
<!-- measured: begin -->
earlier text
<!-- measured: end -->
by hand \\1
<!-- plan: begin --><!-- plan: end -->
"""
RELIABILITY = """# Reliability
| guarantee | test | figures |
| --- | --- | --- |
| Nothing is lost. | `tests/test_a.py` | earlier text |
| Nothing else. | `tests/test_b.py::test_c`, `tests/test_d.py` | |
<!-- deterministic: begin -->earlier text<!-- deterministic: end -->
<!-- long run: begin -->earlier text<!-- long run: end -->
"""


def test_without_records_the_page_has_no_sections(tmp_path):
    assert "##" not in benchmarks_page({"yardstick-texas": {}}, tmp_path)


def test_every_record_has_its_section_machine_and_command(tmp_path, request, growth_record):
    names = ("workers", "compare", "peers", "forms", "batches", "shards", "deterministic", "serve")
    records = {name: request.getfixturevalue(f"{name}_record") for name in names}
    records["growth"] = growth_record | {"command": "hpgmn bench growth --repeats 3"}
    text = benchmarks_page(records, tmp_path)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        *("## Against a plain implementation", "## Growth", "## Peers"),
        *("## Forms of diffusion", "## Batches of rows", "## Workers", "## Node ranges"),
        *("## Bit-identical results", "## The service"),
    ]
    assert "```sh\nhpgmn bench growth --repeats 3\n```" in text
    assert "```sh\npython lab/benchmarks/compare.py --data $HPGMN_DATA --repeats 4\n```" in text
    assert text.count("Machine: ") == 9
    assert "Machine: a processor; 2 threads; torch 3; hpgmn 9.9; 2026-01-02." in text
    assert "| two workers against one | 1.75 × | ≥ 1.7 × | reached |" in text
    assert "| appnp | – | – | – | – | – | – | Out of memory while training appnp. |" in text
    assert "Other processes used at most 0.07 cores" in text
    assert "![" not in text
    assert "\n\n\n" not in text


def test_two_records_of_one_benchmark_have_headings_and_pictures(tmp_path, growth_record):
    gpu = growth_record | {"device_kind": "cuda", "device": "a GPU"}
    for size in gpu["sizes"]:
        size["device_peak_bytes"] = 2**30
    (tmp_path / "growth-gpu.svg").touch()
    text = benchmarks_page({"growth": growth_record, "growth-gpu": gpu}, tmp_path)
    assert text.count("## Growth\n") == 1
    assert "### a processor: `hpgmn bench NAME --device cpu`" in text
    assert "### a GPU" in text
    assert text.count("![") == 1
    assert "![Growth](pictures/growth-gpu.svg)" in text


def test_an_unknown_benchmark_is_refused(tmp_path):
    with pytest.raises(HPGMNError, match=r"grwth.*Did you mean 'growth'"):
        benchmarks_page({"grwth": {}}, tmp_path)


def test_parts_between_markers_are_replaced():
    text = "a\n<!-- x: begin -->earlier text<!-- x: end -->\nb"
    assert replace_part(text, "x", r"\1 new") == (
        "a\n<!-- x: begin -->\n\n\\1 new\n\n<!-- x: end -->\nb"
    )
    with pytest.raises(HPGMNError, match="<!-- y: begin -->"):
        replace_part(text, "y", "")


def test_scale_has_measured_costs_and_a_plan(shards_record):
    text = scale_page(SCALE, {"shards": shards_record})
    assert text.startswith("# Scale\n<!-- measured: begin -->\n\n1,000 nodes, 10,000 edges, F = 4,")
    assert "earlier text" not in text
    assert "\nby hand \\1\n" in text
    assert "Other processes used at most 0.03 cores." in text
    assert "| one round of the sketch | edge | 4 | 60 | 6 |" in text
    assert "| one round of the sketch | 1 | 1 |" in text  # 0.6 and 0.59 MB
    assert re.search(
        r"\*\*[\d.]+ hours in total: .*\*\* `--ranges \d+ --memory \d+`: \d+ conc", text
    )
    assert scale_page(text, {"shards": shards_record}) == text
    gpu = shards_record | {"device_kind": "cuda"}
    text = scale_page(text, {"shards": shards_record, "shards-gpu": gpu})
    assert text.count("| training on shards: 500 train rows in batches of 50 |") == 2
    with pytest.raises(HPGMNError, match="'shards'"):
        scale_page(text, {})


def test_reliability_has_the_figures_of_each_row(tmp_path, deterministic_record):
    path = tmp_path / "soak.jsonl"
    figures = {"kills_survived": 1200, "hours": 0.5, "seed": 7}
    append_soak_record(path, "a", "Nothing is lost.", "tests/test_a.py::test_x[1]", 59.96, figures)
    append_soak_record(path, "b", "Two.", "tests/test_a.py::test_y", 60, {"kills_survived": 34})
    append_soak_record(path, "c", "Three.", "tests/test_d.py::test_z", 1, {"damages_told": 5})
    soak = read_named(path)
    assert {"processor", "torch", "python", "created", "version"} <= set(soak["a"])
    assert soak["a"]["seconds"] == 60.0
    text = reliability_page(RELIABILITY, soak, {"deterministic": deterministic_record})
    assert "| `tests/test_a.py` | 1,234 kills survived, 0.50 hours |" in text
    assert "| `tests/test_b.py::test_c`, `tests/test_d.py` | 5 damages detected |" in text
    assert "earlier text" not in text
    assert "3 tests, 2 minutes in total" in text
    assert "1,234 kills survived, 5 damages detected. Every record" in text
    assert "On a processor training with `--deterministic` takes 1.50 times as long" in text
    assert "bit-identical for 2 of 2 models with it, for 1 without" in text
    assert reliability_page(text, soak, {"deterministic": deterministic_record}) == text


def test_reliability_without_records_names_the_commands():
    text = reliability_page(RELIABILITY, {}, {})
    assert "| `tests/test_a.py` | – |" in text
    assert "`make soak` writes one" in text
    assert "`hpgmn bench deterministic` measures one" in text


def test_a_long_run_on_two_days_and_machines_names_both(tmp_path):
    append_soak_record(tmp_path / "s.jsonl", "a", "One.", "t::a", 60, {})
    record = read_named(tmp_path / "s.jsonl")["a"]
    soak = {
        f"{day}": record | {"created": f"2026-01-0{day}T00:00:00+00:00", "processor": name}
        for day, name in ((3, "b"), (1, "a"), (2, "a"))
    }
    text = reliability_page(RELIABILITY, soak, {})
    assert "\n2026-01-01 to 2026-01-03; a, torch " in text
    assert "; b, torch " in text


def test_main_adds_a_record_and_writes_the_pages_or_none(
    tmp_path, growth_record, shards_record, capsys
):
    results, docs, out = tmp_path / "results", tmp_path / "docs", tmp_path / "bench"
    docs.mkdir()
    out.mkdir()
    (docs / "SCALE.md").write_text(SCALE)
    (docs / "RELIABILITY.md").write_text(RELIABILITY)
    write_record(growth_record, out / "growth.json")
    (out / "growth.svg").write_text("<svg/>")
    arguments = ["--results", str(results), "--docs", str(docs)]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--add", str(out / "growth.json"), "--name", "growth-gpu"])
    assert stop.value.code == 2
    assert "'shards'" in capsys.readouterr().err
    assert not (docs / "BENCHMARKS.md").exists()
    assert read_named(results / BENCHMARK_RECORDS) == {"growth-gpu": growth_record}
    assert (docs / "pictures" / "growth-gpu.svg").read_text() == "<svg/>"
    stored = {"growth-gpu": growth_record, "shards": shards_record}
    write_named(results / BENCHMARK_RECORDS, stored)
    main(arguments)
    assert "pictures/growth-gpu.svg" in (docs / "BENCHMARKS.md").read_text()
    for name in ("SCALE.md", "RELIABILITY.md"):
        assert "earlier text" not in (docs / name).read_text()
    (out / "growth.json").write_text("{}")
    with pytest.raises(SystemExit):
        main([*arguments, "--add", str(out / "growth.json")])


@pytest.mark.parametrize("name", ["BENCHMARKS.md", "SCALE.md", "RELIABILITY.md"])
def test_committed_pages_are_up_to_date(name):
    records = read_named(ROOT / "lab" / "results" / BENCHMARK_RECORDS)
    soak = dict(sorted(read_named(ROOT / "lab" / "results" / SOAK_RECORDS).items()))
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    pages = {
        "BENCHMARKS.md": lambda: benchmarks_page(records, ROOT / "docs" / "pictures"),
        "SCALE.md": lambda: scale_page(written, records),
        "RELIABILITY.md": lambda: reliability_page(written, soak, records),
    }
    assert written == pages[name](), f"docs/{name} is out of date: make results"


def test_every_test_named_in_reliability_exists():
    text = (ROOT / "docs" / "RELIABILITY.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text))
    assert len(named) > 20
    for file, test in sorted(named):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not test or test in functions, f"{file}::{test} does not exist"
