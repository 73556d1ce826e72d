"""HP-GMN on a GCN and an APPNP: encoders against PyTorch Geometric, and how they are trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.nn import APPNP, GCNConv

from hpgmn.base.errors import SettingError
from hpgmn.base.randomness import DropRate, Noise, stable_key
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.layers import initialise
from hpgmn.models.propagated import (
    Encoder,
    PropagatedHPGMN,
    PropagatedSettings,
    mixing_weights,
    stages,
)
from hpgmn.models.stage import Replica, logits, make_task
from hpgmn.training.trainer import StageState, train

TINY = PropagatedSettings(
    hidden_dim=6,
    query_dim=4,
    num_patterns=5,
    epochs=4,
    pretraining_epochs=6,
    dropout=0.0,
    attributes_dropout=0.0,
    attributes_scaling="raw",
    rounds=7,
    teleport=0.2,
)
KINDS = ("gcn", "appnp")
FREEDOMS = ("pretrained", "finetuned", "joint")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def task_of(graph, settings):
    masks = [(graph.split(split).train, graph.split(split).val) for split in (0, 1)]
    return make_task(graph, [Replica(split, 7, settings) for split in (0, 1)], masks, "cpu")


def encoder_of(kind, graph, settings=TINY):
    encoder = Encoder(kind, graph.num_features, [settings] * 2)
    with torch.no_grad():
        for seed, parameter in enumerate(encoder.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed))
    return encoder


def edges_both_ways(graph):
    """Every edge in both directions once, without self-loops, as PyG wants it."""
    ends = {(int(a), int(b)) for a, b in graph.edge_index.T if a != b}
    return torch.tensor(sorted(ends | {(b, a) for a, b in ends})).T


def propagation_of(task):
    return task.statistics.propagation("undirected", "symmetric", 1.0)


def encoded(encoder, task, noise=None):
    return encoder(task.statistics.attributes("raw"), propagation_of(task), noise)


def dense_propagation(graph):
    adjacency = np.eye(graph.num_nodes)
    for a, b in graph.edge_index.T:
        adjacency[a, b] = adjacency[b, a] = 1
    root = 1 / np.sqrt(adjacency.sum(axis=1))
    return root[:, None] * adjacency * root


def test_gcn_matches_pytorch_geometric(small_graph):
    encoder = encoder_of("gcn", small_graph)
    with torch.no_grad():  # PyG adds its bias after the propagation, we before: compare without
        encoder.first.bias.zero_()
        encoder.second.bias.zero_()
    found = encoded(encoder, task_of(small_graph, TINY))
    x, edges = torch.from_numpy(small_graph.x), edges_both_ways(small_graph)
    for r in range(2):
        hidden = x
        for number, layer in enumerate((encoder.first, encoder.second)):
            theirs = GCNConv(*layer.weight.shape[1:])
            with torch.no_grad():
                theirs.lin.weight.copy_(layer.weight[r].T)
                theirs.bias.zero_()
            hidden = theirs(hidden.relu() if number else hidden, edges)
        torch.testing.assert_close(found[r], hidden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rounds", "teleport"), [(1, 0.5), (10, 0.1), (30, 0.0)])
def test_appnp_matches_pytorch_geometric(small_graph, rounds, teleport):
    settings = replace(TINY, rounds=rounds, teleport=teleport)
    encoder = encoder_of("appnp", small_graph, settings)
    found = encoded(encoder, task_of(small_graph, settings))
    theirs = APPNP(K=rounds, alpha=teleport)
    x, edges = torch.from_numpy(small_graph.x), edges_both_ways(small_graph)
    for r in range(2):
        hidden = x @ encoder.first.weight[r] + encoder.first.bias[r]
        hidden = hidden.relu() @ encoder.second.weight[r] + encoder.second.bias[r]
        torch.testing.assert_close(found[r], theirs(hidden, edges), rtol=1e-4, atol=1e-5)


# Propagation before the network, mixing and batch normalisation.

VARIED = {"node_dropout": (0.5, 0.3), "attributes_dropout": (0.4, 0.2), "dropout": (0.3, 0.6)}
BEFORE = replace(TINY, propagation="before", mixing="mean")
NORMED = replace(BEFORE, batch_norm=True)
OPTIONS = [
    pytest.param(kind, place, mixing, batch_norm, id=f"{kind} {place} {mixing} {batch_norm}")
    for kind, place in (("appnp", "before"), ("appnp", "after"), ("gcn", "after"))
    for mixing in (("ppr", "mean") if kind == "appnp" else ("ppr",))
    for batch_norm in (False, True)
]


def normalised(values, scale):
    deviation = (values.var(dim=0, unbiased=False) + 1e-5).sqrt()
    return (values - values.mean(dim=0)) / deviation * scale


def mixed_powers(graph, settings):
    """P as a dense matrix, from powers of Â one by one."""
    adjacency = dense_propagation(graph)
    powers = [np.linalg.matrix_power(adjacency, k) for k in range(settings.rounds + 1)]
    if settings.mixing == "mean":
        return torch.from_numpy(sum(powers) / len(powers))
    away = 1 - settings.teleport
    result = away**settings.rounds * powers[-1]
    for k, power in enumerate(powers[:-1]):
        result = result + settings.teleport * away**k * power
    return torch.from_numpy(result)


def factors(noise, place, shape, rates, r):
    """What dropout multiplies by in replica r."""
    if noise is None:
        return torch.ones(shape, dtype=torch.float64)
    rate = DropRate(rates)
    return noise.keep(place, shape, rate)[r].double() * rate.scale[r].double()


def slow_encoder(encoder, graph, settings, noise, r):
    """Replica r in dense matrices: every dropout is applied where the paper applies it."""
    weight, bias, second, last = (
        value[r].double()
        for layer in (encoder.first, encoder.second)
        for value in (layer.weight, layer.bias)
    )
    once = torch.from_numpy(dense_propagation(graph))
    nodes = factors(noise, "encoder.nodes", (18, 1), VARIED["node_dropout"], r)
    columns = factors(noise, "encoder.first.columns", (5,), VARIED["attributes_dropout"], r)
    entries = factors(noise, "encoder.hidden", (18, 6), VARIED["dropout"], r)
    x, early = torch.from_numpy(graph.x).double(), not settings.batch_norm
    if encoder.before:  # GRAND: rows of the attributes are dropped, then propagated, then columns
        hidden = ((mixed_powers(graph, settings) @ (x * nodes)) * columns) @ weight
        early = False
    else:
        hidden = (x * columns) @ weight + (bias if early else 0)
        if encoder.kind == "gcn":
            hidden = once @ (hidden * nodes)
    if settings.batch_norm:
        hidden = normalised(hidden, encoder.norms[0].scale[r, 0].double())
    hidden = (hidden if early else hidden + bias).relu()
    if settings.batch_norm:
        hidden = normalised(hidden, encoder.norms[1].scale[r, 0].double())
    hidden = (hidden * entries) @ second + last
    if encoder.kind == "gcn":
        return once @ hidden
    return hidden if encoder.before else mixed_powers(graph, settings) @ (hidden * nodes)


@pytest.mark.parametrize("in_training", [True, False])
@pytest.mark.parametrize(("kind", "place", "mixing", "batch_norm"), OPTIONS)
def test_every_option_matches_dense_matrices_and_so_do_its_gradients(
    small_graph, kind, place, mixing, batch_norm, in_training
):
    base = replace(TINY, propagation=place, mixing=mixing, batch_norm=batch_norm, rounds=3)
    both = [replace(base, **{name: rates[r] for name, rates in VARIED.items()}) for r in range(2)]
    encoder = Encoder(kind, small_graph.num_features, both)
    with torch.no_grad():
        for seed, parameter in enumerate(encoder.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed))
    noise = Noise(torch.tensor([stable_key(1), stable_key(2)]), 3) if in_training else None
    found = encoded(encoder, task_of(small_graph, base), noise)
    expected = torch.stack([slow_encoder(encoder, small_graph, base, noise, r) for r in range(2)])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    weights, parameters = normal(*found.shape, seed=9), list(encoder.parameters())
    ours = torch.autograd.grad((found * weights).sum(), parameters)
    slow = torch.autograd.grad((expected * weights).sum(), parameters)
    for one, other in zip(ours, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("name", "value"), [("propagation", "before"), ("mixing", "mean")])
def test_a_gcn_rejects_what_only_an_appnp_has(small_graph, name, value):
    with pytest.raises(SettingError, match=f"{name}={value}") as caught:
        make_settings(MODELS["hpgmn-gcn"].settings, {name: value})
    assert caught.value.remedy.value == "hpgmn-appnp"
    with pytest.raises(SettingError, match=f"{name}={value}"):
        encoder_of("gcn", small_graph, replace(TINY, **{name: value}))
    assert getattr(make_settings(MODELS["hpgmn-appnp"].settings, {name: value}), name) == value


def test_mixing_weights_are_equal_or_those_of_pagerank():
    np.testing.assert_allclose(mixing_weights("mean", 4, 0.3), [0.2] * 5)
    np.testing.assert_allclose(mixing_weights("ppr", 2, 0.3), [0.3, 0.21, 0.49])


@pytest.mark.parametrize("settings", [BEFORE, NORMED, replace(TINY, batch_norm=True)])
@pytest.mark.parametrize("freedom", FREEDOMS)
def test_every_parameter_learns_with_the_options(small_graph, freedom, settings):
    settings = replace(
        settings, encoder=freedom, consistency_passes=3, node_dropout=0.5, dropout=0.2, lr=0.05
    )
    state, _ = trained(small_graph, "appnp", settings)
    task = task_of(small_graph, settings)
    for name in ("main",) if freedom == "joint" else ("pretraining", "main"):
        stage = stages("appnp")[name](task, state.done)
        initialise(stage.model, task.keys(name))
        assert any(place.startswith("encoder.norms") for place in state.done[name]) == (
            settings.batch_norm
        )
        for place, value in stage.model.named_parameters():
            if value.requires_grad:
                assert (value != state.done[name][place]).flatten(1).any(dim=1).all(), place


@pytest.mark.parametrize("settings", [BEFORE, NORMED])
def test_another_graph_is_predicted_by_its_own_edges_and_nodes(small_graph, settings):
    entry = MODELS["hpgmn-appnp"]
    task = task_of(small_graph, settings)
    done = train(task, entry).done
    order = np.random.default_rng(0).permutation(small_graph.num_nodes)
    places = np.argsort(order)  # where each node has gone
    moved = Graph(small_graph.x[order], places[small_graph.edge_index], small_graph.y[order])
    masks = [(np.zeros(18, bool), np.zeros(18, bool))] * 2
    other = make_task(moved, task.replicas, masks, "cpu")
    expected = logits(task, entry, done)
    torch.testing.assert_close(logits(other, entry, done), expected[:, order], rtol=1e-4, atol=1e-4)
    alone = Graph(moved.x, np.zeros((2, 0), np.int64), moved.y)
    found = logits(make_task(alone, task.replicas, masks, "cpu"), entry, done)
    assert (found - expected[:, order]).abs().max() > 1e-3


@pytest.mark.parametrize("widths", [(32, 4), (4, 32)])
@pytest.mark.parametrize("settings", [TINY, BEFORE, NORMED, replace(TINY, batch_norm=True)])
def test_the_size_estimate_covers_what_a_pass_stores(small_graph, settings, widths):
    hidden, query = widths
    settings = replace(settings, hidden_dim=hidden, query_dim=query)
    settings = replace(settings, dropout=0.5, node_dropout=0.5)
    task = task_of(small_graph, settings)
    stage = stages("appnp")["main"](task, {"pretraining": {}})
    kept: dict[int, Tensor] = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        stage.model(stage.inputs, Noise(task.keys("main"), 1), penalties=True)
    own = {value.untyped_storage().data_ptr() for value in stage.model.parameters()}
    size = sum(
        value.untyped_storage().nbytes() for place, value in kept.items() if place not in own
    )
    parameters, per_node = MODELS["hpgmn-appnp"].floats(small_graph, settings)
    assert size / 2 < 4 * (parameters + per_node * small_graph.num_nodes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_query_of_the_memory_is_the_encoders_representation(small_graph, kind):
    task = task_of(small_graph, TINY)
    model = PropagatedHPGMN(kind, 5, 3, [TINY] * 2)
    initialise(model, task.keys("main"))
    stage_inputs = {
        "attributes": task.statistics.attributes("raw"),
        "propagation": propagation_of(task),
    }
    output = model(stage_inputs, details=True, penalties=True)
    query = encoded(model.encoder, task)
    torch.testing.assert_close(output.details["query"], query)
    torch.testing.assert_close(output.logits, model.head(query).logits)
    nearest = torch.cdist(query, model.head.memory.patterns).amin(dim=-1).mean(dim=1)
    torch.testing.assert_close(output.penalties["kpattern"], nearest)


@pytest.mark.parametrize("with_memory", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_evaluating_some_nodes_gives_those_rows_of_all(small_graph, kind, with_memory):
    task = task_of(small_graph, TINY)
    model = PropagatedHPGMN(kind, 5, 3, [TINY] * 2, with_memory=with_memory)
    initialise(model, task.keys("main"))
    inputs = {"attributes": task.statistics.attributes("raw"), "propagation": propagation_of(task)}
    nodes, within = torch.tensor([[17, 2, 2], [0, 1, 5]]), torch.tensor([[2, 0], [1, 1]])
    everything = model(inputs).logits
    some, fewer = model(inputs, nodes=nodes).logits, model(inputs, None, nodes, within).logits
    for r in range(2):
        torch.testing.assert_close(some[r], everything[r][nodes[r]])
        torch.testing.assert_close(fewer[r], some[r][within[r]])


# How the encoder is trained.


def trained(graph, kind, settings):
    """The final state, and the parameters after the first epoch of the main stage."""
    first: dict[str, Tensor] = {}

    def watch(state, stage):
        current = state.current
        assert isinstance(current, StageState)
        if stage.name == "main" and current.epoch == 1:
            first.update({name: value.clone() for name, value in current.parameters.items()})

    task = task_of(graph, settings)
    return train(task, MODELS[f"hpgmn-{kind}"], watch=watch), first


def encoder_values(parameters):
    return {name: value for name, value in parameters.items() if name.startswith("encoder.")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pretrained_encoder_stays_frozen(small_graph, kind):
    state, first = trained(small_graph, kind, replace(TINY, encoder="pretrained"))
    learned = encoder_values(state.done["pretraining"])
    assert len(learned) == 4
    for name, value in learned.items():
        assert torch.equal(state.done["main"][name], value)
        assert torch.equal(first[name], value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_finetuned_encoder_starts_from_what_was_learned(small_graph, kind):
    settings = replace(TINY, encoder="finetuned", lr=1e-3, weight_decay=0.0)
    state, first = trained(small_graph, kind, settings)
    for name, value in encoder_values(state.done["pretraining"]).items():
        away = (first[name] - value).abs()
        assert away.max() <= 1.01e-3  # Adam's first step is at most the learning rate
        assert away.flatten(1).amax(dim=1).min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_joint_encoder_starts_from_its_initial_values(small_graph, kind):
    settings = replace(TINY, encoder="joint", lr=1e-3, weight_decay=0.0)
    state, first = trained(small_graph, kind, settings)
    task = task_of(small_graph, settings)
    stage = stages(kind)["main"](task, state.done)
    assert stage.initial == {}
    initialise(stage.model, task.keys("main"))
    for name, value in stage.model.named_parameters():
        assert (first[name] - value).abs().max() <= 1.01e-3
        assert (first[name] != value).any()
    assert state.history["pretraining"]["loss"].shape == (0, 2)


def test_joint_training_ignores_the_settings_of_pretraining(small_graph):
    settings = replace(TINY, encoder="joint")
    one, _ = trained(small_graph, "gcn", settings)
    other, _ = trained(small_graph, "gcn", replace(settings, pretraining_epochs=1))
    for name, value in one.done["main"].items():
        assert torch.equal(value, other.done["main"][name])


def test_pretraining_has_a_linear_classifier(small_graph):
    state, _ = trained(small_graph, "gcn", TINY)
    task = task_of(small_graph, TINY)
    stage = stages("gcn")["pretraining"](task, {})
    names = {name for name, _ in stage.model.named_parameters()}
    assert names - {name for name in names if name.startswith("encoder.")} == {
        "classify.weight",
        "classify.bias",
    }
    assert (stage.epochs, stage.patience) == (6, 100)
    stage.model.load_state_dict(state.done["pretraining"])
    query = encoded(stage.model.encoder, task)
    expected = query @ stage.model.classify.weight + stage.model.classify.bias
    torch.testing.assert_close(stage.model(stage.inputs).logits, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_directions_are_those_of_the_edges(kind, small_graph):
    """In-edges are the out-edges of the graph with every edge turned round."""
    turned = Graph(small_graph.x, small_graph.edge_index[::-1].copy(), small_graph.y)
    turned = turned.with_splits(small_graph.splits)
    entry = MODELS[f"hpgmn-{kind}"]
    values = {key: getattr(TINY, key) for key in ("hidden_dim", "epochs", "pretraining_epochs")}

    def found(graph, neighbors):
        settings = make_settings(entry.settings, {**values, "neighbors": neighbors})
        task = task_of(graph, settings)
        return logits(task, entry, train(task, entry).done)

    out, into, both = (found(small_graph, mode) for mode in ("out", "in", "undirected"))
    torch.testing.assert_close(found(turned, "in"), out)
    torch.testing.assert_close(found(turned, "undirected"), both)
    assert not torch.allclose(out, into)
    assert not torch.allclose(out, both)
