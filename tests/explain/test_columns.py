"""Contributions of columns add up to the log-odds of the explained class."""

import numpy as np
import pytest

from hpgmn.explain import explain_model, explain_node
from hpgmn.explain.columns import column_contributions, column_statistics, sum_by_statistic
from hpgmn.explain.explanation import STATISTICS
from hpgmn.explain.replicas import open_replicas
from hpgmn.graph.graph import Graph
from hpgmn.graph.synthetic import trading_network


@pytest.fixture(scope="module")
def graph():
    return trading_network(num_nodes=120, seed=1).graph


def two_class_graph(graph):
    split = graph.split(0)
    masks = {f"{part}_mask": getattr(split, part) for part in ("train", "val", "test")}
    return Graph(graph.x, graph.edge_index, graph.y % 2, **masks)


@pytest.mark.parametrize("classes", ["many", "two"])
def test_columns_add_up_to_the_log_odds(fit, graph, classes):
    chosen = graph if classes == "many" else two_class_graph(graph)
    saved = fit(chosen, "boosting", seeds=2)
    replicas = open_replicas(saved, chosen)
    nodes = np.arange(chosen.num_nodes)
    logits = saved.logits(chosen).double().numpy()
    for label in range(chosen.num_classes):
        found = column_contributions(replicas, nodes, np.full(nodes.size, label))
        assert found.shape == (nodes.size, len(replicas[0].columns))
        others = np.delete(logits, label, axis=-1).mean(axis=-1)
        expected = (logits[..., label] - others).mean(axis=0)
        rest = expected - found.sum(axis=1)  # the mean of the train nodes
        np.testing.assert_allclose(rest, rest[0], atol=1e-5)
        shares = sum_by_statistic(replicas[0], found)
        np.testing.assert_allclose(shares.sum(axis=1), found.sum(axis=1))
        assert shares.shape[1] == len(column_statistics(replicas[0]))
    assert set(column_statistics(replicas[0])) <= STATISTICS.keys()


def test_a_node_is_explained_by_its_columns(fit, graph):
    saved = fit(graph, "boosting")
    explained = explain_node(saved, graph, 3)
    assert explained.baseline is None
    assert sum(explained.columns.values()) == pytest.approx(sum(explained.statistics.values()))
    values = list(explained.columns.values())
    assert values == sorted(values, reverse=True)
    assert max(explained.columns, key=lambda name: abs(explained.columns[name])) in str(explained)
    assert explained.as_dict()["columns"] == explained.columns
    near = graph.adjacency("undirected")[[3]].indices
    assert len(explained.neighbors) == near.size


def test_a_model_is_explained_by_the_sizes_of_contributions(fit, graph):
    saved = fit(graph, "boosting")
    explained = explain_model(saved, graph, sample=20)
    nodes = np.random.default_rng(0).choice(graph.num_nodes, 20, replace=False)
    replicas = open_replicas(saved, graph)
    labels = saved.logits(graph)[0].argmax(dim=-1).numpy()[nodes]
    shares = sum_by_statistic(replicas[0], column_contributions(replicas, nodes, labels))
    sizes = dict(zip(column_statistics(replicas[0]), np.abs(shares).mean(axis=0), strict=True))
    assert explained.statistics == pytest.approx(sizes)
    assert explained.sampled == 20


def test_other_models_have_no_columns(fit, graph):
    explained = explain_node(fit(graph, "mlp"), graph, 3)
    assert explained.columns == {}
    assert explained.statistics == {}
