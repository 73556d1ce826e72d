"""HP-GMN: graph memory networks for node classification on heterophilous graphs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hpgmn import nn, transforms
    from hpgmn.auditing import Audit, audit
    from hpgmn.classifier import HPGMNClassifier
    from hpgmn.datasets import random_splits, read_graph, trading_network, write_graph
    from hpgmn.datasets.loading import load
    from hpgmn.errors import HPGMNError
    from hpgmn.experiments.portfolio import Choice, choose
    from hpgmn.graph import Graph, Split, Splits
    from hpgmn.pyg import from_pyg
    from hpgmn.shipped import settings_for
    from hpgmn.statistics import LocalStatistics
    from hpgmn.tables import from_networkx, from_tables

_HOMES = {
    "Audit": "auditing",
    "Choice": "experiments.portfolio",
    "Graph": "graph",
    "HPGMNClassifier": "classifier",
    "HPGMNError": "errors",
    "LocalStatistics": "statistics",
    "Split": "graph",
    "Splits": "graph",
    "audit": "auditing",
    "choose": "experiments.portfolio",
    "from_networkx": "tables",
    "from_pyg": "pyg",
    "from_tables": "tables",
    "load": "datasets.loading",
    "random_splits": "datasets",
    "read_graph": "datasets",
    "settings_for": "shipped",
    "trading_network": "datasets",
    "write_graph": "datasets",
}

__all__ = [
    "Audit",
    "Choice",
    "Graph",
    "HPGMNClassifier",
    "HPGMNError",
    "LocalStatistics",
    "Split",
    "Splits",
    "audit",
    "choose",
    "from_networkx",
    "from_pyg",
    "from_tables",
    "load",
    "nn",
    "random_splits",
    "read_graph",
    "settings_for",
    "trading_network",
    "transforms",
    "write_graph",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``hpgmn --help`` answers at once."""
    if name in ("nn", "transforms"):
        return importlib.import_module(f"hpgmn.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"hpgmn.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hpgmn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
