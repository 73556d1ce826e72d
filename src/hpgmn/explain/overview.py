"""What a model has learned, with what a page needs to draw it: shares by class, and a map.

The map shows nodes and patterns in one plane. The memory compares a node's query with each pattern
by their product, so both are vectors of one space; the plane is that of the two directions in which
the queries of the shown nodes differ most (principal components). Lengths of patterns and queries
are of different size, so a picture may enlarge the patterns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import torch

from hpgmn.explain.explanation import ModelExplanation
from hpgmn.explain.model import SAMPLE, WANTED, explain_opened
from hpgmn.explain.opened import Opened, mean_probabilities, memory_head, open_replicas
from hpgmn.explain.shapley import SampledShares, sampled_shares
from hpgmn.graph import Array, Graph
from hpgmn.training.saved import SavedModel

SHOWN_NODES = 2_000
"""So many nodes a map shows at most."""
_DIGITS = 5  # of a place on the map


@dataclass(frozen=True)
class ClassShares:
    """What decides about the nodes of one predicted class.

    Attributes:
        name: the class.
        nodes: how many of the sampled nodes are predicted to have it.
        statistics: mean absolute Shapley value of each statistic over these.
    """

    name: str
    nodes: int
    statistics: dict[str, float]


@dataclass(frozen=True)
class MemoryMap:
    """Nodes and patterns in the plane in which the nodes' queries differ most.

    Attributes:
        all_nodes: how many nodes the graph has.
        node_variance: on each axis its share of the variance of the shown nodes' queries.
        pattern_variance: on each axis its share of the variance of the patterns.
        classes: for each shown node the number of its predicted class.
        nodes: their places.
        patterns: for all patterns, by number, where they lie from the mean pattern. Attention
            is a softmax of products, so the mean pattern and the place of the origin change
            nothing: a node attends to a pattern the more, the further it lies that way.
    """

    all_nodes: int
    node_variance: tuple[float, ...]
    pattern_variance: tuple[float, ...]
    classes: tuple[int, ...]
    nodes: tuple[tuple[float, ...], ...]
    patterns: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Overview:
    """What a whole model has learned, to be drawn.

    Attributes:
        split: whose models it is about.
        seeds: how many of them.
        class_names: of the classes they know.
        explanation: what is said of them.
        shares_by_class: the statistics' shares by predicted class; classes that no sampled node
            has are left out.
        memory_map: None where there is no memory.
    """

    split: int
    seeds: int
    class_names: tuple[str, ...]
    explanation: ModelExplanation
    shares_by_class: tuple[ClassShares, ...]
    memory_map: MemoryMap | None

    def as_dict(self) -> dict[str, Any]:
        """Every value, for JSON."""
        return {
            "split": self.split,
            "seeds": self.seeds,
            "class_names": list(self.class_names),
            **self.explanation.as_dict(),
            "statistics_by_class": [dataclasses.asdict(one) for one in self.shares_by_class],
            "map": None if self.memory_map is None else dataclasses.asdict(self.memory_map),
        }


def model_overview(
    saved: SavedModel,
    graph: Graph,
    *,
    device: torch.device | str = "cpu",
    sample: int = SAMPLE,
    wanted: int = WANTED,
) -> Overview:
    """What the replicas of a trained model have learned.

    Args:
        saved: the model; its replicas should be the seeds of one split.
        graph: the graph it was trained on, or another.
        device: where the products happen.
        sample: the statistics' shares are averaged over so many nodes.
        wanted: how many nodes to label next are named.
    """
    opened = open_replicas(saved, graph, device)
    first, chances = opened[0], mean_probabilities(opened)
    shares = sampled_shares(opened, chances, sample) if first.reads_statistics else None
    return Overview(
        split=saved.replicas[0].split,
        seeds=len(opened),
        class_names=saved.class_names,
        explanation=explain_opened(opened, saved.class_names, shares=shares, wanted=wanted),
        shares_by_class=() if shares is None else shares_by_class(shares, saved.class_names),
        memory_map=None if first.attention is None else memory_map(first, chances),
    )


def shares_by_class(shares: SampledShares, names: tuple[str, ...]) -> tuple[ClassShares, ...]:
    """The statistics' shares by predicted class, in the order of the classes."""
    return tuple(
        ClassShares(names[label], int((shares.labels == label).sum()), shares.mean_sizes(label))
        for label in np.unique(shares.labels).tolist()
    )


def memory_map(opened: Opened, probabilities: Array, shown: int = SHOWN_NODES) -> MemoryMap:
    """The map of one replica's memory.

    Args:
        opened: the replica, which has a memory.
        probabilities: (N, C) of the prediction.
        shown: at most so many nodes, drawn with seed 0 where there are more.
    """
    count = probabilities.shape[0]
    nodes = np.arange(count)
    if count > shown:
        nodes = np.sort(np.random.default_rng(0).choice(count, shown, replace=False))
    head = memory_head(opened.stage.model)
    assert head is not None
    assert head.memory is not None
    queries = opened.queries(nodes).double().cpu().numpy()
    patterns = head.memory.patterns[0].detach().double().cpu().numpy()
    axes = principal_axes(queries)
    return MemoryMap(
        all_nodes=count,
        node_variance=_variance_on(queries, axes),
        pattern_variance=_variance_on(patterns, axes),
        classes=tuple(probabilities[nodes].argmax(axis=1).tolist()),
        nodes=_places((queries - queries.mean(axis=0)) @ axes),
        patterns=_places((patterns - patterns.mean(axis=0)) @ axes),
    )


def principal_axes(rows: Array) -> Array:
    """The two directions in which rows differ most.

    Args:
        rows: (n, D).

    Returns:
        (D, 2) of length one, or of zeros where rows differ in fewer directions; their largest
        component is positive.
    """
    centred = rows - rows.mean(axis=0)
    size, width = centred.shape
    axes = np.zeros((width, 2))
    # The smaller of the two products has the same eigenvalues; of large ones only two are wanted.
    product = centred @ centred.T if size < width else centred.T @ centred
    last = product.shape[0] - 1
    values, vectors = scipy.linalg.eigh(product, subset_by_index=[max(last - 1, 0), last])
    for place, (value, vector) in enumerate(zip(values[::-1], vectors.T[::-1], strict=True)):
        if value > 1e-12 * np.trace(product):
            axis = centred.T @ vector / np.sqrt(value) if size < width else vector
            axes[:, place] = axis * np.sign(axis[np.abs(axis).argmax()])
    return axes


def _variance_on(rows: Array, axes: Array) -> tuple[float, ...]:
    """The share of the rows' variance on each axis; 0 where they are all alike."""
    centred = rows - rows.mean(axis=0)
    total = np.square(centred).sum()
    return tuple((np.square(centred @ axes).sum(axis=0) / (total or 1.0)).tolist())


def _places(points: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f"{part:.{_DIGITS}g}") for part in point) for point in points.tolist())
