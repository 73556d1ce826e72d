"""A statistic is a linear operator: the first layer of an encoder needs ``r @ W`` and no more.

Each form of a statistic offers the same two methods: ``times(W)`` for full batches of replicas and
``rows(nodes)`` for mini-batches. A statistic of another graph is made by the same builder on that
graph; where its columns are the nodes themselves, :class:`Reindexed` expresses them in the
columns of the graph the weights were trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.sparse import SparseMatrix

_GATHERED = 256  # rows of a dense matrix copied at once on a CPU: they stay in the cache


class Statistic(ABC):
    """An N×width matrix per replica, known by its products.

    Attributes:
        width: the number of columns.
    """

    width: int

    @abstractmethod
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        """The statistic times a weight per replica.

        Args:
            weight: (R, width, D).
            nodes: (R, B) wanted rows of each replica, or None for all N.
            columns: (R, width) factors of the columns (zero drops one), or None for ones.

        Returns:
            (R, N, D) or (R, B, D).
        """

    def some(self, nodes: Tensor) -> Statistic:
        """TEMPORARY."""
        return _Chosen(self, nodes)

    @abstractmethod
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        """The rows of some nodes as a dense (B, width) matrix."""


def take_nodes(values: Tensor, nodes: Tensor | None) -> Tensor:
    """Rows ``nodes[r]`` of each replica r: (R, N, D) and (R, B) give (R, B, D)."""
    if nodes is None:
        return values
    return values.gather(1, nodes.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


def with_columns(weight: Tensor, columns: Tensor | None) -> Tensor:
    """diag(columns)·W for each replica."""
    return weight if columns is None else weight * columns.unsqueeze(-1)


def side_by_side(weight: Tensor) -> Tensor:
    """(R, width, D) as (width, R·D), so that one product serves all replicas."""
    replicas, width, dim = weight.shape
    return weight.transpose(0, 1).reshape(width, replicas * dim)


def apart(product: Tensor, replicas: int) -> Tensor:
    """(N, R·D) as a view (R, N, D): the way back of :func:`side_by_side`."""
    return product.view(product.shape[0], replicas, -1).transpose(0, 1)


class DenseRows(Statistic):
    """One dense matrix shared by all replicas, in single or half precision.

    Args:
        matrix: (N, width).
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.width = matrix.shape[1]

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        weight = with_columns(weight, columns)
        if nodes is None:
            return apart(self.matrix.to(weight.dtype) @ side_by_side(weight), weight.shape[0])
        if self.matrix.is_cuda:  # one large product beats many gathered ones
            return take_nodes(self.times(weight), nodes)
        return torch.stack(
            [
                torch.cat(
                    [self.matrix[part].to(own.dtype) @ own for part in wanted.split(_GATHERED)]
                )
                for wanted, own in zip(nodes, weight, strict=True)
            ]
        )

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return self.matrix[nodes].float()


class SparseRows(Statistic):
    """One sparse matrix shared by all replicas."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.matrix = matrix
        self.width = matrix.shape[1]

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        wide = side_by_side(with_columns(weight, columns))
        return take_nodes(apart(self.matrix @ wide, weight.shape[0]), nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        chosen = self.matrix.host[nodes.cpu().numpy()].toarray()
        return torch.from_numpy(chosen).to(self.matrix.device)


class ReplicaRows(Statistic):
    """One dense matrix per replica, in single or half precision.

    Args:
        matrices: (R, N, width).
    """

    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices
        self.width = matrices.shape[2]

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        rows = self.matrices
        if nodes is not None and rows.is_cuda:
            rows = take_nodes(rows, nodes)
        elif nodes is not None:  # whole rows at a time: a gather would take an index per entry
            rows = torch.stack([own[some] for own, some in zip(rows, nodes, strict=True)])
        return torch.bmm(rows.to(weight.dtype), with_columns(weight, columns))

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return self.matrices[replica, nodes].float()


class Reindexed(Statistic):
    """A statistic whose columns are nodes, seen through the columns of another graph.

    Args:
        statistic: (M, M) on the new graph.
        columns: (M,) for each new node its column in the old graph, -1 where it is unknown there.
        width: the number of nodes of the old graph.
    """

    def __init__(self, statistic: Statistic, columns: Tensor, width: int) -> None:
        self.statistic = statistic
        self.known = columns >= 0
        self.columns = columns.clamp(min=0)
        self.width = width

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        moved = with_columns(weight, columns)[:, self.columns] * self.known.unsqueeze(-1)
        return self.statistic.times(moved, nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        inner = self.statistic.rows(nodes, replica)
        moved = inner.new_zeros(inner.shape[0], self.width)
        return moved.index_add(1, self.columns, inner * self.known)


class Grouped(Statistic):
    """Different forms for different groups of replicas, for example neighbour modes.

    Args:
        members: the statistics, each with the replicas it serves (together 0 … R-1).
    """

    def __init__(self, members: Sequence[tuple[Statistic, list[int]]]) -> None:
        self.members = members
        self.width = members[0][0].width
        order = [replica for _, replicas in members for replica in replicas]
        self.position = {replica: place for place, replica in enumerate(order)}

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        parts = [
            statistic.times(
                weight[replicas],
                None if nodes is None else nodes[replicas],
                None if columns is None else columns[replicas],
            )
            for statistic, replicas in self.members
        ]
        places = [self.position[replica] for replica in range(weight.shape[0])]
        return torch.cat(parts)[places]

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        for statistic, replicas in self.members:
            if replica in replicas:
                return statistic.rows(nodes, replicas.index(replica))
        raise IndexError(replica)


class _Chosen(Statistic):
    def __init__(self, statistic: Statistic, nodes: Tensor) -> None:
        self.statistic, self.nodes, self.width = statistic, nodes, statistic.width

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        return self.statistic.times(weight, self.nodes, columns)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return self.statistic.rows(self.nodes[replica][nodes], replica)
