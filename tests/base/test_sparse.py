"""SparseMatrix: products and their gradients against dense algebra in float64."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.sparse import (
    SparseMatrix,
    at_least_single,
    block_diagonal,
    dense_lengths,
    diagonal_rows,
    inverse_or_zero,
    ordered_matmul,
    row_lengths,
    to_device,
)


@st.composite
def matrices(draw):
    """Small matrices with empty rows and columns, or with nothing at all."""
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    share = draw(st.sampled_from([0.0, 0.3, 1.0]))
    return random.normal(size=(height, width)) * (random.random((height, width)) < share)


def sparse(dense):
    return SparseMatrix(sp.csr_array(dense.astype(np.float32)))


def random_tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(matrices(), st.sampled_from([None, "ones", "some zero"]), st.booleans())
def test_product_and_gradient_match_dense_autograd(dense, factors, transposed):
    height, width = dense.shape
    columns = None
    if factors is not None:
        columns = torch.ones(width) if factors == "ones" else torch.arange(width) % 3 * 0.75
    given_weight = random_tensor(width, 4)
    if transposed:  # an input that is not contiguous
        given_weight = random_tensor(4, width).T
    weight = given_weight.clone(memory_format=torch.preserve_format).requires_grad_()
    upstream = random_tensor(height, 4, seed=1)

    found = sparse(dense).times(weight, columns)
    (found * upstream).sum().backward()

    exact_weight = given_weight.double().requires_grad_()
    scaled = exact_weight if columns is None else columns.double().unsqueeze(-1) * exact_weight
    exact = torch.from_numpy(dense.astype(np.float32)).double() @ scaled
    (exact * upstream).sum().backward()

    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight.grad.double(), exact_weight.grad, rtol=1e-5, atol=1e-5)


@given(matrices())
def test_transpose_is_the_transpose_and_its_transpose_is_the_matrix(dense):
    matrix = sparse(dense)
    np.testing.assert_array_equal(matrix.transpose.host.toarray(), dense.T.astype(np.float32))
    assert matrix.transpose.shape == dense.T.shape
    assert matrix.transpose.host.has_sorted_indices
    assert matrix.transpose.transpose is matrix
    weight = random_tensor(dense.shape[0], 3)
    expected = torch.from_numpy(dense.T).float() @ weight
    torch.testing.assert_close(matrix.transpose @ weight, expected, rtol=1e-5, atol=1e-5)


@given(matrices())
def test_rows_columns_and_scaled_values_of_entries_rebuild_the_matrix(dense):
    matrix = sparse(dense)
    if not matrix.host.nnz:
        return
    factors = torch.arange(1.0, matrix.host.nnz + 1)
    rebuilt = np.zeros(dense.shape)
    values = matrix.scale_entries(factors).values()
    for row, column, value in zip(
        matrix.rows_of_entries, matrix.columns_of_entries, values, strict=True
    ):
        rebuilt[row, column] += value
    expected = np.zeros(dense.shape)
    stored = np.argwhere(dense.astype(np.float32))  # row by row, as CSR stores them
    for number, (row, column) in enumerate(stored, start=1):
        expected[row, column] = dense[row, column] * number
    np.testing.assert_allclose(rebuilt, expected, rtol=1e-5)


def test_empty_matrix_gives_exact_zeros_and_a_zero_gradient():
    matrix = SparseMatrix(sp.csr_array((2, 3), dtype=np.float32))
    weight = random_tensor(3, 4).requires_grad_()
    for columns in (None, torch.ones(3)):
        weight.grad = None
        found = matrix.times(weight, columns)
        found.sum().backward()
        assert torch.equal(found, torch.zeros(2, 4))
        assert torch.equal(weight.grad, torch.zeros(3, 4))


@pytest.mark.parametrize("entries", [0, 1])
def test_a_lost_column_does_not_spoil_the_others(entries):
    """Columns belong to different replicas: one that diverged must stay alone with it."""
    dense = np.zeros((2, 3))
    dense[0, 1] = entries
    weight = torch.ones(3, 2)
    weight[:, 1] = float("nan")
    found = sparse(dense) @ weight
    assert found[:, 0].tolist() == [entries, 0.0]


def test_entries_may_be_stored_zeros():
    host = sp.csr_array((np.float32([0, 2]), np.int32([0, 1]), np.int32([0, 1, 2])), shape=(2, 2))
    weight = torch.tensor([[1.0], [3.0]], requires_grad=True)
    found = SparseMatrix(host) @ weight
    found.sum().backward()
    assert found.tolist() == [[0.0], [6.0]]
    assert weight.grad.tolist() == [[0.0], [2.0]]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**16))
def test_block_diagonal_matches_scipy(count, height, width, seed):
    random = np.random.default_rng(seed)
    blocks = [
        sp.csr_array(random.integers(0, 2, (height, width)).astype(np.float32))
        for _ in range(count)
    ]
    found = block_diagonal(blocks)
    np.testing.assert_array_equal(found.toarray(), sp.block_diag(blocks).toarray())
    assert found.indices.dtype == found.indptr.dtype == np.int32


def test_blocks_beyond_32_bit_indices_are_refused():
    empty = sp.csr_array((1, 2**30), dtype=np.float32)
    with pytest.raises(OverflowError, match="train fewer at once"):
        block_diagonal([empty, empty])


@given(matrices(), st.integers(1, 3), st.integers(0, 4), st.integers(0, 2**16))
def test_diagonal_rows_are_the_blocks_of_rows(dense, replicas, height, seed):
    rows = np.random.default_rng(seed).integers(len(dense), size=(replicas, height))
    host = sparse(dense).host
    found = diagonal_rows(host, rows)
    expected = scipy.linalg.block_diag(*[host.toarray()[own] for own in rows])
    np.testing.assert_array_equal(found.toarray(), expected)
    assert found.shape == (replicas * height, replicas * dense.shape[1])
    assert found.indices.dtype == found.indptr.dtype == np.int32
    assert found.has_sorted_indices


def test_rows_beyond_32_bit_indices_are_refused():
    wide = sp.csr_array((1, 2**30), dtype=np.float32)
    with pytest.raises(OverflowError, match="train fewer at once"):
        diagonal_rows(wide, np.zeros((2, 1), np.int64))


@given(st.integers(0, 2**16), st.sampled_from([1, 5, 6, 12]))
def test_leaving_empty_rows_out_changes_no_product(seed, entries):
    """12 rows: up to five entries they are left out, from six on they are not."""
    random = np.random.default_rng(seed)
    dense = np.zeros((12, 4))
    dense.reshape(-1)[random.permutation(48)[:entries]] = random.uniform(1, 2, entries)
    matrix = sparse(dense)
    assert (matrix.filled is None) == (entries >= 6)
    weight = random_tensor(4, 3).requires_grad_()
    columns = torch.tensor([0.0, 1.0, 2.0, 0.5])
    exact = torch.from_numpy(dense).float()
    for factors in (None, columns):
        kept = torch.ones(4) if factors is None else factors
        found = matrix.times(weight, factors)
        torch.testing.assert_close(found, exact @ torch.diag(kept) @ weight)
        [gradient] = torch.autograd.grad(found.square().sum(), weight)
        expected = 2 * torch.diag(kept) @ exact.T @ exact @ torch.diag(kept) @ weight
        torch.testing.assert_close(gradient, expected)


@given(matrices())
def test_a_matrix_that_is_ready_makes_nothing_in_its_first_product(dense):
    matrix = sparse(dense).prepare()
    made = set(matrix.__dict__), set(matrix.transpose.__dict__)
    weight = random_tensor(dense.shape[1], 2).requires_grad_()
    (matrix @ weight).sum().backward()
    assert (set(matrix.__dict__), set(matrix.transpose.__dict__)) == made


def test_moving_to_where_a_tensor_is_copies_nothing():
    tensor = random_tensor(2, 3)
    assert to_device(tensor, torch.device("cpu")) is tensor
    assert to_device(tensor, torch.device("meta")).is_meta


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_what_moves_to_a_gpu_arrives_whole():
    tensor = random_tensor(1000, 300)
    found = to_device(tensor, torch.device("cuda"))
    assert found.is_cuda
    assert torch.equal(found.cpu(), tensor)
    assert to_device(found, torch.device("cuda")) is found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_only_half_precision_is_widened(dtype):
    given = torch.tensor([1.5, -2.0], dtype=dtype)
    found = at_least_single(given)
    assert found.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    assert found.tolist() == [1.5, -2.0]


@given(matrices())
def test_a_product_added_in_order_is_the_product(dense):
    matrix = sp.csr_array(dense.astype(np.float32))
    parts = (torch.from_numpy(part) for part in (matrix.indptr, matrix.indices, matrix.data))
    given_weight = random_tensor(dense.shape[1], 3)
    found = ordered_matmul(*parts, given_weight)
    torch.testing.assert_close(found, torch.from_numpy(dense).float() @ given_weight)


def test_inverse_of_zero_is_zero():
    found = inverse_or_zero(np.array([4.0, 0.0, 0.5], np.float32))
    assert found.tolist() == [0.25, 0.0, 2.0]
    assert found.dtype == np.float32


def with_odd_rows(*odd):
    """Ordinary rows, of which every third is empty; the last ones are of the given size."""
    rows = np.random.default_rng(3).normal(size=(3000, 7)).astype(np.float32)
    rows[::3] = 0
    for place, size in enumerate(odd, 1):
        rows[-place] = np.float32(size) * np.array([3, 0, 0, -4, 0, 0, 0], np.float32)
    return rows


@pytest.mark.parametrize("odd", [(), (1e25, 1e-25, 5e37)])
def test_empty_and_odd_rows_leave_the_bits_of_others_alone(odd):
    rows = with_odd_rows(*odd)
    usual = slice(0, len(rows) - len(odd))
    plain = sp.csr_array(rows[usual])
    of_sparse = np.sqrt(np.asarray(plain.multiply(plain).sum(axis=1)).reshape(-1))
    of_dense = np.sqrt(np.square(rows[usual]).sum(axis=-1))
    for found, expected in (
        (row_lengths(sp.csr_array(rows)), of_sparse),
        (dense_lengths(rows), of_dense),
    ):
        assert found.dtype == (np.float64 if odd else np.float32)
        assert found[usual].tolist() == expected.tolist()
        assert found[len(rows) - len(odd) :] == pytest.approx([5 * size for size in odd[::-1]])
        scale = np.zeros_like(expected)
        scale[expected > 0] = np.float32(1) / expected[expected > 0]
        assert inverse_or_zero(found)[usual].tobytes() == scale.tobytes()


def test_zeros_that_are_stored_are_no_odd_rows():
    rows = sp.csr_array(with_odd_rows())
    rows.data[rows.indptr[1] : rows.indptr[2]] = 0
    assert row_lengths(rows).dtype == np.float32
    assert row_lengths(rows)[1] == 0
