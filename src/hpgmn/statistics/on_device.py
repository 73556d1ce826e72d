"""Class means as rows, computed where they are used: on a GPU the host would be the slow part."""

from __future__ import annotations

import torch
from torch import Tensor

from hpgmn.sparse import SparseMatrix


def class_means_on_device(
    adjacency: SparseMatrix,
    x: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    unit_length: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """r³ (:func:`hpgmn.statistics.labelwise.class_means`) of R replicas as dense rows.

    Beside the result there is never more than one class of one replica in single precision.

    Args:
        adjacency: (N, N), row v lists the neighbours of v.
        x: (N, F), on the device of the adjacency.
        labels: (R, N) hard labels, -1 unknown, there too.
        num_classes: C.
        unit_length: whether each node's row is scaled to length 1.
        dtype: of the result.

    Returns:
        (R, N, C·F)
    """
    (num_nodes, width), neighbor = x.shape, adjacency.columns_of_entries
    rows = torch.empty(
        labels.shape[0], num_nodes, num_classes * width, dtype=dtype, device=x.device
    )
    if not adjacency.host.nnz:  # cuSPARSE and MKL refuse empty matrices
        return rows.zero_()
    for own, out in zip(labels, rows, strict=True):
        theirs = own[neighbor]
        squares = torch.zeros(num_nodes, device=x.device)
        for number in range(num_classes):
            members = (theirs == number).to(x.dtype)
            edges = adjacency.scaled(members)
            weight = edges @ x.new_ones(num_nodes, 1)
            mean = (edges @ x).div_(torch.where(weight > 0, weight, 1))
            squares += mean.square().sum(dim=1)
            out[:, number * width : (number + 1) * width] = mean
        if unit_length:
            out.mul_(torch.where(squares > 0, squares.rsqrt(), 0).to(dtype).unsqueeze(1))
    return rows
