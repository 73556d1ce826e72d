"""LINKX against PyTorch Geometric's, its batch normalisation taken out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.nn import LINKX

from hpgmn.base.randomness import DropRate, Noise, column_factors
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.linkx import LINKXSettings
from hpgmn.models.stage import load_parameters
from hpgmn.statistics import LocalStatistics


def copy(linear, built, name, replica):
    """One of our layers into one of torch's."""
    linear.weight.copy_(built.parameter(f"{name}.weight", replica).T)
    linear.bias.copy_(built.parameter(f"{name}.bias", replica)[0])


def names(prefix, number):
    """The prefix of a layer's parameters in an MLP that begins with a statistic."""
    return f"{prefix}.rest.layers.{number - 1}" if number else f"{prefix}.first"


def pyg_logits(built, replica, adjacency, x):
    """The logits of PyG's LINKX with our weights; row v of the adjacency is what v reads."""
    settings: LINKXSettings = built.task.settings[0]
    edge_layers, node_layers = settings.adjacency_layers, settings.attributes_layers
    reference = LINKX(23, 7, 6, 4, settings.layers, edge_layers, node_layers).eval()
    if reference.edge_norm is not None:
        reference.edge_norm = torch.nn.Identity()
        reference.edge_mlp.norms = torch.nn.ModuleList(map(identity, reference.edge_mlp.norms))
    for mlp in (reference.node_mlp, reference.final_mlp):
        mlp.norms = torch.nn.ModuleList(map(identity, mlp.norms))
    reader, read = adjacency.nonzero().T
    with torch.no_grad():
        reference.edge_lin.weight.copy_(built.parameter("encode_adjacency.first.weight", replica))
        reference.edge_lin.bias.copy_(built.parameter("encode_adjacency.first.bias", replica)[0])
        for number in range(1, edge_layers):
            linear = reference.edge_mlp.lins[number - 1]
            copy(linear, built, names("encode_adjacency", number), replica)
        for number, linear in enumerate(reference.node_mlp.lins):
            copy(linear, built, names("encode_attributes", number), replica)
        join = built.parameter("join.weight", replica)  # PyG has one map for each half
        reference.cat_lin1.weight.copy_(join[:6].T)
        reference.cat_lin2.weight.copy_(join[6:].T)
        reference.cat_lin1.bias.copy_(built.parameter("join.bias", replica)[0])
        reference.cat_lin2.bias.zero_()
        for number, linear in enumerate(reference.final_mlp.lins):
            copy(linear, built, f"classify.layers.{number}", replica)
        return reference(x, torch.stack([read, reader]), adjacency[reader, read])


def identity(norm):
    """What stands in for a normalisation that is left out."""
    return torch.nn.Identity()


@pytest.mark.parametrize(
    ("layers", "adjacency_layers", "attributes_layers", "neighbors", "scaling"),
    [(1, 1, 1, "undirected", "raw"), (3, 2, 2, "out", "fraction"), (1, 3, 1, "in", "unit")],
)
def test_it_is_pygs_linkx(build, layers, adjacency_layers, attributes_layers, neighbors, scaling):
    built = build(
        "linkx",
        layers=layers,
        adjacency_layers=adjacency_layers,
        attributes_layers=attributes_layers,
        neighbors=neighbors,
        adjacency_scaling=scaling,
    )
    adjacency = built.adjacency(neighbors)
    if scaling != "raw":
        lengths = adjacency.norm(p=1 if scaling == "fraction" else 2, dim=1, keepdim=True)
        adjacency = torch.where(lengths > 0, adjacency / lengths, 0.0)
    built.assert_logits(lambda replica: pyg_logits(built, replica, adjacency, built.x))


@pytest.mark.parametrize("name", ["attributes", "adjacency"])
def test_input_dropout_drops_whole_columns(build, name):
    built = build("linkx", dropout=0.0, **{f"{name}_dropout": 0.5})
    noise = Noise(built.task.keys("main"), 4)
    found = built.stage.model(built.stage.inputs, noise).logits
    inputs = {"adjacency": built.adjacency(), "attributes": built.x}
    width = inputs[name].shape[1]
    factors = column_factors(width, DropRate([0.5, 0.5]), noise, f"{name}.columns")
    for replica in range(2):
        dropped = inputs | {name: inputs[name] * factors[replica]}
        expected = pyg_logits(built, replica, dropped["adjacency"], dropped["attributes"])
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)
        assert not torch.equal(found[replica], built.logits[replica])


def test_dropout_acts_between_the_last_layers_alone(build):
    deep = {"adjacency_layers": 3, "attributes_layers": 3, "dropout": 0.5}
    noisy = {}
    for layers in (1, 2):
        built = build("linkx", layers=layers, **deep)
        noise = Noise(built.task.keys("main"), 1)
        noisy[layers] = built.stage.model(built.stage.inputs, noise).logits != built.logits
    assert not noisy[1].any()
    assert noisy[2].any(dim=-1).all()


def test_known_nodes_of_another_graph_keep_their_columns(build):
    built = build("linkx", neighbors="out")
    graph: Graph = built.task.graph
    order = np.random.default_rng(2).permutation(23)
    place = np.argsort(order)  # where each old node went
    stranger = np.array([[23, place[4]], [place[4], 23]])  # a new node, linked with an old one
    other = Graph(
        np.concatenate([graph.x[order], np.zeros((1, 7))]),
        np.concatenate([place[graph.edge_index], stranger], axis=1),
        np.append(graph.y[order], 0),
    )
    columns = np.append(order, -1)
    statistics = LocalStatistics(other, columns=columns, width=23)
    task = replace(built.task, statistics=statistics)
    stage = MODELS["linkx"].stages["main"](task, {})
    load_parameters(stage.model, dict(built.stage.model.named_parameters()))
    found = stage.model(stage.inputs).logits.detach()
    torch.testing.assert_close(found[:, :23], built.logits[:, order])
    newcomer = torch.zeros(23)
    newcomer[4] = 1.0
    for replica in range(2):
        expected = pyg_logits(built, replica, newcomer.expand(23, 23), torch.zeros(23, 7))[0]
        torch.testing.assert_close(found[replica, 23], expected, rtol=1e-4, atol=1e-5)
