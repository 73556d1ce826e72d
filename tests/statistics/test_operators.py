"""The forms of a statistic: products, rows and gradients against explicit dense matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpgmn.sparse import SparseMatrix
from hpgmn.statistics.operators import (
    DenseRows,
    Grouped,
    Reindexed,
    ReplicaRows,
    SparseRows,
    Statistic,
    apart,
    side_by_side,
    take_nodes,
    with_columns,
)

sizes = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16))


def random_matrices(replicas: int, height: int, width: int, seed: int) -> np.ndarray:
    """(R, N, width) float32 with about half of the entries zero."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(replicas, height, width))
    values *= random.random(values.shape) < 0.5
    return values.astype(np.float32)


def dense(matrix: np.ndarray) -> DenseRows:
    return DenseRows(torch.from_numpy(matrix))


def sparse(matrix: np.ndarray) -> SparseRows:
    return SparseRows(SparseMatrix(sp.csr_array(matrix)))


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", [dense, sparse])
@given(size=sizes)
def test_shared_rows_act_like_their_matrix(
    form: Callable[[np.ndarray], Statistic],
    assert_acts_like: Callable[..., None],
    size: tuple[int, int, int, int],
) -> None:
    matrix = random_matrices(1, *size[1:])[0]
    assert_acts_like(form(matrix), np.stack([matrix] * size[0]))


@pytest.mark.parametrize("form", [dense, sparse])
def test_rows_without_entries_act_like_zeros(
    form: Callable[[np.ndarray], Statistic], assert_acts_like: Callable[..., None]
) -> None:
    matrix = np.zeros((3, 4), np.float32)
    assert_acts_like(form(matrix), np.stack([matrix] * 2), rtol=0, atol=0)


@given(size=sizes)
def test_replica_rows_act_like_each_replicas_matrix(
    assert_acts_like: Callable[..., None], size: tuple[int, int, int, int]
) -> None:
    matrices = random_matrices(*size)
    assert_acts_like(ReplicaRows(torch.from_numpy(matrices)), matrices)


@given(size=sizes)
def test_half_precision_rows_act_like_what_they_hold(
    assert_acts_like: Callable[..., None], size: tuple[int, int, int, int]
) -> None:
    matrices = random_matrices(*size).astype(np.float16)
    assert_acts_like(ReplicaRows(torch.from_numpy(matrices)), matrices)
    assert_acts_like(dense(matrices[0]), np.stack([matrices[0]] * size[0]))


@pytest.mark.parametrize("form", [dense, sparse])
@given(size=sizes, old=st.integers(1, 7), data=st.data())
def test_reindexed_columns_are_those_of_the_old_graph(
    form: Callable[[np.ndarray], Statistic],
    assert_acts_like: Callable[..., None],
    size: tuple[int, int, int, int],
    old: int,
    data: st.DataObject,
) -> None:
    replicas, new, _, seed = size
    matrix = random_matrices(1, new, new, seed)[0]
    places = data.draw(st.permutations(range(max(old, new))))[:new]
    columns = [place if place < old else -1 for place in places]
    expected = np.zeros((new, old))
    for node in range(new):
        for neighbor in range(new):
            if columns[neighbor] >= 0:
                expected[node, columns[neighbor]] = matrix[node, neighbor]
    found = Reindexed(form(matrix), torch.tensor(columns), old)
    assert_acts_like(found, np.stack([expected] * replicas))


def test_reindexed_nodes_that_are_all_new_have_zero_rows(
    assert_acts_like: Callable[..., None],
) -> None:
    found = Reindexed(dense(np.ones((2, 2), np.float32)), torch.tensor([-1, -1]), 3)
    assert_acts_like(found, np.zeros((1, 2, 3)), rtol=0, atol=0)


@given(size=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**16)), data=st.data())
def test_grouped_statistics_serve_each_replica_with_its_own(
    assert_acts_like: Callable[..., None], size: tuple[int, int, int], data: st.DataObject
) -> None:
    """Groups of unlike forms, their replicas in any order among each other."""
    counts = data.draw(st.tuples(*[st.integers(1, 2)] * 3))
    replicas = sum(counts)
    order = data.draw(st.permutations(range(replicas)))
    groups = [
        order[: counts[0]],
        order[counts[0] : counts[0] + counts[1]],
        order[counts[0] + counts[1] :],
    ]
    matrices = random_matrices(replicas, *size)
    for shared in groups[:2]:
        matrices[shared] = matrices[shared[0]]
    members: list[tuple[Statistic, list[int]]] = [
        (dense(matrices[groups[0][0]]), groups[0]),
        (sparse(matrices[groups[1][0]]), groups[1]),
        (ReplicaRows(torch.from_numpy(matrices[groups[2]])), groups[2]),
    ]
    assert_acts_like(Grouped(members), matrices)


def test_grouped_statistics_refuse_a_replica_they_do_not_serve() -> None:
    grouped = Grouped([(dense(np.ones((2, 2), np.float32)), [0])])
    with pytest.raises(IndexError):
        grouped.rows(torch.tensor([0]), 1)


@pytest.mark.parametrize("form", [dense, sparse])
def test_a_lost_replica_does_not_spoil_the_others(
    form: Callable[[np.ndarray], Statistic],
) -> None:
    statistic = form(random_matrices(1, 5, 4, 0)[0])
    weight = random_tensor(3, 4, 2)
    alone = statistic.times(weight[:1])
    weight[1:] = float("nan")
    torch.testing.assert_close(statistic.times(weight)[:1], alone)


@given(sizes)
def test_replicas_beside_each_other_come_apart_again(size: tuple[int, int, int, int]) -> None:
    replicas, width, dim, _ = size
    weight = random_tensor(replicas, width, dim)
    wide = side_by_side(weight)
    for replica in range(replicas):
        assert torch.equal(wide[:, replica * dim : (replica + 1) * dim], weight[replica])
    assert torch.equal(apart(wide, replicas), weight)


def test_take_nodes_takes_each_replicas_own_rows() -> None:
    values = random_tensor(2, 4, 3)
    nodes = torch.tensor([[3, 0, 3], [1, 2, 2]])
    found = take_nodes(values, nodes)
    for replica in range(2):
        for place in range(3):
            assert torch.equal(found[replica, place], values[replica, nodes[replica, place]])
    assert take_nodes(values, None) is values


def test_with_columns_scales_the_rows_of_each_weight() -> None:
    weight = random_tensor(2, 3, 4)
    columns = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.5]])
    found = with_columns(weight, columns)
    for replica in range(2):
        assert torch.equal(found[replica], torch.diag(columns[replica]) @ weight[replica])
    assert with_columns(weight, None) is weight
