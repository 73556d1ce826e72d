"""LW-GCN against dense matrices, one per class; its mixture with a GCNII by hand."""

import logging

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional

from hpgmn.base.randomness import Noise
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.baselines.lwgcn import ClassMeans, LabelwiseStates, LWGCNSettings, Mixture
from hpgmn.models.hpgmn import compute_pseudo_labels
from hpgmn.models.layers import initialise
from hpgmn.models.stage import (
    Parameters,
    Rates,
    Replica,
    TrainingTask,
    load_parameters,
    logits,
    make_task,
)
from hpgmn.statistics.labelwise import class_means
from hpgmn.training.trainer import train

ENTRY = MODELS["lwgcn"]
SMALL = {
    "hidden_dim": 6,
    "estimator_hidden": 5,
    "epochs": 5,
    "estimator_epochs": 5,
    "gcnii_epochs": 5,
}


def task_of(graph, *each, **settings):
    """A replica for each dictionary of settings of its own, on the first split."""
    split = graph.split(0)
    replicas = [
        Replica(0, seed, make_settings(LWGCNSettings, SMALL | settings | own))
        for seed, own in enumerate(each or ({}, {}))
    ]
    return make_task(graph, replicas, [(split.train, split.val)] * len(replicas), "cpu")


def built(task):
    """The main stage with all parameters drawn anew, and those of the stages before it."""
    done: dict[str, Parameters] = {}
    for name, builder in ENTRY.stages.items():
        stage = builder(task, done)
        initialise(stage.model, task.keys(name))
        done[name] = {key: p.detach().clone() for key, p in stage.model.named_parameters()}
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in stage.model.parameters():
            shape = (2, *parameter.shape[1:])  # the same values whatever R is
            drawn = torch.randn(shape, generator=generator)
            parameter.copy_(drawn[: parameter.shape[0]] * 0.5)
    return stage, done


def class_matrices(graph, neighbors, labels):
    """Â_1 … Â_C, dense."""
    adjacency = graph.adjacency(neighbors).toarray()
    found = []
    for number in range(graph.num_classes):
        edges = torch.from_numpy(adjacency * (labels == number))
        total = edges.sum(dim=1, keepdim=True)
        found.append(torch.where(total > 0, edges / total.clamp(min=1e-9), 0.0))
    return found


def looked_around(matrices, hidden):
    return torch.cat([matrix @ hidden for matrix in matrices] + [hidden], dim=1)


def formula(stage, task, replica, labels, x):
    settings: LWGCNSettings = task.settings[replica]
    own = {name: value[replica] for name, value in stage.model.named_parameters()}
    matrices = class_matrices(task.graph, settings.neighbors, labels)

    def layer(number, hidden):
        weight, bias = own[f"convolve.{number}.weight"], own[f"convolve.{number}.bias"]
        return looked_around(matrices, hidden) @ weight + bias

    if settings.form == "direct":
        for number in range(settings.layers):
            x = layer(number, x.relu() if number else x)
        return x
    states = [x @ own["encode.weight"] + own["encode.bias"]]
    for number in range(settings.layers):
        states.append(layer(number, states[-1]).relu())
    hidden = torch.cat(states, dim=1) @ own["classify.layers.0.weight"]
    hidden = (hidden + own["classify.layers.0.bias"]).relu()
    return hidden @ own["classify.layers.1.weight"] + own["classify.layers.1.bias"]


def with_sparse_attributes(graph):
    split = graph.split(0)
    masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
    return Graph(sp.csr_array(graph.x), graph.edge_index, graph.y, **masks)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("form", ["direct", "encoded"])
