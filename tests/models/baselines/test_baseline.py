"""What the baselines share: settings, inputs, selection of nodes and size estimates."""

from dataclasses import fields

import pytest
import torch

from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.baseline import BaselineSettings, GraphSettings

BASELINES = [name for name in MODELS if not name.startswith("hpgmn")]
F, D, C = 7, 64, 4  # attributes and classes of wild_graph, the default width


@pytest.mark.parametrize("name", BASELINES)
def test_requested_nodes_are_rows_of_the_whole(build, name):
    built = build(name)
    nodes = torch.tensor([[3, 1, 22], [0, 0, 5]])
    positions = torch.tensor([[2, 0], [1, 1]])
    found = built.stage.model(built.stage.inputs, None, nodes, positions).logits
    expected = built.logits[torch.arange(2)[:, None], nodes.gather(1, positions)]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "smaller", "larger", "parameters"),
    [
        ("gcn", {"layers": 2}, {"layers": 5}, F * D),
        ("mlp", {"layers": 2}, {"layers": 5}, F * D),
        ("appnp", {"layers": 2}, {"layers": 5}, F * D),
        ("gprgnn", {"layers": 2}, {"layers": 5}, F * D),
        ("gcn-jk", {"layers": 2}, {"layers": 5}, F * D),
        ("graphsage", {"layers": 1}, {"layers": 3}, 2 * F * D),
        ("gat", {"heads": 1}, {"heads": 4}, D * (F + D)),
        ("mmp", {"layers": 2}, {"layers": 5}, D * (F + 2 * D)),
        ("chebnet", {"order": 1}, {"order": 3}, 2 * F * D),
        ("chebnet", {"order": 3}, {"order": 4}, 4 * F * D),
        ("mixhop", {"powers": 1}, {"powers": 3}, F * 128 + 128 * 128),
        ("mixhop", {"powers": 3}, {"powers": 4}, F * 256 + 256 * 256),
        ("h2gcn", {"rounds": 1}, {"rounds": 2}, D * (F + 3 * C)),
        ("dirgcn", {"out_share": 1.0}, {"out_share": 0.5}, D * (F + 2 * D)),
        ("cpgnn", {}, {"rounds": 2}, F * D),
        ("cpgnn", {"prior": "cheby"}, {"prior": "cheby", "order": 3}, 3 * F * D),
        ("bmgcn", {"layers": 2}, {"layers": 3}, 3 * F * D),
        ("dssl", {}, {"layers": 3}, 2 * F * D),
        ("dssl", {}, {"samples": 9}, 2 * F * D),
        ("dssl", {}, {"factors": 9}, 2 * F * D),
        ("dssl", {}, {"hidden_dim": 65}, 2 * F * D),
    ],
)
def test_larger_settings_have_a_larger_estimate(wild_graph, name, smaller, larger, parameters):
    entry = MODELS[name]
    small, large = (
        entry.floats(wild_graph, make_settings(entry.settings, values))
        for values in (smaller, larger)
    )
    assert small[0] == parameters
    assert large[0] >= small[0]
    assert large[1] > small[1] > 0


def test_more_edges_have_a_larger_estimate_where_edges_have_values(wild_graph):
    fewer = Graph(wild_graph.x, wild_graph.edge_index[:, :20], wild_graph.y)
    for name in ("bmgcn", "gat"):
        entry = MODELS[name]
        settings = entry.settings()
        assert entry.floats(fewer, settings)[1] < entry.floats(wild_graph, settings)[1]


@pytest.mark.parametrize(("name", "scaling"), [("gcn", "fraction"), ("mlp", "unit")])
def test_attributes_are_scaled_according_to_the_settings(build, name, scaling):
    built = build(name, attributes_scaling=scaling)
    order = {"fraction": 1, "unit": 2}[scaling]
    rows = built.stage.inputs["attributes"].rows(torch.arange(23))
    expected = built.x / built.x.norm(p=order, dim=1, keepdim=True)
    torch.testing.assert_close(rows, expected)


def test_neighbours_are_read_in_one_mode_at_a_time():
    [info] = [info for info in fields(GraphSettings) if info.name == "neighbors"]
    assert info.metadata["choices"] == ("out", "in", "undirected")
    assert not info.metadata["per_replica"]


def test_every_baseline_has_the_settings_all_share():
    for name, entry in MODELS.items():
        if not name.startswith("hpgmn"):
            assert issubclass(entry.settings, BaselineSettings), name
