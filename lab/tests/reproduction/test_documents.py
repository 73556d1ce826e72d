"""Documents line by line, against scores written down here, and their files."""

import csv as csv_module
import io
import re
from html.parser import HTMLParser

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.records import score_text
from hpgmn_lab.rendering import frame
from hpgmn_lab.reproduction.cells import Records, write_cell
from hpgmn_lab.reproduction.documents import (
    Document,
    Grid,
    csv,
    document,
    latex,
    main,
    markdown,
    page,
    write_documents,
)
from hpgmn_lab.reproduction.plan import EXPERIMENTS, QUICK, Budget, experiment

SMALL = Budget(trials=2, splits=4, seeds=2)
TEXAS = Budget(trials=2, splits=4, graphs=("texas",))
EVIL = "<script>x</script>"


def grid_of(found, name):
    return next(grid for grid in found.grids if grid.name == name)


def row_of(found, name, row):
    rows = {
        cells[0]: list(cells[1:]) for cells in grid_of(found, name).frame.itertuples(index=False)
    }
    return rows[row]


def write(folder, plan, make, **scores):
    cells = {cell.name.replace("-", "_"): cell for cell in plan.cells}
    for name, values in scores.items():
        write_cell(folder, make(cells[name], values))
    return Records.read(folder)


@pytest.fixture
def table2(tmp_path, make_record):
    """HP-GMN near its printed 85.1, GCN above its 59.5, MLP below its 80.8."""
    plan = experiment("table2", TEXAS)
    records = write(
        tmp_path,
        plan,
        make_record,
        texas_hpgmn_tuned=[84.0, 85.0, 86.0, 85.0],
        texas_gcn_tuned=[60.0, 60.0, 62.0, 62.0],
        texas_mlp_tuned=[70.0, 70.0, 70.0, 70.0],
        texas_hpgmn_shipped=[90.0, 90.0, 90.0, 90.0],
        texas_hpgmn_ensemble=[91.0] * 20,
    )
    return document(plan, records)


def test_a_cell_shows_our_score_and_the_printed_number(table2):
    assert row_of(table2, "table2", "hpgmn") == ["**85.0 ± 0.8** / 85.1 ± 4.2"]
    assert row_of(table2, "table2", "gcn") == ["61.0 ± 1.2 / 59.5 ± 7.1"]
    assert row_of(table2, "table2", "mlp") == ["70.0 ± 0.0 / 80.8 ± 7.0 ↓"]
    assert row_of(table2, "table2", "mixhop") == ["– / 78.7 ± 6.3"]
    label = "hpgmn, shipped (larger search)"
    assert row_of(table2, "table2", label) == ["90.0 ± 0.0 / 85.1 ± 4.2"]
    assert row_of(table2, "table2", "best published elsewhere") == ["89.2, M2M-GNN"]
    assert row_of(table2, "table2", "HP-GMN minus that") == ["-4.2"]
    assert row_of(table2, "table2", "HP-GMN, shipped, minus that") == ["+0.8"]


def test_rank_and_reached_numbers(table2):
    [difference] = row_of(table2, "table2-differences", "mlp")
    assert row_of(table2, "table2-standing", "texas")[:3] == ["hpgmn", "1 of 3", "mlp"]
    assert difference.startswith("**-15.0 (")  # the interval excludes zero
    assert row_of(table2, "table2-differences", "hpgmn") == ["reference"]
    assert row_of(table2, "table2-reached", "hpgmn") == ["1 of 1", "–"]
    assert row_of(table2, "table2-reached", "other models") == ["1 of 2", "mlp on texas 10.80"]


def test_validation_and_cost(table2):
    assert row_of(table2, "table2-validation", "gcn") == ["63.0 (+2.0)"]
    assert row_of(table2, "table2-cost", "gcn") == ["4 runs, 112 s, 346 MB, 2 trials"]
    label = "hpgmn, shipped, 5 seeds averaged"
    assert row_of(table2, "table2-cost", label) == ["4 averages, 12 s, 346 MB"]


def test_made_from(table2):
    assert row_of(table2, "table2-made", "3") == [
        *("6, 0 failed", "3", "5 min 00 s", "5", "62 s"),
        *("hpgmn 9.8.7, torch 2.0.1", "A Processor, 2 threads", "2030-01-02"),
    ]


def test_missing_and_outdated_cells_are_named(tmp_path, make_record, table2):
    assert (table2.count, table2.total, len(table2.missing)) == (5, 11, 6)
    assert "texas-bmgcn-tuned" in table2.missing
    assert "6 of 11 have no record yet: texas-mixhop-tuned" in markdown(table2)
    other = experiment("table2", Budget(trials=2, splits=2, graphs=("texas",)))
    found = document(other, Records.read(tmp_path))
    assert len(found.outdated) == 5
    assert "5 of 11 have a record of another plan" in markdown(found)


