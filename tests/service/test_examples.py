"""Example requests fit every kind of graph; those of tables are posted in ``test_app.py``."""

import numpy as np
import pytest

from hpgmn.graph import Graph
from hpgmn.service.examples import request_examples
from hpgmn.service.rows import RowReader


@pytest.mark.parametrize("has_names", [True, False])
@pytest.mark.parametrize("is_weighted", [True, False])
def test_examples_of_a_graph_without_tables_are_valid(has_names, is_weighted):
    graph = Graph(
        np.eye(4, 3, dtype=np.float32),
        np.array([[0, 1], [1, 2]]),
        np.array([0, 1, 0, -1]),
        edge_weight=np.array([1.0, 2.0]) if is_weighted else None,
        node_ids=["a", "b", "c", "d"],
        feature_names=["p", "q", "r"] if has_names else None,
    )
    examples = request_examples(graph)
    assert examples["/predict"]["known nodes"] == {"ids": ["a", "b"]}
    for path in ("/nodes", "/edges"):
        for body in examples[path].values():
            positions = {"a": 0, "b": 1, "c": 2, "d": 3}
            added = RowReader(graph).read(body.get("nodes", []), body["edges"], positions)
            assert len(added.ids) == len(body.get("nodes", []))
