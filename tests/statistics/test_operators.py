"""The forms of a statistic: products, rows and gradients against explicit dense matrices."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.sparse import SparseMatrix, block_diagonal
from hpgmn.statistics import operators
from hpgmn.statistics.operators import (
    DenseRows,
    Grouped,
    NeighborMean,
    Reindexed,
    ReplicaRows,
    SomeRows,
    SparseReplicaRows,
    SparseRows,
    Statistic,
    is_shared,
    join_replicas,
    reindex,
    split_replicas,
    take_nodes,
    with_columns,
)

sizes = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16))


def random_matrices(replicas, height, width, seed):
    """(R, N, width) float32 with about half of the entries zero."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(replicas, height, width))
    values *= random.random(values.shape) < 0.5
    return values.astype(np.float32)


def dense(matrix):
    return DenseRows(torch.from_numpy(matrix))


def sparse(matrix):
    return SparseRows(SparseMatrix(sp.csr_array(matrix)))


def sparse_apart(matrices):
    blocks = block_diagonal([sp.csr_array(matrix) for matrix in matrices])
    return SparseReplicaRows(SparseMatrix(blocks), len(matrices))


def random_tensor(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", [dense, sparse])
@given(size=sizes)
def test_shared_rows_act_like_their_matrix(form, assert_acts_like, size):
    matrix = random_matrices(1, *size[1:])[0]
    assert_acts_like(form(matrix), np.stack([matrix] * size[0]))


@pytest.mark.parametrize("form", [dense, sparse])
def test_rows_without_entries_act_like_zeros(form, assert_acts_like):
    matrix = np.zeros((3, 4), np.float32)
    assert_acts_like(form(matrix), np.stack([matrix] * 2), rtol=0, atol=0)


@given(size=sizes)
def test_replica_rows_act_like_each_replicas_matrix(assert_acts_like, size):
    matrices = random_matrices(*size)
    assert_acts_like(ReplicaRows(torch.from_numpy(matrices)), matrices)


@given(size=sizes)
def test_sparse_replica_rows_act_like_each_replicas_matrix(assert_acts_like, size):
    matrices = random_matrices(*size)
    assert_acts_like(sparse_apart(matrices), matrices)


@pytest.mark.slow
@pytest.mark.parametrize("form", [dense, sparse, ReplicaRows, sparse_apart])
@given(size=sizes)
def test_a_mean_over_neighbours_acts_like_the_product_of_both_matrices(
    form, assert_acts_like, size
):
    replicas, height, width, seed = size
    own = random_matrices(replicas, height, width, seed)
    spread = np.abs(random_matrices(1, height, height, seed + 1)[0])
    if form in (dense, sparse):
        own = np.stack([own[0]] * replicas)
        inner = form(own[0])
    else:
        inner = form(torch.from_numpy(own) if form is ReplicaRows else own)
    statistic = NeighborMean(inner, SparseMatrix(sp.csr_array(spread)))
    assert_acts_like(statistic, spread @ own, rtol=1e-4, atol=1e-5)


@given(size=sizes)
def test_rows_that_are_multiplied_whole_on_a_gpu_act_alike(assert_acts_like, size):
    """A GPU takes rows out of the product where many are asked for; here all devices do."""
    matrices = random_matrices(*size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "_is_worth_slicing", lambda *_: False)
        assert_acts_like(sparse_apart(matrices), matrices)
        assert_acts_like(sparse(matrices[0]), np.stack([matrices[0]] * size[0]))


@pytest.mark.parametrize(("device", "sliced"), [("cpu", True), ("cuda", False)])
def test_a_gpu_slices_only_where_few_rows_are_asked_for(device, sliced):
    matrix = SparseMatrix(sp.csr_array((160, 3), dtype=np.float32), device)
    many, few = torch.zeros(2, 10), torch.zeros(2, 9)
    assert operators._is_worth_slicing(matrix, 160, many) is sliced
    assert operators._is_worth_slicing(matrix, 160, few)


@given(size=sizes)
def test_some_rows_of_any_statistic_act_like_those_rows(assert_acts_like, size):
    matrices = random_matrices(*size)
    nodes = torch.randint(size[1], (size[0], 4), generator=torch.Generator().manual_seed(2))
    found = SomeRows(ReplicaRows(torch.from_numpy(matrices)), nodes)
    assert_acts_like(found, matrices[np.arange(size[0])[:, None], nodes])


@pytest.mark.parametrize("replicas", [1, 3])
def test_some_rows_take_what_these_rows_take(replicas):
    """No form keeps or computes more than the rows asked for."""
    matrices = random_matrices(replicas, 40, 7, seed=0)
    nodes = torch.randint(40, (replicas, 5), generator=torch.Generator().manual_seed(0))
    entries = sum(np.count_nonzero(matrices[0][node]) for own in nodes.tolist() for node in own)
    rows = dense(matrices[0]).some(nodes)
    assert isinstance(rows, ReplicaRows)
    assert rows.matrices.shape == (replicas, 5, 7)
    sliced = sparse(matrices[0]).some(nodes)
    assert isinstance(sliced, SparseReplicaRows)
    assert sliced.matrix.host.nnz == entries
    half = ReplicaRows(torch.from_numpy(matrices).half()).some(nodes)
    assert isinstance(half, ReplicaRows)
    assert half.matrices.dtype == torch.float16
    assert half.matrices.shape == (replicas, 5, 7)


def test_one_list_of_nodes_for_all_replicas_is_read_once():
    matrix = random_matrices(1, 6, 4, seed=0)[0]
    nodes = torch.tensor([[5, 0, 5]]).expand(3, -1)
    assert is_shared(nodes)
    assert not is_shared(nodes.contiguous())
    assert not is_shared(nodes[:1])
    rows, sliced = dense(matrix).some(nodes), sparse(matrix).some(nodes)
    assert isinstance(rows, DenseRows)
    assert isinstance(sliced, SparseRows)
    grouped = Grouped([(dense(matrix), [2, 0]), (sparse(matrix), [1])]).some(nodes)
    assert isinstance(grouped, Grouped)
    assert isinstance(grouped.members[0][0], DenseRows)


def test_taking_some_rows_leaves_the_statistic_alone():
    """Another thread may be in the middle of a product: not even what is kept for later changes."""
    matrices = random_matrices(2, 6, 4, seed=0)
    nodes = torch.tensor([[5, 0, 5], [1, 2, 3]])
    for statistic in (sparse(matrices[0]), sparse_apart(matrices)):
        before = dict(statistic.matrix.__dict__)
        statistic.some(nodes)
        assert statistic.matrix.__dict__ == before


def test_some_rows_may_be_taken_in_one_thread_while_another_multiplies():
    matrices = random_matrices(2, 300, 40, seed=0)
    statistics = [dense(matrices[0]), sparse(matrices[0]), sparse_apart(matrices)]
    weight = random_tensor(2, 40, 3)
    batches = torch.randint(300, (60, 2, 16), generator=torch.Generator().manual_seed(0))
    for statistic in statistics:
        expected = [statistic.times(weight, nodes) for nodes in batches]
        with ThreadPoolExecutor(2) as pool:
            ahead = pool.map(statistic.some, batches)
            for some, nodes, exact in zip(ahead, batches, expected, strict=True):
                own = weight.clone().requires_grad_()
                statistic.times(own, nodes).sum().backward()
                torch.testing.assert_close(some.times(weight), exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_on_the_host_move_to_where_products_happen(dtype):
    """The device "meta" stands for a GPU: shapes and types, no values."""
    matrices = torch.from_numpy(random_matrices(2, 6, 4, seed=0)).to(dtype)
    nodes = torch.tensor([[5, 0, 5], [1, 2, 3]])
    weight = torch.empty(2, 4, 3, device="meta")
    for statistic in (DenseRows(matrices[0], "meta"), ReplicaRows(matrices, "meta")):
        some = statistic.some(nodes)
        assert isinstance(some, ReplicaRows)
        assert some.device.type == some.matrices.device.type == "meta"
        assert some.matrices.dtype == dtype
        assert some.times(weight).shape == (2, 3, 3)
        assert statistic.times(weight).shape == (2, 6, 3)
        assert statistic.times(weight, nodes).shape == (2, 3, 3)
        assert statistic.rows(nodes[0], 1).is_meta
    shared = DenseRows(matrices[0], "meta").some(nodes[:1].expand(2, -1))
    assert isinstance(shared, DenseRows)
    assert shared.matrix.is_meta


def test_rows_in_a_mapped_file_are_read_where_they_are(tmp_path, assert_acts_like):
    matrices = random_matrices(2, 6, 4, seed=0).astype(np.float16)
    np.save(tmp_path / "rows.npy", matrices)
    mapped = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c", allow_pickle=False))
    assert_acts_like(ReplicaRows(mapped), matrices)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_some_rows_are_alike_on_a_gpu():
    matrices = random_matrices(2, 300, 40, seed=0)
    rows = torch.from_numpy(matrices)
    shared = SparseMatrix(sp.csr_array(matrices[0]), "cuda")
    pairs: list[tuple[Statistic, Statistic]] = [
        (DenseRows(rows[0]), DenseRows(rows[0], "cuda")),
        (ReplicaRows(rows.half()), ReplicaRows(rows.half(), "cuda")),
        (ReplicaRows(rows), ReplicaRows(rows.cuda())),
        (sparse(matrices[0]), SparseRows(shared)),
    ]
    nodes = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(0))
    columns = torch.rand(2, 40, generator=torch.Generator().manual_seed(1))
    for host, device in pairs:
        found = []
        for statistic, place in ((host, "cpu"), (device, "cuda")):
            weight = random_tensor(2, 40, 3).to(place).requires_grad_()
            product = statistic.some(nodes).times(weight, None, columns.to(place))
            product.square().sum().backward()
            found.append((product.cpu(), weight.grad.cpu()))
        torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


@given(size=sizes)
def test_half_precision_rows_act_like_what_they_hold(assert_acts_like, size):
    matrices = random_matrices(*size).astype(np.float16)
    assert_acts_like(ReplicaRows(torch.from_numpy(matrices)), matrices)
    assert_acts_like(dense(matrices[0]), np.stack([matrices[0]] * size[0]))


@pytest.mark.slow
@pytest.mark.parametrize("form", [dense, sparse])
@given(size=sizes, old=st.integers(1, 7), data=st.data())
def test_reindexed_columns_are_those_of_the_old_graph(form, assert_acts_like, size, old, data):
    replicas, new, _, seed = size
    matrix = random_matrices(1, new, new, seed)[0]
    places = data.draw(st.permutations(range(max(old, new))))[:new]
    columns = [place if place < old else -1 for place in places]
    expected = np.zeros((new, old))
    for node in range(new):
        for neighbor in range(new):
            if columns[neighbor] >= 0:
                expected[node, columns[neighbor]] = matrix[node, neighbor]
    for kind in (Reindexed, reindex):
        found = kind(form(matrix), torch.tensor(columns), old)
        assert isinstance(found, SparseRows if (kind, form) == (reindex, sparse) else Reindexed)
        assert_acts_like(found, np.stack([expected] * replicas))


def test_reindexed_nodes_that_are_all_new_have_zero_rows(assert_acts_like):
    found = Reindexed(dense(np.ones((2, 2), np.float32)), torch.tensor([-1, -1]), 3)
    assert_acts_like(found, np.zeros((1, 2, 3)), rtol=0, atol=0)


@given(size=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**16)), data=st.data())
def test_grouped_statistics_serve_each_replica_with_its_own(assert_acts_like, size, data):
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


