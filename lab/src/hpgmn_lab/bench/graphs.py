"""Generated graphs: made by a process of their own, kept as folders, found again."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.graph.files import FOLDER_ENDING, is_graph_folder, write_graph
from hpgmn.graph.synthetic import trading_network
from hpgmn_lab.bench.processes import measured
from hpgmn_lab.bench.records import Record, read_record, write_record

NUM_CLASSES = 5
FRACTIONS = (0.5, 0.2, 0.3)
"""Shares of train, validation and test: half of the nodes train, so epochs grow with the graph."""


@dataclass(frozen=True)
class GraphSpec:
    """A generated graph; its parameters decide every bit of it.

    Attributes:
        nodes: N.
        degree: edges that a node begins on the mean: N · degree are expected.
        attributes: F.
        seed: of the graph and its splits.
    """

    nodes: int
    degree: float = 10.0
    attributes: int = 64
    seed: int = 0

    @property
    def name(self) -> str:
        """What its folder is called.

        >>> GraphSpec(10_000).name
        'trading-n10000-d10-f64-s0'
        """
        return f"trading-n{self.nodes}-d{self.degree:g}-f{self.attributes}-s{self.seed}"

    @property
    def parameters(self) -> dict[str, Any]:
        """What :func:`trading_network` is called with."""
        return {
            "num_nodes": self.nodes,
            "num_classes": NUM_CLASSES,
            "num_features": self.attributes,
            "degree": self.degree,
            "fractions": list(FRACTIONS),
            "seed": self.seed,
        }


def check_spec(spec: GraphSpec) -> None:
    """Refuse sizes that no graph can have, before a process is started for it."""
    if spec.nodes < 20 * NUM_CLASSES:
        raise SettingError(f"--nodes must be at least {20 * NUM_CLASSES} (got {spec.nodes}).")
    if spec.degree < 1:
        raise SettingError(f"--degree must be at least 1 (got {spec.degree:g}).")
    if spec.attributes < 2:
        raise SettingError(f"--attributes must be at least 2 (got {spec.attributes}).")
    if spec.seed < 0:
        raise SettingError(f"--seed must be at least 0 (got {spec.seed}).")


def generated(spec: GraphSpec, folder: Path) -> Record:
    """A generated graph in a folder of graphs; one of the same parameters is used again.

    Returns:
        What lies beside it: its parameters, the best accuracy that it allows, the seconds it took,
        and its path.
    """
    path = folder / f"{spec.name}{FOLDER_ENDING}"
    beside = path.with_suffix(".json")
    if beside.is_file() and is_graph_folder(path):
        found = read_record(beside)
        if found.get("parameters") == spec.parameters:
            return found | {"path": str(path)}
    return measured("graph", spec=asdict(spec), folder=str(folder))


def make(spec: dict[str, Any], folder: str) -> Record:
    """Make a graph and write its folder, then what lies beside it; a task of the worker."""
    asked = GraphSpec(**spec)
    path = Path(folder) / f"{asked.name}{FOLDER_ENDING}"
    beside = path.with_suffix(".json")
    started = time.perf_counter()
    made = trading_network(**asked.parameters)
    try:
        beside.unlink(missing_ok=True)
        write_graph(made.graph, path)
        record = {
            "parameters": asked.parameters,
            "best_accuracy": made.best_accuracy,
            "seconds": time.perf_counter() - started,
        }
        write_record(record, beside)
    except OSError as error:
        raise HPGMNError(
            f"Cannot write into the folder {folder} ({error.strerror or error}). "
            "Choose another --graphs."
        ) from None
    return record | {"path": str(path)}
