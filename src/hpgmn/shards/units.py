"""One unit of work, from its note that it has begun to its record that it is done.

The record names the files, their sizes and checksums; it is written last. Without a record, or with
one of another plan, a unit has not been done, whatever files lie about.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import time
import uuid
from collections.abc import Callable
from functools import cache
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
from hpgmn.shards.files import are_whole
from hpgmn.shards.plan import Plan, Unit
from hpgmn.shards.rows import make_nodes, make_round, make_rows, make_topk

PLAN = "plan.json"
"""The file of a shards' folder that says what they are made from."""

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
    """Make the files of a unit; what is to be remembered of each."""
    return KINDS[unit.kind](folder, plan, unit)


def unit_task(argument: tuple[str, Unit], shared: None, line: Channel) -> None:
    """A unit as the task of an engine.

    Args:
        argument: the folder of the shards, and the unit.
        shared: nothing.
        line: says where the task runs.
    """
    folder, unit = argument
    run_unit(folder, unit, line.node)


def run_unit(folder: str | Path, unit: Unit, by: str = "", compute: Compute = compute) -> None:
    """Do a unit, unless it has been done.

    Args:
        folder: that of the shards; all of the engine's machines see it.
        unit: what to do.
        by: where it is done, for the note: a node of a cluster.
        compute: makes the files.
    """
    folder = Path(folder)
    try:
        _run_unit(folder, unit, by, compute)
    except OSError as error:
        raise HPGMNError(
            f"A file of {folder} could not be read or written ({error.strerror or error}). See "
            "that there is room and that every machine sees the folder, then run the command "
            "again: what is finished is kept."
        ) from None


def _run_unit(folder: Path, unit: Unit, by: str, compute: Compute) -> None:
    plan = _plan(folder / PLAN, (folder / PLAN).stat().st_mtime_ns)
    if record(folder, plan, unit) is not None:
        return  # its answer was lost, not its work
    start = uuid.uuid4().hex
    note = {"unit": unit.key, "by": by, "host": socket.gethostname(), "process": os.getpid()}
    _write(folder / WORK / "starts" / f"{unit.key}.{start}.json", note)
    began = time.perf_counter()
    files = compute(folder, plan, unit)
    said = {
        "plan": plan.digest,
        "start": start,
        "seconds": time.perf_counter() - began,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "files": files,
    }
    _write(_record_path(folder, unit), said)


@cache
def _plan(path: Path, changed: int) -> Plan:
    return Plan.read(path)


def _record_path(folder: Path, unit: Unit) -> Path:
    return folder / WORK / "done" / f"{unit.key}.json"


def record(folder: Path, plan: Plan, unit: Unit, *, checked: bool = False) -> dict[str, Any] | None:
    """What a finished unit has left; None unless its files are those of the plan, and whole.

    Args:
        folder: that of the shards.
        plan: what they are made from.
        unit: which.
        checked: whether the content of the files is compared, and not their sizes alone.
    """
    try:
        said: dict[str, Any] = read_json(_record_path(folder, unit))
    except (OSError, ValueError):
        return None
    is_same = said["plan"] == plan.digest
    return said if is_same and are_whole(folder, said["files"], checked=checked) else None


def forget(folder: Path, unit: Unit) -> None:
    """Have a unit done again."""
    _record_path(folder, unit).unlink(missing_ok=True)


def starts(folder: Path) -> list[dict[str, Any]]:
    """The notes of all units that were begun, with the ``start`` that records name."""
    found = []
    for path in sorted((folder / WORK / "starts").glob("*.json")):
        note = read_json(path)
        found.append(note | {"start": path.name.split(".")[-2]})
    return found


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, fsync=False) as draft:
        draft.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