def test_grouped_statistics_refuse_a_replica_they_do_not_serve():
    grouped = Grouped([(dense(np.ones((2, 2), np.float32)), [0])])
    with pytest.raises(IndexError):
        grouped.rows(torch.tensor([0]), 1)


@pytest.mark.parametrize("form", [dense, sparse])
def test_a_lost_replica_does_not_spoil_the_others(form):
    statistic = form(random_matrices(1, 5, 4, 0)[0])
    weight = random_tensor(3, 4, 2)
    alone = statistic.times(weight[:1])
    weight[1:] = float("nan")
    torch.testing.assert_close(statistic.times(weight)[:1], alone)


@given(sizes)
def test_replicas_beside_each_other_come_apart_again(size):
    replicas, width, dim, _ = size
    weight = random_tensor(replicas, width, dim)
    wide = join_replicas(weight)
    for replica in range(replicas):
        assert torch.equal(wide[:, replica * dim : (replica + 1) * dim], weight[replica])
    assert torch.equal(split_replicas(wide, replicas), weight)


def test_take_nodes_takes_each_replicas_own_rows():
    values = random_tensor(2, 4, 3)
    nodes = torch.tensor([[3, 0, 3], [1, 2, 2]])
    found = take_nodes(values, nodes)
    for replica in range(2):
        for place in range(3):
            assert torch.equal(found[replica, place], values[replica, nodes[replica, place]])
    assert take_nodes(values, None) is values


def test_with_columns_scales_the_rows_of_each_weight():
    weight = random_tensor(2, 3, 4)
    columns = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.5]])
    found = with_columns(weight, columns)
    for replica in range(2):
        assert torch.equal(found[replica], torch.diag(columns[replica]) @ weight[replica])
    assert with_columns(weight, None) is weight
