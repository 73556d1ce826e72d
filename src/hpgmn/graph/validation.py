"""Convert and check the inputs of a graph: all checks of ``Graph`` are here."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from hpgmn.base.edge_types import merge_rare_types
from hpgmn.base.errors import GraphError
from hpgmn.base.tasks import is_known
from hpgmn.graph.edges import Array, SortedEdges, sorted_csr

Attributes: TypeAlias = Any
"""A dense (N, F) array or a SciPy CSR array; SciPy has no types for it."""

PARTS = ("train", "val", "test")

_LARGEST = float(np.finfo(np.float32).max)
_LARGEST_TARGET = 1e30  # its square is finite in double, and its mean in single precision
_SMALLEST = float(np.finfo(np.float32).tiny)
_SURROGATES = (0xD800, 0xDFFF)  # code points that text files cannot hold


def _numpy(value: Any) -> Array:
    """Convert a value, which may be a torch tensor, to a NumPy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if "sparse" in str(value.layout):
            value = value.to_dense()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    if np.ma.is_masked(value):
        raise GraphError(
            "Masked arrays hold missing values.", "Replace them first, for example with filled()"
        )
    return np.asarray(value)


def _numeric(what: str, value: Any) -> Array:
    try:
        array = _numpy(value)
    except ValueError:
        raise GraphError(
            f"{what} must be a rectangular array of numbers; some rows differ in length.",
            "Pad them to the same length",
        ) from None
    except (TypeError, RuntimeError, OverflowError):
        raise GraphError(f"{what} must be numbers (got {type(value).__name__}).") from None
    if array.dtype.kind not in "biuf":
        received = f"values of type {array.dtype}" if array.ndim else type(value).__name__
        raise GraphError(f"{what} must be numbers (got {received}).")
    return array


def truth(what: str, value: Any) -> bool:
    """Return True or False; other truthy values are refused."""
    array = np.asarray(value) if isinstance(value, bool | int | np.generic | np.ndarray) else None
    if array is None or array.size != 1 or array.dtype.kind not in "biu" or array not in (0, 1):
        raise GraphError(f"{what} must be True or False (got {type(value).__name__}).")
    return bool(array)


def word(what: str, value: Any) -> str:
    """Return a name that can be printed and written; invalid characters are escaped."""
    if not isinstance(value, str):
        raise GraphError(f"{what} must be text (got {type(value).__name__}).")
    return str(value).encode(errors="backslashreplace").decode()


def attributes(x: Any) -> Attributes:
    """Return (N, F) finite float32, dense or CSR."""
    if hasattr(x, "layout") and "sparse" in str(x.layout):  # torch
        coo = x.detach().to_sparse_coo().coalesce()
        index, shape = coo.indices().cpu().numpy(), tuple(coo.shape)
        if len(index) != len(shape):  # rows of dense blocks
            return attributes(x.to_dense())
        values = _numpy(coo.values())
        if values.dtype == np.float16:  # unknown to SciPy
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
    values = array.data if is_sparse else array
    with np.errstate(invalid="ignore"):  # infinite ones may cancel
        total = values.sum(dtype=np.float64)  # finite float32 cannot overflow it; no copy
    if not np.isfinite(total):
        position = int((~np.isfinite(values)).argmax())
        if is_sparse:
            row = int(np.searchsorted(array.indptr, position, side="right") - 1)
            column = int(array.indices[position])
        else:
            row, column = divmod(position, array.shape[1])
        raise GraphError(
            f"x holds {values.flat[position]} at node {row}, attribute {column}.",
            "Replace NaN and infinity first, for example by the column's mean",
        )
    return array


def _first_fraction(array: Array) -> int | None:
    """Return the position of the first value that is no integer, in the flattened array."""
    if array.dtype.kind != "f":
        return None
    wrong = ~np.isfinite(array) | (array != np.trunc(array))
    return int(wrong.argmax()) if wrong.any() else None


