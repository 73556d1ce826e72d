"""What each option beyond the paper changes, written out."""

from __future__ import annotations

from typing import Any

import pytest

from hpgmn.experiments.reproduction.options import ENCODER_OPTIONS, STATISTICS_OPTIONS
from hpgmn.shipped import read_config

BASE: dict[str, Any] = {
    "statistics": ("attributes", "class_means", "adjacency", "neighbor_class_means"),
    "refinement": True,
}


@pytest.mark.parametrize(
    ("variant", "change"),
    [
        ("without-memory", {"memory": False}),
        ("without-gate", {"gate": False}),
        (
            "diffusion-for-adjacency",
            {"statistics": ("attributes", "class_means", "neighbor_class_means", "diffusion")},
        ),
        ("without-neighbor-means", {"statistics": ("attributes", "class_means", "adjacency")}),
        ("with-neighbor-class-means", {"statistics": BASE["statistics"]}),
        ("with-neighbor-adjacency", {"statistics": (*BASE["statistics"], "neighbor_adjacency")}),
        ("refinement-switched", {"refinement": False}),
        ("with-soft-counts", {"soft_counts": True}),
        ("train-labels-only", {"label_confidence": 1.0}),
    ],
)
def test_an_option_changes_what_it_names(variant: str, change: dict[str, Any]) -> None:
    assert STATISTICS_OPTIONS[variant](BASE) == change


def test_a_switch_turns_on_what_was_off() -> None:
    assert STATISTICS_OPTIONS["refinement-switched"]({}) == {"refinement": True}
    assert ENCODER_OPTIONS["batch-norm-switched"]({}) == {"batch_norm": True}
    assert ENCODER_OPTIONS["batch-norm-switched"]({"batch_norm": True}) == {"batch_norm": False}


def test_the_papers_config_replaces_all_it_names() -> None:
    assert STATISTICS_OPTIONS["paper-config"](BASE) == read_config("paper")["settings"]


def test_without_column_dropout_no_statistic_is_thinned_out() -> None:
    change = STATISTICS_OPTIONS["without-column-dropout"](BASE)
    assert set(change.values()) == {0.0}
    assert {"attributes_dropout", "adjacency_dropout", "diffusion_dropout"} < set(change)


def test_encoder_options_change_what_they_name() -> None:
    assert ENCODER_OPTIONS["without-consistency"](BASE) == {"consistency_weight": 0.0}
    assert ENCODER_OPTIONS["propagation-after"](BASE) == {"propagation": "after"}
