from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.models import settings_for
from hpgmn_lab.reproduction.cells import collect_cells, write_cell
from hpgmn_lab.reproduction.plan import shipped
from hpgmn_lab.results.page import main, page

Write = Callable[..., Path]
WriteTrials = Callable[..., None]
Cells = Callable[..., list[str]]

ROOT = Path(__file__).parents[3]
FOUR = ["attributes", "class_counts", "class_means", "adjacency"]


def section(text, title):
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.fixture
def results(write_run, tmp_path):
    """Squirrel well above the paper, texas within the margin, pubmed short of it with a note."""
    folder = tmp_path / "results"
    high = [74.0 + split + seed for split in range(10) for seed in range(3)]
    write_run(folder, "squirrel", "hpgmn", high)
    write_run(folder, "texas", "hpgmn", [80.5, 82.5, 84.5, 86.5, 88.5] * 2)
    write_run(folder, "pubmed", "hpgmn-appnp", [80.0, 80.2, 80.4, 80.6, 80.8], splits=1)
    (folder / "notes.yaml").write_text("pubmed-hpgmn-appnp: Both encoders\n  were tried.\n")
    return folder


def test_numbers_in_the_table_are_those_of_the_record(cells, results):
    # 74 … 85: mean 79.5, sample variance (30 · 8.25 + 30 · 2/3) / 29 = 9.224, std 3.04
    assert cells(page(results), "squirrel", "hpgmn") == [
        *("squirrel", "hpgmn", "**79.5 ± 3.0**", "30 = 10 × 3", "72.3 ± 2.3", "reached"),
        *("76.7, FaberNet (reached)", "81.5", "43.2", "12"),
    ]


def test_row_within_the_margin_says_by_how_much_it_is_lower(cells, results):
    # mean 84.5, s = 2.9814, t(0.975, 9) = 2.2622: 84.5 ± 2.13 holds the paper's 85.1
    found = cells(page(results), "texas", "hpgmn")
    assert found[5:7] == ["reached, 0.60 lower", "89.2, M2M-GNN (short by 4.70)"]


def test_row_short_of_the_paper_is_explained(cells, results):
    text = page(results)
    found = cells(text, "pubmed", "hpgmn-appnp")
    assert found[5:7] == ["short by 2.00", "82.7, GRAND (short by 2.30)"]
    assert found[8] == "–"  # no label estimator
    # s = 0.316228, t(0.975, 4) = 2.776445: 80.4 ± 0.392649
    assert (
        "| pubmed-hpgmn-appnp | 80.40 | 82.40 | 2.00 | 80.01 to 80.79 over 5 values "
        "| Both encoders were tried. |"
    ) in section(text, "Rows short of the paper")


def test_only_short_rows_are_explained(results):
    assert section(page(results), "Rows short of the paper").count("\n| ") == 3


@pytest.mark.parametrize("note", [None, "{}", "pubmed-hpgmn-appnp: ' '"])
def test_short_row_without_a_note_fails(results, note, capsys):
    (results / "notes.yaml").unlink()
    if note is not None:
        (results / "notes.yaml").write_text(note)
    docs = results.parent / "docs"
    with pytest.raises(SystemExit) as caught:
        main(["--results", str(results), "--docs", str(docs)])
    assert caught.value.code == 2
    assert "without a note: pubmed-hpgmn-appnp." in capsys.readouterr().err
    assert not docs.exists()


def test_note_on_a_row_that_no_table_has_fails(results):
    with (results / "notes.yaml").open("a") as file:
        file.write("pubmed-hpgnm-gcn: A slip of the pen.\n")
    with pytest.raises(HPGMNError, match="unknown rows: pubmed-hpgnm-gcn"):
        page(results)


def test_main_writes_the_page(results, tmp_path):
    main(["--results", str(results), "--docs", str(tmp_path / "docs")])
    assert (tmp_path / "docs" / "RESULTS.md").read_text(encoding="utf-8") == page(results)
    assert list((tmp_path / "docs" / "pictures").iterdir()) == []  # no cells of the figure


def test_rows_of_the_paper_without_a_record_are_not_hidden(cells, results):
    text = page(results)
    assert cells(text, "chameleon", "hpgmn")[2:6] == ["–", "–", "79.6 ± 0.8", "no record yet"]
    assert "No record yet: wisconsin-hpgmn, cornell-geomgcn-hpgmn, chameleon-hpgmn" in text


