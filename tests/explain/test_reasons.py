"""The main reason of several nodes is that of their explanations."""

import numpy as np
import pytest

from hpgmn.explain.descriptions import describe_statistic
from hpgmn.explain.node import explain_node
from hpgmn.explain.reasons import main_reasons
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
                assert reason == describe_statistic(best)
            else:
                column = max(found.column_effects, key=lambda effect: effect.effect)
                assert reason == str(column)
            kinds.add(best)
    assert "attributes" in kinds
    assert (len(kinds) > 1) == (len(names) > 1)
