"""The row shards of one rank: its nodes, and the operators over their rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.sparse import SparseMatrix, moved
from hpgmn.graph import Array, Split
from hpgmn.shards import Shards
from hpgmn.statistics.operators import DenseRows, SparseRows, Statistic


class Rows:
    """The nodes of one rank.

    Args:
        shards: all nodes.
        parts: the numbers of this rank's ranges, neighbours.

    Attributes:
        first: its first node.
        last: the node after its last.
        y: (B,) the classes of its nodes, -1 unknown.
        split: which of its nodes are train, validation and test nodes.
    """

    def __init__(self, shards: Shards, parts: range) -> None:
        shards.check(parts)
        self.shards, self.parts = shards, parts
        self.first = shards.ranges[parts[0]][0]
        self.last = shards.ranges[parts[-1]][1]
        self.y = np.concatenate([shards.y(part) for part in parts]).astype(np.int64)
        self.split = Split(*(self._mask(name) for name in ("train", "val", "test")))

    def _mask(self, name: str) -> Array:
        return np.concatenate([self.shards.mask(name, part) for part in self.parts])

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.shards.name

    @property
    def class_names(self) -> tuple[str, ...]:
        """C names."""
        return self.shards.class_names

    def statistic(self, name: str, device: torch.device) -> BlockRows:
        """A statistic of these nodes."""
        return BlockRows([self.shards.statistic(name, part) for part in self.parts], device)


class BlockRows(Statistic):
    """Rows of a statistic in several blocks, dense or sparse; the same for all replicas.

    Args:
        blocks: one below the other; dense ones may be mapped files.
        device: where products happen.
    """

    def __init__(self, blocks: Sequence[Array | sp.csr_array], device: torch.device) -> None:
        self.blocks = list(blocks)
        self.device = device
        self.width = int(blocks[0].shape[1])
        self.starts = np.cumsum([0, *(block.shape[0] for block in blocks)])

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        if nodes is None:
            nodes = torch.arange(int(self.starts[-1])).expand(weight.shape[0], -1)
        return self.some(nodes).times(weight, None, columns)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        own = self.some(nodes.unsqueeze(0))
        return own.rows(torch.arange(nodes.shape[0], device=self.device))

    @override
    def some(self, nodes: Tensor) -> Statistic:
        """The statistic of some nodes, which are one list for all replicas."""
        wanted = nodes[0].cpu().numpy()
        of_block = np.searchsorted(self.starts, wanted, side="right") - 1
        places = [np.flatnonzero(of_block == number) for number in range(len(self.blocks))]
        parts = [
            block[wanted[own] - start]
            for block, own, start in zip(self.blocks, places, self.starts[:-1], strict=True)
        ]
        back = np.concatenate(places).argsort()
        if any(sp.issparse(block) for block in self.blocks):
            return SparseRows(SparseMatrix(_stacked(parts, back), self.device).ready())
        return DenseRows(moved(torch.from_numpy(np.concatenate(parts)[back]), self.device))


def _stacked(parts: Sequence[Array | sp.csr_array], order: Array) -> sp.csr_array:
    """Blocks below each other, their rows in another order, as products want them."""
    joined = sp.csr_array(sp.vstack([sp.csr_array(part) for part in parts], format="csr"))[order]
    joined.sort_indices()
    return sp.csr_array(
        (
            joined.data.astype(np.float32),
            joined.indices.astype(np.int32),
            joined.indptr.astype(np.int32),
        ),
        shape=joined.shape,
    )
