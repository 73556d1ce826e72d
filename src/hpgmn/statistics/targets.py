"""Statistics of a regression: groups of nodes by their target, and mean targets of neighbours."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from typing_extensions import override

from hpgmn.base.sparse import inverse_or_zero
from hpgmn.graph import Array, Graph
from hpgmn.statistics.definitions import Definition, Request, Selection
from hpgmn.statistics.operators import ReplicaRows, Statistic


class TargetMeans(Definition):
    """The mean standardised target of the neighbours, of those with a known one, and their share.

    Unknown targets are the label estimator's predictions; 0, the mean of the train nodes, where a
    node has no (known) neighbours. Edge weights count.
    """

    settings = ()
    reads_labels = True
    width: ClassVar[int] = 3

    @override
    def build(self, request: Request, settings: Selection) -> Statistic:
        assert request.shares is not None
        return ReplicaRows(request.source.tensor(target_means(request.adjacency, request.shares)))


def target_means(adjacency: sp.csr_array, averaged: Array) -> Array:
    """Return (R, M, 3) means over the neighbours of M nodes of what they have, (R, N, 3)."""
    replicas, nodes, width = averaged.shape
    columns = averaged.transpose(1, 0, 2).reshape(nodes, -1)
    sums = (adjacency @ columns).reshape(-1, replicas, width).transpose(1, 0, 2)
    weight = np.asarray(adjacency.sum(axis=1), np.float32).reshape(-1)
    means = [
        sums[..., 0] * inverse_or_zero(weight),
        sums[..., 1] * inverse_or_zero(sums[..., 2]),
        sums[..., 2] * inverse_or_zero(weight),
    ]
    return np.stack(means, axis=-1)


def num_groups(graph: Graph, settings: Any) -> int:
    """Return the number of classes of a graph, or of the bins of its targets."""
    return int(settings.target_bins) if graph.is_regression else graph.num_classes