@pytest.mark.parametrize(
    "settings",
    [
        {"layers": 1},
        {"layers": 2, "neighbors": "out"},
        {"layers": 3, "neighbors": "in", "attributes_scaling": "unit"},
        {"layers": 2, "attributes_scaling": "fraction", "hidden_dim": 3},
    ],
)
def test_it_is_the_formula(wild_graph, kind, form, settings):
    graph = wild_graph if kind == "dense" else with_sparse_attributes(wild_graph)
    task = task_of(graph, form=form, **settings)
    stage, done = built(task)
    labels = compute_pseudo_labels(task, done["estimator"])
    assert (labels[0] != labels[1]).any()
    x = torch.from_numpy(np.asarray(wild_graph.x))
    order = {"raw": None, "fraction": 1, "unit": 2}[task.settings[0].attributes_scaling]
    if order:
        x = x / x.norm(p=order, dim=1, keepdim=True)
    found = stage.model(stage.inputs).logits
    for replica in range(2):
        expected = formula(stage, task, replica, labels[replica], x)
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["direct", "encoded"])
def test_gradients_are_those_of_the_formula_and_replicas_do_not_mix(wild_graph, form):
    task = task_of(wild_graph, form=form, layers=3, dropout=0.0)
    stage, done = built(task)
    twin, _ = built(task)
    target = torch.randn(23, 4, generator=torch.Generator().manual_seed(1))
    noise = Noise(task.keys("main"), 1)
    (stage.model(stage.inputs, noise).logits[0] * target).sum().backward()
    labels = compute_pseudo_labels(task, done["estimator"])
    x = torch.from_numpy(np.asarray(wild_graph.x))
    (formula(twin, task, 0, labels[0], x) * target).sum().backward()
    for found, expected in zip(stage.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
        assert not found.grad[1].any()
        assert found.grad[0].any()


def random_labels(replicas, classes):
    return np.random.default_rng(4).choice(classes, (replicas, 23))


@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [1, 3], [2]])
@pytest.mark.parametrize("neighbors", ["out", "undirected"])
def test_label_wise_states_are_class_means(wild_graph, classes, neighbors):
    labels = random_labels(3, classes)
    adjacency = wild_graph.adjacency(neighbors)
    means = ClassMeans(adjacency, labels, 4)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(3, 23, 5, generator=generator)
    statistic = LabelwiseStates(means, hidden)
    assert statistic.width == 20
    weight = torch.randn(3, 20, 2, generator=generator)
    columns = torch.rand(3, 20, generator=generator)
    nodes = torch.tensor([[4, 4, 0], [22, 1, 2], [3, 9, 20]])
    for replica in range(3):
        own = torch.cat(
            [
                matrix @ hidden[replica]
                for matrix in class_matrices(wild_graph, neighbors, labels[replica])
            ],
            dim=1,
        )
        picked = nodes[replica]
        torch.testing.assert_close(statistic.rows(picked, replica), own[picked])
        for found, expected in (
            (statistic.times(weight), own @ weight[replica]),
            (statistic.times(weight, nodes), (own @ weight[replica])[picked]),
            (
                statistic.times(weight, None, columns),
                own @ (columns[replica][:, None] * weight[replica]),
            ),
        ):
            torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)
        reference = class_means(adjacency, hidden[replica].numpy(), labels[replica], 4).toarray()
        torch.testing.assert_close(own, torch.from_numpy(reference))


def test_nodes_of_one_class_stand_side_by_side(wild_graph):
    labels = random_labels(3, [0, 2, 3])
    means = ClassMeans(wild_graph.adjacency("out"), labels, 4)
    counts = np.stack([np.bincount(row, minlength=4) for row in labels])
    assert means.sizes == counts.max(axis=0).tolist()
    for replica in range(3):
        start = 0
        for number, size in enumerate(means.sizes):
            members = means.members[replica, start : start + counts[replica, number]]
            assert members.tolist() == np.flatnonzero(labels[replica] == number).tolist()
            start += size


def test_only_sparse_attributes_are_factored(wild_graph):
    task = task_of(wild_graph, form="direct")
    sparse = task_of(with_sparse_attributes(wild_graph), form="direct")
    (dense_stage, _), (sparse_stage, _) = built(task), built(sparse)
    assert isinstance(dense_stage.inputs["attribute_means"], LabelwiseStates)
    means = sparse_stage.inputs["attribute_means"]
    assert means.input.host.nnz <= 2 * sparse.graph.x.nnz
    nodes = torch.arange(23)
    torch.testing.assert_close(
        means.rows(nodes, 1), dense_stage.inputs["attribute_means"].rows(nodes, 1)
    )


@pytest.mark.parametrize("form", ["direct", "encoded"])
@pytest.mark.parametrize("name", ["dropout", "attributes_dropout"])
def test_training_drops_columns_and_hidden_entries(wild_graph, form, name):
    off = {"dropout": 0.0, "attributes_dropout": 0.0}
    task = task_of(wild_graph, {name: 0.0}, {name: 0.5}, form=form, **off)
    stage, _ = built(task)
    whole = stage.model(stage.inputs).logits
    noisy = stage.model(stage.inputs, Noise(task.keys("main"), 1)).logits
    torch.testing.assert_close(noisy[0], whole[0])
    assert (noisy[1] != whole[1]).any(dim=-1).float().mean() > 0.8


