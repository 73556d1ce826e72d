"""Small trained models to take apart."""

from typing import Any

import numpy as np
import pytest

TINY: dict[str, Any] = {
    "hidden_dim": 6,
    "num_patterns": 5,
    "estimator_hidden": 6,
    "epochs": 8,
    "patience": 0,
    "estimator_epochs": 5,
    "estimator_patience": 0,
    "lr": 0.05,
}


@pytest.fixture
def fit():
    """Trains HP-GMN, or another model, shortly on split 0 and calibrates it; with some seeds."""
    from hpgmn.base.settings import make_settings
    from hpgmn.models import find_model
    from hpgmn.models.stage import Replica
    from hpgmn.training.replicas import fit_replicas
    from hpgmn.training.saved import SavedModel

    def trained(graph, model="hpgmn", seeds=1, **changes):
        entry = find_model(model)
        known = {info for info in TINY if info in entry.settings.__dataclass_fields__}
        values = {name: TINY[name] for name in known} | changes
        settings = make_settings(entry.settings, values)
        split = graph.split(0)
        replicas = [Replica(0, seed, settings) for seed in range(seeds)]
        fitted = fit_replicas(graph, entry, replicas, [(split.train, split.val)] * seeds)
        masks = [split.train] * seeds, [split.val] * seeds
        return SavedModel.of(entry, fitted, graph, *masks)

    return trained


@pytest.fixture
def predicted():
    """What prediction answers: probabilities averaged over seeds, then sharpened or softened."""

    def mean_probabilities(saved, graph):
        mean = saved.logits(graph).double().softmax(dim=-1).mean(dim=0).numpy()
        [temperature] = set(1 / saved.mean_calibration[:, 0, 0])
        assert abs(temperature - 1) > 0.05, "a temperature that would not be missed"
        powers = mean ** (1 / temperature)
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    return mean_probabilities


@pytest.fixture
def statistic_shares():
    """Compute the Shapley value of each statistic, by name, for a class of each node."""
    from hpgmn.explain.replicas import players, shapley_values, subset_values

    def shares(replicas, nodes, labels):
        names = players(replicas[0])
        values = subset_values(replicas, np.array(nodes), np.array(labels))
        return [dict(zip(names, shapley_values(row), strict=True)) for row in values]

    return shares


@pytest.fixture
def named_graph(small_graph):
    """The small graph with names for its nodes and classes, and weights on its edges."""
    from hpgmn.graph import Graph

    assert small_graph.splits is not None
    masks = {f"{part}_mask": getattr(small_graph.splits, part) for part in ("train", "val", "test")}
    count = small_graph.edge_index.shape[1]
    return Graph(
        small_graph.x,
        small_graph.edge_index,
        small_graph.y,
        edge_weight=np.linspace(0.5, 2, count),
        node_ids=[f"account-{v}" for v in range(small_graph.num_nodes)],
        class_names=["student", "faculty", "staff"],
        name="named",
        **masks,
    )
