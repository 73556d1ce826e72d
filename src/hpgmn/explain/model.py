"""Explain a whole model: its statistics, its memory, and the nodes to label next.

Nodes to label next are chosen greedily by the product of the entropy of the prediction (uncertain),
1 + log(1 + degree) (a label counts for every neighbour), and the distance of the query to the
nearest chosen node (diverse).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpgmn.explain.columns import Shares, column_importance, statistic_shares
from hpgmn.explain.explanation import COLUMNS_NOTE, LabelCandidate, ModelExplanation, Pattern
from hpgmn.explain.replicas import (
    REDUNDANT_FROM,
    UNUSED_BELOW,
    ReplicaView,
    by_name,
    describe_patterns,
    mean_probabilities,
    memory_head,
    missing_notes,
    node_id,
    open_replicas,
    predicted_labels,
)
from hpgmn.graph import Array, Graph
from hpgmn.training.saved import SavedModel

SAMPLE = 200
"""Nodes over which the statistics' shares are averaged."""
LABEL_CANDIDATES = 10
"""Nodes to label next that are named."""
CONSIDERED = 10_000
"""Most candidates whose queries are compared."""
SHOWN_NODES = 2_000
"""Most nodes on a map."""
_DIGITS = 5  # significant digits of a position on the map

LABEL_NOTE = (
    "Nodes to label next are chosen one after the other by entropy · (1 + log(1 + degree)) · "
    "distance to the nearest one chosen, of the queries (of the probabilities without a memory)."
)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Nodes drawn with seed 0, their predicted classes, and what statistics contribute to them."""

    nodes: Array
    labels: Array
    shares: Shares

    @classmethod
    def of(cls, replicas: Sequence[ReplicaView], size: int) -> _Sample:
        """Draw nodes of the replicas' graph."""
        probabilities = mean_probabilities(replicas)
        count = len(probabilities)
        nodes = np.random.default_rng(0).choice(count, min(size, count), replace=False)
        labels = predicted_labels(replicas, probabilities[nodes])
        return cls(nodes, labels, statistic_shares(replicas, nodes, labels))

    def mean_sizes(self, chosen: Array | slice = slice(None)) -> dict[str, float]:
        """Return the mean absolute contribution of each statistic, the largest first."""
        sizes = by_name(self.shares.names, np.abs(self.shares.values[chosen]).mean(axis=0))
        return dict(sorted(sizes.items(), key=lambda pair: -pair[1]))


def explain_model(
    saved: SavedModel,
    graph: Graph,
    *,
    device: torch.device | str = "cpu",
    sample: int = SAMPLE,
    candidates: int = LABEL_CANDIDATES,
) -> ModelExplanation:
    """Explain what the replicas of a trained model have learned.

    Args:
        saved: the model; its replicas should be the seeds of one split.
        graph: the graph it was trained on, or another.
        sample: how many nodes, drawn with seed 0, the statistics' shares are averaged over.
        candidates: how many nodes to label next are named.
    """
    replicas = open_replicas(saved, graph, device)
    return _explanation(replicas, saved.class_names, _Sample.of(replicas, sample), candidates)


