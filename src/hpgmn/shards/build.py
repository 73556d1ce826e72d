"""Build row shards: plan, stages of units, manifest."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import HPGMNError, Remedy, SettingError
from hpgmn.base.files import (
    DRAFT_SUFFIX,
    GRAPH_FORMAT,
    LOCK_FILE,
    check_format,
    digest,
    lock_folder,
    write_text,
)
from hpgmn.base.parsing import read_json
from hpgmn.base.settings import settings_dict
from hpgmn.engines import Engine, Task, TaskResult
from hpgmn.engines.processes import LocalEngine
from hpgmn.graph import Array, Graph
from hpgmn.graph.content import shard_content
from hpgmn.graph.files import graph_name, read_graph, refuse_changed, write_graph
from hpgmn.graph.homophily import node_homophily
from hpgmn.shards.cutting import WORK
from hpgmn.shards.files import RowFile, small_array, write_array
from hpgmn.shards.plan import (
    FORMAT,
    FREE,
    MEMORY,
    Plan,
    Stage,
    Unit,
    balanced_starts,
    resolve_forms,
)
from hpgmn.shards.reading import MANIFEST, Shards
from hpgmn.shards.rows import check_push, round_file, rows_file
from hpgmn.shards.units import PLAN, forget, record, starts, unit_task
from hpgmn.statistics.settings import StatisticsSettings, base_name, statistic_names

Progress = Callable[[str, int, int | None], None]

TRIES = 6
"""Attempts of a task whose process or machine dies."""

COUNTED_EDGES = 100_000_000
"""Most edges that are merged in memory, to count distinct ones and homophily."""

_ORIGIN = f"{WORK}/origin.json"


@dataclass(frozen=True)
class Outcome:
    """The result of :func:`shard`.

    Attributes:
        reused: units that an earlier call had finished.
        starts: units started, by this call and earlier ones.
    """

    shards: Shards
    units: int
    reused: int
    starts: int


def shard(
    graph: Graph | str | Path,
    folder: str | Path,
    labels: Array,
    settings: StatisticsSettings,
    *,
    ranges: int = 8,
    split: int | None = 0,
    memory: int = MEMORY,
    engine: Engine | None = None,
    progress: Progress = lambda what, done, total: None,
    keep: bool = False,
) -> Outcome:
    """Cut a graph into node ranges and compute its statistics as row shards; resumes earlier calls.

    Args:
        graph: a graph folder, read in parts; or a graph, which is written as one first.
        folder: the target, visible to all machines of the engine.
        labels: (N,) labels or pseudo-labels by which neighbours are counted; -1 is unknown.
        settings: of the statistics; other settings are stored in the manifest.
        ranges: the number of node ranges.
        split: the split whose train, val and test nodes are marked; ignored without splits.
        memory: most bytes that a task holds in blocks.
        engine: runs the tasks; by default this process.
        progress: called with the stage, its finished units and all its units.
        keep: whether to keep the edges in ranges.
    """
    folder = Path(folder).resolve()  # tasks may run in another working directory
    with lock_folder(folder):
        plan = _prepare(graph, folder, labels, settings, ranges=ranges, split=split, memory=memory)
        return _run_plan(folder, plan, engine or LocalEngine(), progress, keep=keep)


def _run_plan(
    folder: Path, plan: Plan, engine: Engine, progress: Progress, *, keep: bool
) -> Outcome:
    """Run the remaining units of a plan and write the manifest."""
    stages = plan.stages()
    every = [unit for stage in stages for unit in stage.units]
    if _is_finished(folder, plan):
        return Outcome(Shards(folder), len(every), len(every), len(starts(folder)))
    work = _Work(folder, plan, stages, progress)
    engine.run(work.next_task, work.on_result, tries=TRIES)
    for draft in folder.rglob(f".*{DRAFT_SUFFIX}"):  # of tasks that were killed
        draft.unlink(missing_ok=True)
    begun = len(starts(folder))
    _write_manifest(folder, plan, stages)
    if not keep:
        shutil.rmtree(folder / WORK)
    return Outcome(Shards(folder), len(every), work.reused, begun)


class _Work:
    """The stages as tasks: a stage starts when all before it are done."""

    def __init__(self, folder: Path, plan: Plan, stages: list[Stage], progress: Progress) -> None:
        self._folder, self._plan, self._progress = folder, plan, progress
        superseded = _superseded_rounds(folder, plan, stages)
        self.reused = sum(len(stages[number].units) for number in superseded)
        self._stages = [stage for number, stage in enumerate(stages) if number not in superseded]
        self._stage: Stage | None = None
        self._left: list[Unit] = []
        self._running = 0

    def next_task(self) -> Task | None:
        """Return the next task; None while running tasks must finish first, and at the end."""
        while not self._left:
            if self._running:
                return None
            self._end_stage()
            if not self._stages:
                return None
            self._begin_stage(self._stages.pop(0))
        unit = self._left.pop(0)
        self._running += 1
        return Task(unit.key, unit_task, (str(self._folder), unit), memory=self._plan.memory)

    def on_result(self, result: TaskResult) -> None:
        """Handle the result of a task."""
        if result.trace:
            raise RuntimeError(f"A worker failed:\n{result.trace}")
        if result.is_lost:
            raise HPGMNError(str(result.reason), "Run it again: finished work is kept.")
        if result.reason:
            raise HPGMNError(result.reason)
        self._running -= 1
        self._report()

    def _begin_stage(self, stage: Stage) -> None:
        self._stage = stage
        for unit in stage.units:
            if record(self._folder, self._plan, unit, checked=True) is None:
                forget(self._folder, unit)  # of another plan, or damaged
                self._left.append(unit)
        self.reused += len(stage.units) - len(self._left)
        self._report()

    def _end_stage(self) -> None:
        if self._stage is not None and self._stage.chain and self._stage.units[0].step:
            unit = self._stage.units[0]
            superseded = self._folder / round_file(unit.name, unit.step - 1, 0)
            shutil.rmtree(superseded.parent, ignore_errors=True)
        self._stage = None

    def _report(self) -> None:
        assert self._stage is not None
        every = len(self._stage.units)
        done = every - len(self._left) - self._running
        self._progress(self._stage.what, done, every)


@dataclass(frozen=True)
class _Source:
    """A graph to be cut.

    Attributes:
        fields: of the plan.
        splits: the number of splits.
        edges_before: returns the number of edges that leave nodes before the argument.
        origin: where it can be read again, or None.
    """

    fields: dict[str, Any]
    splits: int
    edges_before: Callable[[int], int]
    origin: str | None = None


def _prepare(
    graph: Graph | str | Path,
    folder: Path,
    labels: Array,
    settings: Any,
    *,
    ranges: int,
    split: int | None,
    memory: int,
) -> Plan:
    """Return the plan and write what units read; the plan of an earlier call must be the same."""
    if not isinstance(graph, Graph) and (Path(graph) / "edges_indptr.npy").is_file():
        source = _in_folder(Path(graph).resolve())
    else:
        path = None if isinstance(graph, Graph) else Path(graph).resolve()
        graph = read_graph(path) if path is not None else graph
        assert isinstance(graph, Graph)
        source = _in_memory(graph, folder, path)
    has_types = (
        bool(graph.edge_type_names)
        if isinstance(graph, Graph)
        else (Path(graph) / "edges_types.npy").is_file()
    )
    if has_types and settings.edge_types == "separate":
        raise SettingError(
            "The graph has edge types, but row shards read all edges together.",
            Remedy("Merge the types", setting="edge_types", value="merged"),
        )
    fields = source.fields
    labels = _check_labels(labels, fields["num_nodes"], len(fields["class_names"]))
    if source.splits == 0:
        split = None
    elif split is not None and not 0 <= split < source.splits:
        raise SettingError(f"split must be 0 to {source.splits - 1} on this graph (got {split}).")
    settings = resolve_forms(
        settings,
        (fields["num_nodes"], fields["num_features"]),
        len(fields["class_names"]),
        sparse=fields["is_sparse"],
    )
    plan = Plan(
        starts=balanced_starts(source.edges_before, fields["num_nodes"], ranges),
        labels=digest(labels.tobytes()),
        split=split,
        memory=memory,
        settings=settings_dict(settings),
        **fields,
    )
    is_resumed = (folder / PLAN).is_file()
    if is_resumed:
        _compare(folder, plan)
    elif any(path.name not in (LOCK_FILE, WORK) for path in folder.iterdir()):
        raise HPGMNError(
            f"The folder {folder} contains other files.",
            Remedy("Choose another folder", option="folder", flag="out"),
        )
    if (folder / MANIFEST).is_file():
        return plan
    check_push(plan)
    if not is_resumed:
        shutil.rmtree(folder / WORK, ignore_errors=True)
    (folder / WORK).mkdir(parents=True, exist_ok=True)
    write_text(folder / PLAN, plan.text())
    if isinstance(graph, Graph) and not plan.folder.is_dir():
        write_graph(graph, plan.folder)
    origin = _origin(source.origin, graph if isinstance(graph, Graph) else None)
    write_text(folder / _ORIGIN, json.dumps(origin))
    write_array(folder / WORK / "labels.npy", labels)
    return plan


def _origin(source: str | None, graph: Graph | None) -> dict[str, Any]:
    """Return the manifest's facts about the whole graph; few are known of a graph read in parts."""
    is_counted = graph is not None and graph.num_listed_edges <= COUNTED_EDGES
    homophily = node_homophily(graph) if graph is not None and is_counted else math.nan
    return {
        "source": source,
        "fingerprint": "" if graph is None else graph.fingerprint,
        "num_edges": graph.num_edges if graph is not None and is_counted else None,
        "homophily": None if math.isnan(homophily) else homophily,
        "preparation": None if graph is None else graph.preparation,
    }


