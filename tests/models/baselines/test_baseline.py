"""What the baselines share: nodes are taken from the whole, and the size of a replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from hpgmn.models import MODELS
from hpgmn.models.baselines.baseline import BaselineSettings, GraphSettings
from hpgmn.models.baselines.gcn import GCNSettings
from hpgmn.models.stage import default_floats

Build = Callable[..., Any]


def test_a_node_model_gives_the_rows_of_the_nodes_asked_for(build: Build) -> None:
    built = build("gcn")
    nodes = torch.tensor([[3, 1, 22], [0, 0, 5]])
    picked = torch.tensor([[2, 0], [1, 1]])
    found = built.stage.model(built.stage.inputs, None, nodes, picked).logits
    expected = built.logits[torch.arange(2)[:, None], nodes.gather(1, picked)]
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("name", "scaling"), [("gcn", "fraction"), ("mlp", "unit")])
def test_attributes_are_scaled_as_the_settings_say(build: Build, name: str, scaling: str) -> None:
    built = build(name, attributes_scaling=scaling)
    order = {"fraction": 1, "unit": 2}[scaling]
    rows = built.stage.inputs["attributes"].rows(torch.arange(23))
    expected = built.x / built.x.norm(p=order, dim=1, keepdim=True)
    torch.testing.assert_close(rows, expected)


def test_more_layers_are_thought_larger(build: Build) -> None:
    graph = build("gcn").task.graph
    small, large = (default_floats(graph, GCNSettings(layers=layers)) for layers in (2, 5))
    assert small[0] == 7 * 64
    assert large[1] > small[1] > 0


def test_neighbours_are_read_in_one_mode_at_a_time() -> None:
    [info] = [info for info in fields(GraphSettings) if info.name == "neighbors"]
    assert info.metadata["choices"] == ("out", "in", "undirected")
    assert not info.metadata["per_replica"]


def test_every_baseline_has_the_settings_all_share() -> None:
    for name, entry in MODELS.items():
        if not name.startswith("hpgmn"):
            assert issubclass(entry.settings, BaselineSettings), name
