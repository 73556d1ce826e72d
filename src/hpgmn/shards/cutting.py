"""Cut edges into node ranges: outgoing, incoming, undirected, and T.

The unit that cuts the outgoing edges of a range also sorts them by target range, into one file with
R parts; the unit of the incoming edges reads its part of each. This is the only shuffle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import Remedy
from hpgmn.base.sparse import inverse_or_zero
from hpgmn.graph import Array
from hpgmn.graph.edges import sorted_csr
from hpgmn.shards.files import RowFile, RowWriter, ShardedRows, write_array
from hpgmn.shards.plan import EDGE_BYTES, Plan, Unit, require_task_memory

WORK = "work"
"""Name of the folder of intermediate files."""

_MORE_RANGES = Remedy("Cut the graph into more ranges", option="ranges") | Remedy(
    "Give tasks more memory", option="memory"
)
_OPPOSITE = {"out": "in", "in": "out", "undirected": "undirected"}
_COPIED = 1 << 20  # entries copied at once


def edges_folder(folder: Path, mode: str, part: int) -> Path:
    """Return the folder of the edges of a range."""
    return folder / WORK / f"edges-{mode}-{part:05d}"


def buckets_folder(folder: Path, part: int) -> Path:
    """Return the folder of the outgoing edges of a range, sorted by target range."""
    return folder / WORK / f"buckets-{part:05d}"


def transition_folder(folder: Path, mode: str, part: int | None = None) -> Path:
    """Return the folder of T, of one range or whole."""
    return folder / WORK / f"transition-{mode}{'' if part is None else f'-{part:05d}'}"


def cut_out(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Write the outgoing edges of a range, without self-loops, duplicates merged."""
    start, stop = plan.span(unit.part)
    indptr = RowFile(plan.folder / "edges_indptr.npy").span(start, stop + 1).astype(np.int64)
    _refuse_many(plan, int(indptr[-1] - indptr[0]), unit)
    targets = _slice(plan.folder / "edges_indices.npy", indptr).astype(np.int32)
    weights = np.ones(targets.size, np.float32)
    if plan.is_weighted:
        weights = _slice(plan.folder / "edges_data.npy", indptr).astype(np.float32)
    indptr -= indptr[0]
    sources = np.repeat(np.arange(start, stop, dtype=np.int32), np.diff(indptr))
    is_edge = sources != targets
    pointers = np.append(0, np.cumsum(is_edge))[indptr]
    shape = (stop - start, plan.num_nodes)
    matrix = sp.csr_array((weights[is_edge], targets[is_edge], pointers), shape=shape)
    matrix.sum_duplicates()
    if not plan.is_weighted:
        matrix.data[:] = 1
    files = _write_edges(folder, edges_folder(folder, "out", unit.part), plan, matrix)
    if plan.needs_entering:
        files |= _write_buckets(folder, plan, unit.part, sorted_csr(matrix))
    return files


def _slice(path: Path, indptr: Array) -> Array:
    return RowFile(path).span(int(indptr[0]), int(indptr[-1]))


def _refuse_many(plan: Plan, edges: int, unit: Unit) -> None:
    what = f"The {edges:,} edges of range {unit.part}"
    require_task_memory(EDGE_BYTES * edges, plan.memory, what, _MORE_RANGES)


def _write_edges(folder: Path, target: Path, plan: Plan, matrix: sp.csr_array) -> dict[str, Any]:
    matrix = sorted_csr(matrix)
    arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "sums": _sums(matrix)}
    if plan.is_weighted:
        arrays["data"] = matrix.data
    return _write_all(folder, target, arrays)


def _write_all(folder: Path, target: Path, arrays: dict[str, Array]) -> dict[str, Any]:
    relative = target.relative_to(folder)
    return {
        f"{relative}/{name}.npy": write_array(target / f"{name}.npy", array)
        for name, array in arrays.items()
    }


def _sums(matrix: sp.csr_array) -> Array:
    """Return row sums, added entry by entry: bit-identical to SciPy's column sums."""
    columns = np.zeros(matrix.nnz, np.int32)
    shape = (matrix.shape[0], 1)
    narrow = sp.csr_array((matrix.data, columns, matrix.indptr), shape=shape)
    sums: Array = narrow @ np.ones(1, np.float32)
    return sums


def _write_buckets(folder: Path, plan: Plan, part: int, matrix: sp.csr_array) -> dict[str, Any]:
    entered = np.searchsorted(plan.starts, matrix.indices, side="right") - 1
    order = np.argsort(entered.astype(np.uint32), kind="stable")
    rows = np.arange(plan.starts[part], plan.starts[part + 1], dtype=np.int32)
    sources = np.repeat(rows, np.diff(matrix.indptr))
    pointers = np.append(0, np.cumsum(np.bincount(entered, minlength=plan.num_ranges)))
    arrays = {"places": pointers, "sources": sources[order], "targets": matrix.indices[order]}
    if plan.is_weighted:
        arrays["data"] = matrix.data[order]
    return _write_all(folder, buckets_folder(folder, part), arrays)


