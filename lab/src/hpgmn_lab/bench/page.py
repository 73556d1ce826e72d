"""Write docs/BENCHMARKS.md and the generated parts of docs/SCALE.md and docs/RELIABILITY.md.

    python -m hpgmn_lab.bench.page                                  # make results
    python -m hpgmn_lab.bench.page --add bench/growth/growth.json --name growth-gpu

The second form first copies a record that ``hpgmn bench`` has written, and its picture, into the
results. The same records always give the same pages.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_text
from hpgmn.base.machine import hardware
from hpgmn.base.version import __version__
from hpgmn_lab.bench import BENCHMARKS, deterministic, load_module, scale, shards, yardstick
from hpgmn_lab.bench.records import Record, cores_taken, environment_text, machine_name, read_record
from hpgmn_lab.records import read_named, write_named
from hpgmn_lab.rendering import render

BENCHMARK_RECORDS, SOAK_RECORDS = "benchmarks.jsonl", "soak.jsonl"
PICTURES = "pictures"
INPUTS = "yardstick-"
"""Records whose names start so are read by lab/benchmarks/compare.py, not by the page."""
COMPARED = ("compare", "compare-gpu")
"""The records that lab/benchmarks/compare.py writes."""
TOTALS = ("kills_survived", "damages_told", "cases_fuzzed", "files_tried")
"""Figures that are added up over all tests."""


def benchmarks_page(records: Mapping[str, Record], pictures: Path) -> str:
    """Return the text of docs/BENCHMARKS.md."""
    sections: dict[str, list[Record]] = {name: [] for name in (*COMPARED, *BENCHMARKS)}
    for name, record in records.items():
        if name.startswith(INPUTS):
            continue
        record = {"benchmark": name, "device_kind": "cpu"} | record  # absent in the oldest
        if record["benchmark"] not in sections:
            error = HPGMNError.unknown("benchmark", record["benchmark"], sections)
            raise error.prefixed(f"The record {name} cannot be shown: ")
        sections[record["benchmark"]].append(_section(name, record, pictures))
    return render("benchmarks.md.j2", sections=sections)


def _section(name: str, record: Record, pictures: Path) -> Record:
    benchmark = record["benchmark"]
    module = yardstick if benchmark in COMPARED else load_module(benchmark)
    return {
        "machine": machine_name(record),
        "command": record.get("command") or module.command_for(record["repeats"]),  # the oldest
        "environment": environment_text(record),
        "tables": [table.markdown() for table in module.tables(record)],
        "picture": f"{PICTURES}/{name}.svg" if (pictures / f"{name}.svg").is_file() else None,
        "cores_taken": cores_taken(record),
    }


def scale_page(text: str, records: Mapping[str, Record]) -> str:
    """Return docs/SCALE.md with its measured costs and its plan."""
    record, gpu = records.get("shards"), records.get("shards-gpu")
    if record is None:
        raise HPGMNError(
            "docs/SCALE.md needs the record 'shards'.", "Measure it (`hpgmn bench shards`)"
        )
    tables = [shards.unit_table(record), shards.topk_table(record), shards.training_table(record)]
    tables += [] if gpu is None else [shards.training_table(gpu)]
    measured = render(
        "scale_measured.md.j2",
        record=record,
        environment=environment_text(record),
        cores_taken=cores_taken(record),
        tables=[*tables, scale.formula_table(record)],
    )
    text = replace_part(text, "measured", measured)
    plan = render("scale_plan.md.j2", **scale.plan_facts(record))
    return replace_part(text, "plan", plan)


def replace_part(text: str, name: str, part: str) -> str:
    """Replace what is between the markers ``<!-- name: begin -->`` and ``<!-- name: end -->``."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        raise HPGMNError(f"The markers '{begin}' and '{end}' are missing.", "Restore them")
    return f"{before}{begin}\n\n{part.strip()}\n\n{end}{after}"


# docs/RELIABILITY.md.

_FIGURES_ROW = re.compile(r"^(\| [^|]+ \| )([^|]*`tests/[^|]*)( \| )[^|\n]*\|$", re.MULTILINE)
"""A row of a table of three columns: guarantee, tests, figures."""


