"""What the baselines share: settings, inputs, selection of nodes and size estimates."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.baseline import BaselineSettings, GraphSettings
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, make_task

BASELINES = [name for name in MODELS if not name.startswith("hpgmn") and name != "boosting"]
SIZES = [(name, {}) for name in BASELINES] + [
    ("chebnet", {"order": 4}),
    ("cpgnn", {"prior": "cheby"}),
    ("dirgcn", {"jump": "concat"}),
    ("dirgcn", {"layers": 1}),
    ("dirgcn", {"out_share": 1.0}),
    ("dirgcn", {"unit_layers": True}),
    ("fsgnn", {"self_loops": "with"}),
    ("h2gcn", {"hidden_dim": 16}),
    ("h2gcn", {"rounds": 1}),
    ("linkx", {"adjacency_layers": 3}),
    ("lwgcn", {"form": "direct"}),
    ("lwgcn", {"mix_gcnii": True}),
    ("mixhop", {"powers": 4}),
]
"""Models whose size is measured, with settings."""


@pytest.mark.parametrize("name", BASELINES)
def test_requested_nodes_are_rows_of_the_whole(build, name):
    built = build(name)
    nodes = torch.tensor([[3, 1, 22], [0, 0, 5]])
    positions = torch.tensor([[2, 0], [1, 1]])
    found = built.stage.model(built.stage.inputs, None, nodes, positions).logits
    expected = built.logits[torch.arange(2)[:, None], nodes.gather(1, positions)]
    torch.testing.assert_close(found, expected)


@pytest.fixture(scope="module")
def wide_graph():
    """100 nodes of 500 attributes with many edges: no part of an estimate is negligible."""
    random = np.random.default_rng(5)
    part = random.permutation(100)
    return Graph(
        random.normal(size=(100, 500)),
        random.integers(0, 100, (2, 1500)),
        np.arange(100) % 4,
        train_mask=part < 50,
        val_mask=part >= 50,
    )


@pytest.mark.parametrize(("name", "settings"), SIZES)
def test_the_size_estimate_is_that_of_parameters_and_of_a_training_pass(wide_graph, name, settings):
    entry = MODELS[name]
    chosen = make_settings(entry.settings, settings)
    mask = wide_graph.split(0).train
    task = make_task(wide_graph, [Replica(0, 0, chosen)], [(mask, mask)], "cpu")
    done, sizes = {}, []
    for stage_name, builder in entry.stages.items():
        stage = builder(task, done)
        initialise(stage.model, task.keys(stage_name))
        done[stage_name] = dict(stage.model.named_parameters())
        if done[stage_name]:
            sizes.append(measured_size(stage, Noise(task.keys(stage_name), 1)))
    parameters, activations = (max(size) for size in zip(*sizes, strict=True))
    found_parameters, per_node = entry.floats(wide_graph, chosen)
    assert 0.6 < found_parameters / parameters < 1.3
    assert 1 < (found_parameters + 100 * per_node) / (parameters + activations) < 4


@pytest.mark.parametrize(
    ("name", "settings", "parameters", "per_node"),
    [
        ("h2gcn", {"rounds": 1}, 64 * (500 + 3 * 4), 64 * (6 * 3 + 6)),
        ("h2gcn", {"rounds": 2}, 64 * (500 + 7 * 4), 64 * (6 * 7 + 6)),
        ("dirgcn", {"out_share": 1.0}, 64 * (500 + 2 * 64), 64 * 3 * 8),
        ("dirgcn", {"out_share": 0.5}, 2 * 64 * (500 + 2 * 64), 64 * 3 * 10),
    ],
)
def test_concatenations_and_directions_count_in_the_estimate(
    wide_graph, name, settings, parameters, per_node
):
    entry = MODELS[name]
    estimate = entry.floats(wide_graph, make_settings(entry.settings, settings))
    assert estimate == (parameters, per_node)


def measured_size(stage, noise):
    """The numbers in the parameters of a replica, and in what a pass stores for its gradients."""
    stored = {}

    def note(tensor):
        stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        stage.model(stage.inputs, noise, penalties=True)
    for parameter in stage.model.parameters():
        stored.pop(parameter.untyped_storage().data_ptr(), None)
    sizes = [tensor.untyped_storage().nbytes() for tensor in stored.values()]
    size = sum(size for size in sizes if size != 4 * 100 * 500)  # replicas share the attributes
    return sum(parameter.numel() for parameter in stage.model.parameters()), size / 4


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
    for name in BASELINES:
        assert issubclass(MODELS[name].settings, BaselineSettings), name
