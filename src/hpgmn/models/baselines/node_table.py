"""A table with one row per node, as a user of gradient boosting would build it by hand.

Columns, the edge columns once per direction: attributes, their means over 1 to ``hops`` steps,
their extremes among neighbours if they are few, degrees, class counts and shares of the neighbours
and of the nodes two steps away from train labels (of a regression their mean targets), adjacency
rows reduced by a truncated SVD, and their means over neighbours. A node's own label is in no column
of its row: the adjacency has no self-loops, and two steps away the nodes are left out whose hash
falls into the same fold as the node's. Leaving out the node alone would not do: where many nodes
share a hub, a count that is one lower than the others' tells the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpgmn.base.files import array_digest
from hpgmn.base.machine import one_thread
from hpgmn.base.randomness import signs, text_keys
from hpgmn.base.sparse import transition
from hpgmn.base.tasks import is_known, is_target
from hpgmn.graph import Array, Graph
from hpgmn.statistics import LocalStatistics
from hpgmn.statistics.diffusion import node_keys
from hpgmn.statistics.labelwise import one_hot

MODES = ("out", "in", "undirected")
FOLDS = 8
"""Parts into which nodes are hashed for the classes two steps away."""

RAW_ATTRIBUTES = 128
"""More attributes than this are reduced by a truncated SVD; half of them stay beside it."""

LANDMARKS = 8192
"""Most columns that an SVD reads: the longest of a matrix."""

_EXTRA, _ITERATIONS = 8, 4  # of the subspace iteration

Bases = Mapping[str, Array]
"""What the columns of a trained model mean: the columns that an SVD reads, and its vectors."""

_NAMES = {"out": "out-neighbours", "in": "in-neighbours", "undirected": "neighbours"}


@dataclass(frozen=True)
class Column:
    """A column of the table: the statistic it belongs to, and its name."""

    statistic: str
    name: str


def edge_modes(graph: Graph, neighbors: str) -> tuple[str, ...]:
    """Return the directions of the columns; both of a symmetric graph are one."""
    if neighbors != "both":
        return (neighbors,)
    is_directed = graph.directed and (graph.is_weighted or graph.has_one_way_edges)
    return ("out", "in") if is_directed else ("undirected",)


def make_bases(statistics: LocalStatistics, settings: Any) -> dict[str, Array]:
    """Return the SVDs of the training graph: ``X_columns`` (c,) and ``X_basis`` (c, d) each.

    X is "attributes" (empty if there are few) or a direction. ``attributes_raw`` are the attributes
    that are columns themselves.
    """

    def compute() -> dict[str, Array]:
        graph, dim = statistics.graph, settings.svd_dim
        x, width = sp.csr_array(graph.x), graph.num_features
        bases: dict[str, Array] = {"attributes_raw": np.arange(width, dtype=np.int32)}
        if width > max(dim, RAW_ATTRIBUTES):
            bases["attributes_raw"] = _longest(_variances(x), RAW_ATTRIBUTES // 2)
        if width > dim:
            scale = np.ones(width) if sp.issparse(graph.x) else _column_scale(x)
            bases |= _reduce(sp.csr_array(x * scale), dim, "attributes")
            bases["attributes_basis"] *= scale[bases["attributes_columns"], None]
        else:
            bases["attributes_columns"] = np.empty(0, np.int32)
            bases["attributes_basis"] = np.empty((0, dim))
        for mode in edge_modes(graph, settings.neighbors):
            bases |= _reduce(_matrix(statistics, mode, "symmetric"), dim, mode)
        return {
            name: value.astype(np.int32 if value.ndim == 1 else np.float32)
            for name, value in bases.items()
        }

    return statistics.once(("bases", settings.neighbors, settings.svd_dim), compute)


def modes_of(bases: Bases) -> list[str]:
    """Return the directions of a table's columns."""
    return [mode for mode in MODES if f"{mode}_basis" in bases]


def attribute_columns(x: Any, bases: Bases) -> tuple[Array, Array]:
    """Return the columns of own attributes, the first of a table, and those that are averaged."""
    read, kept = bases["attributes_columns"], bases["attributes_raw"]
    own = reduced = _attributes(x, kept)
    if read.size:
        reduced = np.asarray(x[:, read] @ bases["attributes_basis"])
    if kept.size < x.shape[1]:
        own = np.concatenate([own, reduced], axis=1)
    return own, reduced


