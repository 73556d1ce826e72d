"""The numbers of a table, worked out again by hand from the records."""

import dataclasses
import math
import statistics

import pandas as pd
import pytest
from scipy import stats

from hpgmn.base.errors import HPGMNError
from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.models import MODELS
from hpgmn_lab.reproduction.plan import Budget, experiment
from hpgmn_lab.reproduction.tables import (
    ENSEMBLE,
    VARIANT,
    paired_means,
    reversed_pairs,
    standing,
    table,
)

FOUR = Budget(trials=3, splits=4, graphs=("texas", "squirrel", "cora", "citeseer"))

OURS = [80.0, 84.0, 86.0, 90.0]  # mean 85
THEIRS = [79.0, 80.0, 84.0, 85.0]  # mean 82: differences 1, 4, 2, 5


def cell_of(plan, name):
    return next(cell for cell in plan.cells if cell.name == name)


@pytest.fixture
def made(as_records):
    """Return a function that makes the table of a plan from records."""
    return lambda plan, *records: table(plan, as_records(*records))


def line_of(found, row, graph):
    numbers = found.numbers
    [line] = numbers[(numbers["row"] == row) & (numbers["graph"] == graph)].itertuples()
    return line


def by_row(found, column):
    return found.numbers.groupby("row", sort=False)[column].first().to_dict()


@pytest.fixture
def plan():
    return experiment("table2", FOUR)


@pytest.fixture
def pair(plan, make_record, made):
    """HP-GMN and GCN on texas, both tuned."""
    ours = make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS, val=[88.0, 90.0, 91.0, 91.0])
    return made(plan, ours, make_record(cell_of(plan, "texas-gcn-tuned"), THEIRS))


def test_numbers_of_a_cell(pair):
    line = line_of(pair, "hpgmn", "texas")
    assert line.test_mean == pytest.approx(85.0)
    assert line.test_std == pytest.approx(statistics.stdev(OURS))
    half = stats.t.ppf(0.975, 3) * statistics.stdev(OURS) / 2  # Student's interval
    assert (line.test_low, line.test_high) == pytest.approx((85 - half, 85 + half))
    assert (line.validation_mean, line.validation_minus_test) == pytest.approx((90.0, 5.0))
    assert (line.trials, line.seconds_search, line.seconds) == (3, 100.0, 112.3)
    assert (line.printed_mean, line.is_reached) == (85.1, True)  # 0.1 lower, inside the interval
    assert line_of(pair, "gcn", "texas").printed_mean == 59.5


def test_difference_to_hpgmn_is_paired_and_corrected(pair):
    line = line_of(pair, "gcn", "texas")
    changes = [-1.0, -4.0, -2.0, -5.0]
    width = stats.t.ppf(0.975, 3) * math.sqrt((1 / 4 + 20 / 48) * statistics.variance(changes))
    assert line.difference == pytest.approx(-3.0)
    assert line.difference_low == pytest.approx(-3.0 - width)
    assert line.reference == "hpgmn"
    assert pd.isna(line_of(pair, "hpgmn", "texas").difference)


def test_cells_without_a_record_are_named(plan, pair):
    assert len(pair.missing) == len(plan.cells) - 2
    assert "texas-mlp-tuned" in pair.missing
    empty = line_of(pair, "mlp", "texas")
    for column in ("test_mean", "validation_mean", "seconds", "test_low", "is_best", "difference"):
        assert pd.isna(getattr(empty, column))
    assert list(pair.done) == ["texas-gcn-tuned", "texas-hpgmn-tuned"]


def test_a_record_of_another_plan_is_not_shown(plan, make_record, made):
    cell = cell_of(plan, "texas-hpgmn-tuned")
    found = made(plan, make_record(dataclasses.replace(cell, trials=99), OURS))
    assert found.outdated == ("texas-hpgmn-tuned",)
    assert (found.done, found.records) == ({}, {})


def test_explicit_defaults_are_the_same_plan(plan, make_record, made):
    cell = cell_of(plan, "texas-hpgmn-shipped")

    def is_shown(**config):
        return bool(made(plan, make_record(cell, OURS, config=config)).done)

    settings = dict(cell.settings)
    every = settings_dict(make_settings(MODELS["hpgmn"].settings, settings))
    assert len(every) > len(settings)
    assert is_shown(settings=settings)
    assert is_shown(settings=every)
    assert not is_shown(settings={**every, "lr": 0.123})
    assert not is_shown(settings={**every, "no_such_setting": 1})
    assert not is_shown()


def test_trials_of_another_space_are_outdated(plan, make_record, made):
    record = make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS)
    first, second, third = record.search["trials"]

    def is_shown(*trials, **search):
        changed = {**record.search, "trials": list(trials), **search}
        return bool(made(plan, dataclasses.replace(record, search=changed)).done)

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
    assert made(plan, lost).outdated == ("texas-hpgmn-tuned",)


