"""Dir-GCN against PyTorch Geometric's DirGNNConv, and its normalisation against the formula."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import DirGNNConv, GCNConv, JumpingKnowledge

from hpgmn.base.randomness import Noise
from hpgmn.base.sparse import SparseMatrix
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.dirgcn import DirGCNSettings
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
        return built.affine("classify", joined, replica)


def without_normalisation(built):
    """Our logits where edges are summed as they are: (2, N, C)."""
    plain = SparseMatrix(built.task.graph.adjacency("out"))
    with torch.no_grad():
        return built.stage.model(built.stage.inputs | {"propagation": plain}).logits


@pytest.mark.parametrize(
    ("out_share", "sides"), [(0.0, {"inward"}), (0.3, {"inward", "outward"}), (1.0, {"outward"})]
)
@pytest.mark.parametrize(
    ("jump", "layers", "unit_layers"),
    [("max", 1, False), ("max", 3, True), ("concat", 3, False), ("none", 3, True)],
)
def test_it_is_made_of_pygs_layers(build, out_share, sides, jump, layers, unit_layers):
    settings = {"jump": jump, "layers": layers, "unit_layers": unit_layers}
    built = build("dirgcn", out_share=out_share, **settings)
    places = dict(built.stage.model.named_parameters())
    assert {place.split(".")[2] for place in places if place.startswith("convolve.")} == sides
    edge_index = built.adjacency("out").nonzero().T
    built.assert_logits(
        lambda replica: pyg_logits(built, replica, edge_index, normalize=False),
        without_normalisation(built),
    )


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
    built.assert_logits(
        lambda replica: pyg_logits(built, replica, built.edge_index, normalize=True)
    )


@pytest.mark.parametrize(("self_loop", "out_share"), [(0.0, 0.3), (1.0, 0.0), (2.5, 1.0)])
def test_training_is_the_formula_with_dropout(build, self_loop, out_share):
    rates = {"dropout": 0.5, "attributes_dropout": 0.25}
    built = build("dirgcn", layers=1, self_loop=self_loop, out_share=out_share, **rates)
    matrix = built.normalised("out", self_loop)
    columns = built.dropout("attributes", (7,), 0.25)
    entries = built.dropout("hidden.1", (23, 6), 0.5)

    def expected(replica):
        x = built.x * columns[replica]
        sides = [("outward", matrix, out_share), ("inward", matrix.T, 1 - out_share)]
        hidden = sum(
            share * built.affine(f"convolve.0.{name}", spread @ x, replica)
            for name, spread, share in sides
            if share
        )
        return built.affine("classify", hidden.relu() * entries[replica], replica)

    built.assert_logits(expected, built.training_logits)


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
