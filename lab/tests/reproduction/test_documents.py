"""What a document says, line by line, against scores written down here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpgmn_lab.reproduction import documents
from hpgmn_lab.reproduction.cells import Cell, CellRecord, write_cell
from hpgmn_lab.reproduction.documents import NO_GRAPH, TITLES, Document, document
from hpgmn_lab.reproduction.grids import Grid, Heading, Items, Picture
from hpgmn_lab.reproduction.plan import EXPERIMENTS, QUICK, Budget, Experiment, experiment

MakeRecord = Callable[..., CellRecord]
Fill = Callable[..., None]
SMALL = Budget(trials=2, splits=4, seeds=2)
TEXAS = Budget(trials=2, splits=4, graphs=("texas",))


def grid_of(found: Document, label: str) -> Grid:
    return next(block for block in found.blocks if isinstance(block, Grid) and block.label == label)


def row_of(found: Document, label: str, row: str) -> list[str]:
    rows = {words[0].text: words for words in grid_of(found, label).rows}
    return [words.text + words.rest for words in rows[row][1:]]


def sentences(found: Document) -> list[str]:
    lists = [block for block in found.blocks if isinstance(block, Items)]
    plain = [block for block in found.blocks if isinstance(block, str)]
    return [*plain, *(one for block in lists for one in block.sentences)]


def write(folder: Path, plan: Experiment, make: MakeRecord, **scores: Sequence[float]) -> None:
    cells = {cell.name.replace("-", "_"): cell for cell in plan.cells}
    for name, values in scores.items():
        write_cell(folder, make(cells[name], values))


@pytest.fixture
def table2(tmp_path: Path, make_record: MakeRecord) -> Document:
    """HP-GMN near its printed 85.1, GCN above its 59.5, MLP below its 80.8."""
    plan = experiment("table2", TEXAS)
    write(
        tmp_path,
        plan,
        make_record,
        texas_hpgmn_tuned=[84.0, 85.0, 86.0, 85.0],
        texas_gcn_tuned=[60.0, 60.0, 62.0, 62.0],
        texas_mlp_tuned=[70.0, 70.0, 70.0, 70.0],
        texas_hpgmn_shipped=[90.0, 90.0, 90.0, 90.0],
        texas_hpgmn_ensemble=[91.0] * 20,
    )
    return document(plan, tmp_path)


def test_a_cell_shows_ours_and_the_printed_number(table2: Document) -> None:
    assert row_of(table2, "table2", "hpgmn") == ["85.0 ± 0.8 / 85.1 ± 4.2"]
    assert row_of(table2, "table2", "gcn") == ["61.0 ± 1.2 / 59.5 ± 7.1"]
    assert row_of(table2, "table2", "mlp") == ["70.0 ± 0.0 / 80.8 ± 7.0 ↓"]
    assert row_of(table2, "table2", "mmp") == ["– / 77.6 ± 6.0"]
    bold = [row[0].text for row in grid_of(table2, "table2").rows if row[1].is_bold]
    assert bold == ["hpgmn"]


def test_rows_beyond_the_paper_are_labelled(table2: Document) -> None:
    labels = [row[0].text for row in grid_of(table2, "table2").rows]
    assert labels[8:] == [
        "hpgmn",
        "hpgmn, shipped (larger search)",
        "hpgmn, shipped, 5 seeds averaged",
        "best published elsewhere",
        "HP-GMN minus that",
        "HP-GMN, shipped, minus that",
        "HP-GMN, seeds averaged, minus that",
    ]
    assert row_of(table2, "table2", "best published elsewhere") == ["89.2, M2M-GNN"]
    assert row_of(table2, "table2", "HP-GMN minus that") == ["-4.2"]
    assert row_of(table2, "table2", "HP-GMN, shipped, minus that") == ["+0.8"]
    assert row_of(table2, "table2", "HP-GMN, seeds averaged, minus that") == ["+2.8"]


def test_differences_validation_and_cost(table2: Document) -> None:
    # differences -24, -25, -24, -23: s² = 2/3; t(0.975, 3) = 3.1824; √((1/4 + 20/48) · 2/3) = 2/3
    assert row_of(table2, "table2-differences", "gcn") == ["-24.0 (-26.1 to -21.9)"]
    assert row_of(table2, "table2-differences", "hpgmn") == ["reference"]
    assert row_of(table2, "table2-differences", "mmp") == ["–"]
    assert row_of(table2, "table2-validation", "gcn") == ["63.0 (+2.0)"]
    assert row_of(table2, "table2-cost", "gcn") == ["4 runs, 112 s, 346 MB, 2 trials"]
    ensemble = row_of(table2, "table2-cost", "hpgmn, shipped, 5 seeds averaged")
    assert ensemble == ["4 averages, 12 s, 346 MB, settings as shipped"]
    shipped = row_of(table2, "table2-cost", "hpgmn, shipped (larger search)")
    assert shipped == ["4 runs, 12 s, 346 MB, settings as shipped"]
    caption = grid_of(table2, "table2-cost").caption
    assert caption.endswith("the search behind those is not in the seconds.")
    assert "averaged" not in str(grid_of(table2, "table2-validation").rows)


def test_memory_of_a_gpu_is_called_so(table2: Document) -> None:
    assert table2.table is not None
    [line] = [line for line in table2.table.lines if line.label == "gcn"]
    [entry] = line.entries.values()
    assert entry.record is not None
    hardware = {**entry.record.metrics["hardware"], "device": "A GPU"}
    record = dataclasses.replace(
        entry.record, metrics={**entry.record.metrics, "hardware": hardware}
    )
    words = documents._cost_words(dataclasses.replace(entry, record=record))
    assert words.text + words.rest == "4 runs, 112 s, 346 MB of the GPU, 2 trials"


def test_summary_counts_what_is_reached(table2: Document) -> None:
    said = sentences(table2)
    assert (
        "With as many trials for all, HP-GMN is first in 1 of 1 columns. The interval of its "
        "distance to the best other model is above zero in 1 (texas) and below zero in none."
    ) in said
    assert "hpgmn: the paper's number is reached in 1 of 1 columns." in said
    assert "Other models reach 1 of the 2 numbers that the paper prints for them." in said
    assert any(one.startswith("6 of 11 cells have no record yet (–): texas-mixhop") for one in said)


def test_summary_says_where_hpgmn_is_behind(tmp_path: Path, make_record: MakeRecord) -> None:
    plan = experiment("table2", TEXAS)
    scores = {"texas_hpgmn_tuned": [80.0, 81.0, 80.0, 81.0], "texas_mlp_tuned": [90.0] * 4}
    write(tmp_path, plan, make_record, **scores)
    assert (
        "With as many trials for all, HP-GMN is first in 0 of 1 columns. The interval of its "
        "distance to the best other model is above zero in none and below zero in 1 (texas)."
    ) in sentences(document(plan, tmp_path))


def test_summary_names_what_is_short(tmp_path: Path, make_record: MakeRecord) -> None:
    plan = experiment("table2", TEXAS)
    write(tmp_path, plan, make_record, texas_hpgmn_tuned=[80.0, 81.0, 80.0, 81.0])
    said = sentences(document(plan, tmp_path))
    assert ("hpgmn: the paper's number is reached in 0 of 1 columns; short: texas by 4.60.") in said
    assert not any(one.startswith("With as many trials") for one in said)


def test_slip_of_the_paper_is_told_where_both_columns_stand(tmp_path: Path) -> None:
    said = " ".join(sentences(document(experiment("table2"), tmp_path)))
    assert "the same numbers of mixhop, gcn-jk, appnp for chameleon and squirrel" in said
    assert "slip" not in " ".join(sentences(document(experiment("table2", TEXAS), tmp_path)))


def test_citation_graphs_name_both_references(tmp_path: Path, make_record: MakeRecord) -> None:
    plan = experiment("table3", Budget(trials=1, seeds=2, graphs=("cora", "pubmed")))
    for cell in plan.cells:
        better = (cell.graph == "cora") == (cell.model == "hpgmn-gcn")
        write_cell(tmp_path, make_record(cell, mean=80.0, val=9.0 if better else 1.0))
    caption = grid_of(document(plan, tmp_path), "table3-differences").caption
    assert "hpgmn-gcn or hpgmn-appnp (the better one by validation)" in caption


def test_variants_have_intervals(tmp_path: Path, make_record: MakeRecord) -> None:
    plan = experiment("figure3", TEXAS)
    write(
        tmp_path,
        plan,
        make_record,
        texas_hpgmn_shipped=[84.0, 85.0, 86.0, 85.0],
        texas_hpgmn_without_kpattern=[60.0, 60.0, 62.0, 62.0],
    )
    found = document(plan, tmp_path)
    # 61 ± t(0.975, 3) · 1.1547 / 2
    assert row_of(found, "figure3", "without K-pattern") == [
        "61.0 ± 1.2",
        "59.2 to 62.8",
        "-24.0 (-26.1 to -21.9)",
    ]
    assert row_of(found, "figure3", "without both") == ["–", "–", "–"]
    assert row_of(found, "figure3-validation", "without K-pattern") == ["63.0 (+2.0)"]
    cost = row_of(found, "figure3-cost", "without K-pattern")
    assert cost == ["4 runs, 12 s, 346 MB, settings as shipped"]
    picture = next(block for block in found.blocks if isinstance(block, Picture))
    assert picture.sentence.endswith("texas: full 85.0 ± 0.8, without K-pattern 61.0 ± 1.2.")


def test_stand_ins_follow_from_the_settings(tmp_path: Path) -> None:
    def changed(*statistics: str) -> list[str]:
        plan = experiment("table4", TEXAS)
        full = plan.rows[0].cells["texas"]
        for cell in plan.cells:
            cell.settings["statistics"] = tuple(  # type: ignore[index]
                one
                for one in statistics
                if cell is full or one.replace("_", "-") not in cell.variant
            )
        return [one for one in sentences(document(plan, tmp_path)) if one.startswith("In ours")]

    every = ("attributes", "class_counts", "class_means")
    assert changed(*every, "diffusion") == []
    assert changed(*every, "diffusion", "adjacency") == [
        "In ours on texas, adjacency rows stand beside diffusion; 'without diffusion' has neither."
    ]
    assert changed("attributes", "class_counts", "adjacency") == [
        "In ours on texas, adjacency rows stand in place of diffusion; 'without diffusion' has "
        "neither.",
        "In ours on texas, the full model lacks what 'without class means' removes: both are the "
        "same.",
        "In ours on texas, the full model lacks what 'without diffusion' removes: both are the "
        "same.",
    ]


def test_table4_shows_what_the_paper_prints(tmp_path: Path, fill_cells: Fill) -> None:
    plan = experiment("table4", TEXAS)
    fill_cells(tmp_path, plan, {"texas-hpgmn": 80.0})
    shown = row_of(document(plan, tmp_path), "table4", "without attributes")[0]
    assert shown.endswith(" / 70.3 ± 5.5")
    assert len(grid_of(document(plan, tmp_path), "table4-validation").rows) == 5


@pytest.mark.parametrize("name", ["options", "citation-options"])
def test_an_option_that_changes_nothing_is_as_shipped(
    name: str, tmp_path: Path, fill_cells: Fill
) -> None:
    plan = experiment(name, SMALL)
    fill_cells(tmp_path, plan, {"shipped": 10.0})  # far below what the paper prints
    found = document(plan, tmp_path)
    base, *others = plan.rows
    same = {
        (row.label, graph): cell == base.cells[graph]
        for row in others
        for graph, cell in row.cells.items()
    }
    assert set(same.values()) == {True, False}
    for ending in ("", "-differences", "-validation", "-cost"):
        rows = {row[0].text: row[1:] for row in grid_of(found, f"{name}{ending}").rows}
        for (label, graph), is_same in same.items():
            words = rows[label][plan.graphs.index(graph)]
            assert (words.text + words.rest == "as shipped") == is_same
            assert not (is_same and words.is_bold)
    assert all("↓" in words for words in row_of(found, name, "shipped"))
    assert any(
        "Where it says as shipped, the option changes nothing" in one for one in sentences(found)
    )


@pytest.mark.parametrize("name", ["table2", "table3", "sound"])
def test_comparisons_say_what_the_search_has_in_common(name: str, tmp_path: Path) -> None:
    said = " ".join(sentences(document(experiment(name, SMALL), tmp_path)))
    assert "same number of trials" in said
    assert "a study of the model that had seen test scores" in said
    assert "the same search" not in said


def test_sound_protocol_shows_pairs_and_places(tmp_path: Path, fill_cells: Fill) -> None:
    plan = experiment("sound", SMALL)
    fill_cells(
        tmp_path,
        plan,
        {
            "hpgmn": 80.0,
            "chameleon-filtered-hpgmn": 30.0,
            "squirrel-gcn": 90.0,
        },
    )
    found = document(plan, tmp_path)
    header = grid_of(found, "sound").header
    assert header[1:] == (
        *("chameleon-filtered", "squirrel-filtered", "cornell", "actor", "minesweeper (ROC-AUC)"),
    )
    assert "accuracy or ROC-AUC" in grid_of(found, "sound").caption
    assert Heading("What the defects do to the ranking") in found.blocks
    pair = grid_of(found, "sound-chameleon-filtered")
    assert pair.header == (
        *("model", "chameleon", "rank", "chameleon-filtered", "rank", "falls by, points"),
    )
    last = [words.text for words in pair.rows[-1]]
    assert (last[0], last[2], last[4]) == ("hpgmn", "1", "8")
    assert float(last[5]) == pytest.approx(float(last[1]) - float(last[3]), abs=0.11)
    said = sentences(found)
    assert any("that lead is gone: hpgmn is number 8 of 8" in one for one in said)
    assert any(one.startswith("On squirrel hpgmn is number 2 of 8") for one in said)
    assert not any(one.startswith("On chameleon hpgmn is first of 8") for one in said)  # told above


def test_pairs_without_records_are_told(tmp_path: Path) -> None:
    found = document(experiment("sound", SMALL), tmp_path)
    assert sum("too few for an order" in one for one in sentences(found)) == 3
    assert not any(isinstance(one, Grid) and one.label == "sound-cornell" for one in found.blocks)


def test_quick_run_without_pairs_has_no_ranking(tmp_path: Path) -> None:
    found = document(experiment("sound", QUICK), tmp_path, " --quick")
    assert not any(isinstance(block, Heading) for block in found.blocks)
    assert found.blocks[-1] == "Make it with `hpgmn reproduce sound --quick`."
    assert str(found.blocks[0]).endswith("its numbers are no results.")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_document(name: str, tmp_path: Path) -> None:
    found = document(experiment(name), tmp_path)
    assert (found.title, found.count) == (TITLES[name], 0)
    assert any(f"`hpgmn reproduce {name}`" in one for one in sentences(found))
    empty = document(experiment(name, Budget(graphs=())), tmp_path)
    assert (empty.blocks, empty.table) == ((NO_GRAPH,), None)
    labels = [block.label for block in found.blocks if isinstance(block, Grid)]
    assert len(labels) == len(set(labels))


def test_memory_that_is_not_recorded_is_left_out(tmp_path: Path, make_record: MakeRecord) -> None:
    plan = experiment("table2", TEXAS)
    cell = next(cell for cell in plan.cells if cell.name == "texas-mlp-tuned")
    assert isinstance(cell, Cell)
    write_cell(tmp_path, make_record(cell, [70.0] * 4, peak_memory_mb=None))
    assert row_of(document(plan, tmp_path), "table2-cost", "mlp") == ["4 runs, 112 s, 2 trials"]
