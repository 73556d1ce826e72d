"""What the baselines share: settings, inputs, selection of nodes and size estimates."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import GATConv

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.baseline import BaselineSettings, GraphSettings
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, make_task
from hpgmn.training.state import read_state, write_state
from hpgmn.training.trainer import train

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
    *[
        (name, {"residual": residual, "norm": norm, "layers": 4})
        for name in ("gcn", "gcn-jk", "graphsage", "gat", "dirgcn")
        for residual, norm in ((True, "batch"), (True, "none"), (False, "batch"))
    ],
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


CONNECTIONS = [("batch", True), ("batch", False), ("none", True)]


def torch_layers(built, replica, convolve, after=lambda hidden: hidden):
    """The states after each layer of dropout(ReLU(norm(layer(h) + V·h))), with torch's norm."""
    settings, hidden, states = built.task.settings[replica], built.x, []
    for number in range(settings.layers):
        output = convolve(number, hidden, replica)
        if settings.residual:
            output = output + hidden @ built.parameter(f"skips.{number}.weight", replica)
        if settings.norm == "batch":
            norm = torch.nn.BatchNorm1d(output.shape[1]).eval()
            for theirs, own in (
                (norm.weight, "scale"),
                (norm.bias, "shift"),
                (norm.running_mean, "mean"),
                (norm.running_var, "variance"),
            ):
                theirs.data.copy_(built.parameter(f"norms.{number}.{own}", replica)[0])
            output = norm(output).detach()
        hidden = after(output.relu())
        states.append(hidden)
    return states


def gcn_layer(built):
    matrix = built.normalised()
    return lambda number, x, r: built.affine(f"convolve.{number}", matrix @ x, r)


@pytest.mark.parametrize(("norm", "residual"), CONNECTIONS)
@pytest.mark.parametrize("layers", [1, 3, 12])
def test_a_deep_gcn_is_made_of_torchs_parts(build, norm, residual, layers):
    built = build("gcn", norm=norm, residual=residual, layers=layers)

    def expected(replica):
        *_, last = torch_layers(built, replica, gcn_layer(built))
        return built.affine("classifier", last, replica)

    built.assert_logits(expected)


@pytest.mark.parametrize(("norm", "residual"), CONNECTIONS)
@pytest.mark.parametrize("jump", ["concat", "max"])
def test_a_deep_gcn_with_jumps_is_made_of_torchs_parts(build, norm, residual, jump):
    built = build("gcn-jk", norm=norm, residual=residual, layers=3, jump=jump)

    def expected(replica):
        states = torch_layers(built, replica, gcn_layer(built))
        joined = torch.cat(states, dim=1) if jump == "concat" else torch.stack(states).amax(dim=0)
        return built.affine("classify", joined, replica)

    built.assert_logits(expected)


@pytest.mark.parametrize(("norm", "residual"), CONNECTIONS)
def test_a_deep_graphsage_is_made_of_torchs_parts(build, norm, residual):
    built = build("graphsage", norm=norm, residual=residual, layers=3)

    def convolve(number, x, replica):
        own, neighbors, bias = (
            built.parameter(f"convolve.{number}.{part}", replica)
            for part in ("own", "neighbors", "bias")
        )
        adjacency = built.adjacency()
        mean = adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1)
        return x @ own + mean @ x @ neighbors + bias

    def expected(replica):
        *_, last = torch_layers(built, replica, convolve)
        return built.affine("classifier", last, replica)

    built.assert_logits(expected)


@pytest.mark.parametrize(("norm", "residual"), CONNECTIONS)
def test_a_deep_gat_is_made_of_pygs_convolutions(build, norm, residual):
    built = build("gat", norm=norm, residual=residual, layers=3, heads=2)

    def convolve(number, x, replica):
        weight, center, neighbor, bias = (
            built.parameter(f"convolve.{number}.{part}", replica)
            for part in ("weight", "center", "neighbor", "bias")
        )
        convolution = GATConv(x.shape[1], 3, 2)
        with torch.no_grad():
            convolution.lin.weight.copy_(weight.T)
            convolution.att_src.copy_(neighbor[None])
            convolution.att_dst.copy_(center[None])
            convolution.bias.copy_(bias[0])
            return convolution(x, built.edge_index)

    def expected(replica):
        *_, last = torch_layers(built, replica, convolve)
        return built.affine("classifier", last, replica)

    built.assert_logits(expected)


