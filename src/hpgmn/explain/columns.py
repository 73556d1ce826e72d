"""What the columns of a table contribute to the predictions of boosted trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpgmn.explain.replicas import ReplicaView
from hpgmn.graph import Array


def column_statistics(replica: ReplicaView) -> list[str]:
    """Return the statistics of the columns, each once."""
    return list(dict.fromkeys(column.statistic for column in replica.columns))


def column_contributions(replicas: Sequence[ReplicaView], nodes: Array, labels: Array) -> Array:
    """Return (n, W) contributions of the columns to the log-odds of a class, mean of the replicas.

    Log-odds are the score of the class minus the mean score of the others.

    Args:
        nodes: (n,) positions.
        labels: (n,) the class of each node.
    """
    total = 0.0
    for replica in replicas:
        model: Any = replica.stage.model
        scores = model.contributions(0, nodes)[..., :-1]  # (n, trees, W)
        if scores.shape[1] == 1:  # of two classes
            total = total + np.where(labels == 1, 1.0, -1.0)[:, None] * scores[:, 0]
            continue
        chosen = scores[np.arange(nodes.size), labels]
        others = (scores.sum(axis=1) - chosen) / (scores.shape[1] - 1)
        total = total + chosen - others
    return np.asarray(total / len(replicas))


def sum_by_statistic(replica: ReplicaView, contributions: Array) -> Array:
    """Return (n, S) the sums over the columns of each statistic."""
    owners = np.array([column.statistic for column in replica.columns])
    names = column_statistics(replica)
    return np.stack([contributions[:, owners == name].sum(axis=1) for name in names], axis=1)
