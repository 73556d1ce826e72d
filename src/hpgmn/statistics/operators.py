"""Statistics as linear operators: the first layer of an encoder needs ``r @ W`` and no more.

Every form offers ``times(W)``, ``some(nodes)`` for a batch of nodes, and dense ``rows(nodes)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from hpgmn.base.sparse import SparseMatrix, diagonal_rows, to_device

_GATHERED = 256  # rows copied at once on a CPU, so that they stay in the cache
_SLICED = 16  # a GPU multiplies all rows unless fewer than 1/16 are requested


class Statistic(ABC):
    """An N×width matrix per replica, defined by its products."""

    width: int
    num_matrices = 1  # of LinkedAttributes, one for each edge type

    @property
    def is_on_gpu(self) -> bool:
        """Whether :meth:`some` runs on the GPU alone, without work on the host."""
        return False

    @abstractmethod
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        """Return the statistic times a weight per replica: (R, N, D), or (R, B, D).

        Args:
            weight: (R, width, D).
            nodes: (R, B) rows of each replica, or None for all N.
            columns: (R, width) factors of the columns (zero drops one), or None for ones.
        """

    @abstractmethod
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        """Return the rows of some nodes as a dense (B, width) matrix."""

    def some(self, nodes: Tensor) -> Statistic:
        """Return the statistic of a batch: row b of replica r is row ``nodes[r, b]`` of this one.

        ``some(nodes).times(W, None, columns)`` is ``times(W, nodes, columns)``. Thread-safe, so
        that the next batch can be prefetched.

        Args:
            nodes: (R, B), on the host or on the device.
        """
        return SomeRows(self, nodes)


def is_shared(nodes: Tensor) -> bool:
    """Return whether (R, B) nodes are one list for all replicas, made by ``expand``."""
    return nodes.shape[0] > 1 and nodes.stride(0) == 0


def take_nodes(values: Tensor, nodes: Tensor | None) -> Tensor:
    """Return rows ``nodes[r]`` of each replica r: (R, N, D) and (R, B) give (R, B, D)."""
    if nodes is None:
        return values
    replicas, num_nodes, width = values.shape
    if not values.is_cuda:
        return values.gather(1, nodes.unsqueeze(-1).expand(-1, -1, width))
    # index_select copies whole rows; gather reads an index for each entry.
    if values.stride() == (width, replicas * width, 1):  # of :func:`split_replicas`
        number = torch.arange(replicas, device=nodes.device).unsqueeze(1)
        flat, positions = values.transpose(0, 1), nodes * replicas + number
    else:
        flat, positions = values, _flat_positions(nodes, num_nodes)
    chosen = flat.reshape(-1, width).index_select(0, positions.flatten())
    return chosen.view(replicas, -1, width)


def add_nodes(values: Tensor, nodes: Tensor, more: Tensor) -> None:
    """Add to rows ``nodes[r]`` of each replica r in place: the gradient of :func:`take_nodes`."""
    width = values.shape[2]
    positions = _flat_positions(nodes, values.shape[1]).flatten()
    values.view(-1, width).index_add_(0, positions, more.reshape(-1, width))


def _flat_positions(nodes: Tensor, num_nodes: int) -> Tensor:
    """Return (R, B) nodes as positions among the nodes of all replicas, concatenated."""
    return nodes + num_nodes * torch.arange(nodes.shape[0], device=nodes.device).unsqueeze(1)


def with_columns(weight: Tensor, columns: Tensor | None) -> Tensor:
    """Return diag(columns)·W for each replica."""
    return weight if columns is None else weight * columns.unsqueeze(-1)


def join_replicas(weight: Tensor) -> Tensor:
    """Reshape (R, width, D) to (width, R·D), so that one product serves all replicas."""
    replicas, width, dim = weight.shape
    return weight.transpose(0, 1).reshape(width, replicas * dim)


def split_replicas(product: Tensor, replicas: int) -> Tensor:
    """Return (N, R·D) as a view (R, N, D): the inverse of :func:`join_replicas`."""
    rows, width = product.shape  # without rows, no width can be inferred
    return product.view(rows, replicas, width // replicas).transpose(0, 1)


def align_rows(matrix: Tensor) -> Tensor:
    """Align the rows of a GPU matrix to 16 bytes, as its fastest products require."""
    step = 16 // matrix.element_size()
    if not matrix.is_cuda or matrix.stride(-2) % step == 0:
        return matrix
    width = matrix.shape[-1]
    rows = matrix.new_empty(*matrix.shape[:-1], -(-width // step) * step)[..., :width]
    return rows.copy_(matrix)


class SomeRows(Statistic):
    """Some rows of a statistic, (R, B) nodes, without a more compact form of them."""

    def __init__(self, statistic: Statistic, nodes: Tensor) -> None:
        self.statistic = statistic
        self.nodes = nodes
        self.width = statistic.width

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        return self.statistic.times(weight, self._positions(nodes).to(weight.device), columns)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return self.statistic.rows(self.nodes[replica][nodes], replica)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        return self.statistic.some(self._positions(nodes))

    def _positions(self, nodes: Tensor | None) -> Tensor:
        return self.nodes if nodes is None else self.nodes.gather(1, nodes.to(self.nodes.device))


class DenseRows(Statistic):
    """One dense matrix shared by all replicas, in single or half precision.

    Args:
        matrix: (N, width); may stay on the host, even in a mapped file.
        device: where products are computed; by default that of the matrix.
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
                        self.matrix.index_select(0, part).to(weights.dtype) @ weights
                        for part in rows.split(_GATHERED)
                    ]
                )
                for rows, weights in zip(nodes, weight, strict=True)
            ]
        )

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return to_device(_gather(self.matrix, nodes), self.device).float()

    @override
    def some(self, nodes: Tensor) -> Statistic:
        if is_shared(nodes):
            return DenseRows(to_device(_gather(self.matrix, nodes[0]), self.device))
        every = self.matrix.expand(nodes.shape[0], -1, -1)
        return ReplicaRows(to_device(_gather_per_replica(every, nodes), self.device))


