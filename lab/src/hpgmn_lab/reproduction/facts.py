"""Table 1: the graphs in numbers, recounted, and how each printed number comes about.

The number of edges and the homophily depend on what is counted. So both are measured in several
ways, and the first way that gives the printed number explains it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpgmn.base.files import verify_checksum, with_checksum, write_text
from hpgmn.base.parsing import read_json
from hpgmn.graph import Array, Graph
from hpgmn.graph.datasets import find_file, load
from hpgmn_lab.paper import DEFECTIVE, TABLE_1
from hpgmn_lab.reproduction.cells import identity

SOUND_TWIN = {defective: sound for sound, defective in DEFECTIVE.items()}
"""Graph with a defect → the same graph without it."""

_METHOD = 1
"""Counts up whenever something else is measured, so that older records are made anew."""


@dataclass(frozen=True)
class Facts:
    """What Table 1 says about a graph, ours beside the printed.

    Attributes:
        graph: the dataset's name.
        identity: of what it was measured on.
        nodes: number of nodes.
        edges: number of edges, counted in the way that gives the printed number or comes nearest.
        attributes: number of attributes.
        classes: number of classes.
        homophily: node homophily: undirected neighbours, no self-loops.
        edge_counts: way of counting → number of edges.
        homophilies: measure → homophily.
        printed: the paper's numbers.
        explanations: number → where the printed one comes from, for edges and homophily and for
            any other that differs.
    """

    graph: str
    identity: str
    nodes: int
    edges: int
    attributes: int
    classes: int
    homophily: float
    edge_counts: Mapping[str, int]
    homophilies: Mapping[str, float]
    printed: Mapping[str, float]
    explanations: Mapping[str, str]


def edge_counts(graph: Graph) -> dict[str, int]:
    """Ways of counting edges → their number.

    >>> counts = edge_counts(Graph([[0.0]] * 3, [[0, 0, 1, 2], [1, 1, 0, 2]], [0, 1, 0]))
    >>> list(counts.values())
    [4, 3, 3, 2, 2, 1]
    """
    center, neighbor = graph.edge_index
    proper = center != neighbor
    one_way = _distinct(graph, center, neighbor)
    pairs = _distinct(graph, np.minimum(center, neighbor), np.maximum(center, neighbor))
    loops = int((one_way[0] == one_way[1]).sum())
    return {
        "edges as listed": int(center.size),
        "edges as listed, without self-loops": int(proper.sum()),
        "distinct directed edges": int(one_way[0].size),
        "distinct directed edges, without self-loops": int(one_way[0].size) - loops,
        "distinct undirected edges": int(pairs[0].size),
        "distinct undirected edges, without self-loops": int(pairs[0].size) - loops,
    }


def homophilies(graph: Graph) -> dict[str, float]:
    """Measures of how alike neighbours are → their value; NaN where nothing can be compared."""
    center, neighbor = graph.edge_index
    both = _distinct(graph, np.concatenate([center, neighbor]), np.concatenate([neighbor, center]))
    proper, out = _without_loops(both), _without_loops(_distinct(graph, center, neighbor))
    node = "node homophily"
    return {
        f"{node}, undirected neighbours": _node_homophily(graph, *proper),
        f"{node}, undirected neighbours, 0 for nodes without any": _node_homophily(
            graph, *proper, all_nodes=True
        ),
        f"{node}, undirected neighbours and self-loops": _node_homophily(graph, *both),
        f"{node}, out-neighbours": _node_homophily(graph, *out),
        f"{node}, out-neighbours, 0 for nodes without any": _node_homophily(
            graph, *out, all_nodes=True
        ),
        f"{node}, in-neighbours": _node_homophily(graph, *out[::-1]),
        "edge homophily, edges as listed": _edge_homophily(graph, center, neighbor),
        "edge homophily, distinct undirected edges": _edge_homophily(graph, *proper),
    }


def _distinct(graph: Graph, center: Array, neighbor: Array) -> tuple[Array, Array]:
    keys = np.unique(center * graph.num_nodes + neighbor)
    return keys // graph.num_nodes, keys % graph.num_nodes


def _without_loops(ends: tuple[Array, Array]) -> tuple[Array, Array]:
    proper = ends[0] != ends[1]
    return ends[0][proper], ends[1][proper]


def _labelled(graph: Graph, center: Array, neighbor: Array) -> tuple[Array, Array]:
    """For each edge between labelled nodes its centre, and whether both have the same class."""
    known = (graph.y[center] >= 0) & (graph.y[neighbor] >= 0)
    return center[known], graph.y[center[known]] == graph.y[neighbor[known]]


def _node_homophily(
    graph: Graph, center: Array, neighbor: Array, *, all_nodes: bool = False
) -> float:
    center, same = _labelled(graph, center, neighbor)
    if not center.size:
        return float("nan")
    number = np.bincount(center, minlength=graph.num_nodes)
    alike = np.bincount(center, weights=same, minlength=graph.num_nodes)
    total = (alike / np.maximum(number, 1)).sum()
    return float(total / (graph.num_nodes if all_nodes else (number > 0).sum()))


def _edge_homophily(graph: Graph, center: Array, neighbor: Array) -> float:
    _, same = _labelled(graph, center, neighbor)
    return float(same.mean()) if same.size else float("nan")


def graph_facts(graph: Graph, twin: Graph | None = None) -> Facts:
    """What Table 1 says about a graph.

    Args:
        graph: a graph of Table 1.
        twin: the same graph without its defect; numbers that the graph does not explain are
            looked for there.
    """
    printed = TABLE_1[graph.name]
    counts, measures = edge_counts(graph), homophilies(graph)
    own = {
        "nodes": graph.num_nodes,
        "attributes": graph.num_features,
        "classes": graph.num_classes,
    }
    explanations = {
        name: f"printed {getattr(printed, name):,}; the graph has {value:,}"
        for name, value in own.items()
        if value != getattr(printed, name)
    }
    other = twin.name if twin else ""
    explanations["edges"] = explain(printed.edges, counts, edge_counts(twin) if twin else {}, other)
    explanations["homophily"] = explain(
        printed.homophily, measures, homophilies(twin) if twin else {}, other
    )
    return Facts(
        graph=graph.name,
        identity=facts_identity(graph, twin),
        edges=counts[nearest_way(printed.edges, counts)],
        homophily=next(iter(measures.values())),
        edge_counts=counts,
        homophilies=measures,
        printed=dataclasses.asdict(printed),
        explanations=explanations,
        **own,
    )


def explain(
    printed: float,
    found: Mapping[str, float],
    elsewhere: Mapping[str, float],
    other: str = "",
) -> str:
    """Which way of measuring gives a printed number; else which way in the graph's twin; or none.

    >>> explain(0.06, {"out": 0.0968, "both": 0.0567}, {})
    'printed 0.06 = both (0.0567)'
    >>> explain(295, {"listed": 298}, {"listed": 295}, "twin")
    "printed 295 = listed (295) of the graph 'twin', not of this one"
    >>> explain(5429, {"listed": 10556, "pairs": 5278}, {})
    'printed 5,429: no way of counting gives it; the nearest is pairs (5,278)'
    """
    for ways, where in ((found, ""), (elsewhere, f" of the graph '{other}', not of this one")):
        for way, value in ways.items():
            if _is_printed(value, printed):
                return f"printed {_shown(printed)} = {way} ({_shown(value)}){where}"
    way = nearest_way(printed, found)
    return (
        f"printed {_shown(printed)}: no way of counting gives it; the nearest is {way} "
        f"({_shown(found[way])})"
    )


def nearest_way(printed: float, found: Mapping[str, float]) -> str:
    """The first way of measuring that comes nearest to a printed number."""
    return min(found, key=lambda way: abs(found[way] - printed))


def _is_printed(value: float, printed: float) -> bool:
    """Whether a value is the printed one, to the decimals that are printed."""
    return value == printed if isinstance(printed, int) else abs(value - printed) <= 0.005 + 1e-9


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def facts_identity(graph: Graph, twin: Graph | None) -> str:
    """Of everything that the facts are made from."""
    parts = [[one.fingerprint, one.y.tolist()] for one in (graph, twin) if one is not None]
    return identity(_METHOD, parts, dataclasses.asdict(TABLE_1[graph.name]))


def facts_path(folder: Path, graph: str) -> Path:
    """The file of a graph's facts, in the folder of records."""
    return folder / f"{graph}-facts.json"


def read_facts(folder: Path, graph: str) -> Facts | None:
    """A graph's facts; None where there are none, or none that can be read."""
    try:
        return Facts(**verify_checksum(read_json(facts_path(folder, graph))))
    except (OSError, ValueError, TypeError):
        return None


def do_facts(name: str, folder: Path) -> Facts:
    """A graph's facts, measured where no record of the same graph is there.

    Args:
        name: a graph of Table 1.
        folder: the folder of records.
    """
    graph = load(name)
    other = SOUND_TWIN.get(name)
    twin = load(other) if other is not None and find_file(other) is not None else None
    kept = read_facts(folder, name)
    if kept is not None and kept.identity == facts_identity(graph, twin):
        return kept
    facts = graph_facts(graph, twin)
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(with_checksum(dataclasses.asdict(facts)), indent=1)
    write_text(facts_path(folder, name), content + "\n")
    return facts
