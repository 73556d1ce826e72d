"""The portfolio: its members, and when it is trained."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS, find_model, has_settings_for, settings_for
from hpgmn.runs import portfolio
from hpgmn.runs.portfolio import (
    Member,
    ensemble_selection,
    members_for,
    portfolio_members,
    portfolio_selection,
    selected_members,
    with_settings,
)

# When it is trained.


def selection(source, **options):
    defaults: dict[str, Any] = {"model": None, "config": {}, "settings": None, "portfolio": True}
    defaults |= {"ensemble": False, "single": False, "members": None, "time_limit": None}
    return portfolio_selection(source, **(defaults | options))


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("my-folder", {}, "ensemble"),
        ("./texas.npz", {}, "ensemble"),
        ("actor", {}, "ensemble"),
        ("texas", {}, None),
        ("texas", {"ensemble": True}, "ensemble"),
        ("texas", {"single": True}, "single"),
        ("texas", {"model": "ensemble"}, "ensemble"),
        ("texas", {"members": "linkx-out"}, "ensemble"),
        ("my-folder", {"single": True}, "single"),
        ("my-folder", {"portfolio": False}, None),
        ("my-folder", {"model": "mlp"}, None),
        ("my-folder", {"config": {"model": "hpgmn", "settings": {}}}, None),
        ("my-folder", {"settings": {"lr": 0.1}}, None),
        ("my-folder", {"settings": {"lr": 0.1}, "ensemble": True}, "ensemble"),
    ],
)
def test_the_portfolio_is_trained_where_nothing_else_is_known_or_on_request(
    source, options, expected
):
    assert selection(source, **options).get("portfolio") == expected


def test_a_selection_holds_what_was_requested():
    assert selection("my-folder") == {"portfolio": "ensemble", "time_limit": 300.0}
    options = {"members": "a, b", "settings": {"lr": 1, "statistics": ("x",)}, "time_limit": 9.0}
    assert selection("my-folder", ensemble=True, **options) == {
        "portfolio": "ensemble",
        "time_limit": 9.0,
        "members": ["a", "b"],
        "settings": {"lr": 1, "statistics": ["x"]},
    }
    config = {"model": "ensemble", "settings": {}, "selection": selection("x", members=["a"])}
    assert selection("texas", config=config) == config["selection"]


@pytest.mark.parametrize(
    "options",
    [
        {"ensemble": True, "single": True},
        {"ensemble": True, "portfolio": False},
        {"single": True, "model": "gcn"},
        {"members": ["a"], "config": {"model": "gcn", "settings": {}}},
        {"time_limit": 0.0},
        {"time_limit": -1.0},
        {"time_limit": float("nan")},
        {"time_limit": float("inf")},
        {"model": "gcn", "time_limit": 10.0},
    ],
)
def test_requests_that_exclude_each_other_are_refused(options):
    with pytest.raises(SettingError) as error:
        selection("my-folder", **options)
    assert error.value.remedy is not None


def test_members_are_taken_by_name_and_with_settings(ring):
    asked = {"members": ["linkx-out", "hpgmn-both", "linkx-out"], "settings": {"dropout": "0.5"}}
    members, note = selected_members(asked, ring(12), "ring")
    assert [member.name for member in members] == ["linkx-out", "hpgmn-both"]
    assert [member.settings["dropout"] for member in members] == [0.5, 0.5]
    assert note is None
    with pytest.raises(SettingError, match="Unknown member 'linkx'"):
        selected_members({"members": ["linkx"]}, ring(12), "ring")


def test_settings_are_put_over_every_member_that_has_them():
    members = (Member("a", "hpgmn", {"lr": 0.1}), Member("b", "mlp", {"layers": 2}))
    over = {"class_weights": "balanced", "estimator_dropout": "0.5"}
    first, second = with_settings(members, over)
    assert first.settings == {"lr": 0.1, "class_weights": "balanced", "estimator_dropout": 0.5}
    assert second.settings == {"layers": 2, "class_weights": "balanced"}
    with pytest.raises(HPGMNError, match="Unknown setting 'weights'"):
        with_settings(members, {"weights": 1})


def test_shipped_settings_of_a_dataset_come_first(ring):
    members, _ = members_for(ring(12), "texas")
    slow = ("cpgnn", "dssl", "lwgcn", "mmp")
    models = [m for m in MODELS if has_settings_for("texas", m) and m not in slow]
    assert len(models) > 5
    for member, model in zip(members, models, strict=False):
        assert (member.model, member.settings) == (model, settings_for("texas", model))
    assert members[len(models) :] == portfolio_members()
    assert ensemble_selection(5)["time_limit"] == 5


# Members.

SHIPPED = portfolio_members()
Ring = Callable[..., Graph]


@pytest.mark.parametrize("members", [portfolio_members(), portfolio_members("large")])
def test_every_member_has_a_name_of_its_own_and_settings_that_its_model_takes(members):
    assert len({member.name for member in members}) == len(members)
    made = [make_settings(find_model(one.model).settings, one.settings) for one in members]
    assert len({repr(settings) for settings in made}) == len(members)


def test_the_portfolio_covers_directions_statistics_and_encoders():
    settings = [
        make_settings(find_model(one.model).settings, one.settings) for one in portfolio_members()
    ]
    own = [one for one in settings if hasattr(one, "statistics")]
    assert {one.neighbors for one in own} == {"out", "undirected", "both"}
    assert any(one.statistics == ("attributes",) for one in own)
    assert any("adjacency" in one.statistics for one in own)
    assert any("diffusion" in one.statistics for one in own)
    assert any({"adjacency", "diffusion"}.isdisjoint(one.statistics[1:]) for one in own)
    assert max(one.weight_decay for one in own) >= 100 * min(one.weight_decay for one in own)
    assert any(member.model == "hpgmn-appnp" for member in portfolio_members())


def test_a_directed_graph_gets_the_whole_portfolio(ring):
    assert members_for(ring(12)) == (portfolio_members(), None)


def test_where_edges_run_both_ways_no_two_members_are_the_same(ring):
    members, note = members_for(ring(12, both_ways=True))
    shapes = [
        (one.model, {k: v for k, v in one.settings.items() if k != "neighbors"})
        for one in members
        if one.settings.get("neighbors", "both") != "both"
    ]
    assert all(shape not in shapes[:place] for place, shape in enumerate(shapes))
    assert len(members) < len(portfolio_members())
    assert note is not None
    assert (
        f"{len(portfolio_members()) - len(members)} of {len(portfolio_members())} members" in note
    )


def test_weights_added_in_both_directions_are_another_graph(ring):
    twin = ring(12, both_ways=True)
    weights = np.arange(1, 25, dtype=np.float32)
    weighted = Graph(twin.x, twin.edge_index, twin.y, edge_weight=weights, directed=True)
    assert members_for(weighted) == (portfolio_members(), None)
    once = Graph(twin.x, ring(12).edge_index, twin.y, directed=False)
    assert members_for(once)[0] == members_for(twin)[0]


def test_a_large_graph_gets_batches_and_says_so(ring, monkeypatch):
    monkeypatch.setattr(portfolio, "LARGE_NODES", 12)
    assert members_for(ring(12))[0] == portfolio_members()
    members, note = members_for(ring(13))
    assert members == portfolio_members("large")
    assert note is not None
    assert "more than 12 nodes" in note
    assert f"{len(members)} members" in note
    own = [one for one in portfolio_members("large") if one.model == "hpgmn"]
    assert all(one.settings["batch_size"] > 0 for one in own)


def test_a_named_member_is_that_of_the_size_of_the_graph(ring, monkeypatch):
    monkeypatch.setattr("hpgmn.runs.portfolio.LARGE_NODES", 5)
    large = portfolio_members("large")
    names = [member.name for member in large]
    assert selected_members({"members": names}, ring(12), "ring")[0] == large


def test_on_types_one_member_merges_them(ring, typed):
    members, note = members_for(typed(ring(12)))
    assert note is None
    extra = [member for member in members if member not in portfolio_members()]
    assert [member.settings["edge_types"] for member in extra] == ["merged"]
    assert [member for member in members if member not in extra] == list(portfolio_members())
    twin = members[members.index(extra[0]) - 1]
    assert extra[0].settings == twin.settings | {"edge_types": "merged"}


def test_a_regression_has_members_of_its_own_order(ring):
    graph = ring(12)
    targets = Graph(graph.x, graph.edge_index, graph.y.astype(float))
    names = [member.name for member in members_for(targets)[0]]
    assert names[:2] == ["boosting", "boosting-large"]
    assert sorted({*names} - {"boosting-large"}) == sorted(one.name for one in portfolio_members())
    assert len(set(names)) == len(names)
