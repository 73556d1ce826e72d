"""Labelled nodes, their batches in random order, and rows fetched ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from hpgmn.base.randomness import Noise
from hpgmn.graph import Array
from hpgmn.training.ranks import Ranks

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class NodeBatch:
    """The part of a batch of train nodes that this rank reads.

    Attributes:
        nodes: (R, B), or (1, B) for all replicas.
        labels: of the same shape.
        valid: of the same shape; other entries are padding.
        positions: (B,) in the batch of all ranks; None: it is the whole batch.
        size: (R,) or (1,) nodes of the whole batch.
    """

    nodes: Tensor
    labels: Tensor
    valid: Tensor
    positions: Tensor | None
    size: Tensor


@dataclass(frozen=True)
class LabelledNodes:
    """The labelled nodes of each replica, padded to one length.

    Replicas trained in batches have equally many (:func:`hpgmn.training.replicas.replica_groups`):
    padding would be steps of their own, and nodes that the penalties see.

    Attributes:
        nodes: (R, T), or (1, T) for all replicas.
        labels: of the same shape.
        valid: of the same shape; other entries are padding.
        first: position of this rank's first node among those of all ranks.
        total: nodes of all ranks; None: this rank has all of them.
    """

    nodes: Tensor
    labels: Tensor
    valid: Tensor
    first: int = 0
    total: int | None = None

    @classmethod
    def of(cls, labels: Array, device: torch.device, ranks: Ranks | None = None) -> LabelledNodes:
        """Select the nodes whose label is not -1; several ranks count theirs together."""
        known = torch.from_numpy(labels).to(device)
        valid = known >= 0
        length = max(int(valid.sum(dim=1).max()), 1)
        if ranks is not None and ranks.size > 1:
            length = int(valid.sum())
        nodes = torch.argsort(~valid, dim=1, stable=True)[:, :length]
        chosen = known.gather(1, nodes).clamp(min=0), valid.gather(1, nodes)
        if ranks is None or ranks.size == 1:
            return cls(nodes, *chosen)
        counts = ranks.gather_numbers(length)
        return cls(nodes, *chosen, first=sum(counts[: ranks.rank]), total=sum(counts))

    @property
    def count(self) -> int:
        """Nodes of all ranks, padding included."""
        return self.nodes.shape[1] if self.total is None else self.total

    def node_batches(self, size: int, noise: Noise) -> Iterator[NodeBatch]:
        """Yield all nodes once in random order; every rank draws the same order."""
        order = noise.uniform("order", (self.count,))
        if self.total is None:
            order = order + 2.0 * ~self.valid  # padding at the end
        order = torch.argsort(order, dim=1, stable=True)
        for chosen in torch.split(order, size, dim=1):
            if self.total is None:
                valid = self.valid.gather(1, chosen)
                positions, count = None, valid.sum(dim=1)
            else:
                last = self.first + self.nodes.shape[1]
                positions = torch.nonzero((chosen[0] >= self.first) & (chosen[0] < last))[:, 0]
                count = torch.tensor([chosen.shape[1]])
                chosen = chosen[:, positions] - self.first
                valid = self.valid.gather(1, chosen)
            nodes, labels = self.nodes.gather(1, chosen), self.labels.gather(1, chosen)
            yield NodeBatch(nodes, labels, valid, positions, count)


def prefetch(items: Iterable[T], fetch: Callable[[T], U]) -> Iterator[tuple[T, U]]:
    """Yield each item with its fetched value, fetching the next one meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for item in items:
            coming = (item, pool.submit(fetch, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = coming
        if waiting is not None:
            yield waiting[0], waiting[1].result()
