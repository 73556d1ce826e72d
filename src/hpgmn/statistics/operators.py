"""A statistic is a linear operator: the first layer of an encoder needs ``r @ W`` and no more.

Each form of a statistic offers the same three methods: ``times(W)`` for products, ``some(nodes)``
for the same statistic of a batch of nodes, ``rows(nodes)`` for rows to look at. A statistic of
another graph is made by the same builder on that graph; where its columns are the nodes themselves,
:class:`Reindexed` expresses them in the columns of the graph the weights were trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.sparse import SparseMatrix, diagonal_rows, to_device

_GATHERED = 256  # rows of a dense matrix copied at once on a CPU: they stay in the cache
_SLICED = 16  # a GPU multiplies all rows unless fewer than one in so many is asked for


class Statistic(ABC):
    """An N×width matrix per replica, known by its products.

    Attributes:
        width: the number of columns.
    """

    width: int

    @property
    def is_on_gpu(self) -> bool:
        """Whether :meth:`some` is a matter of a GPU alone, and so over at once for its host."""
        return False

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

    @abstractmethod
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        """The rows of some nodes as a dense (B, width) matrix."""

    def some(self, nodes: Tensor) -> Statistic:
        """The statistic of some nodes alone: row b of replica r is row ``nodes[r, b]`` of this one.

        ``some(nodes).times(W, None, columns)`` is ``times(W, nodes, columns)``. It may be called in
        a thread that fetches the next batch while another one trains: nothing shared is changed.

        Args:
            nodes: (R, B), on the host or where the products happen.
        """
        return SomeRows(self, nodes)


def is_shared(nodes: Tensor) -> bool:
    """Whether (R, B) nodes are one list for all replicas, made by ``expand``."""
    return nodes.shape[0] > 1 and nodes.stride(0) == 0


def take_nodes(values: Tensor, nodes: Tensor | None) -> Tensor:
    """Rows ``nodes[r]`` of each replica r: (R, N, D) and (R, B) give (R, B, D)."""
    if nodes is None:
        return values
    replicas, num_nodes, width = values.shape
    if not values.is_cuda:
        return values.gather(1, nodes.unsqueeze(-1).expand(-1, -1, width))
    # Whole rows: a gather takes an index for each entry, which a GPU reads one by one.
    if values.stride() == (width, replicas * width, 1):  # what :func:`split_replicas` gives
        number = torch.arange(replicas, device=nodes.device).unsqueeze(1)
        flat, places = values.transpose(0, 1), nodes * replicas + number
    else:
        flat, places = values, _places(nodes, num_nodes)
    chosen = flat.reshape(-1, width).index_select(0, places.flatten())
    return chosen.view(replicas, -1, width)


def add_nodes(values: Tensor, nodes: Tensor, more: Tensor) -> None:
    """Add to rows ``nodes[r]`` of each replica r, in place: the way back of :func:`take_nodes`."""
    width = values.shape[2]
    places = _places(nodes, values.shape[1]).flatten()
    values.view(-1, width).index_add_(0, places, more.reshape(-1, width))


def _places(nodes: Tensor, num_nodes: int) -> Tensor:
    """(R, B) nodes among the nodes of all replicas in a row."""
    return nodes + num_nodes * torch.arange(nodes.shape[0], device=nodes.device).unsqueeze(1)


def with_columns(weight: Tensor, columns: Tensor | None) -> Tensor:
    """diag(columns)·W for each replica."""
    return weight if columns is None else weight * columns.unsqueeze(-1)


def join_replicas(weight: Tensor) -> Tensor:
    """(R, width, D) as (width, R·D), so that one product serves all replicas."""
    replicas, width, dim = weight.shape
    return weight.transpose(0, 1).reshape(width, replicas * dim)


def split_replicas(product: Tensor, replicas: int) -> Tensor:
    """(N, R·D) as a view (R, N, D): the way back of :func:`join_replicas`."""
    rows, width = product.shape  # rows may be none, and then no width can be inferred
    return product.view(rows, replicas, width // replicas).transpose(0, 1)


def align_rows(matrix: Tensor) -> Tensor:
    """The same rows, on a GPU each at a multiple of 16 bytes: its fastest products ask for it."""
    step = 16 // matrix.element_size()
    if not matrix.is_cuda or matrix.stride(-2) % step == 0:
        return matrix
    width = matrix.shape[-1]
    rows = matrix.new_empty(*matrix.shape[:-1], -(-width // step) * step)[..., :width]
    return rows.copy_(matrix)


class SomeRows(Statistic):
    """Some rows of a statistic that has no shorter form of them.

    Args:
        statistic: the statistic of all nodes.
        nodes: (R, B) which.
    """

    def __init__(self, statistic: Statistic, nodes: Tensor) -> None:
        self.statistic = statistic
        self.nodes = nodes
        self.width = statistic.width

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        return self.statistic.times(weight, self._wanted(nodes).to(weight.device), columns)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return self.statistic.rows(self.nodes[replica][nodes], replica)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        return self.statistic.some(self._wanted(nodes))

    def _wanted(self, nodes: Tensor | None) -> Tensor:
        return self.nodes if nodes is None else self.nodes.gather(1, nodes.to(self.nodes.device))


class DenseRows(Statistic):
    """One dense matrix shared by all replicas, in single or half precision.

    Args:
        matrix: (N, width); it may stay on the host, even in a mapped file.
        device: where products happen; by default where the matrix is.
    """

    def __init__(self, matrix: Tensor, device: torch.device | str | None = None) -> None:
        self.matrix = align_rows(matrix)
        self.device = matrix.device if device is None else torch.device(device)
        self.width = matrix.shape[1]

    @property
    @override
    def is_on_gpu(self) -> bool:
        return self.matrix.is_cuda

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        if nodes is not None and self.matrix.device != self.device:
            return self.some(nodes).times(weight, None, columns)
        weight = with_columns(weight, columns)
        if nodes is None:
            matrix = to_device(self.matrix, self.device).to(weight.dtype)
            return split_replicas(matrix @ join_replicas(weight), weight.shape[0])
        if self.matrix.is_cuda:  # one large product beats many gathered ones
            return take_nodes(self.times(weight), nodes)
        return torch.stack(
            [
                torch.cat(
                    [
                        self.matrix.index_select(0, part).to(own.dtype) @ own
                        for part in wanted.split(_GATHERED)
                    ]
                )
                for wanted, own in zip(nodes, weight, strict=True)
            ]
        )

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return to_device(_gathered(self.matrix, nodes), self.device).float()

    @override
    def some(self, nodes: Tensor) -> Statistic:
        if is_shared(nodes):
            return DenseRows(to_device(_gathered(self.matrix, nodes[0]), self.device))
        every = self.matrix.expand(nodes.shape[0], -1, -1)
        return ReplicaRows(to_device(_gathered_apart(every, nodes), self.device))


def _gathered(matrix: Tensor, nodes: Tensor) -> Tensor:
    """Whole rows (B, width), copied where the matrix is: faster there than an indexed read."""
    return matrix.index_select(0, nodes.to(matrix.device))


def _gathered_apart(matrices: Tensor, nodes: Tensor) -> Tensor:
    """Rows ``nodes[r]`` of each matrix r: (R, N, width) and (R, B) give (R, B, width)."""
    nodes = nodes.to(matrices.device)
    rows = matrices.new_empty(*nodes.shape, matrices.shape[2])
    for own, wanted, place in zip(matrices, nodes, rows, strict=True):
        torch.index_select(own, 0, wanted, out=place)
    return rows


class SparseRows(Statistic):
    """One sparse matrix shared by all replicas."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.matrix = matrix
        self.width = matrix.shape[1]

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        if nodes is not None and _is_worth_slicing(self.matrix, self.matrix.shape[0], nodes):
            return self.some(nodes).times(weight, None, columns)
        wide = join_replicas(with_columns(weight, columns))
        return take_nodes(split_replicas(self.matrix @ wide, weight.shape[0]), nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        chosen = self.matrix.host[nodes.cpu().numpy()].toarray()
        return torch.from_numpy(chosen).to(self.matrix.device)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        places, device = nodes.cpu().numpy(), self.matrix.device
        if is_shared(nodes):
            return SparseRows(SparseMatrix(self.matrix.host[places[0]], device).prepare())
        blocks = SparseMatrix(diagonal_rows(self.matrix.host, places), device)
        return SparseReplicaRows(blocks.prepare(), len(places))


def _is_worth_slicing(matrix: SparseMatrix, num_nodes: int, nodes: Tensor) -> bool:
    """Whether (R, B) rows are better taken out first than after a product with all N of them.

    On a CPU always: on squirrel, forth and back, with 1,024 of 5,201 rows in a sixth of the time,
    with all of them in two thirds. A GPU would have to wait for the host.
    """
    return matrix.device.type != "cuda" or _SLICED * nodes.shape[1] < num_nodes


class SparseReplicaRows(Statistic):
    """One sparse matrix per replica, the diagonal blocks of one: one product serves them all.

    Args:
        matrix: (R·N, R·width), from ``block_diagonal`` or ``diagonal_rows``.
        replicas: R.
    """

    def __init__(self, matrix: SparseMatrix, replicas: int) -> None:
        self.matrix = matrix
        self.replicas = replicas
        self.height, self.width = (size // replicas for size in matrix.shape)

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        if nodes is not None and _is_worth_slicing(self.matrix, self.height, nodes):
            return self.some(nodes).times(weight, None, columns)
        factors = None if columns is None else columns.reshape(-1)
        product = self.matrix.times(weight.flatten(0, 1), factors)
        return take_nodes(product.view(self.replicas, self.height, -1), nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        chosen = self.matrix.host[nodes.cpu().numpy() + replica * self.height].toarray()
        own = chosen[:, replica * self.width : (replica + 1) * self.width]
        return torch.from_numpy(own).to(self.matrix.device)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        places = nodes.cpu().numpy() + self.height * np.arange(self.replicas)[:, None]
        chosen = SparseMatrix(self.matrix.host[places.reshape(-1)], self.matrix.device)
        return SparseReplicaRows(chosen.prepare(), self.replicas)


class ReplicaRows(Statistic):
    """One dense matrix per replica, in single or half precision.

    Args:
        matrices: (R, N, width); they may stay on the host, even in a mapped file.
        device: where products happen; by default where the matrices are.
    """

    def __init__(self, matrices: Tensor, device: torch.device | str | None = None) -> None:
        self.matrices = align_rows(matrices)
        self.device = matrices.device if device is None else torch.device(device)
        self.width = matrices.shape[2]

    @property
    @override
    def is_on_gpu(self) -> bool:
        return self.matrices.is_cuda

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        rows = self.matrices if nodes is None else _gathered_apart(self.matrices, nodes)
        rows = to_device(rows, self.device).to(weight.dtype)
        return torch.bmm(rows, with_columns(weight, columns))

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return to_device(_gathered(self.matrices[replica], nodes), self.device).float()

    @override
    def some(self, nodes: Tensor) -> Statistic:
        return ReplicaRows(to_device(_gathered_apart(self.matrices, nodes), self.device))


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
        own = with_columns(weight, columns)[:, self.columns] * self.known.unsqueeze(-1)
        return self.statistic.times(own, nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        inner = self.statistic.rows(nodes, replica)
        placed = inner.new_zeros(inner.shape[0], self.width)
        return placed.index_add(1, self.columns, inner * self.known)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        chosen = copy(self)
        chosen.statistic = self.statistic.some(nodes)
        return chosen


class NeighborMean(Statistic):
    """What the neighbours of a node have of a statistic, on average: P·r for row-normalised P.

    Only products with a weight are ever averaged, so the cost is that of one propagation. A node
    without neighbours has a row of zeros. A batch is taken out after a product with all nodes.

    Args:
        statistic: r, of all nodes.
        propagation: P, (N, N).
    """

    def __init__(self, statistic: Statistic, propagation: SparseMatrix) -> None:
        self.statistic = statistic
        self.propagation = propagation
        self.width = statistic.width

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        product = self.statistic.times(weight, None, columns)
        mean = split_replicas(self.propagation @ join_replicas(product), weight.shape[0])
        return take_nodes(mean, nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        chosen = self.propagation.host[nodes.cpu().numpy()]
        read, places = np.unique(chosen.indices, return_inverse=True)
        weights = sp.csr_array(
            (chosen.data, places, chosen.indptr), shape=(chosen.shape[0], read.size)
        )
        inner = self.statistic.rows(torch.from_numpy(read).to(self.propagation.device), replica)
        return torch.from_numpy(weights.toarray()).to(inner) @ inner


def reindex(statistic: Statistic, columns: Tensor, width: int) -> Statistic:
    """:class:`Reindexed`, or the same by putting the entries of sparse rows into their columns."""
    if not isinstance(statistic, SparseRows):
        return Reindexed(statistic, columns, width)
    host = statistic.matrix.host
    column = columns.cpu().numpy()[host.indices]
    known = column >= 0
    starts = np.concatenate([[0], np.cumsum(known)])[host.indptr]
    entries = (host.data[known], column[known].astype(np.int32), starts.astype(np.int32))
    matrix = sp.csr_array(entries, shape=(host.shape[0], width))
    matrix.sort_indices()
    return SparseRows(SparseMatrix(matrix, statistic.matrix.device))


def _those(values: Tensor | None, replicas: list[int]) -> Any:
    """What belongs to some replicas; a list as an index would make a GPU wait for the host."""
    return None if values is None else torch.stack([values[replica] for replica in replicas])


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
        parts: list[Tensor] = []
        for statistic, replicas in self.members:
            own = (_those(values, replicas) for values in (weight, nodes, columns))
            parts += statistic.times(*own).unbind()
        return torch.stack([parts[self.position[replica]] for replica in range(len(parts))])

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        for statistic, replicas in self.members:
            if replica in replicas:
                return statistic.rows(nodes, replicas.index(replica))
        raise IndexError(replica)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        def own(replicas: list[int]) -> Tensor:
            return nodes[:1].expand(len(replicas), -1) if is_shared(nodes) else nodes[replicas]

        return Grouped(
            [(statistic.some(own(replicas)), replicas) for statistic, replicas in self.members]
        )
