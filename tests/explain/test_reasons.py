"""The main reason of several nodes is that of their explanations."""

import numpy as np
import pytest

from hpgmn.explain.descriptions import describe_statistic
from hpgmn.explain.node import explain_node
from hpgmn.explain.reasons import main_reason, main_reasons
from hpgmn.explain.replicas import mean_probabilities, open_replicas


@pytest.mark.parametrize("names", [("attributes", "class_counts", "class_means"), ("attributes",)])
def test_the_reason_is_the_largest_share_or_its_column(small_graph, fit, names):
    saved = fit(small_graph, statistics=names)
    predicted = mean_probabilities(open_replicas(saved, small_graph)).argmax(axis=1)
    kinds = set()
    for label in range(3):
        nodes = np.flatnonzero(predicted == label)[::-1].copy()
        if not nodes.size:
            continue
        for node, reason in zip(nodes, main_reasons(saved, small_graph, nodes, label), strict=True):
            found = explain_node(saved, small_graph, node)
            best = max(found.statistics, key=found.statistics.get)
            if found.statistics[best] <= 0:
                assert reason is None
            elif best != "attributes":
                assert reason == describe_statistic(best) or "neighbours of class " in reason
            else:
                column = max(found.column_effects, key=lambda effect: effect.effect)
                assert reason == f"{column} ({column.effect:+.2f})"
            assert (reason or "") == found.main_reason
            kinds.add(best)
    assert "attributes" in kinds
    assert (len(kinds) > 1) == (len(names) > 1)


def test_the_class_of_neighbours_is_named_with_its_direction(small_graph, fit):
    saved = fit(small_graph, statistics=("class_counts",), neighbors="both")
    [replica] = open_replicas(saved, small_graph)
    labels, names = replica.labels, saved.class_names
    usual = np.bincount(labels, minlength=len(names)) / labels.size
    for node in range(small_graph.num_nodes):
        found = explain_node(saved, small_graph, node).main_reason
        gains = {}
        for mode in ("out", "in"):
            near = labels[small_graph.adjacency(mode)[[node]].indices]
            for label, name in enumerate(names):
                if near.size:
                    gain = (near == label).mean() - usual[label]
                    gains[f"neighbours of class {name} ({mode})"] = gain
        if found and gains:
            assert gains[found] == pytest.approx(max(gains.values()))


@pytest.mark.parametrize("model", ["boosting", "mlp", "gcn"])
def test_other_models_have_reasons_too(small_graph, fit, model):
    saved = fit(small_graph, model)
    predicted = saved.mean_probabilities(small_graph).argmax(dim=-1).numpy()
    nodes = np.flatnonzero(predicted == predicted[0])[:4]
    for node, reason in zip(
        nodes, main_reasons(saved, small_graph, nodes, int(predicted[0])), strict=True
    ):
        if model == "gcn":  # would take a pass over the graph for each column
            assert reason is None
        else:
            assert (reason or "") == explain_node(saved, small_graph, node).main_reason


def test_the_column_of_trees_belongs_to_the_largest_statistic(small_graph, fit):
    replicas = open_replicas(fit(small_graph, "boosting"), small_graph)
    columns = replicas[0].columns
    own = next(column.name for column in columns if column.statistic == "attributes")
    near = next(column.name for column in columns if column.statistic == "class_counts")
    values = {column.name: 0.0 for column in columns} | {own: 0.9, near: 0.5}
    shares = {"attributes": 0.4, "class_counts": 0.5}
    assert main_reason(replicas, 0, 0, ("0", "1", "2"), shares, values) == near
