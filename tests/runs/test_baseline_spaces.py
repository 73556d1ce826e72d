"""The baselines' search spaces: every value is allowed, and every model is searched."""

from __future__ import annotations

from typing import Any

import pytest

from hpgmn.base.settings import make_settings, settings_dict
from hpgmn.models import MODELS
from hpgmn.runs import baseline_spaces
from hpgmn.runs.baseline_spaces import KINDS, baseline_space, kind_of
from hpgmn_lab.results.baselines import BASELINES, GRAPHS


def test_every_graph_of_the_comparison_has_its_kind() -> None:
    assert [kind_of(graph) for graph in GRAPHS] == [
        *["webkb"] * 3, *["wikipedia"] * 2, "crocodile", *["citation"] * 3,
    ]  # fmt: skip
    assert kind_of("cornell") == "webkb"


@pytest.mark.parametrize("graph", ["texas", "squirrel", "crocodile", "cora"])
@pytest.mark.parametrize("model", BASELINES)
def test_every_value_is_allowed(model: str, graph: str) -> None:
    space = baseline_space(model, graph)
    assert {"lr", "weight_decay", "epochs", "patience", "hidden_dim"} <= set(space)
    for name, values in space.items():
        assert len(set(map(repr, values))) == len(values), name
        for value in values:
            made: Any = make_settings(MODELS[model].settings, {name: value})
            assert settings_dict(made)[name] == value


def test_a_models_own_values_go_before_the_shared_ones() -> None:
    assert baseline_space("gcn", "cora")["self_loop"] == [1.0]
    assert baseline_space("gcn", "texas")["self_loop"] == [1.0, 0.0]
    assert "neighbors" not in baseline_space("mlp", "texas")
    assert baseline_space("dirgcn", "squirrel")["out_share"] == [1.0]


def test_no_space_is_for_a_model_or_kind_that_does_not_exist() -> None:
    assert set(baseline_spaces._OWN) == set(BASELINES)
    for kinds in baseline_spaces._OWN.values():
        assert set(kinds) <= {"any", *KINDS}