def reliability_page(text: str, soak: Mapping[str, Record], records: Mapping[str, Record]) -> str:
    """Return docs/RELIABILITY.md with the figures of the last long run and its summary.

    In tables of guarantees the last cell is replaced by what the tests of the row have counted.
    """
    text = _FIGURES_ROW.sub(
        lambda row: f"{row[1]}{row[2]}{row[3]}{_figures(row[2], soak.values())} |", text
    )
    costs = [
        deterministic.summary(record)
        for record in records.values()
        if record.get("benchmark") == "deterministic"
    ]
    sums = _sums(soak.values())
    totals = [sums[name] for name in TOTALS if name in sums]
    long_run = render("long_run.md.j2", runs=list(soak.values()), totals=totals)
    text = replace_part(text, "long run", long_run)
    return replace_part(text, "deterministic", render("deterministic.md.j2", costs=costs))


def _figures(tests: str, runs: Any) -> str:
    """Add up the figures of the named test files, or tests, and format them."""
    names = re.findall(r"`(tests/[^`]+)`", tests)
    matching = [run for run in runs if run["test"].startswith(tuple(names))]
    return ", ".join(_sums(matching).values()) or "–"


def _sums(runs: Any) -> dict[str, str]:
    """Add up all figures over runs except seeds, and format them."""
    sums: dict[str, float] = {}
    for run in runs:
        for name, value in run["figures"].items():
            sums[name] = sums.get(name, 0) + value
    sums.pop("seed", None)
    texts = {}
    for name, value in sums.items():
        label = name.replace("_told", "_detected").replace("_", " ")
        texts[name] = f"{value:,} {label}" if isinstance(value, int) else f"{value:,.2f} {label}"
    return texts


def append_soak_record(
    path: Path, name: str, promise: str, test: str, seconds: float, figures: Mapping[str, float]
) -> None:
    """Append what a test, named by its id in pytest, has counted in its long form.

    Concurrent processes may append. The figure ``kills_survived`` is shown as "kills survived".
    """
    record = {
        "promise": promise,
        "test": test,
        "figures": dict(figures),
        "seconds": round(seconds, 1),
        "version": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **hardware("cpu"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"name": name, "record": record}) + "\n"
    with path.open("ab", buffering=0) as file:  # one write: lines do not mix
        file.write(line.encode())


# Command line.


def add_measured(path: Path, name: str | None, results: Path, docs: Path) -> None:
    """Copy a record of ``hpgmn bench`` and its picture into the results."""
    record = read_record(path)
    name = name or path.stem
    if record.get("benchmark") not in (*COMPARED, *BENCHMARKS) and not name.startswith(INPUTS):
        raise HPGMNError(f"{path} is not the record of a benchmark.", "Measure it again")
    records = results / BENCHMARK_RECORDS
    write_named(records, read_named(records) | {name: record})
    if path.with_suffix(".svg").is_file():
        (docs / PICTURES).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path.with_suffix(".svg"), docs / PICTURES / f"{name}.svg")


def write_pages(results: Path, docs: Path) -> None:
    """Write all pages, or none if a record is damaged."""
    records = read_named(results / BENCHMARK_RECORDS)
    soak = dict(sorted(read_named(results / SOAK_RECORDS).items()))
    texts = {docs / "BENCHMARKS.md": benchmarks_page(records, docs / PICTURES)}
    path = docs / "SCALE.md"
    if path.is_file():
        texts[path] = scale_page(path.read_text(encoding="utf-8"), records)
    path = docs / "RELIABILITY.md"
    if path.is_file():
        texts[path] = reliability_page(path.read_text(encoding="utf-8"), soak, records)
    docs.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_text(path, text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pages; an invalid record prints a one-line message and exits with code 2."""
    parser = argparse.ArgumentParser(prog="python -m hpgmn_lab.bench.page")
    parser.add_argument("--results", type=Path, default=Path("lab/results"), help="records")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="pages")
    parser.add_argument("--add", type=Path, metavar="RECORD.json", help="add this record first")
    parser.add_argument("--name", help="name of the added record [that of its file]")
    options = parser.parse_args(arguments)
    try:
        if options.add is not None:
            add_measured(options.add, options.name, options.results, options.docs)
        write_pages(options.results, options.docs)
    except HPGMNError as error:
        parser.exit(2, f"Error: {error}\n")


if __name__ == "__main__":
    main()
