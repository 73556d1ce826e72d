"""DSSL: its losses and encoders against loops over nodes and samples."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.dssl import DSSLSettings, Neighborhoods
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, TrainingTask, load_parameters, logits, make_task
from hpgmn.training.trainer import train

ENTRY = MODELS["dssl"]
SMALL = {"hidden_dim": 6, "factors": 3, "samples": 4, "representation_epochs": 5, "epochs": 5}


def task_of(graph, *each, **settings):
    """A replica for each dictionary of settings of its own, on the first split."""
    split = graph.split(0)
    replicas = [
        Replica(0, seed, make_settings(DSSLSettings, SMALL | settings | own))
        for seed, own in enumerate(each or ({}, {}))
    ]
    return make_task(graph, replicas, [(split.train, split.val)] * len(replicas), "cpu")


def representation(task):
    """The first stage, every parameter drawn anew, the target's and all biases too."""
    stage = ENTRY.stages["representation"](task, {})
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in stage.model.parameters():
            shape = (2, *parameter.shape[1:])  # the same values whatever R is
            drawn = torch.randn(shape, generator=generator)
            parameter.copy_(drawn[: parameter.shape[0]] * 0.5)
    return stage


def dense(graph):
    return torch.from_numpy(np.asarray(graph.x))


def parameters_of(stage, replica):
    return {name: value[replica] for name, value in stage.model.named_parameters()}


def convolved(own, place, x, normal, layers):
    """The GCN of one replica from dense matrices."""
    for number in range(layers):
        weight, bias = (own[f"{place}.convolve.{number}.{part}"] for part in ("weight", "bias"))
        x = normal @ (x.relu() if number else x) @ weight + bias
    return x


def two_layers(own, place, x):
    first, last = (
        (own[f"{place}.layers.{number}.weight"], own[f"{place}.layers.{number}.bias"][0])
        for number in (0, 1)
    )
    return (x @ first[0] + first[1]).relu() @ last[0] + last[1]


def normal_matrix(graph, neighbors, self_loop):
    matrix = torch.from_numpy(graph.adjacency(neighbors).toarray())
    matrix = matrix + self_loop * torch.eye(graph.num_nodes)
    rows, columns = (
        torch.where(total > 0, total.clamp(min=1e-9).rsqrt(), 0.0)
        for total in (matrix.sum(dim=1), matrix.sum(dim=0))
    )
    return rows[:, None] * matrix * columns


def looped_losses(stage, task, replica, noise):
    """The three losses of one replica, node by node and sample by sample; dropout is off."""
    settings: DSSLSettings = task.settings[replica]
    graph, own = task.graph, parameters_of(stage, replica)
    normal = normal_matrix(graph, settings.neighbors, settings.self_loop)
    online, target = (
        convolved(own, place, dense(graph), normal, settings.layers)
        for place in ("online", "target")
    )
    adjacency = graph.adjacency(settings.neighbors).toarray()
    found: dict[str, list[Tensor]] = {"prediction": [], "prototype": [], "entropy": []}
    for node in range(graph.num_nodes):
        if not adjacency[node].any():
            continue
        here = online[node] / online[node].norm()
        shares = []
        distances = []
        for sample in range(settings.samples):
            drawn = stage.inputs["neighborhoods"].sample(noise, f"neighbors.{sample}")
            there = target[drawn[replica, node]].detach()
            there = there / there.norm()
            scores = two_layers(own, "infer", here * there)
            shares.append(scores.softmax(dim=0))
            shape = (graph.num_nodes, settings.factors)
            uniform = noise.uniform(f"gumbel.{sample}", shape)[replica, node]
            gumbel = -torch.log(-torch.log(uniform))
            factor = ((scores + gumbel) / settings.gumbel_temperature).softmax(dim=0)
            prediction = two_layers(own, "predict", here) + two_layers(own, "explain", factor)
            distances.append(2 - 2 * torch.cosine_similarity(prediction, there, dim=0))
        share = torch.stack(shares).mean(dim=0)
        prior = (here @ own["prototypes.weight"] / settings.prototype_temperature).softmax(dim=0)
        found["prediction"].append(torch.stack(distances).mean())
        found["prototype"].append(-(share * prior.log()).sum())
        found["entropy"].append((share * share.log()).sum())
    return {name: torch.stack(values).mean() for name, values in found.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"neighbors": "out", "layers": 1},
        {"neighbors": "in", "self_loop": 0.5, "samples": 2},
        {"factors": 5, "layers": 3, "hidden_dim": 4},
    ],
)
def test_the_losses_are_those_of_a_loop_over_nodes_and_samples(wild_graph, settings):
    own = (
        {"gumbel_temperature": 0.7, "prototype_temperature": 2.0},
        {"gumbel_temperature": 1.5, "prototype_temperature": 0.4},
    )
    task = task_of(wild_graph, *own, dropout=0.0, **settings)
    stage = representation(task)
    noise = Noise(task.keys("representation"), 2)
    output = stage.model(stage.inputs, noise, penalties=True)
    assert set(output.penalties) == {"prediction", "prototype", "entropy"}
    weights = {"prediction": 1.0, "prototype": 0.3, "entropy": 0.2}
    sum(weights[name] * loss.sum() for name, loss in output.penalties.items()).backward()
    twin = representation(task)
    for replica in range(2):
        expected = looped_losses(twin, task, replica, noise)
        for name, loss in expected.items():
            found = output.penalties[name][replica]
            torch.testing.assert_close(found, loss, rtol=1e-4, atol=1e-5)
        sum(weights[name] * loss for name, loss in expected.items()).backward()
    for (name, found), expected in zip(
        stage.model.named_parameters(), twin.model.parameters(), strict=True
    ):
        if name.startswith("target."):
            assert found.grad is None
        else:
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["dropout", "attributes_dropout"])
def test_both_encoders_drop_in_training_each_for_itself(wild_graph, name):
    off = {"dropout": 0.0, "attributes_dropout": 0.0}
    task = task_of(wild_graph, **(off | {name: 0.5}))
    stage = representation(task)
    load_parameters(
        stage.model,
        {
            place.replace("online", "target", 1): value.detach()
            for place, value in stage.model.named_parameters()
            if place.startswith("online")
        },
    )
    noise = Noise(task.keys("representation"), 1)
    attributes, propagation = stage.inputs["attributes"], stage.inputs["propagation"]
    online = stage.model.online(attributes, propagation, noise, "online")
    target = stage.model.target(attributes, propagation, noise, "target")
    whole = stage.model.online(attributes, propagation, None, "online")
    assert torch.equal(whole, stage.model.target(attributes, propagation, None, "target"))
    for one, other in ((online, whole), (target, whole), (online, target)):
        assert (one != other).any(dim=-1).any(dim=-1).all()


