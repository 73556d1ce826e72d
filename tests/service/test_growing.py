"""Growing arrays, and balls compared with breadth-first search."""

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import hpgmn
from hpgmn.service import growing
from hpgmn.service.growing import GrowingArray, GrowingGraph, SparseRows
from hpgmn.service.rows import RowReader


def test_arrays_grow_and_share_nothing_they_write(monkeypatch):
    monkeypatch.setattr(growing, "_SPARE", 1)
    values = np.arange(4.0).reshape(2, 2)
    rows = GrowingArray(values)
    for number in range(2, 20):
        rows.append(np.full((1, 2), number))
    assert rows.values.tolist() == [[0, 1], [2, 3], *([number] * 2 for number in range(2, 20))]
    assert rows.take(np.array([1, 3])).tolist() == [[2, 3], [3, 3]]
    assert values.tolist() == [[0, 1], [2, 3]]


def test_sparse_rows_grow():
    rows = SparseRows(sp.csr_array(np.eye(3)))
    rows.append(np.array([[1, 2, 3]]))
    rows.append(np.array([[7, 8, 9]]))
    whole = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 2, 3], [7, 8, 9]]
    assert rows.take(None).toarray().tolist() == whole
    assert rows.take(np.array([1, 4])).toarray().tolist() == [whole[1], whole[4]]


pairs = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20)


@given(pairs, pairs, st.sets(st.integers(0, 13), min_size=1, max_size=3), st.integers(0, 3))
def test_a_ball_is_what_a_search_reaches(old, new, seeds, radius):
    graph = hpgmn.Graph(
        np.ones((12, 1)), np.array(old, np.int64).reshape(-1, 2).T, node_ids=list(range(12))
    )
    grown = GrowingGraph(graph)
    nodes = [{"id": "12", "x[0]": 1}, {"id": "13", "x[0]": 1}]
    new = [*new, (13, 2), (12, 12)]
    positions = {name: number for number, name in enumerate(grown.ids)}
    rows = [{"source": source, "target": target} for source, target in new]
    grown.add(RowReader(graph).read(nodes, rows, positions))
    edges, distance = [*old, *new], dict.fromkeys(seeds, 0)
    for step in range(radius):
        for pair in edges:
            for node, other in (pair, pair[::-1]):
                if distance.get(node, radius) <= step:
                    distance.setdefault(other, step + 1)
    near = [
        number
        for number, pair in enumerate(edges)
        if min(distance.get(node, radius) for node in pair) < radius
    ]
    found = grown.ball(np.array(sorted(seeds)), radius, 100)
    assert found is not None
    assert (found[0].tolist(), found[1].tolist()) == (sorted(distance), near)
    assert len(distance) == 1 or radius == 0 or grown.ball(np.array(list(seeds)), radius, 0) is None
