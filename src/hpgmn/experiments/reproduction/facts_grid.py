"""Table 1: what a graph's file holds beside what the paper prints of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpgmn.experiments.reproduction.cells import record_path
from hpgmn.experiments.reproduction.grids import NOTHING, Block, Grid, Items, Words

KEYS = ("nodes", "edges", "attributes", "classes", "homophily")
Facts = Mapping[str, Any]
"""The content of a record GRAPH-facts: ``measured``, ``printed`` and ``explained``."""


def read_facts(cells: Path, graph: str) -> Facts | None:
    """The record of a graph's facts; None where there is none, or none that can be read."""
    try:
        found = json.loads(record_path(cells, f"{graph}-facts").read_text(encoding="utf-8"))
        parts = [found[name] for name in ("measured", "printed", "explained")]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if all(isinstance(part, dict) for part in parts) else None


def facts_blocks(graphs: Sequence[str], cells: Path, command: str) -> tuple[list[Block], int]:
    """Table 1, and how many of its graphs have a record."""
    found = {graph: read_facts(cells, graph) for graph in graphs}
    known = {graph: facts for graph, facts in found.items() if facts is not None}
    rows = [(Words(graph), *(_words(facts, key) for key in KEYS)) for graph, facts in found.items()]
    absent = [graph for graph in graphs if graph not in known]
    blocks: list[Block] = [
        "A cell shows what the graph's file holds and, after the stroke, what the paper prints. "
        "≠ marks a value that differs; the sentences below say why.",
        Grid("table1", "The graphs: ours / as the paper prints them.", ("graph", *KEYS), rows),
    ]
    explained = tuple(
        f"{graph}, {key}: {sentence}"
        for graph, facts in known.items()
        for key, sentence in facts["explained"].items()
    )
    if explained:
        blocks.append(Items(explained))
    if absent:
        blocks.append(
            f"{len(absent)} of {len(graphs)} graphs have no record yet ({NOTHING}): "
            f"{', '.join(absent)}."
        )
    blocks.append(f"Made by {command}; nothing is trained for it.")
    return blocks, len(known)


def _words(facts: Facts | None, key: str) -> Words:
    if facts is None:
        return Words(NOTHING)
    mark = " ≠" if key in facts["explained"] else ""
    return Words(
        fact_words(facts["measured"].get(key)), f" / {fact_words(facts['printed'].get(key))}{mark}"
    )


def fact_words(value: Any) -> str:
    """A measured or printed value.

    >>> fact_words(31421), fact_words(0.2239), fact_words(None)
    ('31,421', '0.22', '–')
    """
    if value is None:
        return NOTHING
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