def note_origin(folder: str | Path, source: str | None, graph: Graph) -> Shards:
    """Write facts about the whole graph into finished shards.

    Args:
        source: the name of a dataset or a path from which the graph can be read again.
    """
    shards = Shards(folder)
    about = shards.about | _origin(source, graph)
    if about != shards.about:
        write_text(shards.folder / MANIFEST, json.dumps(about, indent=1) + "\n")
    return Shards(folder)


def _check_labels(labels: Array, nodes: int, classes: int) -> Array:
    if classes == 0:
        raise HPGMNError(
            "The graph has no classes, so nothing can be learned from shards.",
            "Give it labels; numbers are predicted by `hpgmn train` alone",
        )
    labels = np.ascontiguousarray(labels, np.int32)
    if labels.shape != (nodes,):
        raise HPGMNError(
            f"The graph has {nodes:,} nodes, but the labels have the shape {labels.shape}.",
            "Give one label for each node.",
        )
    if not -1 <= labels.min() <= labels.max() < classes:
        raise HPGMNError(
            f"Labels must be numbers of the {classes} classes, or -1 (got {labels.min()} to "
            f"{labels.max()})."
        )
    return labels


def _compare(folder: Path, plan: Plan) -> None:
    before = Plan.read(folder / PLAN)
    if before.digest == plan.digest:
        return
    old, new = dataclasses.asdict(before), dataclasses.asdict(plan)
    named = {"source": "graph", "starts": "ranges"}
    other = [named.get(key, key) for key in new if old[key] != new[key] and key not in FREE]
    raise HPGMNError(
        f"{folder} contains shards made from other inputs "
        f"({', '.join(other) or 'another version'}).",
        Remedy("Choose another folder", option="folder", flag="out") | "Remove that folder",
    )


