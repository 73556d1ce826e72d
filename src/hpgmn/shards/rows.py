"""Compute the rows of one range: attributes, class counts, class means, adjacency, diffusion.

A range is processed in blocks of at most ``plan.memory`` bytes: a block of rows with its neighbours
is a small graph, passed to the functions of :mod:`hpgmn.statistics`. Rows are summed in the order
of their neighbours, so they are bit-identical to those of one process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import Remedy
from hpgmn.base.parsing import read_array
from hpgmn.base.randomness import signs, text_keys
from hpgmn.base.sparse import dense_lengths, inverse_or_zero, row_lengths, scale_attributes
from hpgmn.graph import Array, Attributes
from hpgmn.shards.cutting import WORK, EdgeRows, count_edges, edges_folder, transition_folder
from hpgmn.shards.files import (
    RowFile,
    RowWriter,
    ShardedRows,
    SparseRowFile,
    SparseWriter,
    write_array,
)
from hpgmn.shards.plan import EDGE_BYTES, Plan, Unit, largest_of, require_task_memory
from hpgmn.statistics.definitions import require_half_range
from hpgmn.statistics.diffusion import sketch_attributes
from hpgmn.statistics.labelwise import (
    class_counts,
    class_mean_rows,
    class_means,
    is_compiled,
    scale_counts,
)
from hpgmn.statistics.push import largest_of_range, worker_bytes
from hpgmn.statistics.settings import base_name

_MORE_MEMORY = Remedy("Give tasks more memory", option="memory")
_ENTRY_BYTES = 24  # of a sparse row: while read, as an entry, while scaled
_WORK_ROWS = 8  # arrays of d numbers per row: the product, signs and their bits
_NAME_BYTES = 256  # a node's name while it is hashed
_PLACES = 1 << 16  # rows whose lengths are read at once


@dataclass(frozen=True)
class Block:
    """Some rows of a range and their neighbours.

    Attributes:
        first: the first row, counted within the range.
        last: the row after the last.
        nodes: (U,) the neighbours, ascending.
        adjacency: (last - first, U).
    """

    first: int
    last: int
    nodes: Array
    adjacency: sp.csr_array


def blocks(edges: EdgeRows, memory: int, per_edge: int, per_row: int, what: str) -> Iterator[Block]:
    """Yield a range in as few blocks as fit into memory.

    Args:
        edges: the range's edges, or its rows of T.
        memory: most bytes of a block.
        per_edge: bytes per neighbour beside :data:`EDGE_BYTES`.
        per_row: bytes per row of the result.
        what: the rows, for the error if a single row takes more.
    """
    for first, last in spans(edges.indptr, memory, per_edge + EDGE_BYTES, per_row, what):
        rows = edges.rows(first, last)
        nodes, columns = np.unique(rows.indices, return_inverse=True)
        shape = (last - first, max(1, nodes.size))
        adjacency = sp.csr_array((rows.data, columns.astype(np.int32), rows.indptr), shape=shape)
        yield Block(first, last, nodes if nodes.size else np.zeros(1, np.int32), adjacency)


def spans(
    indptr: Array, memory: int, per_entry: int, per_row: int, what: str
) -> Iterator[tuple[int, int]]:
    """Yield consecutive rows, as many at once as fit into memory.

    >>> list(spans(np.array([0, 2, 4, 9]), 60, 10, 5, "Rows"))
    [(0, 2), (2, 3)]
    """
    needed = per_entry * largest_of(np.diff(indptr)) + per_row
    require_task_memory(needed, memory, f"{what} of the node with most neighbours", _MORE_MEMORY)
    rows = len(indptr) - 1
    total = np.asarray(indptr, np.int64) * per_entry + np.arange(rows + 1) * per_row
    first = 0
    while first < rows:
        last = int(np.searchsorted(total, total[first] + memory, side="right")) - 1
        yield first, last
        first = last


def rows_file(part: int, name: str) -> str:
    """Return the path of an array of a range, relative to the folder of the shards.

    >>> rows_file(3, "y.npy")
    'rows-00003/y.npy'
    """
    return f"rows-{part:05d}/{name}"


def make_nodes(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Write labels, names and the split of a range's nodes."""
    start, stop = plan.span(unit.part)
    arrays = {}
    for name in ("y", "node_ids"):
        path = plan.folder / f"{name}.npy"
        if path.is_file():
            arrays[name] = RowFile(path).span(start, stop)
    arrays.setdefault("y", np.full(stop - start, -1, np.int64))
    arrays.setdefault("node_ids", np.arange(start, stop))
    if plan.split is not None:
        for name in ("train", "val", "test"):
            mask = RowFile(plan.folder / f"{name}_mask.npy").span(start, stop)
            arrays[name] = np.ascontiguousarray(mask.reshape(stop - start, -1)[:, plan.split])
    return {
        target: write_array(folder / target, array)
        for name, array in arrays.items()
        for target in [rows_file(unit.part, f"{name}.npy")]
    }


