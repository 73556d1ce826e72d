"""Message passing against loops over nodes and edges; what a whole run with it must keep."""

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.errors import SettingError
from hpgmn.base.randomness import DropRate, Noise, stable_key
from hpgmn.base.sparse import transition
from hpgmn.graph import Graph
from hpgmn.graph.files import read_graph, write_graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMN, HPGMNSettings
from hpgmn.models.layers import initialise
from hpgmn.models.message_passing import MessagePassing
from hpgmn.models.stage import Replica, load_parameters, logits, make_task
from hpgmn.statistics import LocalStatistics
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import SavedModel
from hpgmn.training.trainer import train

ENTRY = MODELS["hpgmn"]
TINY = HPGMNSettings(
    statistics=("message_passing",),
    neighbors="out",
    hidden_dim=4,
    mp_layers=3,
    num_patterns=5,
    estimator_hidden=4,
    estimator_epochs=3,
    epochs=6,
    patience=0,
    dropout=0.25,
    message_passing_dropout=0.5,
)
EXPONENTS = {"row": (1.0, 0.0), "symmetric": (0.5, 0.5), "quarter": (0.25, 0.25)}


def links(graph, *settings):
    labels = np.full((len(settings), graph.num_nodes), -1)
    return LocalStatistics(graph).build(labels, 2, settings)


def network(width, settings, replicas=2):
    model = MessagePassing(replicas, width, settings)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
            if name.endswith("variance"):
                parameter.abs_().add_(0.2)
    return model


def weights_of(graph, neighbors):
    """{v: {u: weight}} of the neighbours that each node reads."""
    near = {v: {} for v in range(graph.num_nodes)}
    for source, target in graph.edge_index.T.tolist():
        if source != target:
            if neighbors in ("out", "undirected"):
                near[source][target] = 1.0
            if neighbors in ("in", "undirected"):
                near[target][source] = 1.0
    return near


def slowly(graph, settings, neighbors, model, replica, noise=None, place=""):
    """(N, D) of one replica, each node and each neighbour by itself."""
    own = {name: value[replica].double() for name, value in model.state_dict().items()}
    near = weights_of(graph, neighbors)
    if not settings.mp_residual:
        for v, weights in near.items():
            weights[v] = weights.get(v, 0.0) + 1.0
    rows = {v: sum(weights.values()) for v, weights in near.items()}
    columns = {u: sum(weights.get(u, 0.0) for weights in near.values()) for u in near}
    of_row, of_column = EXPONENTS[settings.mp_normalization]
    x = graph.x.toarray() if sp.issparse(graph.x) else graph.x
    hidden = torch.from_numpy(np.asarray(x)).double()
    if noise is not None:
        rate = settings.message_passing_dropout
        kept = noise.keep(f"{place}.columns", (hidden.shape[1],), DropRate([rate] * 2))
        hidden = hidden * kept[replica] / (1 - rate)
    states = []
    for layer in range(settings.mp_layers):
        new = []
        for v, weights in near.items():
            message = torch.zeros(hidden.shape[1], dtype=torch.float64)
            for u, weight in weights.items():
                message += weight / (rows[v] ** of_row * columns[u] ** of_column) * hidden[u]
            row = message @ own[f"layers.{layer}.near"]
            if settings.mp_residual:
                row = row + hidden[v] @ own[f"layers.{layer}.own"]
            new.append(row)
        hidden = torch.stack(new)
        if settings.mp_norm == "batch":
            mean, variance = own[f"norms.{layer}.mean"], own[f"norms.{layer}.variance"]
            if noise is not None:
                mean, variance = hidden.mean(dim=0), hidden.var(dim=0, unbiased=False)
            hidden = (hidden - mean) / (variance + 1e-5).sqrt()
            hidden = hidden * own[f"norms.{layer}.scale"] + own[f"norms.{layer}.shift"]
        else:
            hidden = hidden + own[f"layers.{layer}.bias"]
        hidden = hidden.relu()
        if noise is not None:
            kept = noise.keep(f"{place}.{layer}", hidden.shape, DropRate([settings.dropout] * 2))
            hidden = hidden * kept[replica] / (1 - settings.dropout)
        states.append(hidden)
    if settings.mp_jump == "max":
        return torch.stack(states).amax(dim=0)
    if settings.mp_jump == "concat":
        return torch.cat(states, dim=1) @ own["resize.weight"] + own["resize.bias"]
    return states[-1]


