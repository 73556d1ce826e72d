"""What each option beyond the paper changes, written out."""

from __future__ import annotations

from typing import Any

import pytest

from hpgmn.base.settings import make_settings
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.shipped import read_config
from hpgmn_lab.reproduction.options import ENCODER_OPTIONS, STATISTICS_OPTIONS
from hpgmn_lab.reproduction.plan import experiment

BASE: dict[str, Any] = {
    "statistics": ("attributes", "class_means", "adjacency", "neighbor_class_means"),
    "refinement": True,
    "lr": 0.5,
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
        ("with-neighbor-class-means", {}),
        ("with-neighbor-adjacency", {"statistics": (*BASE["statistics"], "neighbor_adjacency")}),
        ("with-refinement", {}),
        ("without-refinement", {"refinement": False}),
        ("with-soft-counts", {"soft_counts": True}),
        ("train-labels-only", {"label_confidence": 1.0}),
    ],
)
def test_an_option_changes_what_it_names(variant: str, change: dict[str, Any]) -> None:
    assert STATISTICS_OPTIONS[variant](BASE) == BASE | change


def test_without_column_dropout_no_statistic_is_thinned_out() -> None:
    changed = STATISTICS_OPTIONS["without-column-dropout"](BASE)
    rates = {name: value for name, value in changed.items() if name.endswith("_dropout")}
    assert set(rates) == {
        f"{name}_dropout"
        for name in ("attributes", "class_counts", "class_means", "diffusion", "adjacency")
    }
    assert set(rates.values()) == {0.0}
    assert changed.keys() - rates.keys() == BASE.keys()


def test_the_papers_config_is_the_papers_on_every_graph() -> None:
    """What ``hpgmn train GRAPH --config paper`` trains, whatever ships for the graph."""
    [row] = [row for row in experiment("options").rows if row.label == "paper config"]
    wanted = make_settings(HPGMNSettings, read_config("paper")["settings"])
    for cell in row.cells.values():
        assert make_settings(HPGMNSettings, cell.settings) == wanted


@pytest.mark.parametrize(
    ("variant", "change"),
    [
        ("without-memory", {"memory": False}),
        ("without-consistency", {"consistency_weight": 0.0}),
        ("propagation-after", {"propagation": "after"}),
        ("with-batch-norm", {"batch_norm": True}),
        ("without-batch-norm", {"batch_norm": False}),
    ],
)
def test_encoder_options_change_what_they_name(variant: str, change: dict[str, Any]) -> None:
    assert ENCODER_OPTIONS[variant](BASE) == BASE | change
