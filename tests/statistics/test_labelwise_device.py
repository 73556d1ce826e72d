"""Class means by device operations against those by SciPy, here on a CPU."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.sparse import SparseMatrix
from hpgmn.statistics.labelwise import class_means, class_means_on_device

RANDOM = np.random.default_rng(5)


def graph(density):
    """Weighted edges, attributes, and labels of two replicas, some unknown."""
    edges = sp.random_array((30, 30), density=density, rng=RANDOM, format="csr", dtype=np.float32)
    edges.indices, edges.indptr = edges.indices.astype(np.int32), edges.indptr.astype(np.int32)
    x = RANDOM.normal(size=(30, 7)).astype(np.float32)
    return edges, x, RANDOM.integers(-1, 3, (2, 30))


@pytest.mark.parametrize("density", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("unit_length", [False, True])
def test_rows_are_those_of_the_sparse_product(density, unit_length):
    edges, x, labels = graph(density)
    found = class_means_on_device(
        SparseMatrix(edges),
        torch.from_numpy(x),
        torch.from_numpy(labels),
        3,
        unit_length=unit_length,
    )
    for own, rows in zip(labels, found, strict=True):
        expected = class_means(edges, x, own, 3).toarray()
        if unit_length:
            lengths = np.linalg.norm(expected, axis=1, keepdims=True)
            expected = expected / np.where(lengths > 0, lengths, 1)
        np.testing.assert_allclose(rows, expected, atol=2e-6)


def test_half_precision_is_the_single_one_rounded():
    edges, x, labels = graph(0.3)
    given = (SparseMatrix(edges), torch.from_numpy(x), torch.from_numpy(labels), 3)
    half = class_means_on_device(*given, dtype=torch.float16)
    assert torch.equal(half, class_means_on_device(*given).half())


def test_large_attributes_have_rows_of_unit_length_in_half_precision():
    edges, x, labels = graph(0.3)
    given = (SparseMatrix(edges), torch.from_numpy(x * 1e6), torch.from_numpy(labels), 3)
    half = class_means_on_device(*given, unit_length=True, dtype=torch.float16)
    single = class_means_on_device(*given, unit_length=True)
    torch.testing.assert_close(half.float(), single, atol=1e-3, rtol=1e-3)
    assert single.square().sum(dim=-1).max() <= 1.001
