"""The data of the node explorer: explanations of many nodes of a graph at once.

The numbers are those of :func:`hpgmn.explain.explain_node`. Large graphs are sampled, and effects
of neighbours are computed for as many nodes as a fixed amount of work allows; both choices depend
on graph and model alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpgmn.base.calibration import predicted_classes
from hpgmn.explain.columns import (
    COLUMN_EFFECTS_NOTE,
    FEW_EVALUATIONS,
    affordable_nodes,
    explain_columns,
    statistic_shares,
)
from hpgmn.explain.descriptions import describe_statistic
from hpgmn.explain.explanation import (
    COLUMNS_NOTE,
    PATTERNS,
    SHARES_NOTE,
    SHOWN_COLUMNS,
    ColumnEffect,
)
from hpgmn.explain.neighbors import (
    EXACT_UP_TO,
    has_diffusion,
    neighbor_support,
    neighbors_of,
    node_notes,
    reads_whole_graph,
    turning_point,
)
from hpgmn.explain.node import find_node
from hpgmn.explain.replicas import (
    ReplicaView,
    describe_patterns,
    mean_probabilities,
    missing_notes,
    node_id,
    players,
    predicted_labels,
)
from hpgmn.graph import Array, Graph
from hpgmn.training.ensemble import SavedEnsemble

LISTED = 3000
"""Most nodes that are listed."""

DRAWN = 40
"""Most neighbours that are listed for a node."""

SUBSETS = 500_000
"""Most subsets of statistics for shares, about 4 seconds on one core up to :data:`FEW_CLASSES`."""

FEW_CLASSES = 20
"""Classes beyond which a subset of statistics takes longer."""

SECONDS = 3.0
"""Budget for the effects of neighbours on one core, by the estimate of :func:`_seconds`."""

LARGEST = 8_000_000
"""Most bytes of the data as JSON; fewer nodes are listed if it would be more."""

_REMOVED = 5  # most neighbours removed together, the default of explain_node
_DECIMALS = 6
_OUT, _IN = 1, 2  # bits of an edge's direction


def explorer_data(
    replicas: Sequence[ReplicaView],
    names: tuple[str, ...],
    roles: Array,
    labels: Array,
    first: Sequence[str] = (),
    ensemble: SavedEnsemble | None = None,
) -> dict[str, Any]:
    """Return what the explorer shows about the nodes of a graph, for JSON.

    Args:
        replicas: the seeds of one split, on the graph they were trained on.
        names: the classes of the model.
        roles: (N,) train, val, test or unlabelled.
        labels: (N,) classes, -1 unknown.
        first: ids of nodes to list before the sample.
        ensemble: whose member the replicas are: its predictions are listed too.
    """
    probabilities = mean_probabilities(replicas)
    predicted = predicted_labels(replicas, probabilities)
    sample = sample_nodes(predicted, labels, roles == "train")
    order = _move_to_front(sample, first, replicas[0].graph)[: _num_listed(replicas)]
    attention = replicas[0].attention
    weights = None if attention is None else attention.cpu().numpy()
    rows = []
    for node in order.tolist():
        row = _row(replicas, node, probabilities[node])
        row |= {"role": str(roles[node]), "label": None if labels[node] < 0 else int(labels[node])}
        if weights is not None:
            best = np.argsort(-weights[node], kind="stable")[:PATTERNS].tolist()
            row["patterns"] = [[k, round(float(weights[node, k]), _DECIMALS)] for k in best]
        rows.append(row)
    statistics = _add_shares(replicas, rows)
    if replicas[0].reads_statistics:
        _add_support(replicas, order, rows)
    if ensemble is not None:
        _add_ensemble(ensemble, replicas[0], rows)
    _add_columns(replicas, rows[: affordable_nodes(replicas) // 2])
    shared = _shared_data(replicas, names, probabilities, statistics)
    content = shared | _with_ids(replicas[0], rows)
    while rows and len(json.dumps(content, separators=(",", ":"))) > LARGEST:
        rows = rows[: len(rows) // 2]
        content = shared | _with_ids(replicas[0], rows)
    return content


def sample_nodes(predicted: Array, labels: Array, trained: Array) -> Array:
    """Order all nodes so that any first few are a stratified sample, drawn with seed 0.

    The strata are predicted class × correct, wrong or unknown × trained on or not.

    Args:
        predicted: (N,) classes.
        labels: (N,) classes, -1 unknown.
        trained: (N,) whether the label was trained on.

    >>> sample_nodes(np.zeros(4, int), np.array([0, 0, 0, 1]), np.zeros(4, bool))[:2].tolist()
    [2, 3]
    """
    outcome = np.where(labels < 0, 0, np.where(predicted == labels, 1, 2))
    stratum = predicted * 6 + 2 * outcome + trained
    shuffled = np.random.default_rng(0).permutation(stratum.size)
    grouped = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    _, start, count = np.unique(stratum[grouped], return_index=True, return_counts=True)
    rank = np.arange(stratum.size) - np.repeat(start, count)
    return np.asarray(grouped[np.argsort(rank, kind="stable")])


def _move_to_front(order: Array, first: Sequence[str], graph: Graph) -> Array:
    """Return the order of all nodes with those of some ids at its front."""
    ids = np.arange(order.size).astype(str) if graph.node_ids is None else graph.node_ids
    rank = np.full(order.size, len(first))
    for node in np.flatnonzero(np.isin(ids, list(first))).tolist():
        rank[node] = first.index(str(ids[node]))
    return np.asarray(order[np.argsort(rank[order], kind="stable")])


def _num_listed(replicas: Sequence[ReplicaView]) -> int:
    if not replicas[0].reads_statistics:
        return LISTED
    subsets = SUBSETS * FEW_CLASSES // max(FEW_CLASSES, replicas[0].task.num_classes)
    return max(1, min(LISTED, subsets // (len(replicas) << len(players(replicas[0])))))


def _row(replicas: Sequence[ReplicaView], node: int, probabilities: Array) -> dict[str, Any]:
    """Return what takes little work; neighbours are positions."""
    near = neighbors_of(replicas, node)
    return {
        "node": node,
        "prediction": int(predicted_labels(replicas, probabilities[None])[0]),
        "probabilities": _round(probabilities),
        "degree": int(near.size),
        "neighbors": near[:DRAWN].tolist(),
        "edges": _edges(replicas[0], node, near[:DRAWN]),
    }


def _edges(replica: ReplicaView, node: int, near: Array) -> list[int]:
    """Return for each neighbour 1 for an edge to it, 2 for one from it, 3 for both."""
    bits = np.zeros(near.size, np.int64)
    for mode, bit in (("out", _OUT), ("in", _IN)):
        adjacency = replica.task.statistics.adjacency(mode)
        linked = adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]
        bits |= np.where(np.isin(near, linked), bit, 0)
    return bits.tolist()


def _add_shares(replicas: Sequence[ReplicaView], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Add what each statistic contributes; return the names of the statistics."""
    nodes, labels = (np.array([row[key] for row in rows]) for key in ("node", "prediction"))
    shares = statistic_shares(replicas, nodes, labels)
    for index, row in enumerate(rows):
        if shares.names:
            row["shares"] = _round(shares.values[index])
        if shares.baseline is not None:
            row["baseline"] = round(float(shares.baseline[index]), _DECIMALS)
    return shares.names