def make_rows(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Write the rows of one statistic of a range."""
    make = {
        "attributes": _attributes,
        "class_counts": _class_counts,
        "class_means": _class_means,
        "adjacency": _adjacency,
    }[base_name(unit.name)]
    return make(folder, plan, unit)


def attributes_file(plan: Plan) -> RowFile | SparseRowFile:
    """Open the rows of the graph's attributes."""
    if not plan.is_sparse:
        return RowFile(plan.folder / "x.npy")
    indptr, indices, data = (
        plan.folder / f"x_{part}.npy" for part in ("indptr", "indices", "data")
    )
    return SparseRowFile(indptr, indices, data, plan.num_features)


def _labels(folder: Path, nodes: Array) -> Array:
    return RowFile(folder / WORK / "labels.npy").take(nodes)


def _single(x: Attributes) -> Attributes:
    return x if sp.issparse(x) else np.asarray(x, np.float32)


def _attributes(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    scaling, x = plan.statistics.attributes_scaling, attributes_file(plan)
    start, stop = plan.span(unit.part)
    if isinstance(x, SparseRowFile):
        target = rows_file(unit.part, "attributes.npz")
        lengths = [
            x.lengths(np.arange(first, min(first + _PLACES, stop)))[1]
            for first in range(start, stop, _PLACES)
        ]
        indptr = np.append(0, np.cumsum(np.concatenate(lengths)))
        with SparseWriter(folder / target, plan.num_features) as sparse:
            for first, last in spans(indptr, plan.memory, 2 * _ENTRY_BYTES, 64, "Attributes"):
                sparse.append(scale_attributes(x.span(start + first, start + last), scaling))
            return {target: sparse.done()}
    target = rows_file(unit.part, "attributes.npy")
    step = max(1, plan.memory // (4 * 4 * plan.num_features))
    with RowWriter(folder / target, np.float32, (plan.num_features,)) as writer:
        for first in range(start, stop, step):
            rows = _single(x.span(first, min(first + step, stop)))
            writer.append(scale_attributes(rows, scaling))
        return {target: writer.done()}


def _class_counts(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    target, classes = rows_file(unit.part, f"{unit.name}.npy"), plan.num_classes
    edges = EdgeRows(edges_folder(folder, plan.mode(unit.name), unit.part), plan)
    scaling = plan.statistics.class_counts_scaling
    with RowWriter(folder / target, np.float32, (classes,)) as writer:
        for block in blocks(edges, plan.memory, 8 + 8 * classes, 16 * classes, "Class counts"):
            counts = class_counts(block.adjacency, _labels(folder, block.nodes), classes)
            writer.append(scale_counts(counts, scaling))
        return {target: writer.done()}


def _class_means(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    form, classes, width = plan.statistics.class_means_form, plan.num_classes, plan.num_features
    mode = plan.mode(unit.name)
    edges = EdgeRows(edges_folder(folder, mode, unit.part), plan)
    every = count_edges(folder, plan, mode)
    x = attributes_file(plan)
    dim = plan.statistics.class_means_dim if form == "sketch" else width
    # Attributes as read, as single precision, and moved to the columns of their class; then rows.
    per_edge = {"half": 12 * width, "sketch": 8 * width + 8 * dim}.get(form, 24 * width)
    if plan.is_sparse:
        per_edge = _ENTRY_BYTES * _longest_row(x, plan.num_nodes) + 8 * dim
    per_row = {"half": 2, "sketch": 2}.get(form, 16) * classes * dim + 16 * dim
    is_sparse = form == "sparse"
    target = rows_file(unit.part, f"{unit.name}.{'npz' if is_sparse else 'npy'}")
    kind = np.float32 if form == "dense" else np.float16
    writer: Any = (
        SparseWriter(folder / target, classes * dim)
        if is_sparse
        else RowWriter(folder / target, kind, (classes * dim,))
    )
    with writer:
        for block in blocks(edges, plan.memory, per_edge, per_row, "Class means"):
            x_block = _single(x.take(block.nodes))
            writer.append(_means_of(block, x_block, _labels(folder, block.nodes), plan, every))
        return {target: writer.done()}


def _longest_row(x: Any, num_nodes: int) -> int:
    """Return the most entries of a node's attributes, read in blocks."""
    return max(
        largest_of(x.lengths(np.arange(first, min(first + _PLACES, num_nodes)))[1])
        for first in range(0, num_nodes, _PLACES)
    )


def _means_of(block: Block, x: Attributes, labels: Array, plan: Plan, edges: int) -> Any:
    """Return the class means of a block's rows, as in ``LocalStatistics``.

    Args:
        x: the attributes of the neighbours.
        labels: the labels of the neighbours.
        edges: the number of edges of the whole graph in this mode.
    """
    form, classes = plan.statistics.class_means_form, plan.num_classes
    is_unit = plan.statistics.class_means_scaling == "unit"
    if form in ("half", "sketch"):
        if form == "sketch":
            x = sketch_attributes(x, plan.statistics.class_means_dim)
        if not is_unit:
            require_half_range(x)
        # By the size of the whole graph: the two code paths differ in their last bits.
        fast = is_compiled(x, edges)
        return class_mean_rows(
            block.adjacency, x, labels, classes, unit_length=is_unit, compiled=fast
        )
    means = class_means(block.adjacency, x, labels, classes)
    if form == "sparse":
        if is_unit:
            scale = inverse_or_zero(row_lengths(means))
            means.data *= np.repeat(scale, np.diff(means.indptr))
        return means
    rows = means.toarray()
    if is_unit:
        rows *= inverse_or_zero(dense_lengths(rows))[..., None]
    return rows


def _adjacency(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    target = rows_file(unit.part, f"{unit.name}.npz")
    edges = EdgeRows(edges_folder(folder, plan.mode(unit.name), unit.part), plan)
    with SparseWriter(folder / target, plan.num_nodes) as writer:
        for first, last in spans(edges.indptr, plan.memory, EDGE_BYTES, 64, "Adjacency rows"):
            rows = edges.rows(first, last)
            writer.append(scale_attributes(rows, plan.statistics.adjacency_scaling))
        return {target: writer.done()}


def check_push(plan: Plan) -> None:
    """Raise HPGMNError if the largest entries of a range exceed the memory of a task."""
    chosen = plan.statistics
    if "diffusion" not in chosen.statistics or chosen.diffusion_form != "topk":
        return
    rows = largest_of(np.diff(plan.starts))
    entries = 3 * 8 * rows * min(chosen.diffusion_topk, plan.num_nodes)
    needed = worker_bytes(plan.num_nodes, chosen.diffusion) + entries
    remedy = Remedy("Cut the graph into more ranges", option="ranges") | _MORE_MEMORY
    remedy |= Remedy("Use a sketch", setting="diffusion_form", value="sketch")
    require_task_memory(needed, plan.memory, "The largest entries of a range", remedy)


def make_topk(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Write the largest entries of the diffusion rows of a range.

    T is memory-mapped, because a push may reach any row.
    """
    chosen, (start, stop) = plan.statistics, plan.span(unit.part)
    source = transition_folder(folder, plan.mode(unit.name))
    indptr, indices, data = (
        read_array(source / f"{name}.npy", mapped="r") for name in ("indptr", "indices", "data")
    )
    rows = largest_of_range(
        (np.asarray(indptr), np.asarray(indices), np.asarray(data)),
        (start, stop),
        chosen,
        threads=1,
    )
    path = rows_file(unit.part, f"{unit.name}.npz")
    with SparseWriter(folder / path, plan.num_nodes) as writer:
        writer.append(scale_attributes(rows, chosen.diffusion_scaling))
        return {path: writer.done()}


# The sketch of diffusion by synchronous rounds, Horner as in ``statistics.diffusion.series``:
# H ← T·H + θ_k·Ω. A round of a range reads the rows of H that its neighbours had in the round
# before, whichever range they are in; the last round removes self entries and scales the rows.


def round_file(name: str, step: int, part: int) -> str:
    """Return the path of a round of a range, relative to the folder of the shards."""
    return f"{WORK}/{name}-{step:03d}/{part:05d}.npy"


def make_round(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Compute one round of a range."""
    chosen, dim = plan.statistics, plan.statistics.diffusion_dim
    theta = plan.theta.copy()
    if not chosen.diffusion_self_entry:
        theta[0] = 0.0  # it affects the self entry only
    is_last = unit.step == len(theta) - 1
    target = round_file(unit.name, unit.step, unit.part)
    if is_last:
        target = rows_file(unit.part, f"{unit.name}.npy")
    edges = EdgeRows(transition_folder(folder, plan.mode(unit.name), unit.part), plan)
    before = None
    if unit.step:
        paths = [
            folder / round_file(unit.name, unit.step - 1, part) for part in range(plan.num_ranges)
        ]
        before = ShardedRows(paths, plan.starts)
    weight = np.float32(theta[-1 - unit.step])
    with RowWriter(folder / target, np.float32, (dim,)) as writer:
        per_row = 4 * _WORK_ROWS * dim + _NAME_BYTES
        for block in blocks(edges, plan.memory, 8 * dim, per_row, "Diffusion rows"):
            omega = _signs(plan, unit.part, block, dim)
            rows = omega * weight
            if before is not None:
                rows += block.adjacency @ before.take(block.nodes)
            if is_last:
                rows = _finish(rows, omega, block, plan, unit.part)
            writer.append(rows)
        return {target: writer.done()}


def _signs(plan: Plan, part: int, block: Block, dim: int) -> Array:
    """Return the rows of Ω·√d of a block's nodes."""
    start = plan.starts[part]
    first, last = start + block.first, start + block.last
    path = plan.folder / "node_ids.npy"
    if path.is_file():
        names = RowFile(path).span(first, last)
    else:
        names = np.arange(first, last).astype(np.str_)
    result: Array = signs(text_keys(names), 0, dim).numpy()
    return result


def _finish(rows: Array, omega: Array, block: Block, plan: Plan, part: int) -> Array:
    """Remove self entries, if so set, and scale rows; see ``statistics.diffusion.sketch``."""
    dim = rows.shape[1]
    if not plan.statistics.diffusion_self_entry:
        along = (rows * omega).sum(axis=1, keepdims=True)
        rows -= omega * (along / dim)
        nodes = np.arange(block.first, block.last) + plan.starts[part]
        entries = block.nodes[block.adjacency.indices]
        lengths = np.diff(block.adjacency.indptr)
        is_other = entries != np.repeat(nodes, lengths)
        has_other = np.zeros(nodes.size, bool)
        has_other[np.repeat(np.arange(nodes.size), lengths)[is_other]] = True
        rows[~has_other] = 0  # rounding errors
    if plan.statistics.diffusion_scaling != "unit":
        return rows * np.float32(1 / math.sqrt(dim))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
