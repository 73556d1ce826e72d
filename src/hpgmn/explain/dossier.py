"""What is known about many nodes of a graph at once: the data behind a page to look nodes up on.

The numbers are those of :func:`hpgmn.explain.explain_node`. Of a large graph a sample of nodes is
listed; what each neighbour adds, which takes far longer than the rest, is computed for as many of
them as a fixed amount of work allows. Both choices depend on the graph and the model alone.

Fixed letters here: L listed nodes, S statistics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpgmn.explain.explanation import STATISTICS
from hpgmn.explain.neighbors import (
    EXACT_UP_TO,
    Support,
    neighbor_support,
    neighbors_of,
    turning_point,
)
from hpgmn.explain.node import PATTERNS, SHARES_NOTE, id_of, missing_notes, node_notes
from hpgmn.explain.opened import Opened, mean_probabilities, open_replicas
from hpgmn.explain.patterns import describe_patterns
from hpgmn.explain.shapley import players, shapley_values, subset_values
from hpgmn.graph import Array, Graph
from hpgmn.statistics import base_name
from hpgmn.training.saved import SavedModel

LISTED = 3000
"""Most nodes that are listed."""

DRAWN = 40
"""Most neighbours that are listed for a node."""

SUBSETS = 500_000
"""Most subsets of statistics that shares are computed from: about 4 seconds on one core. With more
than :data:`FEW_CLASSES` classes each takes longer, and there are fewer."""

FEW_CLASSES = 20
"""Up to so many classes a subset of statistics takes about the same time."""

SECONDS = 3.0
"""About so long, on one core, neighbours are taken away; :func:`_seconds` tells a node's part."""

LARGEST = 8_000_000
"""Most bytes of the data as JSON; fewer nodes are listed where it would be more."""

_REMOVED = 5  # most neighbours taken away together, as explain_node does unless told otherwise
_PLACES = 6  # decimal places of a number
_NO_EDGE, _OUT, _IN = 0, 1, 2  # bits of an edge's direction


@dataclass(frozen=True, eq=False)
class _Part:
    """What all nodes share while a dossier is made."""

    opened: list[Opened]
    names: tuple[str, ...]
    chances: Array  # (N, C)
    attention: Array | None  # (N, K)

    @property
    def graph(self) -> Graph:
        return self.opened[0].graph


