"""Ranges, units and stages, and the forms that shards take."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from hpgmn.base.errors import SettingError
from hpgmn.shards.plan import Plan, balanced_starts, resolve_forms
from hpgmn.statistics import StatisticsSettings

PLAN = Plan(
    graph="somewhere",
    name="made",
    source="abc",
    num_nodes=10,
    num_features=4,
    num_edges=20,
    is_directed=True,
    is_weighted=False,
    is_sparse=False,
    starts=(0, 4, 10),
    class_names=("a", "b"),
    labels="def",
    split=0,
    memory=1000,
    settings={"statistics": ["class_counts"], "neighbors": "out"},
)


def kinds(**settings):
    plan = dataclasses.replace(PLAN, settings=PLAN.settings | settings)
    return [stage.units[0].key.removesuffix("-00000") for stage in plan.stages()]


def test_only_what_is_needed_is_made():
    assert kinds() == ["out", "nodes", "rows-class_counts"]
    assert kinds(neighbors="both") == [
        *("out", "in", "nodes", "rows-class_counts_out", "rows-class_counts_in")
    ]
    assert kinds(neighbors="undirected")[:3] == ["out", "in", "undirected"]
    diffusion = {"statistics": ["diffusion"], "diffusion_form": "topk"}
    assert kinds(**diffusion) == [
        *("out", "in", "nodes", "transition-out", "join-out", "topk-diffusion")
    ]
    assert kinds(**diffusion, normalization="row")[:2] == ["out", "nodes"]


def test_there_is_a_round_for_each_coefficient():
    found = kinds(statistics=["diffusion"], diffusion_form="sketch", teleport=0.5)
    assert found[-20:] == [f"round-diffusion-{step:03d}" for step in range(20)]
    assert found[-21] == "transition-out"


def test_undirected_graphs_have_one_set_of_edges():
    plan = dataclasses.replace(
        PLAN, is_directed=False, settings=PLAN.settings | {"neighbors": "both"}
    )
    assert plan.mode("class_counts_in") == plan.mode("class_counts_out") == "undirected"


def test_a_plan_is_read_as_written_and_known_by_its_values(tmp_path):
    (tmp_path / "plan.json").write_text(PLAN.text())
    assert Plan.read(tmp_path / "plan.json") == PLAN
    elsewhere = dataclasses.replace(PLAN, graph="elsewhere", memory=5)
    assert elsewhere.digest == PLAN.digest
    assert dataclasses.replace(PLAN, labels="x").digest != PLAN.digest


@pytest.mark.parametrize("count", [1, 2, 7, 50, 100])
def test_ranges_share_nodes_and_edges(count):
    degrees = np.random.default_rng(0).integers(0, 20, 100)
    before = np.append(0, np.cumsum(degrees))
    starts = balanced_starts(lambda node: int(before[node]), 100, count)
    assert (starts[0], starts[-1], len(starts)) == (0, 100, count + 1)
    assert all(first < last for first, last in pairwise(starts))
    share = np.diff(np.array(starts) / 100 + before[list(starts)] / before[-1]) / 2
    most = (1 / 100 + degrees.max() / before[-1]) / 2  # a node is not cut
    assert share.max() <= 1 / count + 2 * most


def test_a_graph_without_edges_is_cut_too():
    assert balanced_starts(lambda node: 0, 4, 2) == (0, 3, 4)


def test_too_many_ranges_are_refused():
    for count in (0, 5):
        with pytest.raises(SettingError, match="one for each node, 4"):
            balanced_starts(lambda node: 0, 4, count)


def test_long_class_means_are_sketched():
    settings = StatisticsSettings(class_means_dim=64)
    chosen = resolve_forms(settings, (10**7, 128), 5, sparse=False)
    assert chosen.class_means_form == "sketch"
    assert resolve_forms(settings, (10**7, 64), 5, sparse=False).class_means_form == "half"
    assert resolve_forms(settings, (10**7, 128), 5, sparse=True).class_means_form == "sparse"
    with pytest.raises(SettingError, match="no class_means_form=factored"):
        resolve_forms(
            dataclasses.replace(settings, class_means_form="factored"), (9, 9), 2, sparse=False
        )