def edges(edge_index: Any, num_nodes: int) -> Array:
    """Return (2, E) int64 positions of nodes."""
    array = _numeric("edge_index", edge_index)
    if array.size == 0:
        return np.empty((2, 0), np.int64)
    if array.ndim != 2 or array.shape[0] != 2:
        is_transposed = array.ndim == 2 and array.shape[1] == 2
        raise GraphError(
            f"edge_index must have shape (2, E) (got {array.shape}).",
            "Transpose it" if is_transposed else None,
        )
    wrong = _first_fraction(array)
    if wrong is not None:
        value = array.flat[wrong]
        raise GraphError(f"edge_index must hold integers, positions of nodes (got {value}).")
    if array.min() < 0 or array.max() >= num_nodes:
        outside = ((array < 0) | (array >= num_nodes)).any(axis=0)
        edge = int(outside.argmax())
        source, target = (int(end) for end in array[:, edge])
        others = int(outside.sum()) - 1
        more = f" (and {others} more like it)" if others else ""
        raise GraphError(
            f"Edge {edge} runs from {source} to {target}{more}, but nodes are numbered "
            f"0 to {num_nodes - 1}.",
            "Remove such edges or add the nodes",
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def sorted_edges(
    edges: SortedEdges, num_nodes: int, edge_weight: Any, edge_type: Any = None
) -> SortedEdges:
    """Return sorted edges of that many nodes, whose weights are valid."""
    if edges.num_nodes != num_nodes:
        raise GraphError(
            f"x has {num_nodes} nodes, but the sorted edges {edges.num_nodes}.",
            "Pass both of one graph",
        )
    if edge_weight is not None or edge_type is not None:
        noun, name = ("types", "edge_type") if edge_weight is None else ("weights", "edge_weight")
        raise GraphError(
            f"Sorted edges hold their own {noun}.", f"Pass the {noun} with them, not as {name}"
        )
    weights(edges.weights, len(edges))
    return edges


def weights(edge_weight: Any, num_edges: int) -> Array | None:
    """Return (E,) positive float32 weights with a finite sum."""
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
        edge = int(bad.argmax())
        raise GraphError(
            f"edge_weight must be finite and positive (got {array[edge]:g} at edge {edge}).",
            "Remove edges of weight zero; shift or drop negative ones",
        )
    total = array.sum(dtype=np.float64)
    if 2 * total > _LARGEST:  # of both directions together, in one node
        raise GraphError(
            f"edge_weight adds up to {total:.3g}, which overflows float32.",
            "Divide all weights by the largest one",
        )
    return array


def types(
    edge_type: Any, type_names: Sequence[str] | Array | None, num_edges: int
) -> tuple[Array | None, tuple[str, ...]]:
    """Return (E,) numbers of at most eight types and their names; None without types."""
    if edge_type is None:
        if type_names is not None and len(type_names):
            raise GraphError("edge_type_names is given without edge_type.", "Pass it too")
        return None, ()
    array = _numeric("edge_type", edge_type).reshape(-1)
    if array.shape[0] != num_edges:
        raise GraphError(
            f"edge_type must have one number per edge, {num_edges} (got {array.shape[0]})."
        )
    numbering = "Number the types 0, 1, 2, … (numpy.unique with return_inverse does)"
    wrong = _first_fraction(array)
    if wrong is None and array.min(initial=0) < 0:
        wrong = int(array.argmin())
    if wrong is not None:
        raise GraphError(
            f"edge_type must hold integers from 0 (got {array[wrong]} at edge {wrong}).", numbering
        )
    array = array.astype(np.int64)
    present = int(array.max(initial=-1)) + 1
    if present > max(1000, num_edges):
        raise GraphError(f"edge_type holds {present - 1} among {num_edges} edges.", numbering)
    names = _distinct_names("edge_type_names", type_names, present, "type", "edge_type has types")
    return merge_rare_types(array, names)


def labels(y: Any, num_nodes: int) -> Array:
    """Return (N,) int64 class numbers, -1 where unknown, or float targets, NaN where unknown."""
    if y is None:
        return np.full(num_nodes, -1, np.int64)
    array = _numeric("y", y).reshape(-1)
    if array.shape[0] != num_nodes:
        raise GraphError(
            f"y must have one label per node, {num_nodes} (got {array.shape[0]}).",
            "Use -1 for unknown",
        )
    if array.dtype.kind == "f":
        return _targets(array)
    numbering = "Number the classes 0, 1, 2, …; use -1 for unknown"
    if array.min(initial=0) < -1:
        node = int(array.argmin())
        raise GraphError(f"y holds {int(array[node])} at node {node}.", numbering)
    if array.max(initial=0) >= max(1000, num_nodes):
        raise GraphError(
            f"y holds class {int(array.max())} on a graph of {num_nodes} nodes.",
            "Number the classes 0, 1, 2, … without gaps (numpy.unique with return_inverse does)",
        )
    return array.astype(np.int64)


def _targets(array: Array) -> Array:
    """Return targets in single or double precision; NaN is unknown."""
    targets = np.ascontiguousarray(array, np.promote_types(array.dtype, np.float32))
    if targets.dtype != np.float32:
        targets = targets.astype(np.float64)
    wrong = np.isinf(targets) | (np.abs(targets) > _LARGEST_TARGET)
    if wrong.any():
        node = int(wrong.argmax())
        raise GraphError(
            f"y holds {targets[node]} at node {node}, but targets must be finite.",
            "Use NaN for unknown, and integers for classes",
        )
    return targets


def class_names(names: Sequence[str] | Array | None, y: Array) -> tuple[str, ...]:
    """Return C distinct class names, numbers by default; none of targets."""
    if y.dtype.kind == "f":
        if names is not None and len(names):
            raise GraphError(
                "class_names are given, but y holds targets of type float.",
                "Pass integers for classes, or no names",
            )
        return ()
    return _distinct_names(
        "class_names", names, int(y.max(initial=-1)) + 1, "class", "y has classes"
    )


def _distinct_names(
    what: str, names: Sequence[str] | Array | None, present: int, noun: str, numbers: str
) -> tuple[str, ...]:
    """Return distinct names for at least ``present`` numbers, the numbers themselves by default."""
    if names is None:
        return tuple(str(number) for number in range(present))
    texts = tuple(_text_array(what, names).tolist())
    _refuse_nul(what, texts)
    if len(texts) < present:
        raise GraphError(
            f"{what} must name every {noun}: it has {len(texts)} names, but {numbers} "
            f"up to {present - 1}.",
            "Add names",
        )
    if len(set(texts)) != len(texts):
        repeated = Counter(texts).most_common(1)[0][0]
        raise GraphError(f"{what} must be distinct; '{repeated}' repeats.", "Rename one")
    return texts


def _text_array(what: str, names: Any) -> Array:
    """Convert names of any type to a text array; an existing text array is not copied."""
    if isinstance(names, str | bytes | set | frozenset | dict) or not isinstance(names, Iterable):
        raise GraphError(f"{what} must be a list of names (got {type(names).__name__}).")
    if getattr(names, "ndim", 1) != 1:
        shape = tuple(getattr(names, "shape", ()))
        raise GraphError(f"{what} must be a list of names (got shape {shape}).")
    if not (isinstance(names, np.ndarray) and names.dtype.kind == "U"):
        if hasattr(names, "detach"):  # the numbers of a tensor, not small tensors
            names = _numpy(names).tolist()
        texts = [str(name) for name in names]
        _refuse_nul(what, texts)  # NumPy drops it at the end
        names = np.asarray(texts, np.str_)
    array = np.ascontiguousarray(names, names.dtype.newbyteorder("="))
    codes = array.view(np.uint32)
    if codes.size and codes.max() >= _SURROGATES[0]:
        wrong = ((codes >= _SURROGATES[0]) & (codes <= _SURROGATES[1])) | (codes > sys.maxunicode)
        if wrong.any():
            number = int(wrong.argmax()) * array.size // codes.size
            raise GraphError(
                f"{what} holds an invalid character in name {number}.",
                "Read the names again with the right encoding",
            )
    return array


def _refuse_nul(what: str, texts: Iterable[str]) -> None:
    for number, text in enumerate(texts):
        if "\0" in text:
            raise GraphError(f"{what} holds a NUL character in name {number}.", "Remove it")


def names(what: str, values: Sequence[Any] | Array | None, length: int) -> Array | None:
    """Return a text array of that many names; ids must be distinct."""
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.dtype.kind == "U":
        values = values.reshape(-1)
    array = _text_array(what, values)
    array = array.astype(f"U{int(np.char.str_len(array).max(initial=1))}", copy=False)
    if array.shape[0] != length:
        raise GraphError(f"{what} must have {length} names (got {array.shape[0]}).")
    if what == "node_ids":
        distinct, counts = np.unique(array, return_counts=True)
        if (counts > 1).any():
            repeated = distinct[counts > 1][0]
            raise GraphError(f"node_ids must be distinct; '{repeated}' repeats.", "Rename one")
    return array


def mask(what: str, value: Any, num_nodes: int) -> Array:
    """Return (N, S) booleans."""
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
        raise GraphError(f"{what} holds no split.", "Leave it out, or pass at least one")
    return np.ascontiguousarray(array)


def masks(train: Any, val: Any, test: Any, y: Array) -> tuple[Array, Array, Array]:
    """Return masks (N, S) of disjoint, labelled parts; a missing part is empty."""
    if train is None:
        raise GraphError("val_mask or test_mask is given without train_mask.", "Pass it too")
    train_mask = mask("train_mask", train, y.shape[0])
    empty = np.zeros_like(train_mask)
    val_mask = empty if val is None else mask("val_mask", val, y.shape[0])
    test_mask = empty if test is None else mask("test_mask", test, y.shape[0])
    if not train_mask.shape == val_mask.shape == test_mask.shape:
        counts = [part.shape[1] for part in (train_mask, val_mask, test_mask)]
        raise GraphError(
            "train_mask, val_mask and test_mask must have the same number of splits "
            f"(got {counts[0]}, {counts[1]} and {counts[2]})."
        )
    overlap = (train_mask & val_mask) | (train_mask & test_mask) | (val_mask & test_mask)
    unlabelled = (train_mask | val_mask | test_mask) & ~is_known(y)[:, None]
    for wrong, reason, remedy in (
        (overlap, " twice, but train, val and test must not overlap", "Remove it from one of them"),
        (unlabelled, ", whose label is unknown", "Remove it"),
    ):
        if wrong.any():
            node, split = divmod(int(wrong.argmax()), wrong.shape[1])
            raise GraphError(f"Split {split} uses node {node}{reason}.", remedy)
    return train_mask, val_mask, test_mask
