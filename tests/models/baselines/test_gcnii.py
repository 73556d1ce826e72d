"""GCNII against PyTorch Geometric's GCN2Conv, and against the formula on directed graphs."""

import math

import pytest
import torch
from torch_geometric.nn import GCN2Conv

from hpgmn.base.randomness import DropRate, Noise
from hpgmn.models.baselines.gcnii import ENTRY, GCNIISettings
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Rates


def pyg_gcnii(built, replica, share, strength, neighbors="undirected"):
    center, neighbor = built.adjacency(neighbors).nonzero().T
    initial = built.affine("encode", built.x, replica).relu()
    own = dict(built.stage.model.named_parameters()).get("convolve.initial_weight")
    hidden = initial
    for number, weight in enumerate(built.parameter("convolve.weight", replica)):
        convolution = GCN2Conv(
            weight.shape[0], share, strength, number + 1, shared_weights=own is None
        )
        with torch.no_grad():
            convolution.weight1.copy_(weight)
            if own is not None:
                convolution.weight2.copy_(own[replica, number])
            hidden = convolution(hidden, initial, torch.stack([neighbor, center])).relu()
    return built.affine("classify", hidden, replica)


@pytest.mark.parametrize("shared_weights", [True, False])
@pytest.mark.parametrize(
    ("layers", "share", "strength", "neighbors"),
    [
        (1, 0.1, 0.5, "undirected"),
        (2, 0.5, 1.5, "out"),
        (5, 0.0, 1.0, "in"),
        (2, 1.0, 1.0, "undirected"),
    ],
)
def test_it_is_pygs_gcnii(build, layers, shared_weights, share, strength, neighbors):
    built = build(
        "gcnii",
        layers=layers,
        neighbors=neighbors,
        shared_weights=shared_weights,
        initial_share=share,
        identity_strength=strength,
    )
    built.assert_logits(lambda replica: pyg_gcnii(built, replica, share, strength, neighbors))


def propagation(adjacency):
    matrix = adjacency + torch.eye(adjacency.shape[0])
    degrees = matrix.sum(dim=1)
    return matrix / torch.outer(degrees, degrees).sqrt()


def formula(built, neighbors, replica, columns=1.0, entries=None):
    """The logits with initial_share 0.3, identity_strength 0.8 and shared weights."""
    matrix = propagation(built.adjacency(neighbors))
    initial = built.affine("encode", built.x * columns, replica).relu()
    weights = dict(built.stage.model.named_parameters())["convolve.weight"][replica]
    factors = entries or [torch.ones(())] * (len(weights) + 1)
    hidden = initial
    for number, weight in enumerate(weights):
        support = 0.7 * matrix @ (hidden * factors[number]) + 0.3 * initial
        beta = math.log(0.8 / (number + 1) + 1)
        hidden = ((1 - beta) * support + beta * support @ weight).relu()
    return built.affine("classify", hidden * factors[-1], replica)


def test_training_drops_columns_and_hidden_entries_with_exact_gradients(build):
    built = build(
        "gcnii",
        layers=3,
        initial_share=0.3,
        identity_strength=0.8,
        dropout=0.5,
        attributes_dropout=0.25,
    )
    keys = built.task.keys("main")
    found = built.stage.model(built.stage.inputs, Noise(keys, 1)).logits
    noise = Noise(keys, 1)
    columns = noise.keep("encode.columns", (7,), DropRate([0.25] * 2)) / 0.75
    assert 0 < (columns == 0).sum() < 14
    places = ["convolve.0", "convolve.1", "convolve.2", "classify"]
    masks = [noise.keep(place, (23, 6), DropRate([0.5] * 2)) / 0.5 for place in places]
    expected = torch.stack(
        [
            formula(built, "undirected", replica, columns[replica], [m[replica] for m in masks])
            for replica in range(2)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weight = built.stage.model.convolve.weight
    [own] = torch.autograd.grad(found.square().sum(), weight)
    [other] = torch.autograd.grad(expected.square().sum(), weight)
    assert own.flatten(2).any(dim=2).all()
    torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_convolutions_have_their_own_weight_decay(build):
    built = build("gcnii", lr=0.02, weight_decay=0.1, convolution_weight_decay=0.3)
    assert built.stage.own_rates == {"convolve.": Rates([0.02, 0.02], [0.3, 0.3])}
    assert built.stage.weight_decay == [0.1, 0.1]
    names = {name for name, _ in built.stage.model.named_parameters()}
    assert {name for name in names if name.startswith("convolve.")} == {"convolve.weight"}
    assert len(names) == 5


@pytest.mark.parametrize("shared_weights", [True, False])
def test_first_values_are_glorots(build, shared_weights):
    built = build("gcnii", hidden_dim=30, layers=3, shared_weights=shared_weights)
    initialise(built.stage.model, built.task.keys("main"))
    names = ["weight"] if shared_weights else ["weight", "initial_weight"]
    drawn = [built.parameter(f"convolve.{name}", 0) for name in names]
    for weight in drawn:
        bound = (6 / 60) ** 0.5
        assert 0.95 * bound < weight.abs().max() <= bound
        assert not torch.equal(weight[0], weight[1])
    assert shared_weights or not torch.equal(drawn[0], drawn[1])


def kept_bytes(built):
    """The bytes of node-sized arrays that a training pass keeps for the way back."""
    storages = {}

    def keep(tensor):
        if 23 in tensor.shape or tensor.numel() == 23 * 2 * 40:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    noise = Noise(built.task.keys("main"), 1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        built.stage.model(built.stage.inputs, noise)
    return sum(size for size, _ in storages.values())


def test_a_layer_keeps_one_number_and_one_byte_per_element(build):
    shallow, deep = (
        kept_bytes(build("gcnii", hidden_dim=40, layers=layers, dropout=0.5)) for layers in (3, 7)
    )
    assert deep - shallow == 4 * 2 * 23 * 40 * 5


def test_the_size_of_a_replica_covers_what_is_kept(build):
    settings = {"hidden_dim": 40, "layers": 20, "dropout": 0.5}
    built = build("gcnii", **settings)
    parameters, per_node = ENTRY.floats(built.task.graph, GCNIISettings(**settings))
    assert parameters == 7 * 40 + 20 * 40 * 40
    assert kept_bytes(built) < 2 * 4 * 23 * per_node < 2 * kept_bytes(built)
    both, _ = ENTRY.floats(built.task.graph, GCNIISettings(**settings, shared_weights=False))
    assert both == 7 * 40 + 2 * 20 * 40 * 40
