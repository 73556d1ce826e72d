"""What can be said of a graph and a split before any work begins."""

from __future__ import annotations

import numpy as np

from hpgmn.errors import HPGMNError
from hpgmn.graph import Graph, Split


def check_split(graph: Graph, split: Split, number: int | str) -> list[str]:
    """Refuse a split that cannot be trained on; return what is odd about it."""
    for part in ("train", "val"):
        if not getattr(split, part).any():
            raise HPGMNError(
                f"Split {number} of '{graph.name}' has no {part} nodes. Give it some, or let "
                "hpgmn.random_splits(graph) make splits."
            )
    seen = np.unique(graph.y[split.train])
    if len(seen) < 2:
        raise HPGMNError(
            f"Split {number} of '{graph.name}' has train nodes of {len(seen)} class only; "
            "classification needs at least two. Label nodes of another class."
        )
    missing = [graph.class_names[c] for c in range(graph.num_classes) if c not in seen]
    if missing:
        names = ", ".join(missing)
        return [f"Split {number}: no train node of class {names}; it can never be predicted well."]
    return []


def graph_warnings(graph: Graph) -> list[str]:
    """What is odd about a graph but does not stop a training."""
    if not graph.num_edges:
        return [f"Graph '{graph.name}' has no edges; only the attributes can help."]
    isolated = len(graph.isolated_nodes)
    if isolated:
        return [f"{isolated} of {graph.num_nodes} nodes have no edges (self-loops do not count)."]
    return []
