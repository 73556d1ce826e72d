"""Table 1: facts about the graphs, recounted, and an explanation of each printed number.

The number of edges and the homophily depend on the definition. Both are measured with several
definitions; the first that gives the printed number explains it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.files import verify_checksum, with_checksum, write_text
from hpgmn.base.parsing import read_json
from hpgmn.graph import Array, Graph
from hpgmn.graph.datasets import find_file, load
from hpgmn_lab.paper import DEFECTIVE, TABLE_1
from hpgmn_lab.reproduction.cells import Records, identity

SOUND_TWIN = {defective: sound for sound, defective in DEFECTIVE.items()}
"""Graph with defects → the same graph without them."""

_METHOD = 1
"""Part of the identity: increase it when the measures change, so that records are recomputed."""

KEYS = ("nodes", "edges", "attributes", "classes", "homophily")
"""The columns of Table 1."""


@dataclass(frozen=True)
class Facts:
    """The facts of Table 1 about a graph, ours and the printed ones.

    Attributes:
        identity: digest of the inputs.
        edges: number of edges, by the definition nearest to the printed number.
        homophily: node homophily with undirected neighbours, without self-loops.
        edge_counts, homophilies: by definition.
        explanations: for edges, homophily and any other difference: the origin of the printed
            number.
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

    def differs(self, key: str) -> bool:
        """Return whether our number differs from the printed one in the decimals shown."""
        return fact_text(getattr(self, key)) != fact_text(self.printed[key])


def fact_text(value: float) -> str:
    """Format a measured or printed value.

    >>> fact_text(31421), fact_text(0.2239)
    ('31,421', '0.22')
    """
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def edge_counts(graph: Graph) -> dict[str, int]:
    """Count the edges: definition → number.

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
    """Measure the homophily: definition → value; NaN without labelled edges."""
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
    """Return the centre of each edge between labelled nodes and whether the classes are equal."""
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
    """Measure the facts of Table 1; ``twin``, the same graph without defects, may explain one."""
    printed = TABLE_1[graph.name]
    counts, measures = edge_counts(graph), homophilies(graph)
    counted = {
        "nodes": graph.num_nodes,
        "attributes": graph.num_features,
        "classes": graph.num_classes,
    }
    explanations = {
        name: f"printed {getattr(printed, name):,}; the graph has {value:,}"
        for name, value in counted.items()
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
        edges=counts[nearest_definition(printed.edges, counts)],
        homophily=next(iter(measures.values())),
        edge_counts=counts,
        homophilies=measures,
        printed=dataclasses.asdict(printed),
        explanations=explanations,
        **counted,
    )


def explain(
    printed: float, measured: Mapping[str, float], elsewhere: Mapping[str, float], other: str = ""
) -> str:
    """Return the definition that gives a printed number, on the graph or its twin.

    >>> explain(0.06, {"out": 0.0968, "both": 0.0567}, {})
    'printed 0.06 = both (0.0567)'
    >>> explain(295, {"listed": 298}, {"listed": 295}, "twin")
    "printed 295 = listed (295) of the graph 'twin', not of this one"
    >>> explain(5429, {"listed": 10556, "pairs": 5278}, {})
    'printed 5,429: no definition gives it; the nearest is pairs (5,278)'
    """
    for ways, where in ((measured, ""), (elsewhere, f" of the graph '{other}', not of this one")):
        for way, value in ways.items():
            if _is_printed(value, printed):
                return f"printed {_value_text(printed)} = {way} ({_value_text(value)}){where}"
    way = nearest_definition(printed, measured)
    return (
        f"printed {_value_text(printed)}: no definition gives it; the nearest is {way} "
        f"({_value_text(measured[way])})"
    )


def nearest_definition(printed: float, measured: Mapping[str, float]) -> str:
    """Return the first definition whose value is nearest to a printed number."""
    return min(measured, key=lambda name: abs(measured[name] - printed))


def _is_printed(value: float, printed: float) -> bool:
    """Return whether a value equals the printed one in its decimals."""
    return value == printed if isinstance(printed, int) else abs(value - printed) <= 0.005 + 1e-9


def _value_text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def facts_identity(graph: Graph, twin: Graph | None) -> str:
    """Return the digest of the inputs of the facts."""
    parts = [[each.fingerprint, each.y.tolist()] for each in (graph, twin) if each is not None]
    return identity(_METHOD, parts, dataclasses.asdict(TABLE_1[graph.name]))


def recorded_facts(records: Records, graph: str) -> Facts | None:
    """Return a graph's facts among records; None if they are missing or damaged."""
    content = records.contents.get(f"{graph}-facts")
    return None if content is None else _facts(content)


def _facts(content: Any) -> Facts | None:
    try:
        return Facts(**verify_checksum(content))
    except (ValueError, TypeError):
        return None


def do_facts(name: str, folder: Path) -> Facts:
    """Return a graph's facts; measure and record them unless a record has the same identity."""
    graph = load(name)
    other = SOUND_TWIN.get(name)
    twin = load(other) if other is not None and find_file(other) is not None else None
    path = folder / f"{name}-facts.json"
    try:
        kept = _facts(read_json(path))
    except (OSError, ValueError):
        kept = None
    if kept is not None and kept.identity == facts_identity(graph, twin):
        return kept
    facts = graph_facts(graph, twin)
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(with_checksum(dataclasses.asdict(facts)), indent=1)
    write_text(path, content + "\n")
    return facts