def _in_folder(folder: Path) -> _Source:
    """Describe a graph folder by the sizes of its arrays."""

    def small(name: str, otherwise: Any) -> Any:
        path = folder / f"{name}.npy"
        return small_array(path) if path.is_file() else otherwise

    def rows(name: str) -> RowFile:
        return RowFile(folder / f"{name}.npy")

    check_format(f"Graph folder '{folder}'", int(small("format", GRAPH_FORMAT)), GRAPH_FORMAT)
    refuse_changed(folder)
    is_sparse = not (folder / "x.npy").is_file()
    size = small("x_shape", None) if is_sparse else rows("x").shape
    masks = rows("train_mask").shape if (folder / "train_mask.npy").is_file() else (0, 0)
    files = [(path.name, path.stat()) for path in sorted(folder.glob("*.npy"))]
    indptr = rows("edges_indptr")
    fields = {
        "graph": str(folder),
        "name": graph_name(folder),
        "source": digest(*(f"{n} {stat.st_size} {stat.st_mtime_ns}\n" for n, stat in files)),
        "num_nodes": int(size[0]),
        "num_features": int(size[1]),
        "num_edges": len(rows("edges_indices")),
        "is_directed": bool(small("directed", True)),
        "is_weighted": (folder / "edges_data.npy").is_file(),
        "is_sparse": is_sparse,
        "class_names": tuple(str(name) for name in small("class_names", ())),
    }
    splits = int(masks[1]) if len(masks) > 1 else 1
    return _Source(fields, splits, lambda node: int(indptr.span(node, node + 1)[0]), str(folder))


