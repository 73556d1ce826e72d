import numpy as np

from hpgmn import Graph
from hpgmn.graph.content import graph_content, search_content, shard_content


def split_graph():
    masks = np.eye(4, dtype=bool)
    return Graph(
        np.arange(8.0).reshape(4, 2),
        [[0, 1, 2], [1, 2, 3]],
        [0, 1, 1, 0],
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )


def test_stored_content_digests_stay():
    graph = split_graph()
    assert graph_content(graph, [0])[:16] == "73791d923ec3c050"
    assert search_content(graph, [0])[:16] == "e9c78337adfbd73b"
    assert shard_content(graph)[:16] == "1a7ed1f1f7049838"


def test_a_search_does_not_see_test_labels():
    graph, other = split_graph(), split_graph()
    other.y[2] = 0
    assert search_content(graph, [0]) == search_content(other, [0])
    assert graph_content(graph, [0]) != graph_content(other, [0])
