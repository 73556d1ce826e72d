"""The main reason for a class, in words, for several nodes at once."""

from __future__ import annotations

import numpy as np
import torch

from hpgmn.explain.columns import column_contributions
from hpgmn.explain.explanation import STATISTICS
from hpgmn.explain.replicas import open_replicas, players, shapley_values, subset_values
from hpgmn.graph import Array, Graph
from hpgmn.training.ensemble import Predictor, SavedEnsemble
from hpgmn.training.saved import SavedModel


def main_reasons(
    model: Predictor, graph: Graph, nodes: Array, label: int, device: torch.device | str = "cpu"
) -> Array:
    """Return (n,) what speaks most for a class at each node; None where nothing is known.

    Args:
        model: of one split; of an ensemble the member that explains it is used.
        nodes: (n,) positions.
        label: the class.
    """
    if isinstance(model, SavedEnsemble):
        model = model.members[model.explained()[0]]
    assert isinstance(model, SavedModel)
    replicas, labels = open_replicas(model, graph, device), np.full(len(nodes), label)
    first = replicas[0]
    if first.columns:
        names = [column.name for column in first.columns]
        values = column_contributions(replicas, nodes, labels)
    elif first.reads_statistics:
        names = [STATISTICS[name] for name in players(first)]
        values = np.stack([shapley_values(row) for row in subset_values(replicas, nodes, labels)])
    else:
        return np.full(len(nodes), None, dtype=object)
    best = values.argmax(axis=1)
    reasons = [
        f"{names[column]} ({row[column]:+.2f})" if row[column] > 0 else None
        for column, row in zip(best.tolist(), values, strict=True)
    ]
    return np.asarray(reasons, dtype=object)
