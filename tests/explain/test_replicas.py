"""A model taken apart answers what the whole one answers."""

from collections.abc import Callable
from copy import copy

import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.explain.replicas import mean_probabilities, memory_head, open_replicas
from hpgmn.graph import Array, Graph
from hpgmn.models.hpgmn import estimator_logits
from hpgmn.training.saved import SavedModel

Fit = Callable[..., SavedModel]
Predicted = Callable[[SavedModel, Graph], Array]


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("hpgmn", {}),
        ("hpgmn", {"batch_size": 4}),
        ("hpgmn", {"refinement": True, "epochs": 3}),
        ("hpgmn", {"memory": False}),
        ("hpgmn-gcn", {}),
        ("hpgmn-appnp", {}),
        ("gcn", {}),
        ("mlp", {}),
    ],
)
def test_probabilities_are_those_of_prediction(small_graph, fit, predicted, model, changes):
    saved = fit(small_graph, model, seeds=2, **changes)
    opened = open_replicas(saved, small_graph)
    expected = predicted(saved, small_graph)
    np.testing.assert_allclose(mean_probabilities(opened), expected, atol=1e-6)
    answered = saved.mean_probabilities(small_graph).numpy()
    np.testing.assert_allclose(mean_probabilities(opened), answered, atol=1e-6)
    has_memory = model.startswith("hpgmn") and changes.get("memory", True)
    assert all((one.attention is not None) == has_memory for one in opened)
    for one in opened:
        assert one.reads_statistics == (model == "hpgmn")
        if one.attention is not None:
            torch.testing.assert_close(one.attention.sum(dim=1), torch.ones(18))
        if (head := memory_head(one.stage.model)) is not None:
            query = one.queries(np.arange(18))
            with torch.no_grad():
                classified = _classified(head, query)
            torch.testing.assert_close(classified, one.logits, atol=1e-5, rtol=1e-5)


def _classified(head, query):
    """Memory and classifier on queries, by the formulas of the paper."""
    joined = query
    if head.memory is not None:
        patterns = head.memory.patterns[0]
        joined = torch.cat([query, (query @ patterns.T).softmax(dim=1) @ patterns], dim=1)
    [layer] = head.classify.layers
    found: torch.Tensor = joined.relu() @ layer.weight[0] + layer.bias[0]
    return found


def test_queries_are_mapped_where_the_memory_is_narrower(small_graph, fit):
    opened = open_replicas(fit(small_graph, memory_dim=3), small_graph)[0]
    assert opened.queries(np.array([2, 5])).shape == (2, 3)
    assert opened.encodings(np.array([2, 5])).shape == (2, 7 * 6)


def test_labels_are_train_labels_and_the_guesses_behind_the_statistics(small_graph, fit):
    saved = fit(small_graph)
    opened = open_replicas(saved, small_graph)[0]
    train = small_graph.split(0).train
    guessed = estimator_logits(opened.task, saved.done["estimator"])[0].argmax(dim=-1).numpy()
    np.testing.assert_array_equal(opened.labels, np.where(train, small_graph.y, guessed))
    assert opened.shares is None
    refined = open_replicas(fit(small_graph, refinement=True, soft_counts=True), small_graph)[0]
    assert refined.shares is not None
    np.testing.assert_allclose(refined.shares.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(refined.shares[train].argmax(axis=1), small_graph.y[train])
    gcn = fit(small_graph, "gcn")
    answers = gcn.logits(small_graph)[0].argmax(dim=-1).numpy()
    labels = open_replicas(gcn, small_graph)[0].labels
    np.testing.assert_array_equal(labels, np.where(train, small_graph.y, answers))


def test_the_baseline_without_train_nodes_is_the_mean_of_all(small_graph, fit):
    saved = fit(small_graph, statistics=("attributes", "class_counts"))
    train = np.flatnonzero(small_graph.split(0).train)
    here = open_replicas(saved, small_graph)[0]
    torch.testing.assert_close(here.baseline, here.encodings(train).mean(dim=0))
    other = Graph(small_graph.x[:9], [[0, 1], [1, 2]], name="other")
    there = open_replicas(saved, other)[0]
    torch.testing.assert_close(there.baseline, there.encodings(np.arange(9)).mean(dim=0))


def test_modes_are_those_the_statistics_read(small_graph, fit):
    both = fit(small_graph, neighbors="both", statistics=("attributes", "class_counts"))
    opened = open_replicas(both, small_graph)[0]
    assert opened.modes == {"class_counts_out": "out", "class_counts_in": "in"}
    assert opened.neighbor_modes == ["out", "in"]
    alone = open_replicas(fit(small_graph, statistics=("attributes",)), small_graph)[0]
    assert alone.modes == {}
    assert open_replicas(fit(small_graph, "mlp"), small_graph)[0].neighbor_modes == ["undirected"]


def test_probabilities_that_are_not_numbers_are_refused(small_graph, fit):
    saved = copy(fit(small_graph, "mlp", seeds=2))  # without cached results
    for parameters in saved.done.values():
        for value in parameters.values():
            value[1] = torch.nan  # one seed is enough to spoil the mean
    with pytest.raises(HPGMNError, match="finite"):
        open_replicas(saved, small_graph)
