"""Explain the prediction of an ensemble: its members' votes, and one member in detail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hpgmn.base.calibration import predicted_classes
from hpgmn.explain.explanation import EnsembleExplanation, MemberVote
from hpgmn.explain.model import explain_model
from hpgmn.explain.node import explain_node, find_node, outcome
from hpgmn.explain.replicas import by_name, node_id
from hpgmn.graph import Graph
from hpgmn.training.ensemble import SavedEnsemble
from hpgmn.training.saved import SharedStatistics


def explain_ensemble(
    ensemble: SavedEnsemble, graph: Graph, node: Any = None, *, device: torch.device | str = "cpu"
) -> EnsembleExplanation:
    """Explain the class of a node, or what the model has learned (None).

    Of the members that predict the ensemble's class, the first of :meth:`SavedEnsemble.explained`
    is.

    Args:
        ensemble: of one split.
        node: the node's id, or its position if the graph has no ids.
    """
    names, weights, members = ensemble.class_names, ensemble.mean_weights(), ensemble.members
    order = ensemble.explained()
    votes = [
        MemberVote(name, members[name].name, weights[name])
        for name in sorted(weights, key=lambda name: -weights[name])
    ]
    if node is None:
        learned = explain_model(members[order[0]], graph, device=device)
        return EnsembleExplanation(tuple(votes), order[0], learned)
    position = find_node(graph, node)
    shared: SharedStatistics = {}
    chances = {
        name: model.mean_probabilities(graph, device, shared=shared)[position].numpy()
        for name, model in members.items()
    }
    own = {name: outcome(chance, names) for name, chance in chances.items()}
    probabilities = ensemble.mean_probabilities(graph, device)[position].numpy()
    label = int(predicted_classes(probabilities[None], ensemble.mean_calibration[0])[0])
    prediction = outcome(probabilities, names, label)
    explained = min(order, key=lambda name: own[name] != prediction) if names else order[0]
    return EnsembleExplanation(
        members=tuple(
            replace(
                vote,
                prediction=own[vote.name],
                probability=float(chances[vote.name][label]) if names else None,
            )
            for vote in votes
        ),
        explained=explained,
        explanation=explain_node(members[explained], graph, node, device=device),
        node=node_id(graph, position),
        prediction=prediction,
        probabilities=by_name(names, probabilities) if names else {},
    )
