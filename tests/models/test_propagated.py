"""HP-GMN on a GCN and an APPNP: encoders against PyTorch Geometric, and how they are trained."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.layers import initialise
from hpgmn.models.propagated import (
    Encoder,
    PropagatedHPGMN,
    PropagatedSettings,
    stages,
)
from hpgmn.models.stage import Replica, Task, make_task
from hpgmn.randomness import DropRate, Noise, stable_key
from hpgmn.sparse import SparseMatrix
from hpgmn.training.trainer import StageState, TrainState, train

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


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def geometric_layers() -> Any:
    """torch_geometric.nn, whose import warns of what others deprecate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import torch_geometric.nn

        return torch_geometric.nn


def task_of(graph: Graph, settings: PropagatedSettings) -> Task:
    masks = [(graph.split(split).train, graph.split(split).val) for split in (0, 1)]
    return make_task(graph, [Replica(split, 7, settings) for split in (0, 1)], masks, "cpu")


def encoder_of(kind: str, graph: Graph, settings: PropagatedSettings = TINY) -> Encoder:
    encoder = Encoder(kind, graph.num_features, [settings] * 2)
    with torch.no_grad():
        for seed, parameter in enumerate(encoder.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed))
    return encoder


def edges_both_ways(graph: Graph) -> Tensor:
    """Every edge in both directions once, without self-loops, as PyG wants it."""
    ends = {(int(a), int(b)) for a, b in graph.edge_index.T if a != b}
    return torch.tensor(sorted(ends | {(b, a) for a, b in ends})).T


def propagation_of(task: Task) -> SparseMatrix:
    return task.statistics.propagation("undirected", "symmetric", 1.0)


def encoded(encoder: Encoder, task: Task, noise: Noise | None = None) -> Tensor:
    return encoder(task.statistics.attributes("raw"), propagation_of(task), noise)


def dense_propagation(graph: Graph) -> np.ndarray:
    adjacency = np.eye(graph.num_nodes)
    for a, b in graph.edge_index.T:
        adjacency[a, b] = adjacency[b, a] = 1
    root = 1 / np.sqrt(adjacency.sum(axis=1))
    return root[:, None] * adjacency * root


def test_propagation_is_the_symmetric_normalisation_with_self_loops(small_graph: Graph) -> None:
    found = propagation_of(task_of(small_graph, TINY)).host.toarray()
    np.testing.assert_allclose(found, dense_propagation(small_graph), rtol=1e-6)


def test_gcn_matches_pytorch_geometric(small_graph: Graph) -> None:
    encoder = encoder_of("gcn", small_graph)
    with torch.no_grad():  # PyG adds its bias after the propagation, we before: compare without
        encoder.first.bias.zero_()
        encoder.second.bias.zero_()
    found = encoded(encoder, task_of(small_graph, TINY))
    convolution = geometric_layers().GCNConv
    x, edges = torch.from_numpy(small_graph.x), edges_both_ways(small_graph)
    for r in range(2):
        hidden = x
        for number, layer in enumerate((encoder.first, encoder.second)):
            theirs = convolution(*layer.weight.shape[1:])
            with torch.no_grad():
                theirs.lin.weight.copy_(layer.weight[r].T)
                theirs.bias.zero_()
            hidden = theirs(hidden.relu() if number else hidden, edges)
        torch.testing.assert_close(found[r], hidden, rtol=1e-4, atol=1e-5)