CASES = [
    *itertools.product(("row", "symmetric", "quarter"), (True, False), ("none",), ("batch",)),
    *itertools.product(("symmetric",), (True, False), ("max", "concat"), ("batch", "none")),
]


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected"])
@pytest.mark.parametrize(("normalization", "residual", "jump", "norm"), CASES)
@pytest.mark.parametrize("trains", [False, True], ids=["evaluation", "training"])
def test_the_network_equals_loops_over_nodes(
    wild_graph, neighbors, normalization, residual, jump, norm, trains
):
    settings = replace(
        TINY,
        neighbors=neighbors,
        mp_normalization=normalization,
        mp_residual=residual,
        mp_jump=jump,
        mp_norm=norm,
    )
    model = network(wild_graph.num_features, settings)
    noise = Noise(torch.tensor([stable_key(1), stable_key(2)]), 1) if trains else None
    expected = [slowly(wild_graph, settings, neighbors, model, r, noise, "mp") for r in range(2)]
    statistic = links(wild_graph, settings, settings)["message_passing"]
    rates = [DropRate([rate] * 2) for rate in (settings.message_passing_dropout, settings.dropout)]
    found = model(statistic, *rates, noise, "mp")
    torch.testing.assert_close(found.double(), torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_sparse_attributes_and_both_directions(wild_graph):
    graph = Graph(sp.csr_array(wild_graph.x), wild_graph.edge_index, wild_graph.y)
    settings = replace(TINY, neighbors="both")
    inputs = links(graph, settings, settings)
    assert list(inputs) == ["message_passing_out", "message_passing_in"]
    model = HPGMN(dict.fromkeys(inputs, 7), 4, settings, replicas=2)
    initialise(model, torch.tensor([1, 2]))
    query = model.query(inputs).double()
    for replica, (number, mode) in itertools.product(range(2), enumerate(("out", "in"))):
        encoder = model.encode[f"message_passing_{mode}"]
        expected = slowly(graph, settings, mode, encoder, replica)
        part = query[replica, :, 4 * number : 4 * number + 4]
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-5)


def test_replicas_may_read_different_neighbours(wild_graph):
    modes = ("out", "undirected", "out")
    each = [replace(TINY, neighbors=mode) for mode in modes]
    model = network(wild_graph.num_features, TINY, replicas=3)
    statistic = links(wild_graph, *each)["message_passing"]
    zero = DropRate([0.0] * 3)
    found = model(statistic, zero, zero, None, "mp").double()
    for replica, mode in enumerate(modes):
        expected = slowly(wild_graph, TINY, mode, model, replica)
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)


def task_of(graph, settings, seeds=(0, 1, 2)):
    split = graph.split(0)
    replicas = [Replica(0, seed, settings) for seed in seeds]
    return make_task(graph, replicas, [(split.train, split.val)] * len(seeds), "cpu")


BESIDE = replace(TINY, statistics=("attributes", "class_counts", "message_passing"))


@pytest.mark.parametrize("settings", [TINY, BESIDE], ids=["alone", "beside others"])
def test_a_replica_alone_equals_itself_among_others(wild_graph, settings):
    together, alone = (task_of(wild_graph, settings, seeds) for seeds in ((0, 1, 2), (1,)))
    all_of_them, single = train(together, ENTRY), train(alone, ENTRY)
    for name, value in single.done["main"].items():
        torch.testing.assert_close(all_of_them.done["main"][name][1], value[0])


def test_a_nodes_logits_do_not_depend_on_the_nodes_requested(wild_graph):
    task = task_of(wild_graph, BESIDE)
    done = train(task, ENTRY).done
    every = logits(task, ENTRY, done)
    for nodes in ([3], [22, 0, 5]):
        found = logits(task, ENTRY, done, torch.tensor(nodes))
        torch.testing.assert_close(found, every[:, nodes])


def test_running_averages_are_learned_and_kept(wild_graph):
    settings = replace(TINY, message_passing_dropout=0.0)
    done = train(task_of(wild_graph, settings), ENTRY).done["main"]
    for place, start in (("mean", 0), ("variance", 1)):
        assert (done[f"encode.message_passing.norms.0.{place}"] != start).all()


def test_other_labels_than_those_trained_on_change_nothing(wild_graph):
    """Labels of test nodes are never read; those of validation nodes only select."""
    split = wild_graph.split(0)
    found = []
    for y in (wild_graph.y, np.where(split.train, wild_graph.y, (wild_graph.y + 1) % 4)):
        masks = {f"{part}_mask": getattr(split, part) for part in ("train", "val", "test")}
        graph = Graph(wild_graph.x, wild_graph.edge_index, y, **masks)
        state = train(task_of(graph, replace(BESIDE, label_confidence=1.0)), ENTRY)
        found.append(state.history["main"]["loss"])
    assert torch.equal(*found)