def _add_ensemble(
    ensemble: SavedEnsemble, replica: ReplicaView, rows: Sequence[dict[str, Any]]
) -> None:
    """Add the class that the ensemble predicts, and its probability."""
    probabilities = ensemble.mean_probabilities(replica.graph, replica.task.device).numpy()
    predicted = predicted_classes(probabilities, ensemble.mean_calibration[0])
    for row in rows:
        label = int(predicted[row["node"]])
        row["ensemble"] = [label, *_round([probabilities[row["node"], label]])]


def _add_support(
    replicas: Sequence[ReplicaView], order: Array, rows: Sequence[dict[str, Any]]
) -> None:
    """Add the effects of neighbours for the first nodes that fit into the budget."""
    left = SECONDS
    for node, row in zip(order.tolist(), rows, strict=True):
        cost = _seconds(replicas, row["degree"])
        if cost > left:
            continue
        left -= cost
        label = row["prediction"]
        support = neighbor_support(replicas, node, label, most=_REMOVED)
        turned = turning_point(replicas, node, label, support)
        shown = np.sort(np.argsort(-np.abs(support.support), kind="stable")[:DRAWN])
        near = support.neighbors[shown]
        row["neighbors"], row["edges"] = near.tolist(), _edges(replicas[0], node, near)
        row["support"] = _round(support.support[shown])
        removed = support.neighbors[: support.removed]
        row["without"] = _without(replicas, removed, support.without)
        row["turning"] = None if turned is None else _without(replicas, *turned)
        row["notes"] = node_notes(replicas, support)


