"""A task shows training the labels it may see, and no others."""

import numpy as np
import pytest
import torch

from hpgmn.base.randomness import stable_key
from hpgmn.base.settings import TrainSettings
from hpgmn.graph import Graph
from hpgmn.models.layers import Linear
from hpgmn.models.stage import (
    Replica,
    TrainingStage,
    balanced_weights,
    load_parameters,
    main_stage,
    make_task,
)


def task_of(graph, *replicas):
    masks = [(graph.split(one.split).train, graph.split(one.split).val) for one in replicas]
    return make_task(graph, replicas, masks, "cpu")


@pytest.fixture
def task(small_graph):
    """Four replicas on two splits, told apart by their learning rate."""
    return task_of(
        small_graph, *(Replica(n % 2, 10 + n, TrainSettings(lr=0.1 * (n + 1))) for n in range(4))
    )


def test_only_train_and_validation_labels_are_shown_each_in_its_place(small_graph, task):
    for row, replica in enumerate(task.replicas):
        split = small_graph.split(replica.split)
        for node, label in enumerate(small_graph.y):
            assert task.train_labels[row, node] == (label if split.train[node] else -1)
            assert task.val_labels[row, node] == (label if split.val[node] else -1)


def test_a_task_does_not_depend_on_test_labels(small_graph):
    split = small_graph.split(0)
    y = np.where(split.test, (small_graph.y + 1) % 3, small_graph.y)
    other = Graph(small_graph.x, small_graph.edge_index, y).with_splits(small_graph.splits)
    replica = Replica(0, 0, TrainSettings())
    one, two = task_of(small_graph, replica), task_of(other, replica)
    assert not np.array_equal(small_graph.y, other.y)
    assert np.array_equal(one.train_labels, two.train_labels)
    assert np.array_equal(one.val_labels, two.val_labels)


def test_a_subset_keeps_each_replica_with_its_labels(task):
    part = task.subset([3, 0])
    assert part.replicas == (task.replicas[3], task.replicas[0])
    assert [one.lr for one in part.settings] == pytest.approx([0.4, 0.1])
    assert np.array_equal(part.train_labels, np.stack([task.train_labels[3], task.train_labels[0]]))
    assert np.array_equal(part.val_labels, np.stack([task.val_labels[3], task.val_labels[0]]))
    assert part.statistics is task.statistics
    assert part.num_classes == task.num_classes == 3


def test_a_subset_of_a_subset_counts_within_it(task):
    assert task.subset([3, 1, 0]).subset([2, 0]).replicas == task.subset([0, 3]).replicas


def test_a_replica_has_its_key_alone_and_among_others(task):
    everyone = task.keys("main")
    for place in range(4):
        assert torch.equal(task.subset([place]).keys("main"), everyone[place : place + 1])


def test_keys_are_those_of_seed_split_and_stage(small_graph):
    replicas = [Replica(split, seed, TrainSettings()) for split in (0, 1) for seed in (0, 1)]
    task = task_of(small_graph, *replicas)
    found = torch.cat([task.keys("main"), task.keys("estimator")]).tolist()
    assert len(set(found)) == 8
    assert found[1] == stable_key(1, 0, "main")


def test_settings_do_not_change_the_keys(small_graph):
    one = task_of(small_graph, Replica(0, 0, TrainSettings(lr=0.1)))
    two = task_of(small_graph, Replica(0, 0, TrainSettings(lr=0.2)))
    assert torch.equal(one.keys("main"), two.keys("main"))


def test_a_task_knows_its_graph_and_its_device(small_graph, task):
    assert task.graph is small_graph
    assert task.device == torch.device("cpu")


def stage_with(**values):
    plain = {"lr": [0.1], "weight_decay": [0.0], "epochs": 1, "patience": 0}
    return TrainingStage(name="s", model=Linear(1, 2, 3), inputs={}, **(plain | values))


@pytest.mark.parametrize(
    ("weights", "everywhere"),
    [
        ({}, False),
        ({"norm": [1.0, 1.0]}, False),
        ({"kpattern": [0.0, 0.0], "entropy": [0.0, 0.0]}, False),
        ({"kpattern": [0.0, 0.1]}, True),
        ({"kpattern": [0.0, 0.0], "entropy": [0.1, 0.0]}, True),
    ],
)
def test_a_stage_needs_all_nodes_only_for_penalties_over_nodes(weights, everywhere):
    assert stage_with(penalty_weights=weights).needs_all_nodes is everywhere


def test_a_stage_needs_all_nodes_for_consistency():
    assert stage_with(consistency=[TrainSettings(consistency_weight=1.0)]).needs_all_nodes


def test_the_main_stage_takes_its_numbers_from_the_settings(small_graph):
    common = {"epochs": 7, "patience": 3}
    first = TrainSettings(lr=0.1, weight_decay=0.2, **common)
    second = TrainSettings(lr=0.3, weight_decay=0.4, **common)
    task = task_of(small_graph, Replica(0, 0, first), Replica(1, 0, second))
    stage = main_stage(task, Linear(2, 2, 3), {}, reads_rows=True)
    assert (stage.name, stage.lr, stage.weight_decay) == ("main", [0.1, 0.3], [0.2, 0.4])
    assert (stage.epochs, stage.patience, stage.reads_rows) == (7, 3, True)
    assert stage.consistency is None


def test_the_main_stage_is_consistent_when_a_replica_asks_for_it(small_graph):
    settings = [TrainSettings(), TrainSettings(consistency_weight=0.5)]
    task = task_of(small_graph, *(Replica(0, 0, one) for one in settings))
    assert main_stage(task, Linear(2, 2, 3), {}).consistency == settings


def test_loading_copies_named_parameters_and_leaves_the_others():
    layer = Linear(1, 2, 3)
    given = torch.arange(6.0).view(1, 2, 3)
    load_parameters(layer, {"weight": given})
    assert torch.equal(layer.weight, given)
    assert torch.equal(layer.bias, torch.zeros(1, 1, 3))
    given += 1
    assert not torch.equal(layer.weight, given)


def test_balanced_weights_give_every_class_the_same_share():
    labels = np.array([[0, 0, 0, 1, -1, -1], [2, 1, 1, 1, 1, 0]])
    expected = [[4 / (3 * 3), 4 / (3 * 1), 0.0], [6 / (3 * 1), 6 / (3 * 4), 6 / (3 * 1)]]
    np.testing.assert_allclose(balanced_weights(labels, 3), expected)


def test_a_task_has_class_weights_only_where_set(small_graph, task):
    assert task.class_weights is None
    settings = TrainSettings(class_weights="balanced")
    weighted = task_of(small_graph, Replica(0, 0, settings), Replica(1, 0, settings))
    found = weighted.class_weights
    assert found is not None
    assert found.dtype == torch.float32
    expected = balanced_weights(weighted.train_labels, 3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert weighted.subset([1]).class_weights is not None
