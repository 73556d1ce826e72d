"""The comparison: every cell beside its printed number, short ones explained."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.evaluation.scores import paired_difference
from hpgmn.models import MODELS
from hpgmn_lab.paper import HETEROPHILOUS, Published, target
from hpgmn_lab.records import read_runs
from hpgmn_lab.results.baselines import BASELINES, GRAPHS, cells_of, row_names
from hpgmn_lab.results.page import page

Write = Callable[..., Path]
WriteTrials = Callable[..., None]
Cells = Callable[..., list[str]]

ROOT = Path(__file__).parents[3]
MOST_SHORT = 6  # cells of the committed comparison more than one deviation below their target


def test_every_baseline_has_a_row_and_cpgnn_two():
    rows = row_names()
    assert set(rows) == {*BASELINES, "cpgnn-cheby"}
    assert set(BASELINES) <= set(MODELS)
    assert len(BASELINES) == 17
    assert rows.index("cpgnn-cheby") == rows.index("cpgnn") + 1


def test_targets_are_the_papers_unless_another_source_is_named():
    assert target("mlp", "texas") == Published(80.8, 7.0, "the paper")
    assert target("appnp", "pubmed") == Published(79.9, 0.3, "the paper")
    assert target("bmgcn", "squirrel") == Published(51.4, 1.1, "its own paper")
    assert target("bmgcn", "crocodile") == Published(64.3, 1.1, "the paper")
    assert target("lwgcn", "crocodile") == Published(79.6, None, "its repository's log")
    assert target("dirgcn", "texas") is None
    assert target("cpgnn-cheby", "texas") == target("cpgnn", "texas")


@pytest.fixture
def results(write_run, tmp_path):
    """GCN on texas as printed, MLP far below, a second prior of CPGNN, HP-GMN above all."""
    write_run(tmp_path, "texas", "hpgmn", [90.0, 88.0] * 5)
    write_run(tmp_path, "texas", "gcn", [60.0, 58.0] * 5)
    write_run(tmp_path, "texas", "mlp", [70.0, 71.0] * 5)
    write_run(tmp_path, "texas", "cpgnn", [78.0, 79.0] * 5)
    write_run(
        tmp_path,
        "texas",
        "cpgnn",
        [68.0] * 10,
        name="texas-cpgnn-cheby",
        settings={"prior": "cheby"},
    )
    (tmp_path / "notes.yaml").write_text(
        "texas-mlp: Too little\n  time.\ntexas-cpgnn-cheby: Unstable.\n"
    )
    return tmp_path


def part(text, title):
    return text.split(f"### {title}\n")[1].split("\n##")[0]


def test_a_cell_shows_ours_and_what_is_printed(results, cells):
    text = page(results).split("## Comparison with other models")[1]
    assert cells(text, "gcn")[1] == "59.0 ± 1.1 / 59.5 ± 7.1"
    assert cells(text, "mlp")[1] == "70.5 ± 0.5 / 80.8 ± 7.0 ↓"
    assert cells(text, "cpgnn")[1] == "78.5 ± 0.5 / 77.0"
    assert cells(text, "cpgnn-cheby")[1] == "68.0 ± 0.0 / 77.0 ↓"
    assert cells(text, "**HP-GMN**")[1] == "**89.0 ± 1.1** / 85.1 ± 4.2"
    assert cells(text, "dssl")[1] == "–"


def test_differences_are_paired_with_hpgmn(results, cells):
    text = part(page(results), "Difference to HP-GMN")
    gap = paired_difference([60.0, 58.0] * 5, [90.0, 88.0] * 5, splits=10, test_per_train=20 / 48)
    assert cells(text, "gcn")[1] == f"{gap.mean:+.1f} ({gap.low:+.1f} to {gap.high:+.1f})"
    assert cells(text, "gcn")[1] == "-30.0 (-30.0 to -30.0)"
    assert cells(text, "gcn")[2] == "–"


def test_short_cells_are_counted_and_explained(results):
    text = part(page(results), "Below the published number")
    printed = sum(target(row, graph) is not None for row in row_names() for graph in GRAPHS)
    assert text.strip().startswith(f"2 of {printed} cells with a published number")
    assert "| texas-mlp | 70.5 ± 0.5 | 80.8 | the paper | Too little time. |" in text
    assert "| lwgcn | its repository's log | texas, wisconsin" in text
    assert "No record yet: wisconsin-mlp" in text


def test_a_short_cell_without_a_note_fails(results):
    (results / "notes.yaml").write_text("texas-mlp: Too little time.\n")
    with pytest.raises(HPGMNError, match="without a note: texas-cpgnn-cheby"):
        page(results)


def test_a_variants_run_alone_is_not_taken_for_its_model(write_run, tmp_path):
    write_run(tmp_path, "texas", "cpgnn", [68.0] * 10, name="texas-cpgnn-cheby")
    found = cells_of(read_runs(tmp_path / "runs.jsonl"))
    assert found["cpgnn", "texas"].record is None
    assert found["cpgnn-cheby", "texas"].record is not None


def test_a_run_of_fewer_splits_fills_no_cell(write_run, tmp_path):
    write_run(tmp_path, "texas", "gcn", [60.0, 58.0], splits=2)
    write_run(tmp_path, "texas", "cpgnn", [68.0] * 2, splits=2, name="texas-cpgnn-cheby")
    found = cells_of(read_runs(tmp_path / "runs.jsonl"))
    assert [cell.name for cell in found.values() if cell.record] == []
    write_run(tmp_path, "texas", "gcn", [61.0, 59.0] * 5, name="texas-gcn-whole")
    record = cells_of(read_runs(tmp_path / "runs.jsonl"))["gcn", "texas"].record
    assert record is not None
    assert record.name == "texas-gcn-whole"


def test_where_no_deviation_is_printed_ours_stands_in(write_run, tmp_path):
    write_run(tmp_path, "chameleon", "dirgcn", [78.5, 78.9] * 5)  # 1.0 below, our deviation 0.2
    write_run(tmp_path, "squirrel", "dirgcn", [73.0, 77.0] * 5)  # 0.3 below, our deviation 2.1
    found = cells_of(read_runs(tmp_path / "runs.jsonl"))
    assert found["dirgcn", "chameleon"].is_short
    assert not found["dirgcn", "squirrel"].is_short


def test_seconds_and_validation_stand_beside(results, cells):
    assert cells(part(page(results), "Seconds and validation"), "gcn")[1] == "61.0, 12 s"


def test_trials_are_counted_by_row(results, write_trials, cells):
    trial = {"graph": "texas", "model": "cpgnn", "round": "comparison", "trial": {}}
    trial |= {"val_score": [0.5] * 3, "val_loss": [1.0] * 3}
    write_trials(results, [trial, trial, trial | {"row": "cpgnn-cheby"}])
    text = part(page(results), "Settings of the baselines")
    assert cells(text, "cpgnn")[1] == "2 × 3 runs"
    assert cells(text, "cpgnn-cheby")[1] == "1 × 3 runs"
    assert "| cpgnn |" not in page(results).split("\n## Settings\n")[1]


def test_runs_that_need_more_than_the_plain_command_are_listed(results):
    text = part(page(results), "Settings of the baselines")
    assert "| texas-cpgnn-cheby | `hpgmn train texas --model cpgnn --splits all --set" in text
    assert "--set prior=cheby" in text
    assert "| texas-gcn |" not in text
    assert "cpu, torch 2.0.1, hpgmn 9.8.7" in text


def test_a_baselines_run_is_not_listed_again(results):
    assert "## Further runs" not in page(results)


def test_without_baselines_there_is_no_comparison(write_run, tmp_path):
    write_run(tmp_path, "texas", "hpgmn", [90.0, 88.0] * 5)
    assert "## Comparison" not in page(tmp_path)


def test_the_committed_comparison_is_whole_and_within_its_bar():
    found = cells_of(read_runs(ROOT / "lab" / "results" / "runs.jsonl"))
    assert [cell.name for cell in found.values() if cell.record is None] == []
    assert sum(cell.is_short for cell in found.values()) <= MOST_SHORT
    for (_, graph), cell in found.items():
        assert cell.record is not None
        assert len(cell.record.score.values) >= (10 if graph in HETEROPHILOUS else 5)
