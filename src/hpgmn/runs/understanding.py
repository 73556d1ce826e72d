"""After a run: what is to be known of its graph, and what its model has learned, as files.

The report is made from a run folder alone, so what it tells of graph and model is written there.
Neither file changes a score, and where one cannot be made it says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hpgmn.auditing import audit
from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import write_text
from hpgmn.explain.overview import model_overview
from hpgmn.graph import Graph
from hpgmn.models import is_custom
from hpgmn.runs.folder import AUDIT_FILE, UNDERSTANDING_FILE
from hpgmn.runs.spec import RunSpec
from hpgmn.training.saved import MODEL_FILE, SavedModel

LARGEST_AUDIT = 5_000_000
"""Nodes and edges together up to which a run audits its graph: a matter of seconds."""
LARGEST_OVERVIEW = 500_000
"""Nodes up to which it describes its model: attention and queries of all nodes are held at once."""

_NO_MEMORY = (
    "can't allocate memory",  # torch on a processor, as on the next line
    "not enough memory",
    "out of memory",
    "alloc_failed",  # of cuBLAS and cuDNN
    "insufficient_resources",  # of cuSPARSE
)


def write_understanding(
    spec: RunSpec,
    graph: Graph,
    folder: Path,
    progress: Callable[[str, int, int | None], None] = lambda what, done, total: None,
) -> None:
    """Write ``audit.json`` and ``understanding.json`` of a trained run into its folder.

    Args:
        spec: what was trained; both files are about its first split.
        graph: the graph.
        folder: the run folder.
        progress: called with what is being done, as :func:`hpgmn.cli.console.step_progress`.
    """
    progress("Audit of the graph", 0, None)
    _write(folder / AUDIT_FILE, audited(spec, graph))
    progress("What the model has learned", 0, None)
    _write(folder / UNDERSTANDING_FILE, understood(spec, graph, folder))


def audited(spec: RunSpec, graph: Graph) -> dict[str, Any]:
    """The audit without training, or why there is none."""
    if graph.num_nodes + graph.num_listed_edges > LARGEST_AUDIT:
        return _left_out(
            f"A graph of more than {LARGEST_AUDIT:,} nodes and edges is not audited after each "
            f"run. `hpgmn audit {spec.graph} --no-training` does it."
        )
    return made(lambda: audit(graph, spec.splits[0], training=False).as_dict(), "audit the graph")


def understood(spec: RunSpec, graph: Graph, folder: Path) -> dict[str, Any]:
    """What the models of the first split have learned, or why that is not said."""
    if graph.num_nodes > LARGEST_OVERVIEW:
        return _left_out(
            f"A model is not described after each run on more than {LARGEST_OVERVIEW:,} nodes. "
            f"`hpgmn explain {folder}` does it."
        )

    def overview() -> dict[str, Any]:
        return model_overview(first_split(spec, folder), graph, device=spec.device).as_dict()

    return made(overview, "describe the model")


def made(make: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
    """What is told of a finished training, or why it cannot be: that is no reason to fail.

    Args:
        make: makes it.
        what: it does, in words, for a machine with too little memory.
    """
    try:
        return make()
    except HPGMNError as error:
        return _left_out(str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_want_of_memory(error):
            raise
        return _left_out(f"There was too little memory left to {what}.")


def is_want_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether an error says that memory ran out: torch has a class of its own for GPUs alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error).lower() for words in _NO_MEMORY)


def first_split(spec: RunSpec, folder: Path) -> SavedModel:
    """The models of a run's first split, its seeds: those that answer in its report."""
    saved = SavedModel.read(folder / MODEL_FILE, spec.model if is_custom(spec.model) else None)
    places = [at for at, one in enumerate(saved.replicas) if one.split == spec.splits[0]]
    return saved.choose(places)


def _left_out(reason: str) -> dict[str, Any]:
    return {"left_out": reason}


def _write(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, allow_nan=False) + "\n")
