"""Every search space: known models and graphs, and values that are allowed."""

from __future__ import annotations

from typing import Any

import pytest

from hpgmn.base.settings import make_settings
from hpgmn.graph.datasets import DATASETS
from hpgmn.models import MODELS
from hpgmn.runs.baseline_spaces import baseline_space
from hpgmn.runs.search import sample_trials
from hpgmn.runs.spaces import MIXED, NARROWED, PAPER_SPACE, SPACES, space_for

ALL = [
    pytest.param(kind, key, space, id=f"{kind} {key[0]} {key[1]}")
    for kind, spaces in (("wide", SPACES), ("narrow", NARROWED), ("mixed", MIXED))
    for key, space in spaces.items()
]


@pytest.mark.parametrize(("kind", "key", "space"), ALL)
def test_every_value_of_a_space_is_a_valid_setting(
    kind: str, key: tuple[str, str], space: dict[str, list[Any]]
) -> None:
    model, graph = key
    assert graph in DATASETS
    cls = MODELS[model].settings
    for name, values in space.items():
        assert values, f"{kind}: nothing to try for {name}"
        found = [getattr(make_settings(cls, {name: value}), name) for value in values]
        assert found == values  # nothing is rounded or reordered
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(("kind", "key", "space"), ALL)
def test_every_space_gives_valid_trials(
    kind: str, key: tuple[str, str], space: dict[str, list[Any]]
) -> None:
    cls = MODELS[key[0]].settings
    for trial in sample_trials(key[0], space, structures=3, each=2, seed=len(kind)):
        make_settings(cls, trial)


def test_what_was_narrowed_was_searched_widely_first() -> None:
    assert NARROWED.keys() <= SPACES.keys()
    for key, space in NARROWED.items():
        assert space.keys() == SPACES[key].keys() | space.keys()
        assert space != SPACES[key]


GRAND: dict[str, dict[str, Any]] = {
    "cora": {
        "rounds": 8,
        "consistency_passes": 4,
        "consistency_temperature": 0.5,
        "consistency_weight": 1.0,
        "attributes_dropout": 0.5,
        "dropout": 0.5,
        "lr": 0.01,
        "batch_norm": False,
    },
    "citeseer": {
        "rounds": 2,
        "consistency_passes": 2,
        "consistency_temperature": 0.3,
        "consistency_weight": 0.7,
        "attributes_dropout": 0.0,
        "dropout": 0.2,
        "lr": 0.01,
        "batch_norm": False,
    },
    "pubmed": {
        "rounds": 5,
        "consistency_passes": 4,
        "consistency_temperature": 0.2,
        "consistency_weight": 1.0,
        "attributes_dropout": 0.6,
        "dropout": 0.8,
        "lr": 0.2,
        "batch_norm": True,
    },
}
"""What the authors' scripts run_cora.sh, run_citeseer.sh and run_pubmed.sh ask for."""


def test_the_mixed_spaces_hold_the_settings_of_grand() -> None:
    common = {"propagation": "before", "mixing": "mean", "node_dropout": 0.5, "hidden_dim": 32}
    common |= {"weight_decay": 5e-4, "attributes_scaling": "fraction"}
    assert {graph for _, graph in MIXED} == GRAND.keys()
    for (model, graph), space in MIXED.items():
        for name, value in (common | GRAND[graph]).items():
            assert value in space[name], (graph, name)
        assert SPACES[model, graph].keys() <= space.keys()
        assert space["propagation"] == ["before"]


def test_the_paper_s_graphs_are_all_searched() -> None:
    graphs = {graph for _, graph in SPACES}
    assert {"texas", "wisconsin", "cornell", "chameleon", "squirrel", "crocodile"} <= graphs
    assert {"cora", "citeseer", "pubmed"} <= graphs


def test_a_model_has_one_space_for_each_kind_of_graph() -> None:
    assert space_for("hpgmn", "texas") == space_for("hpgmn", "cornell")
    assert space_for("hpgmn", "squirrel-filtered") == space_for("hpgmn", "squirrel")
    assert space_for("hpgmn", "actor") == space_for("hpgmn", "a graph nobody knows")
    assert space_for("hpgmn", "actor")["neighbors"] == ["undirected", "out"]
    assert space_for("hpgmn-appnp", "actor") == SPACES["hpgmn-appnp", "cora"]
    assert space_for("gcn", "cora") == baseline_space("gcn", "cora")


def test_the_papers_space_is_the_printed_one() -> None:
    assert PAPER_SPACE["num_patterns"] == [20, 50, 100, 200, 300, 500]
    assert PAPER_SPACE["hidden_dim"] == [100, 200, 300, 500]
    weights = [10.0**exponent for exponent in range(-4, 3)]
    assert PAPER_SPACE["kpattern_weight"] == PAPER_SPACE["entropy_weight"] == weights


@pytest.mark.parametrize("graph", ["texas", "squirrel", "actor"])
def test_a_comparison_tells_no_model_which_neighbours_a_graph_wants(graph: str) -> None:
    ours, theirs = space_for("hpgmn", graph), space_for("gcn", graph)
    assert set(ours["neighbors"]) == set(theirs["neighbors"]) == {"undirected", "out"}
    assert min(ours["attributes_dropout"]) == min(theirs["attributes_dropout"]) == 0.0