def dossier(
    saved: SavedModel,
    graph: Graph,
    roles: Sequence[str],
    labels: Sequence[str | None],
    *,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Everything to be shown about the nodes of a graph, for JSON.

    Args:
        saved: the model; its replicas should be the seeds of one split.
        graph: the graph it was trained on.
        roles: of each node, as the run's predictions have it: train, val, test or unlabelled.
        labels: of each node its class's name as the run's predictions have it, None if unknown.
        device: where the products happen.
    """
    opened = open_replicas(saved, graph, device)
    attention = opened[0].attention
    part = _Part(
        opened,
        saved.class_names,
        mean_probabilities(opened),
        None if attention is None else attention.cpu().numpy(),
    )
    predicted = part.chances.argmax(axis=1)
    place = {name: number for number, name in enumerate(part.names)}
    known = np.array([-1 if name is None else place.get(name, -1) for name in labels])
    order = sampled(predicted, known, np.asarray(roles) == "train")[: _listed(opened)]
    rows = [_row(part, int(v), str(roles[v]), int(known[v])) for v in order]
    if opened[0].reads_statistics:
        _add_shares(part, order, rows)
        _add_support(part, order, rows)
    return _fitting(part, rows)


def sampled(predicted: Array, labels: Array, trained: Array) -> Array:
    """All nodes by position, so ordered that any first few are a sample of every kind.

    Nodes of the same predicted class that are alike right, wrong, trained on or of unknown class
    are one kind; kinds take turns, and inside one the order is drawn with seed 0.

    Args:
        predicted: (N,) classes.
        labels: (N,) classes, -1 unknown.
        trained: (N,) whether the label was trained on.

    >>> sampled(np.zeros(4, int), np.array([0, 0, 0, 1]), np.zeros(4, bool))[:2].tolist()
    [2, 3]
    """
    outcome = np.where(labels < 0, 0, np.where(predicted == labels, 1, 2))
    kind = predicted * 6 + 2 * outcome + trained
    drawn = np.random.default_rng(0).permutation(kind.size)
    grouped = drawn[np.argsort(kind[drawn], kind="stable")]
    _, start, count = np.unique(kind[grouped], return_index=True, return_counts=True)
    turn = np.arange(kind.size) - np.repeat(start, count)
    return np.asarray(grouped[np.argsort(turn, kind="stable")])


def _listed(opened: Sequence[Opened]) -> int:
    """How many nodes are listed."""
    if not opened[0].reads_statistics:
        return LISTED
    subsets = SUBSETS * FEW_CLASSES // max(FEW_CLASSES, opened[0].task.num_classes)
    return max(1, min(LISTED, subsets // (len(opened) << len(players(opened[0])))))


def _row(part: _Part, node: int, role: str, label: int) -> dict[str, Any]:
    """What is known of a node without much work; its neighbours by position."""
    near = neighbors_of(part.opened, node)
    row: dict[str, Any] = {
        "node": node,
        "prediction": int(part.chances[node].argmax()),
        "probabilities": _rounded(part.chances[node]),
        "role": role,
        "label": None if label < 0 else label,
        "degree": int(near.size),
        "neighbors": near[:DRAWN].tolist(),
        "edges": _edges(part, node, near[:DRAWN]),
    }
    if part.attention is not None:
        own = part.attention[node]
        best = np.argsort(-own, kind="stable")[:PATTERNS]
        row["patterns"] = [[int(k), round(float(own[k]), _PLACES)] for k in best]
    return row


def _edges(part: _Part, node: int, near: Array) -> list[int]:
    """For each neighbour 1 where an edge leads to it, 2 where one comes from it, 3 for both."""
    found = np.zeros(near.size, np.int64)
    for mode, bit in (("out", _OUT), ("in", _IN)):
        adjacency = part.opened[0].task.statistics.adjacency(mode)
        there = adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]
        found |= np.where(np.isin(near, there), bit, _NO_EDGE)
    return [int(bits) for bits in found]


def _add_shares(part: _Part, order: Array, rows: list[dict[str, Any]]) -> None:
    """The share of every statistic in the decision, and what the shares start from."""
    every = subset_values(part.opened, order, part.chances[order].argmax(axis=1))
    for row, values in zip(rows, every, strict=True):
        row["shares"] = _rounded(shapley_values(values))
        row["baseline"] = round(float(values[0]), _PLACES)


def _add_support(part: _Part, order: Array, rows: list[dict[str, Any]]) -> None:
    """What each neighbour adds, for the first nodes that fit in the time there is."""
    left = SECONDS
    for node, row in zip(order, rows, strict=True):
        cost = _seconds(part.opened, row["degree"])
        if cost > left:
            continue
        left -= cost
        label = row["prediction"]
        support = neighbor_support(part.opened, int(node), label, most=_REMOVED)
        turned = turning_point(part.opened, int(node), label, support)
        shown = np.sort(np.argsort(-np.abs(support.support), kind="stable")[:DRAWN])
        near = support.neighbors[shown]
        row["neighbors"], row["edges"] = near.tolist(), _edges(part, int(node), near)
        row["support"] = _rounded(support.support[shown])
        row["without"] = _without(support.neighbors[: support.removed], support.without)
        row["turning"] = None if turned is None else _without(*turned)
        row["notes"] = _support_notes(part.opened, support)


def _seconds(opened: Sequence[Opened], degree: int) -> float:
    """About how long the neighbours of a node take, as measured on one core.

    A set of neighbours costs little; with diffusion it costs a walk over the whole graph, which
    serves all replicas.
    """
    cost = len(opened) * (0.01 + 5e-4 * degree)
    if any(base_name(name) == "diffusion" for name in opened[0].modes):
        edges = opened[0].graph.num_edges
        cost += (min(degree, EXACT_UP_TO) + 8) * (2e-3 + 1.5e-7 * edges)
    return cost


def _support_notes(opened: list[Opened], support: Support) -> list[str]:
    """What is said of this node's neighbours alone."""
    always = missing_notes(opened)
    return [note for note in node_notes(opened, support) if note not in always]


def _without(removed: Array, chances: Array) -> dict[str, Any] | None:
    if not removed.size:
        return None
    best = int(chances.argmax())
    return {
        "neighbors": removed.tolist(),
        "prediction": best,
        "probability": round(float(chances[best]), _PLACES),
    }


def _fitting(part: _Part, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The dossier with as many rows as fit."""
    shared = _shared(part)
    content = shared | _tables(part, rows)
    while rows and len(as_json(content)) > LARGEST:
        rows = rows[: len(rows) // 2]
        content = shared | _tables(part, rows)
    return content


def as_json(content: Mapping[str, Any]) -> str:
    r"""A dossier as JSON in ASCII letters that may stand inside an HTML page as it is.

    >>> as_json({"ids": ["</script>&"]})
    '{"ids":["\\u003c/script\\u003e\\u0026"]}'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":  # in JSON they occur in strings only
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _shared(part: _Part) -> dict[str, Any]:
    """What is said once for all nodes."""
    first = part.opened[0]
    notes = missing_notes(part.opened)
    statistics = players(first) if first.reads_statistics else []
    return {
        "model": first.entry.name,
        "num_nodes": part.graph.num_nodes,
        "directed": part.graph.directed,
        "modes": first.neighbor_modes,
        "classes": list(part.names),
        "statistics": [[name, STATISTICS[name]] for name in statistics],
        "patterns": _patterns(part),
        "notes": [SHARES_NOTE, *notes] if statistics else notes,
    }


def _patterns(part: _Part) -> list[dict[str, Any]]:
    """What each pattern of the memory stands for."""
    if part.attention is None:
        return []
    found = describe_patterns(part.opened[0], part.chances)
    return [
        {
            "classes": _rounded(found.profile[k]),
            "neighborhood": {mode: _rounded(own[k]) for mode, own in found.neighborhood.items()},
            "typical_nodes": [id_of(part.graph, int(v)) for v in found.typical_nodes(k)],
        }
        for k in range(part.attention.shape[1])
    ]


def _tables(part: _Part, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows, with nodes told by their place in a table of ids: the listed ones come first."""
    place = {row["node"]: number for number, row in enumerate(rows)}
    for row in rows:
        for node in _named(row):
            place.setdefault(node, len(place))
    nodes = list(place)
    counts_as, known = part.opened[0].labels[nodes], part.opened[0].train_labels[nodes] >= 0
    return {
        "ids": [id_of(part.graph, node) for node in nodes],
        "counts_as": [int(label) for label in counts_as],
        "is_known": [int(one) for one in known],
        "nodes": [_placed(row, place) for row in rows],
    }


def _named(row: Mapping[str, Any]) -> list[int]:
    """Every other node that a row names."""
    changed = [row.get("without"), row.get("turning")]
    return [*row["neighbors"], *(v for one in changed if one for v in one["neighbors"])]


def _placed(row: Mapping[str, Any], place: Mapping[int, int]) -> dict[str, Any]:
    found = {key: value for key, value in row.items() if key != "node"}
    found["neighbors"] = [place[v] for v in row["neighbors"]]
    for key in ("without", "turning"):
        if row.get(key):
            found[key] = row[key] | {"neighbors": [place[v] for v in row[key]["neighbors"]]}
    return found


def _rounded(values: Array) -> list[float]:
    return [round(float(value), _PLACES) for value in values]
