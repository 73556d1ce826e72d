"""Search spaces, and the settings from the literature with which a search starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hpgmn.base.settings import read_yaml, settings_names
from hpgmn.models import find_model

Space = Mapping[str, Sequence[Any]]
"""For each setting the values to try."""

CITATION = ("cora", "citeseer", "pubmed")
WEBKB = ("texas", "wisconsin", "cornell", "cornell-geomgcn")
WIKIPEDIA = ("chameleon", "squirrel", "chameleon-filtered", "squirrel-filtered")
DEFECTIVE = {
    "chameleon-filtered": "chameleon",
    "squirrel-filtered": "squirrel",
    "cornell": "cornell-geomgcn",
}
"""Graph without known defects → the one with them that the literature uses."""


def kind_of(graph: str) -> str:
    """Return the kind of graph a dataset is.

    >>> kind_of("texas"), kind_of("squirrel"), kind_of("cora")
    ('webkb', 'wikipedia', 'citation')
    """
    for kind, names in (("webkb", WEBKB), ("citation", CITATION), ("wikipedia", WIKIPEDIA)):
        if graph in names:
            return kind
    return "crocodile" if graph == "crocodile" else "other"


@cache
def _content(name: str) -> dict[str, Any]:
    return read_yaml(Path(__file__).with_name(name))


def _values(space: Mapping[str, Sequence[Any]]) -> Space:
    """Return a space whose lists of names are tuples, as settings hold them."""
    return {
        name: [tuple(value) if isinstance(value, list) else value for value in values]
        for name, values in space.items()
    }


def paper_space() -> Space:
    """Return the search space that the paper prints."""
    return _values(_content("spaces.yaml")["paper"])


def space_for(model: str, graph: str) -> Space:
    """Return the values to try for a model on a graph, by the graph's kind.

    >>> space_for("hpgmn", "texas")["neighbors"], space_for("mlp", "texas")["layers"]
    (['undirected', 'out'], [2, 3])
    """
    content, kind = _content("spaces.yaml"), kind_of(graph)
    spaces = content["hpgmn"].get(model)
    if spaces is not None:
        return _values(spaces[kind] if kind in spaces else next(iter(spaces.values())))
    known = settings_names(find_model(model).settings)
    shared = {name: values for name, values in content["shared"][kind].items() if name in known}
    added = content["baselines"].get(model, {})
    return _values(shared | added.get("any", {}) | added.get(kind, {}))


def literature(model: str, graph: str) -> dict[str, Any]:
    """Return the settings that the literature gives for a baseline; empty without any.

    >>> literature("dirgcn", "squirrel")["layers"], literature("hpgmn", "squirrel")
    (4, {})
    """
    known = {
        name: entry["settings"]
        for entry in _content("literature.yaml").get(model, ())
        for name in entry["graphs"]
    }
    # A graph without settings of its own takes those of its form with defects.
    for name in (graph, DEFECTIVE.get(graph, graph), "default"):
        if name in known:
            return dict(known[name])
    return {}
