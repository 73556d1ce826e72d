"""The sketch of diffusion by synchronous rounds: S·Ω, one product with T a round, range by range.

Horner's rule, as in ``statistics.diffusion.series``: H ← T·H + θ_k·Ω. A round of a range reads the
rows of H that its neighbours had in the round before, whichever range they are in, and writes its
own. The last round also takes away self entries and scales the rows, which needs a row alone.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.randomness import signs, text_keys
from hpgmn.graph import Array
from hpgmn.shards.cutting import WORK, EdgeRows, transition_folder
from hpgmn.shards.files import RowFile, RowWriter, ShardedRows
from hpgmn.shards.plan import Plan, Unit
from hpgmn.shards.rows import Block, blocks, rows_file

_WORK_ROWS = 8  # arrays of d numbers for each row that is made: the product, signs and their bits
_NAME_BYTES = 256  # a node's name while it is hashed


def round_file(name: str, step: int, part: int) -> str:
    """Where a round of a range is, below the folder of the shards."""
    return f"{WORK}/{name}-{step:03d}/{part:05d}.npy"


def make_round(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """One round of a range."""
    chosen, dim = plan.statistics, plan.statistics.diffusion_dim
    theta = plan.theta.copy()
    if not chosen.diffusion_self_entry:
        theta[0] = 0.0  # it touches the self entry alone
    is_last = unit.step == len(theta) - 1
    place = round_file(unit.name, unit.step, unit.part)
    if is_last:
        place = rows_file(unit.part, f"{unit.name}.npy")
    edges = EdgeRows(transition_folder(folder, plan.mode(unit.name), unit.part), plan)
    before = None
    if unit.step:
        paths = [
            folder / round_file(unit.name, unit.step - 1, part) for part in range(plan.num_ranges)
        ]
        before = ShardedRows(paths, plan.starts)
    weight = np.float32(theta[-1 - unit.step])
    with RowWriter(folder / place, np.float32, (dim,)) as writer:
        per_row = 4 * _WORK_ROWS * dim + _NAME_BYTES
        for block in blocks(edges, plan.memory, 8 * dim, per_row, "Diffusion rows"):
            own = _signs(plan, unit.part, block, dim)
            rows = own * weight
            if before is not None:
                rows += block.adjacency @ before.take(block.nodes)
            if is_last:
                rows = _finished(rows, own, block, plan, unit.part)
            writer.append(rows)
        return {place: writer.done()}


def _signs(plan: Plan, part: int, block: Block, dim: int) -> Array:
    """The rows of Ω·√d of a block's own nodes."""
    start = plan.starts[part]
    first, last = start + block.first, start + block.last
    path = plan.folder / "node_ids.npy"
    if path.is_file():
        with RowFile(path) as file:
            names = file.span(first, last)
    else:
        names = np.arange(first, last).astype(np.str_)
    found: Array = signs(text_keys(names), 0, dim).numpy()
    return found


def _finished(rows: Array, own: Array, block: Block, plan: Plan, part: int) -> Array:
    """Rows without their self entries, if so set, and scaled; see ``statistics.sketch.sketch``."""
    dim = rows.shape[1]
    if not plan.statistics.diffusion_self_entry:
        along = (rows * own).sum(axis=1, keepdims=True)
        rows -= own * (along / dim)
        nodes = np.arange(block.first, block.last) + plan.starts[part]
        entries = block.nodes[block.adjacency.indices]
        lengths = np.diff(block.adjacency.indptr)
        is_other = entries != np.repeat(nodes, lengths)
        others = np.bincount(np.repeat(np.arange(nodes.size), lengths)[is_other],
                             minlength=nodes.size)  # fmt: skip
        rows[others == 0] = 0  # rounding is all that is left
    if plan.statistics.diffusion_scaling != "unit":
        return rows * np.float32(1 / math.sqrt(dim))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
