"""Orders of models against orders written down by hand."""

from collections.abc import Callable, Mapping

import pytest

from hpgmn.evaluation.scores import Difference
from hpgmn_lab.reproduction.cells import CellRecord, Records
from hpgmn_lab.reproduction.plan import Budget, experiment
from hpgmn_lab.reproduction.ranking import excludes_zero, paired_means, reversed_pairs, standing
from hpgmn_lab.reproduction.tables import Table, table

MakeRecord = Callable[..., CellRecord]
AsRecords = Callable[..., Records]
Make = Callable[[Mapping[str, Mapping[str, float]]], Table]
SMALL = Budget(trials=1, splits=2, graphs=("chameleon-filtered", "chameleon", "cornell"))


@pytest.fixture
def make(make_record, as_records):
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
        return table(plan, as_records(*records))

    return _make


MEANS = {
    "chameleon": {"hpgmn": 80.0, "dirgcn": 78.0, "gcn": 60.0, "mlp": 50.0},
    "chameleon-filtered": {"hpgmn": 42.0, "dirgcn": 43.0, "gcn": 44.0, "mlp": 36.0},
}


def test_only_models_with_both_records_are_paired(make):
    graphs = ("chameleon", "chameleon-filtered")
    means = paired_means(make(MEANS), graphs)
    assert list(means.index) == ["mlp", "gcn", "dirgcn", "hpgmn"]
    assert list(means.loc["hpgmn"]) == pytest.approx([80.0, 42.0])
    assert reversed_pairs(means) == 3  # hpgmn-dirgcn, hpgmn-gcn, dirgcn-gcn
    fewer = {"chameleon": MEANS["chameleon"], "chameleon-filtered": {"gcn": 44.0}}
    assert list(paired_means(make(fewer), graphs).index) == ["gcn"]
    assert paired_means(make({}), graphs).empty


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
def test_rank_of_hpgmn(make, means, rank, rival, distance):
    found = standing(make({"cornell": means}), "cornell")
    assert found is not None
    assert (found.rank(found.ours), found.rival) == (rank, rival)
    assert (found.distance is None) == (distance is None)
    if found.distance is not None:
        assert 100 * found.distance.mean == pytest.approx(distance)


def test_the_lead_is_paired(make):
    # 0.3 ± t(0.975, 1) · √((1/2 + 20/48) · 0.045) = 0.3 ± 12.706 · 0.2031
    found = standing(make({"cornell": {"hpgmn": 42.3, "mlp": 42.0, "gcn": 30.0}}), "cornell")
    assert found is not None
    assert found.first == "hpgmn"
    assert found.lead is not None
    assert found.lead.low is not None
    assert 100 * found.lead.mean == pytest.approx(0.3)
    assert 100 * found.lead.low == pytest.approx(0.3 - 12.706 * 0.2031, abs=1e-3)


def test_without_records_there_is_no_order(make):
    assert standing(make({}), "cornell") is None


def test_a_form_of_hpgmn_is_no_rival_of_another(make_record, as_records):
    plan = experiment("table3", Budget(trials=1, seeds=2, graphs=("cora",)))
    given = {"hpgmn-gcn": (84.0, 1.0), "hpgmn-appnp": (83.0, 9.0), "gcn": (80.0, 2.0)}
    records = [
        make_record(cell, [given[cell.model][0]] * 2, val=given[cell.model][1])
        for cell in plan.cells
        if cell.variant == "tuned" and cell.model in given
    ]
    found = standing(table(plan, as_records(*records)), "cora")
    assert found is not None
    assert (found.ours, found.rival, found.rank(found.ours)) == ("hpgmn-appnp", "gcn", "2 of 3")


def test_an_interval_excludes_zero_or_not():
    assert excludes_zero(Difference(0.1, 0.01, 0.2, 5, "splits"))
    assert excludes_zero(Difference(-0.1, -0.2, -0.01, 5, "splits"))
    assert not excludes_zero(Difference(0.1, -0.01, 0.2, 5, "splits"))
    assert not excludes_zero(Difference(0.1, None, None, 1, "splits"))
    assert not excludes_zero(None)