def test_batches_are_refused_with_hops_as_the_remedy():
    with pytest.raises(SettingError, match="message_passing") as error:
        replace(BESIDE, batch_size=8)
    assert error.value.remedy.setting == "statistics"
    assert error.value.remedy.value == ("attributes", "class_counts", "hops")


def test_the_size_estimate_grows_with_the_layers(wild_graph):
    few, many = (ENTRY.floats(wild_graph, replace(TINY, mp_layers=n)) for n in (2, 8))
    assert many[1] - few[1] == 6 * 4 * TINY.hidden_dim


def saved_model(graph, settings):
    split = graph.split(0)
    fitted = fit_replicas(graph, ENTRY, [Replica(0, 0, settings)], [(split.train, split.val)])
    return SavedModel.of(ENTRY, fitted, graph, [split.train])


def test_a_saved_model_predicts_the_same_in_another_process(wild_graph, tmp_path):
    saved = saved_model(wild_graph, replace(BESIDE, statistics=("hops", "message_passing")))
    saved.write(tmp_path / "model.safetensors")
    write_graph(wild_graph, tmp_path / "graph.npz")
    code = f"""
from pathlib import Path
from hpgmn.graph.files import read_graph
from hpgmn.training.saved import SavedModel
folder = Path({str(tmp_path)!r})
saved = SavedModel.read(folder / "model.safetensors")
print(saved.logits(read_graph(folder / "graph.npz")).numpy().tobytes().hex())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = saved.logits(read_graph(tmp_path / "graph.npz"))
    assert done.stdout.strip() == expected.numpy().tobytes().hex()


def test_new_nodes_pass_messages_too(wild_graph):
    """On a grown graph the encoding is that of the trained network on all of its edges."""
    saved = saved_model(wild_graph, replace(TINY, neighbors="in"))
    random = np.random.default_rng(1)
    edges = np.concatenate([wild_graph.edge_index, random.integers(0, 30, (2, 40))], axis=1)
    grown = Graph(np.concatenate([wild_graph.x, random.normal(size=(7, 7))]), edges)
    on_graph = saved.on_graph(grown)
    stage = ENTRY.stages["main"](on_graph.task, on_graph.parameters)
    load_parameters(stage.model, on_graph.parameters["main"])
    expected = slowly(grown, TINY, "in", stage.model.encode["message_passing"], 0)
    query = stage.model.query(stage.inputs)[0].double()
    torch.testing.assert_close(query, expected, rtol=1e-4, atol=1e-5)


def test_each_type_has_its_matrix_and_weights(wild_graph, typed):
    graph = typed(wild_graph)
    statistic = links(graph, TINY, TINY)["message_passing"]
    model = MessagePassing(2, graph.num_features, replace(TINY, mp_layers=1), num_types=3)
    initialise(model, torch.tensor([1, 2]))
    zero = DropRate([0.0] * 2)
    found = model.layers[0](statistic, statistic)
    near, own = model.layers[0].near, model.layers[0].own
    x = torch.from_numpy(graph.x)
    for replica in range(2):
        expected = x @ own[replica]
        for number in range(3):
            matrix = transition(graph.adjacency("out", number), "symmetric").toarray()
            expected = expected + torch.from_numpy(matrix) @ x @ near[replica].chunk(3, 1)[number]
        torch.testing.assert_close(found[replica], expected, rtol=1e-4, atol=1e-5)
    merged = links(graph, replace(TINY, edge_types="merged"))["message_passing"]
    assert (statistic.num_matrices, merged.num_matrices) == (3, 1)
    assert model(statistic, zero, zero, None, "mp").shape == (2, 23, 4)


def test_messages_of_one_type_are_those_without_types(wild_graph):
    ones = np.zeros(wild_graph.num_listed_edges, np.int64)
    graph = Graph(wild_graph.x, wild_graph.edge_index, wild_graph.y, edge_type=ones)
    assert wild_graph.splits is not None
    graph = graph.with_splits(wild_graph.splits)
    typed_done, done = (train(task_of(one, TINY), ENTRY).done for one in (graph, wild_graph))
    for name, value in done["main"].items():
        torch.testing.assert_close(typed_done["main"][name], value)


@pytest.mark.parametrize("neighbors", ["out", "both"])
def test_a_replica_on_types_alone_equals_itself_among_others(wild_graph, typed, neighbors):
    settings = replace(BESIDE, neighbors=neighbors)
    graph = typed(wild_graph)
    together, alone = (task_of(graph, settings, seeds) for seeds in ((0, 1, 2), (1,)))
    all_of_them, single = train(together, ENTRY), train(alone, ENTRY)
    assert sum("_type" in name for name in single.done["main"]) > 0
    for name, value in single.done["main"].items():
        torch.testing.assert_close(all_of_them.done["main"][name][1], value[0])
