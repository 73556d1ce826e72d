"""Sentences about what is missing and what it cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hpgmn_lab.reproduction.cells import CellRecord
from hpgmn_lab.reproduction.grids import (
    cost_sentences,
    duration_words,
    metric_name,
    missing_sentences,
)
from hpgmn_lab.reproduction.plan import Budget, experiment
from hpgmn_lab.reproduction.tables import table

MakeRecord = Callable[..., CellRecord]
PLAN = experiment("table2", Budget(trials=2, splits=2, graphs=("texas",)))
CELLS = {cell.name: cell for cell in PLAN.cells}
GPU = {"device": "NVIDIA H200", "torch": "2.1.0", "processor": "p", "threads": 1}


def test_missing_and_outdated_cells_are_counted_apart(make_record: MakeRecord) -> None:
    old = dataclasses.replace(CELLS["texas-mlp-tuned"], trials=9)
    records = [make_record(old), make_record(CELLS["texas-hpgmn-tuned"])]
    found = missing_sentences(table(PLAN, {record.name: record for record in records}))
    assert found[0].startswith("9 of 11 cells have no record yet (–): texas-gcn-tuned, ")
    assert "texas-mlp-tuned" not in found[0]
    assert found[1] == (
        "1 of 11 cells have a record of another plan, which is not shown: texas-mlp-tuned."
    )


def test_nothing_missing_nothing_said(make_record: MakeRecord) -> None:
    assert missing_sentences(table(PLAN, {n: make_record(c) for n, c in CELLS.items()})) == []


def test_cost_names_trials_versions_devices_and_dates(make_record: MakeRecord) -> None:
    records = [
        make_record(CELLS["texas-mlp-tuned"], seconds=60.0),
        make_record(CELLS["texas-gcn-tuned"], seconds=3.0, created="2030-01-05T00:00:00+00:00"),
        make_record(CELLS["texas-hpgmn-shipped"], seconds=1.0, hardware=GPU, version="9.9"),
    ]
    found = cost_sentences(table(PLAN, {one.name: one for one in records}), "`command`")
    assert found[-1] == (
        "Made by `command`: 2 searches with 4 trials in all, each scored on 3 runs by validation "
        "alone (3 min 20 s), then 3 final runs (1 min 04 s), seconds summed over cells. hpgmn "
        "9.8.7, torch 2.0.1; hpgmn 9.9, torch 2.1.0. On A Processor, 2 threads; NVIDIA H200. "
        "2030-01-02 to 2030-01-05."
    )


def test_searches_of_different_size_give_a_range(make_record: MakeRecord) -> None:
    one, two = make_record(CELLS["texas-mlp-tuned"]), make_record(CELLS["texas-gcn-tuned"])
    assert one.search is not None
    first, second = (trial["settings"] for trial in one.search["trials"])
    scored, failed = {"val_score": [0.5]}, {"failed": "Out of memory."}
    trials = [scored | {"settings": first}, failed | {"settings": second}]
    one = dataclasses.replace(one, search={**one.search, "trials": trials})
    found = cost_sentences(table(PLAN, {r.name: r for r in (one, two)}), "c")
    assert "with 3 trials in all and 1 that failed, each scored on 1–3 runs" in found[-1]
    only = cost_sentences(table(PLAN, {one.name: one}), "c")
    assert "1 searches with 1 trials in all and 1 that failed, each scored on 1 run by" in only[-1]


def test_without_records_the_command_is_told() -> None:
    assert cost_sentences(table(PLAN, {}), "`c`")[-1] == "Make it with `c`."


def test_words() -> None:
    assert [duration_words(one) for one in (0, 59.6, 3599.4, 3600)] == [
        *("0 s", "1 min 00 s", "59 min 59 s", "1 h 00 min"),
    ]
    assert [metric_name(one) for one in ("texas", "minesweeper", "mine")] == [
        *("accuracy", "ROC-AUC", "accuracy"),
    ]
