"""Lengths of rows, and rows scaled by them."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from hpgmn.graph import Array, Attributes

_MODERATE = 1e15  # float32 holds its square, and that of its inverse


def row_lengths(matrix: sp.csr_array) -> Array:
    """Return the Euclidean length of each row of a sparse matrix; see :func:`dense_lengths`."""
    squared = matrix.multiply(matrix).sum(axis=1)
    lengths: Array = np.sqrt(np.asarray(squared).reshape(-1)).astype(np.float32)
    odd = needs_double(lengths) & (np.diff(matrix.indptr) > 0)
    if odd.any():
        some = matrix[odd].astype(np.float64)
        exact = np.sqrt(np.asarray(some.multiply(some).sum(axis=1)).reshape(-1))
        lengths = correct_lengths(lengths, odd, exact)
    return lengths


def dense_lengths(rows: Array) -> Array:
    """Return the Euclidean length of (…, width) rows.

    Double precision is used only for rows whose squares leave the range of single precision.
    """
    with np.errstate(over="ignore"):
        lengths: Array = np.sqrt(np.square(rows).sum(axis=-1))
    odd = needs_double(lengths)
    if odd.any():
        odd &= rows.any(axis=-1)
        exact = np.sqrt(np.square(rows[odd], dtype=np.float64).sum(axis=-1))
        lengths = correct_lengths(lengths, odd, exact)
    return lengths


def needs_double(lengths: Array) -> Array:
    """Return which lengths single precision may have lost: squares were infinite, or 0."""
    odd: Array = ~((lengths > 1e-15) & (lengths < 1e18))
    return odd


def correct_lengths(lengths: Array, odd: Array, exact: Array) -> Array:
    """Return lengths with those of odd rows replaced; rows of zeros change nothing."""
    if not exact.any():
        return lengths
    result = lengths.astype(np.float64)
    result[odd] = exact
    return result


def inverse_or_zero(values: Array) -> Array:
    """Return 1/v in single precision, and exactly 0 where v is 0."""
    return np.divide(1.0, values, out=np.zeros_like(values, np.float32), where=values > 0)


def scale_attributes(x: Attributes, scaling: str) -> Attributes:
    """Return attributes as given ("raw"), divided by the row's sum, or of unit length."""
    if scaling == "raw":
        return x
    x = _moderate(x)
    if sp.issparse(x):
        sums = np.asarray(abs(x).sum(axis=1)).reshape(-1).astype(np.float32)
        factor = inverse_or_zero(sums if scaling == "fraction" else row_lengths(x))
        data = x.data * np.repeat(factor, np.diff(x.indptr))
        return sp.csr_array((data, x.indices, x.indptr), shape=x.shape)
    lengths = np.abs(x).sum(axis=1) if scaling == "fraction" else np.sqrt((x * x).sum(axis=1))
    return np.asarray(x * inverse_or_zero(lengths)[:, None], dtype=np.float32)


def _moderate(x: Attributes) -> Attributes:
    """Divide rows whose squares would be infinite or 0 by their largest value."""
    if sp.issparse(x):
        top = np.asarray(abs(x).max(axis=1).todense()).reshape(-1)
    else:
        top = np.maximum(x.max(axis=1), -x.min(axis=1))
    is_odd = (top > _MODERATE) | ((top < 1 / _MODERATE) & (top > 0))
    if not is_odd.any():
        return x
    by = np.where(is_odd, top, 1).astype(np.float32)
    if sp.issparse(x):
        data = x.data / np.repeat(by, np.diff(x.indptr))
        return sp.csr_array((data, x.indices, x.indptr), shape=x.shape)
    return np.asarray(x / by[:, None], dtype=np.float32)