def _gather(matrix: Tensor, nodes: Tensor) -> Tensor:
    """Return whole rows (B, width), copied on the device of the matrix."""
    return matrix.index_select(0, nodes.to(matrix.device))


def _gather_per_replica(matrices: Tensor, nodes: Tensor) -> Tensor:
    """Return rows ``nodes[r]`` of each matrix r: (R, N, width) and (R, B) give (R, B, width)."""
    nodes = nodes.to(matrices.device)
    rows = matrices.new_empty(*nodes.shape, matrices.shape[2])
    for matrix, indices, out in zip(matrices, nodes, rows, strict=True):
        torch.index_select(matrix, 0, indices, out=out)
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
        positions, device = nodes.cpu().numpy(), self.matrix.device
        if is_shared(nodes):
            return SparseRows(SparseMatrix(self.matrix.host[positions[0]], device).prepare())
        blocks = SparseMatrix(diagonal_rows(self.matrix.host, positions), device)
        return SparseReplicaRows(blocks.prepare(), len(positions))


def _is_worth_slicing(matrix: SparseMatrix, num_nodes: int, nodes: Tensor) -> bool:
    """Return whether to slice (R, B) rows before the product instead of after it.

    Always on a CPU; a GPU would have to wait for the host.
    """
    return matrix.device.type != "cuda" or _SLICED * nodes.shape[1] < num_nodes


class SparseReplicaRows(Statistic):
    """One sparse matrix per replica, as diagonal blocks: one product serves them all.

    Args:
        matrix: (R·N, R·width), from ``block_diagonal`` or ``diagonal_rows``.
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
        block = chosen[:, replica * self.width : (replica + 1) * self.width]
        return torch.from_numpy(block).to(self.matrix.device)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        positions = nodes.cpu().numpy() + self.height * np.arange(self.replicas)[:, None]
        chosen = SparseMatrix(self.matrix.host[positions.reshape(-1)], self.matrix.device)
        return SparseReplicaRows(chosen.prepare(), self.replicas)


class ReplicaRows(Statistic):
    """One dense matrix per replica, in single or half precision.

    Args:
        matrices: (R, N, width); may stay on the host, even in a mapped file.
        device: where products are computed; by default that of the matrices.
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
        rows = self.matrices if nodes is None else _gather_per_replica(self.matrices, nodes)
        rows = to_device(rows, self.device).to(weight.dtype)
        return torch.bmm(rows, with_columns(weight, columns))

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return to_device(_gather(self.matrices[replica], nodes), self.device).float()

    @override
    def some(self, nodes: Tensor) -> Statistic:
        return ReplicaRows(to_device(_gather_per_replica(self.matrices, nodes), self.device))


