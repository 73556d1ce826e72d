"""HP-GMN: graph memory networks for node classification on heterophilous graphs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpgmn.base.version import __version__

if TYPE_CHECKING:
    from hpgmn import nn, transforms
    from hpgmn.auditing import Audit, audit
    from hpgmn.base.errors import HPGMNError
    from hpgmn.estimators import HPGMNClassifier, HPGMNRegressor
    from hpgmn.graph import (
        Graph,
        Split,
        Splits,
        from_networkx,
        from_pyg,
        from_tables,
        random_splits,
    )
    from hpgmn.graph.bank import bank_transfers
    from hpgmn.graph.datasets import load
    from hpgmn.graph.files import read_graph, write_graph
    from hpgmn.graph.synthetic import supply_network, trading_network
    from hpgmn.models import settings_for
    from hpgmn.runs.compare import Comparison, compare
    from hpgmn.runs.run import Run, open_run
    from hpgmn.runs.train import train
    from hpgmn.runs.tune import TuneResult, tune
    from hpgmn.statistics import LocalStatistics
    from hpgmn.training.callbacks import TensorBoard

_HOMES = {
    "Audit": "auditing",
    "Comparison": "runs.compare",
    "Graph": "graph",
    "HPGMNClassifier": "estimators",
    "HPGMNRegressor": "estimators",
    "HPGMNError": "base.errors",
    "LocalStatistics": "statistics",
    "Run": "runs.run",
    "Split": "graph",
    "Splits": "graph",
    "TensorBoard": "training.callbacks",
    "TuneResult": "runs.tune",
    "audit": "auditing",
    "bank_transfers": "graph.bank",
    "compare": "runs.compare",
    "from_networkx": "graph",
    "from_pyg": "graph",
    "from_tables": "graph",
    "load": "graph.datasets",
    "open_run": "runs.run",
    "random_splits": "graph",
    "read_graph": "graph.files",
    "settings_for": "models",
    "supply_network": "graph.synthetic",
    "trading_network": "graph.synthetic",
    "train": "runs.train",
    "tune": "runs.tune",
    "write_graph": "graph.files",
}

__all__ = [
    "Audit",
    "Comparison",
    "Graph",
    "HPGMNClassifier",
    "HPGMNError",
    "HPGMNRegressor",
    "LocalStatistics",
    "Run",
    "Split",
    "Splits",
    "TensorBoard",
    "TuneResult",
    "__version__",
    "audit",
    "bank_transfers",
    "compare",
    "from_networkx",
    "from_pyg",
    "from_tables",
    "load",
    "nn",
    "open_run",
    "random_splits",
    "read_graph",
    "settings_for",
    "supply_network",
    "trading_network",
    "train",
    "transforms",
    "tune",
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
