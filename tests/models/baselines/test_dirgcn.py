"""Dir-GCN against PyTorch Geometric's DirGNNConv, and its normalisation against the formula."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import DirGNNConv, GCNConv, JumpingKnowledge

from hpgmn.base.randomness import DropRate, Noise, column_factors
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.dirgcn import DirGCNSettings
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, make_task
from hpgmn.training.trainer import train


def pyg_logits(built, replica, edge_index, *, normalize):
    """The logits of the authors' network made of PyG's parts with our weights."""
    settings: DirGCNSettings = built.task.settings[0]
    parameters = dict(built.stage.model.named_parameters())
    hidden, states = built.x, []
    with torch.no_grad():
        for number in range(settings.layers):
            outputs = 6 if settings.jump != "none" or number < settings.layers - 1 else 4
            convolution = DirGNNConv(
                GCNConv(hidden.shape[1], outputs, normalize=normalize, add_self_loops=False),
                settings.out_share,
                root_weight=False,
            )
            sides = {"outward": convolution.conv_out, "inward": convolution.conv_in}
            for name, side in sides.items():
                place = f"convolve.{number}.{name}"
                if f"{place}.weight" in parameters:
                    side.lin.weight.copy_(built.parameter(f"{place}.weight", replica).T)
                    side.bias.copy_(built.parameter(f"{place}.bias", replica)[0])
            hidden = convolution(hidden, edge_index)
            if outputs == 6:
                hidden = hidden.relu()
                if settings.unit_layers:
                    hidden = functional.normalize(hidden, p=2, dim=1)
            states.append(hidden)
        if settings.jump == "none":
            return hidden
        joined = JumpingKnowledge("cat" if settings.jump == "concat" else "max")(states)
        weight, bias = (built.parameter(f"classify.{part}", replica) for part in ("weight", "bias"))
        result: Tensor = joined @ weight + bias
    return result


def without_normalisation(built):
    """Our logits where edges are summed as they are: (2, N, C)."""
    plain = SparseMatrix(built.task.graph.adjacency("out"))
    with torch.no_grad():
        found: Tensor = built.stage.model(built.stage.inputs | {"propagation": plain}).logits
    return found


@pytest.mark.parametrize("out_share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("jump", ["max", "concat", "none"])
@pytest.mark.parametrize("layers", [1, 3])
def test_it_is_made_of_pygs_layers(build, out_share, jump, layers):
    built = build("dirgcn", out_share=out_share, jump=jump, layers=layers)
    edge_index = built.adjacency("out").nonzero().T
    for replica, found in enumerate(without_normalisation(built)):
        expected = pyg_logits(built, replica, edge_index, normalize=False)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jump", ["max", "concat", "none"])
def test_hidden_layers_may_have_unit_length(build, jump):
    built = build("dirgcn", jump=jump, unit_layers=True)
    edge_index = built.adjacency("out").nonzero().T
    for replica, found in enumerate(without_normalisation(built)):
        expected = pyg_logits(built, replica, edge_index, normalize=False)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_undirected_graph_is_normalised_as_by_pyg(build, wild_graph):
    split = wild_graph.split(0)
    graph = Graph(
        wild_graph.x,
        wild_graph.edge_index,
        wild_graph.y,
        directed=False,
        train_mask=split.train,
        val_mask=split.val,
        test_mask=split.test,
    )
    built = build("dirgcn", graph, out_share=0.7)
    for replica, found in enumerate(built.logits):
        expected = pyg_logits(built, replica, built.edge_index, normalize=True)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("self_loop", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("out_share", [0.0, 0.3, 1.0])
def test_it_is_the_formula(build, self_loop, out_share):
    built = build("dirgcn", layers=1, self_loop=self_loop, out_share=out_share)
    matrix = built.adjacency("out") + self_loop * torch.eye(23)
    out_degree, in_degree = matrix.sum(dim=1), matrix.sum(dim=0)
    normal = torch.zeros(23, 23)
    for center, neighbor in matrix.nonzero().tolist():
        scale = (out_degree[center] * in_degree[neighbor]).sqrt()
        normal[center, neighbor] = matrix[center, neighbor] / scale
    sides = [("outward", normal, out_share), ("inward", normal.T, 1 - out_share)]
    for replica, found in enumerate(built.logits):
        hidden = torch.zeros(23, 6)
        for name, spread, share in sides:
            if share:
                weight = built.parameter(f"convolve.0.{name}.weight", replica)
                bias = built.parameter(f"convolve.0.{name}.bias", replica)
                hidden = hidden + share * (spread @ built.x @ weight + bias)
        expected = hidden.relu() @ built.parameter("classify.weight", replica)
        expected = expected + built.parameter("classify.bias", replica)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("out_share", "sides"), [(0.0, {"inward"}), (0.5, {"inward", "outward"}), (1.0, {"outward"})]
)
def test_a_side_without_share_has_no_weights(build, out_share, sides):
    built = build("dirgcn", out_share=out_share)
    places = dict(built.stage.model.named_parameters())
    assert {place.split(".")[2] for place in places if place.startswith("convolve.")} == sides


def test_input_dropout_drops_whole_columns(build):
    built = build("dirgcn", dropout=0.0, attributes_dropout=0.5)
    noise = Noise(built.task.keys("main"), 1)
    found = built.stage.model(built.stage.inputs, noise).logits
    factors = column_factors(7, DropRate([0.5, 0.5]), noise, "attributes")
    for replica in range(2):
        dropped = built.stage.inputs | {
            "attributes": type(built.stage.inputs["attributes"])(built.x * factors[replica])
        }
        expected = built.stage.model(dropped).logits[replica]
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)
        assert not torch.equal(expected, built.logits[replica])


@pytest.mark.parametrize("unit_layers", [False, True])
def test_dropout_comes_before_scaling_to_unit_length(build, unit_layers):
    built = build("dirgcn", layers=2, jump="concat", dropout=0.5, unit_layers=unit_layers)
    seen: list[Tensor] = []
    built.stage.model.classify.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    whole, noisy = (
        built.stage.model(built.stage.inputs, noise).logits
        for noise in (None, Noise(built.task.keys("main"), 1))
    )
    assert not torch.equal(whole, noisy)
    zeros = [[(layer == 0).float().mean() for layer in state.split(6, dim=-1)] for state in seen]
    for before, after in zip(*zeros, strict=True):
        assert after > before + 0.1
    for state in seen:
        lengths = torch.cat(state.split(6, dim=-1)).norm(dim=-1)
        nonzero = lengths[lengths > 0]
        is_unit = torch.isclose(nonzero, torch.ones(()), rtol=1e-5)
        assert is_unit.all() if unit_layers else not is_unit.any()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(("self_loop", "score"), [(0.0, 1 / 3), (1.0, 1.0)])
def test_attributes_need_edges_or_self_loops(small_graph, kind, self_loop, score):
    split = small_graph.split(0)
    graph = Graph(
        small_graph.x if kind == "dense" else sp.csr_array(small_graph.x),
        np.empty((2, 0), np.int64),
        small_graph.y,
        train_mask=split.train,
        val_mask=split.val,
        test_mask=split.test,
    )
    settings = DirGCNSettings(self_loop=self_loop, epochs=60, lr=0.05, dropout=0.0, hidden_dim=8)
    task = make_task(graph, [Replica(0, 0, settings)], [(split.train, split.val)], "cpu")
    state = train(task, MODELS["dirgcn"])
    assert state.best_score["main"].item() == pytest.approx(score)


def test_first_values_are_drawn_for_every_side(build):
    built = build("dirgcn")
    initialise(built.stage.model, built.task.keys("main"))
    for place, parameter in built.stage.model.named_parameters():
        one, other = parameter
        assert torch.equal(one, other) == place.endswith("bias"), place
    first = built.stage.model.convolve[0]
    assert not torch.equal(first.outward.weight, first.inward.weight)
