"""The numbers of a table, worked out again by hand from the records."""

import dataclasses
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.models import MODELS
from hpgmn_lab.reproduction.cells import CellRecord, Records
from hpgmn_lab.reproduction.plan import Budget, experiment
from hpgmn_lab.reproduction.tables import ENSEMBLE, VARIANT, table

MakeRecord = Callable[..., CellRecord]
FOUR = Budget(trials=3, splits=4, graphs=("texas", "squirrel", "cora", "citeseer"))

OURS = [80.0, 84.0, 86.0, 90.0]  # mean 85
THEIRS = [79.0, 80.0, 84.0, 85.0]  # mean 82: differences 1, 4, 2, 5


def cell_of(plan, name):
    return next(cell for cell in plan.cells if cell.name == name)


def records_of(*records):
    contents = {record.name: dataclasses.asdict(record) for record in records}
    return Records(Path("some/cells"), contents)


def made(plan, **records):
    return table(plan, records_of(*records.values()))


def entry_of(found, label, graph):
    return next(line.entries[graph] for line in found.lines if line.label == label)


@pytest.fixture
def plan():
    return experiment("table2", FOUR)


@pytest.fixture
def pair(plan, make_record):
    """HP-GMN and GCN on texas, both tuned."""
    ours = make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS, val=[88.0, 90.0, 91.0, 91.0])
    theirs = make_record(cell_of(plan, "texas-gcn-tuned"), THEIRS)
    return made(plan, ours=ours, theirs=theirs)


def test_mean_and_deviation_are_those_of_the_runs(pair):
    record = entry_of(pair, "hpgmn", "texas").record
    assert record is not None
    assert record.score.mean == pytest.approx(85.0)
    assert record.score.std == pytest.approx(statistics.stdev(OURS))


def test_interval_is_students(pair):
    half = stats.t.ppf(0.975, 3) * statistics.stdev(OURS) / 2
    assert entry_of(pair, "hpgmn", "texas").interval == pytest.approx((85 - half, 85 + half))


def test_validation_and_its_gap_to_the_test_score(pair):
    entry = entry_of(pair, "hpgmn", "texas")
    assert entry.validation == pytest.approx(90.0)
    assert entry.gap == pytest.approx(5.0)


def test_difference_to_hpgmn_is_paired_and_corrected(pair):
    found = entry_of(pair, "gcn", "texas").difference
    assert found is not None
    assert found.low is not None
    changes = [-1.0, -4.0, -2.0, -5.0]
    width = stats.t.ppf(0.975, 3) * math.sqrt((1 / 4 + 20 / 48) * statistics.variance(changes))
    assert 100 * found.mean == pytest.approx(-3.0)
    assert 100 * found.low == pytest.approx(-3.0 - width)
    assert entry_of(pair, "hpgmn", "texas").difference is None


def test_printed_numbers_and_whether_they_are_reached(pair):
    ours, theirs = entry_of(pair, "hpgmn", "texas"), entry_of(pair, "gcn", "texas")
    assert ours.published is not None
    assert ours.published.mean == 85.1
    assert ours.verdict is not None
    assert ours.verdict.is_reached  # 0.1 lower, inside the interval
    assert theirs.verdict is not None
    assert theirs.verdict.published_mean == 59.5


def test_cost_is_search_and_final_run(pair):
    entry = entry_of(pair, "hpgmn", "texas")
    assert (len(entry.runs_per_trial), entry.seconds_search) == (3, 100.0)
    assert entry.seconds == pytest.approx(112.3)


def test_cells_without_a_record_are_named(plan, pair):
    assert len(pair.missing) == len(plan.cells) - 2
    assert "texas-mlp-tuned" in pair.missing
    empty = entry_of(pair, "mlp", "texas")
    assert (empty.record, empty.validation, empty.gap, empty.seconds) == (None,) * 4
    assert empty.interval is None
    assert [entry.cell.name for entry in pair.done] == ["texas-gcn-tuned", "texas-hpgmn-tuned"]


def test_a_record_of_another_plan_is_not_shown(plan, make_record):
    cell = cell_of(plan, "texas-hpgmn-tuned")
    other = make_record(dataclasses.replace(cell, trials=99), OURS)  # type: ignore[type-var]
    found = made(plan, other=other)
    assert found.outdated == ("texas-hpgmn-tuned",)
    assert "texas-hpgmn-tuned" in found.missing
    assert entry_of(found, "hpgmn", "texas").record is None