def _in_memory(graph: Graph, folder: Path, path: Path | None) -> _Source:
    """Describe a graph that is written into the folder of the shards."""
    fields = {
        "graph": str((folder / WORK / "graph.graph").resolve()),
        "name": graph.name,
        "source": shard_content(graph),
        "num_nodes": graph.num_nodes,
        "num_features": graph.num_features,
        "num_edges": graph.num_listed_edges,
        "is_directed": graph.directed,
        "is_weighted": graph.is_weighted,
        "is_sparse": bool(sp.issparse(graph.x)),
        "class_names": graph.class_names,
    }
    splits = 0 if graph.splits is None else len(graph.splits)
    indptr = graph.sorted_edges.indptr
    origin = None if path is None else str(path)
    return _Source(fields, splits, lambda node: int(indptr[node]), origin)


def _is_finished(folder: Path, plan: Plan) -> bool:
    if not (folder / MANIFEST).is_file():
        return False
    shards = Shards(folder)
    if shards.about["plan"] != plan.digest:
        return False
    shards.check()
    return True


def _superseded_rounds(folder: Path, plan: Plan, stages: list[Stage]) -> set[int]:
    """Return the rounds that a later complete round supersedes; their files may be gone."""
    superseded: set[int] = set()
    for number, stage in reversed(list(enumerate(stages))):
        if not stage.chain or number in superseded:
            continue
        is_done = all(
            record(folder, plan, unit, checked=checked) is not None
            for checked in (False, True)  # checksums after all sizes, which are faster
            for unit in stage.units
        )
        if is_done:
            superseded |= {n for n in range(number) if stages[n].chain == stage.chain}
    return superseded


def _write_manifest(folder: Path, plan: Plan, stages: list[Stage]) -> None:
    records = [record(folder, plan, unit) or {} for stage in stages for unit in stage.units]
    files = {
        name: facts
        for unit_record in records
        for name, facts in unit_record.get("files", {}).items()
        if name.startswith("rows-")
    }
    statistics = {}
    for name in statistic_names(plan.statistics):
        is_sparse = rows_file(0, f"{name}.npz") in files
        facts = files[rows_file(0, f"{name}.{'npz' if is_sparse else 'npy'}")]
        statistics[name] = {
            "base": base_name(name),
            "width": facts["shape"][1],
            "dtype": np.dtype(facts["dtype"]).name,
            "is_sparse": is_sparse,
        }
    manifest = {
        "format": FORMAT,
        "graph": plan.name,
        "num_nodes": plan.num_nodes,
        "num_features": plan.num_features,
        "ranges": [list(plan.span(part)) for part in range(plan.num_ranges)],
        "class_names": list(plan.class_names),
        "split": plan.split,
        "statistics": statistics,
        "settings": plan.settings,
        "plan": plan.digest,
        **read_json(folder / _ORIGIN),
        "files": files,
    }
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
