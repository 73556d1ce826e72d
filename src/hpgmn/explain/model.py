"""What a whole model has learned, and which labels it would like to have."""

from __future__ import annotations

import numpy as np
import torch

from hpgmn.explain.explanation import ModelExplanation, Pattern, Wanted
from hpgmn.explain.labels import entropy, label_next, most_worth
from hpgmn.explain.node import described, id_of, missing_notes
from hpgmn.explain.opened import Opened, mean_probabilities, open_replicas
from hpgmn.explain.patterns import (
    REDUNDANT_FROM,
    UNUSED_BELOW,
    Patterns,
    describe_patterns,
)
from hpgmn.explain.shapley import SampledShares, sampled_shares
from hpgmn.graph import Array, Graph
from hpgmn.training.saved import SavedModel

SAMPLE = 200
"""Over so many nodes the statistics' shares are averaged."""
WANTED = 10
"""So many nodes to label next are named."""

LABEL_NOTE = (
    "Nodes to label next are chosen one after the other by entropy · (1 + log(1 + degree)) · "
    "distance to the nearest one chosen, of the queries (of the probabilities without a memory)."
)


def explain_model(
    saved: SavedModel,
    graph: Graph,
    *,
    device: torch.device | str = "cpu",
    sample: int = SAMPLE,
    wanted: int = WANTED,
) -> ModelExplanation:
    """Explain what the replicas of a trained model have learned.

    Args:
        saved: the model; its replicas should be the seeds of one split.
        graph: the graph it was trained on, or another.
        device: where the products happen.
        sample: the statistics' shares are averaged over so many nodes, drawn with seed 0.
        wanted: how many nodes to label next are named.
    """
    opened = open_replicas(saved, graph, device)
    return explain_opened(opened, saved.class_names, sample=sample, wanted=wanted)


def explain_opened(
    opened: list[Opened],
    names: tuple[str, ...],
    *,
    shares: SampledShares | None = None,
    sample: int = SAMPLE,
    wanted: int = WANTED,
) -> ModelExplanation:
    """The same for replicas that are open already.

    Args:
        opened: the replicas.
        names: of the classes they know.
        shares: of the statistics, where they are known already.
        sample: the size of the sample, where they are not.
        wanted: how many nodes to label next are named.
    """
    chances = mean_probabilities(opened)
    first, notes = opened[0], missing_notes(opened)
    if shares is None and first.reads_statistics:
        shares = sampled_shares(opened, chances, sample)
    redundant: tuple[tuple[int, ...], ...] = ()
    patterns: tuple[Pattern, ...] = ()
    unused: tuple[int, ...] = ()
    if first.attention is not None:
        found = describe_patterns(first, chances)
        patterns = _ranked(first.graph, found, names)
        redundant, unused = tuple(map(tuple, found.redundant())), tuple(found.unused)
        notes.append(
            f"Unused: mean attention below {UNUSED_BELOW:g}/K. Redundant: patterns of which every "
            f"two have attention that correlates, over the nodes, by at least {REDUNDANT_FROM:g}."
        )
    ranking = _wanted(opened, chances, wanted, names)
    return ModelExplanation(
        model=first.entry.name,
        statistics=shares.mean_sizes() if shares else {},
        sampled=shares.labels.size if shares else 0,
        patterns=patterns,
        redundant=redundant,
        unused=unused,
        label_next=ranking,
        notes=(*notes, LABEL_NOTE) if ranking else tuple(notes),
    )


def _ranked(graph: Graph, found: Patterns, names: tuple[str, ...]) -> tuple[Pattern, ...]:
    order = np.argsort(-found.usage, kind="stable")
    return tuple(described(graph, found, int(k), float(found.usage[k]), names) for k in order)


def _wanted(
    opened: list[Opened], chances: Array, count: int, names: tuple[str, ...]
) -> tuple[Wanted, ...]:
    """The unlabelled nodes that would help; where all have labels, the nodes outside train."""
    first = opened[0]
    graph = first.graph
    outside = first.train_labels < 0
    unlabelled = outside & (graph.y < 0)
    candidates = np.flatnonzero(unlabelled if unlabelled.any() else outside)
    if not candidates.size:
        return ()
    degrees = np.diff(first.task.statistics.adjacency("undirected").indptr)
    candidates = most_worth(chances, degrees, candidates)
    if first.attention is not None:
        queries = first.queries(candidates).cpu().numpy()
    else:  # what the model says of a node stands for it
        queries = chances[candidates]
    chosen = label_next(chances, degrees, queries, candidates, count)
    unsure = entropy(chances)
    return tuple(
        Wanted(id_of(graph, v), names[int(chances[v].argmax())], float(unsure[v]), int(degrees[v]))
        for v in chosen
    )
