"""Stored identities: the values of digests that files of earlier versions hold."""

import numpy as np
import scipy.sparse as sp

from hpgmn.base.digests import (
    array_digest,
    digest,
    graph_content,
    json_digest,
    search_content,
    shard_content,
)
from hpgmn.graph import Graph


def small():
    masks = np.eye(4, dtype=bool)
    return Graph(
        np.arange(8.0).reshape(4, 2),
        [[0, 1, 2], [1, 2, 3]],
        [0, 1, 1, 0],
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )


def test_stored_identities_stay():
    graph = small()
    assert graph_content(graph, [0])[:16] == "73791d923ec3c050"
    assert search_content(graph, [0])[:16] == "e9c78337adfbd73b"
    assert shard_content(graph)[:16] == "1a7ed1f1f7049838"
    assert json_digest({"b": 1, "a": [2]})[:16] == "41ff4104bc489a1b"
    assert digest("a", b"b", np.zeros(2).data)[:16] == "fdaf59ca221102b1"
    assert array_digest(np.arange(3, dtype=np.int32))[:16] == "52b7d6be1a9a7f93"
    assert array_digest(sp.csr_array(np.eye(2, dtype=np.float32)))[:16] == "6f19ff35b0cbdba4"


def test_a_search_does_not_see_test_labels():
    graph, other = small(), small()
    other.y[2] = 0
    assert search_content(graph, [0]) == search_content(other, [0])
    assert graph_content(graph, [0]) != graph_content(other, [0])
