"""A graph as statistics see it: edge types are those of the training graph."""

import numpy as np
import pytest

from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph
from hpgmn.statistics.source import Source


def test_types_of_another_graph_are_matched_by_name(small_graph, typed):
    graph = typed(small_graph)
    x, edges = graph.x, graph.edge_index
    types = np.array([1, 2, 0])[graph.edge_type]  # card is 1, cash is 2, wire is 0
    other = Graph(x, edges, edge_type=types, edge_type_names=["wire", "card", "barter"])
    statistics = Source(other, edge_type_names=["card", "other", "wire"])
    for number in range(3):
        found = statistics.adjacency(f"out:{number}").toarray()
        np.testing.assert_array_equal(found, graph.adjacency("out", number).toarray())
    with pytest.raises(GraphError, match=r"type 'barter', but .* trained on 'card', 'wire'"):
        Source(other, edge_type_names=["card", "wire"]).adjacency("out:0")
    with pytest.raises(GraphError, match="have no types"):
        Source(small_graph, edge_type_names=["card"]).adjacency("out:0")
    many = Graph(x, edges, edge_type=np.arange(graph.num_listed_edges) % 10)
    with pytest.raises(GraphError, match="Rare edge types of graph 'graph' are merged"):
        Source(many, edge_type_names=[*"9876543", "other"]).adjacency("out:0")
