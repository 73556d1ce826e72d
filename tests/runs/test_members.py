"""The members of the portfolio, and which are tried on a graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import find_model
from hpgmn.runs import members as portfolio_members
from hpgmn.runs.members import LARGE_PORTFOLIO, PORTFOLIO, Member, members_for

Ring = Callable[..., Graph]


@pytest.mark.parametrize("members", [PORTFOLIO, LARGE_PORTFOLIO])
def test_every_member_has_a_name_of_its_own_and_settings_that_its_model_takes(
    members: tuple[Member, ...],
) -> None:
    assert len({member.name for member in members}) == len(members)
    made = [make_settings(find_model(one.model).settings, one.settings) for one in members]
    assert len({repr(settings) for settings in made}) == len(members)


def test_the_portfolio_covers_directions_statistics_and_encoders() -> None:
    settings = [make_settings(find_model(one.model).settings, one.settings) for one in PORTFOLIO]
    own = [one for one in settings if hasattr(one, "statistics")]
    assert {one.neighbors for one in own} == {"out", "undirected", "both"}
    assert any(one.statistics == ("attributes",) for one in own)
    assert any("adjacency" in one.statistics for one in own)
    assert any("diffusion" in one.statistics for one in own)
    assert any({"adjacency", "diffusion"}.isdisjoint(one.statistics[1:]) for one in own)
    assert max(one.weight_decay for one in own) >= 100 * min(one.weight_decay for one in own)
    assert any(member.model == "hpgmn-appnp" for member in PORTFOLIO)
    assert 8 <= len(PORTFOLIO) <= 14


def test_a_directed_graph_gets_the_whole_portfolio(ring: Ring) -> None:
    assert members_for(ring(12)) == (PORTFOLIO, None)


def test_where_edges_run_both_ways_no_two_members_are_the_same(ring: Ring) -> None:
    members, note = members_for(ring(12, both_ways=True))
    shapes = [
        (one.model, {k: v for k, v in one.settings.items() if k != "neighbors"})
        for one in members
        if one.settings.get("neighbors", "both") != "both"
    ]
    assert all(shape not in shapes[:place] for place, shape in enumerate(shapes))
    assert len(members) < len(PORTFOLIO)
    assert note is not None
    assert f"{len(PORTFOLIO) - len(members)} of {len(PORTFOLIO)} members" in note


def test_weights_added_in_both_directions_are_another_graph(ring: Ring) -> None:
    twin = ring(12, both_ways=True)
    weights = np.arange(1, 25, dtype=np.float32)
    weighted = Graph(twin.x, twin.edge_index, twin.y, edge_weight=weights, directed=True)
    assert members_for(weighted) == (PORTFOLIO, None)
    once = Graph(twin.x, ring(12).edge_index, twin.y, directed=False)
    assert members_for(once)[0] == members_for(twin)[0]


def test_a_large_graph_gets_batches_and_says_so(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio_members, "LARGE_NODES", 12)
    assert members_for(ring(12))[0] == PORTFOLIO
    members, note = members_for(ring(13))
    assert members == LARGE_PORTFOLIO
    assert note is not None
    assert "more than 12 nodes" in note
    assert f"{len(LARGE_PORTFOLIO)} members" in note
    own = [one for one in LARGE_PORTFOLIO if one.model == "hpgmn"]
    assert all(one.settings["batch_size"] > 0 for one in own)
