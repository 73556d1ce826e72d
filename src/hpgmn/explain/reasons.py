"""The main reason for a prediction, in a few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from hpgmn.explain.columns import FEW_EVALUATIONS, OwnAttributes, explain_columns, statistic_shares
from hpgmn.explain.descriptions import describe_statistic
from hpgmn.explain.explanation import ColumnEffect
from hpgmn.explain.replicas import ReplicaView, open_replicas
from hpgmn.graph import Array, Graph
from hpgmn.training.ensemble import Predictor, SavedEnsemble
from hpgmn.training.saved import SavedModel


def main_reasons(
    model: Predictor, graph: Graph, nodes: Array, label: int, device: torch.device | str = "cpu"
) -> Array:
    """Return (n,) the :func:`main_reason` for a class at each node; None where nothing is for it.

    Args:
        model: of one split; of an ensemble the member that explains it is used.
        nodes: (n,) positions.
        label: the class.
    """
    if isinstance(model, SavedEnsemble):
        model = model.members[model.explained()[0]]
    assert isinstance(model, SavedModel)
    replicas, labels = open_replicas(model, graph, device), np.full(len(nodes), label)
    shares = statistic_shares(replicas, nodes, labels)
    found = [
        main_reason(replicas, node, label, model.class_names, *shares.of(index))
        for index, node in enumerate(nodes.tolist())
    ]
    return np.asarray([reason or None for reason in found], dtype=object)


def main_reason(
    replicas: Sequence[ReplicaView],
    node: int,
    label: int,
    names: tuple[str, ...],
    statistics: Mapping[str, float],
    columns: Mapping[str, float],
    effects: Sequence[ColumnEffect] | None = None,
) -> str:
    """Describe the largest contribution: own column, column of trees, or class of neighbours.

    What speaks against a class is no reason for it; a number may be low for a reason.

    Args:
        label: the class.
        statistics: the contribution of each statistic; empty for models without them.
        columns: that of each column of boosted trees; empty for others.
        effects: of own columns; None: computed if they matter, without passes over the graph.
    """
    first = replicas[0]
    size: Callable[[float], float] = abs if first.is_regression else float
    best = max(statistics, key=lambda name: size(statistics[name]), default="attributes")
    if statistics and size(statistics[best]) <= 0:
        return ""
    if best == "attributes":
        if effects is None and not OwnAttributes(replicas, np.array([node])).needs_passes:
            effects, _ = explain_columns(replicas, node, label, FEW_EVALUATIONS)
        largest = max(effects or (), key=lambda effect: size(effect.effect), default=None)
        if largest is None or size(largest.effect) <= 0:
            return describe_statistic(best) if statistics else ""
        return f"{largest} ({largest.effect:{'+.3g' if first.is_regression else '+.2f'}})"
    if columns:
        own: list[str] = [one.name for one in first.columns if one.statistic == best]
        return max(own, key=lambda name: size(columns[name]))
    base, _, edge_type = best.removesuffix(")").partition(" (")
    reason = ""
    if base in ("class_counts", "class_means") and not first.is_regression:
        reason = _neighbor_class(first, node, names, edge_type)
    return reason or describe_statistic(best)


def _neighbor_class(replica: ReplicaView, node: int, names: tuple[str, ...], edge_type: str) -> str:
    """Name the class and direction that a node's neighbours have more often than all nodes."""
    labels, classes = replica.labels, len(names)
    usual = np.bincount(labels[labels >= 0], minlength=classes) / max((labels >= 0).sum(), 1)
    gains = {}
    statistics = replica.task.statistics
    number = f":{statistics.edge_type_names.index(edge_type)}" if edge_type else ""
    for mode in replica.neighbor_modes:
        adjacency = statistics.adjacency(f"{mode}{number}")
        near = labels[adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]]
        if (near >= 0).any():
            shares = np.bincount(near[near >= 0], minlength=classes) / (near >= 0).sum()
            label = int((shares - usual).argmax())
            gains[mode, label] = shares[label] - usual[label]
    if not gains:
        return ""
    mode, label = max(gains, key=lambda key: gains[key])
    kinds = [part for part in (mode, edge_type) if part and part != "undirected"]
    return f"neighbours of class {names[label]}" + (f" ({', '.join(kinds)})" if kinds else "")
