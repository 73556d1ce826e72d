"""Layers of replicas against one plain torch layer per replica."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn
from torch.nn import functional

from hpgmn.base.randomness import DropRate, Noise, stable_key
from hpgmn.base.sparse import SparseMatrix
from hpgmn.models.layers import (
    MLP,
    AggregationLinear,
    BatchNorm,
    Linear,
    RunningBatchNorm,
    StatisticMLP,
    draw_glorot,
    initialise,
)
from hpgmn.statistics.operators import DenseRows, ReplicaRows, SparseRows

REPLICAS, NODES = 3, 7
NO_DROPOUT = DropRate([0.0] * REPLICAS)


def keys(*numbers):
    return torch.tensor([stable_key("test", number) for number in numbers])


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def randomised(module):
    """Every parameter drawn anew, biases included, so that none can be forgotten unseen."""
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed))
    return module


def affine(layer, x, replica):
    """torch's own linear layer with the weights of one replica."""
    return functional.linear(x, layer.weight[replica].T, layer.bias[replica, 0])


def test_linear_is_one_affine_map_per_replica():
    layer = randomised(Linear(REPLICAS, 4, 5))
    x = normal(REPLICAS, NODES, 4, seed=9)
    expected = torch.stack([affine(layer, x[r], r) for r in range(REPLICAS)])
    torch.testing.assert_close(layer(x), expected)


def test_batch_norm_is_that_of_torch_in_training_and_its_gradient():
    layer = randomised(BatchNorm(REPLICAS, 4))
    x = (normal(REPLICAS, NODES, 4, seed=9) * 3 + 2).requires_grad_()
    other = x.detach().clone().requires_grad_()
    expected = torch.stack(
        [
            functional.batch_norm(other[r], None, None, layer.scale[r, 0], training=True)
            for r in range(REPLICAS)
        ]
    )
    found, weights = layer(x), normal(REPLICAS, NODES, 4, seed=5)
    torch.testing.assert_close(found, expected)
    (found * weights).sum().backward()
    own = layer.scale.grad.clone()
    layer.scale.grad = None
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own, layer.scale.grad, rtol=1e-4, atol=1e-5)


def test_batch_norm_makes_zeros_of_what_does_not_vary():
    layer = randomised(BatchNorm(REPLICAS, 4))
    assert torch.equal(layer(normal(REPLICAS, 1, 4)), torch.zeros(REPLICAS, 1, 4))
    assert torch.equal(layer(torch.full((REPLICAS, 8, 4), 3.0)), torch.zeros(REPLICAS, 8, 4))


def test_batch_norm_starts_with_scales_of_one_and_computes_in_single_precision():
    layer = randomised(BatchNorm(REPLICAS, 4))
    initialise(layer, keys(1, 2, 3))
    assert torch.equal(layer.scale, torch.ones(REPLICAS, 1, 4))
    x = normal(REPLICAS, 200, 4).bfloat16()
    found = layer(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, layer(x.float()))


def test_running_batch_norm_is_that_of_torch_over_several_steps():
    layer = RunningBatchNorm(REPLICAS, 4)
    others = [torch.nn.BatchNorm1d(4) for _ in range(REPLICAS)]
    with torch.no_grad():
        for r, other in enumerate(others):
            layer.scale[r, 0] = other.weight.copy_(normal(4, seed=r))
            layer.shift[r, 0] = other.bias.copy_(normal(4, seed=r + 7))
    for step in range(4):
        x = (normal(REPLICAS, NODES, 4, seed=step) * 3 + step).requires_grad_()
        copy = x.detach().clone().requires_grad_()
        expected = torch.stack([other.train()(copy[r]) for r, other in enumerate(others)])
        found, weights = layer(x, Noise(keys(1, 2, 3))), normal(REPLICAS, NODES, 4, seed=5)
        torch.testing.assert_close(found, expected)
        (found * weights).sum().backward()
        (expected * weights).sum().backward()
        torch.testing.assert_close(x.grad, copy.grad, rtol=1e-4, atol=1e-5)
        for r, other in enumerate(others):
            for own, theirs in (
                (layer.scale.grad, other.weight.grad),
                (layer.shift.grad, other.bias.grad),
                (layer.mean, other.running_mean),
                (layer.variance, other.running_var),
            ):
                torch.testing.assert_close(own[r, 0], theirs, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer(x, None)[r], other.eval()(copy[r]))
    assert {name for name, value in layer.named_parameters() if not value.requires_grad} == {
        "mean",
        "variance",
    }


