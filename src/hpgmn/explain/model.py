"""Explain a whole model: its statistics, its memory, and the nodes to label next.

Nodes to label next are chosen greedily by the product of the entropy of the prediction (uncertain),
1 + log(1 + degree) (a label counts for every neighbour), and the distance of the query to the
nearest chosen node (diverse).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpgmn.explain.contributions import (
    REDUNDANT_FROM,
    UNUSED_BELOW,
    SampledShares,
    describe_patterns,
    node_id,
    sampled_shares,
)
from hpgmn.explain.explanation import LabelCandidate, ModelExplanation, Pattern
from hpgmn.explain.node import missing_notes
from hpgmn.explain.replicas import ReplicaView, mean_probabilities, memory_head, open_replicas
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


@dataclass(frozen=True)
class ClassShares:
    """Mean absolute Shapley value of each statistic over the sampled nodes of a predicted class."""

    name: str
    nodes: int
    statistics: dict[str, float]


@dataclass(frozen=True)
class MemoryMap:
    """Nodes and patterns on the first two principal components of the nodes' queries.

    Attributes:
        all_nodes: the number of nodes of the graph.
        node_variance: the share of the variance of the queries on each axis.
        pattern_variance: the share of the variance of the patterns on each axis.
        classes: for each shown node the number of its predicted class.
        nodes: positions of the shown nodes.
        patterns: positions of all patterns relative to their mean, which does not affect attention.
    """

    all_nodes: int
    node_variance: tuple[float, ...]
    pattern_variance: tuple[float, ...]
    classes: tuple[int, ...]
    nodes: tuple[tuple[float, ...], ...]
    patterns: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Overview:
    """The explanation of a model with the data of its figures.

    Attributes:
        split: that of the models.
        seeds: the number of models.
        shares_by_class: for the predicted classes of the sampled nodes.
        memory_map: None without a memory.
    """

    split: int
    seeds: int
    class_names: tuple[str, ...]
    explanation: ModelExplanation
    shares_by_class: tuple[ClassShares, ...]
    memory_map: MemoryMap | None

    def as_dict(self) -> dict[str, Any]:
        """Return every value, for JSON."""
        return {
            "split": self.split,
            "seeds": self.seeds,
            "class_names": list(self.class_names),
            **self.explanation.as_dict(),
            "statistics_by_class": [dataclasses.asdict(row) for row in self.shares_by_class],
            "map": None if self.memory_map is None else dataclasses.asdict(self.memory_map),
        }


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
        sample: the statistics' shares are averaged over so many nodes, drawn with seed 0.
        candidates: how many nodes to label next are named.
    """
    replicas = open_replicas(saved, graph, device)
    overview = model_overview(replicas, saved.class_names, sample=sample, candidates=candidates)
    return overview.explanation


def model_overview(
    replicas: Sequence[ReplicaView],
    names: tuple[str, ...],
    *,
    sample: int = SAMPLE,
    candidates: int = LABEL_CANDIDATES,
) -> Overview:
    """Explain open replicas of one split, with the data of the figures.

    Args:
        names: the classes of the model.
    """
    first, probabilities = replicas[0], mean_probabilities(replicas)
    shares = sampled_shares(replicas, probabilities, sample) if first.reads_statistics else None
    notes = missing_notes(replicas)
    patterns: tuple[Pattern, ...] = ()
    redundant: tuple[tuple[int, ...], ...] = ()
    unused: tuple[int, ...] = ()
    memory = None
    if first.attention is not None:
        description = describe_patterns(first, probabilities)
        patterns = tuple(
            description.explanation(first.graph, k, float(description.usage[k]), names)
            for k in np.argsort(-description.usage, kind="stable").tolist()
        )
        redundant, unused = tuple(map(tuple, description.redundant())), tuple(description.unused)
        memory = memory_map(first, probabilities)
        notes.append(
            f"Unused: mean attention below {UNUSED_BELOW:g}/K. Redundant: patterns whose attention "
            f"correlates pairwise, over the nodes, by at least {REDUNDANT_FROM:g}."
        )
    ranking = _label_next(replicas, probabilities, candidates, names)
    explanation = ModelExplanation(
        model=first.entry.name,
        statistics=shares.mean_sizes() if shares else {},
        sampled=shares.labels.size if shares else 0,
        patterns=patterns,
        redundant=redundant,
        unused=unused,
        label_next=ranking,
        notes=(*notes, LABEL_NOTE) if ranking else tuple(notes),
    )
    return Overview(
        split=first.task.replicas[0].split,
        seeds=len(replicas),
        class_names=names,
        explanation=explanation,
        shares_by_class=() if shares is None else shares_by_class(shares, names),
        memory_map=memory,
    )


def shares_by_class(shares: SampledShares, names: tuple[str, ...]) -> tuple[ClassShares, ...]:
    """Return the statistics' shares by predicted class, in the order of the classes."""
    return tuple(
        ClassShares(names[label], int((shares.labels == label).sum()), shares.mean_sizes(label))
        for label in np.unique(shares.labels).tolist()
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
            prediction=names[int(probabilities[v].argmax())],
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
        count: at most so many.
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


def memory_map(replica: ReplicaView, probabilities: Array, shown: int = SHOWN_NODES) -> MemoryMap:
    """Project nodes and patterns of a replica with a memory.

    Args:
        probabilities: (N, C) of the prediction.
        shown: at most so many nodes, drawn with seed 0 if there are more.
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
    return MemoryMap(
        all_nodes=count,
        node_variance=_variance_on(queries, axes),
        pattern_variance=_variance_on(patterns, axes),
        classes=tuple(probabilities[nodes].argmax(axis=1).tolist()),
        nodes=_positions((queries - queries.mean(axis=0)) @ axes),
        patterns=_positions((patterns - patterns.mean(axis=0)) @ axes),
    )


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


def _variance_on(rows: Array, axes: Array) -> tuple[float, ...]:
    """Return the share of the rows' variance on each axis; 0 if all rows are equal."""
    centred = rows - rows.mean(axis=0)
    total = np.square(centred).sum()
    return tuple((np.square(centred @ axes).sum(axis=0) / (total or 1.0)).tolist())


def _positions(points: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f"{part:.{_DIGITS}g}") for part in point) for point in points.tolist())
