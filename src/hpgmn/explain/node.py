"""Explain the prediction of one node."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.tasks import is_known
from hpgmn.explain.columns import explain_columns, statistic_shares
from hpgmn.explain.explanation import (
    COLUMNS_NOTE,
    PATTERNS,
    SHARES_NOTE,
    TARGETS_NOTE,
    Explanation,
    Neighbor,
    Without,
)
from hpgmn.explain.neighbors import Support, neighbor_support, node_notes, turning_point
from hpgmn.explain.reasons import main_reason
from hpgmn.explain.replicas import (
    ReplicaView,
    by_name,
    describe_patterns,
    mean_probabilities,
    missing_notes,
    node_id,
    open_replicas,
    predicted_labels,
)
from hpgmn.graph import Array, Graph
from hpgmn.training.saved import SavedModel

_COMPARED = 20_000  # ids compared letter by letter, which takes a second
_NEAREST = 3  # ids proposed for a mistyped one


def explain_node(
    saved: SavedModel, graph: Graph, node: Any, *, device: torch.device | str = "cpu", most: int = 5
) -> Explanation:
    """Explain the prediction of a node, averaged over the replicas of a trained model.

    Args:
        saved: the model; its replicas should be the seeds of one split.
        graph: the graph it was trained on, or another.
        node: the node's id, or its position if the graph has no ids.
        most: the most neighbours that are removed together.
    """
    position = find_node(graph, node)
    replicas = open_replicas(saved, graph, device)
    first, names = replicas[0], saved.class_names
    probabilities = mean_probabilities(replicas)
    label = int(predicted_labels(replicas, probabilities[[position]])[0])
    shares = statistic_shares(replicas, np.array([position]), np.array([label]))
    statistics, columns = map(_ranked, shares.of(0))
    notes = [COLUMNS_NOTE if columns else SHARES_NOTE] if statistics else []
    column_effects, column_notes = explain_columns(replicas, position, label)
    support = neighbor_support(replicas, position, label, most=most)
    turned, patterns, train_label = None, None, first.train_labels[position]
    if not first.is_regression:
        turned = turning_point(replicas, position, label, support)
        patterns = None if first.attention is None else describe_patterns(first, probabilities)
    notes += [*column_notes, *node_notes(replicas, support), *missing_notes(replicas)]
    if first.is_regression:
        notes = [TARGETS_NOTE, *column_notes]
    attention = np.zeros(0) if patterns is None else patterns.attention[position]
    most_attended = np.argsort(-attention, kind="stable")[:PATTERNS].tolist()
    return Explanation(
        node=node_id(graph, position),
        prediction=outcome(probabilities[position], names, label),
        probabilities={} if first.is_regression else by_name(names, probabilities[position]),
        label=_label(train_label, names) if is_known(train_label) else None,
        statistics=statistics,
        baseline=None if shares.baseline is None else float(shares.baseline[0]),
        patterns=tuple(
            patterns.explanation(graph, k, float(attention[k]), names)
            for k in most_attended
            if patterns is not None
        ),
        neighbors=_neighbors(first, position, support, names, probabilities),
        without=_without(replicas, support.neighbors[: support.removed], support.without, names),
        turning=None if turned is None else _without(replicas, *turned, names),
        notes=tuple(dict.fromkeys(notes)),
        columns=columns,
        column_effects=column_effects,
        main_reason=main_reason(
            replicas, position, label, names, statistics, columns, column_effects
        ),
    )


def find_node(graph: Graph, node: Any) -> int:
    """Return the position of a node by its id."""
    if graph.node_ids is None:
        text = str(node)
        if text.isascii() and text.isdigit() and int(text) < graph.num_nodes:
            return int(text)
        numbers = f"Choose a number from 0 to {graph.num_nodes - 1}"
        raise HPGMNError(
            f"Graph '{graph.name}' has no node '{node}'.", Remedy(numbers, option="node")
        )
    matches = np.flatnonzero(graph.node_ids == str(node))
    if matches.size:
        return int(matches[0])
    candidates = _candidates(str(node), graph.node_ids).tolist()
    near = difflib.get_close_matches(str(node), candidates, n=_NEAREST, cutoff=0.4)
    near = near or graph.node_ids[:_NEAREST].tolist()
    raise HPGMNError(
        f"Graph '{graph.name}' has no node '{node}'. Similar ids: {', '.join(near)}.",
        Remedy("Choose an existing id", option="node", value=near[0]),
    )


def _candidates(name: str, ids: Array) -> Array:
    """Return ids worth comparing letter by letter: of many those with the longest common prefix."""
    if ids.size <= _COMPARED:
        return ids
    for length in range(len(name), 0, -1):
        matches = ids[np.char.startswith(ids, name[:length])]
        if matches.size:
            return matches[:_COMPARED]
    return ids[:_COMPARED]


def _ranked(values: dict[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda pair: -pair[1]))


def _neighbors(
    replica: ReplicaView, node: int, support: Support, names: tuple[str, ...], predicted: Array
) -> tuple[Neighbor, ...]:
    labels, known = replica.labels, is_known(replica.train_labels)
    if replica.is_regression:
        labels = np.where(known, replica.train_labels, predicted[:, 0])
    types = _edge_types(replica.graph, node)
    return tuple(
        Neighbor(
            node=node_id(replica.graph, int(v)),
            counts_as=_label(labels[v], names) if is_known(labels[v]) else None,
            is_known=bool(known[v]),
            support=float(value),
            edge_types=types.get(int(v), ()),
        )
        for v, value in zip(support.neighbors, support.support, strict=True)
    )


def _edge_types(graph: Graph, node: int) -> dict[int, tuple[str, ...]]:
    """Return the types of the edges between a node and each other one, in both directions."""
    if graph.edge_type is None:
        return {}
    source, target = graph.edge_index
    edges = np.flatnonzero((source == node) | (target == node))
    others = np.where(source[edges] == node, target[edges], source[edges])
    numbers: dict[int, set[int]] = {}
    for other, number in zip(others.tolist(), graph.edge_type[edges].tolist(), strict=True):
        numbers.setdefault(other, set()).add(number)
    names = graph.edge_type_names
    return {other: tuple(names[n] for n in sorted(types)) for other, types in numbers.items()}


def _without(
    replicas: Sequence[ReplicaView], removed: Array, probabilities: Array, names: tuple[str, ...]
) -> Without | None:
    if not removed.size:
        return None
    ids = tuple(node_id(replicas[0].graph, int(v)) for v in removed)
    chances = by_name(names, probabilities) if names else {}
    label = int(predicted_labels(replicas, probabilities[None])[0])
    return Without(ids, outcome(probabilities, names, label), chances)


def outcome(probabilities: Array, names: tuple[str, ...], label: int | None = None) -> str:
    """Return the name of a class [the most probable], or the number of a regression."""
    if not names:
        return _label(probabilities[0], names)
    return names[int(probabilities.argmax()) if label is None else label]


def _label(label: Any, names: tuple[str, ...]) -> str:
    """Return the name of a class, or a target."""
    return names[int(label)] if names else f"{label:.4g}"
