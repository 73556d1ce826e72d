"""Orders and sentences about them, against orders written down by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from hpgmn_lab.reproduction.cells import CellRecord
from hpgmn_lab.reproduction.plan import Budget, experiment
from hpgmn_lab.reproduction.ranking import (
    pair_of,
    pair_sentences,
    place_on,
    place_sentence,
    told_apart,
)
from hpgmn_lab.reproduction.tables import Table, table

MakeRecord = Callable[..., CellRecord]
Make = Callable[[Mapping[str, Mapping[str, float]]], Table]
SMALL = Budget(trials=1, splits=2, graphs=("chameleon-filtered", "chameleon", "cornell"))


@pytest.fixture
def make(make_record: MakeRecord) -> Make:
    """The table of the sound protocol with given means: graph → model → mean of two splits.

    The second split is 0.1 higher for mlp, 0.2 lower for all others: differences between these have
    no spread, those to mlp have a deviation of 0.2.
    """
    plan = experiment("sound", SMALL)

    def _make(means: Mapping[str, Mapping[str, float]]) -> Table:
        records = {}
        for cell in plan.cells:
            if cell.model in means.get(cell.graph, {}):
                mean = means[cell.graph][cell.model]
                half = 0.05 if cell.model == "mlp" else -0.1
                records[cell.name] = make_record(cell, [mean - half, mean + half])
        return table(plan, records)

    return _make


MEANS = {
    "chameleon": {"hpgmn": 80.0, "dirgcn": 78.0, "gcn": 60.0, "mlp": 50.0},
    "chameleon-filtered": {"hpgmn": 42.0, "dirgcn": 43.0, "gcn": 44.0, "mlp": 36.0},
}


def test_ranks_falls_and_correlation(make: Make) -> None:
    pair = pair_of(make(MEANS), "chameleon-filtered", "chameleon")
    assert pair.ranks == {"hpgmn": (3, 1), "dirgcn": (2, 2), "gcn": (1, 3), "mlp": (4, 4)}
    assert pair.falls == pytest.approx({"hpgmn": 38.0, "dirgcn": 35.0, "gcn": 16.0, "mlp": 14.0})
    assert pair.reversed == 3  # hpgmn-dirgcn, hpgmn-gcn, dirgcn-gcn
    assert pair.correlation == pytest.approx((3 - 3) / 6)


def test_equal_scores_share_a_rank(make: Make) -> None:
    means = {
        "chameleon": {"gcn": 5.0, "hpgmn": 5.0},
        "chameleon-filtered": {"gcn": 4.0, "hpgmn": 5.0},
    }
    pair = pair_of(make(means), "chameleon-filtered", "chameleon")
    assert pair.ranks == {"gcn": (2, 1.5), "hpgmn": (1, 1.5)}
    assert pair.correlation is None
    assert pair.reversed == 0


def test_only_models_with_both_records_count(make: Make) -> None:
    means = {"chameleon": MEANS["chameleon"], "chameleon-filtered": {"gcn": 44.0}}
    found = make(means)
    pair = pair_of(found, "chameleon-filtered", "chameleon")
    assert list(pair.scores) == ["gcn"]
    assert pair_sentences(found, pair) == [
        "chameleon and chameleon-filtered: 1 model has records on both, too few for an order."
    ]
    empty = pair_of(make({}), "chameleon-filtered", "chameleon")
    assert (empty.scores, empty.correlation) == ({}, None)
    assert "0 models have records" in pair_sentences(make({}), empty)[0]


def test_sentences_say_whose_lead_disappears(make: Make) -> None:
    found = make(MEANS)
    sentences = pair_sentences(found, pair_of(found, "chameleon-filtered", "chameleon"))
    assert sentences == [
        "From chameleon to chameleon-filtered the mean test score changes by -38.0 points (hpgmn) "
        "to -14.0 (mlp).",
        "3 of 6 pairs of models change their order (Kendall's τ 0.00).",
        "On chameleon hpgmn is first, +2.0 (+2.0 to +2.0) points above dirgcn (the interval "
        "excludes zero); on chameleon-filtered that lead is gone: hpgmn is number 3 of 4 and gcn "
        "is first, +1.0 (+1.0 to +1.0) points above dirgcn (the interval excludes zero).",
    ]


def test_other_numbers_give_another_sentence(make: Make) -> None:
    # 0.3 ± t(0.975, 1) · √((1/2 + 20/48) · 0.045) = 0.3 ± 12.706 · 0.2031
    means = {
        "chameleon": {"hpgmn": 80.0, "gcn": 60.0, "mlp": 50.0},
        "chameleon-filtered": {"hpgmn": 42.3, "gcn": 30.0, "mlp": 42.0},
    }
    found = make(means)
    lead = pair_sentences(found, pair_of(found, "chameleon-filtered", "chameleon"))[-1]
    assert lead.endswith(
        "on chameleon-filtered it is still first, but only +0.3 (-2.3 to +2.9) points above mlp "
        "(the interval holds zero)."
    )
    means["chameleon-filtered"]["mlp"] = 20.0
    found = make(means)
    lead = pair_sentences(found, pair_of(found, "chameleon-filtered", "chameleon"))[-1]
    assert lead.endswith(
        "it is still first, +12.3 (+12.3 to +12.3) points above gcn (the interval excludes zero)."
    )


def test_first_without_a_record_on_the_other_graph_is_said(make: Make) -> None:
    means = {
        "chameleon": {"linkx": 90.0, "hpgmn": 80.0, "gcn": 60.0},
        "chameleon-filtered": {"hpgmn": 42.0, "gcn": 41.0},
    }
    found = make(means)
    lead = pair_sentences(found, pair_of(found, "chameleon-filtered", "chameleon"))[-1]
    assert lead.endswith("; it has no record on chameleon-filtered.")


@pytest.mark.parametrize(
    ("means", "sentence"),
    [
        (
            {"hpgmn": 70.0, "gcn": 60.0},
            "On cornell hpgmn is first of 2, +10.0 (+10.0 to +10.0) points above the best other "
            "model, gcn (the interval excludes zero).",
        ),
        (
            {"hpgmn": 70.0, "gcn": 71.0, "mlp": 70.5},
            "On cornell hpgmn is number 3 of 3, -1.0 (-1.0 to -1.0) points from the first, gcn "
            "(the interval excludes zero).",
        ),
        ({"hpgmn": 70.0, "gcn": 70.0}, "On cornell hpgmn and gcn have the same mean."),
        ({"gcn": 71.0}, "On cornell HP-GMN has no record; gcn is first of 1."),
        ({"hpgmn": 71.0}, "On cornell hpgmn has no rival with a record."),
    ],
)
def test_place_of_hpgmn(make: Make, means: dict[str, float], sentence: str) -> None:
    place = place_on(make({"cornell": means}), "cornell")
    assert place is not None
    assert place_sentence(place) == sentence


def test_no_records_no_place(make: Make) -> None:
    assert place_on(make({}), "cornell") is None


def test_a_form_of_hpgmn_is_no_rival_of_another(make_record: MakeRecord) -> None:
    plan = experiment("table3", Budget(trials=1, seeds=2, graphs=("cora",)))
    given = {"hpgmn-gcn": (84.0, 1.0), "hpgmn-appnp": (83.0, 9.0), "gcn": (80.0, 2.0)}
    records = {
        cell.name: make_record(cell, [given[cell.model][0]] * 2, val=given[cell.model][1])
        for cell in plan.cells
        if cell.variant == "tuned" and cell.model in given
    }
    place = place_on(table(plan, records), "cora")
    assert place is not None
    assert (place.ours, place.rival, place.is_first) == ("hpgmn-appnp", "gcn", False)
    assert place_sentence(place).startswith(
        "On cora hpgmn-appnp is number 2 of 3, +3.0 (+3.0 to +3.0) points from the best other model"
    )


def test_a_single_run_has_no_interval_to_speak_of(make_record: MakeRecord) -> None:
    plan = experiment("sound", Budget(trials=1, splits=1, graphs=("cornell", "cornell-geomgcn")))
    means = {"hpgmn": 80.0, "gcn": 70.0}
    records = {
        cell.name: make_record(cell, [means[cell.model]])
        for cell in plan.cells
        if cell.model in means
    }
    found = table(plan, records)
    place = place_on(found, "cornell")
    assert place is not None
    assert place_sentence(place) == (
        "On cornell hpgmn is first of 2, +10.0 points above the best other model, gcn."
    )
    sentences = pair_sentences(found, pair_of(found, "cornell", "cornell-geomgcn"))
    assert sentences[-1] == (
        "On cornell-geomgcn hpgmn is first, +10.0 points above gcn; on cornell it is still first, "
        "+10.0 points above gcn."
    )


def test_differences_are_told_from_chance_by_their_interval(make_record: MakeRecord) -> None:
    plan = experiment("figure3", Budget(splits=4, graphs=("texas",)))
    cells = {cell.variant: cell for cell in plan.cells}
    full = [80.0, 82.0, 81.0, 83.0]
    scores = {
        "shipped": full,
        "without-kpattern": [one - 9.0 - 0.1 * place for place, one in enumerate(full)],
        "without-entropy": [84.0, 78.0, 85.0, 79.0],
    }
    assert told_apart(table(plan, {})) == ""
    records = {cells[name].name: make_record(cells[name], one) for name, one in scores.items()}
    # differences -9.0 … -9.3: s = 0.129, t(0.975, 3) = 3.18, √(1/4 + test/train) < 1: zero is far
    assert told_apart(table(plan, records)) == (
        "2 differences to the row they are set against have an interval; zero is outside it in 1: "
        "without kpattern on texas (-9.2). The others cannot be told from chance."
    )
    del records[cells["without-kpattern"].name]
    assert told_apart(table(plan, records)).endswith(
        "zero is outside it in none. So none can be told from chance."
    )
    del records[cells["without-entropy"].name]
    assert told_apart(table(plan, records)) == ""