def test_nothing_is_drawn_in_evaluation(wild_graph):
    stage = representation(task_of(wild_graph))
    output = stage.model(stage.inputs, None, penalties=True)
    assert not output.penalties
    again = stage.model(stage.inputs, None)
    assert torch.equal(output.logits, again.logits)


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
def test_only_neighbours_are_drawn_and_each_of_them(wild_graph, neighbors):
    adjacency = wild_graph.adjacency(neighbors)
    known = adjacency.toarray().any(axis=1)
    assert not known.all()
    neighborhoods = Neighborhoods(adjacency)
    noise = Noise(torch.tensor([5, 6, 7]), 0)
    draws = torch.stack([neighborhoods.sample(noise, f"{number}") for number in range(200)])
    seen = np.zeros((3, 23, 23), bool)
    for draw in draws.numpy():
        seen[np.arange(3)[:, None], np.arange(23), draw] = True
    assert (seen[:, known] == (adjacency.toarray()[known] > 0)).all()
    assert ((draws >= 0) & (draws < 23)).all()
    expected = known / known.sum()
    torch.testing.assert_close(neighborhoods.share, torch.from_numpy(expected).float())


def test_neighbours_are_sampled_uniformly_in_each_step(wild_graph):
    adjacency = wild_graph.adjacency("undirected")
    node = int(np.diff(adjacency.indptr).argmax())
    degree = int(np.diff(adjacency.indptr)[node])
    neighborhoods = Neighborhoods(adjacency)
    draws = torch.stack(
        [
            neighborhoods.sample(Noise(torch.arange(40), step), "place")[:, node]
            for step in range(50)
        ]
    )
    counts = torch.bincount(draws.flatten(), minlength=23)[adjacency[[node]].indices]
    assert (counts - 2000 / degree).abs().max() < 5 * math.sqrt(2000 / degree)
    assert (draws[0] != draws[1]).any()


def test_a_graph_without_edges_has_nothing_to_predict(wild_graph):
    graph = Graph(
        wild_graph.x,
        np.empty((2, 0), np.int64),
        wild_graph.y,
        train_mask=wild_graph.split(0).train,
        val_mask=wild_graph.split(0).val,
    )
    task = task_of(graph)
    stage = representation(task)
    output = stage.model(stage.inputs, Noise(task.keys("representation"), 1), penalties=True)
    for loss in output.penalties.values():
        assert torch.equal(loss, torch.zeros(2))
    sum(loss.sum() for loss in output.penalties.values()).backward()
    assert not stage.model.online.convolve[0].weight.grad.any()