def test_a_dropped_attribute_is_dropped_in_all_its_means(wild_graph):
    task = task_of(wild_graph, form="direct", layers=1, attributes_dropout=0.5)
    stage, done = built(task)
    noise = Noise(task.keys("main"), 1)
    found = stage.model(stage.inputs, noise).logits
    labels = compute_pseudo_labels(task, done["estimator"])
    rate = stage.model.input_rate
    factors = noise.keep("attributes", (7,), rate) * rate.scale[:, None]
    assert 0 < (factors == 0).sum() < 14
    x = torch.from_numpy(np.asarray(wild_graph.x))
    for replica in range(2):
        expected = formula(stage, task, replica, labels[replica], x * factors[replica])
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_direct_form_learns_every_parameter(small_graph, kind, mix):
    graph = small_graph if kind == "dense" else with_sparse_attributes(small_graph)
    task = task_of(graph, form="direct", mix_gcnii=mix, dropout=0.2, weight_decay=0.0)
    seen: list[Parameters] = []

    def watch(state, stage):
        if stage.name == "main":
            parts = stage.model.named_parameters()
            seen.append({name: value.detach().clone() for name, value in parts})

    state = train(task, ENTRY, watch=watch)
    for name, value in seen[0].items():
        assert (value != seen[-1][name]).flatten(1).any(dim=1).all(), name
    assert logits(task, ENTRY, state.done).isfinite().all()


def test_another_graph_is_classified_with_its_own_pseudo_labels(wild_graph):
    random = np.random.default_rng(8)
    other = Graph(random.normal(size=(9, 7)), random.integers(0, 9, (2, 15)))
    nobody = np.full((2, 9), -1)
    for form in ("direct", "encoded"):
        task = task_of(wild_graph, form=form)
        state = train(task, ENTRY)
        moved = TrainingTask(type(task.statistics)(other), task.replicas, nobody, nobody, 4)
        guesses = compute_pseudo_labels(moved, state.done["estimator"])
        found = logits(moved, ENTRY, state.done)
        stage = ENTRY.stages["main"](task, state.done)
        load_parameters(stage.model, state.done["main"])
        x = torch.from_numpy(np.asarray(other.x))
        for replica in range(2):
            named = Graph(other.x, other.edge_index, np.arange(9) % 4)
            there = TrainingTask(type(task.statistics)(named), task.replicas, nobody, nobody, 4)
            expected = formula(stage, there, replica, guesses[replica], x)
            torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


# The mixture with a GCNII.


def test_without_mixing_no_gcnii_is_trained_and_no_validation_label_is_read(wild_graph, caplog):
    task = task_of(wild_graph)
    with caplog.at_level(logging.WARNING):
        state = train(task, ENTRY)
    assert not caplog.records
    assert state.done["gcnii"] == {}
    assert len(state.history["gcnii"]["loss"]) == 0
    stage, _ = built(task)
    assert set(stage.inputs) == {"attributes", "means"}
    assert not stage.penalty_weights
    assert not stage.own_rates


def test_mixing_is_announced(wild_graph, caplog):
    with caplog.at_level(logging.WARNING):
        train(task_of(wild_graph, mix_gcnii=True), ENTRY)
    assert "validation labels" in caplog.text
    [info] = [one for one in LWGCNSettings.__dataclass_fields__.values() if one.name == "mix_gcnii"]
    assert "VALIDATION labels" in info.metadata["help"]
    assert info.default is False


def test_the_gcnii_has_the_requested_settings(wild_graph):
    task = task_of(
        wild_graph,
        {"gcnii_initial_share": 0.3, "lr": 0.02, "weight_decay": 0.1},
        {"gcnii_identity_strength": 0.9, "dropout": 0.7},
        mix_gcnii=True,
        gcnii_layers=3,
        gcnii_patience=4,
        neighbors="out",
        epochs=9,
    )
    stage = ENTRY.stages["gcnii"](task, {})
    assert (stage.name, stage.epochs, stage.patience) == ("gcnii", 5, 4)
    assert (stage.lr, stage.weight_decay) == ([0.02, 0.01], [0.1, 5e-4])
    assert stage.own_rates == {"convolve.": Rates([0.02, 0.01], [0.1, 5e-4])}
    chosen = {
        "hidden_dim": 6,
        "layers": 3,
        "neighbors": "out",
        "initial_share": 0.3,
        "identity_strength": 0.5,
    }
    own = make_settings(MODELS["gcnii"].settings, chosen)
    twin = MODELS["gcnii"].stages["main"](
        TrainingTask(
            task.statistics,
            (Replica(0, 0, own),),
            task.train_labels[:1],
            task.val_labels[:1],
            task.num_classes,
        ),
        {},
    )
    initialise(stage.model, task.keys("gcnii"))
    load_parameters(twin.model, {key: p[:1] for key, p in stage.model.named_parameters()})
    found, expected = stage.model(stage.inputs).logits, twin.model(twin.inputs).logits
    torch.testing.assert_close(found[:1], expected, rtol=1e-4, atol=1e-5)