def label_free_rows(statistics: LocalStatistics, settings: Any, bases: Bases) -> Array:
    """Return the columns that do not depend on labels: (N, W) float32."""

    def compute() -> Array:
        own, reduced = attribute_columns(statistics.graph.x, bases)
        parts = [own]
        for mode in modes_of(bases):
            adjacency, mean = statistics.adjacency(mode), _matrix(statistics, mode, "row")
            degree = np.diff(adjacency.indptr).astype(np.float32)
            strength = np.asarray(adjacency.sum(axis=1), np.float32).reshape(-1)
            parts += [np.stack([degree, strength, mean @ degree], axis=1)]
            if not bases["attributes_columns"].size:
                parts += [_extremes(adjacency, reduced, largest=best) for best in (True, False)]
            states = reduced
            for _ in range(settings.hops):
                states = mean @ states
                parts.append(states)
            links = _matrix(statistics, mode, "symmetric") @ _node_vectors(statistics, bases, mode)
            parts += [links, mean @ links]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    key = ("node table", settings.hops, *map(array_digest, bases.values()))
    return statistics.once(key, compute)


def label_rows(
    statistics: LocalStatistics, modes: Sequence[str], labels: Array, num_classes: int
) -> Array:
    """Return the columns from train labels, (N,) and unknown elsewhere: (N, W) float32.

    Of targets, which are standardised, means take the place of counts and shares.
    """
    if is_target(labels):
        flags = is_known(labels)
        known = np.stack([np.where(flags, labels, 0), flags], axis=1).astype(np.float32)
    else:
        known = one_hot(labels, num_classes).astype(np.float32)
    folds = node_keys(statistics.graph).numpy() % FOLDS
    parts: list[Array] = []
    for mode in modes:
        counts = statistics.adjacency(mode) @ known
        parts += _means(counts) if is_target(labels) else [counts, *_shares(counts)]
        mean = _matrix(statistics, mode, "row")
        far = np.zeros_like(counts)
        for fold in range(FOLDS):
            members = np.flatnonzero(folds == fold)
            others = np.where((folds == fold)[:, None], np.float32(0), known)
            far[members] = mean[members] @ (mean @ others)
        parts += _means(far) if is_target(labels) else _shares(far)
    return np.concatenate(parts, axis=1, dtype=np.float32)


def columns(graph: Graph, settings: Any, bases: Bases, class_names: Sequence[str]) -> list[Column]:
    """Return the columns of a table in order, the label-free ones first; no classes: targets."""
    names = graph.feature_names
    attributes = [
        f"attribute {number}" if names is None else str(names[number])
        for number in range(graph.num_features)
    ]
    is_reduced = bases["attributes_columns"].size > 0
    components = [f"component {k + 1} of the attributes" for k in range(settings.svd_dim)]
    reduced = components if is_reduced else attributes
    found = [Column("attributes", attributes[number]) for number in bases["attributes_raw"]]
    if bases["attributes_raw"].size < graph.num_features:
        found += [Column("attributes", name) for name in components]
    modes = modes_of(bases)
    for mode in modes:
        near = _NAMES[mode]
        found += [
            Column("degrees", f"number of {near}"),
            Column("degrees", f"total weight of edges to {near}"),
            Column("degrees", f"mean number of {near} of {near}"),
        ]
        if not is_reduced:
            for word in ("largest", "smallest"):
                found += [
                    Column("neighbor_attributes", f"{word} over {near}: {name}") for name in reduced
                ]
        for hop in range(1, settings.hops + 1):
            statistic, place = ("neighbor_attributes", near)
            if hop > 1:
                statistic, place = "hops", f"{near} {hop} steps away"
            found += [Column(statistic, f"mean over {place}: {name}") for name in reduced]
        for statistic, place in (("adjacency", ""), ("neighbor_adjacency", f"mean over {near}: ")):
            found += [
                Column(statistic, f"{place}component {k + 1} of the links to {near}")
                for k in range(settings.svd_dim)
            ]
    for mode in () if class_names else modes:
        near = _NAMES[mode]
        found += [
            Column("target_means", f"mean target of {near}"),
            Column("target_means", f"number of {near} with a target"),
            Column("neighbor_target_means", f"mean target of {near} two steps away"),
            Column("neighbor_target_means", f"share of {near} two steps away with a target"),
        ]
    for mode in modes if class_names else ():
        near = _NAMES[mode]
        found += [Column("class_counts", f"number of {near} of class '{c}'") for c in class_names]
        found += [Column("class_counts", f"share of class '{c}' of {near}") for c in class_names]
        found.append(Column("class_counts", f"number of {near} with a label"))
        found += [
            Column("neighbor_class_counts", f"share of class '{c}' of {near} two steps away")
            for c in class_names
        ]
        found.append(
            Column("neighbor_class_counts", f"share of {near} two steps away with a label")
        )
    return found


def _attributes(x: Any, chosen: Array) -> Array:
    part = x[:, chosen]
    return np.asarray(part.toarray() if sp.issparse(part) else part, np.float32)


