"""What prediction reads of a graph that has grown, against a slow recomputation of it all."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from hpgmn.base.randomness import signs, text_keys
from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.stage import Replica
from hpgmn.statistics.settings import STATISTICS, base_name, mode_of, statistic_names
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import SavedModel

OLD, NEW, CLASSES, WIDTH = 30, 7, 3, 5
EVERY = HPGMNSettings(
    statistics=STATISTICS,
    hidden_dim=4,
    num_patterns=3,
    estimator_hidden=6,
    estimator_epochs=8,
    epochs=2,
    teleport=0.3,
    diffusion_threshold=1e-9,
    diffusion_dim=16,
)


@dataclass(frozen=True, eq=False)
class World:
    """All nodes there will ever be, and the edges with their weights."""

    x: np.ndarray
    y: np.ndarray
    edges: np.ndarray  # (2, E)
    weight: np.ndarray

    def graph(self, nodes, with_labels=True):
        """The nodes of that order, with the edges among them."""
        place = np.full(len(self.y), -1)
        place[nodes] = np.arange(len(nodes))
        kept = (place[self.edges] >= 0).all(axis=0)
        part = np.arange(len(nodes)) % 3 if with_labels else None
        masks = (
            {}
            if part is None
            else {f"{name}_mask": part == n for n, name in enumerate(("train", "val", "test"))}
        )
        return Graph(
            self.x[nodes],
            place[self.edges[:, kept]],
            self.y[nodes] if with_labels else None,
            edge_weight=self.weight[kept],
            node_ids=[f"node {number}" for number in nodes],
            **masks,
        )


@pytest.fixture
def world():
    random = np.random.default_rng(3)
    count = OLD + NEW
    y = np.arange(count) // 3 % CLASSES
    x = random.normal(size=(count, WIDTH)) + 2 * np.eye(WIDTH)[y]
    source = random.integers(0, count, 6 * count)
    target = random.integers(0, count, 6 * count)
    # An isolated new node, one that only others lead to, and one that only leads to others.
    kept = (source != OLD) & (target != OLD) & (source != OLD + 1) & (target != OLD + 2)
    weight = random.uniform(0.5, 2, kept.sum())
    return World(x, y, np.stack([source[kept], target[kept]]), weight)


@pytest.fixture
def tomorrow():
    """Known nodes in another order, three of them missing, new ones in between."""
    order = np.random.default_rng(5).permutation(OLD + NEW)
    return order[~np.isin(order, [0, 4, 17])]


def fitted(graph, settings, model="hpgmn"):
    split = graph.split(0)
    replicas = [Replica(0, 0, settings)]
    found = fit_replicas(graph, MODELS[model], replicas, [(split.train, split.val)])
    return SavedModel.of(MODELS[model], found, graph, [split.train])


def statistics_read(model, graph):
    """(N, width) of each statistic that the trained network is given."""
    stage = model.entry.stages["main"](model.on_graph(graph).task, model.done)
    return {
        name: one.times(torch.eye(one.width)[None])[0].numpy() for name, one in stage.inputs.items()
    }


class Slowly:
    """Every statistic from its definition, with dense matrices."""

    def __init__(self, model, world, nodes):
        self.settings = model.replicas[0].settings
        self.nodes = nodes
        self.x = world.x[nodes].astype(np.float32).astype(float)
        self.weights = np.zeros((len(nodes), len(nodes)))
        for source, target, weight in zip(*world.edges, world.weight, strict=True):
            if source != target and source in nodes and target in nodes:
                at = np.flatnonzero(nodes == source), np.flatnonzero(nodes == target)
                self.weights[at] += weight
        self.labels = self._labels(model, world)

    def _labels(self, model, world):
        """The saved estimator's guesses; nodes that were train nodes have their true label."""
        own = {name: value[0].numpy() for name, value in model.done["estimator"].items()}
        hidden = self.x @ own["encode.first.weight"] + own["encode.first.bias"]
        last = [own[f"encode.rest.layers.0.{part}"] for part in ("weight", "bias")]
        guesses = (np.maximum(hidden, 0) @ last[0] + last[1]).argmax(axis=1)
        was_train = (self.nodes < OLD) & (self.nodes % 3 == 0)
        return np.where(was_train, world.y[self.nodes], guesses)

    def adjacency(self, mode):
        both = {"out": self.weights, "in": self.weights.T}
        return both[mode] if mode in both else both["out"] + both["in"]

    def of(self, name):
        base, mode = base_name(name), mode_of(name, self.settings.neighbors)
        if base.startswith("neighbor_"):
            weights = self.adjacency(mode)
            shares = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
            return shares @ self.plain(base.removeprefix("neighbor_"), mode)
        return self.plain(base, mode)

    def plain(self, base, mode):
        weights, one_hot = self.adjacency(mode), np.eye(CLASSES)[self.labels]
        if base in ("attributes", "message_passing"):
            return self.x
        if base == "hops":
            once = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
            return np.concatenate([once @ self.x, once @ once @ self.x], axis=1)
        if base == "class_counts":
            return np.log1p(weights @ one_hot)
        if base == "class_means":
            counts = weights @ one_hot
            sums = np.einsum("vu,uc,uf->vcf", weights, one_hot, self.x)
            means = sums / np.where(counts > 0, counts, 1)[..., None]
            return means.reshape(len(self.nodes), -1)
        if base == "adjacency":
            return self.trained_columns(unit(weights))
        return self.diffusion(weights)

    def diffusion(self, weights):
        sums = weights.sum(axis=0)
        moves = weights / np.where(sums > 0, sums, 1)  # T = A·D⁻¹
        teleport, count = self.settings.teleport, len(self.nodes)
        rows = teleport * np.linalg.inv(np.eye(count) - (1 - teleport) * moves)
        if not self.settings.diffusion_self_entry:
            np.fill_diagonal(rows, 0)
        if self.settings.diffusion_form == "sketch":
            keys = text_keys(np.array([f"node {number}" for number in self.nodes]))
            return unit(rows @ signs(keys, 0, self.settings.diffusion_dim).numpy())
        if self.settings.diffusion_form == "topk":
            smallest = np.sort(rows, axis=1)[:, -self.settings.diffusion_topk]
            rows = np.where(rows >= smallest[:, None], rows, 0)
        return self.trained_columns(unit(rows))

    def trained_columns(self, rows):
        """The columns of the nodes trained on, in their order; empty where one is missing."""
        found = np.zeros((len(rows), OLD))
        for place, node in enumerate(self.nodes):
            if node < OLD:
                found[:, node] = rows[:, place]
        return found