def test_explicit_defaults_are_the_same_plan(plan, make_record):
    cell = cell_of(plan, "texas-hpgmn-shipped")

    def is_shown(**config):
        record = make_record(cell, OURS, config=config)
        return entry_of(made(plan, one=record), "hpgmn, shipped", "texas").record is not None

    settings = dict(cell.settings)  # type: ignore[attr-defined]
    every = settings_dict(make_settings(MODELS["hpgmn"].settings, settings))
    assert len(every) > len(settings)
    assert is_shown(settings=settings)
    assert is_shown(settings=every)
    assert not is_shown(settings={**every, "lr": 0.123})
    assert not is_shown(settings={**every, "no_such_setting": 1})
    assert not is_shown()


def test_trials_of_another_space_are_outdated(plan, make_record):
    record = make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS)
    assert record.search is not None
    first, second, third = record.search["trials"]

    def is_shown(*trials, **search):
        own = {**record.search, "trials": list(trials), **search}  # type: ignore[dict-item]
        changed = dataclasses.replace(record, search=own)
        return entry_of(made(plan, one=changed), "hpgmn", "texas").record is not None

    failed = {"settings": third["settings"], "failed": "Out of memory."}
    assert is_shown(first, second, third)
    assert is_shown(first, second, failed)
    assert not is_shown(first, third, second)
    assert not is_shown(first, second)
    other = {**third["settings"], "lr": 0.123}
    assert not is_shown(first, second, {**third, "settings": other})
    assert not is_shown(first, second, {"failed": "Out of memory."})
    assert not is_shown(first, second, third, best=1)  # the final run has the settings of the first
    assert not is_shown(first, second, third, best=7)
    lost = dataclasses.replace(record, search=None)
    assert made(plan, one=lost).outdated == ("texas-hpgmn-tuned",)


def test_an_option_that_changes_nothing_has_no_numbers_of_its_own(make_record):
    plan = experiment("options", FOUR)
    found = table(plan, records_of(*(make_record(cell, OURS) for cell in plan.cells)))
    full, *others = found.lines
    assert not any(entry.is_as_shipped for entry in full.entries.values())
    repeated = [
        (line, graph)
        for line in others
        for graph, entry in line.entries.items()
        if entry.cell.variant == "shipped"
    ]
    assert repeated
    for line, graph in repeated:
        entry = line.entries[graph]
        assert entry.is_as_shipped
        assert (entry.record, entry.published, entry.verdict, entry.difference) == (None,) * 4
        assert not entry.is_best
    changed = [entry for line in others for entry in line.entries.values() if entry.record]
    assert len(changed) + len(repeated) == len(others) * len(found.graphs)
    assert (found.missing, len(found.done)) == ((), len(plan.cells))


def test_a_row_that_is_as_shipped_everywhere_is_a_variant():
    plan = experiment("options", FOUR)
    row = dataclasses.replace(plan.rows[1], cells=plan.rows[0].cells)
    found = table(dataclasses.replace(plan, rows=(plan.rows[0], row)), records_of())
    assert [line.kind for line in found.lines] == ["shipped", VARIANT]


def test_rows_stand_in_the_papers_order_then_shipped_then_averaged(plan):
    found = table(plan, records_of())
    assert [line.label for line in found.lines] == [
        *("mlp", "gcn", "mixhop", "gcn-jk", "appnp", "gprgnn", "bmgcn", "mmp", "hpgmn"),
        *("hpgmn, shipped", "hpgmn, shipped, 5 seeds averaged"),
    ]
    assert [line.kind for line in found.lines] == ["tuned"] * 9 + ["shipped", ENSEMBLE]
    assert found.references == {}
    assert found.reference("texas") is None


def test_best_of_a_column_is_among_the_tuned(plan, make_record):
    found = made(
        plan,
        shipped=make_record(cell_of(plan, "texas-hpgmn-shipped"), [99.0] * 4),
        ours=make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS),
        same=make_record(cell_of(plan, "texas-mlp-tuned"), [85.0, 85.0, 85.0, 85.1]),
        lower=make_record(cell_of(plan, "texas-gcn-tuned"), [84.9] * 4),
    )
    best = [line.label for line in found.lines if line.entries["texas"].is_best]
    assert best == ["mlp", "hpgmn"]  # equal as printed
    assert not any(line.entries["squirrel"].is_best for line in found.lines)