def _add_columns(replicas: Sequence[ReplicaView], rows: Sequence[dict[str, Any]]) -> None:
    """Add the largest effects of own columns: the column with its value, effect and error."""
    for row in rows:
        effects, _ = explain_columns(replicas, row["node"], row["prediction"], FEW_EVALUATIONS)
        row["columns"] = [
            [str(one), *_round([one.effect, one.error])] for one in effects[:SHOWN_COLUMNS]
        ]


def _seconds(replicas: Sequence[ReplicaView], degree: int) -> float:
    """Estimate the time for the neighbours of a node, as measured on one core."""
    cost = len(replicas) * (0.01 + 5e-4 * degree)
    if has_diffusion(replicas[0]):  # a pass over the graph for each set, shared by the replicas
        edges = replicas[0].graph.num_edges
        cost += (min(degree, EXACT_UP_TO) + 8) * (2e-3 + 1.5e-7 * edges)
    if replicas[0].reads_statistics and reads_whole_graph(replicas[0]):
        graph, settings = replicas[0].graph, replicas[0].task.settings[0]
        numbers = replicas[0].entry.floats(graph, settings)[1] * graph.num_nodes
        cost += len(replicas) * (min(degree, EXACT_UP_TO) + 8) * (5e-3 + 2e-9 * numbers)
    return cost


def _without(
    replicas: Sequence[ReplicaView], removed: Array, probabilities: Array
) -> dict[str, Any] | None:
    if not removed.size:
        return None
    best = int(predicted_labels(replicas, probabilities[None])[0])
    return {
        "neighbors": removed.tolist(),
        "prediction": best,
        "probability": round(float(probabilities[best]), _DECIMALS),
    }


def _shared_data(
    replicas: Sequence[ReplicaView],
    names: tuple[str, ...],
    probabilities: Array,
    statistics: Sequence[str],
) -> dict[str, Any]:
    """Return what all nodes have in common."""
    first = replicas[0]
    shares_note = COLUMNS_NOTE if first.columns else SHARES_NOTE
    return {
        "split": first.task.replicas[0].split,
        "seeds": len(replicas),
        "model": first.entry.name,
        "num_nodes": first.graph.num_nodes,
        "directed": first.graph.directed,
        "modes": first.neighbor_modes,
        "classes": list(names),
        "statistics": [[name, describe_statistic(name)] for name in statistics],
        "patterns": _patterns(first, probabilities),
        "notes": [
            *([shares_note] if statistics else []),
            *([COLUMN_EFFECTS_NOTE] if affordable_nodes(replicas) else []),
            *missing_notes(replicas),
        ],
    }


def _patterns(replica: ReplicaView, probabilities: Array) -> list[dict[str, Any]]:
    if replica.attention is None:
        return []
    patterns = describe_patterns(replica, probabilities)
    return [
        {
            "classes": _round(patterns.profile[k]),
            "neighborhood": {
                mode: _round(shares[k]) for mode, shares in patterns.neighborhood.items()
            },
            "typical_nodes": [node_id(replica.graph, int(v)) for v in patterns.typical_nodes(k)],
        }
        for k in range(replica.attention.shape[1])
    ]