def unit(rows):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


@pytest.mark.parametrize("mode", ["out", "in", "undirected", "both"])
@pytest.mark.parametrize(
    "form",
    [
        {"diffusion_form": "dense"},
        {"diffusion_form": "implicit"},
        {"diffusion_form": "topk", "diffusion_topk": 6},
        {"diffusion_form": "sketch", "diffusion_self_entry": True},
    ],
    ids=lambda form: form["diffusion_form"],
)
def test_statistics_of_a_grown_graph_are_those_of_a_full_recomputation(world, tomorrow, mode, form):
    settings = replace(EVERY, neighbors=mode, **form)
    model = fitted(world.graph(np.arange(OLD)), settings)
    found = statistics_read(model, world.graph(tomorrow, with_labels=False))
    slowly = Slowly(model, world, tomorrow)
    assert list(found) == statistic_names(settings)
    assert (tomorrow >= OLD).sum() == NEW
    for name, rows in found.items():
        np.testing.assert_allclose(rows, slowly.of(name), atol=1e-5, rtol=1e-5, err_msg=name)


def test_rows_for_batches_are_the_same_but_for_half_precision(world, tomorrow):
    chosen = ("attributes", "class_counts", "class_means", "adjacency")
    model = fitted(
        world.graph(np.arange(OLD)), replace(EVERY, statistics=chosen, batch_size=6, neighbors="in")
    )
    found = statistics_read(model, world.graph(tomorrow, with_labels=False))
    slowly = Slowly(model, world, tomorrow)
    for name, rows in found.items():
        close = 2e-3 if name == "class_means" else 1e-5
        np.testing.assert_allclose(rows, slowly.of(name), atol=close, rtol=close, err_msg=name)


def test_labels_of_new_nodes_and_other_labels_of_known_ones_change_nothing(world, tomorrow):
    model = fitted(world.graph(np.arange(OLD)), EVERY)
    wrong = replace(world, y=(world.y + 1) % CLASSES)
    expected = model.logits(world.graph(tomorrow, with_labels=False))
    assert torch.equal(model.logits(wrong.graph(tomorrow)), expected)


def test_positions_of_known_nodes(world, tomorrow):
    today = world.graph(np.arange(OLD))
    model = fitted(today, EVERY)
    assert model.known_positions(today) is None
    found = model.known_positions(world.graph(tomorrow))
    assert found is not None
    assert found.tolist() == [node if node < OLD else -1 for node in tomorrow]


TOP = {"statistics": ("attributes", "class_means", "diffusion"), "diffusion_form": "topk"}


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("hpgmn", {}),
        ("hpgmn", TOP),
        ("hpgmn", {**TOP, "batch_size": 6}),
        ("hpgmn", {**TOP, "refinement": True}),
        ("hpgmn-appnp", {"batch_norm": True, "pretraining_epochs": 2}),
        ("gcn", {}),
        ("linkx", {}),
    ],
)
def test_some_nodes_have_the_logits_they_have_among_all(world, tomorrow, model, given):
    settings = make_settings(MODELS[model].settings, {"epochs": 2, "hidden_dim": 4, **given})
    trained = fitted(world.graph(np.arange(OLD)), settings, model)
    graph = world.graph(tomorrow)
    new = np.flatnonzero(tomorrow >= OLD)
    every, some = trained.logits(graph), trained.logits(graph, nodes=new)
    assert some.shape == (1, NEW, CLASSES)
    torch.testing.assert_close(some, every[:, new], atol=1e-5, rtol=1e-5)
    chances = trained.mean_probabilities(graph, nodes=new)
    torch.testing.assert_close(
        chances, trained.mean_probabilities(graph)[new], atol=1e-5, rtol=1e-5
    )