def test_gcn_with_biases_matches_the_dense_computation(small_graph: Graph) -> None:
    encoder = encoder_of("gcn", small_graph)
    found = encoded(encoder, task_of(small_graph, TINY))
    propagation = torch.from_numpy(dense_propagation(small_graph)).float()
    x = torch.from_numpy(small_graph.x)
    for r in range(2):
        hidden = propagation @ (x @ encoder.first.weight[r] + encoder.first.bias[r])
        hidden = propagation @ (hidden.relu() @ encoder.second.weight[r] + encoder.second.bias[r])
        torch.testing.assert_close(found[r], hidden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rounds", "teleport"), [(1, 0.5), (10, 0.1), (30, 0.0)])
def test_appnp_matches_pytorch_geometric(small_graph: Graph, rounds: int, teleport: float) -> None:
    settings = replace(TINY, rounds=rounds, teleport=teleport)
    encoder = encoder_of("appnp", small_graph, settings)
    found = encoded(encoder, task_of(small_graph, settings))
    theirs = geometric_layers().APPNP(K=rounds, alpha=teleport)
    x, edges = torch.from_numpy(small_graph.x), edges_both_ways(small_graph)
    for r in range(2):
        hidden = x @ encoder.first.weight[r] + encoder.first.bias[r]
        hidden = hidden.relu() @ encoder.second.weight[r] + encoder.second.bias[r]
        torch.testing.assert_close(found[r], theirs(hidden, edges), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_node_dropout_drops_whole_nodes_before_propagation(small_graph: Graph, kind: str) -> None:
    settings = replace(TINY, node_dropout=0.5)
    encoder = encoder_of(kind, small_graph, settings)
    task = task_of(small_graph, settings)
    noise = Noise(torch.tensor([stable_key(1), stable_key(2)]), 3)
    kept = noise.keep("encoder.nodes", (18, 1), DropRate([0.5, 0.5]))
    assert 0 < kept.sum() < kept.numel()
    propagation = torch.from_numpy(dense_propagation(small_graph)).float()
    x = torch.from_numpy(small_graph.x)
    found = encoded(encoder, task, noise)
    for r in range(2):
        hidden = x @ encoder.first.weight[r] + encoder.first.bias[r]
        if kind == "gcn":
            hidden = propagation @ (hidden * kept[r] * 2)
            hidden = hidden.relu() @ encoder.second.weight[r] + encoder.second.bias[r]
            expected = propagation @ hidden
        else:
            hidden = hidden.relu() @ encoder.second.weight[r] + encoder.second.bias[r]
            start = expected = hidden * kept[r] * 2
            for _ in range(settings.rounds):
                expected = 0.8 * propagation @ expected + 0.2 * start
        torch.testing.assert_close(found[r], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_query_of_the_memory_is_the_encoders_representation(
    small_graph: Graph, kind: str
) -> None:
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
def test_evaluating_some_nodes_gives_those_rows_of_all(
    small_graph: Graph, kind: str, with_memory: bool
) -> None:
    task = task_of(small_graph, TINY)
    model = PropagatedHPGMN(kind, 5, 3, [TINY] * 2, with_memory=with_memory)
    initialise(model, task.keys("main"))
    inputs = {
        "attributes": task.statistics.attributes("raw"),
        "propagation": propagation_of(task),
    }
    nodes, within = torch.tensor([[17, 2, 2], [0, 1, 5]]), torch.tensor([[2, 0], [1, 1]])
    everything = model(inputs).logits
    some, fewer = model(inputs, nodes=nodes).logits, model(inputs, None, nodes, within).logits
    for r in range(2):
        torch.testing.assert_close(some[r], everything[r][nodes[r]])
        torch.testing.assert_close(fewer[r], some[r][within[r]])


# How the encoder is trained.


def trained(
    graph: Graph, kind: str, settings: PropagatedSettings
) -> tuple[TrainState, dict[str, Tensor]]:
    """The final state, and the parameters after the first epoch of the main stage."""
    first: dict[str, Tensor] = {}

    def watch(state: TrainState, stage: Any) -> None:
        current = state.current
        assert isinstance(current, StageState)
        if stage.name == "main" and current.epoch == 1:
            first.update({name: value.clone() for name, value in current.parameters.items()})

    task = task_of(graph, settings)
    return train(task, MODELS[f"hpgmn-{kind}"], watch=watch), first


def encoder_values(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in parameters.items() if name.startswith("encoder.")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pretrained_encoder_is_kept_as_it_was_learned(small_graph: Graph, kind: str) -> None:
    state, first = trained(small_graph, kind, replace(TINY, encoder="pretrained"))
    learned = encoder_values(state.done["pretraining"])
    assert len(learned) == 4
    for name, value in learned.items():
        assert torch.equal(state.done["main"][name], value)
        assert torch.equal(first[name], value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pretrained_encoder_has_learned_and_the_memory_learns_on_top(
    small_graph: Graph, kind: str
) -> None:
    settings = replace(TINY, encoder="pretrained", lr=0.05)
    state, _ = trained(small_graph, kind, settings)
    task = task_of(small_graph, settings)
    for name in ("pretraining", "main"):
        stage = stages(kind)[name](task, state.done)
        initialise(stage.model, task.keys(name))
        for place, value in stage.model.named_parameters():
            kept = name == "main" and place.startswith("encoder.")
            if not kept:
                assert (value != state.done[name][place]).flatten(1).any(dim=1).all(), place


@pytest.mark.parametrize("kind", KINDS)
def test_a_finetuned_encoder_starts_from_what_was_learned(small_graph: Graph, kind: str) -> None:
    settings = replace(TINY, encoder="finetuned", lr=1e-3, weight_decay=0.0)
    state, first = trained(small_graph, kind, settings)
    for name, value in encoder_values(state.done["pretraining"]).items():
        away = (first[name] - value).abs()
        assert away.max() <= 1.01e-3  # Adam's first step is at most the learning rate
        assert away.flatten(1).amax(dim=1).min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_joint_encoder_starts_anew(small_graph: Graph, kind: str) -> None:
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


def test_joint_training_ignores_the_settings_of_pretraining(small_graph: Graph) -> None:
    settings = replace(TINY, encoder="joint")
    one, _ = trained(small_graph, "gcn", settings)
    other, _ = trained(small_graph, "gcn", replace(settings, pretraining_epochs=1))
    for name, value in one.done["main"].items():
        assert torch.equal(value, other.done["main"][name])


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_main_stage_takes_over_only_the_encoder(
    small_graph: Graph, kind: str, freedom: str
) -> None:
    settings = replace(TINY, encoder=freedom)
    state, _ = trained(small_graph, kind, settings)
    stage = stages(kind)["main"](task_of(small_graph, settings), state.done)
    expected = {} if freedom == "joint" else encoder_values(state.done["pretraining"])
    assert set(stage.initial) == set(expected)
    assert stage.frozen == (("encoder.",) if freedom == "pretrained" else ())


def test_pretraining_goes_straight_to_a_linear_classifier(small_graph: Graph) -> None:
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
