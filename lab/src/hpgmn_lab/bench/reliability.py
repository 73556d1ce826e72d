"""What ``docs/RELIABILITY.md`` says of measurements: long runs, the price of the same bits."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path

from hpgmn.base.files import write_text
from hpgmn.base.machine import hardware
from hpgmn.base.version import __version__
from hpgmn_lab.bench import deterministic
from hpgmn_lab.bench.marked import with_parts
from hpgmn_lab.bench.records import Record, Table, read_record

PAGE = "RELIABILITY.md"
RECORDS = "soak"
PART = "long run"
COST = "cost of the same bits"
TOTALS = ("kills_survived", "damages_told", "cases_fuzzed", "files_tried")
"""What is added up over all tests."""


def write_soak_record(
    path: Path, promise: str, test: str, seconds: float, figures: Mapping[str, float]
) -> None:
    """Write what one test counted in its long form.

    Args:
        path: the file.
        promise: what was held, one sentence.
        test: the test, as pytest names it.
        seconds: how long it took.
        figures: what was counted; ``kills_survived`` is shown as "kills survived".
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
    write_text(path, json.dumps(record, indent=1) + "\n")


def filled(text: str, results: Path) -> str:
    """The page with its generated parts made anew.

    Args:
        text: the page.
        results: the folder of all results.
    """
    long = [read_record(path) for path in sorted((results / RECORDS).glob("*.json"))]
    costs = [read_record(path) for path in sorted(results.glob("benchmarks/deterministic*.json"))]
    return with_parts(text, PAGE, {PART: long_run_part(long), COST: cost_part(costs)})


def cost_part(records: list[Record]) -> str:
    """What ``--deterministic`` costs, a sentence for each record."""
    if not records:
        return "No record says what the switch costs. `hpgmn bench deterministic` makes one."
    return " ".join(deterministic.cost(record) for record in records)


def long_run_part(records: list[Record]) -> str:
    """Where and when the long run was made, and a line for each of its tests."""
    if not records:
        return "No long run is on record. `make soak` makes one."
    rows = [
        [record["promise"], f"`{record['test']}`", _counted(record), f"{record['seconds']:.0f}"]
        for record in records
    ]
    days = sorted({record["created"][:10] for record in records})
    places = sorted(
        {
            f"{record['processor']}, torch {record['torch']}, Python {record['python']}, "
            f"hpgmn {record['version']}"
            for record in records
        }
    )
    seconds = sum(record["seconds"] for record in records)
    head = (
        f"{' to '.join(days[:: max(1, len(days) - 1)])}, {'; '.join(places)}. "
        f"{len(records)} tests, {seconds / 60:.0f} minutes in all, two at a time."
    )
    sums = [
        f"{total:,} {name.replace('_', ' ')}"
        for name in TOTALS
        if (total := sum(record["figures"].get(name, 0) for record in records))
    ]
    table = Table(("promise", "test", "counted", "seconds"), rows)
    return "\n\n".join([head, *([f"In all: {', '.join(sums)}."] if sums else []), table.markdown()])


def _counted(record: Record) -> str:
    parts = []
    for name, value in record["figures"].items():
        number = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
        if name == "seed":  # to be typed again
            number = str(value)
        parts.append(f"{number} {name.replace('_', ' ')}")
    return ", ".join(parts)