def test_figure_has_its_picture_intervals_and_differences(tmp_path, make_record):
    plan = experiment("figure3", TEXAS)
    records = write(
        tmp_path,
        plan,
        make_record,
        texas_hpgmn_shipped=[80.0, 82.0, 84.0, 86.0],
        texas_hpgmn_without_kpattern=[60.0, 61.0, 61.0, 62.0],
    )
    found = document(plan, records)
    score, interval, difference = row_of(found, "figure3", "without K-pattern")
    assert score == "61.0 ± 0.8"
    assert interval == "59.7 to 62.3"  # 61 ± t(0.975, 3) · 0.8165 / 2
    assert difference.startswith("**-22.0 (")
    assert row_of(found, "figure3", "without both") == ["–", "–", "–"]
    assert "without K-pattern 61.0 ± 0.8" in found.picture
    assert "](pictures/figure3.svg)" in markdown(found, pictures="pictures/")
    assert "\\includegraphics[width=\\linewidth]{figure3.png}" in latex(found)


def test_table_4_names_the_statistics_of_each_row(tmp_path, fill_cells):
    plan = experiment("table4", TEXAS)
    fill_cells(tmp_path, plan, {"texas-hpgmn": 80.0})
    found = document(plan, Records.read(tmp_path))
    assert row_of(found, "table4", "without attributes")[0].endswith(" / 70.3 ± 5.5")
    [full] = row_of(found, "table4-statistics", "full")
    [without] = row_of(found, "table4-statistics", "without attributes")
    assert full == f"attributes, {without}"


@pytest.mark.parametrize("name", ["options", "citation-options"])
def test_an_option_that_changes_nothing_is_as_shipped(name, tmp_path, fill_cells):
    plan = experiment(name, SMALL)
    fill_cells(tmp_path, plan, {"shipped": 10.0})  # far below what the paper prints
    found = document(plan, Records.read(tmp_path))
    base, *others = plan.rows
    same = {
        (row.label, graph): cell == base.cells[graph]
        for row in others
        for graph, cell in row.cells.items()
    }
    assert set(same.values()) == {True, False}
    for ending in ("", "-differences", "-validation", "-cost"):
        for (label, graph), is_same in same.items():
            text = row_of(found, f"{name}{ending}", label)[plan.graphs.index(graph)]
            assert (text == "as shipped") == is_same
    assert all("↓" in text for text in row_of(found, name, "shipped"))


def test_sound_protocol_shows_the_effect_of_defects(tmp_path, fill_cells):
    plan = experiment("sound", SMALL)
    means = {"hpgmn": 80.0, "chameleon-filtered-hpgmn": 30.0, "squirrel-gcn": 90.0}
    fill_cells(tmp_path, plan, means)
    found = document(plan, Records.read(tmp_path))
    assert list(grid_of(found, "sound").frame.columns)[1:] == [
        *("chameleon-filtered", "squirrel-filtered", "cornell", "actor", "minesweeper (ROC-AUC)")
    ]
    assert "accuracy or ROC-AUC" in grid_of(found, "sound").caption
    assert grid_of(found, "sound-orders").heading == "Effect of the defects on the ranking"
    orders = row_of(found, "sound-orders", "chameleon")
    assert orders[0] == "chameleon-filtered"
    assert orders[3].startswith("hpgmn, +")
    assert orders[5] == "8 of 8"  # the first on chameleon is last without the defects
    before, rank, after, new_rank, fall = row_of(found, "sound-chameleon-filtered", "hpgmn")
    assert (rank, new_rank) == ("1", "8")
    assert float(fall) == pytest.approx(float(before) - float(after), abs=0.11)
    assert row_of(found, "sound-standing", "squirrel")[1] == "2 of 8"


