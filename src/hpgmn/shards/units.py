"""Run one unit of work: note its start, compute its files, write its record.

The record names the files with sizes and checksums and is written last; a unit without a record of
the current plan is not done.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpgmn.base.errors import HPGMNError
from hpgmn.base.files import atomic_write
from hpgmn.base.parsing import read_json
from hpgmn.engines import Channel
from hpgmn.shards.cutting import (
    WORK,
    cut_in,
    cut_out,
    cut_undirected,
    join_transition,
    make_transition,
)
from hpgmn.shards.files import are_complete
from hpgmn.shards.plan import Plan, Unit
from hpgmn.shards.rows import make_nodes, make_round, make_rows, make_topk

PLAN = "plan.json"
"""Name of the file of the plan."""

Compute = Callable[[Path, Plan, Unit], dict[str, Any]]

KINDS: dict[str, Compute] = {
    "out": cut_out,
    "in": cut_in,
    "undirected": cut_undirected,
    "nodes": make_nodes,
    "rows": make_rows,
    "transition": make_transition,
    "join": join_transition,
    "topk": make_topk,
    "round": make_round,
}


def compute(folder: Path, plan: Plan, unit: Unit) -> dict[str, Any]:
    """Write the files of a unit; return the facts of each."""
    return KINDS[unit.kind](folder, plan, unit)


def unit_task(argument: tuple[str, Unit], shared: None, channel: Channel) -> None:
    """Run a unit as the task of an engine."""
    folder, unit = argument
    run_unit(folder, unit, channel.node)


def run_unit(folder: str | Path, unit: Unit, by: str = "", compute: Compute = compute) -> None:
    """Run a unit unless it is done.

    Args:
        folder: of the shards, visible to all machines of the engine.
        by: the node of a cluster, for the note.
        compute: writes the files.
    """
    folder = Path(folder)
    try:
        plan = Plan.read(folder / PLAN)
        if record(folder, plan, unit) is not None:
            return  # only its result was lost
        start = uuid.uuid4().hex
        note = {"unit": unit.key, "by": by, "host": socket.gethostname(), "process": os.getpid()}
        _write(folder / WORK / "starts" / f"{unit.key}.{start}.json", note)
        began = time.perf_counter()
        files = compute(folder, plan, unit)
        unit_record = {
            "plan": plan.digest,
            "start": start,
            "seconds": time.perf_counter() - began,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "files": files,
        }
        _write(_record_path(folder, unit), unit_record)
    except OSError as error:
        raise HPGMNError(
            f"Cannot read or write a file of {folder} ({error.strerror or error}).",
            "Check free disk space and that every machine sees the folder, then run the command "
            "again: finished work is kept.",
        ) from None


def _record_path(folder: Path, unit: Unit) -> Path:
    return folder / WORK / "done" / f"{unit.key}.json"


def record(folder: Path, plan: Plan, unit: Unit, *, checked: bool = False) -> dict[str, Any] | None:
    """Return the record of a unit; None unless it is of this plan and its files are complete.

    Args:
        checked: whether to verify checksums, not sizes alone.
    """
    try:
        unit_record: dict[str, Any] = read_json(_record_path(folder, unit))
    except (OSError, ValueError):
        return None
    if unit_record["plan"] != plan.digest:
        return None
    return unit_record if are_complete(folder, unit_record["files"], checked=checked) else None


def forget(folder: Path, unit: Unit) -> None:
    """Mark a unit as not done."""
    _record_path(folder, unit).unlink(missing_ok=True)


def starts(folder: Path) -> list[dict[str, Any]]:
    """Return the notes of all started units, with the ``start`` that records name."""
    paths = sorted((folder / WORK / "starts").glob("*.json"))
    return [read_json(path) | {"start": path.name.split(".")[-2]} for path in paths]


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, fsync=False) as draft:
        draft.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
