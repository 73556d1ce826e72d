"""Shapley values against their definition over orders, and subsets against the model itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

import hpgmn.explain.shapley as module
from hpgmn.explain.replicas import (
    ReplicaView,
    mean_log_probabilities,
    mean_probabilities,
    open_replicas,
)
from hpgmn.explain.shapley import players, shapley_values, statistic_shares, subset_values
from hpgmn.graph import Array, Graph
from hpgmn.training.saved import SavedModel

Fit = Callable[..., SavedModel]


def over_orders(values: Array) -> Array:
    """The definition: the mean of what a player adds, over all orders of arrival."""
    count = int(math.log2(len(values)))
    total = np.zeros(count)
    orders = list(itertools.permutations(range(count)))
    for order in orders:
        subset = 0
        for player in order:
            total[player] += values[subset | 1 << player] - values[subset]
            subset |= 1 << player
    return total / len(orders)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_values_are_means_over_orders(count: int) -> None:
    values = np.random.default_rng(count).normal(size=2**count)
    found = shapley_values(values)
    np.testing.assert_allclose(found, over_orders(values), atol=1e-12)
    assert found.sum() == pytest.approx(values[-1] - values[0], abs=1e-12)


def test_directions_are_one_player_and_means_over_neighbours_their_own(
    small_graph: Graph, fit: Fit
) -> None:
    names = ("attributes", "class_means", "neighbor_class_means")
    opened = open_replicas(fit(small_graph, neighbors="both", statistics=names), small_graph)[0]
    assert len(opened.module.names) == 5
    assert players(opened) == list(names)


def test_subsets_replace_encodings_by_the_mean_of_the_train_nodes(
    small_graph: Graph, fit: Fit
) -> None:
    names = ("attributes", "class_counts", "class_means")
    saved = fit(small_graph, seeds=2, neighbors="both", statistics=names, memory_dim=4)
    opened = open_replicas(saved, small_graph)
    node, label = 7, 2
    assert abs(saved.mean_temperatures[0] - 1) > 0.05
    found = subset_values(opened, np.array([3, node]), np.array([0, label]))[1]
    train = torch.from_numpy(np.flatnonzero(small_graph.split(0).train))
    for subset in range(8):
        chances = []
        for one in opened:
            with torch.no_grad():
                parts = one.module.query(one.stage.inputs)[0].split(6, dim=-1)  # five of width 6
                query = torch.cat(
                    [
                        part[node] if subset >> player & 1 else part[train].mean(dim=0)
                        for part, player in zip(parts, (0, 1, 1, 2, 2), strict=True)
                    ]
                )
                chances.append(one.module.head(query[None, None]).logits[0, 0].softmax(dim=0))
        powers = torch.stack(chances).mean(dim=0) ** (1 / saved.mean_temperatures[0])
        expected = (powers[label] / powers.sum()).log()
        assert found[subset] == pytest.approx(float(expected), abs=1e-5)


def test_the_numbers_of_one_node_are_held_at_a_time(
    small_graph: Graph, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more nodes there are more values only, not the logits of every class."""
    opened = open_replicas(fit(small_graph, seeds=2), small_graph)
    sizes: list[int] = []

    def counted(replicas: Sequence[ReplicaView], logits: torch.Tensor) -> torch.Tensor:
        sizes.append(logits.numel())
        return mean_log_probabilities(replicas, logits)

    monkeypatch.setattr(module, "mean_log_probabilities", counted)
    nodes = np.arange(18)
    together = subset_values(opened, nodes, nodes % 3)
    assert max(sizes) <= 2 * 2**4 * 3  # replicas, subsets, classes
    alone = [subset_values(opened, nodes[v : v + 1], nodes[v : v + 1] % 3)[0] for v in nodes]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_shares_add_up_to_what_the_prediction_has_over_an_average_node(
    small_graph: Graph, fit: Fit
) -> None:
    opened = open_replicas(fit(small_graph, seeds=2), small_graph)
    chances = mean_probabilities(opened)
    nodes = np.array([0, 5, 17])
    labels = chances[nodes].argmax(axis=1)
    every = zip(
        nodes,
        labels,
        subset_values(opened, nodes, labels),
        statistic_shares(opened, nodes, labels),
        strict=True,
    )
    for node, label, values, shares in every:
        assert list(shares) == ["attributes", "class_counts", "class_means", "adjacency"]
        full = math.log(chances[node, label])
        assert sum(shares.values()) == pytest.approx(full - values[0], abs=1e-5)


def test_a_statistic_that_is_the_same_for_all_nodes_has_no_share(fit: Fit) -> None:
    random = np.random.default_rng(0)
    y = np.arange(30) % 2
    ring = np.stack([np.arange(30), (np.arange(30) + 2) % 30])  # one neighbour of the same class
    mask = np.arange(30) < 20
    x = np.ones((30, 3)) + 0 * random.normal(size=(30, 3))
    graph = Graph(x, ring, y, train_mask=mask, val_mask=~mask, test_mask=np.zeros(30, bool))
    statistics = ("attributes", "adjacency")
    opened = open_replicas(fit(graph, neighbors="out", statistics=statistics), graph)
    [shares] = statistic_shares(opened, np.array([4]), np.array([0]))
    assert shares["attributes"] == pytest.approx(0, abs=1e-6)
    assert abs(shares["adjacency"]) > 1e-4
