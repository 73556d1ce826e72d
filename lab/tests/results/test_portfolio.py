"""Settings of the portfolio compared with tuned ones and simple models."""

import json

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn_lab.rendering import markdown_table
from hpgmn_lab.reproduction.cells import Records, write_cell
from hpgmn_lab.reproduction.plan import shipped, tuned
from hpgmn_lab.results.portfolio import command_frame, earlier_frame, read_untuned, score_frame

MADE = "2030-01-02"


@pytest.fixture
def write(tmp_path, write_run, make_record):
    """Writes a graph's run of the portfolio and the cells it is set against, by test score."""

    def write_all(graph, own, seeds=1, metric="accuracy", reading="", **others):
        splits = 1 if seeds > 1 else 10
        scores = [own + 0.1 * place for place in range(splits * seeds)]
        name = f"{reading}/{graph}" if reading else graph
        path = write_run(tmp_path, graph, "hpgmn", scores, splits=splits, metric=metric, name=name)
        run = json.loads(path.read_text())
        path.unlink()
        run["record"]["config"] |= {"graph": f"{graph}.npz", "device": "cpu"}
        run["record"]["portfolio"] = {
            "chosen": "out, light",
            "splits": [0, 1],
            "members": [{}, {}, {}],
            "seconds": 40.4,
        }
        with (tmp_path / "portfolio.jsonl").open("a") as file:
            file.write(json.dumps(run) + "\n")
        for name, mean in others.items():
            model, variant = name.rsplit("_", 1)
            make = {"tuned": tuned, "shipped": shipped}[variant]
            cell = make(model.replace("_", "-"), graph)
            count = len(cell.splits) * cell.seeds
            values = [mean + 0.1 * place for place in range(count)]
            write_cell(tmp_path / "cells", make_record(cell, values))

    return write_all


def read(folder):
    return read_untuned(folder / "portfolio.jsonl", Records.read(folder / "cells"))


def rows_of(folder):
    return {row.record.graph: row for row in read(folder)[""]}


def test_differences_are_to_shipped_settings_and_to_the_better_simple_model(tmp_path, write):
    write("squirrel", 70.0, hpgmn_shipped=71.0, hpgmn_tuned=60.0, mlp_tuned=30.0, gcn_tuned=68.0)
    write("texas", 80.0, hpgmn_shipped=82.5, mlp_tuned=80.5, gcn_tuned=50.0)
    write("cornell", 70.0, hpgmn_tuned=69.0, mlp_tuned=71.5, gcn_tuned=50.0)
    rows = rows_of(tmp_path)
    assert list(rows) == ["texas", "cornell", "squirrel"]
    squirrel = rows["squirrel"]
    assert 100 * squirrel.to_tuned.mean == pytest.approx(-1.0)
    assert 100 * squirrel.to_simple.mean == pytest.approx(2.0)
    assert squirrel.simple.model == "gcn"
    assert squirrel.limit == -1.5
    assert 100 * rows["texas"].to_tuned.mean == pytest.approx(-2.5)
    assert 100 * rows["cornell"].to_tuned.mean == pytest.approx(1.0)
    assert [row.is_reached for row in rows.values()] == [True, False, True]


@pytest.mark.parametrize(
    ("graph", "own", "simple", "is_reached"),
    [
        ("squirrel", 68.6, 50.0, True),
        ("squirrel", 68.4, 50.0, False),
        ("texas", 67.1, 50.0, True),
        ("texas", 66.9, 50.0, False),
        ("squirrel", 70.0, 70.9, True),
        ("squirrel", 70.0, 71.1, False),
    ],
)
def test_each_limit(tmp_path, write, graph, own, simple, is_reached):
    write(graph, own, hpgmn_shipped=70.0, mlp_tuned=simple, gcn_tuned=40.0)
    assert rows_of(tmp_path)[graph].is_reached is is_reached


def test_of_several_forms_the_best_by_validation_is_the_tuned_one(tmp_path, write, make_record):
    write("cora", 80.0, seeds=5, **{"hpgmn-gcn_shipped": 84.0})
    lower = make_record(shipped("hpgmn-appnp", "cora"), [82.0] * 5, val=[99.0] * 5)
    write_cell(tmp_path / "cells", lower)
    assert rows_of(tmp_path)["cora"].tuned.model == "hpgmn-appnp"
    assert rows_of(tmp_path)["cora"].is_reached is None


def test_the_tables(tmp_path, write, cells):
    write("squirrel", 70.0, hpgmn_shipped=71.0, mlp_tuned=30.0, gcn_tuned=68.0)
    write("wisconsin", 70.0, hpgmn_shipped=75.0, mlp_tuned=60.0, gcn_tuned=50.0)
    write("minesweeper", 70.0, metric="roc_auc")
    rows = read(tmp_path)[""]
    text = markdown_table(score_frame(rows))
    assert cells(text, "squirrel")[1:] == [
        "out, light (hpgmn)",
        "70.5 ± 0.3",
        "71.5 ± 0.3, hpgmn-shipped",
        "-1.0 (-1.0 to -1.0)",
        "-1.5",
        "68.5 ± 0.3, gcn-tuned",
        "+2.0 (+2.0 to +2.0)",
        "yes",
    ]
    assert cells(text, "wisconsin")[-1] == "no"
    assert cells(text, "minesweeper (ROC-AUC)")[3:] == ["–", "–", "-1.5", "–", "–", "–"]
    command = "`hpgmn train $HPGMN_DATA/minesweeper.npz --device cpu --metric roc_auc`"
    assert cells(markdown_table(command_frame(rows)), command)[1:] == [
        "3 members, 2 splits",
        "40 + 12",
        "A Processor, 2 threads",
        "hpgmn 9.8.7, torch 2.0.1",
        MADE,
    ]


def test_seeds_are_part_of_the_command(tmp_path, write):
    write("cora", 80.0, seeds=5)
    text = markdown_table(command_frame(read(tmp_path)[""]))
    assert "`hpgmn train $HPGMN_DATA/cora.npz --device cpu --seeds 5`" in text


def test_earlier_portfolios_are_listed_where_they_fell_short(tmp_path, write, cells):
    others = {"hpgmn_shipped": 71.0, "mlp_tuned": 30.0, "gcn_tuned": 68.0}
    write("squirrel", 70.0, **others)
    write("squirrel", 66.5, reading="first", **others)
    found = read(tmp_path)
    assert [row.is_reached for row in found.pop("")] == [True]
    row = cells(markdown_table(earlier_frame(found)), "first", "squirrel")
    assert row[2:] == ["-4.5 (-4.5 to -4.5)", "-1.5 (-1.5 to -1.5)"]


def test_without_runs_there_are_no_rows(tmp_path):
    assert read(tmp_path) == {"": []}


def test_a_run_without_a_portfolio_is_refused(tmp_path, write_run):
    write_run(tmp_path, "texas", "hpgmn", [80.0] * 10).rename(tmp_path / "portfolio.jsonl")
    with pytest.raises(HPGMNError, match=r"texas-hpgmn.* is not a run of a portfolio"):
        read(tmp_path)