def test_graph_outside_the_paper_has_a_row_but_no_verdict(write_run, cells, results):
    write_run(results, "cornell", "hpgmn", [70.0, 80.0] * 5)
    write_run(results, "cornell-geomgcn", "hpgmn", [85.0, 87.0] * 5)
    text = page(results)
    assert cells(text, "cornell", "hpgmn")[4:7] == ["–", "not in the paper", "–"]
    hides = section(text, "Known defects of the data")
    assert "(`cornell`) HP-GMN has 75.0 ± 5.3" in hides
    assert "(`cornell-geomgcn`) 86.0 ± 1.1" in hides


@pytest.mark.parametrize(
    ("run", "command"),
    [
        ("squirrel-hpgmn", "hpgmn train squirrel --splits all --seeds 3"),
        ("texas-hpgmn", "hpgmn train texas --splits all"),
        ("pubmed-hpgmn-appnp", "hpgmn train pubmed --model hpgmn-appnp --seeds 5"),
    ],
)
def test_command_repeats_the_run(cells, results, run, command):
    assert cells(page(results), run) == [
        *(run, f"`{command}`", "A Processor, 2 threads", "hpgmn 9.8.7, torch 2.0.1", "2030-01-02")
    ]


def test_command_names_every_setting_that_is_not_shipped(write_run, cells, results):
    changed = {"gate": False, "memory_dim": 8, "lr": 0.0123456789, "statistics": FOUR[1:]}
    write_run(results, "wisconsin", "hpgmn", [90.0, 91.0] * 5, settings=changed)
    assert cells(page(results), "wisconsin-hpgmn")[1] == (
        "`hpgmn train wisconsin --splits all --set lr=0.0123456789 --set memory_dim=8 "
        "--set statistics=class_counts,class_means,adjacency --set gate=false`"
    )


def test_settings_that_differ_from_the_default_are_listed(write_run, results):
    changed = {"statistics": FOUR, "teleport": 0.77, "diffusion_dropout": 0.77, "dropout": 0.77}
    write_run(results, "wisconsin", "hpgmn", [90.0, 91.0] * 5, settings=changed)
    (line,) = [
        line
        for line in section(page(results), "Settings").splitlines()
        if line.startswith("| wisconsin-hpgmn |")
    ]
    assert "`dropout=0.77`" in line
    assert line.count("0.77") == 1  # those of a statistic that is not used have no effect


def trial(graph, round_, score, runs=2, **settings):
    values = {"val_score": [score] * runs, "val_loss": [1.0] * runs}
    return {"graph": graph, "model": "hpgmn", "round": round_, "trial": settings} | values


def test_trials_are_counted_by_round(write_trials, cells, results):
    trials = [trial("texas", "first", 0.8, runs=1), trial("texas", "first", 0.8, runs=1)]
    trials += [trial("texas", "second", 0.8, runs=3), trial("texas", "second", 0.8, runs=5)]
    trials += [trial("actor", "finalists", 0.8, runs=30)]
    write_trials(results, trials)
    text = section(page(results), "Settings")
    assert cells(text, "texas", "hpgmn")[2:6] == ["2 × 1 run", "2 × 3–5 runs", "–", "–"]
    assert cells(text, "actor", "hpgmn")[2:] == ["–", "–", "–", "1 × 30 runs", "–"]
    assert cells(text, "squirrel", "hpgmn")[2:] == ["–", "–", "–", "–", "no search"]


def test_place_of_the_settings_in_the_search(write_trials, cells, results):
    own = settings_for("texas", "hpgmn")
    others = [own | {"lr": 0.5}, own | {"lr": 0.6}]
    early = [trial("texas", "first", 0.99, runs=1, **others[0])]  # more runs decide, not this

    def place(*scores, losses=(1.0, 1.0, 1.0)):
        found = [
            trial("texas", "finalists", score, **settings) | {"val_loss": [loss, loss]}
            for score, settings, loss in zip(scores, [own, *others], losses, strict=True)
        ]
        write_trials(results, early + found)
        return cells(section(page(results), "Settings"), "texas", "hpgmn")[-1]

    assert place(0.9, 0.8, 0.7) == "best of 3 trials with 2 runs"
    assert place(0.8, 0.9, 0.7) == "number 2 of 3 trials with 2 runs"
    assert place(0.9, 0.9, 0.9, losses=(1.0, 0.5, 2.0)) == "number 2 of 3 trials with 2 runs"
    write_trials(results, early)
    assert "not among the 1 trials with 1 run" in page(results)


