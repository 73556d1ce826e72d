"""A trained model on a graph: what is computed once, chosen and refused."""

import copy

import numpy as np
import pytest
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.models import MODELS
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.models.stage import Replica
from hpgmn.training.on_graph import require_finite
from hpgmn.training.replicas import fit_replicas
from hpgmn.training.saved import SavedModel

TINY = HPGMNSettings(hidden_dim=4, num_patterns=3, estimator_hidden=4, estimator_epochs=3, epochs=3)


def test_a_fitted_model_holds_statistics_and_outputs(small_graph):
    splits = [small_graph.split(0), small_graph.split(1)]
    replicas = [Replica(0, 5, TINY), Replica(1, 6, TINY)]
    masks = [(split.train, split.val) for split in splits]
    fitted = fit_replicas(small_graph, MODELS["hpgmn"], replicas, masks)
    model = SavedModel.of(MODELS["hpgmn"], fitted, small_graph, [split.train for split in splits])
    on_graph = model.on_graph(small_graph)
    assert model.on_graph(small_graph) is on_graph
    assert on_graph.task.statistics is fitted.statistics
    assert on_graph.logits is fitted.logits
    assert on_graph.estimator_logits is on_graph.estimator_logits
    second = model.choose([1])
    assert second.on_graph(small_graph).task.statistics is fitted.statistics
    assert torch.equal(second.logits(small_graph), fitted.logits[1:])
    other = Graph(small_graph.x, small_graph.edge_index, small_graph.y)
    assert model.on_graph(other) is not on_graph
    assert copy.deepcopy(model)._latest is None
    model.release()
    assert model._latest is None
    assert torch.equal(model.logits(small_graph), fitted.logits)


def test_outputs_that_are_not_finite_name_the_first_node(small_graph):
    logits = torch.zeros(2, 18, 3)
    require_finite(logits, small_graph)
    logits[1, 4, 0] = float("nan")
    with pytest.raises(HPGMNError, match=r"1 of 18 nodes .* the first '4'"):
        require_finite(logits, small_graph)
    with pytest.raises(HPGMNError, match=r"1 of 2 nodes .* the first '9'"):
        require_finite(logits[:, 3:5], small_graph, np.array([3, 9]))