def test_ensemble_shows_the_averages(plan, make_record):
    cell = cell_of(plan, "texas-hpgmn-ensemble")
    averages = [88.0, 90.0, 92.0, 94.0]
    found = made(
        plan,
        one=make_record(cell, [50.0] * 20, average=averages),
        ours=make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS),
    )
    entry = entry_of(found, "hpgmn, shipped, 5 seeds averaged", "texas")
    assert entry.record is not None
    assert entry.record.score.mean == pytest.approx(91.0)
    assert entry.record.score.std == pytest.approx(statistics.stdev(averages))
    assert (entry.validation, entry.gap, entry.runs_per_trial) == (None, None, [])
    assert entry.difference is not None
    assert 100 * entry.difference.mean == pytest.approx(6.0)
    assert entry.verdict is not None
    assert entry.verdict.count == 4


@pytest.mark.parametrize(
    ("ensemble", "sentence"),
    [
        (None, "no ensemble scores"),
        ({"test_score": [0.5] * 3, "test_score_mean": 0.5}, "count or mean"),
        ({"test_score": [0.5] * 4, "test_score_mean": 0.6}, "count or mean"),
    ],
)
def test_a_damaged_ensemble_is_refused(plan, make_record, ensemble, sentence):
    record = make_record(cell_of(plan, "texas-hpgmn-ensemble"), [50.0] * 20, ensemble=ensemble)
    with pytest.raises(HPGMNError, match=sentence) as raised:
        table(plan, records_of(record))
    assert "Remove texas-hpgmn-ensemble from some/cells" in str(raised.value.remedy)


@pytest.mark.parametrize("change", [{"test_score_mean": 0.1}, {"val_score": [0.5]}])
def test_a_record_with_wrong_numbers_is_refused(plan, make_record, change):
    record = make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS, **change)
    with pytest.raises(HPGMNError, match="texas-hpgmn-tuned") as raised:
        table(plan, records_of(record))
    assert "Remove texas-hpgmn-tuned from some/cells" in str(raised.value.remedy)


def test_citation_graphs_are_set_against_the_better_form(make_record):
    plan = experiment("table3", FOUR)
    records = {}
    for graph, better in (("cora", "hpgmn-gcn"), ("citeseer", "hpgmn-appnp")):
        for model in ("hpgmn-gcn", "hpgmn-appnp"):
            higher = 5.0 if model == better else 1.0
            cell = cell_of(plan, f"{graph}-{model}-tuned")
            records[f"{graph}{model}"] = make_record(
                cell, [80.0, 81.0, 82.0, 83.0, 84.0], val=higher
            )
    found = made(plan, **records)
    assert found.references == {"cora": "hpgmn-gcn", "citeseer": "hpgmn-appnp"}
    reference = found.reference("cora")
    assert reference is not None
    assert reference.cell.name == "cora-hpgmn-gcn-tuned"
    other = entry_of(found, "hpgmn-appnp", "cora").difference
    assert other is not None
    assert (other.over, other.count) == ("seeds", 5)


def test_variants_are_set_against_the_full_model(make_record):
    plan = experiment("figure3", FOUR)
    found = made(
        plan,
        full=make_record(cell_of(plan, "texas-hpgmn-shipped"), OURS),
        other=make_record(cell_of(plan, "texas-hpgmn-without-both"), THEIRS),
    )
    assert [line.kind for line in found.lines] == ["shipped", *[VARIANT] * 3]
    assert found.references == {"texas": "full"}
    gap = entry_of(found, "without both", "texas").difference
    assert gap is not None
    assert 100 * gap.mean == pytest.approx(-3.0)
    assert entry_of(found, "full", "texas").is_best
    assert entry_of(found, "without both", "texas").published is None
    assert found.competing == list(found.lines)


def test_table4_has_numbers_of_its_own():
    found = table(experiment("table4", FOUR), records_of())
    printed = {line.label: line.entries["squirrel"].published for line in found.lines}
    means = {label: own.mean for label, own in printed.items() if own}
    assert means == {
        "full": 72.3,
        "without attributes": 71.7,
        "without class counts": 57.8,
        "without class means": 41.7,
        "without diffusion": 68.4,
    }
