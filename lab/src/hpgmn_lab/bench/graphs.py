"""Generated graphs, and HP-GMN's settings for large graphs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpgmn.base.errors import SettingError
from hpgmn.base.settings import make_settings
from hpgmn.graph.files import FOLDER_ENDING, is_graph_folder, write_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn.models import find_model
from hpgmn_lab.bench.process import run_task, say
from hpgmn_lab.bench.records import Record, make_folder, read_record, write_record

NUM_CLASSES = 5
FRACTIONS = (0.5, 0.2, 0.3)
"""Shares of train, validation and test nodes: half train, so epochs grow with the graph."""

LARGE: dict[str, Any] = {
    # None of these has a column per node, so the weights do not grow with the graph.
    "statistics": "attributes,class_counts,class_means",
    "neighbors": "both",  # buyers and sellers are different neighbours
    "class_means_form": "half",  # halves the largest array, which batches read row by row
    "batch_size": 4096,  # large enough for fast products, small enough for many steps an epoch
    "epochs": 20,  # an epoch has N/8192 steps: 20 are many where N is large
    "patience": 0,  # early stopping would make times incomparable
    "lr": 0.01,
    "hidden_dim": 64,
    "num_patterns": 50,
    "encoder_layers": 1,
    # With thousands of train nodes per class little regularisation is needed.
    "dropout": 0.2,
    "attributes_dropout": 0.0,
    "class_means_dropout": 0.0,
    "weight_decay": 1e-5,
    # An attribute-only estimator converges after a few passes over so many nodes.
    "estimator_epochs": 5,
    "estimator_patience": 0,
    "estimator_dropout": 0.0,
    "estimator_weight_decay": 1e-5,
}
"""HP-GMN's settings for large graphs; ``--set`` changes any of them."""


def large_settings(changes: Mapping[str, Any]) -> Any:
    """Return HP-GMN's settings for a large graph with some changes, validated."""
    return make_settings(find_model("hpgmn").settings, LARGE | dict(changes))


@dataclass(frozen=True)
class GraphSpec:
    """The parameters of a generated graph; ``degree`` is the mean number of outgoing edges."""

    nodes: int
    degree: float = 10.0
    attributes: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        minimum = {"nodes": 20 * NUM_CLASSES, "degree": 1, "attributes": 2, "seed": 0}
        for name, least in minimum.items():
            if (value := getattr(self, name)) < least:
                raise SettingError(f"--{name} must be at least {least} (got {value:g}).")

    @property
    def name(self) -> str:
        """Return the name of its folder.

        >>> GraphSpec(10_000).name
        'trading-n10000-d10-f64-s0'
        """
        return f"trading-n{self.nodes}-d{self.degree:g}-f{self.attributes}-s{self.seed}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the arguments of :func:`trading_network`."""
        return {
            "num_nodes": self.nodes,
            "num_classes": NUM_CLASSES,
            "num_features": self.attributes,
            "degree": self.degree,
            "fractions": list(FRACTIONS),
            "seed": self.seed,
        }


def generate(spec: GraphSpec, folder: Path) -> Record:
    """Write a generated graph into a folder of graphs unless it is there; return its facts."""
    path = folder / f"{spec.name}{FOLDER_ENDING}"
    facts = path.with_suffix(".json")
    if facts.is_file() and is_graph_folder(path):
        record = read_record(facts)
        if record.get("parameters") == spec.parameters:
            return record | {"path": str(path)}
    make_folder(folder, option="graphs")
    say(f"{spec.nodes:,} nodes: generating the graph")
    return run_task("graph", spec=asdict(spec), folder=str(folder))


def write_generated(spec: dict[str, Any], folder: str) -> Record:
    """Generate a graph and write its folder, then its facts beside it."""
    requested = GraphSpec(**spec)
    path = Path(folder) / f"{requested.name}{FOLDER_ENDING}"
    facts = path.with_suffix(".json")
    started = time.perf_counter()
    generated = trading_network(**requested.parameters)
    facts.unlink(missing_ok=True)
    write_graph(generated.graph, path)
    record = {
        "parameters": requested.parameters,
        "best_accuracy": generated.best_accuracy,
        "seconds": time.perf_counter() - started,
    }
    write_record(record, facts)
    return record | {"path": str(path)}
