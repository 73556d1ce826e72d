"""Table 1: what a graph's file holds beside what the paper prints of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpgmn_lab.reproduction.facts import Facts, read_facts
from hpgmn_lab.reproduction.grids import NOTHING, Block, Grid, Items, Words

KEYS = ("nodes", "edges", "attributes", "classes", "homophily")
"""The columns of Table 1."""


def facts_blocks(graphs: Sequence[str], cells: Path, command: str) -> tuple[list[Block], int]:
    """Table 1, and how many of its graphs have a record."""
    found = {graph: read_facts(cells, graph) for graph in graphs}
    known = {graph: facts for graph, facts in found.items() if facts is not None}
    rows = [(Words(graph), *(_words(facts, key) for key in KEYS)) for graph, facts in found.items()]
    blocks: list[Block] = [
        "A cell shows what the graph's file holds and, after the stroke, what the paper prints. "
        "≠ marks what differs in the printed decimals; the sentences below say where the printed "
        "number comes from.",
        Grid("table1", "The graphs: ours / as the paper prints them.", ("graph", *KEYS), rows),
    ]
    differing = tuple(
        f"{graph}, {key}: {facts.explanations.get(key, 'not explained')}."
        for graph, facts in known.items()
        for key in KEYS
        if differs(facts, key)
    )
    if differing:
        blocks.append(Items(differing))
    absent = [graph for graph in graphs if graph not in known]
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
    mark = " ≠" if differs(facts, key) else ""
    return Words(fact_words(getattr(facts, key)), f" / {fact_words(facts.printed[key])}{mark}")


def differs(facts: Facts, key: str) -> bool:
    """Whether a number of ours is another than the printed one, in the decimals that are shown."""
    return fact_words(getattr(facts, key)) != fact_words(facts.printed[key])


def fact_words(value: float) -> str:
    """A measured or printed value.

    >>> fact_words(31421), fact_words(0.2239)
    ('31,421', '0.22')
    """
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
