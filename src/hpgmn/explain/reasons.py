"""The main reason for a class, in words, for several nodes at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hpgmn.explain.columns import (
    FEW_EVALUATIONS,
    OwnAttributes,
    column_contributions,
    explain_columns,
)
from hpgmn.explain.descriptions import describe_statistic
from hpgmn.explain.replicas import (
    ReplicaView,
    open_replicas,
    players,
    shapley_values,
    subset_values,
)
from hpgmn.graph import Array, Graph
from hpgmn.training.ensemble import Predictor, SavedEnsemble
from hpgmn.training.saved import SavedModel


def main_reasons(
    model: Predictor, graph: Graph, nodes: Array, label: int, device: torch.device | str = "cpu"
) -> Array:
    """Return (n,) what speaks most for a class at each node; None where nothing does.

    That is the statistic with the largest share, and of a node's own attributes the column with the
    largest effect; of boosted trees the column with the largest contribution.

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
        names = players(first)
        values = np.stack([shapley_values(row) for row in subset_values(replicas, nodes, labels)])
    else:
        names, values = ["attributes"], np.ones((len(nodes), 1))
    reasons: list[str | None] = []
    for node, row in zip(nodes.tolist(), values, strict=True):
        name = names[int(row.argmax())]
        if row.max() <= 0:
            reasons.append(None)
        elif name == "attributes":
            reasons.append(_main_column(replicas, node, label))
        else:
            reasons.append(name if first.columns else describe_statistic(name))
    return np.asarray(reasons, dtype=object)


def _main_column(replicas: Sequence[ReplicaView], node: int, label: int) -> str | None:
    """Return the own column of a node that speaks most for a class, with its value."""
    if not OwnAttributes(replicas, np.array([node])).needs_passes:
        effects, _ = explain_columns(replicas, node, label, FEW_EVALUATIONS)
        largest = max(effects, key=lambda effect: effect.effect, default=None)
        if largest is not None and largest.effect > 0:
            return str(largest)
    return describe_statistic("attributes") if replicas[0].reads_statistics else None
