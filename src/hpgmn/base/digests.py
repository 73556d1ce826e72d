"""Digests that identify arrays, graphs, splits and settings.

They are stored in run folders, studies, shards and records, so their results must not change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class _Graph(Protocol):
    """What digests read of a graph."""

    y: Array
    class_names: tuple[str, ...]

    @property
    def fingerprint(self) -> str: ...
    @property
    def splits(self) -> Any: ...
    def split(self, number: int) -> Any: ...


def digest(*parts: Any) -> str:
    """Return the SHA-256 of texts and buffers one after the other."""
    result = hashlib.sha256()
    for part in parts:
        result.update(part.encode() if isinstance(part, str) else part)
    return result.hexdigest()


def json_digest(content: Any) -> str:
    """Return the SHA-256 of a JSON value, keys sorted."""
    return digest(json.dumps(content, sort_keys=True))


def graph_content(graph: _Graph, splits: Sequence[int]) -> str:
    """Return a digest of all that a run reads: attributes, edges, labels, classes, splits."""
    labels = np.ascontiguousarray(graph.y, np.int64).data
    masks = [
        np.packbits(mask).data
        for number in splits
        for mask in _masks(graph.split(number), ("train", "val", "test"))
    ]
    return digest(graph.fingerprint, "\0".join(graph.class_names), labels, *masks)


def search_content(graph: _Graph, splits: Sequence[int]) -> str:
    """Return a digest of all that a search reads: no test label is part of it."""
    labels = [
        np.where(mask, graph.y, -1).tobytes()
        for number in splits
        for mask in _masks(graph.split(number), ("train", "val"))
    ]
    return digest(graph.fingerprint, *labels)


def shard_content(graph: _Graph) -> str:
    """Return a digest of all that shards take from a graph in memory."""
    masks = () if graph.splits is None else _masks(graph.splits, ("train", "val", "test"))
    contents = [np.ascontiguousarray(mask).tobytes() for mask in masks]
    return digest(graph.fingerprint, graph.y.tobytes(), *contents)


def _masks(split: Any, names: Iterable[str]) -> list[Array]:
    return [getattr(split, name) for name in names]


def array_digest(array: Any) -> str:
    """Return a digest of type, shape and bytes of an array or CSR matrix; "" for None.

    >>> array_digest(np.zeros(2)) == array_digest(np.zeros(2)) != array_digest(np.zeros((2, 1)))
    True
    """
    if array is None:
        return ""
    result = hashlib.blake2b(str(array.shape).encode(), digest_size=20)
    is_sparse = hasattr(array, "indptr")
    for part in (array.indptr, array.indices, array.data) if is_sparse else (array,):
        result.update(f"{part.dtype.str}{part.shape}".encode())
        result.update(as_bytes(part).data)  # no copy
    return result.hexdigest()


def as_bytes(array: Array) -> Array:
    """Return the bytes of an array in C order, without a copy where possible."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