def _with_ids(replica: ReplicaView, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows and a table of ids, listed nodes first; rows refer to nodes by its index."""
    index = {row["node"]: number for number, row in enumerate(rows)}
    for row in rows:
        for removal in (row, row.get("without"), row.get("turning")):
            for node in removal["neighbors"] if removal else ():
                index.setdefault(node, len(index))
    nodes = list(index)
    counts_as, known = replica.labels[nodes], replica.train_labels[nodes] >= 0
    return {
        "ids": [node_id(replica.graph, node) for node in nodes],
        "counts_as": counts_as.tolist(),
        "is_known": known.astype(int).tolist(),
        "nodes": [_reindex(row, index) for row in rows],
    }


def _reindex(row: Mapping[str, Any], index: Mapping[int, int]) -> dict[str, Any]:
    content = {key: value for key, value in row.items() if key != "node"}
    content["neighbors"] = [index[v] for v in row["neighbors"]]
    for key in ("without", "turning"):
        if row.get(key):
            content[key] = row[key] | {"neighbors": [index[v] for v in row[key]["neighbors"]]}
    return content


def _round(values: Array | Sequence[float]) -> list[float]:
    return [round(float(value), _DECIMALS) for value in values]


# One explained node


def explained_node_data(
    explanation: Mapping[str, Any], graph: Graph, names: Sequence[str]
) -> dict[str, Any]:
    """Return what the explorer shows about one node, from the explanation of it as a dictionary.

    Of a regression, predictions and what neighbours count as are texts of numbers.

    Args:
        explanation: of a model or an ensemble on the graph.
        names: the classes of the model; empty for a regression.
    """
    own = explanation.get("explanation", explanation)  # of an ensemble that of a member
    numbers = {name: number for number, name in enumerate(names)}
    near = own["neighbors"]
    shown = np.sort(np.argsort([-abs(one["support"]) for one in near], kind="stable")[:DRAWN])
    drawn = [near[k] for k in shown.tolist()]
    by_id = {one["node"]: one for one in near}
    ids = [own["node"], *(one["node"] for one in drawn)]
    for removal in (own["without"], own["turning"]):
        ids += [name for name in removal["neighbors"] if name not in ids] if removal else []
    index = {name: number for number, name in reversed(list(enumerate(ids)))}

    def label(name: Any) -> Any:
        return numbers.get(name, -1) if names else name

    def without(removal: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if removal is None:
            return None
        return {
            "neighbors": [index[name] for name in removal["neighbors"]],
            "prediction": label(removal["prediction"]),
            "probability": removal["probabilities"].get(removal["prediction"]),
        }

    row = {
        "prediction": label(own["prediction"]),
        "probabilities": list(own["probabilities"].values()),
        "degree": len(near),
        "neighbors": [index[one["node"]] for one in drawn],
        "edges": _edge_directions(graph, own["node"], [one["node"] for one in drawn]),
        "support": [one["support"] for one in drawn],
        "without": without(own["without"]),
        "turning": without(own["turning"]),
        "notes": list(own["notes"]),
        "patterns": [[one["number"], one["attention"]] for one in own["patterns"]],
        "columns": [
            [str(ColumnEffect(**one)), one["effect"], one["error"]]
            for one in own["column_effects"][:SHOWN_COLUMNS]
        ],
    }
    if own["statistics"]:
        row["shares"] = list(own["statistics"].values())
    if own["baseline"] is not None:
        row["baseline"] = own["baseline"]
    if own is not explanation and names:
        chosen = explanation["prediction"]
        row["ensemble"] = [label(chosen), explanation["probabilities"][chosen]]
    return {
        "directed": graph.directed,
        "classes": list(names),
        "member": explanation.get("explained"),
        "statistics": [[name, describe_statistic(name)] for name in own["statistics"]],
        "patterns": {
            one["number"]: {
                "classes": list(one["classes"].values()),
                "neighborhood": {
                    mode: list(shares.values()) for mode, shares in one["neighborhood"].items()
                },
                "typical_nodes": list(one["typical_nodes"]),
            }
            for one in own["patterns"]
        },
        "notes": [],
        "ids": ids,
        "counts_as": [label(by_id.get(name, {}).get("counts_as")) for name in ids],
        "is_known": [int(by_id.get(name, {}).get("is_known", 0)) for name in ids],
        "nodes": [row],
    }


def _edge_directions(graph: Graph, node: str, near: Sequence[str]) -> list[int]:
    """Return the bits of :func:`_edges` from the graph alone."""
    position, bits = find_node(graph, node), dict.fromkeys(near, 0)
    for ends, others, bit in ((*graph.edge_index, _OUT), (*graph.edge_index[::-1], _IN)):
        for other in np.unique(others[ends == position]).tolist():
            name = node_id(graph, other)
            bits[name] = bits.get(name, 0) | bit
    return [bits[name] for name in near]