def test_an_option_that_changes_nothing_has_no_numbers_of_its_own(make_record, made):
    plan = experiment("options", FOUR)
    found = made(plan, *(make_record(cell, OURS) for cell in plan.cells))
    others = found.numbers[found.numbers["row"] != "shipped"]
    repeated = others[others["variant"] == "shipped"]
    assert len(repeated)
    assert list(found.numbers.index[found.numbers["is_as_shipped"].astype(bool)]) == list(
        repeated.index
    )
    columns = ["test_mean", "printed_mean", "is_reached", "difference", "is_best"]
    assert repeated[columns].isna().all(axis=None)
    assert others["test_mean"].notna().sum() + len(repeated) == len(others)
    assert (found.missing, len(found.done)) == ((), len(plan.cells))


def test_a_row_that_is_as_shipped_everywhere_is_a_variant(made):
    plan = experiment("options", FOUR)
    row = dataclasses.replace(plan.rows[1], cells=plan.rows[0].cells)
    found = made(dataclasses.replace(plan, rows=(plan.rows[0], row)))
    assert list(by_row(found, "kind").values()) == ["shipped", VARIANT]


def test_rows_stand_in_the_papers_order_then_shipped_then_averaged(plan, made):
    found = made(plan)
    assert by_row(found, "kind") == {
        **dict.fromkeys(
            ("mlp", "gcn", "mixhop", "gcn-jk", "appnp", "gprgnn", "bmgcn", "mmp", "hpgmn"), "tuned"
        ),
        "hpgmn, shipped": "shipped",
        "hpgmn, shipped, 5 seeds averaged": ENSEMBLE,
    }
    assert found.numbers["reference"].isna().all()


def test_best_of_a_column_is_among_the_tuned(plan, make_record, made):
    found = made(
        plan,
        make_record(cell_of(plan, "texas-hpgmn-shipped"), [99.0] * 4),
        make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS),
        make_record(cell_of(plan, "texas-mlp-tuned"), [85.0, 85.0, 85.0, 85.1]),
        make_record(cell_of(plan, "texas-gcn-tuned"), [84.9] * 4),
    )
    best = found.numbers[found.numbers["is_best"] == True]  # noqa: E712
    assert list(best["row"]) == ["mlp", "hpgmn"]  # equal as printed


def test_ensemble_shows_the_averages(plan, make_record, made):
    averages = [88.0, 90.0, 92.0, 94.0]
    found = made(
        plan,
        make_record(cell_of(plan, "texas-hpgmn-ensemble"), [50.0] * 20, average=averages),
        make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS),
    )
    line = line_of(found, "hpgmn, shipped, 5 seeds averaged", "texas")
    assert line.test_mean == pytest.approx(91.0)
    assert line.test_std == pytest.approx(statistics.stdev(averages))
    assert pd.isna(line.validation_mean)
    assert (line.trials, line.runs, line.splits, line.seeds) == (0, 4, 4, 1)
    assert line.difference == pytest.approx(6.0)
    assert line.is_reached is True


@pytest.mark.parametrize(
    ("ensemble", "sentence"),
    [
        (None, "no ensemble scores"),
        ({"test_score": [0.5] * 3, "test_score_mean": 0.5}, "count or mean"),
        ({"test_score": [0.5] * 4, "test_score_mean": 0.6}, "count or mean"),
    ],
)
def test_a_damaged_ensemble_is_refused(plan, make_record, made, ensemble, sentence):
    record = make_record(cell_of(plan, "texas-hpgmn-ensemble"), [50.0] * 20, ensemble=ensemble)
    with pytest.raises(HPGMNError, match=sentence) as raised:
        made(plan, record)
    assert "Remove texas-hpgmn-ensemble from some/cells" in str(raised.value.remedy)


@pytest.mark.parametrize("change", [{"test_score_mean": 0.1}, {"val_score": [0.5]}])
def test_a_record_with_wrong_numbers_is_refused(plan, make_record, made, change):
    record = make_record(cell_of(plan, "texas-hpgmn-tuned"), OURS, **change)
    with pytest.raises(HPGMNError, match="texas-hpgmn-tuned") as raised:
        made(plan, record)
    assert "Remove texas-hpgmn-tuned from some/cells" in str(raised.value.remedy)


def test_citation_graphs_are_set_against_the_better_form(make_record, made):
    plan = experiment("table3", FOUR)
    better = {"cora": "hpgmn-gcn", "citeseer": "hpgmn-appnp"}
    records = [
        make_record(
            cell_of(plan, f"{graph}-{model}-tuned"),
            [80.0, 81.0, 82.0, 83.0, 84.0],
            val=5.0 if model == better[graph] else 1.0,
        )
        for graph in better
        for model in ("hpgmn-gcn", "hpgmn-appnp")
    ]
    numbers = made(plan, *records).numbers
    references = numbers.groupby("graph")["reference"].first()
    assert references[list(better)].to_dict() == better
    # Over seeds: Welch's interval 0 ± t(0.975, 8) · √(2 · 2.5 / 5)
    line = line_of(made(plan, *records), "hpgmn-appnp", "cora")
    assert line.difference_high == pytest.approx(stats.t.ppf(0.975, 8))