def test_the_mixture_is_a_weighted_sum_of_log_probabilities():
    mixture = Mixture(2)
    with torch.no_grad():
        mixture.scores.copy_(torch.tensor([[0.0, 0.0], [1.0, -1.0]]))
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.randn(2, 5, 3, generator=generator) for _ in range(2))
    found = mixture(one, other)
    weights = [[0.5, 0.5], [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))]]
    for replica, (first, second) in enumerate(weights):
        expected = first * one[replica].softmax(1).log() + second * other[replica].softmax(1).log()
        torch.testing.assert_close(found[replica], expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["direct", "encoded"])
def test_training_sees_the_convolutions_and_evaluation_the_mixture(wild_graph, form):
    task = task_of(wild_graph, form=form, mix_gcnii=True)
    stage, done = built(task)
    plain, _ = built(task_of(wild_graph, form=form))
    load_parameters(
        plain.model,
        {k: p.detach() for k, p in stage.model.named_parameters() if not k.startswith("mix.")},
    )
    noise = Noise(task.keys("main"), 3)
    whole, noisy = plain.model(plain.inputs).logits, plain.model(plain.inputs, noise).logits
    assert (whole != noisy).any()
    partner = ENTRY.stages["gcnii"](task, {})
    load_parameters(partner.model, done["gcnii"])
    other = partner.model(partner.inputs).logits
    mixed = stage.model.mix(whole, other)
    torch.testing.assert_close(stage.model(stage.inputs).logits, mixed)
    torch.testing.assert_close(stage.model(stage.inputs, noise).logits, noisy)
    output = stage.model(stage.inputs, noise, penalties=True)
    torch.testing.assert_close(output.logits, noisy)
    val = np.flatnonzero(wild_graph.split(0).val)
    for replica in range(2):
        expected = functional.cross_entropy(
            mixed[replica, val], torch.from_numpy(wild_graph.y[val])
        )
        torch.testing.assert_close(output.penalties["mixing"][replica], expected)
    output.penalties["mixing"].sum().backward()
    for name, parameter in stage.model.named_parameters():
        assert (parameter.grad is not None) == (name == "mix.scores")
    assert (stage.model.mix.scores.grad != 0).all()


def test_the_weights_have_a_rate_of_their_own_and_no_decay(wild_graph):
    task = task_of(wild_graph, {"mixing_lr": 0.3}, {"mixing_lr": 0.2}, mix_gcnii=True)
    stage, _ = built(task)
    assert stage.penalty_weights == {"mixing": [1.0, 1.0]}
    assert stage.own_rates == {"mix.": Rates([0.3, 0.2], [0.0, 0.0])}


def test_both_models_start_with_equal_weights_that_move(wild_graph):
    task = task_of(wild_graph, mix_gcnii=True, epochs=30, patience=0)
    seen: list[Tensor] = []

    def watch(state, stage):
        if stage.name == "main":
            seen.append(stage.model.mix.scores.detach().clone())

    state = train(task, ENTRY, watch=watch)
    initial = Mixture(2)
    initialise(initial, task.keys("main"))
    assert torch.equal(initial.scores, torch.zeros(2, 2))
    torch.testing.assert_close(seen[0].abs(), torch.full((2, 2), 0.1), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(seen[0].sum(dim=1), torch.zeros(2))
    assert (seen[-1] != seen[0]).all()
    assert logits(task, ENTRY, state.done).isfinite().all()


def test_validation_labels_move_the_weights_alone(wild_graph):
    val = wild_graph.split(0).val
    split = wild_graph.split(0)
    masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
    y = np.where(val, (wild_graph.y + 1) % 4, wild_graph.y)
    other = Graph(wild_graph.x, wild_graph.edge_index, y, **masks)
    ends: list[Parameters] = []
    for graph in (wild_graph, other):
        # One epoch before: the stages before the last have nothing to select.
        task = task_of(graph, mix_gcnii=True, estimator_epochs=1, gcnii_epochs=1)
        last: Parameters = {}

        def watch(state, stage, last=last):
            if stage.name == "main":
                parts = stage.model.named_parameters()
                last.update({name: value.detach().clone() for name, value in parts})

        train(task, ENTRY, watch=watch)
        ends.append(last)
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]) == (name != "mix.scores"), name