def cut_in(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Write the incoming edges of a range: row v lists the sources of v's edges."""
    buckets = [buckets_folder(folder, part) for part in range(plan.num_ranges)]
    ends = [RowFile(path / "places.npy").span(unit.part, unit.part + 2) for path in buckets]
    edges = sum(int(last - first) for first, last in ends)
    _refuse_many(plan, edges, unit)

    def gather(name: str) -> Array:
        parts = [_slice(path / f"{name}.npy", end) for path, end in zip(buckets, ends, strict=True)]
        return np.concatenate(parts)

    start, stop = plan.span(unit.part)
    weights = gather("data") if plan.is_weighted else np.ones(edges, np.float32)
    rows = gather("targets") - np.int32(start)
    matrix = sp.csr_array(
        (weights, (rows, gather("sources"))), shape=(stop - start, plan.num_nodes)
    )
    return _write_edges(folder, edges_folder(folder, "in", unit.part), plan, matrix)


def cut_undirected(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Write the edges of a range in both directions, merged as in ``Graph.adjacency``."""
    edges = sum(_num_edges(folder, mode, unit.part) for mode in ("out", "in"))
    _refuse_many(plan, edges, unit)
    leaving, entering = (read_edges(folder, plan, mode, unit.part) for mode in ("out", "in"))
    adds = plan.is_directed and plan.is_weighted
    joined = leaving + entering if adds else leaving.maximum(entering)
    target = edges_folder(folder, "undirected", unit.part)
    return _write_edges(folder, target, plan, sp.csr_array(joined))


def read_edges(folder: Path, plan: Plan, mode: str, part: int) -> sp.csr_array:
    """Return all edges of a range: (M, N)."""
    return EdgeRows(edges_folder(folder, mode, part), plan).rows()


def count_edges(folder: Path, plan: Plan, mode: str) -> int:
    """Return the number of edges of all ranges, duplicates merged."""
    return sum(_num_edges(folder, mode, part) for part in range(plan.num_ranges))


def _num_edges(folder: Path, mode: str, part: int) -> int:
    return len(RowFile(edges_folder(folder, mode, part) / "indices.npy"))


class EdgeRows:
    """The edges of a range, read by rows or whole."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._width = folder, plan.num_nodes
        self.indptr = RowFile(folder / "indptr.npy").whole()
        self._has_data = (folder / "data.npy").is_file()

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def rows(self, first: int = 0, last: int | None = None) -> sp.csr_array:
        """Return rows as (last - first, N), float32 with sorted 32-bit indices."""
        indptr = self.indptr[first : (len(self) if last is None else last) + 1]
        columns = _slice(self._folder / "indices.npy", indptr)
        values = np.ones(columns.size, np.float32)
        if self._has_data:
            values = _slice(self._folder / "data.npy", indptr)
        pointers = (indptr - indptr[0]).astype(np.int32)
        return sp.csr_array((values, columns, pointers), shape=(len(indptr) - 1, self._width))


def make_transition(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Write the rows of T of a range; its column sums are row sums of the reversed edges."""
    mode, (start, stop) = unit.name, plan.span(unit.part)
    edges = EdgeRows(edges_folder(folder, mode, unit.part), plan)
    loop = plan.statistics.diffusion_self_loop
    _refuse_many(plan, int(edges.indptr[-1]) + loop * len(edges), unit)
    matrix = edges.rows()
    if loop:
        shape = (stop - start, plan.num_nodes)
        loop_entries = (np.arange(stop - start), np.arange(start, stop))
        loops = sp.csr_array((np.full(stop - start, loop, np.float32), loop_entries), shape=shape)
        matrix = sorted_csr(sp.csr_array(matrix + loops))
    kind = plan.statistics.normalization
    factor = np.ones(matrix.nnz, np.float32)
    if kind != "column":
        row_sums = np.asarray(matrix.sum(axis=1)).reshape(-1).astype(np.float32)
        per_row = np.repeat(inverse_or_zero(row_sums), np.diff(matrix.indptr))
        factor = per_row if kind == "row" else np.sqrt(per_row)
    if kind != "row":
        folders = [edges_folder(folder, _OPPOSITE[mode], part) for part in range(plan.num_ranges)]
        sums = ShardedRows([path / "sums.npy" for path in folders], plan.starts)
        nodes, inverse = np.unique(matrix.indices, return_inverse=True)
        per_column = inverse_or_zero(sums.take(nodes) + np.float32(loop))[inverse]
        factor = per_column if kind == "column" else factor * np.sqrt(per_column)
    matrix.data = (matrix.data * factor).astype(np.float32)
    matrix.eliminate_zeros()
    arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "data": matrix.data}
    return _write_all(folder, transition_folder(folder, mode, unit.part), arrays)


def join_transition(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Concatenate T into one file per array, because a push may reach any row."""
    parts = [transition_folder(folder, unit.name, part) for part in range(plan.num_ranges)]
    target = transition_folder(folder, unit.name)
    before, facts = 0, {}
    with RowWriter(target / "indptr.npy", np.int64) as indptr:
        indptr.append(np.zeros(1, np.int64))
        for part in parts:
            ends = RowFile(part / "indptr.npy").whole()[1:].astype(np.int64) + before
            before = int(ends[-1])
            indptr.append(ends)
        facts[indptr.path] = indptr.done()
    for name, dtype in (("indices", np.int32), ("data", np.float32)):
        with RowWriter(target / f"{name}.npy", dtype) as writer:
            for part in parts:
                file = RowFile(part / f"{name}.npy")
                for first in range(0, len(file), _COPIED):
                    writer.append(file.span(first, min(first + _COPIED, len(file))))
            facts[writer.path] = writer.done()
    return {str(path.relative_to(folder)): values for path, values in facts.items()}