def _extremes(adjacency: sp.csr_array, values: Array, *, largest: bool) -> Array:
    """Return (N, d) the largest or smallest values among neighbours, 0 without any."""
    found = np.zeros_like(values)
    linked = np.diff(adjacency.indptr) > 0
    starts = adjacency.indptr[:-1][linked]
    reduce = (np.maximum if largest else np.minimum).reduceat
    if starts.size:
        for number, column in enumerate(values.T):
            found[linked, number] = reduce(column[adjacency.indices], starts)
    return found


def _matrix(statistics: LocalStatistics, mode: str, normalization: str) -> sp.csr_array:
    """Return the normalised adjacency: "row" for means, "symmetric" for an SVD of its rows."""
    return statistics.once(
        ("matrix", mode, normalization),
        lambda: transition(statistics.adjacency(mode), normalization),
    )


def _shares(counts: Array) -> list[Array]:
    """Return rows divided by their sums, zeros where it is 0, and (N, 1) the sums."""
    total = counts.sum(axis=1, keepdims=True)
    return [np.divide(counts, total, out=np.zeros_like(counts), where=total > 0), total]


def _means(sums: Array) -> list[Array]:
    """Return the mean (N, 1) of sums and counts (N, 2), 0 without any, and the counts."""
    total, count = sums[:, :1], sums[:, 1:]
    return [np.divide(total, count, out=np.zeros_like(total), where=count > 0), count]


def _column_scale(x: sp.csr_array) -> Array:
    """Return 1 / √(mean square) of each column, 0 for empty columns."""
    squares = np.asarray(x.astype(np.float64).multiply(x).mean(axis=0)).reshape(-1)
    return np.asarray(
        np.divide(1.0, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)
    )


def _variances(x: sp.csr_array) -> Array:
    """Return (F,) the variance of each column."""
    x = x.astype(np.float64)
    means = np.asarray(x.mean(axis=0)).reshape(-1)
    squares = np.asarray(x.multiply(x).mean(axis=0)).reshape(-1)
    return np.asarray(squares - means**2)


def _longest(sizes: Array, most: int) -> Array:
    """Return the positions of the largest sizes, ascending."""
    return np.sort(np.argsort(-sizes, kind="stable")[:most])


def _reduce(matrix: sp.csr_array, dim: int, name: str) -> dict[str, Array]:
    """Return the columns that the SVD of a matrix reads, and its first right singular vectors.

    A subspace iteration from hashed signs; vectors are rounded to half precision, so that another
    number of threads or kind of processor hardly ever changes them. Zeros follow if there are fewer
    than ``dim``.
    """
    squares = np.asarray(matrix.astype(np.float64).multiply(matrix).sum(axis=0)).reshape(-1)
    chosen = _longest(squares, LANDMARKS)
    part = sp.csr_array(matrix[:, chosen]).astype(np.float64)
    count = min(dim + _EXTRA, *part.shape)
    keys = text_keys(chosen.astype(np.str_))
    with one_thread():
        vectors = _orthogonal(signs(keys, 0, count).double().numpy())
        for _ in range(_ITERATIONS):
            vectors = _orthogonal(part.T @ (part @ vectors))
        products = torch.from_numpy(part @ vectors)
        parts = torch.linalg.svd(products, full_matrices=False)
    sizes, rotation = parts.S.numpy(), parts.Vh.numpy()
    vectors = (vectors @ rotation.T)[:, : min(dim, count)]
    sizes = sizes[: vectors.shape[1]]
    vectors[:, sizes <= 1e-6 * sizes.max(initial=0.0)] = 0  # of an arbitrary direction
    largest = np.abs(vectors).argmax(axis=0)
    vectors *= np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1, 1)
    basis = np.zeros((chosen.size, dim))
    basis[:, : vectors.shape[1]] = vectors.astype(np.float16)
    return {f"{name}_columns": chosen, f"{name}_basis": basis}


def _orthogonal(vectors: Array) -> Array:
    return np.asarray(torch.linalg.qr(torch.from_numpy(vectors)).Q.numpy())


def _node_vectors(statistics: LocalStatistics, bases: Bases, mode: str) -> Array:
    """Return (N, d) the vector of each node of the graph, zeros for nodes without one."""
    chosen, basis = bases[f"{mode}_columns"], bases[f"{mode}_basis"]
    width = statistics.graph.num_nodes if statistics.columns is None else statistics.width
    trained = np.zeros(((width or 0) + 1, basis.shape[1]), np.float32)
    trained[chosen] = basis
    if statistics.columns is None:
        return trained[:-1]
    known: torch.Tensor = statistics.columns
    return np.asarray(trained[known.cpu().numpy()])  # -1 reads the last row, zeros
