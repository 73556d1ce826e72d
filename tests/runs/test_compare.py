"""Several runs on one graph: the reference, the differences, what the file holds."""

from __future__ import annotations

from typing import Any

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.evaluation.scores import paired_difference
from hpgmn.runs.compare import comparison, difference, is_ours, reference_of


def run_of(model: str, test: list[float], **changes: Any) -> dict[str, Any]:
    seeds = changes.pop("seeds", 1)
    splits = list(range(len(test) // seeds))
    return {
        "model": model,
        "graph": "toy",
        "metric": "accuracy",
        "splits": splits,
        "seeds": seeds,
        "test_score": test,
        "test_score_mean": sum(test) / len(test),
        "test_score_std": 0.01,
        "val_score": [value + 0.1 for value in test],
        "seconds": 2.0,
        "peak_memory_mb": 300.0,
        "nodes": {"train": [48] * len(splits), "val": [32] * 3, "test": [20] * len(splits)},
    } | changes


OURS = run_of("hpgmn", [0.80, 0.85, 0.90])
OTHER = run_of("gcn", [0.70, 0.70, 0.85])


def test_hpgmn_is_the_reference_wherever_it_stands() -> None:
    assert reference_of([OTHER, OURS]) == "hpgmn"
    higher = run_of("hpgmn-appnp", [0.1, 0.1, 0.1], val_score=[0.99] * 3)
    assert reference_of([OTHER, OURS, higher]) == "hpgmn-appnp"  # the best by validation
    assert reference_of([OTHER, run_of("mlp", [0.5])]) == "gcn"


def test_the_difference_is_paired_over_splits() -> None:
    expected = paired_difference(
        [0.7, 0.7, 0.85], [0.8, 0.85, 0.9], splits=3, test_per_train=20 / 48
    )
    found = difference(OTHER, OURS)
    assert found is not None
    assert found.mean == pytest.approx(-0.1)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_older_runs_without_numbers_of_nodes_take_those_of_the_other() -> None:
    old = {key: value for key, value in OURS.items() if key != "nodes"}
    assert difference(OTHER, old) == difference(OTHER, OURS)
    assert difference(old, OTHER) == difference(OURS, OTHER)


def test_runs_that_both_lack_numbers_of_nodes_are_refused() -> None:
    old, other = ({key: run[key] for key in run if key != "nodes"} for run in (OURS, OTHER))
    with pytest.raises(HPGMNError, match=r"gcn and hpgmn on toy .* Train one of them again"):
        difference(other, old)


def test_every_row_but_the_reference_has_a_difference() -> None:
    content = comparison([OTHER, OURS])
    assert (content["reference"], content["graph"]) == ("hpgmn", "toy")
    assert content["splits"] == [0, 1, 2]
    gcn, ours = content["rows"]
    assert gcn["difference"]["mean"] == pytest.approx(-0.1)
    assert gcn["difference"]["over"] == "splits"
    assert ours["difference"] is None
    assert gcn["val_score_mean"] == pytest.approx(0.85)


def test_runs_without_test_nodes_have_no_difference() -> None:
    blind = run_of("mlp", [0.5]) | {"test_score": [], "test_score_mean": None}
    assert difference(blind, OURS) is None
    assert comparison([blind, OURS])["rows"][0]["difference"] is None


@pytest.mark.parametrize("change", [{"splits": [0, 1, 5]}, {"metric": "roc_auc"}])
def test_runs_of_other_splits_are_not_compared(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="other splits or metrics"):
        difference(OTHER | change, OURS)


@pytest.mark.parametrize(
    ("model", "answer"),
    [("hpgmn", True), ("hpgmn-appnp", True), ("gcn-jk", False), ("mlp", False)],
)
def test_forms_of_hpgmn_are_ours(model: str, answer: bool) -> None:
    assert is_ours(model) == answer
