"""Digests of what runs, searches and shards read of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpgmn.base.files import digest
from hpgmn.base.tasks import hide_labels
from hpgmn.graph.graph import Graph


def graph_content(graph: Graph, splits: Sequence[int]) -> str:
    """Return a digest of all that a run reads: attributes, edges, labels, classes, splits."""
    labels = np.ascontiguousarray(graph.y).data
    masks = [
        np.packbits(mask).data
        for split in map(graph.split, splits)
        for mask in (split.train, split.val, split.test)
    ]
    later = [] if graph.full is graph else [graph.full.fingerprint]
    return digest(graph.fingerprint, "\0".join(graph.class_names), labels, *masks, *later)


def search_content(graph: Graph, splits: Sequence[int]) -> str:
    """Return a digest of all that a search reads: no test label, no edge after its date."""
    labels = [
        hide_labels(graph.y, mask).tobytes()
        for split in map(graph.split, splits)
        for mask in (split.train, split.val)
    ]
    return digest(graph.fingerprint, *labels)


def shard_content(graph: Graph) -> str:
    """Return a digest of all that shards take from a graph in memory."""
    splits = graph.splits
    masks = () if splits is None else (splits.train, splits.val, splits.test)
    contents = [np.ascontiguousarray(mask).tobytes() for mask in masks]
    return digest(graph.fingerprint, graph.y.tobytes(), *contents)
