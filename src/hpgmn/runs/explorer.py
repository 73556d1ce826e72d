"""What the node explorer of a run's page shows, written into the run folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hpgmn.base.files import write_text
from hpgmn.explain.dossier import as_json, dossier
from hpgmn.graph import Graph
from hpgmn.runs.folder import EXPLORER_FILE, PREDICTIONS_FILE
from hpgmn.runs.spec import RunSpec
from hpgmn.runs.understanding import LARGEST_OVERVIEW, first_split, made

logger = logging.getLogger(__name__)


def write_explorer(spec: RunSpec, graph: Graph, folder: Path) -> None:
    """Write ``explorer.json``: the first split's answers, its seeds averaged.

    It is what ``hpgmn predict`` and ``hpgmn explain`` answer. Roles and labels are those that the
    run has written. Where the graph is too large, the device has not enough memory, or nothing can
    be explained, the page goes without.

    Args:
        spec: what was trained.
        graph: the graph it was trained on.
        folder: the finished run.
    """
    if graph.num_nodes > LARGEST_OVERVIEW:
        return

    def content() -> dict[str, Any]:
        split, chosen = spec.splits[0], first_split(spec, folder)
        roles, labels = _roles_and_labels(folder / PREDICTIONS_FILE, split)
        about = {"split": split, "seeds": len(chosen.replicas)}
        return about | dossier(chosen, graph, roles, labels, device=spec.device)

    found = made(content, "explain its nodes")
    if "left_out" in found:
        logger.warning("The page has no node explorer. %s", found["left_out"])
        return
    write_text(folder / EXPLORER_FILE, as_json(found) + "\n")


def _roles_and_labels(path: Path, split: int) -> tuple[list[str], list[str | None]]:
    """Of each node its role in a split and its class, as the run's predictions have them."""
    only = [("split", "=", split), ("seed", "=", 0)]
    table = pq.read_table(path, columns=["node", "role", "label"], filters=only).sort_by("node")
    return table["role"].to_pylist(), table["label"].to_pylist()