def test_table_1_explains_differences(tmp_path, make_facts):
    make_facts(tmp_path)
    plan = experiment("table1", Budget(graphs=("texas", "cora")))
    found = document(plan, Records.read(tmp_path))
    assert row_of(found, "table1", "texas") == [
        *("183 / 183", "325 / 309 ≠", "1,703 / 1,703", "5 / 5", "0.11 / 0.11")
    ]
    assert row_of(found, "table1", "cora") == ["–"] * 5
    assert row_of(found, "table1-explanations", "texas") == ["edges", "self-loops are counted"]
    assert (found.count, found.missing) == (1, ("cora",))
    [line] = csv_module.DictReader(io.StringIO(csv(found)))
    assert (line["edges"], line["printed_edges"]) == ("325", "309")
    make_facts(tmp_path, explanations={})
    found = document(plan, Records.read(tmp_path))
    assert row_of(found, "table1-explanations", "texas") == ["edges", "not explained"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_document(name, tmp_path):
    found = document(experiment(name), Records.read(tmp_path))
    assert found.count == 0
    assert f"`hpgmn reproduce {name}`" in markdown(found)
    names = [grid.name for grid in found.grids]
    assert len(names) == len(set(names))
    empty = document(experiment(name, Budget(graphs=())), Records.read(tmp_path))
    assert (empty.grids, empty.table, csv(empty)) == ((), None, "")
    quick = document(experiment(name, QUICK), Records.read(tmp_path), is_quick=True)
    assert quick.intro.startswith("A quick run") or not quick.grids


def test_the_csv_has_all_numbers(table2):
    lines = list(csv_module.DictReader(io.StringIO(csv(table2))))
    assert len(lines) == 11
    own = {line["row"]: line for line in lines}
    ours = own["hpgmn"]
    assert (ours["runs"], ours["trials"], ours["is_reached"]) == ("4", "2", "true")
    assert float(ours["test_mean"]) == pytest.approx(85.0)
    assert float(ours["printed_mean"]) == 85.1
    assert float(own["gcn"]["difference"]) == pytest.approx(-24.0)
    assert own["gcn"]["reference"] == "hpgmn"
    assert own["mixhop"]["test_mean"] == ""


# Files.


@pytest.fixture
def quick(tmp_path, fill_cells):
    """Every experiment, quick, with all records but one."""
    plans = [experiment(name, QUICK) for name in EXPERIMENTS]
    for plan in plans:
        fill_cells(tmp_path / "cells", plan)
    (tmp_path / "cells" / "texas-mmp-tuned.json").unlink()
    return plans, Records.read(tmp_path / "cells")


class Reader(HTMLParser):
    """Checks that tags are balanced and collects them."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_and_self_contained(quick):
    plans, records = quick
    documents = [document(plan, records) for plan in plans]
    text = page(documents)
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    names = [tag for tag, _ in reader.tags]
    assert (names.count("section"), names.count("svg")) == (len(EXPERIMENTS), 1)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for tag, attributes in reader.tags if tag == "a"]
    assert {link[1:] for link in links} == set(EXPERIMENTS)
    assert all(attributes["scope"] for tag, attributes in reader.tags if tag == "th")
    assert "default-src 'none'" in text
    for word in ("<script", "<img", 'src="', "@import", 'href="http'):
        assert word not in text
    shown = documents[1].table
    for record in shown.records.values():
        assert score_text(record) in text
    assert "<code>hpgmn reproduce table2</code>" in text


def test_texts_never_become_markup():
    grid = Grid("g", EVIL, frame((EVIL, "b"), [(EVIL, f"**{EVIL}**")]), True, EVIL)
    found = Document("g", EVIL, f"`{EVIL}`", EVIL, (grid,), missing=(EVIL,))
    assert "<script" not in page([found])
    assert "<code>&lt;script&gt;" in page([found])
    assert "<script" not in markdown(found).replace(f"`{EVIL}`", "")  # code is shown as it is


def test_same_records_give_the_same_files(quick, tmp_path):
    plans, records = quick
    documents = [document(plan, records) for plan in plans]
    first = write_documents(tmp_path / "a", documents)
    second = write_documents(tmp_path / "b", documents)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(first) == sorted((tmp_path / "a").iterdir())
    names = {f"{name}.{ending}" for name in EXPERIMENTS for ending in ("md", "csv", "tex")}
    names |= {"figure3.png", "figure3.svg", "index.html"}
    assert {path.name for path in first} == names
    assert first[-1].name == "index.html"


def test_page_keeps_experiments_of_earlier_commands(quick, tmp_path):
    plans, records = quick
    documents = [document(plan, records) for plan in plans]
    *_, path = write_documents(tmp_path / "a", [documents[3]], documents)
    shown = re.findall('<section id="([^"]*)"', path.read_text(encoding="utf-8"))
    assert shown == list(EXPERIMENTS[1:])  # Table 1 has no record here
    assert {own.stem for own in (tmp_path / "a").iterdir()} == {"figure3", "index"}


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HPGMNError, match="Cannot write"):
        write_documents(tmp_path / "file", [])


def test_documents_are_written_from_a_file(tmp_path, make_facts):
    make_facts(tmp_path / "cells")
    main([str(tmp_path / "cells"), str(tmp_path / "out")])
    assert "325 / 309" in (tmp_path / "out" / "table1.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none.jsonl"), str(tmp_path / "out")])