def model_overview(replicas: Sequence[ReplicaView], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the explanation of open replicas of one split with the data of its figures, for JSON.

    Args:
        names: the classes of the model.
    """
    first, probabilities = replicas[0], mean_probabilities(replicas)
    sample = _Sample.of(replicas, SAMPLE)
    by_class = [
        {
            "name": names[label],
            "nodes": int((sample.labels == label).sum()),
            "statistics": sample.mean_sizes(sample.labels == label),
        }
        for label in np.unique(sample.labels).tolist()
        if sample.shares.names
    ]
    return {
        "split": first.task.replicas[0].split,
        "seeds": len(replicas),
        "class_names": list(names),
        **_explanation(replicas, names, sample).as_dict(),
        "statistics_by_class": by_class,
        "shares_of": "log-odds" if first.columns else "log-probability",
        "map": None if first.attention is None else memory_map(first, probabilities),
    }


def _explanation(
    replicas: Sequence[ReplicaView],
    names: tuple[str, ...],
    sample: _Sample,
    candidates: int = LABEL_CANDIDATES,
) -> ModelExplanation:
    first, probabilities = replicas[0], mean_probabilities(replicas)
    columns, notes = column_importance(replicas, sample.nodes, sample.labels)
    if not first.is_regression:
        notes = ([COLUMNS_NOTE] if first.columns else []) + notes + missing_notes(replicas)
    patterns: tuple[Pattern, ...] = ()
    redundant: tuple[tuple[int, ...], ...] = ()
    unused: tuple[int, ...] = ()
    if first.attention is not None and not first.is_regression:
        description = describe_patterns(first, probabilities)
        patterns = tuple(
            description.explanation(first.graph, k, float(description.usage[k]), names)
            for k in np.argsort(-description.usage, kind="stable").tolist()
        )
        redundant, unused = tuple(map(tuple, description.redundant())), tuple(description.unused)
        notes.append(
            f"Unused: mean attention below {UNUSED_BELOW:g}/K. Redundant: patterns whose attention "
            f"correlates pairwise, over the nodes, by at least {REDUNDANT_FROM:g}."
        )
    ranking = () if first.is_regression else _label_next(replicas, probabilities, candidates, names)
    return ModelExplanation(
        model=first.entry.name,
        statistics=sample.mean_sizes(),
        sampled=len(sample.nodes) if sample.shares.names else 0,
        patterns=patterns,
        redundant=redundant,
        unused=unused,
        label_next=ranking,
        notes=(*notes, LABEL_NOTE) if ranking else tuple(notes),
        columns=columns,
        is_regression=first.is_regression,
    )


# Nodes to label next


def _label_next(
    replicas: Sequence[ReplicaView], probabilities: Array, count: int, names: tuple[str, ...]
) -> tuple[LabelCandidate, ...]:
    """Choose among unlabelled nodes, or among nodes outside train if all have labels."""
    first = replicas[0]
    graph = first.graph
    outside = first.train_labels < 0
    unlabelled = outside & (graph.y < 0)
    candidates = np.flatnonzero(unlabelled if unlabelled.any() else outside)
    if not candidates.size:
        return ()
    degrees = np.diff(first.task.statistics.adjacency("undirected").indptr)
    scores = label_worth(probabilities[candidates], degrees[candidates])
    candidates = candidates[np.sort(np.argsort(-scores, kind="stable")[:CONSIDERED])]
    if first.attention is not None:
        queries = first.queries(candidates).cpu().numpy()
    else:
        queries = probabilities[candidates]
    chosen = label_next(probabilities, degrees, queries, candidates, count)
    uncertainty = entropy(probabilities)
    return tuple(
        LabelCandidate(
            node=node_id(graph, v),
            prediction=names[predicted_labels(replicas, probabilities[[v]])[0]],
            entropy=float(uncertainty[v]),
            degree=int(degrees[v]),
        )
        for v in chosen
    )


def entropy(probabilities: Array) -> Array:
    """Return (N,) the entropy of each row, in nats.

    >>> entropy(np.array([[0.5, 0.5], [0.9, 0.1]])).round(3)
    array([0.693, 0.325])
    """
    logs = np.log(np.maximum(probabilities, 1e-30))
    return np.asarray(-(probabilities * logs).sum(axis=1))


def label_worth(probabilities: Array, degrees: Array) -> Array:
    """Return (N,) how much a label of each node is worth on its own."""
    return np.asarray(entropy(probabilities) * (1 + np.log1p(degrees)))


def label_next(
    probabilities: Array, degrees: Array, queries: Array, candidates: Array, count: int
) -> list[int]:
    """Choose the positions of the nodes to label next, the most helpful first.

    Args:
        probabilities: (N, C) of the prediction.
        degrees: (N,) neighbours of each node.
        queries: (n, D) of the candidates.
        candidates: (n,) positions of nodes without a train label.
        count: the most nodes that are chosen.
    """
    score = label_worth(probabilities[candidates], degrees[candidates])
    distance = np.ones(candidates.size)
    chosen: list[int] = []
    for _ in range(min(count, candidates.size)):
        gain = score * distance
        gain[chosen] = -1
        best = int(gain.argmax())
        to_best = np.sqrt(np.square(queries - queries[best]).sum(axis=1))
        distance = to_best if not chosen else np.minimum(distance, to_best)
        chosen.append(best)
    return [int(node) for node in candidates[chosen]]


# The map


def memory_map(
    replica: ReplicaView, probabilities: Array, shown: int = SHOWN_NODES
) -> dict[str, Any]:
    """Project nodes and patterns on the first two principal components of the nodes' queries.

    Args:
        replica: with a memory.
        probabilities: (N, C) of the prediction.
        shown: the most nodes on the map, drawn with seed 0 if there are more.

    Returns:
        all_nodes: N; node_variance and pattern_variance: the share of the queries' and of the
        patterns' variance on each axis; classes: the predicted class of each shown node; nodes and
        patterns: positions, of patterns relative to their mean, which does not affect attention.
    """
    count = probabilities.shape[0]
    nodes = np.arange(count)
    if count > shown:
        nodes = np.sort(np.random.default_rng(0).choice(count, shown, replace=False))
    head = memory_head(replica.stage.model)
    assert head is not None
    assert head.memory is not None
    queries = replica.queries(nodes).double().cpu().numpy()
    patterns = head.memory.patterns[0].detach().double().cpu().numpy()
    axes = principal_axes(queries)
    queries, patterns = queries - queries.mean(axis=0), patterns - patterns.mean(axis=0)
    return {
        "all_nodes": count,
        "node_variance": _variance_on(queries, axes),
        "pattern_variance": _variance_on(patterns, axes),
        "classes": probabilities[nodes].argmax(axis=1).tolist(),
        "nodes": _positions(queries @ axes),
        "patterns": _positions(patterns @ axes),
    }


def principal_axes(rows: Array) -> Array:
    """Return the first two principal axes of (n, D) rows.

    Returns:
        (D, 2) unit vectors whose largest component is positive; zeros if rows vary in fewer
        directions.
    """
    import scipy.linalg

    centred = rows - rows.mean(axis=0)
    size, width = centred.shape
    axes = np.zeros((width, 2))
    # The smaller of the two products has the same non-zero eigenvalues.
    product = centred @ centred.T if size < width else centred.T @ centred
    last = product.shape[0] - 1
    values, vectors = scipy.linalg.eigh(product, subset_by_index=[max(last - 1, 0), last])
    for index, (value, vector) in enumerate(zip(values[::-1], vectors.T[::-1], strict=True)):
        if value > 1e-12 * np.trace(product):
            axis = centred.T @ vector / np.sqrt(value) if size < width else vector
            axes[:, index] = axis * np.sign(axis[np.abs(axis).argmax()])
    return axes


def _variance_on(centred: Array, axes: Array) -> list[float]:
    """Return the share of the rows' variance on each axis; 0 if all rows are equal."""
    variance = np.square(centred @ axes).sum(axis=0) / (np.square(centred).sum() or 1.0)
    return [float(share) for share in variance]


def _positions(points: Array) -> list[list[float]]:
    return [[float(f"{part:.{_DIGITS}g}") for part in point] for point in points.tolist()]
