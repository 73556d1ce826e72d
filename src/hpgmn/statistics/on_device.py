"""Class means as rows, computed where they are used: on a GPU the host would be the slow part."""

from __future__ import annotations

import torch
from torch import Tensor

from hpgmn.base.sparse import SparseMatrix


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

    def means(theirs: Tensor, number: int) -> Tensor:
        factors = (theirs == number).to(x.dtype)
        weight = adjacency.product(x.new_ones(num_nodes, 1), factors)
        return adjacency.product(x, factors).div_(torch.where(weight > 0, weight, 1))

    for own, out in zip(labels, rows, strict=True):
        theirs, scale = own[neighbor], x.new_ones(num_nodes, 1)
        if unit_length:  # known before anything is rounded: half precision ends at 65504
            squares = torch.zeros(num_nodes, 1, device=x.device)
            for number in range(num_classes):
                squares += means(theirs, number).square_().sum(dim=1, keepdim=True)
            scale = torch.where(squares > 0, squares.rsqrt(), 0)
        for number in range(num_classes):
            out[:, number * width : (number + 1) * width] = means(theirs, number).mul_(scale)
    return rows
