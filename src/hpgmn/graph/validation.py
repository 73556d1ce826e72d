"""Input as arrays of the kind that a graph holds, or one sentence about what is wrong with it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from hpgmn.base.errors import GraphError
from hpgmn.graph.edges import sorted_csr

Array: TypeAlias = npt.NDArray[Any]
Attributes: TypeAlias = Any
"""A dense (N, F) array or a SciPy CSR array; SciPy has no types to say so."""

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)
_SURROGATES = (0xD800, 0xDFFF)  # halves of characters, which no file of text can hold


def _numpy(value: Any) -> Array:
    """A value as a NumPy array, torch tensors included."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if "sparse" in str(value.layout):
            value = value.to_dense()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    if np.ma.is_masked(value):
        raise GraphError(
            "Masked arrays hold missing values. Replace them first, for example with filled()."
        )
    return np.asarray(value)


def _numeric(what: str, value: Any) -> Array:
    try:
        array = _numpy(value)
    except ValueError:
        raise GraphError(
            f"{what} must be a rectangular array of numbers; some rows differ in length. "
            "Fill them up."
        ) from None
    except (TypeError, RuntimeError, OverflowError):
        raise GraphError(f"{what} must be numbers (got {type(value).__name__}).") from None
    if array.dtype.kind not in "biuf":
        found = f"values of type {array.dtype}" if array.ndim else type(value).__name__
        raise GraphError(f"{what} must be numbers (got {found}).")
    return array


def truth(what: str, value: Any) -> bool:
    """A value that is true or false, not something that merely counts as such."""
    found = np.asarray(value) if isinstance(value, bool | int | np.generic | np.ndarray) else None
    if found is None or found.size != 1 or found.dtype.kind not in "biu" or found not in (0, 1):
        raise GraphError(f"{what} must be True or False (got {type(value).__name__}).")
    return bool(found)


def word(what: str, value: Any) -> str:
    """A name that can be printed and written; what no text can hold is spelt out."""
    if not isinstance(value, str):
        raise GraphError(f"{what} must be text (got {type(value).__name__}).")
    return str(value).encode(errors="backslashreplace").decode()


