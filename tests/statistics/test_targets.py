import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn import Graph
from hpgmn.models.hpgmn import HPGMNSettings, labels_for_statistics
from hpgmn.models.stage import Replica, make_task
from hpgmn.statistics.targets import num_groups


@given(st.integers(0, 10**6), st.booleans())
def test_mean_targets_match_a_dense_reference(seed, has_types):
    random = np.random.default_rng(seed)
    nodes, edges = 9, 20
    targets, train = random.normal(5, 3, nodes), random.random(nodes) < 0.5
    train[:2], targets[:2] = True, (1.0, 2.0)
    weights = random.uniform(0.5, 2, edges)
    graph = Graph(
        np.eye(nodes),
        random.integers(nodes, size=(2, edges)),
        targets,
        edge_weight=weights,
        edge_type=random.integers(2, size=edges) if has_types else None,
        edge_type_names=["card", "wire"] if has_types else None,
    )
    settings = HPGMNSettings(statistics=("attributes", "target_means"), neighbors="out")
    val = ~train
    task = make_task(graph, [Replica(0, 0, settings)], [(train, val)], "cpu")
    guesses = random.normal(5, 3, nodes)
    labels, shares = labels_for_statistics(task, torch.from_numpy(guesses)[None, :, None])
    name, number = ("target_means_type1", 1) if has_types else ("target_means", None)
    rows = task.statistics.build(labels, task.num_groups, [settings], shares)[name]

    mean, std = targets[train].mean(), targets[train].std()
    standard = (np.where(train, targets, guesses) - mean) / std
    dense = graph.adjacency("out", number).toarray()
    for node in range(nodes):
        weight, known = dense[node].sum(), dense[node][train].sum()
        expected = [
            dense[node] @ standard / weight if weight else 0,
            dense[node][train] @ standard[train] / known if known else 0,
            known / weight if weight else 0,
        ]
        found = rows.rows(torch.tensor([node]))[0]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_groups_are_classes_or_bins():
    settings = HPGMNSettings(target_bins=5)
    assert num_groups(Graph([[1.0]] * 2, [[0], [1]], [0, 2]), settings) == 3
    assert num_groups(Graph([[1.0]] * 2, [[0], [1]], [0.5, 2]), settings) == 5