def test_the_target_starts_as_the_online_encoder_and_follows_it(wild_graph):
    task = task_of(wild_graph, {"target_momentum": 0.9}, {"target_momentum": 0.5})
    momentum = torch.tensor([0.9, 0.5])[:, None, None]
    stage = ENTRY.stages["representation"](task, {})
    initialise(stage.model, task.keys("representation"))
    followers = [
        {name: value.detach().clone() for name, value in stage.model.target.named_parameters()}
    ]
    for name, value in stage.model.online.named_parameters():
        assert torch.equal(value, followers[0][name])
    leaders: list[dict[str, Tensor]] = []

    def watch(state, stage):
        if stage.name == "representation":
            for seen, encoder in ((followers, "target"), (leaders, "online")):
                parts = getattr(stage.model, encoder).named_parameters()
                seen.append({name: value.detach().clone() for name, value in parts})

    state = train(task, ENTRY, watch=watch)
    assert len(leaders) == 5
    for before, after, leader in zip(followers, followers[1:], leaders, strict=False):
        for name, value in after.items():
            expected = momentum * before[name] + (1 - momentum) * leader[name]
            torch.testing.assert_close(value, expected)
            assert (leader[name] != followers[0][name]).any()
    for name, value in followers[-1].items():
        assert torch.equal(state.done["representation"][f"target.{name}"], value)


def test_the_stage_has_rates_weights_and_length_of_its_own(wild_graph):
    own = (
        {"representation_lr": 0.1, "representation_weight_decay": 0.2, "prototype_weight": 0.3},
        {"representation_lr": 0.4, "representation_weight_decay": 0.5, "entropy_weight": 0.6},
    )
    stage = ENTRY.stages["representation"](task_of(wild_graph, *own, patience=7), {})
    assert stage.lr == [0.1, 0.4]
    assert stage.weight_decay == [0.2, 0.5]
    assert (stage.epochs, stage.patience) == (5, 0)
    weights = {"prediction": [1.0, 1.0], "prototype": [0.3, 0.1], "entropy": [0.1, 0.6]}
    assert stage.penalty_weights == weights
    assert not stage.is_supervised


def test_prototypes_start_standard_normal(wild_graph):
    task = task_of(wild_graph, hidden_dim=100, factors=50)
    stage = ENTRY.stages["representation"](task, {})
    initialise(stage.model, task.keys("representation"))
    values = stage.model.prototypes.weight.detach()
    assert values.isfinite().all()
    for own in values:
        assert abs(own.mean()) < 0.05
        assert abs(own.std() - 1) < 0.05
        assert abs((own.abs() < 1).float().mean() - 0.683) < 0.03
    assert (values[0] != values[1]).all()


@pytest.mark.parametrize("scaling", ["raw", "standard"])
def test_the_classifier_is_linear_in_the_online_representation(wild_graph, scaling):
    task = task_of(wild_graph, embedding_scaling=scaling)
    first = representation(task)
    with torch.no_grad():
        hidden = first.model(first.inputs).logits
    state = train(task, ENTRY)
    done = {"representation": dict(first.model.named_parameters()), "main": state.done["main"]}
    stage = ENTRY.stages["main"](task, done)
    load_parameters(stage.model, stage.initial)
    names = {name for name, _ in stage.model.named_parameters()}
    own = {"classify.weight", "classify.bias"}
    if scaling == "standard":
        own |= {"standardise.mean", "standardise.scale"}
        hidden = (hidden - hidden.mean(dim=1, keepdim=True)) / hidden.std(
            dim=1, correction=0, keepdim=True
        )
    assert names == own
    found = stage.model(stage.inputs).logits
    expected = hidden @ stage.model.classify.weight + stage.model.classify.bias
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_column_that_is_the_same_everywhere_is_left_out(wild_graph):
    task = task_of(wild_graph)
    first = representation(task)
    with torch.no_grad():
        first.model.online.convolve[1].weight[:, :, 2] = 0
    stage = ENTRY.stages["main"](task, {"representation": dict(first.model.named_parameters())})
    scale = stage.initial["standardise.scale"][:, 0]
    assert torch.equal(scale == 0, (torch.arange(6) == 2).expand(2, 6))


def test_another_graph_is_scaled_as_the_one_trained_on(wild_graph):
    task = task_of(wild_graph)
    state = train(task, ENTRY)
    random = np.random.default_rng(8)
    other = Graph(random.normal(2.0, 3.0, (9, 7)), random.integers(0, 9, (2, 15)))
    nobody = np.full((2, 9), -1)
    moved = TrainingTask(type(task.statistics)(other), task.replicas, nobody, nobody, 4)
    found = logits(moved, ENTRY, state.done)
    for replica in range(2):
        own = {key: value[replica] for key, value in state.done["representation"].items()}
        normal = normal_matrix(other, "undirected", 1.0)
        here, there = (
            convolved(own, "online", dense(graph), matrix, 2)
            for graph, matrix in (
                (other, normal),
                (wild_graph, normal_matrix(wild_graph, "undirected", 1.0)),
            )
        )
        scaled = (here - there.mean(dim=0)) / there.std(dim=0, correction=0)
        last = {key: value[replica] for key, value in state.done["main"].items()}
        expected = scaled @ last["classify.weight"] + last["classify.bias"]
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-4)


def test_the_scaling_is_saved_and_not_trained(wild_graph):
    task = task_of(wild_graph)
    state = train(task, ENTRY)
    stage = ENTRY.stages["main"](task, state.done)
    for name, value in stage.initial.items():
        assert torch.equal(state.done["main"][name], value)