def attributes(x: Any) -> Attributes:
    """(N, F) finite numbers of single precision, dense or CSR."""
    if hasattr(x, "layout") and "sparse" in str(x.layout):  # torch
        coo = x.detach().to_sparse_coo().coalesce()
        index, shape = coo.indices().cpu().numpy(), tuple(coo.shape)
        if len(index) != len(shape):  # rows of dense blocks
            return attributes(x.to_dense())
        values = _numpy(coo.values())
        if values.dtype == np.float16:  # which SciPy does not know
            values = values.astype(np.float32)
        x = sp.coo_array((values, tuple(index)), shape=shape)
    is_sparse = sp.issparse(x)
    array: Any = x if is_sparse else _numeric("x", x)
    if array.dtype.kind not in "biuf":
        raise GraphError(f"x must be numbers (got values of type {array.dtype}).")
    if array.ndim != 2 or 0 in array.shape:
        raise GraphError(
            "x must have two dimensions, nodes and attributes, both at least 1 "
            f"(got shape {array.shape})."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, refused below
        if is_sparse:
            array = sp.csr_array(array).astype(np.float32)
        else:
            array = np.ascontiguousarray(array, dtype=np.float32)
    if is_sparse:
        array.sum_duplicates()
        array.eliminate_zeros()
        array = sorted_csr(array)
        bad = ~np.isfinite(array.data)
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            row = int(np.searchsorted(array.indptr, place, side="right") - 1)
            _refuse_value(float(array.data[place]), row, int(array.indices[place]))
    else:
        with np.errstate(invalid="ignore"):  # infinite ones may cancel
            total = array.sum(dtype=np.float64)  # finite float32 cannot overflow it; no copy
        if not np.isfinite(total):
            row, column = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
            _refuse_value(float(array[row, column]), row, column)
    matrix: Attributes = array
    return matrix


def _refuse_value(value: float, row: int, column: int) -> NoReturn:
    raise GraphError(
        f"x holds {value} at node {row}, attribute {column}. Replace missing and infinite values "
        "first, for example by the column's mean."
    )


def edges(edge_index: Any, num_nodes: int) -> Array:
    """(2, E) positions of nodes."""
    array = _numeric("edge_index", edge_index)
    if array.size == 0:
        return np.empty((2, 0), np.int64)
    if array.ndim != 2 or array.shape[0] != 2:
        hint = " Transpose it." if array.ndim == 2 and array.shape[1] == 2 else ""
        raise GraphError(f"edge_index must have shape (2, E) (got {array.shape}).{hint}")
    if array.dtype.kind == "f" and not (
        np.isfinite(array).all() and (array == np.trunc(array)).all()
    ):
        place = int(np.flatnonzero(~np.isfinite(array) | (array != np.trunc(array)))[0])
        raise GraphError(
            f"edge_index must hold whole numbers, the positions of nodes (got {array.flat[place]})."
        )
    if array.min() < 0 or array.max() >= num_nodes:
        outside = ((array < 0) | (array >= num_nodes)).any(axis=0)
        edge = int(np.flatnonzero(outside)[0])
        source, target = (int(end) for end in array[:, edge])
        others = int(outside.sum()) - 1
        count = f" (and {others} more like it)" if others else ""
        raise GraphError(
            f"Edge {edge} runs from {source} to {target}{count}, but nodes are numbered "
            f"0 to {num_nodes - 1}. Remove such edges or add the nodes."
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def weights(edge_weight: Any, num_edges: int) -> Array | None:
    """(E,) positive weights, whose sum is finite, too."""
    if edge_weight is None:
        return None
    with np.errstate(over="ignore"):
        array = _numeric("edge_weight", edge_weight).reshape(-1).astype(np.float32)
    if array.shape[0] != num_edges:
        raise GraphError(
            f"edge_weight must have one value per edge, {num_edges} (got {array.shape[0]})."
        )
    bad = ~(np.isfinite(array) & (array >= _SMALLEST))  # smaller ones have no inverse
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise GraphError(
            f"edge_weight must be finite and positive (got {array[place]:g} at edge {place}). "
            "Remove edges of weight zero; shift or drop negative ones."
        )
    if 2 * array.sum(dtype=np.float64) > _LARGEST:  # of both directions together, in one node
        raise GraphError(
            f"edge_weight adds up to {array.sum(dtype=np.float64):.3g}, more than can be computed "
            "with. Divide all weights by the largest one."
        )
    return array


def labels(y: Any, num_nodes: int) -> Array:
    """(N,) numbers of classes, -1 where unknown."""
    if y is None:
        return np.full(num_nodes, -1, np.int64)
    array = _numeric("y", y).reshape(-1)
    if array.shape[0] != num_nodes:
        raise GraphError(
            f"y must have one label per node, {num_nodes} (got {array.shape[0]}). "
            "Use -1 for unknown."
        )
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.trunc(array))
        if not whole.all():
            place = int(np.flatnonzero(~whole)[0])
            raise GraphError(
                f"y must hold whole numbers (got {array[place]} at node {place}). "
                "Number the classes 0, 1, 2, …; use -1 for unknown."
            )
    if array.min(initial=0) < -1:
        place = int(np.flatnonzero(array < -1)[0])
        raise GraphError(
            f"y holds {int(array[place])} at node {place}. "
            "Number the classes 0, 1, 2, …; use -1 for unknown."
        )
    if array.max(initial=0) >= max(1000, num_nodes):
        raise GraphError(
            f"y holds class {int(array.max())} on a graph of {num_nodes} nodes. "
            "Number the classes 0, 1, 2, … without gaps (numpy.unique with return_inverse does)."
        )
    return array.astype(np.int64)


def class_names(given: Sequence[str] | Array | None, y: Array) -> tuple[str, ...]:
    """C distinct names of classes, numbers where none are given."""
    present = int(y.max(initial=-1)) + 1
    if given is None:
        return tuple(str(number) for number in range(present))
    found = tuple(_texts("class_names", given))
    if len(found) < present:
        raise GraphError(
            f"class_names must name every class: it has {len(found)} names, but y has classes up "
            f"to {present - 1}. Add names."
        )
    if len(set(found)) != len(found):
        twice = Counter(found).most_common(1)[0][0]
        raise GraphError(f"class_names must be distinct; '{twice}' appears twice. Rename one.")
    return found


def _texts(what: str, given: Any) -> list[str]:
    """Names of any type as text that files can hold."""
    if isinstance(given, str | bytes | set | frozenset | dict) or not isinstance(given, Iterable):
        raise GraphError(f"{what} must be a list of names (got {type(given).__name__}).")
    if getattr(given, "ndim", 1) != 1:
        shape = tuple(getattr(given, "shape", ()))
        raise GraphError(f"{what} must be a list of names (got shape {shape}).")
    if isinstance(given, np.ndarray) and given.dtype.kind == "U":
        _refuse_no_text(what, given)
    if hasattr(given, "detach"):  # the numbers of a tensor, not small tensors
        given = _numpy(given).tolist()
    found = [str(name) for name in given]
    for place, name in enumerate(found):
        if "\0" in name:
            raise GraphError(f"{what} holds a NUL character in name {place}. Remove it.")
        if not name.isascii() and any(_SURROGATES[0] <= ord(one) <= _SURROGATES[1] for one in name):
            raise _half(what, place)
    return found


def _half(what: str, place: int) -> GraphError:
    return GraphError(
        f"{what} holds half a character in name {place}, so it is no text. Read the names again "
        "with the right encoding, and give those."
    )


def _refuse_no_text(what: str, given: Array) -> None:
    """Refuse an array of text whose numbers are no characters; a file may say anything."""
    array = np.ascontiguousarray(given, given.dtype.newbyteorder("="))
    codes = array.reshape(-1).view(np.uint32)
    if not codes.size or codes.max() < _SURROGATES[0]:
        return
    wrong = ((codes >= _SURROGATES[0]) & (codes <= _SURROGATES[1])) | (codes > sys.maxunicode)
    if wrong.any():
        raise _half(what, int(np.flatnonzero(wrong)[0]) * array.size // codes.size)


def names(what: str, given: Sequence[Any] | Array | None, length: int) -> Array | None:
    """A text array of that many names; ids must be distinct, too."""
    if given is None:
        return None
    if isinstance(given, np.ndarray) and given.dtype.kind == "U":  # not copied: may be large
        _refuse_no_text(what, given)
        array = np.asarray(given).reshape(-1)
    else:
        array = np.asarray(_texts(what, given), np.str_).reshape(-1)
    array = array.astype(f"U{int(np.char.str_len(array).max(initial=1))}", copy=False)
    if array.shape[0] != length:
        raise GraphError(f"{what} must have {length} names (got {array.shape[0]}).")
    if what == "node_ids":
        distinct, counts = np.unique(array, return_counts=True)
        if (counts > 1).any():
            raise GraphError(
                f"node_ids must be distinct; '{distinct[counts > 1][0]}' appears twice. Rename one."
            )
    return array


def mask(what: str, value: Any, num_nodes: int) -> Array:
    """(N, S) booleans."""
    array = _numeric(what, value)
    if array.dtype != np.bool_:
        if array.dtype.kind == "f" or not np.isin(array, (0, 1)).all():
            raise GraphError(
                f"{what} must be true or false for each node (got values of type {array.dtype})."
            )
        array = array.astype(bool)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[0] != num_nodes:
        raise GraphError(
            f"{what} must have {num_nodes} rows, one per node (got shape {array.shape})."
        )
    if not array.shape[1]:
        raise GraphError(f"{what} holds no split at all. Leave it out, or give at least one.")
    return np.ascontiguousarray(array)