class Reindexed(Statistic):
    """A statistic whose columns are nodes, in the columns of another graph.

    Args:
        statistic: (M, M) of the new graph.
        columns: (M,) column of each new node in the old graph, -1 if it was not there.
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
        weights = with_columns(weight, columns)[:, self.columns] * self.known.unsqueeze(-1)
        return self.statistic.times(weights, nodes)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        inner = self.statistic.rows(nodes, replica)
        result = inner.new_zeros(inner.shape[0], self.width)
        return result.index_add(1, self.columns, inner * self.known)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        chosen = copy(self)
        chosen.statistic = self.statistic.some(nodes)
        return chosen


class NeighborMean(Statistic):
    """The mean of a statistic over neighbours: P·r for row-normalised P, zero without neighbours.

    Only products with a weight are averaged, so the cost is that of one propagation.
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
        neighbors, positions = np.unique(chosen.indices, return_inverse=True)
        weights = sp.csr_array(
            (chosen.data, positions, chosen.indptr), shape=(chosen.shape[0], neighbors.size)
        )
        inner = self.statistic.rows(
            torch.from_numpy(neighbors).to(self.propagation.device), replica
        )
        return torch.from_numpy(weights.toarray()).to(inner) @ inner


class LinkedAttributes(Statistic):
    """Attributes together with the matrix along which a network passes messages.

    Args:
        propagation: (N, N), or (N, T·N) with a matrix for each of T edge types.
    """

    def __init__(self, attributes: Statistic, propagation: SparseMatrix) -> None:
        self.attributes = attributes
        self.propagation = propagation
        self.width = attributes.width
        self.num_matrices = propagation.shape[1] // propagation.shape[0]

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        return self.attributes.times(weight, nodes, columns)

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        return self.attributes.rows(nodes, replica)


def propagate_linked(statistic: Statistic, hidden: Tensor) -> Tensor:
    """Multiply hidden states by the matrix of :class:`LinkedAttributes`: (R, N, D).

    Args:
        hidden: (R, N, T·D), D columns for each edge type.
    """
    if isinstance(statistic, Grouped):
        return statistic.of_members(propagate_linked, hidden)
    assert isinstance(statistic, LinkedAttributes)
    if statistic.num_matrices > 1:
        hidden = torch.cat(hidden.chunk(statistic.num_matrices, dim=-1), dim=1)  # (R, T·N, D)
    return split_replicas(statistic.propagation @ join_replicas(hidden), hidden.shape[0])


def reindex(statistic: Statistic, columns: Tensor, width: int) -> Statistic:
    """Reindex a statistic; sparse rows stay sparse."""
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


def _of_replicas(values: Tensor | None, replicas: list[int]) -> Any:
    """Return the values of some replicas; indexing with a list would synchronise a GPU."""
    return None if values is None else torch.stack([values[replica] for replica in replicas])


class Grouped(Statistic):
    """Different forms for groups of replicas, for example neighbour modes.

    Args:
        members: the statistics, each with the replicas it serves (together 0 … R-1).
    """

    def __init__(self, members: Sequence[tuple[Statistic, list[int]]]) -> None:
        self.members = members
        self.width, self.num_matrices = members[0][0].width, members[0][0].num_matrices
        order = [replica for _, replicas in members for replica in replicas]
        self.position = {replica: position for position, replica in enumerate(order)}

    @override
    def times(
        self, weight: Tensor, nodes: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        return self.of_members(lambda one, *inputs: one.times(*inputs), weight, nodes, columns)

    def of_members(self, function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """Apply ``function(statistic, *inputs)`` to each member and its replicas' inputs."""
        parts: list[Tensor] = []
        for statistic, replicas in self.members:
            some = (_of_replicas(values, replicas) for values in inputs)
            parts += function(statistic, *some).unbind()
        return torch.stack([parts[self.position[replica]] for replica in range(len(parts))])

    @override
    def rows(self, nodes: Tensor, replica: int = 0) -> Tensor:
        for statistic, replicas in self.members:
            if replica in replicas:
                return statistic.rows(nodes, replicas.index(replica))
        raise IndexError(replica)

    @override
    def some(self, nodes: Tensor) -> Statistic:
        def nodes_of(replicas: list[int]) -> Tensor:
            return nodes[:1].expand(len(replicas), -1) if is_shared(nodes) else nodes[replicas]

        return Grouped(
            [(statistic.some(nodes_of(replicas)), replicas) for statistic, replicas in self.members]
        )
