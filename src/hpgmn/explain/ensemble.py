"""Explain the prediction of an ensemble: its members' votes, and one member in detail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.explain.explanation import EnsembleExplanation, Explanation, MemberVote, ModelExplanation
from hpgmn.explain.model import explain_model
from hpgmn.explain.node import explain_node, find_node
from hpgmn.explain.replicas import by_name, node_id
from hpgmn.graph import Graph
from hpgmn.training.ensemble import SavedEnsemble
from hpgmn.training.saved import SavedModel, SharedStatistics


def explain_ensemble(
    ensemble: SavedEnsemble, graph: Graph, node: Any = None, *, device: torch.device | str = "cpu"
) -> EnsembleExplanation:
    """Explain the class of a node, or what the model has learned (None).

    Of the members that predict the ensemble's class, HP-GMN with the largest weight is explained,
    or else the member with the largest weight.

    Args:
        ensemble: of one split.
        node: the node's id, or its position if the graph has no ids.
    """
    names, weights, order = ensemble.class_names, ensemble.mean_weights(), ensemble.explained()
    if node is None:
        votes = tuple(
            MemberVote(name, ensemble.members[name].name, weights[name])
            for name in sorted(weights, key=lambda name: -weights[name])
        )
        explained, explanation = _first(
            ensemble, order, lambda model: explain_model(model, graph, device=device)
        )
        return EnsembleExplanation(votes, explained, explanation)
    position = find_node(graph, node)
    shared: SharedStatistics = {}
    chances = {
        name: model.mean_probabilities(graph, device, shared=shared)[position].numpy()
        for name, model in ensemble.members.items()
    }
    probabilities = ensemble.mean_probabilities(graph, device)[position].numpy()
    label = int(probabilities.argmax())
    order.sort(key=lambda name: int(chances[name].argmax()) != label)
    explained, explanation = _first(
        ensemble, order, lambda model: explain_node(model, graph, node, device=device)
    )
    return EnsembleExplanation(
        members=tuple(
            MemberVote(
                name,
                ensemble.members[name].name,
                weights[name],
                names[int(chances[name].argmax())],
                float(chances[name][label]),
            )
            for name in sorted(weights, key=lambda name: -weights[name])
        ),
        explained=explained,
        explanation=explanation,
        node=node_id(graph, position),
        prediction=names[label],
        probabilities=by_name(names, probabilities),
    )


def _first(
    ensemble: SavedEnsemble,
    order: list[str],
    explain: Callable[[SavedModel], Explanation | ModelExplanation],
) -> tuple[str | None, Explanation | ModelExplanation | None]:
    """Explain the first member that can be explained; None without one."""
    for name in order:
        try:
            return name, explain(ensemble.members[name])
        except HPGMNError:
            continue
    return None, None
