"""SparseMatrix: products and their gradients against dense algebra in float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpgmn.sparse import SparseMatrix


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    """Small matrices with empty rows and columns, or with nothing at all."""
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    share = draw(st.sampled_from([0.0, 0.3, 1.0]))
    return random.normal(size=(height, width)) * (random.random((height, width)) < share)


def sparse(dense: np.ndarray) -> SparseMatrix:
    return SparseMatrix(sp.csr_array(dense.astype(np.float32)))


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(matrices(), st.sampled_from([None, "ones", "some zero"]), st.booleans())
def test_product_and_gradient_match_dense_autograd(
    dense: np.ndarray, factors: str | None, transposed: bool
) -> None:
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
def test_at_sign_is_times(dense: np.ndarray) -> None:
    matrix, weight = sparse(dense), random_tensor(dense.shape[1], 3)
    torch.testing.assert_close(matrix @ weight, matrix.times(weight), rtol=0, atol=0)


@given(matrices())
def test_gradient_of_a_plain_sum_is_the_sum_of_each_column(dense: np.ndarray) -> None:
    weight = random_tensor(dense.shape[1], 2).requires_grad_()
    (sparse(dense) @ weight).sum().backward()  # the gradient that arrives has strides of zero
    expected = torch.from_numpy(dense.sum(axis=0)).float().unsqueeze(-1).expand(-1, 2)
    torch.testing.assert_close(weight.grad, expected, rtol=1e-5, atol=1e-5)


@given(matrices())
def test_transpose_is_the_transpose_and_its_transpose_is_the_matrix(dense: np.ndarray) -> None:
    matrix = sparse(dense)
    np.testing.assert_array_equal(matrix.transpose.host.toarray(), dense.T.astype(np.float32))
    assert matrix.transpose.shape == dense.T.shape
    assert matrix.transpose.host.has_sorted_indices
    assert matrix.transpose.transpose is matrix
    weight = random_tensor(dense.shape[0], 3)
    expected = torch.from_numpy(dense.T).float() @ weight
    torch.testing.assert_close(matrix.transpose @ weight, expected, rtol=1e-5, atol=1e-5)


@given(matrices())
def test_rows_columns_and_scaled_values_of_entries_rebuild_the_matrix(dense: np.ndarray) -> None:
    matrix = sparse(dense)
    if not matrix.host.nnz:
        return
    factors = torch.arange(1.0, matrix.host.nnz + 1)
    rebuilt = np.zeros(dense.shape)
    values = matrix.scaled(factors).values()
    for row, column, value in zip(
        matrix.rows_of_entries, matrix.columns_of_entries, values, strict=True
    ):
        rebuilt[row, column] += value
    expected = np.zeros(dense.shape)
    stored = np.argwhere(dense.astype(np.float32))  # row by row, as CSR stores them
    for number, (row, column) in enumerate(stored, start=1):
        expected[row, column] = dense[row, column] * number
    np.testing.assert_allclose(rebuilt, expected, rtol=1e-5)


def test_empty_matrix_gives_exact_zeros_and_a_zero_gradient() -> None:
    matrix = SparseMatrix(sp.csr_array((2, 3), dtype=np.float32))
    weight = random_tensor(3, 4).requires_grad_()
    for columns in (None, torch.ones(3)):
        weight.grad = None
        found = matrix.times(weight, columns)
        found.sum().backward()
        assert torch.equal(found, torch.zeros(2, 4))
        assert torch.equal(weight.grad, torch.zeros(3, 4))


@pytest.mark.parametrize("entries", [0, 1])
def test_a_lost_column_does_not_spoil_the_others(entries: int) -> None:
    """Columns belong to different replicas: one that diverged must stay alone with it."""
    dense = np.zeros((2, 3))
    dense[0, 1] = entries
    weight = torch.ones(3, 2)
    weight[:, 1] = float("nan")
    found = sparse(dense) @ weight
    assert found[:, 0].tolist() == [entries, 0.0]


def test_entries_may_be_stored_zeros() -> None:
    host = sp.csr_array((np.float32([0, 2]), np.int32([0, 1]), np.int32([0, 1, 2])), shape=(2, 2))
    weight = torch.tensor([[1.0], [3.0]], requires_grad=True)
    found = SparseMatrix(host) @ weight
    found.sum().backward()
    assert found.tolist() == [[0.0], [6.0]]
    assert weight.grad.tolist() == [[0.0], [2.0]]