@pytest.mark.parametrize(("norm", "residual"), CONNECTIONS)
@pytest.mark.parametrize(("jump", "unit_layers"), [("max", True), ("none", False), ("none", True)])
def test_a_deep_dirgcn_is_made_of_torchs_parts(build, norm, residual, jump, unit_layers):
    settings = {"jump": jump, "unit_layers": unit_layers, "out_share": 0.3}
    built = build("dirgcn", norm=norm, residual=residual, layers=3, **settings)
    matrix = built.normalised("out", 0.0)

    def convolve(number, x, replica):
        outward = built.affine(f"convolve.{number}.outward", matrix @ x, replica)
        return 0.3 * outward + 0.7 * built.affine(
            f"convolve.{number}.inward", matrix.T @ x, replica
        )

    def after(hidden):
        return functional.normalize(hidden, dim=1) if unit_layers else hidden

    def expected(replica):
        states = torch_layers(built, replica, convolve, after)
        joined = states[-1] if jump == "none" else torch.stack(states).amax(dim=0)
        return built.affine("classify", joined, replica)

    built.assert_logits(expected)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_running_averages_are_saved_resumed_and_spared_by_weight_decay(small_graph, tmp_path, name):
    values = {"norm": "batch", "residual": True, "layers": 3, "epochs": 9, "patience": 0}
    values |= {"hidden_dim": 8, "lr": 0.05, "weight_decay": 0.5, "consistency_weight": 0.5}
    entry = MODELS[name]
    settings = make_settings(entry.settings, values)
    split = small_graph.split(0)
    replicas = [Replica(0, seed, settings) for seed in range(3)]
    task = make_task(small_graph, replicas, [(split.train, split.val)] * 3, "cpu")
    seen = {}

    def watch(state, stage):
        current = state.current
        seen[current.epoch] = {key: value.clone() for key, value in current.parameters.items()}
        assert not any(key.endswith(("mean", "variance")) for key in current.first)
        for replica, epoch in enumerate(current.best_epoch.tolist()):
            for key, value in seen[epoch].items():
                assert torch.equal(current.best[key][replica], value[replica])
        if current.epoch == 4:
            write_state(tmp_path / "state", state, "deep")

    state = train(task, entry, watch=watch)
    state_again = train(task, entry, state=read_state(tmp_path / "state", "deep"))
    for key, value in state.done["main"].items():
        assert torch.equal(value, state_again.done["main"][key])
    alone = train(task.subset([1]), entry)
    for key, value in alone.done["main"].items():
        torch.testing.assert_close(value, state.done["main"][key][1:2], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("passes", [1, 3])
def test_each_noisy_pass_updates_the_running_averages(small_graph, passes):
    values = {"norm": "batch", "hidden_dim": 8, "epochs": 1, "weight_decay": 0.5, "dropout": 0.5}
    values |= {"consistency_weight": 0.1, "consistency_passes": passes} if passes > 1 else {}
    settings = make_settings(MODELS["gcn"].settings, values)
    split = small_graph.split(0)
    task = make_task(small_graph, [Replica(0, 0, settings)], [(split.train, split.val)], "cpu")
    stage = MODELS["gcn"].stages["main"](task, {})
    initialise(stage.model, task.keys("main"))
    with torch.no_grad():  # the first layer reads no dropout: each pass has the same output
        output = stage.model.convolve[0](stage.inputs["propagation"], stage.inputs["attributes"])
    norm = torch.nn.BatchNorm1d(8)
    for _ in range(passes):
        norm(output[0])
    found = train(task, MODELS["gcn"]).done["main"]
    torch.testing.assert_close(found["norms.0.mean"][0, 0], norm.running_mean)
    torch.testing.assert_close(found["norms.0.variance"][0, 0], norm.running_var)


def test_every_baseline_has_the_settings_all_share():
    for name in BASELINES:
        assert issubclass(MODELS[name].settings, BaselineSettings), name
