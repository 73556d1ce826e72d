"""After a training: the audit of its graph, the overview of its model, and the node explorer.

None of them changes a score; one that cannot be computed says why instead.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hpgmn.auditing import audit
from hpgmn.base.errors import HPGMNError, Remedy
from hpgmn.base.files import write_text
from hpgmn.explain.explorer import explorer_data
from hpgmn.explain.model import model_overview
from hpgmn.explain.replicas import ReplicaView, open_replicas
from hpgmn.graph import Graph
from hpgmn.runs.folder import AUDIT_FILE, EXPLORER_FILE, UNDERSTANDING_FILE
from hpgmn.runs.predictions import roles
from hpgmn.runs.spec import RunSpec
from hpgmn.training.saved import SavedModel

logger = logging.getLogger(__name__)

LARGEST_AUDIT = 5_000_000
"""Nodes and edges together up to which a run audits its graph: a matter of seconds."""
LARGEST_OVERVIEW = 500_000
"""Nodes up to which a run describes its model: attention and queries of all are held at once."""

_NO_MEMORY = (
    "can't allocate memory",  # torch on a CPU, as on the next line
    "not enough memory",
    "out of memory",
    "alloc_failed",  # cuBLAS and cuDNN
    "insufficient_resources",  # cuSPARSE
)


@dataclass(frozen=True)
class Understanding:
    """What is recorded beside the scores of a run; ``left_out`` instead of content says why.

    Attributes:
        audit: the audit of the graph without training.
        overview: what the models of the first split have learned.
        explorer: explanations of its nodes; empty if there are none.
    """

    audit: dict[str, Any]
    overview: dict[str, Any]
    explorer: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write ``audit.json``, ``understanding.json`` and ``explorer.json``."""
        _write(folder / AUDIT_FILE, self.audit)
        _write(folder / UNDERSTANDING_FILE, self.overview)
        if self.explorer:
            _write(folder / EXPLORER_FILE, self.explorer)


def understand(
    spec: RunSpec,
    graph: Graph,
    model: SavedModel,
    progress: Callable[[str], None] = lambda step: None,
) -> Understanding:
    """Audit the graph and explain the models of the first split, which are opened once."""
    progress("Audit of the graph")
    audited = _audit(spec, graph)
    progress("Explanation of the model")
    if graph.num_nodes > LARGEST_OVERVIEW:
        remedy = Remedy("Explain it separately", command="explain")
        fault = f"Models on more than {LARGEST_OVERVIEW:,} nodes are not explained after training."
        return Understanding(audited, _left_out(HPGMNError(fault, remedy)))
    split = spec.splits[0]
    chosen = model.choose([at for at, one in enumerate(model.replicas) if one.split == split])
    replicas: list[ReplicaView] = []

    def overview() -> dict[str, Any]:
        replicas.extend(open_replicas(chosen, graph, spec.device))
        return model_overview(replicas, chosen.class_names)

    described = computed(overview, "explain the model")
    if not replicas:
        return Understanding(audited, described)
    progress("Node explorer")
    node_roles = roles(graph.split(split))
    explorer = computed(
        lambda: explorer_data(replicas, chosen.class_names, node_roles, graph.y),
        "explain its nodes",
    )
    if "left_out" in explorer:
        logger.warning("The report has no node explorer. %s", explorer["left_out"])
        explorer = {}
    return Understanding(audited, described, explorer)


def _audit(spec: RunSpec, graph: Graph) -> dict[str, Any]:
    if graph.num_nodes + graph.num_listed_edges > LARGEST_AUDIT:
        remedy = Remedy(f"Audit {spec.graph} separately", command="audit")
        fault = f"Graphs of more than {LARGEST_AUDIT:,} nodes and edges are not audited."
        return _left_out(HPGMNError(fault, remedy))
    return computed(lambda: audit(graph, spec.splits[0], training=False).as_dict(), "audit it")


def computed(compute: Callable[[], dict[str, Any]], purpose: str) -> dict[str, Any]:
    """Call a function; return the reason if user input or lack of memory makes it fail."""
    try:
        return compute()
    except HPGMNError as error:
        return _left_out(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _left_out(f"Not enough memory to {purpose}.")


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether memory ran out: torch has its own class for GPUs alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error).lower() for words in _NO_MEMORY)


def _left_out(reason: object) -> dict[str, Any]:
    return {"left_out": str(reason)}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    write_text(path, text + "\n")