def test_variants_are_set_against_the_full_model(make_record, made):
    plan = experiment("figure3", FOUR)
    found = made(
        plan,
        make_record(cell_of(plan, "texas-hpgmn-shipped"), OURS),
        make_record(cell_of(plan, "texas-hpgmn-without-both"), THEIRS),
    )
    assert list(by_row(found, "kind").values()) == ["shipped", *[VARIANT] * 3]
    line = line_of(found, "without both", "texas")
    assert (line.reference, line.difference) == ("full", pytest.approx(-3.0))
    assert pd.isna(line.printed_mean)
    assert line_of(found, "full", "texas").is_best is True


def test_table4_has_numbers_of_its_own(made):
    found = made(experiment("table4", FOUR)).numbers
    assert list(found.loc[found["graph"] == "squirrel", "printed_mean"]) == [
        *(72.3, 71.7, 57.8, 41.7, 68.4)
    ]


# The order of models.

SMALL = Budget(trials=1, splits=2, graphs=("chameleon-filtered", "chameleon", "cornell"))


@pytest.fixture
def sound(make_record, made):
    """The table of the sound protocol with given means: graph → model → mean of two splits.

    The second split is 0.1 higher for mlp, 0.2 lower for all others: differences between these have
    no spread, those to mlp have a deviation of 0.2.
    """
    plan = experiment("sound", SMALL)

    def _make(means):
        records = []
        for cell in plan.cells:
            if cell.model in means.get(cell.graph, {}):
                mean = means[cell.graph][cell.model]
                half = 0.05 if cell.model == "mlp" else -0.1
                records.append(make_record(cell, [mean - half, mean + half]))
        return made(plan, *records)

    return _make


MEANS = {
    "chameleon": {"hpgmn": 80.0, "dirgcn": 78.0, "gcn": 60.0, "mlp": 50.0},
    "chameleon-filtered": {"hpgmn": 42.0, "dirgcn": 43.0, "gcn": 44.0, "mlp": 36.0},
}


def test_only_models_with_both_records_are_paired(sound):
    graphs = ("chameleon", "chameleon-filtered")
    means = paired_means(sound(MEANS), graphs)
    assert list(means.index) == ["mlp", "gcn", "dirgcn", "hpgmn"]
    assert list(means.loc["hpgmn"]) == pytest.approx([80.0, 42.0])
    assert reversed_pairs(means) == 3  # hpgmn-dirgcn, hpgmn-gcn, dirgcn-gcn
    fewer = {"chameleon": MEANS["chameleon"], "chameleon-filtered": {"gcn": 44.0}}
    assert list(paired_means(sound(fewer), graphs).index) == ["gcn"]
    assert paired_means(sound({}), graphs).empty


@pytest.mark.parametrize(
    ("means", "rank", "rival", "distance"),
    [
        ({"hpgmn": 70.0, "gcn": 60.0}, "1 of 2", "gcn", 10.0),
        ({"hpgmn": 70.0, "gcn": 71.0, "mlp": 70.5}, "3 of 3", "gcn", -1.0),
        ({"hpgmn": 70.0, "gcn": 70.0}, "1 of 2", "gcn", 0.0),
        ({"gcn": 71.0}, "–", "gcn", None),
        ({"hpgmn": 71.0}, "1 of 1", None, None),
    ],
)
def test_rank_of_hpgmn(sound, means, rank, rival, distance):
    order = standing(sound({"cornell": means}), "cornell")
    assert (order.rank(order.ours), order.rival) == (rank, rival)
    assert (order.distance is None) == (distance is None)
    if order.distance is not None:
        assert 100 * order.distance.mean == pytest.approx(distance)


def test_the_lead_is_paired(sound):
    # 0.3 ± t(0.975, 1) · √((1/2 + 20/48) · 0.045) = 0.3 ± 12.706 · 0.2031
    order = standing(sound({"cornell": {"hpgmn": 42.3, "mlp": 42.0, "gcn": 30.0}}), "cornell")
    assert order.first == "hpgmn"
    assert 100 * order.lead.mean == pytest.approx(0.3)
    assert 100 * order.lead.low == pytest.approx(0.3 - 12.706 * 0.2031, abs=1e-3)


def test_without_records_there_is_no_order(sound):
    assert standing(sound({}), "cornell") is None


def test_a_form_of_hpgmn_is_no_rival_of_another(make_record, made):
    plan = experiment("table3", Budget(trials=1, seeds=2, graphs=("cora",)))
    given = {"hpgmn-gcn": (84.0, 1.0), "hpgmn-appnp": (83.0, 9.0), "gcn": (80.0, 2.0)}
    records = [
        make_record(cell, [given[cell.model][0]] * 2, val=given[cell.model][1])
        for cell in plan.cells
        if cell.variant == "tuned" and cell.model in given
    ]
    order = standing(made(plan, *records), "cora")
    assert (order.ours, order.rival, order.rank(order.ours)) == ("hpgmn-appnp", "gcn", "2 of 3")
