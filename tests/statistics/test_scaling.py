"""Lengths of rows, ordinary and odd ones."""

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.statistics.scaling import dense_lengths, inverse_or_zero, row_lengths


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