def test_running_batch_norm_of_a_replica_alone_is_that_among_others():
    together, alone = RunningBatchNorm(REPLICAS, 4), RunningBatchNorm(1, 4)
    for seed in range(3):
        x = normal(REPLICAS, NODES, 4, seed=seed)
        found = together(x, Noise(keys(1, 2, 3)))
        torch.testing.assert_close(found[1:2], alone(x[1:2], Noise(keys(2))))
        torch.testing.assert_close(together(x, None)[1:2], alone(x[1:2], None))


def test_running_batch_norm_starts_as_torchs_and_computes_in_single_precision():
    layer = randomised(RunningBatchNorm(REPLICAS, 4))
    initialise(layer, keys(1, 2, 3))
    other = torch.nn.BatchNorm1d(4)
    for own, theirs in (
        (layer.scale, other.weight),
        (layer.shift, other.bias),
        (layer.mean, other.running_mean),
        (layer.variance, other.running_var),
    ):
        assert torch.equal(own, theirs.expand(REPLICAS, 1, 4))
    x = normal(REPLICAS, 200, 4).bfloat16()
    for noise in (Noise(keys(1, 2, 3)), None):
        assert layer(x, noise).dtype == torch.float32


@pytest.mark.parametrize("hidden", [[], [6], [6, 5], [6, 5, 4]])
def test_mlp_has_relu_between_its_layers_and_none_at_the_end(hidden):
    network = randomised(MLP(REPLICAS, [4, *hidden, 3]))
    x = normal(REPLICAS, NODES, 4, seed=9)
    expected = []
    for r in range(REPLICAS):
        h = affine(network.layers[0], x[r], r)
        for layer in list(network.layers)[1:]:
            h = affine(layer, h.clamp(min=0), r)
        expected.append(h)
    assert len(network.layers) == len(hidden) + 1
    torch.testing.assert_close(network(x, NO_DROPOUT, None, "here"), torch.stack(expected))


def test_mlp_drops_hidden_entries_and_makes_up_for_them():
    network = randomised(MLP(REPLICAS, [4, 6, 3]))
    x = normal(REPLICAS, NODES, 4, seed=9)
    rate, noise = DropRate([0.0, 0.25, 0.75]), Noise(keys(1, 2, 3), 5)
    kept = noise.keep("here.1", (NODES, 6), rate)
    assert kept[0].all()
    assert not kept[1].all()
    expected = []
    for r, share in enumerate((1.0, 0.75, 0.25)):
        h = affine(network.layers[0], x[r], r).relu() * kept[r] / share
        expected.append(affine(network.layers[1], h, r))
    torch.testing.assert_close(network(x, rate, noise, "here"), torch.stack(expected))


def statistic_forms():
    """Each form of a statistic beside its dense rows, (R, N, 4)."""
    shared = normal(NODES, 4, seed=20) * (normal(NODES, 4, seed=21) > 0)
    own = normal(REPLICAS, NODES, 4, seed=22)
    matrix = sp.csr_array(shared.numpy())
    matrix.indices, matrix.indptr = matrix.indices.astype("i4"), matrix.indptr.astype("i4")
    everyone = shared.expand(REPLICAS, -1, -1)
    return {
        "dense": (DenseRows(shared), everyone),
        "sparse": (SparseRows(SparseMatrix(matrix)), everyone),
        "replica": (ReplicaRows(own), own),
    }


FORMS = statistic_forms()


