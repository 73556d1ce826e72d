"""What the literature gives for a baseline on a graph: where a search starts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hpgmn.base.settings import read_yaml

DEFECTIVE = {
    "chameleon-filtered": "chameleon",
    "squirrel-filtered": "squirrel",
    "cornell": "cornell-geomgcn",
}
"""Graph without the known defects → the one with them that the literature uses."""


@cache
def _entries() -> dict[str, dict[str, dict[str, Any]]]:
    content = read_yaml(Path(__file__).with_name("literature.yaml"))
    return {
        model: {graph: entry["settings"] for entry in entries for graph in entry["graphs"]}
        for model, entries in content.items()
    }


def literature(model: str, graph: str) -> dict[str, Any]:
    """The settings that the literature gives; empty, hence the model's defaults, without any.

    >>> literature("dirgcn", "squirrel")["layers"], literature("hpgmn", "squirrel")
    (4, {})
    """
    known = _entries().get(model, {})
    # a graph without settings of its own takes those of its form with defects
    for name in (graph, DEFECTIVE.get(graph, graph), "default"):
        if name in known:
            return dict(known[name])
    return {}
