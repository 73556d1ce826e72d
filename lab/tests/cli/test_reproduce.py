"""``hpgmn reproduce``: end to end, going on, what is missing or fails, and kills at any moment."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

import hpgmn as package
from hpgmn.base.errors import mean_and_deviation
from hpgmn_lab import paper
from hpgmn_lab.reproduction import plan, tasks

SOURCE = Path(package.__file__).parents[1]


@pytest.fixture
def data(small_graph, tmp_path, monkeypatch):
    """The small graph under the names that the quick reproduction asks for."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("texas", "cornell", "cora"):
        package.write_graph(small_graph, folder / f"{name}.npz")
    monkeypatch.setenv("HPGMN_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    return folder


@pytest.fixture
def few(monkeypatch):
    """Two models in Table 2, so four cells a graph."""
    monkeypatch.setattr(paper, "TABLE_2", {name: paper.TABLE_2[name] for name in ("gcn", "hpgmn")})


@pytest.fixture
def records(lasting):
    """Reads every record of a folder, without times, memory and dates."""
    return lambda folder: {
        path.name: lasting(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("cells/*"))
    }


QUICK = ("--quick", "--device", "cpu")


@pytest.mark.slow
def test_everything_quickly_on_small_graphs(hpgmn, data, records):
    answer = hpgmn("reproduce", "all", *QUICK)
    assert answer.code == 0, answer.err
    folder = Path("runs/reproduction-quick")
    found = records(folder)
    names = {f"{cell.name}.json" for name in plan.EXPERIMENTS for cell in quick(name).cells}
    assert set(found) == names | {"texas-facts.json", "cora-facts.json"}
    assert f"{len(names)} of {len(names)} " in answer.err
    assert f"Records: {folder / 'cells'}" in answer.err
    for name in ("table1", "table2", "table3", "figure3", "table4", "sound", "options"):
        assert f"{name} " in answer.out
    metrics = found["texas-hpgmn-ensemble.json"]["metrics"]
    mean = f"{100 * metrics['ensemble']['test_score_mean']:.1f} ± "
    line = next(own for own in answer.out.splitlines() if own.startswith("hpgmn, shipped, 5 seeds"))
    assert mean in line
    assert not [*folder.glob("work/*"), *folder.glob("search/*")]
    again = hpgmn("reproduce", "all", *QUICK)
    assert again.code == 0
    assert f"{len(names)} of {len(names)} cells are already finished." in again.err
    assert again.out == answer.out
    assert records(folder) == found


def quick(name):
    return plan.experiment(name, plan.QUICK)


@pytest.mark.slow
@pytest.mark.soak
def test_more_than_quickly_on_the_real_graphs(hpgmn, data_dir, monkeypatch, records, soak):
    """All in the long form, else the facts and one experiment for each of two graphs."""
    graphs = ("texas", "cornell", "cora")
    if not all((data_dir / f"{name}.npz").exists() for name in graphs):
        pytest.skip(f"not all of {', '.join(graphs)} are in {data_dir}")
    monkeypatch.setattr(plan, "QUICK", dataclasses.replace(plan.QUICK, epochs=3, seeds=1))
    for experiment in ("all",) if soak.is_long else ("table1", "table3", "sound"):
        answer = hpgmn("reproduce", experiment, *QUICK, "--out", "out")
        assert answer.code == 0, answer.err
        assert "Traceback" not in answer.err
    found = records(Path("out"))
    assert len(found) > 20
    sizes = {"texas": (183, 1703), "cornell": (183, 1703), "cora": (2708, 1433)}
    for name, record in found.items():
        if not name.endswith("-facts.json"):
            summary = record["metrics"]["graph_summary"]
            graph = record["cell"]["graph"]
            assert (summary["num_nodes"], summary["num_features"]) == sizes[graph]
            assert len(record["metrics"]["test_score"]) == (
                len(record["cell"]["splits"]) * record["cell"]["seeds"]
            )
    assert found["texas-facts.json"]["explanations"]["edges"].startswith("printed 309 = edges as")


@pytest.mark.usefixtures("few", "data")
def test_a_line_per_cell_and_a_table_or_json_of_means(hpgmn, records):
    answer = hpgmn("reproduce", "table2", *QUICK, "--out", "out")
    assert answer.code == 0, answer.err
    lines = [line for line in answer.err.splitlines() if " of 4 texas" in line]
    cells = ("gcn-tuned", "hpgmn-tuned", "hpgmn-shipped", "hpgmn-ensemble")
    for number, (line, cell) in enumerate(zip(lines, cells, strict=True), start=1):
        metrics = records(Path("out"))[f"texas-{cell}.json"]["metrics"]
        score = mean_and_deviation(metrics["test_score_mean"], metrics["test_score_std"])
        assert line.startswith(f"{number} of 4 texas-{cell} {score}, ")
        assert line.endswith(" s")
    written = Path("out/table2.md").read_text(encoding="utf-8")
    assert "no record yet" not in written
    assert "another plan" not in written  # what work records is what tables expect
    rows = [line for line in answer.out.splitlines() if " ± " in line]
    assert [row.split("  ")[0] for row in rows] == [
        *("gcn", "hpgmn", "hpgmn, shipped (larger search)", "hpgmn, shipped, 5 seeds averaged")
    ]
    answer = hpgmn("reproduce", "table2", *QUICK, "--out", "out", "--json")  # cells are finished
    content = json.loads(answer.out)
    assert content["folder"] == "out"
    assert (content["missing"], content["failures"], content["facts"]) == ([], {}, {})
    found = records(Path("out"))
    for label, name in (("gcn", "gcn-tuned"), ("hpgmn, shipped", "hpgmn-shipped")):
        metrics = found[f"texas-{name}.json"]["metrics"]
        expected = {"mean": metrics["test_score_mean"], "std": metrics["test_score_std"]}
        assert content["experiments"]["table2"][label] == {"texas": expected}
    ensemble = found["texas-hpgmn-ensemble.json"]["metrics"]["ensemble"]
    label = "hpgmn, shipped, 5 seeds averaged"
    shown = content["experiments"]["table2"][label]["texas"]
    assert shown["mean"] == ensemble["test_score_mean"]


@pytest.mark.usefixtures("data")
def test_table_1_shows_ours_and_the_printed(hpgmn):
    answer = hpgmn("reproduce", "table1", "--out", "out")
    assert answer.code == 0, answer.err
    assert "Skipping graphs without a local copy: wisconsin, cornell-geomgcn," in answer.err
    assert "hpgmn datasets --download NAME" in answer.err
    row = next(line for line in answer.out.splitlines() if line.startswith("texas "))
    assert row.split()[1:5] == ["18", "/", "183", "≠"]
    assert "printed 183; the graph has 18" in answer.out
    content = json.loads(hpgmn("reproduce", "table1", "--out", "out", "--json").out)
    assert set(content["facts"]) == {"texas", "cora"}
    assert content["facts"]["texas"]["printed"]["edges"] == 309


def test_a_damaged_graph_fails_its_cells_alone(hpgmn, data, few):
    (data / "cora.npz").write_bytes(b"damaged")
    answer = hpgmn("reproduce", "table1", *QUICK, "--out", "out")
    assert answer.code == 2
    assert (
        answer.err.rstrip().splitlines()[-1].startswith("Error: 1 of 2 cells failed. cora-facts: ")
    )
    assert Path("out/cells/texas-facts.json").exists()
    (data / "texas.npz").write_bytes(b"damaged")
    answer = hpgmn("reproduce", "table2", *QUICK, "--out", "out")
    assert answer.code == 2
    assert "1 of 4 texas-gcn-tuned failed: " in answer.err
    assert "Error: 4 of 4 cells failed. texas-gcn-tuned: " in answer.err
    assert " –" in answer.out


def test_an_unexpected_error_prints_its_traceback_and_exits_with_1(hpgmn, data, few, monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError("something new")

    monkeypatch.setattr(tasks, "do_cell", fail)
    answer = hpgmn("reproduce", "table2", *QUICK, "--out", "out")
    assert answer.code == 1
    assert "Traceback" in answer.err
    assert "4 of 4 cells failed. texas-gcn-tuned: ZeroDivisionError: something new" in answer.err


def test_tables_and_the_page_are_written_and_named(hpgmn, data):
    answer = hpgmn("reproduce", "table1", *QUICK, "--out", "out")
    assert answer.code == 0, answer.err
    files = [Path("out") / f"table1.{ending}" for ending in ("md", "csv", "tex")]
    files.append(Path("out/index.html"))
    assert answer.err.splitlines()[-4:] == [str(path) for path in files]
    assert "`hpgmn reproduce table1 --quick`" in files[0].read_text(encoding="utf-8")
    sections = re.findall('<section id="([^"]*)"', files[3].read_text(encoding="utf-8"))
    assert sections == ["table1"]
    content = json.loads(hpgmn("reproduce", "table1", *QUICK, "--out", "out", "--json").out)
    assert content["files"] == [str(path) for path in files]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tabel2",), "Unknown experiment 'tabel2'. Did you mean 'table2'?"),
        (("table2", "--device", "gpu"), "Unknown device 'gpu'."),
        (("table2", "--workers", "0"), "--workers must be at least 1 (got 0)."),
        (("table3", "--out", "out"), "No graph has a local copy: cora, citeseer"),
    ],
)
def test_user_errors_are_one_line(hpgmn, data, words, message):
    (data / "cora.npz").unlink()
    answer = hpgmn("reproduce", *words)
    assert answer.code == 2
    assert answer.err.startswith(f"Error: {message}")
    assert len(answer.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("few", "data")
def test_an_interrupted_reproduction_can_be_continued(hpgmn, monkeypatch):
    genuine = tasks.do_cell

    def interrupted(cell, *arguments):
        if cell.variant == "shipped":
            raise KeyboardInterrupt
        return genuine(cell, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "do_cell", interrupted)
        answer = hpgmn("reproduce", "table2", *QUICK, "--out", "out")
    assert answer.code == 130
    assert "2 of 4 cells are finished. Repeat the command to continue." in answer.err
    assert "Interrupted." in answer.err
    answer = hpgmn("reproduce", "table2", *QUICK, "--out", "out")
    assert answer.code == 0
    assert "2 of 4 cells are already finished." in answer.err
    assert "3 of 4 texas-hpgmn-shipped" in answer.err