@pytest.mark.parametrize("widths", [[4, 3], [4, 6, 3], [4, 6, 5, 3]])
@pytest.mark.parametrize("form", FORMS)
def test_statistic_mlp_equals_an_mlp_on_the_dense_rows(form, widths):
    statistic, rows = FORMS[form]
    network = randomised(StatisticMLP(REPLICAS, widths))
    layers = [network.first, *network.rest.layers]
    expected = []
    for r in range(REPLICAS):
        h = affine(layers[0], rows[r], r)
        for layer in layers[1:]:
            h = affine(layer, h.relu(), r)
        expected.append(h)
    found = network(statistic, NO_DROPOUT, NO_DROPOUT, None, "here")
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("form", FORMS)
def test_statistic_mlp_reads_the_nodes_each_replica_asks_for(form):
    statistic, _ = FORMS[form]
    network = randomised(StatisticMLP(REPLICAS, [4, 6, 3]))
    nodes = torch.tensor([[0, 3], [6, 6], [5, 1]])
    everything = network(statistic, NO_DROPOUT, NO_DROPOUT, None, "here")
    found = network(statistic, NO_DROPOUT, NO_DROPOUT, None, "here", nodes)
    for r in range(REPLICAS):
        torch.testing.assert_close(found[r], everything[r][nodes[r]])


@pytest.mark.parametrize("form", FORMS)
def test_input_dropout_drops_whole_columns(form):
    statistic, rows = FORMS[form]
    network = randomised(StatisticMLP(REPLICAS, [4, 6]))
    rate, noise = DropRate([0.0, 0.5, 0.5]), Noise(keys(1, 2, 3), 4)
    kept = noise.keep("here.columns", (4,), rate)
    assert not kept[1:].all()
    expected = [
        affine(network.first, rows[r] * kept[r] / (1.0 if r == 0 else 0.5), r)
        for r in range(REPLICAS)
    ]
    found = network(statistic, rate, NO_DROPOUT, noise, "here")
    torch.testing.assert_close(found, torch.stack(expected))


def small_network(replicas):
    return nn.ModuleDict({"a": MLP(replicas, [4, 6, 3]), "b": MLP(replicas, [4, 6, 3])})


def test_the_same_key_gives_the_same_first_values_whatever_the_number_of_replicas():
    many, one = small_network(5), small_network(1)
    initialise(many, keys(1, 2, 3, 4, 5))
    initialise(one, keys(4))
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter[0], dict(many.named_parameters())[name][3])


def test_first_values_differ_between_keys_and_between_places():
    network = small_network(2)
    initialise(network, keys(1, 2))
    weights = {name: p for name, p in network.named_parameters() if name.endswith("weight")}
    for weight in weights.values():
        assert (weight[0] != weight[1]).all()
    assert (weights["a.layers.0.weight"] != weights["b.layers.0.weight"]).all()


def test_a_layer_starts_with_glorot_weights_and_biases_of_zero():
    layer = randomised(AggregationLinear(2, 4, 5))
    initialise(layer, keys(1, 2))
    assert torch.equal(layer.bias, torch.zeros(2, 1, 5))
    assert 0 < layer.own.abs().max() <= math.sqrt(6 / 9)
    assert (layer.own != layer.neighbors).all()


def test_initialising_again_forgets_what_was_there():
    fresh, used = small_network(2), randomised(small_network(2))
    initialise(fresh, keys(1, 2))
    initialise(used, keys(1, 2))
    for name, parameter in fresh.named_parameters():
        assert torch.equal(parameter, dict(used.named_parameters())[name])


@pytest.mark.parametrize(("inputs", "outputs"), [(30, 70), (70, 30), (1, 500)])
def test_glorot_values_fill_their_bounds_evenly(inputs, outputs):
    parameter = torch.empty(4, inputs, outputs)
    draw_glorot(parameter, Noise(keys(1, 2, 3, 4)), "here")
    bound = math.sqrt(6 / (inputs + outputs))
    values = np.sort(parameter.numpy().reshape(-1)) / bound
    assert values[0] >= -1
    assert values[-1] <= 1
    even = (np.arange(values.size) + 0.5) / values.size * 2 - 1
    assert np.abs(values - even).max() < 4 / math.sqrt(values.size)  # Kolmogorov's distance