def test_settings_of_unused_statistics_do_not_tell_trials_apart(write_trials, results):
    own = settings_for("texas", "hpgmn")
    assert "diffusion" not in own["statistics"]
    found = trial("texas", "finalists", 0.9, **own, diffusion_scaling="unit", teleport=0.01)
    write_trials(results, [found])
    assert "best of 1 trials with 2 runs" in page(results)


def test_whole_settings_of_a_trial_are_compared_where_recorded(write_trials, results):
    own = settings_for("texas", "hpgmn")
    runs = [json.loads(line) for line in (results / "runs.jsonl").read_text().splitlines()]
    [run] = [run["record"] for run in runs if run["name"] == "texas-hpgmn"]
    settings = run["config"]["settings"]
    same = trial("texas", "finalists", 0.9, **own) | {"settings": settings}
    write_trials(results, [same | {"settings": settings | {"consistency_passes": 9}}])
    assert "best of 1 trials with 2 runs" in page(results)  # its weight is 0: no effect
    write_trials(results, [same | {"settings": settings | {"estimator_epochs": 9}}])
    assert "not among the 1 trials with 2 runs" in page(results)


def test_row_is_the_folder_of_its_name_and_no_reading_is_hidden(write_run, cells, results):
    write_run(results, "texas", "hpgmn", [99.0] * 10, name="texas-again")
    write_run(results, "texas", "hpgmn", [98.0, 98.0], splits=2, name="part")
    text = page(results)
    assert cells(text, "texas", "hpgmn")[2] == "**84.5 ± 3.0**"
    further = section(text, "Further runs")
    assert cells(further.split("| run | command")[0], "texas-again")[1] == "99.0 ± 0.0"
    assert "`hpgmn train texas --splits 0,1`" in further


def test_some_splits_do_not_make_a_row(write_run, cells, results):
    write_run(results, "chameleon", "hpgmn", [95.0] * 9, splits=9)
    text = page(results)
    assert cells(text, "chameleon", "hpgmn")[5] == "no record yet"
    assert "95.0 ± 0.0" in section(text, "Further runs")


def test_reproduction_is_above_the_runs_of_shipped_settings(results, make_facts, tmp_path):
    before = page(results)
    make_facts(tmp_path / "cells")
    collect_cells(tmp_path / "cells", results / "reproduction.jsonl")
    after = page(results)
    headings = [line for line in after.splitlines() if line.startswith("#")]
    assert headings[:5] == [
        "# Results",
        "## Table 1: the graphs",
        "## Runs of shipped settings",
        "### Heterophilous graphs",
        "### Citation graphs",
    ]
    assert "Command: `hpgmn reproduce table1`." in after
    old = [line.lstrip("#") for line in before.splitlines() if line]
    new = [line.lstrip("#") for line in after.splitlines()]
    assert [line for line in old if line not in new] == []  # nothing of the page is lost


def test_cells_of_shipped_settings_are_rows(results, tmp_path, cells, make_record):
    cell = shipped("hpgmn", "wisconsin")
    write_cell(tmp_path / "cells", make_record(cell, [88.0, 90.0] * 5))
    other = dataclasses.replace(cell, graph="chameleon", settings={**cell.settings, "lr": 0.123})
    write_cell(tmp_path / "cells", make_record(other, [95.0] * 10))
    collect_cells(tmp_path / "cells", results / "reproduction.jsonl")
    text = page(results)
    assert cells(text, "wisconsin", "hpgmn")[2] == "**89.0 ± 1.1**"
    assert cells(text, "chameleon", "hpgmn")[2] == "–"  # its settings are not the shipped ones
    assert "of 66 have no record yet" in text


def test_committed_page_is_what_the_committed_records_give():
    written = (ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8")
    assert written == page(ROOT / "lab" / "results"), (
        "docs/RESULTS.md is not up to date: make results"
    )
