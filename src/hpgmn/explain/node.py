"""Why one node has its class."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.explain.explanation import Explanation, Neighbor, Pattern, Without
from hpgmn.explain.neighbors import EXACT_FIRST, Support, neighbor_support, turning_point
from hpgmn.explain.opened import Opened, mean_probabilities, open_replicas
from hpgmn.explain.patterns import Patterns, describe_patterns
from hpgmn.explain.shapley import players, shapley_values, subset_values
from hpgmn.graph import Array, Graph
from hpgmn.training.saved import SavedModel

PATTERNS = 3
"""So many of the patterns that a node attends to most are described."""

_COMPARED = 20_000  # ids compared letter by letter, which takes a second
_NEAREST = 3  # ids that a mistyped one may have meant

SHARES_NOTE = (
    "Shares are exact Shapley values of the log-probability; a statistic that is taken away has "
    "the mean encoding of the train nodes instead."
)
NEIGHBORS_NOTE = (
    "A neighbour's points: the probability with it minus without it, its edges to the node "
    "removed, all other nodes and guessed labels as they are."
)
ASKED_AGAIN_NOTE = (
    "A neighbour's points: the probability with it minus without it, the model asked again on the "
    "graph without its edges to the node."
)


def explain_node(
    saved: SavedModel,
    graph: Graph,
    node: Any,
    *,
    device: torch.device | str = "cpu",
    most: int = 5,
) -> Explanation:
    """Explain the prediction of a node, averaged over the replicas of a trained model.

    Args:
        saved: the model; its replicas should be the seeds of one split.
        graph: the graph it was trained on, or another.
        node: the node's id, or its position where the graph has no ids.
        device: where the products happen.
        most: at most so many neighbours are taken away together.
    """
    place = position(graph, node)
    opened = open_replicas(saved, graph, device)
    names = saved.class_names
    chances = mean_probabilities(opened)
    label = int(chances[place].argmax())
    shares, baseline, notes = _shares(opened, place, label)
    support = neighbor_support(opened, place, label, most=most)
    turned = turning_point(opened, place, label, support)
    known = int(opened[0].train_labels[place])
    return Explanation(
        node=id_of(graph, place),
        prediction=names[label],
        probabilities=by_class(names, chances[place]),
        label=names[known] if known >= 0 else None,
        statistics=shares,
        baseline=baseline,
        patterns=_patterns(opened, chances, place, names),
        neighbors=_neighbors(opened[0], support, names),
        without=_without(graph, support.neighbors[: support.removed], support.without, names),
        turning=None if turned is None else _without(graph, *turned, names),
        notes=(*notes, *node_notes(opened, support)),
    )


def position(graph: Graph, node: Any) -> int:
    """The position of a node, by its id."""
    if graph.node_ids is None:
        text = str(node)
        if text.isascii() and text.isdigit() and int(text) < graph.num_nodes:
            return int(text)
        raise HPGMNError(
            f"Graph '{graph.name}' has no node '{node}'. Its nodes are numbered 0 to "
            f"{graph.num_nodes - 1}. Choose one of them."
        )
    found = np.flatnonzero(graph.node_ids == str(node))
    if found.size:
        return int(found[0])
    alike = _alike(str(node), graph.node_ids).tolist()
    near = difflib.get_close_matches(str(node), alike, n=_NEAREST, cutoff=0.4)
    raise HPGMNError(
        f"Graph '{graph.name}' has no node '{node}'. "
        f"Nearest ids: {', '.join(near or graph.node_ids[:_NEAREST].tolist())}. "
        "Choose one that it has."
    )


def _alike(name: str, ids: Array) -> Array:
    """Ids worth comparing letter by letter: of very many those with the longest common start."""
    if ids.size <= _COMPARED:
        return ids
    for length in range(len(name), 0, -1):
        found = ids[np.char.startswith(ids, name[:length])]
        if found.size:
            return found[:_COMPARED]
    return ids[:_COMPARED]


def id_of(graph: Graph, place: int) -> str:
    """The id of the node at a position."""
    return str(place if graph.node_ids is None else graph.node_ids[place])


def by_class(names: tuple[str, ...], values: Array) -> dict[str, float]:
    """A value for each class by its name."""
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def described(
    graph: Graph, patterns: Patterns, number: int, attention: float, names: tuple[str, ...]
) -> Pattern:
    """A pattern of the memory in the words of an explanation."""
    return Pattern(
        number=number,
        attention=attention,
        classes=by_class(names, patterns.profile[number]),
        neighborhood={
            mode: by_class(names, shares[number]) for mode, shares in patterns.neighborhood.items()
        },
        typical_nodes=tuple(id_of(graph, int(v)) for v in patterns.typical_nodes(number)),
    )


def missing_notes(opened: list[Opened]) -> list[str]:
    """What a model of another kind cannot tell, and which can."""
    first, notes = opened[0], []
    if not first.reads_statistics:
        notes.append(
            f"{first.entry.name} reads no local statistics, so there are no shares of them; train "
            "--model hpgmn to see them."
        )
    if first.attention is None:
        notes.append(
            "The model has no memory, so there are no patterns; hpgmn with memory=true has one."
        )
    elif len(opened) > 1:
        replica = first.task.replicas[0]
        notes.append(
            f"Probabilities are the mean of {len(opened)} seeds; the memory described is that of "
            f"seed {replica.seed}."
        )
    return notes


def _shares(
    opened: list[Opened], place: int, label: int
) -> tuple[dict[str, float], float | None, list[str]]:
    if not opened[0].reads_statistics:
        return {}, None, []
    values = subset_values(opened, np.array([place]), np.array([label]))[0]
    found = dict(zip(players(opened[0]), shapley_values(values).tolist(), strict=True))
    ranked = dict(sorted(found.items(), key=lambda pair: -pair[1]))
    return ranked, float(values[0]), [SHARES_NOTE]


def _patterns(
    opened: list[Opened], chances: Array, place: int, names: tuple[str, ...]
) -> tuple[Pattern, ...]:
    first = opened[0]
    if first.attention is None:
        return ()
    patterns = describe_patterns(first, chances)
    own = patterns.attention[place]
    best = np.argsort(-own, kind="stable")[:PATTERNS]
    return tuple(described(first.graph, patterns, int(k), float(own[k]), names) for k in best)


def _neighbors(opened: Opened, support: Support, names: tuple[str, ...]) -> tuple[Neighbor, ...]:
    labels, known = opened.labels, opened.train_labels
    return tuple(
        Neighbor(
            node=id_of(opened.graph, int(place)),
            counts_as=names[labels[place]] if labels[place] >= 0 else None,
            is_known=bool(known[place] >= 0),
            support=float(value),
        )
        for place, value in zip(support.neighbors, support.support, strict=True)
    )


def _without(
    graph: Graph, removed: Array, chances: Array, names: tuple[str, ...]
) -> Without | None:
    if not removed.size:
        return None
    gone = tuple(id_of(graph, int(place)) for place in removed)
    return Without(gone, names[int(chances.argmax())], by_class(names, chances))


def node_notes(opened: list[Opened], support: Support) -> list[str]:
    """How to read what the neighbours do, and what a model of another kind cannot tell."""
    how = NEIGHBORS_NOTE if opened[0].reads_statistics else ASKED_AGAIN_NOTE
    notes = [how] if support.neighbors.size else ["The node has no neighbours."]
    if opened[0].reads_statistics and not opened[0].modes:
        notes = ["The model reads attributes only: no neighbour changes anything."]
    if support.rough:
        notes.append(
            f"The node has many neighbours: points are exact for the {EXACT_FIRST} that matter "
            "most; for the others the node's diffusion row is kept as it is."
        )
    if support.left_out:
        notes.append(
            f"{support.left_out} more neighbours were not asked about: {opened[0].entry.name} has "
            "to be run again for each."
        )
    return notes + missing_notes(opened)
