"""Pseudo labels show train labels and guesses, nothing else; the estimator learns."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import (
    HPGMNSettings,
    class_shares,
    compute_pseudo_labels,
    estimator_logits,
    estimator_stage,
    pseudo_labels,
)
from hpgmn.models.layers import initialise
from hpgmn.models.stage import Replica, make_task
from hpgmn.training.trainer import train

STAGES = {"estimator": estimator_stage}
ESTIMATOR = replace(MODELS["hpgmn"], name="estimator", stages=STAGES)


def task_of(graph, splits=(0,), **values):
    settings = HPGMNSettings(**{"estimator_hidden": 8, "estimator_epochs": 40, **values})
    masks = [(graph.split(split).train, graph.split(split).val) for split in splits]
    return make_task(graph, [Replica(split, 0, settings) for split in splits], masks, "cpu")


def trained(task):
    return train(task, ESTIMATOR)


def test_pseudo_labels_are_true_on_train_nodes_and_predicted_elsewhere(small_graph):
    task = task_of(small_graph, (0, 1))
    wrong = (small_graph.y + 1) % 3  # a guess that never is the true label
    logits = torch.eye(3)[torch.from_numpy(wrong)].expand(2, -1, -1)
    labels = pseudo_labels(logits, task.train_labels)
    for row, split in zip(labels, small_graph.splits, strict=True):
        assert np.array_equal(row[split.train], small_graph.y[split.train])
        assert np.array_equal(row[~split.train], wrong[~split.train])
        assert (row[split.val] != small_graph.y[split.val]).all()
        assert (row[split.test] != small_graph.y[split.test]).all()


def test_a_prediction_below_the_confidence_is_unknown_and_a_train_label_never():
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 5.0, 0.0]]).expand(4, 3, 3)
    train_labels = np.full((4, 3), -1)
    train_labels[:, 0] = 2
    found = pseudo_labels(logits, train_labels, [0.0, 0.5, 0.9, 1.0])
    assert found.tolist() == [[2, 0, 1], [2, -1, 1], [2, -1, 1], [2, -1, -1]]
    with_certainty = pseudo_labels(100 * logits, train_labels, [1.0] * 4)
    assert with_certainty[0].tolist() == [2, -1, -1]  # not even a guess that rounds to one


def test_shares_are_probabilities_and_certain_on_train_nodes():
    logits = torch.tensor([[[1.0, 3.0], [0.5, 0.5], [2.0, 0.0]]])
    shares = class_shares(logits, np.array([[-1, -1, 1]]))
    sure = math.exp(3) / (math.exp(1) + math.exp(3))
    np.testing.assert_allclose(shares, [[[1 - sure, sure], [0.5, 0.5], [0, 1]]], rtol=1e-6)


def test_the_shares_of_an_uncertain_node_are_zero_and_of_a_train_node_never():
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 5.0, 0.0]]).expand(4, 3, 3)
    train_labels = np.full((4, 3), -1)
    train_labels[:, 0] = 2
    confidence = [0.0, 0.5, 0.9, 1.0]
    found = class_shares(logits, train_labels, confidence)
    sums = found.sum(axis=-1).round(5).tolist()
    assert sums == [[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 0]]
    plain = class_shares(logits, train_labels)
    for r, labels in enumerate(pseudo_labels(logits, train_labels, confidence)):
        for node, label in enumerate(labels):
            wanted = plain[r, node] if label >= 0 else np.zeros(3)
            np.testing.assert_array_equal(found[r, node], wanted)


def test_the_estimator_learns_a_separable_problem(small_graph):
    task = task_of(small_graph, (0, 1), estimator_lr=0.05)
    parameters = trained(task).done["estimator"]
    guesses = estimator_logits(task, parameters).argmax(dim=-1).numpy()
    assert np.array_equal(guesses, np.stack([small_graph.y, small_graph.y]))
    assert np.array_equal(compute_pseudo_labels(task, parameters), guesses)


def test_pseudo_labels_do_not_depend_on_test_labels(small_graph):
    test = small_graph.split(0).test
    y = np.where(test, (small_graph.y + 1) % 3, small_graph.y)
    other = Graph(small_graph.x, small_graph.edge_index, y).with_splits(small_graph.splits)
    tasks = [task_of(graph) for graph in (small_graph, other)]
    first, second = (trained(task).done["estimator"] for task in tasks)
    for name, value in first.items():
        assert torch.equal(value, second[name])
    labels = compute_pseudo_labels(tasks[0], first)
    np.testing.assert_array_equal(compute_pseudo_labels(tasks[1], second), labels)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_logits_are_those_of_a_plain_mlp_without_dropout(small_graph, layers):
    task = task_of(small_graph, (0, 1), estimator_layers=layers, estimator_dropout=0.5)
    model = estimator_stage(task, {}).model
    initialise(model, task.keys("estimator"))
    parameters = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    names = ["encode.first", *(f"encode.rest.layers.{n}" for n in range(layers - 1))]
    found = estimator_logits(task, parameters)
    for r in range(2):
        hidden = torch.from_numpy(small_graph.x)
        for number, name in enumerate(names):
            hidden = hidden.relu() if number else hidden
            hidden = hidden @ parameters[f"{name}.weight"][r] + parameters[f"{name}.bias"][r]
        torch.testing.assert_close(found[r], hidden)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("scaling", ["raw", "fraction", "unit"])
def test_the_estimator_reads_the_attributes_as_scaled(small_graph, scaling, make):
    graph = Graph(make(small_graph.x), small_graph.edge_index, small_graph.y)
    task = task_of(graph.with_splits(small_graph.splits), attributes_scaling=scaling)
    x = small_graph.x
    divisor = {
        "raw": 1.0,
        "fraction": np.abs(x).sum(axis=1, keepdims=True),
        "unit": np.linalg.norm(x, axis=1, keepdims=True),
    }[scaling]
    rows = estimator_stage(task, {}).inputs["attributes"].rows(torch.arange(18))
    torch.testing.assert_close(rows, torch.from_numpy(x / divisor).float())


def test_the_stage_has_the_estimators_own_settings(small_graph):
    stage = estimator_stage(
        task_of(
            small_graph,
            estimator_lr=0.5,
            estimator_weight_decay=0.25,
            estimator_epochs=9,
            estimator_patience=4,
            lr=0.1,
            epochs=77,
        ),
        {},
    )
    assert (stage.lr, stage.weight_decay) == ([0.5], [0.25])
    assert (stage.epochs, stage.patience) == (9, 4)
    assert not stage.needs_all_nodes


def test_estimator_dropout_changes_training_but_not_evaluation(small_graph):
    states = [trained(task_of(small_graph, estimator_dropout=rate)) for rate in (0.0, 0.5)]
    losses = [state.history["estimator"]["loss"] for state in states]
    assert (losses[0] != losses[1]).all()
    task = task_of(small_graph, estimator_dropout=0.5)
    first = estimator_logits(task, states[1].done["estimator"])
    assert torch.equal(first, estimator_logits(task, states[1].done["estimator"]))
